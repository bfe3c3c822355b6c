//! Verbs on a device: the same in the guest with SoftRoCE and on hardware. `ci/softroce` runs them.

mod common;

use common::{End, Ends, MIB, open_device, pattern, take, wait_for, wait_for_any};
use forebay_transport_rdma::{Access, PostError, RemoteSlice, WorkFault, WorkKind};

/// What goes over a queue pair in the tests that compare bytes.
const LENGTHS_BYTES: [usize; 3] = [4096, 64 << 10, MIB];
const READ_WRITE: Access = Access {
    remote_write: true,
    remote_read: true,
};

#[test]
fn the_device_tells_its_ports_and_addresses() {
    let Some(device) = open_device() else { return };
    assert!(device.open.ports() >= 1);
    let port = device.open.port(device.port).expect("the port");
    assert!(port.active, "{port:?}");
    assert!(port.active_mtu.is_some(), "{port:?}");
    let address = device
        .open
        .port_address(device.port, device.gid_index)
        .expect("an address");
    let entry = device
        .open
        .gid(device.port, device.gid_index)
        .expect("the GID")
        .expect("in use");
    assert_eq!(entry.gid, address.gid);
    let used = (0..port.gids.min(256)).filter(|index| {
        device
            .open
            .gid(device.port, *index as u8)
            .expect("any GID of the table can be asked for")
            .is_some()
    });
    assert!(used.count() >= 1);
    assert!(
        device.open.port(device.open.ports() + 1).is_err(),
        "a port that is not there"
    );
    assert!(device.verbs.open("no-such-device").is_err());
}

#[test]
fn messages_arrive_whole() {
    let Some(device) = open_device() else { return };
    let ends = Ends::connected(&device, MIB, Access::LOCAL);
    for (work, len_bytes) in (1..).zip(LENGTHS_BYTES) {
        let bytes = pattern(len_bytes, work);
        ends.left.region.write_at(0, &bytes).unwrap();
        ends.right
            .pair
            .post_receive(work, ends.right.region.slice(0, len_bytes).unwrap())
            .unwrap();
        ends.left
            .pair
            .post_send(work, ends.left.region.slice(0, len_bytes).unwrap(), true)
            .unwrap();
        let sent = wait_for(&ends.left, work).outcome.expect("the send");
        assert_eq!(sent.kind, WorkKind::Send);
        let received = wait_for(&ends.right, work).outcome.expect("the receive");
        assert_eq!(
            (received.kind, received.len_bytes as usize),
            (WorkKind::Receive, len_bytes)
        );
        assert!(
            ends.right.bytes(0, len_bytes) == bytes,
            "{len_bytes} bytes arrived changed"
        );
    }
}

#[test]
fn inline_messages_are_copied_when_posted() {
    let Some(device) = open_device() else { return };
    let ends = Ends::connected(&device, 4096, Access::LOCAL);
    ends.right
        .pair
        .post_receive(1, ends.right.region.slice(0, 128).unwrap())
        .unwrap();
    let mut message = pattern(128, 9);
    ends.left.pair.post_send_inline(1, &message, true).unwrap();
    message.fill(0);
    wait_for(&ends.left, 1).outcome.expect("the send");
    wait_for(&ends.right, 1).outcome.expect("the receive");
    assert_eq!(ends.right.bytes(0, 128), pattern(128, 9));
    let long = vec![0; 1 << 16];
    assert!(matches!(
        ends.left.pair.post_send_inline(2, &long, true),
        Err(PostError::TooLong { .. })
    ));
}

#[test]
fn writes_land_where_they_were_meant_to() {
    let Some(device) = open_device() else { return };
    let ends = Ends::connected(&device, 2 * MIB, READ_WRITE);
    for (work, len_bytes) in (1..).zip(LENGTHS_BYTES) {
        let (bytes, ground) = (pattern(len_bytes, work), pattern(2 * MIB, 77));
        ends.left.region.write_at(0, &bytes).unwrap();
        ends.right.region.write_at(0, &ground).unwrap();
        let at = 4096 + 64;
        let to = ends.right.region.remote(at);
        ends.left
            .pair
            .post_write(
                work,
                ends.left.region.slice(0, len_bytes).unwrap(),
                to,
                true,
            )
            .unwrap();
        assert_eq!(
            wait_for(&ends.left, work).outcome.expect("the write").kind,
            WorkKind::Write
        );
        let mut wanted = ground;
        wanted[at..at + len_bytes].copy_from_slice(&bytes);
        assert!(
            ends.right.bytes(0, 2 * MIB) == wanted,
            "a write of {len_bytes} bytes landed otherwise"
        );
    }
    assert!(
        take(&ends.right).is_empty(),
        "the side that is written to is told nothing"
    );
}

