//! A name is looked up by two requests at once: HEAD of the key, and a listing of one entry
//! under `key/`. Whatever is below makes it a directory, which wins over an object.

use std::sync::Arc;

use forebay_engine::errors::{OriginError, OriginErrorKind};
use forebay_engine::ports::ObjectMeta;
use fuser::Errno;
use parking_lot::Mutex;

use super::listing::Kind;
use crate::reply::origin_errno;

type Done = Box<dyn FnOnce(Result<Option<Kind>, Errno>) + Send>;

/// Joins the two answers.
pub(super) struct Join(Mutex<State>);

struct State {
    head: Option<Result<ObjectMeta, OriginError>>,
    below: Option<Result<bool, OriginError>>,
    done: Option<Done>,
}

impl Join {
    /// `done` is called once, with what the name is, as soon as that is certain.
    pub(super) fn new(
        done: impl FnOnce(Result<Option<Kind>, Errno>) + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            head: None,
            below: None,
            done: Some(Box::new(done)),
        })))
    }

    /// The HEAD's answer.
    pub(super) fn head(&self, answer: Result<ObjectMeta, OriginError>) {
        self.answered(|state| state.head = Some(answer));
    }

    /// Whether there is anything under the key and a slash.
    pub(super) fn below(&self, answer: Result<bool, OriginError>) {
        self.answered(|state| state.below = Some(answer));
    }

    fn answered(&self, note: impl FnOnce(&mut State)) {
        let (done, verdict) = {
            let mut state = self.0.lock();
            note(&mut state);
            let Some(verdict) = verdict(&state) else {
                return;
            };
            let Some(done) = state.done.take() else {
                return;
            };
            (done, verdict)
        };
        done(verdict);
    }
}

fn verdict(state: &State) -> Option<Result<Option<Kind>, Errno>> {
    match (&state.below, &state.head) {
        (Some(Ok(true)), _) => Some(Ok(Some(Kind::Directory))),
        // Without the listing a directory cannot be ruled out.
        (Some(Err(error)), _) if error.kind != OriginErrorKind::NotFound => {
            Some(Err(origin_errno(error)))
        }
        (Some(_), Some(Ok(meta))) => Some(Ok(Some(Kind::File(meta.clone())))),
        (Some(_), Some(Err(error))) if error.kind == OriginErrorKind::NotFound => Some(Ok(None)),
        (Some(_), Some(Err(error))) => Some(Err(origin_errno(error))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use forebay_engine::identity::Validator;

    use super::*;

    fn join() -> (Arc<Join>, Receiver<Result<Option<Kind>, Errno>>) {
        let (sender, receiver) = channel();
        (
            Join::new(move |verdict| sender.send(verdict).unwrap()),
            receiver,
        )
    }

    fn meta() -> ObjectMeta {
        let validator = Validator::ETag("\"e\"".into());
        ObjectMeta {
            key: "k".into(),
            size_bytes: 3,
            validator,
            modified_ns: 0,
        }
    }

    fn error(kind: OriginErrorKind) -> OriginError {
        OriginError::new(kind, "test")
    }

    #[test]
    fn a_directory_wins_without_waiting_for_the_object() {
        let (join, verdict) = join();
        join.below(Ok(true));
        assert_eq!(verdict.try_recv().unwrap(), Ok(Some(Kind::Directory)));
        join.head(Ok(meta()));
        assert!(verdict.try_recv().is_err());
    }

    #[test]
    fn an_object_waits_for_the_listing() {
        let (join, verdict) = join();
        join.head(Ok(meta()));
        assert!(verdict.try_recv().is_err());
        join.below(Ok(false));
        assert_eq!(verdict.try_recv().unwrap(), Ok(Some(Kind::File(meta()))));
    }

    #[test]
    fn failures_are_no_absence() {
        for (kind, errno) in [
            (OriginErrorKind::Denied, Errno::EACCES),
            (OriginErrorKind::Timeout, Errno::EIO),
            (OriginErrorKind::NoSuchBucket, Errno::EIO),
        ] {
            let (head_fails, verdict) = join();
            head_fails.below(Ok(false));
            head_fails.head(Err(error(kind)));
            assert_eq!(verdict.try_recv().unwrap(), Err(errno));
            let (list_fails, verdict) = join();
            list_fails.head(Ok(meta()));
            list_fails.below(Err(error(kind)));
            assert_eq!(verdict.try_recv().unwrap(), Err(errno));
        }
        let (absent, verdict) = join();
        absent.head(Err(error(OriginErrorKind::NotFound)));
        absent.below(Ok(false));
        assert_eq!(verdict.try_recv().unwrap(), Ok(None));
    }
}
