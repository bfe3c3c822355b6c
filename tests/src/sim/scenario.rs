//! What a seed means: how many cores, how much memory, which objects, which faults, which actors.

use std::time::Duration;

use forebay_engine::limits::{
    ARENA_BYTES_MIN, BLOCK_BYTES, READS_PER_CORE_MAX, STRIPE_BYTES, SUB_BLOCK_BYTES,
};

use super::actor::Habit;
use super::board::ReplyDefect;
use super::rng::SimRng;
use super::store::{OriginDefect, OriginFaults, OriginProfile};

/// What kind of run it is: decides what the audit may demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// No faults, memory for everything: each sub-block is fetched once, and hits never wait.
    Calm,
    /// No faults, little memory: everything is evicted and fetched again, nothing fails.
    Tight,
    /// Faults, then healing.
    Storm,
    /// Faults, and more requests than the tables hold.
    Flood,
}

/// An actor of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// How it behaves.
    pub habit: Habit,
    /// Which object it begins with.
    pub object: usize,
    /// How often it asks.
    pub rounds: u32,
}

/// A defect that is planted to prove that the checkers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// In an answer.
    Reply(ReplyDefect),
    /// At the origin.
    Origin(OriginDefect),
}

/// A whole run, before it begins.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where everything else comes from.
    pub seed: u64,
    /// What kind of run it is.
    pub weather: Weather,
    /// Engine cores.
    pub cores: usize,
    /// Memory of each core.
    pub arena_bytes: usize,
    /// Every operation's time to live.
    pub io_timeout: Duration,
    /// The origin.
    pub origin: OriginProfile,
    /// Keys and sizes.
    pub objects: Vec<(String, u64)>,
    /// Who asks.
    pub roles: Vec<Role>,
    /// When which object gets a new version.
    pub overwrites: Vec<(Duration, usize)>,
    /// When faults end.
    pub heal_after: Duration,
    /// Turns do only a little each.
    pub small_turns: bool,
    /// Shutdown comes while operations are under way.
    pub stop_early: bool,
    /// Planted, in tests of the checkers.
    pub defect: Option<Defect>,
}

impl Scenario {
    /// The scenario of `seed`.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = SimRng::component(seed, "scenario", 0);
        let weather = match rng.below(100) {
            0..25 => Weather::Calm,
            25..50 => Weather::Tight,
            50..96 => Weather::Storm,
            _ => Weather::Flood,
        };
        Self::with_weather(seed, weather)
    }

    /// The scenario of `seed` in a given weather.
    pub fn with_weather(seed: u64, weather: Weather) -> Self {
        let mut rng = SimRng::component(seed, "scenario", 1);
        let rng = &mut rng;
        let calm = weather == Weather::Calm;
        let fair = calm || weather == Weather::Tight;
        let arena_bytes = match weather {
            Weather::Calm => 16 * ARENA_BYTES_MIN,
            Weather::Tight => ARENA_BYTES_MIN,
            _ => ARENA_BYTES_MIN * rng.between(1, 2) as usize,
        };
        let io_timeout = Duration::from_millis(if fair {
            60_000
        } else {
            rng.between(3_000, 30_000)
        });
        let objects = objects(rng, weather);
        let roles = roles(rng, weather, &objects);
        let overwrites = if fair && rng.chance(700) {
            Vec::new()
        } else {
            overwrites(rng, calm, objects.len())
        };
        Self {
            seed,
            weather,
            cores: if weather == Weather::Tight {
                rng.between(1, 2)
            } else {
                rng.between(1, 4)
            } as usize,
            arena_bytes,
            io_timeout,
            origin: origin(rng, fair),
            objects,
            roles,
            overwrites,
            heal_after: if fair {
                Duration::ZERO
            } else {
                io_timeout * rng.between(1, 6) as u32 / 4
            },
            small_turns: rng.chance(300),
            stop_early: rng.chance(250),
            defect: None,
        }
    }
}

