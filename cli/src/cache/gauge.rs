//! How much of its disk a log may occupy, so that the disk's other users keep their share. Logic
//! only: what is seen comes from outside, once a tick.

/// Ticks for which the log may give back what it was told to, and the file system to notice,
/// before it is told to give back more. Some file systems free space seconds after a hole was punched.
pub const SETTLE_TICKS: u32 = 5;
/// Ticks for which there must have been more room before the log gets it.
pub const RAISE_TICKS: u32 = 15;
/// Less than one part in this many of the log's size is not worth a raise.
const RAISE_SHARE: u64 = 64;

/// What is seen of one log's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What the log occupies.
    pub occupied_bytes: u64,
    /// Its part of what is free beyond the share that shall stay free; below zero when the disk is
    /// fuller than that.
    pub slack_bytes: i64,
}

impl Seen {
    /// A log that occupies nothing, on a disk without room for it.
    pub const NOTHING: Seen = Seen {
        occupied_bytes: 0,
        slack_bytes: 0,
    };
}

/// The allowance of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gauge {
    capacity_bytes: u64,
    allowed_bytes: u64,
    /// Since the log was told to give space back: ticks left to settle, and how much was missing.
    settling: u32,
    missing_bytes: u64,
    /// Ticks for which there was more room, and the least of it.
    roomy: u32,
    roomy_bytes: u64,
}

impl Gauge {
    /// For a log of `capacity_bytes`, with what is seen at its start.
    pub fn new(capacity_bytes: u64, seen: Seen) -> Self {
        let mut gauge = Self {
            capacity_bytes,
            allowed_bytes: capacity_bytes,
            settling: 0,
            missing_bytes: 0,
            roomy: 0,
            roomy_bytes: 0,
        };
        gauge.tick(seen);
        gauge
    }

    /// What the log may occupy now.
    pub fn allowed_bytes(&self) -> u64 {
        self.allowed_bytes
    }

    /// Takes what is seen now. The new allowance, when it changed.
    pub fn tick(&mut self, seen: Seen) -> Option<u64> {
        let target = seen
            .occupied_bytes
            .saturating_add_signed(seen.slack_bytes)
            .min(self.capacity_bytes);
        self.settling = self.settling.saturating_sub(1);
        if target > self.allowed_bytes {
            return self.consider_raise(target);
        }
        self.roomy = 0;
        if target == self.allowed_bytes || self.is_settling(seen) {
            return None;
        }
        if seen.slack_bytes < 0 {
            self.settling = SETTLE_TICKS;
            self.missing_bytes = seen.slack_bytes.unsigned_abs();
        }
        self.allowed_bytes = target;
        Some(target)
    }

    /// Whether what was asked for has been done and may show any moment.
    fn is_settling(&self, seen: Seen) -> bool {
        let missing_bytes = seen.slack_bytes.min(0).unsigned_abs();
        self.settling > 0
            && seen.slack_bytes < 0
            && missing_bytes <= self.missing_bytes
            && seen.occupied_bytes <= self.allowed_bytes
    }

