//! Who was heard lately.
//!
//! chitchat's own detector adapts to how regular heartbeats are; a cache group wants one fixed span, since a member that
//! leaves the view moves its share of the ring.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_engine::placement::PeerId;

/// A member that was not heard of for so long leaves the view.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A gap between two looks that is longer than this was our own standstill, not the others'.
const STANDSTILL_MIN: Duration = Duration::from_secs(2);

/// A life of a member: its id, and which start of it.
pub type Life = (PeerId, u64);

#[derive(Clone, Copy, Debug)]
struct Heard {
    heartbeat: u64,
    /// When the heartbeat grew last; not when it was first told, which may be hearsay of the dead.
    at: Option<Instant>,
}

/// Heartbeats, and when they grew.
#[derive(Debug, Default)]
pub struct Liveness {
    heard: BTreeMap<Life, Heard>,
    looked: Option<Instant>,
}

impl Liveness {
    /// Takes all known lives and their heartbeats, as of now; forgets others.
    pub fn look(&mut self, now: Instant, heartbeats: impl Iterator<Item = (Life, u64)>) {
        let gap = self.looked.map_or(Duration::ZERO, |looked| now - looked);
        self.looked = Some(now);
        let mut before = std::mem::take(&mut self.heard);
        for (life, heartbeat) in heartbeats {
            let mut heard = before.remove(&life).unwrap_or(Heard {
                heartbeat,
                at: None,
            });
            if heartbeat > heard.heartbeat {
                heard = Heard {
                    heartbeat,
                    at: Some(now),
                };
            } else if gap > STANDSTILL_MIN {
                heard.at = heard.at.map(|at| at + gap);
            }
            self.heard.insert(life, heard);
        }
    }

    /// Whether a life was heard of lately.
    pub fn is_alive(&self, life: Life, now: Instant) -> bool {
        self.since(life, now)
            .is_some_and(|silence| silence < SILENCE_MAX)
    }

    /// For how long it was not heard of; nothing when it never was.
    pub fn since(&self, life: Life, now: Instant) -> Option<Duration> {
        let at = self.heard.get(&life)?.at?;
        Some(now.saturating_duration_since(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Life = (PeerId(1), 5);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn hearsay_is_no_life_and_silence_ends_it() {
        let start = Instant::now();
        let mut liveness = Liveness::default();
        liveness.look(start, [(LIFE, 7)].into_iter());
        assert!(!liveness.is_alive(LIFE, start));
        liveness.look(start + secs(1), [(LIFE, 8)].into_iter());
        for second in 1..11 {
            assert!(liveness.is_alive(LIFE, start + secs(second)), "{second}");
            liveness.look(start + secs(second), [(LIFE, 8)].into_iter());
        }
        assert!(!liveness.is_alive(LIFE, start + secs(11)));
        liveness.look(start + secs(12), [(LIFE, 9)].into_iter());
        assert!(liveness.is_alive(LIFE, start + secs(12)), "it came back");
        liveness.look(start + secs(13), [].into_iter());
        assert!(
            !liveness.is_alive(LIFE, start + secs(13)),
            "it was forgotten"
        );
    }

    #[test]
    fn who_stood_still_itself_does_not_bury_the_others() {
        let start = Instant::now();
        let mut liveness = Liveness::default();
        liveness.look(start, [(LIFE, 7)].into_iter());
        liveness.look(start + secs(1), [(LIFE, 8)].into_iter());
        liveness.look(start + secs(61), [(LIFE, 8)].into_iter());
        assert!(liveness.is_alive(LIFE, start + secs(61)));
        for second in 62..72 {
            liveness.look(start + secs(second), [(LIFE, 8)].into_iter());
        }
        assert!(!liveness.is_alive(LIFE, start + secs(71)));
    }
}
