//! Named faults of the cache group, each on the simulator with several seeds. What must hold in every run (right bytes,
//! deadlines, nothing lent at the end, the ledger) is the simulator's audit; here stands what each fault adds.

use std::time::Duration;

use forebay_engine::stats::Reason;
use forebay_tests::sim::actor::Habit;
use forebay_tests::sim::network::NetFaults;
use forebay_tests::sim::scenario::{Change, Disks, End, Role, Scenario, Weather};
use forebay_tests::sim::store::OriginFaults;
use forebay_tests::sim::world::{self, Passed};

const SEEDS: u64 = 4;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Runs what `make` makes of several seeds. With `FOREBAY_SIM_VERBOSE` in the environment each event is printed.
fn runs(make: impl Fn(u64) -> Scenario) -> Vec<Passed> {
    let print = std::env::var_os("FOREBAY_SIM_VERBOSE").is_some();
    let run = |seed| world::run(make(seed), print).unwrap_or_else(|failed| panic!("\n{failed}"));
    (0..SEEDS).map(run).collect()
}

fn calm(seed: u64) -> Scenario {
    Scenario::plain_group(seed, Weather::Calm, 3, 1)
}

/// Reads may fail until it heals, after `heal`.
fn storm(seed: u64, heal: Duration) -> Scenario {
    let mut scenario = Scenario::plain_group(seed, Weather::Storm, 3, 1);
    scenario.io_timeout = ms(6_000);
    scenario.heal_after = heal;
    scenario
}

fn with(mut scenario: Scenario, changes: &[(u64, Change)]) -> Scenario {
    let changes = changes.iter().map(|(at, change)| (ms(*at), *change));
    scenario.changes.extend(changes);
    scenario
}

fn fetched_once(passed: &[Passed]) {
    assert!(passed.iter().all(|run| run.sent_again == 0), "{passed:?}");
}

fn some(passed: &[Passed], count: impl Fn(&Passed) -> u64) {
    assert!(passed.iter().map(count).sum::<u64>() > 0, "{passed:?}");
}

#[test]
fn each_byte_is_fetched_once_for_the_group() {
    let passed = runs(calm);
    fetched_once(&passed);
    some(&passed, |run| run.stats.group_hits);
}

#[test]
fn sixty_four_cold_readers_on_four_nodes_cost_one_fetch() {
    let passed = runs(|seed| {
        let mut scenario = calm(seed);
        let reader = |number: usize| Role {
            node: number % 4,
            habit: Habit::Whole,
            object: 0,
            rounds: 1,
        };
        scenario.roles = (0..64).map(reader).collect();
        scenario.stop_early = false;
        scenario
    });
    fetched_once(&passed);
    some(&passed, |run| run.stats.joined);
}

#[test]
fn a_member_that_joins_asks_who_owned_before_it() {
    fetched_once(&runs(|seed| {
        let mut scenario = with(calm(seed), &[(300, Change::Start(2, 2))]);
        scenario.nodes[2].is_up = false;
        scenario
    }));
}

#[test]
fn a_member_that_leaves_by_weight_hands_over() {
    fetched_once(&runs(|seed| {
        with(calm(seed), &[(200, Change::Weigh(1, 0))])
    }));
}

/// A client reads everything through three members with disks; member 1 gets the weight 0 at two seconds. Another client,
/// whose memory is empty, reads everything at the end.
fn drain(seed: u64, end: u64, changes: &[(u64, Change)]) -> Scenario {
    let mut scenario = Scenario::plain_group(seed, Weather::Calm, 3, 2).with_disks();
    // Only whole objects: a former owner that has a part of a chunk gives none of it, see the audit.
    scenario.roles.clear();
    let around = [
        (10, Change::ReadAll(3)),
        (2_000, Change::Weigh(1, 0)),
        (end, Change::ReadAll(4)),
    ];
    with(with(scenario, &around), changes)
}

#[test]
fn a_member_that_drains_and_leaves_costs_no_byte() {
    let passed = runs(|seed| drain(seed, 20_500, &[(20_000, Change::Leave(1))]));
    fetched_once(&passed);
    some(&passed, |run| run.stats.takeover.taken_bytes);
    for run in &passed {
        let (gave, took) = (&run.stats.handover, &run.stats.takeover);
        assert_eq!(
            (gave.given_bytes, gave.refused_blocks),
            (took.taken_bytes, 0)
        );
    }
}

#[test]
fn a_member_without_disks_hands_its_memory_over() {
    let passed = runs(|seed| {
        let mut scenario = drain(seed, 20_500, &[(20_000, Change::Leave(1))]);
        for node in &mut scenario.nodes {
            node.disks = Disks::default();
        }
        scenario
    });
    fetched_once(&passed);
    some(&passed, |run| run.stats.takeover.taken_bytes);
}

