//! What goes wrong: each operation ends once, by its deadline, and every lease comes back.
//! The harness checks that for all of them; the tests here say how each ends.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::errors::OriginErrorKind::{self, *};
use forebay_engine::identity::ObjectVersion;
use forebay_engine::ports::{ListRequest, Origin, OriginTag, Time};

use super::world::{Harness, OriginFault, OriginWorld, SPAN};

const SUB_BLOCK: usize = 64 << 10;
const SIZE: u64 = 1 << 20;
/// Sixteen leases: all of the object.
const PARTS: [usize; 16] = [SUB_BLOCK; 16];
/// The deadline's span where a test waits for it.
const SHORT: Duration = Duration::from_millis(400);

fn with_object<W: OriginWorld>(world: W) -> (Harness<W>, Arc<ObjectVersion>) {
    let mut harness = Harness::new(world);
    harness.world.put("f", SIZE, 1);
    let object = harness.version("f");
    (harness, object)
}

fn everything<W: OriginWorld>(harness: &Harness<W>) -> ListRequest {
    ListRequest {
        bucket: harness.world.bucket(),
        prefix: "".into(),
        delimited: true,
        continuation: None,
        entries_max: 10,
    }
}

/// After the fault is gone the same GET succeeds: nothing is stuck.
fn heals<W: OriginWorld>(mut harness: Harness<W>, object: &Arc<ObjectVersion>) {
    harness.world.calm();
    let outcome = harness.get(object, 0, &PARTS);
    assert_eq!(outcome.result, Ok(()));
    harness.check_bytes("f", SIZE, 1, 0, &outcome.filled);
    drop(outcome);
    harness.finish();
}

fn get_under<W: OriginWorld>(world: W, fault: OriginFault, kinds: &[OriginErrorKind]) {
    let (mut harness, object) = with_object(world);
    harness.world.arm(fault);
    let outcome = harness.get(&object, 0, &PARTS);
    let kind = outcome.kind().expect("the fault is seen");
    assert!(kinds.contains(&kind), "{fault:?} gave {:?}", outcome.result);
    harness.check_bytes("f", SIZE, 1, 0, &outcome.filled);
    drop(outcome);
    heals(harness, &object);
}

/// All three operations under a fault that strikes every request.
fn all_under<W: OriginWorld>(world: W, fault: OriginFault, kind: OriginErrorKind) {
    let (mut harness, object) = with_object(world);
    harness.world.arm(fault);
    assert_eq!(harness.get(&object, 0, &PARTS).kind(), Some(kind));
    assert_eq!(harness.head("f").map_err(|error| error.kind), Err(kind));
    let request = everything(&harness);
    assert_eq!(harness.list(request).map_err(|error| error.kind), Err(kind));
    heals(harness, &object);
}

/// 503 SlowDown.
pub fn throttling_is_told_apart(world: impl OriginWorld) {
    all_under(world, OriginFault::Throttle, Throttled);
}

/// 500.
pub fn server_errors_are_unavailable(world: impl OriginWorld) {
    all_under(world, OriginFault::ServerError, Unavailable);
}

/// Reset before an answer.
pub fn a_reset_is_unavailable(world: impl OriginWorld) {
    get_under(world, OriginFault::Reset, &[Unavailable]);
}

/// Reset amid the body: some leases filled, the rest back.
pub fn a_reset_within_the_body_returns_the_leases(world: impl OriginWorld) {
    get_under(
        world,
        OriginFault::ResetBody(300_000),
        &[Unavailable, ShortBody],
    );
}

/// What came is in filled leases or told as wasted, to the byte.
pub fn a_short_body_is_counted_to_the_byte(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    for after in [0, 1, 65_535, 65_536, 300_000, SIZE - 1] {
        harness.world.arm(OriginFault::ShortBody(after));
        let outcome = harness.get(&object, 0, &PARTS);
        assert_eq!(
            outcome.kind(),
            Some(ShortBody),
            "after {after}: {:?}",
            outcome.result
        );
        assert_eq!(
            outcome.filled.len() as u64,
            after / SUB_BLOCK as u64,
            "after {after}"
        );
        assert_eq!(
            outcome.wasted_bytes,
            after % SUB_BLOCK as u64,
            "after {after}"
        );
        harness.check_bytes("f", SIZE, 1, 0, &outcome.filled);
        harness.world.calm();
    }
    heals(harness, &object);
}

fn assert_timely<W: OriginWorld>(harness: &Harness<W>, started: Time, what: &str) {
    let took = harness.world.now().since(started);
    assert!(
        took >= SHORT,
        "{what} ended {took:?} after its start, before its deadline"
    );
}

/// No answer.
pub fn a_hang_ends_at_the_deadline(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    harness.world.arm(OriginFault::Hang);
    let started = harness.world.now();
    let get = harness.start_get(&object, 0, &PARTS, SHORT);
    let head = harness.start_head("f", SHORT);
    let request = everything(&harness);
    let list = harness.start_list(request, SHORT);
    let outcome = harness.finish_get(get, SHORT);
    assert_eq!(
        (outcome.kind(), outcome.filled.len(), outcome.wasted_bytes),
        (Some(Timeout), 0, 0)
    );
    drop(outcome);
    assert_eq!(
        harness.finish_head(head, SHORT).map_err(|error| error.kind),
        Err(Timeout)
    );
    assert_eq!(
        harness.finish_list(list, SHORT).map_err(|error| error.kind),
        Err(Timeout)
    );
    assert_timely(&harness, started, "a hang");
    heals(harness, &object);
}