#[test]
fn reads_bring_what_is_there() {
    let Some(device) = open_device() else { return };
    let ends = Ends::connected(&device, 2 * MIB, READ_WRITE);
    let there = pattern(2 * MIB, 5);
    ends.right.region.write_at(0, &there).unwrap();
    for (work, len_bytes) in (1..).zip(LENGTHS_BYTES) {
        let from = ends.right.region.remote(512);
        ends.left.region.write_at(0, &vec![0; 2 * MIB]).unwrap();
        ends.left
            .pair
            .post_read(
                work,
                ends.left.region.slice(0, len_bytes).unwrap(),
                from,
                true,
            )
            .unwrap();
        assert_eq!(
            wait_for(&ends.left, work).outcome.expect("the read").kind,
            WorkKind::Read
        );
        assert!(
            ends.left.bytes(0, len_bytes) == there[512..512 + len_bytes],
            "{len_bytes} bytes came changed"
        );
        assert!(
            ends.left
                .bytes(len_bytes, MIB)
                .iter()
                .all(|byte| *byte == 0),
            "bytes behind were written"
        );
    }
}

/// Tries a write of 4 KiB from a fresh pair, and says how it ended. Nothing on the other side may have changed.
fn refused_write(ends: &Ends, to: RemoteSlice) -> WorkFault {
    let ground = pattern(ends.right.region.len_bytes(), 3);
    ends.right.region.write_at(0, &ground).unwrap();
    ends.left.region.write_at(0, &pattern(4096, 4)).unwrap();
    ends.left
        .pair
        .post_write(1, ends.left.region.slice(0, 4096).unwrap(), to, true)
        .unwrap();
    let fault = wait_for(&ends.left, 1)
        .outcome
        .expect_err("nobody may write there");
    assert!(
        ends.right.bytes(0, ground.len()) == ground,
        "a refused write changed bytes"
    );
    fault
}

#[test]
fn a_write_outside_of_the_region_is_an_access_error() {
    let Some(device) = open_device() else { return };
    let len_bytes = 64 << 10;
    // Behind it, across its end, before it.
    for address in [len_bytes, len_bytes - 2048, 0usize.wrapping_sub(4096)] {
        let ends = Ends::connected(&device, len_bytes, READ_WRITE);
        let to = ends.right.region.remote(address);
        assert_eq!(
            refused_write(&ends, to),
            WorkFault::RemoteAccess,
            "at {address:#x}"
        );
    }
}

#[test]
fn a_write_without_the_right_to_is_an_access_error() {
    let Some(device) = open_device() else { return };
    let ends = Ends::connected(&device, 8192, READ_WRITE);
    let right = ends.right.region.remote(0);
    assert_eq!(
        refused_write(
            &ends,
            RemoteSlice {
                key: right.key ^ 0x55,
                ..right
            }
        ),
        WorkFault::RemoteAccess
    );
    // The queue pair lets peers write, the region does not.
    let read_only = Access {
        remote_read: true,
        ..Access::LOCAL
    };
    let ends = Ends::connected_with(&device, 8192, read_only, READ_WRITE);
    assert_eq!(
        refused_write(&ends, ends.right.region.remote(0)),
        WorkFault::RemoteAccess
    );
}

#[test]
fn a_queue_pair_that_allows_nothing_is_not_written_to() {
    let Some(device) = open_device() else { return };
    // The region lets peers write, the queue pair does not.
    let ends = Ends::connected_with(&device, 8192, READ_WRITE, Access::LOCAL);
    let fault = refused_write(&ends, ends.right.region.remote(0));
    assert!(
        matches!(fault, WorkFault::RemoteAccess | WorkFault::RemoteRequest),
        "{fault:?}"
    );
}

