//! One thread beside the cores, for callbacks that have more to do than a core should wait for:
//! a listing page is a thousand entries to sort out, and the core has readers.

use std::sync::mpsc::{Sender, channel};

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs in order, on its own thread. The thread ends when the helper is dropped.
pub(super) struct Helper(Option<Sender<Job>>);

impl Helper {
    pub(super) fn start() -> Self {
        let (sender, receiver) = channel::<Job>();
        let thread = std::thread::Builder::new().name("forebay-dirs".into());
        let started = thread.spawn(move || receiver.into_iter().for_each(|job| job()));
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread for directory listings: the engine's cores do it");
        }
        Self(started.is_ok().then_some(sender))
    }

    /// Runs `job` soon; right here when there is no thread.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let job: Job = Box::new(job);
        let refused = match &self.0 {
            Some(sender) => sender.send(job).err().map(|error| error.0),
            None => Some(job),
        };
        if let Some(job) = refused {
            job();
        }
    }
}