/// No end of the body: what came is counted.
pub fn a_hang_within_the_body_ends_at_the_deadline(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    harness.world.arm(OriginFault::HangBody(300_000));
    let started = harness.world.now();
    let tag = harness.start_get(&object, 0, &PARTS, SHORT);
    let outcome = harness.finish_get(tag, SHORT);
    assert_eq!(outcome.kind(), Some(Timeout));
    assert_eq!(outcome.filled_bytes() + outcome.wasted_bytes, 300_000);
    harness.check_bytes("f", SIZE, 1, 0, &outcome.filled);
    drop(outcome);
    assert_timely(&harness, started, "a hang amid the body");
    heals(harness, &object);
}

/// A deadline of now.
pub fn a_deadline_that_has_passed_is_a_timeout(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    harness.world.arm(OriginFault::Hang);
    let tag = harness.start_get(&object, 0, &PARTS, Duration::ZERO);
    assert_eq!(
        harness.finish_get(tag, Duration::ZERO).kind(),
        Some(Timeout)
    );
    heals(harness, &object);
}

/// Cancelled while nothing has come.
pub fn cancelled_before_the_answer(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    harness.world.arm(OriginFault::Hang);
    let get = harness.start_get(&object, 0, &PARTS, SPAN);
    let head = harness.start_head("f", SPAN);
    let request = everything(&harness);
    let list = harness.start_list(request, SPAN);
    for _ in 0..5 {
        harness.pump();
    }
    for tag in [get, head, list] {
        harness.world.origin().cancel(tag);
    }
    assert_eq!(
        harness.finish_get(get, Duration::ZERO).kind(),
        Some(Cancelled)
    );
    assert_eq!(
        harness
            .finish_head(head, Duration::ZERO)
            .map_err(|error| error.kind),
        Err(Cancelled)
    );
    assert_eq!(
        harness
            .finish_list(list, Duration::ZERO)
            .map_err(|error| error.kind),
        Err(Cancelled)
    );
    heals(harness, &object);
}

/// Cancelled when some leases are filled.
pub fn cancelled_within_the_body(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    harness.world.arm(OriginFault::HangBody(300_000));
    let tag = harness.start_get(&object, 0, &PARTS, SPAN);
    let latest = harness.world.now() + SPAN;
    while harness.filled_so_far(tag) < 4 && harness.world.now() < latest {
        harness.pump();
    }
    harness.world.origin().cancel(tag);
    let outcome = harness.finish_get(tag, Duration::ZERO);
    assert_eq!(outcome.kind(), Some(Cancelled));
    assert_eq!(outcome.filled.len(), 4);
    assert!(outcome.wasted_bytes <= 300_000 - outcome.filled_bytes());
    drop(outcome);
    heals(harness, &object);
}

/// Unknown tags and operations that have ended.
pub fn cancelling_what_is_not_there_changes_nothing(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    harness.world.origin().cancel(OriginTag(u64::MAX));
    let tag = harness.start_get(&object, 0, &PARTS, SPAN);
    assert_eq!(harness.finish_get(tag, SPAN).result, Ok(()));
    harness.world.origin().cancel(tag);
    heals(harness, &object);
}

/// An origin with a bound gives the operation back, whole, and takes one again when one ended.
pub fn too_many_operations_are_given_back(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    harness.world.arm(OriginFault::Hang);
    let mut under_way = Vec::new();
    let bound = loop {
        match harness.try_get(&object, 0, &[4096], SPAN) {
            Some(tag) => under_way.push(tag),
            None => break true,
        }
        if under_way.len() == 4096 {
            break false;
        }
    };
    assert!(
        under_way.len() >= 16,
        "an origin that takes {} GETs is no use",
        under_way.len()
    );
    for tag in &under_way {
        harness.world.origin().cancel(*tag);
    }
    for tag in under_way {
        assert_eq!(
            harness.finish_get(tag, Duration::ZERO).kind(),
            Some(Cancelled)
        );
    }
    if bound {
        let tag = harness.start_get(&object, 0, &[4096], SPAN);
        harness.world.origin().cancel(tag);
        assert_eq!(
            harness.finish_get(tag, Duration::ZERO).kind(),
            Some(Cancelled)
        );
    }
    heals(harness, &object);
}

/// 200 for a range.
pub fn the_whole_object_instead_of_the_range_is_refused(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    harness.world.arm(OriginFault::Whole);
    for (offset, parts) in [(0, &PARTS[..]), (4096, &PARTS[..2])] {
        let outcome = harness.get(&object, offset, parts);
        assert_eq!((outcome.kind(), outcome.filled.len()), (Some(BadAnswer), 0));
    }
    heals(harness, &object);
}

/// A 206 whose Content-Range is not what was asked for.
pub fn another_range_than_asked_for_is_refused(world: impl OriginWorld) {
    get_under(world, OriginFault::ShortRange, &[BadAnswer]);
}

/// Bytes under another ETag are never taken.
pub fn another_etag_is_another_version(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    harness.world.arm(OriginFault::WrongETag);
    let outcome = harness.get(&object, 0, &PARTS);
    assert_eq!(
        (outcome.kind(), outcome.filled.len()),
        (Some(VersionChanged), 0)
    );
    drop(outcome);
    heals(harness, &object);
}

/// Two GETs of one read, with an overwrite between them.
pub fn an_object_overwritten_while_it_is_read_is_another_version(world: impl OriginWorld) {
    let (mut harness, object) = with_object(world);
    let first = harness.get(&object, 0, &PARTS[..8]);
    assert_eq!(first.result, Ok(()));
    harness.world.arm(OriginFault::Overwrite);
    let second = harness.get(&object, SIZE / 2, &PARTS[..8]);
    assert_eq!(
        (second.kind(), second.filled.len()),
        (Some(VersionChanged), 0)
    );
    harness.world.calm();
    drop((first, second));
    harness.finish();
}
