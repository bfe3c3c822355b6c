//! Connections that end with work under way: every lease comes back, and only when nothing can be written into it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use forebay_engine::arena::{Arena, Lease, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::ports::{
    Class, Clock, FetchStatus, FetchTag, Payload, PeerAsk, PeerCore, PeerFetch, PeerId,
    RequestHandle, Transport, TransportError, TransportEvent, TransportOp,
};
use forebay_transport_rdma::RdmaTransport;
use forebay_transport_rdma::introduce::Refused;

use crate::held::{Holds, Severed, uverbs_descriptors};
use crate::pair::{Meeting, PEERS, WAIT_MAX, clock, device, rest, transport};

const ARENA_BYTES: usize = 8 << 20;
const BLOCK_BYTES: usize = 64 << 10;

/// From the second of `PEERS`.
pub fn fetch(lease: Lease, tag: u64) -> TransportOp {
    let to = PeerCore {
        peer: PEERS[1],
        core: 0,
    };
    fetch_of(lease, tag, to)
}

pub fn fetch_of(lease: Lease, tag: u64, to: PeerCore) -> TransportOp {
    let request = PeerFetch {
        object: ObjectId(5),
        size_bytes: 1 << 40,
        offset: 0,
        len_bytes: lease.len() as u32,
        want_bytes: lease.len() as u32,
        class: Class::Demand,
        view: 1,
        cached_only: false,
        forwarded: false,
        verify: false,
    };
    TransportOp::Fetch {
        tag: FetchTag(tag),
        to,
        request,
        lease,
        deadline: clock().now() + Duration::from_secs(3_600),
    }
}

/// Polls both until `of` tells something.
pub fn next(of: &mut RdmaTransport, mut other: Option<&mut RdmaTransport>) -> TransportEvent {
    let begun = Instant::now();
    while begun.elapsed() < WAIT_MAX {
        if let Some(event) = of.poll() {
            return event;
        }
        if let Some(event) = other.as_mut().and_then(|other| other.poll()) {
            panic!("the other end tells {event:?}");
        }
        rest();
    }
    panic!("nothing happened within {WAIT_MAX:?}");
}

pub fn asked(event: TransportEvent) -> RequestHandle {
    match event {
        TransportEvent::Request {
            handle,
            ask: PeerAsk::Fetch(_),
            ..
        } => handle,
        other => panic!("no request for bytes: {other:?}"),
    }
}

pub fn result(event: TransportEvent) -> Result<FetchStatus, TransportError> {
    match event {
        TransportEvent::Fetched { result, .. } => result,
        other => panic!("not a fetch's end: {other:?}"),
    }
}

#[test]
fn a_closed_connection_gives_its_leases_back_and_another_takes_over() {
    let Some(device) = device() else { return };
    let mut arena = Arena::new(ARENA_BYTES).unwrap();
    let mut ends = [0, 1].map(|_| transport(&device, &arena));
    let [asker, server] = &mut ends;
    let mut meeting = Meeting::new(&device);
    let [id, other] = meeting.introduce(asker, PEERS[0], server, PEERS[1]).ids;
    let lease = arena.lease(BLOCK_BYTES, Share::Demand).unwrap();
    asker.submit(fetch(lease, 1)).unwrap();
    assert!(asker.poll().is_none());
    let handle = asked(next(server, Some(asker)));
    asker.close(id, "closed by the test");
    assert!(!asker.reaches(PeerCore {
        peer: PEERS[1],
        core: 0
    }));
    assert_eq!(asker.connections(), 1, "it ends in its own time");
    let event = next(asker, None);
    assert_eq!(
        asker.connections(),
        0,
        "a lease came back before its queue pair was gone"
    );
    assert_eq!(result(event), Err(TransportError::Unreachable));

    // The server has not learned of it: its answer fails, and its payload comes back.
    let payload = arena.lease(BLOCK_BYTES, Share::Serve).unwrap();
    let answer = TransportOp::Answer {
        handle,
        status: FetchStatus::Bytes,
        payload: Some(Payload {
            parts: vec![arena.freeze(payload)],
            checksums: vec![0; BLOCK_BYTES / 4096],
        }),
    };
    server.submit(answer).unwrap();
    server.close(other, "closed by the test");
    match next(server, None) {
        TransportEvent::Answered { payload, .. } => assert!(payload.is_some()),
        event => panic!("not an answer's end: {event:?}"),
    }
    assert_eq!(server.connections(), 0);

    meeting.introduce(asker, PEERS[0], server, PEERS[1]);
    let lease = arena.lease(BLOCK_BYTES, Share::Demand).unwrap();
    asker.submit(fetch(lease, 2)).unwrap();
    assert!(asker.poll().is_none());
    let handle = asked(next(server, Some(asker)));
    let status = FetchStatus::Busy;
    let payload = None;
    let answer = TransportOp::Answer {
        handle,
        status,
        payload,
    };
    server.submit(answer).unwrap();
    assert!(matches!(
        next(server, None),
        TransportEvent::Answered { .. }
    ));
    assert_eq!(result(next(asker, Some(server))), Ok(FetchStatus::Busy));
    drop(ends);
    arena.reclaim();
    assert_eq!(arena.free_bytes(), arena.capacity_bytes());
}