    /// More room is given late, and then as much as there was all the time.
    fn consider_raise(&mut self, target: u64) -> Option<u64> {
        let worth = self.capacity_bytes / RAISE_SHARE;
        if target < self.capacity_bytes && target - self.allowed_bytes < worth {
            self.roomy = 0;
            return None;
        }
        self.roomy_bytes = match self.roomy {
            0 => target,
            _ => self.roomy_bytes.min(target),
        };
        self.roomy += 1;
        if self.roomy < RAISE_TICKS {
            return None;
        }
        self.roomy = 0;
        self.allowed_bytes = self.roomy_bytes;
        Some(self.allowed_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with other users, on which a log does as it is told.
    struct Disk {
        free: i64,
        reserve: i64,
        log: u64,
        /// Freed space shows after so many ticks.
        lag: usize,
        freed: Vec<i64>,
    }

    impl Disk {
        fn new(free: i64, log: u64, lag: usize) -> Self {
            Self {
                free,
                reserve: 100,
                log,
                lag,
                freed: Vec::new(),
            }
        }

        fn seen(&self) -> Seen {
            Seen {
                occupied_bytes: self.log,
                slack_bytes: self.free - self.reserve,
            }
        }

        /// The log obeys at once, and grows by at most `growth`.
        fn obey(&mut self, allowed: u64, growth: u64) {
            let given = self.log.saturating_sub(allowed);
            self.log -= given;
            self.freed.push(given as i64);
            if self.freed.len() > self.lag {
                self.free += self.freed.remove(0);
            }
            if given == 0 {
                let growth = growth.min(allowed - self.log);
                self.log += growth;
                self.free -= growth as i64;
            }
        }
    }

    #[test]
    fn a_log_alone_grows_to_the_reserve_and_no_change_is_told() {
        let mut disk = Disk::new(1000, 0, 0);
        let mut gauge = Gauge::new(5000, disk.seen());
        assert_eq!(gauge.allowed_bytes(), 900);
        for _ in 0..100 {
            assert_eq!(gauge.tick(disk.seen()), None);
            disk.obey(gauge.allowed_bytes(), 50);
        }
        assert_eq!((disk.log, disk.free), (900, 100));
    }

    #[test]
    fn others_get_their_room_at_once_and_the_log_never_gives_too_much() {
        for lag in [0, 1, 3] {
            let mut disk = Disk::new(300, 800, lag);
            let mut gauge = Gauge::new(5000, disk.seen());
            for _ in 0..50 {
                gauge.tick(disk.seen());
                disk.obey(gauge.allowed_bytes(), 100);
            }
            assert_eq!((disk.log, disk.free), (1000, 100), "lag {lag}");
            // Others write 60.
            disk.free -= 60;
            assert_eq!(gauge.tick(disk.seen()), Some(940), "lag {lag}");
            disk.obey(gauge.allowed_bytes(), 0);
            for _ in 0..20 {
                gauge.tick(disk.seen());
                disk.obey(gauge.allowed_bytes(), 100);
            }
            assert_eq!((disk.log, disk.free), (940, 100), "lag {lag}");
        }
    }

    #[test]
    fn others_that_go_on_writing_are_given_way_to_each_time() {
        let mut disk = Disk::new(100, 1000, 0);
        let mut gauge = Gauge::new(5000, disk.seen());
        for _ in 0..20 {
            disk.free -= 30;
            gauge.tick(disk.seen());
            disk.obey(gauge.allowed_bytes(), 100);
        }
        assert!(disk.free >= 100 - 30, "{}", disk.free);
        // More than the log has: it goes down to nothing.
        disk.free -= 1_000_000;
        gauge.tick(disk.seen());
        assert_eq!(gauge.allowed_bytes(), 0);
    }

    #[test]
    fn room_that_comes_and_goes_changes_nothing() {
        let mut gauge = Gauge::new(6400, seen(1000, 0));
        for tick in 0..300 {
            let slack = if tick % 10 == 0 { 0 } else { 2000 };
            assert_eq!(gauge.tick(seen(1000, slack)), None);
        }
        gauge.tick(seen(1000, 0));
        for tick in 1..=RAISE_TICKS {
            let slack = 2000 - i64::from(tick);
            let expected = (tick == RAISE_TICKS).then_some(3000 - u64::from(tick));
            assert_eq!(gauge.tick(seen(1000, slack)), expected);
        }
        // Less than a 64th is not worth it, but for the last step.
        let allowed = gauge.allowed_bytes();
        for _ in 0..100 {
            assert_eq!(gauge.tick(seen(allowed, 99)), None);
        }
        for _ in 0..RAISE_TICKS {
            gauge.tick(seen(allowed, 1 << 40));
        }
        assert_eq!(gauge.allowed_bytes(), 6400);
    }

    #[test]
    fn a_smaller_allowance_that_costs_nothing_is_told_at_once() {
        let mut gauge = Gauge::new(5000, seen(1000, 3000));
        assert_eq!(gauge.allowed_bytes(), 4000);
        assert_eq!(gauge.tick(seen(1000, 500)), Some(1500));
        assert_eq!(gauge.tick(seen(1000, 400)), Some(1400));
    }

    fn seen(occupied_bytes: u64, slack_bytes: i64) -> Seen {
        Seen {
            occupied_bytes,
            slack_bytes,
        }
    }
}
