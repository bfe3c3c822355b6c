//! Faults and delays, settable while the server runs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::counters::Class;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The answer begins this much later.
    Delay(Duration),
    /// An error answer: 503 is SlowDown, 500 InternalError, 403 AccessDenied, others by number.
    Status(u16),
    /// The connection is reset instead of an answer.
    Reset,
    /// No answer, ever.
    Hang,
    /// 200 with the whole object instead of 206.
    Whole,
    /// The answer bears an ETag that is not the object's.
    WrongETag,
    /// No ETag in answers and listings.
    NoETag,
    /// A 206 whose range is honest but ends this many bytes before the end asked for.
    ShortRange(u64),
    /// The object is overwritten with other content of the same length before it is served.
    Overwrite,
    /// The body ends, and the connection with it, after this many bytes.
    ShortBody(u64),
    /// The connection is reset after this many bytes of the body.
    ResetBody(u64),
    /// Nothing more comes after this many bytes of the body.
    HangBody(u64),
}

/// Which of the requests that match.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// All.
    Always,
    /// The first so many.
    Times(u64),
    /// The Nth, 2Nth, ...
    EveryNth(u64),
    /// Each with this probability, drawn from a generator with this seed.
    Probability(f64, u64),
}

/// A fault and where it strikes.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Only requests of this class; none for all.
    pub class: Option<Class>,
    /// Only paths (`/bucket/key`, percent-encoded) that contain this; empty for all.
    pub path_part: String,
    /// Which of those.
    pub when: When,
    /// What goes wrong.
    pub fault: Fault,
}

impl Rule {
    /// Every request of `class`.
    pub fn always(class: Class, fault: Fault) -> Self {
        Self {
            class: Some(class),
            path_part: String::new(),
            when: When::Always,
            fault,
        }
    }

    /// The first `times` requests of `class`.
    pub fn times(class: Class, times: u64, fault: Fault) -> Self {
        Self {
            when: When::Times(times),
            ..Self::always(class, fault)
        }
    }
}

#[derive(Debug)]
struct Armed {
    rule: Rule,
    matched: u64,
    random: u64,
}

impl Armed {
    fn strikes(&mut self, class: Class, path: &str) -> bool {
        if self.rule.class.is_some_and(|only| only != class) || !path.contains(&self.rule.path_part)
        {
            return false;
        }
        self.matched += 1;
        match self.rule.when {
            When::Always => true,
            When::Times(times) => self.matched <= times,
            When::EveryNth(n) => n > 0 && self.matched.is_multiple_of(n),
            When::Probability(probability, _) => {
                // xorshift64: good enough to choose requests, and replayable.
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                ((self.random >> 11) as f64) < probability * (1u64 << 53) as f64
            }
        }
    }
}

/// The faults of a server; all methods take effect on requests that come later.
#[derive(Debug, Default)]
pub struct Faults {
    armed: Mutex<Vec<Armed>>,
    delay_us: [AtomicU64; Class::ALL.len()],
    bandwidth_bytes_per_s: AtomicU64,
}

impl Faults {
    /// Adds a rule. Of the rules that match a request all delays apply, and the first other fault.
    pub fn add(&self, rule: Rule) {
        let random = match rule.when {
            When::Probability(_, seed) => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            _ => 1,
        };
        self.armed.lock().push(Armed {
            rule,
            matched: 0,
            random,
        });
    }

    /// Removes all rules; the delays and the bandwidth stay.
    pub fn clear(&self) {
        self.armed.lock().clear();
    }

    /// Time to the first byte of every answer of `class`.
    pub fn set_delay(&self, class: Class, delay: Duration) {
        self.delay_us[class as usize].store(delay.as_micros() as u64, Relaxed);
    }

    /// Bytes per second that one connection's bodies are limited to; 0 for no limit.
    pub fn set_bandwidth(&self, bytes_per_s: u64) {
        self.bandwidth_bytes_per_s.store(bytes_per_s, Relaxed);
    }

    pub(super) fn bandwidth(&self) -> u64 {
        self.bandwidth_bytes_per_s.load(Relaxed)
    }

    /// What a request meets: how long it waits, and what goes wrong then.
    pub(super) fn meet(&self, class: Class, path: &str) -> (Duration, Option<Fault>) {
        let mut delay = Duration::from_micros(self.delay_us[class as usize].load(Relaxed));
        let mut fault = None;
        for armed in self.armed.lock().iter_mut() {
            if armed.strikes(class, path) {
                match &armed.rule.fault {
                    Fault::Delay(more) => delay += *more,
                    other if fault.is_none() => fault = Some(other.clone()),
                    _ => {}
                }
            }
        }
        (delay, fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(when: When, requests: usize) -> usize {
        let faults = Faults::default();
        faults.add(Rule {
            when,
            ..Rule::always(Class::Get, Fault::Reset)
        });
        (0..requests)
            .filter(|_| faults.meet(Class::Get, "/b/k").1.is_some())
            .count()
    }

    #[test]
    fn rules_choose_their_requests() {
        assert_eq!(count(When::Always, 10), 10);
        assert_eq!(count(When::Times(3), 10), 3);
        assert_eq!(count(When::EveryNth(4), 10), 2);
        let some = count(When::Probability(0.25, 42), 1000);
        assert!((200..300).contains(&some), "{some} of 1000");
        assert_eq!(
            some,
            count(When::Probability(0.25, 42), 1000),
            "a seed replays"
        );
    }

    #[test]
    fn class_and_path_must_match() {
        let faults = Faults::default();
        let rule = Rule::always(Class::Get, Fault::Hang);
        faults.add(Rule {
            path_part: "/b/x".into(),
            ..rule
        });
        assert_eq!(faults.meet(Class::Head, "/b/x").1, None);
        assert_eq!(faults.meet(Class::Get, "/b/y").1, None);
        assert_eq!(faults.meet(Class::Get, "/b/xx").1, Some(Fault::Hang));
    }
}
