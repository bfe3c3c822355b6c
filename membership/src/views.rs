//! The newest view: made once, handed to every core and to whoever waits for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_engine::placement::Placement;
use forebay_engine::ports::Membership;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::record::Roster;

/// Members, and the placement that follows from them.
#[derive(Clone, Debug)]
pub struct GroupView {
    /// The members.
    pub roster: Arc<Roster>,
    /// [`Roster::fingerprint`].
    pub fingerprint: u64,
    /// Who owns what.
    pub placement: Arc<Placement>,
}

impl GroupView {
    /// The view of `roster`. Takes up to 100 ms of CPU for large groups.
    pub fn new(roster: Arc<Roster>) -> Self {
        Self {
            fingerprint: roster.fingerprint(),
            placement: Arc::new(Placement::new(roster.view())),
            roster,
        }
    }
}

type Waker = Box<dyn Fn() + Send + Sync>;

/// Where views are published. Clones are the same place.
#[derive(Clone)]
pub struct Views {
    shared: Arc<Shared>,
}

struct Shared {
    /// Counts views; cores look only at this in each turn.
    version: AtomicU64,
    newest: watch::Sender<Option<Arc<GroupView>>>,
    wakers: Mutex<Vec<Waker>>,
}

impl Default for Views {
    fn default() -> Self {
        Self {
            shared: Arc::new(Shared {
                version: AtomicU64::new(0),
                newest: watch::Sender::new(None),
                wakers: Mutex::new(Vec::new()),
            }),
        }
    }
}

impl fmt::Debug for Views {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.shared.version.load(Ordering::Relaxed);
        write!(f, "Views(version {version})")
    }
}

impl Views {
    /// Makes `view` the newest and wakes the cores.
    pub fn publish(&self, view: GroupView) {
        self.shared.newest.send_replace(Some(Arc::new(view)));
        self.shared.version.fetch_add(1, Ordering::Release);
        self.shared.wakers.lock().iter().for_each(|wake| wake());
    }

    /// The newest, if there is one.
    pub fn newest(&self) -> Option<Arc<GroupView>> {
        self.shared.newest.borrow().clone()
    }

    /// Follows the newest.
    pub fn watch(&self) -> watch::Receiver<Option<Arc<GroupView>>> {
        self.shared.newest.subscribe()
    }

    /// Has `wake` called after each change, for example to ring cores' doorbells. It must not wait.
    pub fn on_change(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.shared.wakers.lock().push(Box::new(wake));
    }

    /// A core's window on the views.
    pub fn for_core(&self) -> CoreViews {
        CoreViews {
            views: self.clone(),
            seen: 0,
        }
    }
}

/// The engine's membership port. A turn without news costs one atomic load.
#[derive(Debug)]
pub struct CoreViews {
    views: Views,
    seen: u64,
}

impl Membership for CoreViews {
    fn poll(&mut self) -> Option<Arc<Placement>> {
        let version = self.views.shared.version.load(Ordering::Acquire);
        if version == self.seen {
            return None;
        }
        self.seen = version;
        self.views.newest().map(|view| view.placement.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::record::listed;

    fn view(nodes: &[&str]) -> GroupView {
        let members = nodes.iter().map(|node| listed("g", node, 1)).collect();
        GroupView::new(Arc::new(Roster::new(members)))
    }

    #[test]
    fn each_core_sees_each_newest_view_once_and_is_woken() {
        let views = Views::default();
        let (mut one, mut two) = (views.for_core(), views.for_core());
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = wakes.clone();
        views.on_change(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        assert!(one.poll().is_none());
        views.publish(view(&["a"]));
        assert_eq!(one.poll().unwrap().view().members().len(), 1);
        assert!(one.poll().is_none());
        views.publish(view(&["a", "b"]));
        views.publish(view(&["a", "b", "c"]));
        for core in [&mut one, &mut two] {
            assert_eq!(core.poll().unwrap().view().members().len(), 3);
            assert!(core.poll().is_none());
        }
        assert_eq!(wakes.load(Ordering::Relaxed), 3);
        assert_eq!(
            views
                .watch()
                .borrow()
                .as_ref()
                .unwrap()
                .roster
                .members()
                .len(),
            3
        );
    }
}