#[test]
fn a_region_that_is_gone_is_not_written_to() {
    let Some(device) = open_device() else { return };
    let mut ends = Ends::connected(&device, 8192, READ_WRITE);
    let gone = ends.right.region.remote(0);
    ends.right.region = device.region(8192, Access::LOCAL);
    assert_eq!(refused_write(&ends, gone), WorkFault::RemoteAccess);
}

/// Takes `count` completions, all of them flushed, and returns their works in order.
fn flushed(end: &End, count: usize) -> Vec<u64> {
    let mut works = Vec::new();
    while works.len() < count {
        let completion = wait_for_any(end);
        assert_eq!(
            completion.outcome,
            Err(WorkFault::Flushed),
            "{completion:?}, after {works:?}"
        );
        assert_eq!(completion.queue_pair, end.pair.number());
        works.push(completion.work);
    }
    works.sort_unstable();
    works
}

#[test]
fn an_error_flushes_all_posted_work_once() {
    let Some(device) = open_device() else { return };
    let ends = Ends::connected(&device, 8192, READ_WRITE);
    let slice = || ends.left.region.slice(0, 64).unwrap();
    for work in 1..=8 {
        ends.left.pair.post_receive(work, slice()).unwrap();
    }
    // The peer has no receive posted, so these are under way when the error comes; unsignalled ones are told too.
    for work in 11..=14 {
        ends.left
            .pair
            .post_send(work, slice(), work % 2 == 0)
            .unwrap();
    }
    ends.left.pair.fail().expect("to the error state");
    let wanted: Vec<u64> = (1..=8).chain(11..=14).collect();
    assert_eq!(flushed(&ends.left, 12), wanted);
    // What is sent later as well. (SoftRoCE forgets receives that are posted later.)
    ends.left.pair.post_send(15, slice(), true).unwrap();
    assert_eq!(flushed(&ends.left, 1), [15]);
    assert!(take(&ends.left).is_empty());
}

#[test]
fn unsignalled_work_is_told_only_when_it_fails() {
    let Some(device) = open_device() else { return };
    let ends = Ends::connected(&device, 8192, READ_WRITE);
    let from = || ends.left.region.slice(0, 4096).unwrap();
    for work in 1..=3 {
        ends.left
            .pair
            .post_write(work, from(), ends.right.region.remote(0), false)
            .unwrap();
    }
    ends.left
        .pair
        .post_write(4, from(), ends.right.region.remote(0), true)
        .unwrap();
    assert_eq!(
        wait_for_any(&ends.left).work,
        4,
        "the first completion is that of the signalled write"
    );
    ends.left
        .pair
        .post_write(5, from(), ends.right.region.remote(8192), false)
        .unwrap();
    assert_eq!(
        wait_for(&ends.left, 5).outcome,
        Err(WorkFault::RemoteAccess)
    );
}

#[test]
fn a_full_queue_says_so_and_takes_work_again() {
    let Some(device) = open_device() else { return };
    let ends = Ends::connected(&device, 8192, READ_WRITE);
    let slice = || ends.right.region.slice(0, 64).unwrap();
    let mut posted = 0;
    let full = loop {
        match ends.right.pair.post_receive(posted, slice()) {
            Ok(()) => posted += 1,
            Err(why) => break why,
        }
        assert!(posted < 100_000, "a queue without end");
    };
    assert!(matches!(full, PostError::Full), "{full}");
    assert!(posted >= u64::from(common::RECEIVES), "{posted}");
    ends.left
        .pair
        .post_send(1, ends.left.region.slice(0, 64).unwrap(), true)
        .unwrap();
    wait_for(&ends.right, 0).outcome.expect("the first receive");
    ends.right
        .pair
        .post_receive(posted, slice())
        .expect("there is room again");
}

#[test]
fn handles_may_go_in_any_order() {
    let Some(device) = open_device() else { return };
    // Queue pair and region outlive every handle of what they were made from.
    let ends = Ends::connected(&device, 4096, READ_WRITE);
    drop(device);
    ends.left.region.write_at(0, &pattern(4096, 1)).unwrap();
    ends.left
        .pair
        .post_write(
            1,
            ends.left.region.slice(0, 4096).unwrap(),
            ends.right.region.remote(0),
            true,
        )
        .unwrap();
    wait_for(&ends.left, 1).outcome.expect("the write");
    assert_eq!(ends.right.bytes(0, 4096), pattern(4096, 1));
}
