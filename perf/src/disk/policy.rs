//! A model of the region log's replacement over blocks of one size: no bytes, so many settings can be
//! tried in the time in which the log itself runs once.

use std::collections::VecDeque;

use super::traces::Trace;

/// What the policy can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Regions in all.
    pub regions: usize,
    /// Blocks in a region.
    pub region_blocks: usize,
    /// Share of the regions that the small queue holds.
    pub small_share: f64,
    /// A main region stays when at least this share of its blocks was read since it was last looked at.
    pub warm_share: f64,
    /// The oldest main region is looked at when ghosts that found no room would fill this part of a region.
    pub hand: f64,
    /// Blocks that are remembered after they were evicted, for each one that fits.
    pub ghosts: f64,
}

/// The settings of the engine's log. `regions` and `region_blocks` are the cache's.
pub const ENGINE: Settings = Settings {
    regions: 0,
    region_blocks: 0,
    small_share: 1.0 / 16.0,
    warm_share: 0.8,
    hand: 0.75,
    ghosts: 1.0,
};

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Misses that count.
    pub misses: u64,
    /// Blocks written for each miss, over what counts.
    pub write_amplification: f64,
}

const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Default)]
struct Region {
    blocks: Vec<u32>,
    hot: usize,
}

struct Model {
    settings: Settings,
    /// Of each block: its region, whether it was read since that was last looked at, when it was evicted.
    place: Vec<u32>,
    read: Vec<bool>,
    evicted_at: Vec<u64>,
    evictions: u64,
    regions: Vec<Region>,
    free: Vec<usize>,
    small: VecDeque<usize>,
    main: VecDeque<usize>,
    open: [Option<usize>; 2],
    reclaimed: bool,
    /// Blocks that the main queue may take in place of cold ones that left.
    allowance: usize,
    rejected: usize,
    fills: u64,
    moved: u64,
}

const SMALL: usize = 0;
const MAIN: usize = 1;

/// Runs `trace` through a log with `settings`.
pub fn run(settings: Settings, trace: &Trace) -> Outcome {
    let blocks = trace.requests.iter().max().map_or(0, |most| most + 1);
    let mut model = Model::new(settings, blocks as usize);
    let mut before = (0, 0);
    for (number, block) in trace.requests.iter().enumerate() {
        if number == trace.counted_from {
            before = (model.fills, model.moved);
        }
        model.request(*block);
    }
    let (fills, moved) = (model.fills - before.0, model.moved - before.1);
    Outcome {
        misses: fills,
        write_amplification: (fills + moved) as f64 / fills.max(1) as f64,
    }
}

