//! The newest view: made once, handed to every core and to whoever waits for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_engine::placement::{Member, PeerId, Placement, View};
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
    /// With a member's first view: who owned what before it came. It asks those before it asks the origin.
    pub before: Option<Arc<Placement>>,
}

impl GroupView {
    /// The view of `roster`. Takes up to 100 ms of CPU for large groups.
    pub fn new(roster: Arc<Roster>) -> Self {
        Self {
            fingerprint: roster.fingerprint(),
            placement: Arc::new(Placement::new(roster.view())),
            roster,
            before: None,
        }
    }

    /// The first view that a member gets; the one before it is the same without that member.
    pub fn first(roster: Arc<Roster>, me: PeerId) -> Self {
        let view = roster.view();
        let others = view.members().iter().filter(|member| member.id != me);
        let others: Vec<Member> = others.cloned().collect();
        let before = (!others.is_empty()).then(|| Arc::new(Placement::new(View::new(others))));
        Self {
            before,
            ..Self::new(roster)
        }
    }
}

type Waker = Box<dyn Fn() + Send + Sync>;
type Listener = Box<dyn Fn(&GroupView) + Send + Sync>;

/// Where views are published. Clones are the same place.
#[derive(Clone)]
pub struct Views {
    shared: Arc<Shared>,
}

struct Shared {
    /// Counts views; cores look only at this in each turn.
    version: AtomicU64,
    newest: watch::Sender<Option<Arc<GroupView>>>,
    listeners: Mutex<Vec<Listener>>,
    wakers: Mutex<Vec<Waker>>,
}

impl Default for Views {
    fn default() -> Self {
        Self {
            shared: Arc::new(Shared {
                version: AtomicU64::new(0),
                newest: watch::Sender::new(None),
                listeners: Mutex::new(Vec::new()),
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
        for told in self.shared.listeners.lock().iter() {
            told(&view);
        }
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

    /// Has `told` called with each view before any core sees it, for example to learn members' addresses. It must
    /// not wait.
    pub fn before_change(&self, told: impl Fn(&GroupView) + Send + Sync + 'static) {
        self.shared.listeners.lock().push(Box::new(told));
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
            has_begun: false,
        }
    }
}

/// The engine's membership port. A turn without news costs one atomic load.
#[derive(Debug)]
pub struct CoreViews {
    views: Views,
    seen: u64,
    has_begun: bool,
}

impl Membership for CoreViews {
    fn poll(&mut self) -> Option<Arc<Placement>> {
        let version = self.views.shared.version.load(Ordering::Acquire);
        if version == self.seen {
            return None;
        }
        let newest = self.views.newest()?;
        if !std::mem::replace(&mut self.has_begun, true)
            && let Some(before) = &newest.before
        {
            return Some(before.clone());
        }
        self.seen = version;
        Some(newest.placement.clone())
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
    fn a_newcomer_learns_who_owned_what_before_it() {
        let views = Views::default();
        let me = listed("g", "b", 1).id;
        let members = ["a", "b", "c"].map(|node| listed("g", node, 1)).into();
        views.publish(GroupView::first(Arc::new(Roster::new(members)), me));
        let mut core = views.for_core();
        let before = core.poll().unwrap();
        assert_eq!(before.view().members().len(), 2);
        assert!(before.view().member(me).is_none());
        assert_eq!(core.poll().unwrap().view().members().len(), 3);
        assert!(core.poll().is_none());
        views.publish(view(&["a", "b"]));
        assert_eq!(core.poll().unwrap().view().members().len(), 2);
        assert!(core.poll().is_none());
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
        let told = Arc::new(AtomicUsize::new(0));
        let (counted, early) = (told.clone(), Mutex::new(views.for_core()));
        views.before_change(move |view| {
            assert!(
                early
                    .lock()
                    .poll()
                    .is_none_or(|seen| seen.view() != view.placement.view())
            );
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
        assert_eq!(told.load(Ordering::Relaxed), 3);
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