/// Lets all connections of both ends end, with their queue pairs.
pub fn ended(asker: &mut RdmaTransport, server: &mut RdmaTransport) {
    let begun = Instant::now();
    while asker.connections() + server.connections() > 0 {
        assert!(begun.elapsed() < WAIT_MAX, "a connection does not end");
        assert!(asker.poll().is_none() && server.poll().is_none());
        rest();
    }
}

#[test]
fn connections_come_and_go_without_leaving_anything() {
    let Some(device) = device() else { return };
    let arena = Arena::new(ARENA_BYTES).unwrap();
    let mut ends = [0, 1].map(|_| transport(&device, &arena));
    let [asker, server] = &mut ends;
    let mut meeting = Meeting::new(&device);
    let mut connect = |times: usize| {
        for _ in 0..times {
            let introduced = meeting.introduce(asker, PEERS[0], server, PEERS[1]);
            let [id, other] = introduced.ids;
            asker.close(id, "closed by the test");
            server.close(other, "closed by the test");
            meeting.part(&introduced);
            ended(asker, server);
        }
    };
    // What the allocator and the library keep for the next one.
    connect(20);
    let before = Holds::now(&device.1.device);
    connect(1_000);
    let after = Holds::now(&device.1.device);
    assert_eq!(after.descriptors, before.descriptors);
    assert_eq!(after.of_device, before.of_device);
    let grown_bytes = after.resident_bytes.saturating_sub(before.resident_bytes);
    // A queue pair's slots alone have 200 KB.
    assert!(grown_bytes < 4 << 20, "{grown_bytes} bytes more");
}

#[test]
fn a_hundred_are_introduced_at_once() {
    const COUNT: u64 = 100;
    let Some(device) = device() else { return };
    let mut arena = Arena::new(ARENA_BYTES).unwrap();
    let mut ends = [0, 1].map(|_| transport(&device, &arena));
    let [asker, server] = &mut ends;
    let mut meeting = Meeting::new(&device);
    let before = Holds::now(&device.1.device);
    // The server under a hundred names: one asker has one connection to each.
    let name = |n: u64| PeerId(1_000 + n);
    let all: Vec<_> = (0..COUNT)
        .map(|n| {
            let invited = meeting.invite(PEERS[0], name(n));
            let asked = meeting.ask(asker, |number| invited.question(number).to_vec());
            (invited, asked)
        })
        .collect();
    let others: Vec<_> = all.iter().map(|_| meeting.judge(server).unwrap()).collect();
    // They come, are accepted and become known in any order.
    for _ in 0..COUNT {
        let accepted = meeting.accepted();
        let mut asked = all.iter().zip(0..);
        let found = asked.find(|((_, asked), _)| asked.by_cm == accepted.id);
        let ((invited, asked), n) = found.expect("one that was asked for");
        meeting.begin_by(asker, name(n), invited, asked, &accepted);
    }
    let known: BTreeSet<_> = (0..COUNT).map(|_| meeting.established()).collect();
    assert_eq!(known, others.iter().map(|(_, by_cm)| *by_cm).collect());
    assert_eq!((asker.connections(), server.connections()), (100, 100));
    // Each carries its own, all of them at once.
    for n in 0..COUNT {
        let lease = arena.lease(4_096, Share::Demand).unwrap();
        let to = PeerCore {
            peer: name(n),
            core: 0,
        };
        asker.submit(fetch_of(lease, n, to)).unwrap();
    }
    assert!(asker.poll().is_none());
    let mut answered = 0;
    while answered < COUNT {
        match next(server, None) {
            TransportEvent::Answered { .. } => answered += 1,
            event => {
                let answer = TransportOp::Answer {
                    handle: asked(event),
                    status: FetchStatus::Busy,
                    payload: None,
                };
                server.submit(answer).unwrap();
            }
        }
    }
    for _ in 0..COUNT {
        assert_eq!(result(next(asker, Some(server))), Ok(FetchStatus::Busy));
    }
    for ((_, asked), (other, _)) in all.iter().zip(&others) {
        asker.close(asked.id, "closed by the test");
        server.close(*other, "closed by the test");
    }
    ended(asker, server);
    let after = Holds::now(&device.1.device);
    assert_eq!(
        after.queue_pairs_and_regions(),
        before.queue_pairs_and_regions()
    );
}

