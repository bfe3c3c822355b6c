//! The simulated membership: who is in the group, and what each node knows of it.
//!
//! A change reaches each node after a delay of its own, so views differ for a while. As in production a process
//! sees only the newest view, and a process that starts is told of the view without itself first: so it knows
//! whose what it takes over was.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::placement::{Member, Placement, View};
use forebay_engine::ports::{Membership, PeerId};
use parking_lot::Mutex;

/// A member that is not heard of for so long is taken out.
pub const DEATH_NOTICED_AFTER: Duration = Duration::from_secs(10);

/// The id of node number `node`.
pub fn peer_of(node: usize) -> PeerId {
    PeerId(node as u64 + 1)
}

/// One core's view of the group.
#[derive(Clone, Debug, Default)]
pub struct SimMembership(Rc<RefCell<Letters>>);

#[derive(Debug, Default)]
struct Letters {
    before: Option<Arc<Placement>>,
    newest: Option<Arc<Placement>>,
}

impl SimMembership {
    /// Tells of a view.
    pub fn tell(&self, placement: Arc<Placement>) {
        self.0.borrow_mut().newest = Some(placement);
    }

    /// Tells of the view before this member was part of it.
    pub fn tell_before(&self, placement: Arc<Placement>) {
        self.0.borrow_mut().before = Some(placement);
    }

    /// Whether a poll will find something.
    pub fn is_ready(&self) -> bool {
        let letters = self.0.borrow();
        letters.before.is_some() || letters.newest.is_some()
    }
}

impl Membership for SimMembership {
    fn poll(&mut self) -> Option<Arc<Placement>> {
        let mut letters = self.0.borrow_mut();
        let before = letters.before.take();
        before.or_else(|| letters.newest.take())
    }
}

/// Who serves, in truth: node numbers, with weight and core count.
#[derive(Clone, Debug, Default)]
pub struct Roster(pub BTreeMap<usize, (u32, u16)>);

impl Roster {
    /// The placement of these members.
    pub fn placement(&self) -> Arc<Placement> {
        let members = self.0.iter().map(|(node, (weight, cores))| Member {
            id: peer_of(*node),
            weight: *weight,
            cores: *cores,
            addresses: Arc::new([]),
        });
        placement(View::new(members.collect()))
    }

    /// The same without one of them.
    pub fn without(&self, node: usize) -> Self {
        let mut rest = self.clone();
        rest.0.remove(&node);
        rest
    }
}

/// Tables take long to make, follow from the view alone, and runs share most views.
fn placement(view: View) -> Arc<Placement> {
    static MADE: Mutex<BTreeMap<u64, Arc<Placement>>> = Mutex::new(BTreeMap::new());
    const MADE_MAX: usize = 500;
    let digest = view.digest();
    if let Some(made) = MADE.lock().get(&digest) {
        return made.clone();
    }
    let new = Arc::new(Placement::new(view));
    let mut made = MADE.lock();
    if made.len() >= MADE_MAX {
        made.clear();
    }
    made.insert(digest, new.clone());
    new
}
