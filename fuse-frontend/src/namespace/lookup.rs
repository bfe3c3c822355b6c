//! A name is looked up by two requests at once: HEAD of the key, and a listing of one entry
//! under `key/`. Whatever is below makes it a directory, which wins over an object.

use std::sync::Arc;

use forebay_engine::client::Told;
use forebay_engine::errors::{OriginError, OriginErrorKind};
use forebay_engine::ports::{ObjectMeta, Time};
use parking_lot::Mutex;

use super::listing::Kind;

/// What a name is, and when the origin said so.
type Verdict = Result<(Option<Kind>, Time), OriginError>;
type Done = Box<dyn FnOnce(Verdict) + Send>;

/// Joins the two answers.
pub(super) struct Join(Mutex<State>);

struct State {
    head: Option<Told<ObjectMeta>>,
    below: Option<Told<bool>>,
    done: Option<Done>,
}

impl Join {
    /// `done` is called once, with what the name is, as soon as that is certain.
    pub(super) fn new(done: impl FnOnce(Verdict) + Send + 'static) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            head: None,
            below: None,
            done: Some(Box::new(done)),
        })))
    }

    /// The HEAD's answer.
    pub(super) fn head(&self, answer: Told<ObjectMeta>) {
        self.answered(|state| state.head = Some(answer));
    }

    /// Whether there is anything under the key and a slash.
    pub(super) fn below(&self, answer: Told<bool>) {
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

fn verdict(state: &State) -> Option<Verdict> {
    let below = state.below.as_ref()?;
    match &below.result {
        Ok(true) => return Some(Ok((Some(Kind::Directory), below.at))),
        // Without the listing a directory cannot be ruled out.
        Err(error) if error.kind != OriginErrorKind::NotFound => {
            return Some(Err(error.clone()));
        }
        _ => {}
    }
    let head = state.head.as_ref()?;
    let kind = match &head.result {
        Ok(meta) => Some(Kind::File(meta.clone())),
        Err(error) if error.kind == OriginErrorKind::NotFound => None,
        Err(error) => return Some(Err(error.clone())),
    };
    Some(Ok((kind, head.at.min(below.at))))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use forebay_engine::identity::Validator;

    use super::*;

    fn join() -> (Arc<Join>, Receiver<Verdict>) {
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

    fn told<T>(at: u64, result: Result<T, OriginErrorKind>) -> Told<T> {
        Told {
            result: result.map_err(|kind| OriginError::new(kind, "test")),
            at: Time(at),
        }
    }

    #[test]
    fn a_directory_wins_without_waiting_for_the_object() {
        let (join, verdict) = join();
        join.below(told(7, Ok(true)));
        let directory = Ok((Some(Kind::Directory), Time(7)));
        assert_eq!(verdict.try_recv().unwrap(), directory);
        join.head(told(5, Ok(meta())));
        assert!(verdict.try_recv().is_err());
    }

    #[test]
    fn an_object_waits_for_the_listing() {
        let (join, verdict) = join();
        join.head(told(5, Ok(meta())));
        assert!(verdict.try_recv().is_err());
        join.below(told(6, Ok(false)));
        let file = Ok((Some(Kind::File(meta())), Time(5)));
        assert_eq!(verdict.try_recv().unwrap(), file);
    }

    fn failure(verdict: &Receiver<Verdict>) -> Option<OriginErrorKind> {
        verdict.try_recv().unwrap().err().map(|error| error.kind)
    }

    #[test]
    fn failures_are_no_absence() {
        for kind in [
            OriginErrorKind::Denied,
            OriginErrorKind::Timeout,
            OriginErrorKind::NoSuchBucket,
        ] {
            let (head_fails, verdict) = join();
            head_fails.below(told(0, Ok(false)));
            head_fails.head(told(0, Err(kind)));
            assert_eq!(failure(&verdict), Some(kind));
            let (list_fails, verdict) = join();
            list_fails.head(told(0, Ok(meta())));
            list_fails.below(told(0, Err(kind)));
            assert_eq!(failure(&verdict), Some(kind));
        }
        let (absent, verdict) = join();
        absent.head(told(4, Err(OriginErrorKind::NotFound)));
        absent.below(told(3, Ok(false)));
        assert_eq!(verdict.try_recv().unwrap(), Ok((None, Time(3))));
    }
}