#[test]
fn while_a_member_drains_everything_is_read_from_the_group() {
    // The first client again, later: so that the drain comes to its end.
    let passed = runs(|seed| drain(seed, 2_003, &[(5_000, Change::ReadAll(3))]));
    fetched_once(&passed);
    some(&passed, |run| run.stats.takeover.taken_bytes);
}

#[test]
fn a_member_that_restarts_without_weight_hands_its_disks_over() {
    let changes = [
        (1_500, Change::Restart(1, End::Orderly, 2)),
        (20_000, Change::Leave(1)),
    ];
    let passed = runs(|seed| drain(seed, 20_500, &changes));
    fetched_once(&passed);
    some(&passed, |run| run.stats.takeover.taken_bytes);
}

#[test]
fn a_member_killed_while_it_drains_costs_only_what_it_still_held() {
    let killed = Change::Kill {
        node: 1,
        silent: false,
    };
    let mut passed = Vec::new();
    for at in [2_001, 2_005, 2_020, 2_150] {
        passed.extend(runs(|seed| drain(seed, 15_000, &[(at, killed)])));
    }
    some(&passed, |run| run.sent_again as u64);
    some(&passed, |run| run.stats.takeover.taken_bytes);
}

#[test]
fn a_new_owner_killed_while_it_takes_over_costs_only_what_it_held() {
    let killed = Change::Kill {
        node: 2,
        silent: false,
    };
    let changes = [(2_010, killed), (30_000, Change::Leave(1))];
    let passed = runs(|seed| drain(seed, 30_500, &changes));
    some(&passed, |run| run.stats.takeover.taken_bytes);
    let lone = runs(|seed| {
        // Whom it is killed with owned nothing before: all that it held it had taken over.
        let mut scenario = drain(seed, 30_500, &changes);
        scenario.nodes[1].weight = Some(1_000_000);
        scenario
    });
    fetched_once(&lone);
}

#[test]
fn new_owners_without_room_refuse_and_keep_what_they_have() {
    let small = |seed: u64, reader: usize| {
        let mut scenario = drain(seed, 20_500, &[]);
        scenario.nodes[1].weight = Some(1_000_000);
        for node in [0, 2] {
            scenario.nodes[node].disks.sizes = vec![(36 << 20, 2 << 20, 4_096)];
        }
        for (_, change) in &mut scenario.changes {
            if *change == Change::ReadAll(4) {
                *change = Change::ReadAll(reader);
            }
        }
        scenario
    };
    // Who read it first has it in memory: nobody is asked, and nothing comes to the others' disks but by the drain.
    let passed = runs(|seed| small(seed, 3));
    some(&passed, |run| run.stats.takeover.refused_blocks);
    some(&passed, |run| run.stats.takeover.taken_bytes);
    for run in &passed {
        let devices = run.stats.disk.devices.iter();
        let evicted: u64 = devices.map(|device| device.entries_evicted).sum();
        assert_eq!(evicted, 0, "{run:?}");
    }
    // It has not left: what nobody took is still there.
    fetched_once(&runs(|seed| small(seed, 4)));
}

#[test]
fn a_member_that_is_killed_costs_what_it_held_and_no_read_of_others() {
    for silent in [false, true] {
        let passed = runs(|seed| with(calm(seed), &[(150, Change::Kill { node: 1, silent })]));
        some(&passed, |run| run.sent_again as u64);
    }
}

#[test]
fn a_member_that_stands_still_is_passed_over_and_comes_back() {
    for (span, heal) in [(2_000, 3_000), (14_000, 16_000)] {
        let pause = [(100, Change::Pause(1, ms(span)))];
        let passed = runs(|seed| with(storm(seed, ms(heal)), &pause));
        some(&passed, |run| run.stats.peer_failures);
    }
}

#[test]
fn a_member_that_comes_back_serves_from_its_old_cache() {
    let passed = runs(|seed| {
        let kill = Change::Kill {
            node: 1,
            silent: false,
        };
        with(
            calm(seed).with_disks(),
            &[(1_000, kill), (1_500, Change::Start(1, 2))],
        )
    });
    some(&passed, |run| {
        let devices = run.stats.disk.devices.iter();
        devices.map(|device| device.recovered_entries).sum()
    });
}

#[test]
fn a_partition_in_one_direction_costs_no_read() {
    let passed = runs(|seed| with(storm(seed, ms(5_000)), &[(100, Change::Cut(0, 1, true))]));
    some(&passed, |run| run.stats.peer_failures);
}

