//! Whether the origin refuses this node: wrong credentials, or too few rights. Readers are told at once; this is for
//! people who look why.

use super::Core;
use crate::errors::{OriginError, OriginErrorKind};
use crate::ports::{Platform, Time};
use crate::stats::Refusal;

/// What the origin said last of this node.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// When it gave something last.
    granted_at: Option<Time>,
    /// Refused, and nothing given since: since when, when last, and the origin's words.
    refused: Option<(Time, Time, OriginError)>,
}

impl Refusals {
    fn answered(&mut self, now: Time, answer: Result<(), &OriginError>) {
        match answer {
            Ok(()) => (self.granted_at, self.refused) = (Some(now), None),
            // Who may not look is not told so.
            Err(error) if error.kind == OriginErrorKind::NotFound => {
                (self.granted_at, self.refused) = (Some(now), None);
            }
            Err(error) if error.kind.is_of_asker() => {
                let since = self.refused.as_ref().map_or(now, |(since, ..)| *since);
                self.refused = Some((since, now, error.clone()));
            }
            Err(_) => {}
        }
    }

    /// As counters tell it: how long ago something was given, and the refusal.
    pub fn told(&self, now: Time) -> (Option<u64>, Option<Refusal>) {
        let ns = |at: Time| now.since(at).as_nanos() as u64;
        let refusal = self.refused.as_ref().map(|(since, last, error)| Refusal {
            since_ns: ns(*since),
            last_ns: ns(*last),
            error: error.to_string().into(),
        });
        (self.granted_at.map(ns), refusal)
    }
}

impl<P: Platform> Core<P> {
    /// The origin answered something.
    pub(super) fn note_answer(&mut self, now: Time, answer: Result<(), &OriginError>) {
        self.refusals.answered(now, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(second: u64) -> Time {
        Time(second * 1_000_000_000)
    }

    #[test]
    fn a_refusal_is_told_until_something_is_given() {
        let mut refusals = Refusals::default();
        let error = |kind| OriginError::new(kind, "HTTP 403");
        let denied = error(OriginErrorKind::Denied);
        refusals.answered(s(1), Ok(()));
        assert_eq!(refusals.told(s(3)), (Some(2_000_000_000), None));
        for second in [4, 6] {
            refusals.answered(s(second), Err(&denied));
        }
        // That it could not be reached says nothing of it.
        refusals.answered(s(7), Err(&error(OriginErrorKind::Unavailable)));
        let (_, refusal) = refusals.told(s(8));
        let refusal = refusal.expect("it is refused");
        assert_eq!(
            (refusal.since_ns, refusal.last_ns),
            (4_000_000_000, 2_000_000_000)
        );
        assert!(refusal.error.contains("HTTP 403"), "{refusal:?}");
        refusals.answered(s(9), Err(&error(OriginErrorKind::NotFound)));
        assert_eq!(refusals.told(s(9)), (Some(0), None));
    }
}