#[test]
fn what_cannot_be_destroyed_keeps_its_leases_until_it_can() {
    let Some(device) = device() else { return };
    let mut arena = Arena::new(ARENA_BYTES).unwrap();
    let others = uverbs_descriptors();
    let mut asker = transport(&device, &arena);
    let own = uverbs_descriptors();
    let own = *own
        .iter()
        .find(|fd| !others.contains(fd))
        .expect("one more");
    let mut server = transport(&device, &arena);
    let mut meeting = Meeting::new(&device);
    let introduced = meeting.introduce(&mut asker, PEERS[0], &mut server, PEERS[1]);
    let [id, _] = introduced.ids;
    let mut lease = arena.lease(BLOCK_BYTES, Share::Demand).unwrap();
    lease.bytes_mut().fill(0x11);
    asker.submit(fetch(lease, 1)).unwrap();
    assert!(asker.poll().is_none());
    let handle = asked(next(&mut server, Some(&mut asker)));

    // No call reaches the kernel: the queue pair goes neither into error nor away, and its peer may write.
    let severed = Severed::new(own);
    asker.close(id, "closed by the test");
    let mut payload = arena.lease(BLOCK_BYTES, Share::Serve).unwrap();
    payload.bytes_mut().fill(0x22);
    let answer = TransportOp::Answer {
        handle,
        status: FetchStatus::Bytes,
        payload: Some(Payload {
            parts: vec![arena.freeze(payload)],
            checksums: vec![0; BLOCK_BYTES / 4096],
        }),
    };
    server.submit(answer).unwrap();
    assert!(matches!(
        next(&mut server, None),
        TransportEvent::Answered { .. }
    ));
    // Longer than a queue pair may take to drain, and than the pause until the next try.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2_500) {
        assert!(asker.poll().is_none(), "a lease came back too early");
        assert_eq!(asker.connections(), 1);
        rest();
    }
    severed.mend();
    let TransportEvent::Fetched { lease, result, .. } = next(&mut asker, None) else {
        panic!("not a fetch's end");
    };
    assert_eq!(result, Err(TransportError::Unreachable));
    assert_eq!(asker.connections(), 0);
    // So the peer could write all along.
    assert!(lease.bytes().iter().all(|byte| *byte == 0x22));
}

/// What is asked, by the number of the queue pair.
type Question<'a> = &'a dyn Fn(u32) -> Vec<u8>;

#[test]
fn who_cannot_prove_itself_gets_nothing() {
    let Some(device) = device() else { return };
    let arena = Arena::new(ARENA_BYTES).unwrap();
    let mut ends = [0, 1].map(|_| transport(&device, &arena));
    let [asker, server] = &mut ends;
    let mut meeting = Meeting::new(&device);
    let invited = meeting.invite(PEERS[0], PEERS[1]);
    let questions: [(Question<'_>, Refused); 3] = [
        (&|_| vec![7; 56], Refused::Garbled),
        (&|_| vec![7; 48], Refused::Ticket),
        // A proof that was seen, over another queue pair.
        (
            &|number| invited.question(number + 1).to_vec(),
            Refused::Proof,
        ),
    ];
    for (question, why) in questions {
        let asked = meeting.ask(asker, question);
        let before = Holds::now(&device.1.device);
        assert_eq!(meeting.judge(server), Err(why));
        let after = Holds::now(&device.1.device);
        assert_eq!(server.connections(), 0);
        assert_eq!(
            after.queue_pairs_and_regions(),
            before.queue_pairs_and_regions()
        );
        assert_eq!(meeting.refused(asker, &asked), Some(why));
        ended(asker, server);
    }
    // Whose ticket it is may still use it, once: whichever question comes first.
    for _ in 0..2 {
        meeting.ask(asker, |number| invited.question(number).to_vec());
    }
    assert!(meeting.judge(server).is_ok());
    assert_eq!(meeting.judge(server), Err(Refused::Ticket));
    assert_eq!(server.connections(), 1);
}
