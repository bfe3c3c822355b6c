//! Members of the group, proven, whose messages are none: their connection ends, and nothing else does.

use std::time::Instant;

use forebay_engine::arena::{Arena, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::ports::{
    Class, FetchStatus, FetchTag, PeerCore, PeerFetch, PeerId, Transport, TransportError,
    TransportEvent, TransportOp,
};
use forebay_engine::wire::header::{ANSWER_BYTES, Answer, Ask, REQUEST_BYTES, Request};
use forebay_transport_rdma::RdmaTransport;

use crate::endings::{asked, fetch, fetch_of, next, result};
use crate::pair::{Meeting, PEERS, WAIT_MAX, device, rest, transport};
use crate::raw::Raw;

const ARENA_BYTES: usize = 8 << 20;
const BLOCK_BYTES: usize = 64 << 10;
/// The longest message that is one.
const SLOT_BYTES: usize = 1_056;

fn noise(len_bytes: usize) -> Vec<u8> {
    let next = |n: usize| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] | 1;
    (0..len_bytes).map(next).collect()
}

/// A request for a block with its destination, in the form of the wire.
fn request(tag: u64, len_bytes: u32, told_bytes: u32) -> Vec<u8> {
    let request = Request {
        tag,
        remaining_us: 1_000_000,
        ask: Ask::Fetch(PeerFetch {
            object: ObjectId(5),
            size_bytes: 1 << 40,
            offset: 0,
            len_bytes,
            want_bytes: len_bytes,
            class: Class::Demand,
            view: 1,
            cached_only: false,
            forwarded: false,
            verify: false,
        }),
    };
    let mut bytes = request.encode().to_vec();
    // An address and a key of nowhere.
    bytes.extend(0xdead_0000_u64.to_le_bytes());
    bytes.extend(77u32.to_le_bytes());
    bytes.extend(told_bytes.to_le_bytes());
    bytes
}

fn call(body_bytes: u32) -> Vec<u8> {
    let request = Request {
        tag: 1,
        remaining_us: 1_000_000,
        ask: Ask::Call {
            class: Class::Demand,
            body_bytes,
            room_bytes: 4_096,
        },
    };
    let mut bytes = request.encode().to_vec();
    bytes.extend([0; 12]);
    bytes.extend(4_096u32.to_le_bytes());
    bytes
}

fn with(mut bytes: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    bytes[at] = byte;
    bytes
}

/// What a connection does not survive, each some messages.
fn questions() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    const BLOCK: u32 = BLOCK_BYTES as u32;
    let whole = || request(1, BLOCK, BLOCK);
    vec![
        ("nothing", vec![vec![]]),
        ("a byte", vec![vec![1]]),
        ("half a header", vec![whole()[..REQUEST_BYTES / 2].into()]),
        ("no destination", vec![whole()[..REQUEST_BYTES].into()]),
        (
            "half a destination",
            vec![whole()[..REQUEST_BYTES + 8].into()],
        ),
        ("more than there is", vec![[whole(), vec![0]].concat()]),
        ("zeros", vec![vec![0; REQUEST_BYTES + 16]]),
        ("noise", vec![noise(REQUEST_BYTES + 16)]),
        ("a slot of noise", vec![noise(SLOT_BYTES)]),
        ("longer than a slot", vec![noise(SLOT_BYTES + 1)]),
        ("much longer", vec![noise(8_000)]),
        ("an unknown kind", vec![with(whole(), 0, 0xee)]),
        ("an unknown class", vec![with(whole(), 1, 0xee)]),
        ("another length", vec![request(1, BLOCK, BLOCK - 1)]),
        ("a cancel's tag", vec![request(1 << 63, BLOCK, BLOCK)]),
        ("a tag twice", vec![whole(), whole()]),
        (
            "over its credit",
            (0..9)
                .map(|tag| request(tag, 256 << 10, 256 << 10))
                .collect(),
        ),
        ("a body too long", vec![call(10), noise(11)]),
        ("an empty body", vec![call(10), vec![]]),
    ]
}

/// Polls a member until it has so many connections; what it was asked meanwhile is let be.
fn until_left(server: &mut RdmaTransport, count: usize, what: &str) {
    let begun = Instant::now();
    while server.connections() > count {
        match server.poll() {
            None | Some(TransportEvent::Request { .. } | TransportEvent::GivenUp { .. }) => {}
            Some(other) => panic!("{what}: {other:?}"),
        }
        assert!(begun.elapsed() < WAIT_MAX, "{what}: it stays connected");
        rest();
    }
}

