//! Whether S3 answers a job. While it does not, the job waits for it once, not once for each of its paths: after a
//! question was given up, the next ones are tried one at a time, shortly, and fail together.

use std::time::{Duration, Instant};

use forebay_engine::errors::{OriginError, OriginErrorKind};
use parking_lot::Mutex;
use tokio::sync::MutexGuard;

/// A trial waits so long for an answer.
pub const TRIAL_TIME: Duration = Duration::from_secs(3);
/// Questions that come so soon after a trial that failed fail too.
const TRIAL_COUNTS_FOR: Duration = Duration::from_secs(1);

/// What one job knows.
#[derive(Debug, Default)]
pub struct Silence {
    state: Mutex<State>,
    /// When the last trial failed. Who holds it tries.
    trial: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct State {
    /// The first question that was not answered began then, and none was since.
    since: Option<Instant>,
    /// What the last one ended with.
    why: Option<OriginError>,
    is_given_up: bool,
}

/// How a question may be asked.
#[derive(Debug)]
pub enum Turn<'a> {
    /// Again and again.
    Patient,
    /// Once, shortly.
    Trial(Trial<'a>),
    /// Not at all: a moment ago there was no answer.
    Refused(OriginError),
}

/// The right to try whether there is an answer. Others wait for what comes of it.
#[derive(Debug)]
pub struct Trial<'a>(MutexGuard<'a, Option<Instant>>);

impl Trial<'_> {
    /// There was none.
    pub fn failed(mut self) {
        *self.0 = Some(Instant::now());
    }
}

impl Silence {
    /// How the next question may be asked; waits while another one tries.
    pub async fn turn(&self) -> Turn<'_> {
        if !self.state.lock().is_given_up {
            return Turn::Patient;
        }
        let trial = self.trial.lock().await;
        let failed_now = trial.is_some_and(|at| at.elapsed() < TRIAL_COUNTS_FOR);
        let is_given_up = self.state.lock().is_given_up;
        match (is_given_up, failed_now) {
            (false, _) => Turn::Patient,
            (true, true) => Turn::Refused(self.why()),
            (true, false) => Turn::Trial(Trial(trial)),
        }
    }

    /// S3 answered, if only that there is nothing.
    pub fn answered(&self) {
        *self.state.lock() = State::default();
    }

    /// A question that was asked at `began` failed.
    pub fn failed(&self, began: Instant, error: &OriginError) {
        match error.kind {
            OriginErrorKind::Throttled => self.answered(),
            OriginErrorKind::Unavailable | OriginErrorKind::Timeout => {
                self.unanswered(began);
                self.state.lock().why = Some(error.clone());
            }
            // It may be one or the other.
            _ => {}
        }
    }

    /// A question that was asked at `began` got no answer in time.
    pub fn unanswered(&self, began: Instant) {
        let mut state = self.state.lock();
        state.since = Some(state.since.map_or(began, |since| since.min(began)));
    }

    /// A question was not answered within all the time that a job has; what it fails with.
    pub fn give_up(&self) -> OriginError {
        let mut state = self.state.lock();
        state.is_given_up = state.since.is_some();
        drop(state);
        self.why()
    }

    /// How long there has been no answer.
    pub fn span(&self) -> Option<Duration> {
        Some(self.state.lock().since?.elapsed())
    }

    fn why(&self) -> OriginError {
        let why = self.state.lock().why.clone();
        why.unwrap_or_else(|| OriginError::new(OriginErrorKind::Timeout, "S3 does not answer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> OriginError {
        OriginError::new(OriginErrorKind::Unavailable, "connection refused")
    }

    fn given_up() -> Silence {
        let silence = Silence::default();
        silence.failed(Instant::now(), &refused());
        assert_eq!(silence.give_up(), refused());
        silence
    }

    #[tokio::test]
    async fn after_one_was_given_up_the_others_are_tried_one_at_a_time_and_fail_together() {
        let silence = given_up();
        let Turn::Trial(trial) = silence.turn().await else {
            panic!("it is tried once more");
        };
        let soon = Duration::from_millis(20);
        let other = tokio::time::timeout(soon, silence.turn()).await;
        assert!(other.is_err(), "it waits for what comes of the trial");
        trial.failed();
        for _ in 0..1_000 {
            match silence.turn().await {
                Turn::Refused(error) => assert_eq!(error, refused()),
                // The machine may have stood still in between.
                Turn::Trial(trial) => trial.failed(),
                Turn::Patient => panic!("S3 has not answered"),
            }
        }
    }

    #[tokio::test]
    async fn an_answer_makes_the_job_patient_again() {
        let silence = given_up();
        assert!(silence.span().is_some());
        let trial = silence.turn().await;
        assert!(matches!(trial, Turn::Trial(_)), "{trial:?}");
        silence.answered();
        drop(trial);
        assert!(matches!(silence.turn().await, Turn::Patient));
        assert_eq!(silence.span(), None);
    }

    #[tokio::test]
    async fn who_answers_that_it_is_too_much_is_not_silent() {
        let silence = Silence::default();
        let error = OriginError::new(OriginErrorKind::Throttled, "503");
        silence.failed(Instant::now(), &error);
        silence.give_up();
        assert!(matches!(silence.turn().await, Turn::Patient));
        assert_eq!(silence.span(), None);
    }
}
