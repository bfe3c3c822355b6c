//! What a seed means for a group: how many nodes, who asks where, what happens to members meanwhile.

use std::time::Duration;

use forebay_engine::limits::ARENA_BYTES_MIN;

use super::actor::Habit;
use super::network::{NetFaults, NetProfile};
use super::rng::SimRng;
use super::scenario::{Change, Disks, End, GroupPlan, NodePlan, Role, Scenario, Weather, disks};
use super::store::OriginFaults;

/// Changes happen within this time from the beginning.
const CHANGES_WITHIN: Duration = Duration::from_secs(4);

impl Scenario {
    /// The scenario of `seed` in a group.
    pub fn group(seed: u64) -> Self {
        let mut rng = SimRng::component(seed, "group", 0);
        let weather = match rng.below(100) {
            0..40 => Weather::Calm,
            40..60 => Weather::Tight,
            _ => Weather::Storm,
        };
        Self::group_with_weather(seed, weather)
    }

    /// The scenario of `seed` in a group, in a given weather.
    pub fn group_with_weather(seed: u64, weather: Weather) -> Self {
        let mut whole = Self::with_weather(seed, weather);
        let mut rng = SimRng::component(seed, "group", 1);
        let rng = &mut rng;
        let members = rng.between(2, 4) as usize;
        let clients = usize::from(rng.chance(300));
        let arena_bytes = whole.nodes[0].arena_bytes;
        whole.nodes = (0..members + clients)
            .map(|number| node(rng, weather, arena_bytes, number < members))
            .collect();
        whole
            .changes
            .retain(|(_, change)| matches!(change, Change::Overwrite(_)));
        whole.group = Some(GroupPlan {
            network: network(rng, weather),
            view_delay: (Duration::ZERO, view_delay_max(rng)),
            keep_copies: rng.chance(200),
        });
        whole.spread_roles(rng);
        let within = match whole.is_fair() {
            true => CHANGES_WITHIN,
            false => CHANGES_WITHIN.min(whole.heal_after),
        };
        for _ in 0..rng.below(4) {
            whole.add_change(rng, members, within);
        }
        whole
    }

    /// A group of `members` and take-only `clients` whose every node reads the same two objects, and to
    /// which nothing happens. In a storm nothing is faulty but what the caller makes so.
    pub fn plain_group(seed: u64, weather: Weather, members: usize, clients: usize) -> Self {
        let mut plain = Self::with_weather(seed, weather);
        let arena_bytes = plain.nodes[0].arena_bytes;
        let node = |serves: bool| NodePlan {
            cores: 2,
            arena_bytes,
            disks: Disks::default(),
            weight: serves.then_some(1),
            is_up: true,
        };
        plain.nodes = (0..members + clients)
            .map(|number| node(number < members))
            .collect();
        plain.group = Some(GroupPlan {
            network: NetProfile::default(),
            view_delay: (Duration::ZERO, Duration::ZERO),
            keep_copies: false,
        });
        plain.origin.faults = OriginFaults::default();
        (plain.changes, plain.stop_early) = (Vec::new(), false);
        plain.roles.clear();
        for node in 0..plain.nodes.len() {
            for object in 0..2 {
                let habit = Habit::Sequential {
                    read_bytes: 256 << 10,
                    want_bytes: 4 << 20,
                };
                let reader = |habit, rounds| Role {
                    node,
                    habit,
                    object,
                    rounds,
                };
                plain.roles.push(reader(habit, 90));
                plain.roles.push(reader(Habit::Random, 60));
                plain.roles.push(reader(Habit::Burst { readers: 5 }, 5));
            }
        }
        plain
    }

    /// Gives every member a disk that holds all.
    pub fn with_disks(mut self) -> Self {
        for node in self.nodes.iter_mut().filter(|node| node.weight.is_some()) {
            node.disks = Disks {
                sizes: vec![(1 << 30, 2 << 20, 4_096)],
                roomy: true,
                entries_max: 10_000,
                latency: (Duration::from_micros(10), Duration::from_micros(500)),
                queue_depth: 32,
                ..Disks::default()
            };
        }
        self
    }

