//! Operations as data.

use crate::sim::rng::SimRng;

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It settles, waits until nothing is under way, and ends.
    Orderly,
    /// It is killed: what the device had taken arrives or not, what was written stays.
    Killed,
    /// The power fails: what was not flushed is kept or lost, sector by sector.
    PowerCut,
}

/// One operation. Numbers are counted around, so that any value means something.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Sub-blocks `from..from + len` of a block arrive, in pieces of at most 1 MiB.
    Keep {
        /// Which block.
        block: u16,
        /// First sub-block.
        from: u8,
        /// How many.
        len: u8,
    },
    /// Reads what there is from a page on.
    Read {
        /// Which block.
        block: u16,
        /// First page.
        page: u16,
        /// How many pages.
        len: u16,
    },
    /// A reader was served from memory.
    Touch(u16),
    /// Forgets a block.
    Forget(u16),
    /// Pins a block, unless too much is pinned already.
    Pin(u16),
    /// Unpins a block.
    Unpin(u16),
    /// Time passes, in milliseconds.
    Pass(u16),
    /// Waits until nothing is under way, and looks at everything.
    Rest,
    /// The log may occupy so many parts in 255 of device `bay`.
    Allow {
        /// Which device.
        bay: u8,
        /// How much.
        part: u8,
    },
    /// The process ends, and another one starts with so many cores.
    Restart {
        /// How it ends.
        end: End,
        /// Cores of the next.
        cores: u8,
    },
    /// After an orderly end the next process finds device `bay` with this many parts in 255 of its first
    /// number of regions.
    Resize {
        /// Which device.
        bay: u8,
        /// How many.
        part: u8,
    },
}

/// How often what happens in a random script, per mille; the rest is keeping and reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    /// Restarts of each kind.
    pub restarts: u32,
    /// Resizes.
    pub resizes: u32,
    /// Changes of what the log may occupy.
    pub allowances: u32,
    /// Blocks forgotten.
    pub forgets: u32,
    /// Blocks pinned and unpinned.
    pub pins: u32,
}

impl Mix {
    /// The next operation.
    pub fn draw(&self, rng: &mut SimRng) -> Op {
        let number = rng.bits();
        let (block, small) = (number as u16, (number >> 16) as u8);
        let (from, cores) = ((number >> 24) as u8, (number >> 32) as u8);
        if rng.chance(self.restarts) {
            let end = *rng.pick(&[End::Orderly, End::Killed, End::PowerCut]);
            return Op::Restart { end, cores };
        }
        if rng.chance(self.resizes) {
            return Op::Resize {
                bay: from,
                part: small,
            };
        }
        if rng.chance(self.allowances) {
            return Op::Allow {
                bay: from,
                part: small,
            };
        }
        if rng.chance(self.forgets) {
            return Op::Forget(block);
        }
        if rng.chance(self.pins) {
            return if rng.chance(600) {
                Op::Pin(block)
            } else {
                Op::Unpin(block)
            };
        }
        match rng.below(20) {
            0..11 => Op::Keep {
                block,
                // Whole blocks often: most fills are part of one.
                from: if rng.chance(500) { 0 } else { from },
                len: if rng.chance(500) { 63 } else { small },
            },
            11..16 => Op::Read {
                block,
                page: (number >> 40) as u16,
                len: u16::from(small),
            },
            16 => Op::Touch(block),
            17 => Op::Rest,
            _ => Op::Pass(u16::from(small)),
        }
    }
}
