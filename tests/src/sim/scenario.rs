//! What a seed means: how many cores, how much memory, which objects, which faults, which actors.

use std::time::Duration;

use forebay_engine::limits::{
    ARENA_BYTES_MIN, BLOCK_BYTES, READS_PER_CORE_MAX, STRIPE_BYTES, SUB_BLOCK_BYTES,
};

use super::actor::Habit;
use super::board::ReplyDefect;
use super::device::DeviceFaults;
use super::network::NetProfile;
use super::rng::SimRng;
use super::store::{OriginDefect, OriginFaults, OriginProfile};

/// So many of a thousand seeds are of groups.
const GROUPS_PER_MILLE: u32 = 300;

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
    /// On which node.
    pub node: usize,
    /// How it behaves.
    pub habit: Habit,
    /// Which object it begins with.
    pub object: usize,
    /// How often it asks.
    pub rounds: u32,
}

/// How a process ends in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is told to stop, and stops when nothing is under way.
    Orderly,
    /// The power fails: what is under way dies, what disks had not flushed may be lost.
    PowerCut,
}

/// The disks of a run.
#[derive(Clone, Debug, Default)]
pub struct Disks {
    /// Size, region size and sector size of each, in bytes.
    pub sizes: Vec<(u64, u32, u32)>,
    /// All that the actors read fits, also on one core's share.
    pub roomy: bool,
    /// Entries that each core's index may hold.
    pub entries_max: usize,
    /// Time for one operation: from, to.
    pub latency: (Duration, Duration),
    /// Operations that a queue pair takes.
    pub queue_depth: usize,
    /// What goes wrong until everything heals.
    pub faults: DeviceFaults,
}

/// A defect that is planted to prove that the checkers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// In an answer.
    Reply(ReplyDefect),
    /// At the origin.
    Origin(OriginDefect),
}

/// One node.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Engine cores of its first process.
    pub cores: usize,
    /// Memory of each core.
    pub arena_bytes: usize,
    /// Its disks.
    pub disks: Disks,
    /// Its share of the ring in a group; none: a take-only client, which is in no view.
    pub weight: Option<u32>,
    /// It is there from the beginning.
    pub is_up: bool,
}

/// What happens in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// An object gets a new version.
    Overwrite(usize),
    /// The process of a node ends, and the next one starts at once, with so many cores.
    Restart(usize, End, usize),
    /// The process of a node is killed; with `silent` its host is off too, and does not even refuse.
    Kill {
        /// Which node.
        node: usize,
        /// Nothing is heard from it.
        silent: bool,
    },
    /// A node that is off starts with so many cores.
    Start(usize, usize),
    /// A process stands still for so long.
    Pause(usize, Duration),
    /// What travels from one node to another is lost from now on, or is not any more.
    Cut(usize, usize, bool),
    /// A node and all others do not hear each other for so long.
    Isolate(usize, Duration),
    /// A node refuses all others and is refused by them, though all agree on the view: another version, another secret.
    Refuse(usize),
    /// What a node receives takes so many times as long.
    SlowDown(usize, u32),
    /// A member's weight.
    Weigh(usize, u32),
    /// The origin answers nothing from now on, or does again.
    OriginDown(bool),
    /// A node hears nothing from the origin any more.
    CutFromOrigin(usize),
    /// A member says farewell and ends.
    Leave(usize),
    /// A node reads every object, whole.
    ReadAll(usize),
}

/// What makes nodes a group.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    /// The network between its members.
    pub network: NetProfile,
    /// How long a change of the view takes to reach a node: from, to.
    pub view_delay: (Duration, Duration),
    /// Disks keep what other members own, too.
    pub keep_copies: bool,
}