#[test]
fn a_peer_that_sends_garbage_loses_its_connection_and_nobody_else_does() {
    let Some(device) = device() else { return };
    let mut arena = Arena::new(ARENA_BYTES).unwrap();
    let mut ends = [0, 1].map(|_| transport(&device, &arena));
    let [asker, server] = &mut ends;
    let mut meeting = Meeting::new(&device);
    meeting.introduce(asker, PEERS[0], server, PEERS[1]);
    for (n, (what, messages)) in questions().into_iter().enumerate() {
        let from = PeerId(100 + n as u64);
        let raw = Raw::asking(&device, &mut meeting, from, server, PEERS[1]);
        // What is a request is taken for one: it is the garbage that ends the connection.
        raw.send(&request(1 << 40, BLOCK_BYTES as u32, BLOCK_BYTES as u32));
        asked(next(server, None));
        assert_eq!(server.connections(), 2);
        for message in &messages {
            raw.send(message);
        }
        until_left(server, 1, what);
    }
    // The member that behaves has noticed nothing.
    let lease = arena.lease(BLOCK_BYTES, Share::Demand).unwrap();
    asker.submit(fetch(lease, 1)).unwrap();
    assert!(asker.poll().is_none());
    let handle = asked(next(server, Some(asker)));
    let answer = TransportOp::Answer {
        handle,
        status: FetchStatus::Busy,
        payload: None,
    };
    server.submit(answer).unwrap();
    assert!(matches!(
        next(server, None),
        TransportEvent::Answered { .. }
    ));
    assert_eq!(result(next(asker, Some(server))), Ok(FetchStatus::Busy));
}

fn answer(tag: u64, status: FetchStatus, len_bytes: u32, checksums: u16) -> Vec<u8> {
    let answer = Answer {
        tag,
        status,
        len_bytes,
        checksums,
    };
    let mut bytes = answer.encode().to_vec();
    bytes.extend(vec![0; 4 * usize::from(checksums)]);
    bytes
}

/// What an asker does not believe, made from the tag of its request.
type Reply = fn(u64) -> Vec<u8>;

#[test]
fn answers_that_are_none_end_the_connection_and_give_the_lease_back() {
    let Some(device) = device() else { return };
    let mut arena = Arena::new(ARENA_BYTES).unwrap();
    let mut asker = transport(&device, &arena);
    let mut meeting = Meeting::new(&device);
    const PAGES: u16 = (BLOCK_BYTES / 4096) as u16;
    let replies: [(&str, Reply); 10] = [
        ("nothing", |_| vec![]),
        ("a byte", |_| vec![1]),
        ("half a header", |tag| {
            answer(tag, FetchStatus::Busy, 0, 0)[..ANSWER_BYTES / 2].into()
        }),
        ("noise", |_| noise(ANSWER_BYTES)),
        ("longer than a slot", |_| noise(SLOT_BYTES + 1)),
        ("an unknown status", |tag| {
            with(answer(tag, FetchStatus::Busy, 0, 0), 0, 0xee)
        }),
        ("to nothing", |tag| answer(tag + 1, FetchStatus::Busy, 0, 0)),
        ("to no cancel", |tag| {
            answer(tag | 1 << 63, FetchStatus::Busy, 0, 0)
        }),
        ("too few bytes", |tag| {
            answer(tag, FetchStatus::Bytes, 4_096, 1)
        }),
        ("fewer checksums", |tag| {
            answer(tag, FetchStatus::Bytes, BLOCK_BYTES as u32, PAGES)[..ANSWER_BYTES + 4].into()
        }),
    ];
    for (n, (what, reply)) in replies.into_iter().enumerate() {
        let to = PeerId(100 + n as u64);
        let raw = Raw::asked(&device, &mut meeting, &mut asker, PEERS[0], to);
        let lease = arena.lease(BLOCK_BYTES, Share::Demand).unwrap();
        let core = PeerCore { peer: to, core: 0 };
        asker.submit(fetch_of(lease, n as u64, core)).unwrap();
        let message = raw.receive(|| assert!(asker.poll().is_none()));
        let head = message.first_chunk::<REQUEST_BYTES>().expect("a request");
        let request = Request::decode(head).expect("a request");
        raw.send(&reply(request.tag));
        let event = next(&mut asker, None);
        let TransportEvent::Fetched { tag, result, .. } = event else {
            panic!("{what}: {event:?}");
        };
        assert_eq!(tag, FetchTag(n as u64));
        let known = [TransportError::Unreachable, TransportError::Protocol];
        assert!(
            result.is_err_and(|error| known.contains(&error)),
            "{what}: {result:?}"
        );
        until_left(&mut asker, 0, what);
    }
    // Nobody asked anything at all.
    let raw = Raw::asked(&device, &mut meeting, &mut asker, PEERS[0], PEERS[1]);
    raw.send(&answer(1, FetchStatus::Busy, 0, 0));
    until_left(&mut asker, 0, "an answer to no request");
    // What is an answer is believed, and the connection stays: it is the garbage that ends the others.
    let raw = Raw::asked(&device, &mut meeting, &mut asker, PEERS[0], PEERS[1]);
    let lease = arena.lease(BLOCK_BYTES, Share::Demand).unwrap();
    asker.submit(fetch(lease, 99)).unwrap();
    let message = raw.receive(|| assert!(asker.poll().is_none()));
    let head = message.first_chunk::<REQUEST_BYTES>().expect("a request");
    let tag = Request::decode(head).expect("a request").tag;
    raw.send(&answer(tag, FetchStatus::Busy, 0, 0));
    assert_eq!(result(next(&mut asker, None)), Ok(FetchStatus::Busy));
    assert_eq!(asker.connections(), 1);
    arena.reclaim();
    assert_eq!(arena.free_bytes(), arena.capacity_bytes());
}
