//! Proof that the checkers can fail: each planted defect must be seen, and be called by its name.

use super::board::ReplyDefect;
use super::scenario::{Defect, Scenario, Weather};
use super::store::OriginDefect;
use super::world;

const SEEDS: u64 = 12;

/// Plants `defect` into several runs; some runs may have no occasion to show it.
fn is_seen(defect: Defect, weather: Weather, name: &str) {
    let mut seen = 0;
    for seed in 0..SEEDS {
        let mut scenario = Scenario::with_weather(seed, weather);
        assert!(
            world::run(scenario.clone(), false).is_ok(),
            "seed {seed} passes without the defect"
        );
        scenario.defect = Some(defect);
        if let Err(failed) = world::run(scenario, false) {
            assert!(failed.what.contains(name), "seed {seed}: {}", failed.what);
            seen += 1;
        }
    }
    assert!(
        seen * 3 >= SEEDS,
        "{defect:?} was seen in {seen} of {SEEDS} runs only"
    );
}

#[test]
fn a_wrong_byte_is_seen() {
    is_seen(
        Defect::Origin(OriginDefect::WrongByte),
        Weather::Calm,
        "wrong byte",
    );
}

#[test]
fn a_double_reply_is_seen() {
    is_seen(
        Defect::Reply(ReplyDefect::Double),
        Weather::Calm,
        "answered twice",
    );
}

#[test]
fn a_dropped_request_is_seen() {
    is_seen(
        Defect::Reply(ReplyDefect::Dropped),
        Weather::Calm,
        "dropped without an answer",
    );
}

#[test]
fn a_lost_reply_is_seen() {
    is_seen(
        Defect::Reply(ReplyDefect::Lost),
        Weather::Calm,
        " operations open",
    );
}

#[test]
fn a_leaked_lease_is_seen() {
    is_seen(
        Defect::Origin(OriginDefect::LeakedLease),
        Weather::Storm,
        "bytes in flight after shutdown",
    );
}

#[test]
fn bytes_that_no_one_booked_are_seen() {
    is_seen(
        Defect::Origin(OriginDefect::UnbookedBytes),
        Weather::Tight,
        "bytes in the ledger",
    );
}

#[test]
fn a_second_fetch_of_the_same_bytes_is_seen() {
    is_seen(
        Defect::Origin(OriginDefect::SentTwice),
        Weather::Calm,
        "was fetched 2 times",
    );
}