impl Model {
    fn new(settings: Settings, blocks: usize) -> Self {
        Self {
            settings,
            place: vec![NOWHERE; blocks],
            read: vec![false; blocks],
            evicted_at: vec![0; blocks],
            evictions: 0,
            regions: vec![Region::default(); settings.regions],
            free: (0..settings.regions).rev().collect(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            open: [None; 2],
            reclaimed: false,
            allowance: 0,
            rejected: 0,
            fills: 0,
            moved: 0,
        }
    }

    fn small_max(&self) -> usize {
        ((self.settings.small_share * self.settings.regions as f64) as usize).max(1)
    }

    fn is_warm(&self, region: usize) -> bool {
        let blocks = self.settings.region_blocks as f64;
        self.regions[region].hot as f64 >= self.settings.warm_share * blocks
    }

    fn request(&mut self, block: u32) {
        let at = block as usize;
        if self.place[at] != NOWHERE {
            if !std::mem::replace(&mut self.read[at], true) {
                self.regions[self.place[at] as usize].hot += 1;
            }
            return;
        }
        self.fills += 1;
        let queue = self.queue_for(at);
        while self.free.len() < 2 {
            self.make_room();
        }
        self.append(block, queue);
    }

    fn queue_for(&mut self, at: usize) -> usize {
        let capacity = (self.settings.regions * self.settings.region_blocks) as f64;
        let age = self.evictions - self.evicted_at[at];
        let ghost = self.evicted_at[at] > 0 && (age as f64) < self.settings.ghosts * capacity;
        self.evicted_at[at] = 0;
        if !self.reclaimed {
            // The first filling goes to the main queue.
            return usize::from(self.small.len() >= self.small_max());
        }
        if !ghost {
            return SMALL;
        }
        if self.allowance > 0 {
            self.allowance -= 1;
            return MAIN;
        }
        self.rejected += 1;
        if self.rejected as f64 >= self.settings.hand * self.settings.region_blocks as f64 {
            self.rejected = 0;
            self.look_at_oldest();
        }
        SMALL
    }

    /// A warm region stays where it is, and its reads are forgotten; a cold one makes room for ghosts.
    fn look_at_oldest(&mut self) {
        let Some(region) = self.main.pop_front() else {
            return;
        };
        if self.is_warm(region) {
            for block in &self.regions[region].blocks {
                if self.place[*block as usize] == region as u32 {
                    self.read[*block as usize] = false;
                }
            }
            self.regions[region].hot = 0;
            self.main.push_back(region);
        } else {
            self.allowance += self.settings.region_blocks - self.regions[region].hot;
            self.reclaim(region);
        }
    }

    fn make_room(&mut self) {
        self.reclaimed = true;
        let warm = self.main.front().is_none_or(|oldest| self.is_warm(*oldest));
        let small_first = self.small.len() >= self.small_max() || (warm && self.small.len() > 1);
        let queue = if (small_first || self.main.is_empty()) && !self.small.is_empty() {
            &mut self.small
        } else {
            &mut self.main
        };
        if let Some(region) = queue.pop_front() {
            self.reclaim(region);
        }
    }

    fn reclaim(&mut self, region: usize) {
        self.reclaimed = true;
        let blocks = std::mem::take(&mut self.regions[region]).blocks;
        let mut kept = Vec::new();
        for block in blocks {
            let at = block as usize;
            if self.place[at] != region as u32 {
                continue;
            }
            self.place[at] = NOWHERE;
            if std::mem::take(&mut self.read[at]) {
                kept.push(block);
            } else {
                self.evictions += 1;
                self.evicted_at[at] = self.evictions;
            }
        }
        self.free.push(region);
        self.moved += kept.len() as u64;
        for block in kept {
            self.append(block, MAIN);
        }
    }

    fn append(&mut self, block: u32, queue: usize) {
        let room = self.settings.region_blocks;
        let open = self.open[queue].filter(|open| self.regions[*open].blocks.len() < room);
        let region = match open {
            Some(region) => region,
            None => {
                let full = self.open[queue].take();
                match queue {
                    SMALL => self.small.extend(full),
                    _ => self.main.extend(full),
                }
                let region = self.free.pop().expect("room was made before");
                self.open[queue] = Some(region);
                region
            }
        };
        self.regions[region].blocks.push(block);
        self.place[block as usize] = region as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::super::traces;
    use super::*;

    const SETTINGS: Settings = Settings {
        regions: 128,
        region_blocks: 16,
        ..ENGINE
    };

    #[test]
    fn everything_is_kept_while_there_is_room() {
        let trace = traces::epochs("e", 128 * 16 * 9 / 10, 6, 3);
        assert_eq!(run(SETTINGS, &trace).misses, 0);
    }

    #[test]
    fn shuffled_epochs_keep_their_share() {
        let trace = traces::epochs("e", 128 * 16 * 2, 8, 3);
        let hits = trace.counted() as u64 - run(SETTINGS, &trace).misses;
        assert!(hits as f64 >= 0.45 * trace.counted() as f64, "{hits}");
        // Without the rule that keeps a warm main queue, recency rules.
        let plain = Settings {
            warm_share: 2.0,
            ..SETTINGS
        };
        let plain_hits = trace.counted() as u64 - run(plain, &trace).misses;
        assert!(plain_hits < hits, "{plain_hits} of {hits}");
    }
}