/// A whole run, before it begins.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where everything else comes from.
    pub seed: u64,
    /// What kind of run it is.
    pub weather: Weather,
    /// The nodes; more than one are a group.
    pub nodes: Vec<NodePlan>,
    /// The group that they are.
    pub group: Option<GroupPlan>,
    /// Every operation's time to live.
    pub io_timeout: Duration,
    /// The origin.
    pub origin: OriginProfile,
    /// Keys and sizes.
    pub objects: Vec<(String, u64)>,
    /// Who asks.
    pub roles: Vec<Role>,
    /// What happens when.
    pub changes: Vec<(Duration, Change)>,
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
    /// No faults of origin, disks and network.
    pub fn is_fair(&self) -> bool {
        matches!(self.weather, Weather::Calm | Weather::Tight)
    }

    /// Some node has disks.
    pub fn has_disks(&self) -> bool {
        self.nodes.iter().any(|node| !node.disks.sizes.is_empty())
    }

    /// Some object gets a new version.
    pub fn has_overwrites(&self) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|(_, change)| matches!(change, Change::Overwrite(_)))
    }

    /// The scenario of `seed`.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = SimRng::component(seed, "scenario", 0);
        let weather = match rng.below(100) {
            0..25 => Weather::Calm,
            25..50 => Weather::Tight,
            50..96 => Weather::Storm,
            _ => Weather::Flood,
        };
        // Draws of their own: what is of one node stays as it was.
        match SimRng::component(seed, "scenario", 3).chance(GROUPS_PER_MILLE) {
            true => Self::group(seed),
            false => Self::with_weather(seed, weather),
        }
    }

    /// The scenario of `seed` on one node, in a given weather.
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
        let cores = if weather == Weather::Tight {
            rng.between(1, 2)
        } else {
            rng.between(1, 4)
        } as usize;
        // Draws of their own: what was before disks stays as it was.
        let mut own = SimRng::component(seed, "scenario", 2);
        let disks = disks(&mut own, weather);
        let restarts = restarts(&mut own, weather, cores);
        let overwrites = overwrites
            .into_iter()
            .map(|(after, object)| (after, Change::Overwrite(object)));
        let node = NodePlan {
            cores,
            arena_bytes,
            disks,
            weight: None,
            is_up: true,
        };
        Self {
            seed,
            weather,
            nodes: vec![node],
            group: None,
            io_timeout,
            origin: origin(rng, fair),
            objects,
            roles,
            changes: overwrites.chain(restarts).collect(),
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

pub(super) fn disks(rng: &mut SimRng, weather: Weather) -> Disks {
    let count = match weather {
        Weather::Flood => 0,
        _ if rng.chance(400) => 0,
        _ => rng.between(1, 3),
    };
    let roomy = weather == Weather::Calm || rng.chance(400);
    let sector_bytes = *rng.pick(&[512, 4_096, 4_096]);
    let sizes = (0..count).map(|_| {
        // Less than the large objects, so that regions are reclaimed; eight regions for each core.
        let bytes = if roomy {
            1 << 30
        } else {
            rng.between(66, 90) << 20
        };
        (bytes, 2 << 20, sector_bytes)
    });
    let sizes = sizes.collect();
    let fair = matches!(weather, Weather::Calm | Weather::Tight);
    let faulty = !fair && rng.chance(700);
    let mut some = |most: u64| {
        if faulty && rng.chance(400) {
            rng.below(most) as u32
        } else {
            0
        }
    };
    let faults = DeviceFaults {
        latent_error: some(3),
        torn_write: some(100),
        bit_flip: some(3),
        misdirected_write: some(30),
        slow: some(100),
        vanish: some(3),
        full: some(400),
    };
    Disks {
        sizes,
        roomy,
        entries_max: 10_000,
        latency: (
            Duration::from_micros(10),
            Duration::from_micros(rng.between(100, 3_000)),
        ),
        queue_depth: *rng.pick(&[4, 32, 128]),
        faults,
    }
}

fn restarts(rng: &mut SimRng, weather: Weather, cores: usize) -> Vec<(Duration, Change)> {
    let count = match weather {
        Weather::Flood => 0,
        _ if rng.chance(500) => 0,
        _ => rng.between(1, 3),
    };
    (0..count)
        .map(|_| {
            let after = Duration::from_micros(rng.below(3_000_000));
            let end = *rng.pick(&[End::Orderly, End::Orderly, End::PowerCut]);
            let next = if rng.chance(700) {
                cores
            } else {
                rng.between(1, 4) as usize
            };
            (after, Change::Restart(0, end, next))
        })
        .collect()
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
            node: 0,
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
                node: 0,
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
            node: 0,
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