    /// Actors of all nodes ask for much the same.
    fn spread_roles(&mut self, rng: &mut SimRng) {
        let nodes = self.nodes.len() as u64;
        for role in std::mem::take(&mut self.roles) {
            let copies = if rng.chance(500) {
                rng.between(1, 3)
            } else {
                1
            };
            for _ in 0..copies {
                let mut role = role;
                role.node = rng.below(nodes) as usize;
                self.roles.push(role);
            }
        }
    }

    fn add_change(&mut self, rng: &mut SimRng, members: usize, within: Duration) {
        let micros = within.as_micros() as u64;
        let after = Duration::from_micros(rng.below(micros));
        let left = within.saturating_sub(after);
        // The first member stays, so that there is always one with a weight.
        let node = rng.between(1, members as u64 - 1) as usize;
        let other = rng.below(members as u64) as usize;
        let cores = self.nodes[node].cores;
        let next_cores = if rng.chance(800) {
            cores
        } else {
            rng.between(1, 3) as usize
        };
        let back = after + Duration::from_micros(rng.below(15_000_000));
        let kinds = if self.is_fair() { 5 } else { 8 };
        match rng.below(kinds) {
            0 => {
                let weight = rng.below(4) as u32;
                self.push(after, Change::Weigh(node, weight));
            }
            1 => {
                self.nodes[node].is_up = false;
                self.push(after, Change::Start(node, cores));
            }
            2 => {
                let end = if self.is_fair() || rng.chance(500) {
                    End::Orderly
                } else {
                    End::PowerCut
                };
                self.push(after, Change::Restart(node, end, next_cores));
            }
            3 => {
                let silent = rng.chance(500);
                self.push(after, Change::Kill { node, silent });
                if rng.chance(600) {
                    self.push(back, Change::Start(node, next_cores));
                }
            }
            4 => {
                // All members restart, one after the other.
                for node in 1..members {
                    let cores = self.nodes[node].cores;
                    let at = after + Duration::from_millis(700) * node as u32;
                    self.push(at, Change::Restart(node, End::Orderly, cores));
                }
            }
            5 => self.push(after, Change::Pause(node, left)),
            6 if node != other => self.push(after, Change::Cut(node, other, true)),
            6 if rng.chance(500) => self.push(after, Change::CutFromOrigin(node)),
            6 => self.push(after, Change::OriginDown(true)),
            _ => self.push(after, Change::Isolate(node, left)),
        }
    }

    fn push(&mut self, after: Duration, change: Change) {
        self.changes.push((after, change));
    }
}

fn node(rng: &mut SimRng, weather: Weather, arena_bytes: usize, serves: bool) -> NodePlan {
    let most = if weather == Weather::Tight { 2 } else { 3 };
    let disks = match serves || rng.chance(500) {
        true => disks(rng, weather),
        false => Disks::default(),
    };
    NodePlan {
        cores: rng.between(1, most) as usize,
        arena_bytes: arena_bytes.max(ARENA_BYTES_MIN),
        disks,
        weight: serves.then(|| *rng.pick(&[1, 1, 1, 2, 3])),
        is_up: true,
    }
}

fn view_delay_max(rng: &mut SimRng) -> Duration {
    match rng.chance(500) {
        true => Duration::ZERO,
        false => Duration::from_micros(rng.below(1_000_000)),
    }
}

fn network(rng: &mut SimRng, weather: Weather) -> NetProfile {
    let fair = matches!(weather, Weather::Calm | Weather::Tight);
    let faulty = !fair && rng.chance(800);
    let mut some = |most: u64| match faulty && rng.chance(500) {
        true => rng.below(most) as u32,
        false => 0,
    };
    let faults = NetFaults {
        reset: some(30),
        lost: some(30),
        garbled: some(30),
        late: some(60),
        full: some(300),
        flipped: some(200),
    };
    let longest_us = rng.between(50, 2_000);
    NetProfile {
        delay: (Duration::from_micros(20), Duration::from_micros(longest_us)),
        credits: *rng.pick(&[2, 8, 32]),
        faults,
        ..NetProfile::default()
    }
}