fn origin(rng: &mut SimRng, fair: bool) -> OriginProfile {
    let longest_us = rng.between(2_000, 50_000);
    let mut some = |most: u64| {
        if rng.chance(500) {
            rng.below(most) as u32
        } else {
            0
        }
    };
    let faults = OriginFaults {
        throttled: some(300),
        unavailable: some(300),
        short: some(300),
        hang: some(150),
        denied: some(20),
        slow: some(200),
        full: some(300),
    };
    OriginProfile {
        latency: (
            Duration::from_micros(500),
            Duration::from_micros(longest_us),
        ),
        bytes_per_s: (50_000_000, 1_000_000_000),
        ops_max: *rng.pick(&[4, 16, 64, 256]),
        faults: if fair {
            OriginFaults::default()
        } else {
            faults
        },
    }
}

fn objects(rng: &mut SimRng, weather: Weather) -> Vec<(String, u64)> {
    let large = if weather == Weather::Calm { 2 } else { 3 };
    let mut objects = Vec::new();
    for number in 0..large {
        let stripes = rng.between(1, 2) * STRIPE_BYTES as u64;
        objects.push((
            format!("d0/large-{number}"),
            stripes + rng.below(BLOCK_BYTES as u64),
        ));
    }
    for number in 0..rng.between(3, 12) {
        let near = *rng.pick(&[
            1,
            4_096,
            SUB_BLOCK_BYTES as u64,
            1 << 20,
            BLOCK_BYTES as u64,
        ]);
        let size = near.saturating_add(rng.below(3)).saturating_sub(1).max(1);
        objects.push((format!("d{}/small-{number}", number % 2), size));
    }
    if weather == Weather::Flood {
        objects.push(("d1/flooded".into(), 5_000 * SUB_BLOCK_BYTES as u64));
    }
    objects
}

fn roles(rng: &mut SimRng, weather: Weather, objects: &[(String, u64)]) -> Vec<Role> {
    let large = |rng: &mut SimRng| rng.below(2) as usize;
    let any = |rng: &mut SimRng| rng.below(objects.len().min(15) as u64) as usize;
    let mut roles = Vec::new();
    for _ in 0..rng.between(3, 9) {
        let kind = rng.below(10);
        let (habit, object, rounds) = match kind {
            0 | 1 => {
                let read_bytes = *rng.pick(&[65_536, 131_072, 262_144, 1 << 20, 100_000]);
                let want_bytes = *rng.pick(&[0, read_bytes, 4 << 20, 16 << 20]);
                let rounds = rng.between(4, 24_000_000 / u64::from(read_bytes)).min(80);
                (
                    Habit::Sequential {
                        read_bytes,
                        want_bytes,
                    },
                    large(rng),
                    rounds,
                )
            }
            2 => (Habit::Random, large(rng), rng.between(10, 100)),
            3 => (
                Habit::Burst {
                    readers: rng.between(2, 40) as u32,
                },
                any(rng),
                rng.between(1, 6),
            ),
            4 => (Habit::Crossing, large(rng), rng.between(3, 15)),
            5 => (Habit::Edges, any(rng), rng.between(5, 30)),
            6 => (Habit::Whole, any(rng), rng.between(2, 10)),
            7 => (Habit::Heads, any(rng), rng.between(2, 10)),
            8 => (Habit::Lists, any(rng), rng.between(1, 4)),
            _ => (Habit::Prefetcher, large(rng), rng.between(1, 6)),
        };
        roles.push(Role {
            habit,
            object,
            rounds: rounds as u32,
        });
    }
    if weather == Weather::Tight {
        // More than fits into the memory, so that all else is evicted.
        for object in 0..3 {
            let habit = Habit::Sequential {
                read_bytes: 1 << 20,
                want_bytes: 8 << 20,
            };
            roles.push(Role {
                habit,
                object,
                rounds: rng.between(8, 40) as u32,
            });
        }
    }
    if weather == Weather::Flood {
        let most = READS_PER_CORE_MAX as u64 + 3_000;
        let reads = *rng.pick(&[5_000, most]) as u32;
        let object = if rng.chance(300) {
            objects.len() - 1
        } else {
            0
        };
        roles.push(Role {
            habit: Habit::Flood { reads },
            object,
            rounds: 1,
        });
    }
    roles
}

fn overwrites(rng: &mut SimRng, calm: bool, objects: usize) -> Vec<(Duration, usize)> {
    let most = if calm { 0 } else { 6 };
    (0..rng.below(most + 1))
        .map(|_| {
            (
                Duration::from_millis(rng.below(4_000)),
                rng.below(objects as u64) as usize,
            )
        })
        .collect()
}