#[test]
fn both_sides_of_a_full_partition_go_on() {
    let isolate = [(100, Change::Isolate(1, ms(14_000)))];
    let passed = runs(|seed| with(storm(seed, ms(15_000)), &isolate));
    some(&passed, |run| run.stats.peer_failures);
}

#[test]
fn views_that_differ_for_a_while_end_in_one_cache() {
    runs(|seed| {
        let weights = [
            (100, Change::Weigh(1, 3)),
            (300, Change::Weigh(2, 0)),
            (500, Change::Weigh(2, 2)),
        ];
        let mut scenario = with(calm(seed), &weights);
        if let Some(group) = &mut scenario.group {
            group.view_delay = (Duration::ZERO, ms(2_000));
        }
        scenario
    });
}

#[test]
fn members_without_room_that_wait_for_each_other_finish() {
    let passed = runs(|seed| {
        let mut scenario = Scenario::plain_group(seed, Weather::Tight, 3, 0);
        for role in &mut scenario.roles {
            if let Habit::Sequential {
                read_bytes,
                want_bytes,
            } = &mut role.habit
            {
                (*read_bytes, *want_bytes) = (1 << 20, 8 << 20);
            }
        }
        scenario
    });
    some(&passed, |run| run.stats.evictions);
    assert!(passed.iter().all(|run| run.stats.read_timeouts == 0));
}

#[test]
fn answers_that_take_long_or_go_wrong_are_not_believed() {
    let passed = runs(|seed| {
        let mut scenario = storm(seed, ms(10_000));
        if let Some(group) = &mut scenario.group {
            group.network.faults = NetFaults {
                late: 200,
                flipped: 100,
                garbled: 20,
                ..NetFaults::default()
            };
        }
        scenario
    });
    some(&passed, |run| run.stats.checksum_failures);
}

#[test]
fn what_is_cached_is_served_while_the_origin_is_down() {
    let passed = runs(|seed| {
        let mut scenario = storm(seed, ms(9_000));
        // Longer than a read may take: what is not cached fails by its deadline.
        scenario.io_timeout = ms(3_000);
        with(scenario, &[(100, Change::OriginDown(true))])
    });
    some(&passed, |run| run.stats.read_errors);
    some(&passed, |run| run.stats.memory_hits + run.stats.group_hits);
}

/// One member alone hears nothing from the origin: what it owns is had through those that do, for its own readers too.
#[test]
fn a_member_that_alone_is_cut_off_from_the_origin_is_stood_in_for() {
    let run = |cut: bool| {
        runs(|seed| {
            let mut scenario = with(storm(seed, ms(20_000)), &[(30, Change::ReadAll(1))]);
            if cut {
                scenario = with(scenario, &[(0, Change::CutFromOrigin(1))]);
            }
            scenario.io_timeout = ms(12_000);
            scenario.origin.faults = OriginFaults::default();
            scenario
        })
    };
    let (passed, whole) = (run(true), run(false));
    some(&passed, |run| run.stats.outages);
    some(&passed, |run| run.stats.ledger.bytes(Reason::RingMoved));
    // Some reads are malformed: they fail in either.
    let failed = |run: &Passed| (run.stats.read_errors, run.stats.read_timeouts);
    for (passed, whole) in passed.iter().zip(&whole) {
        assert_eq!(failed(passed), failed(whole), "seed {}", passed.seed);
        assert_eq!((whole.stats.outages, failed(passed).1), (0, 0));
    }
}

/// Another version, another secret: the view names it, and no connection to or from it is let in.
#[test]
fn a_member_that_refuses_and_is_refused_is_stood_in_for() {
    let passed = runs(|seed| with(storm(seed, ms(5_000)), &[(0, Change::Refuse(1))]));
    some(&passed, |run| run.stats.peer_failures);
    assert!(passed.iter().all(|run| run.stats.read_timeouts == 0));
}

/// A thousand times slower than the others: its answers hold their owners' buffers, and nobody else waits for them.
#[test]
fn a_slow_receiver_gets_its_bytes_and_holds_up_nobody() {
    let passed = runs(|seed| with(calm(seed), &[(0, Change::SlowDown(3, 1_000))]));
    fetched_once(&passed);
    assert!(passed.iter().all(|run| run.stats.read_timeouts == 0));
}

#[test]
fn all_members_restart_one_after_the_other() {
    let restarts = [0, 1, 2].map(|node| {
        let change = Change::Restart(node, End::Orderly, 2);
        (100 + 300 * node as u64, change)
    });
    runs(|seed| with(calm(seed).with_disks(), &restarts));
}
