//! This member's weight in the ring: as given, or what its disks can hold. Disks that fail take their part of it with
//! them, since a share that cannot be kept is read from S3 in every pass, while others have room.
//!
//! It falls only: a disk that was retired, or became read-only, is so until the next start. What a disk may occupy
//! (`--free-space-ratio`) is not followed: it comes and goes with the disk's other users, and each change moves a part of
//! the ring, that is bytes between members. Nor are regions lost one by one.

use std::fmt::{Display, Formatter};

use forebay_membership::record::Usage;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Group;

/// What a member's cache can hold when all of it works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Its disks; 0 without any.
    pub disk_bytes: u64,
    /// Its buffers.
    pub memory_bytes: u64,
}

/// What a member sees of itself.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How full it is.
    pub usage: Usage,
    /// What of its disks takes nothing new; none when not all cores have said.
    pub out: Option<DisksOut>,
}

/// Disks that take nothing new until the next start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisksOut {
    /// Which, as they were given.
    pub names: Vec<String>,
    /// What they could hold; of one that works for some cores, those cores' part is left out.
    pub bytes: u64,
}

impl Room {
    /// The weight: one for each GiB of the disks that work, or of memory when none does. Never 0, which means to leave.
    fn weight(&self, out_bytes: u64) -> u32 {
        let cache_bytes = match (self.disk_bytes, self.disk_bytes.saturating_sub(out_bytes)) {
            (0, _) => self.memory_bytes,
            (all, 0) => self.memory_bytes.min(all),
            (_, left) => left,
        };
        u32::try_from(cache_bytes >> 30).unwrap_or(u32::MAX).max(1)
    }
}

/// Disks of a member that take nothing new, and its weight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisksOutReport {
    /// The directories and devices, as they were given.
    pub disks: Vec<String>,
    /// The weight that this member joined with.
    pub weight_before: u32,
    /// The weight that it has now (while it does not hand over what it holds).
    pub weight: u32,
    /// Whether `--group-weight` was given: then it stays.
    pub given: bool,
}

impl Display for DisksOutReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let disks = self.disks.join(", ");
        write!(f, "nothing new is kept on {disks} until the next start")?;
        match (self.given, self.weight_before, self.weight) {
            (true, _, 0) => Ok(()),
            (true, _, weight) => write!(
                f,
                ", and --group-weight {weight} is as it was given: what cannot be kept of this member's share is read from S3 in \
                 every pass. Mend it and start again; until then `forebay drain`, or start with less --group-weight"
            ),
            (false, before, weight) if before == weight => {
                write!(
                    f,
                    "; this member's weight stays {weight}, the next smaller would be no share"
                )
            }
            (false, before, weight) => write!(
                f,
                ": this member's weight falls from {before} to {weight}, others own the rest of its share"
            ),
        }
    }
}

/// What a member's weight is, and why.
#[derive(Debug, Default)]
pub(super) struct Weight(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    given: bool,
    room: Room,
    before: u32,
    now: u32,
    out: DisksOut,
}

impl Weight {
    /// The weight to join with.
    pub fn begin(&self, given: Option<u32>, room: Room) -> u32 {
        let weight = given.unwrap_or_else(|| room.weight(0));
        *self.0.lock() = Inner {
            given: given.is_some(),
            room,
            before: weight,
            now: weight,
            out: DisksOut::default(),
        };
        weight
    }

    /// The weight of a member that does not hand over what it holds.
    pub fn now(&self) -> u32 {
        self.0.lock().now
    }

    /// Takes what is out. What is to be said of it when more is than before.
    fn note(&self, out: DisksOut) -> Option<DisksOutReport> {
        let mut inner = self.0.lock();
        if out.bytes <= inner.out.bytes {
            return None;
        }
        if !inner.given {
            inner.now = inner.now.min(inner.room.weight(out.bytes));
        }
        inner.out = out;
        Some(inner.report())
    }

    /// What is out, if anything.
    pub fn report(&self) -> Option<DisksOutReport> {
        let inner = self.0.lock();
        (inner.out.bytes > 0).then(|| inner.report())
    }
}

impl Inner {
    fn report(&self) -> DisksOutReport {
        DisksOutReport {
            disks: self.out.names.clone(),
            weight_before: self.before,
            weight: self.now,
            given: self.given,
        }
    }
}

impl Group {
    /// Takes what of this member's disks takes nothing new, tells the others its weight when that is less now, and
    /// says so.
    pub(super) async fn follow_disks(&self, out: DisksOut) {
        let before = self.weight.now();
        let Some(report) = self.weight.note(out) else {
            return;
        };
        tracing::warn!("{report}");
        if report.weight == before {
            return;
        }
        // Who hands over has the weight 0; one that stops takes the weight of then.
        let told = self.draining.unless_begun(self.set_weight(report.weight));
        if let Err(error) = told.await {
            tracing::error!(
                "the others are not told the weight {}: {error:#}",
                report.weight
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn out(names: &[&str], bytes: u64) -> DisksOut {
        DisksOut {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            bytes,
        }
    }

    #[test]
    fn a_weight_is_never_nothing_by_itself() {
        for (cache_bytes, weight) in [(0, 1), (GIB / 2, 1), (7 * GIB + 1, 7), (u64::MAX, u32::MAX)]
        {
            for (disk_bytes, memory_bytes) in [(cache_bytes, GIB / 4), (0, cache_bytes)] {
                let room = Room {
                    disk_bytes,
                    memory_bytes,
                };
                assert_eq!(room.weight(0), weight, "{room:?}");
            }
        }
    }

    #[test]
    fn each_disk_that_fails_takes_its_part_and_memory_is_what_stays() {
        let room = Room {
            disk_bytes: 20 * GIB,
            memory_bytes: 3 * GIB,
        };
        let weight = Weight::default();
        assert_eq!(weight.begin(None, room), 20);
        assert_eq!((weight.note(out(&[], 0)), weight.report()), (None, None));
        let report = weight.note(out(&["/a"], 10 * GIB)).unwrap();
        assert!(report.to_string().contains("from 20 to 10"), "{report}");
        assert_eq!(weight.note(out(&["/a"], 10 * GIB)), None, "said once");
        // A core that answers late says less.
        assert_eq!(weight.note(out(&[], 0)), None);
        assert_eq!(weight.now(), 10);
        let report = weight.note(out(&["/a", "/b"], 20 * GIB)).unwrap();
        assert_eq!((report.weight_before, report.weight), (20, 3));
        assert_eq!(weight.report(), Some(report));

        // Much memory is no reason for more than the disks had, or than the last of them had.
        let room = Room {
            memory_bytes: 50 * GIB,
            ..room
        };
        assert_eq!(room.weight(20 * GIB), 20);
        let weight = Weight::default();
        weight.begin(None, room);
        weight.note(out(&["/a"], 18 * GIB));
        weight.note(out(&["/a", "/b"], 20 * GIB));
        assert_eq!(weight.now(), 2);
    }

    #[test]
    fn a_weight_that_was_given_stays() {
        let room = Room {
            disk_bytes: 20 * GIB,
            memory_bytes: GIB,
        };
        for given in [7, 0] {
            let weight = Weight::default();
            assert_eq!(weight.begin(Some(given), room), given);
            let report = weight.note(out(&["/a"], 20 * GIB)).unwrap();
            assert_eq!((weight.now(), report.given), (given, true));
            let advice = report.to_string().contains("forebay drain");
            assert_eq!(advice, given > 0, "{report}");
        }
    }
}
