//! Peers that break the protocol, stop in the middle, or are slow.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_engine::limits::{CHUNK_BYTES, PEER_CREDIT_BYTES_MIN};
use forebay_engine::placement::View;
use forebay_engine::ports::{
    Class, FetchStatus, PeerFailure, PeerFetch, PeerId, Transport, TransportError, TransportEvent,
};
use forebay_engine::wire::header::{ANSWER_BYTES, Answer, Ask, REQUEST_BYTES, Request};
use forebay_tests::peer::content;

use crate::node::{Asker, Node, check, introduce, member, request, rest, server};
use crate::raw;

const CREDIT: u32 = PEER_CREDIT_BYTES_MIN as u32;

/// A node, and a listener that it takes for peer 2.
fn with_fake_peer() -> (Node, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = Node::new(1);
    let two = member(PeerId(2), &[listener.local_addr().unwrap()]);
    one.endpoint.set_members(&View::new(vec![two]));
    (one, listener)
}

fn read_request(stream: &mut TcpStream) -> Request {
    let mut head = [0; REQUEST_BYTES];
    stream.read_exact(&mut head).unwrap();
    Request::decode(&head).unwrap()
}

/// The whole answer to a fetch.
fn answer(request: &Request) -> Vec<u8> {
    let Ask::Fetch(fetch) = request.ask else {
        panic!("no fetch: {request:?}");
    };
    let len_bytes = fetch.len_bytes as usize;
    let pages = len_bytes.div_ceil(4_096);
    let header = Answer {
        tag: request.tag,
        status: FetchStatus::Bytes,
        len_bytes: fetch.len_bytes,
        checksums: pages as u16,
    };
    let mut bytes = header.encode().to_vec();
    bytes.extend([7, 0, 0, 0].repeat(pages));
    bytes.extend(vec![content(len_bytes); len_bytes]);
    bytes
}

/// What a fake peer does with the request that it got ends the fetch so, and soon.
fn fetch_ends(
    len_bytes: usize,
    peer: impl FnOnce(TcpStream, Request) + Send + 'static,
    expected: Result<FetchStatus, TransportError>,
) {
    let (mut one, listener) = with_fake_peer();
    let peer = std::thread::spawn(move || {
        let mut stream = raw::accept(&listener, 2, CREDIT);
        let request = read_request(&mut stream);
        peer(stream, request);
    });
    let mut asker = Asker::new();
    asker.fetch(&mut one, 2, len_bytes).unwrap();
    let ended = asker.next(&mut one, || {});
    assert_eq!(ended.1, expected);
    if expected == Ok(FetchStatus::Bytes) {
        check(&ended);
    }
    peer.join().unwrap();
}

#[test]
fn a_trickle_of_single_bytes_is_an_answer() {
    fetch_ends(
        4_096,
        |mut stream, request| {
            for byte in answer(&request).chunks(1) {
                stream.write_all(byte).unwrap();
            }
        },
        Ok(FetchStatus::Bytes),
    );
    fetch_ends(
        CHUNK_BYTES,
        |mut stream, request| {
            for (n, piece) in answer(&request).chunks(33_333).enumerate() {
                stream.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_millis(n as u64 % 3));
            }
        },
        Ok(FetchStatus::Bytes),
    );
}

#[test]
fn a_connection_that_ends_in_the_middle_is_unreachable() {
    for part in [1, ANSWER_BYTES, ANSWER_BYTES + 100, 100_000] {
        fetch_ends(
            CHUNK_BYTES,
            move |mut stream, request| stream.write_all(&answer(&request)[..part]).unwrap(),
            Err(TransportError::Unreachable),
        );
    }
}

#[test]
fn a_garbled_answer_is_a_protocol_violation() {
    let garblings: [fn(&mut Vec<u8>); 5] = [
        |bytes| bytes[0] = 99,
        // Another tag.
        |bytes| bytes[16] ^= 1,
        // Another length.
        |bytes| bytes[8] ^= 1,
        // Fewer checksums.
        |bytes| bytes[4] -= 1,
        |bytes| bytes[..ANSWER_BYTES].fill(0xff),
    ];
    for garble in garblings {
        fetch_ends(
            8_192,
            move |mut stream, request| {
                let mut bytes = answer(&request);
                garble(&mut bytes);
                stream.write_all(&bytes).unwrap();
                assert!(raw::is_closed(&mut stream));
            },
            Err(TransportError::Protocol),
        );
    }
}

/// A second answer to the same request, and one to a request that was never made.
#[test]
fn an_answer_too_many_closes_the_connection() {
    fetch_ends(
        4_096,
        |mut stream, request| {
            let bytes = answer(&request);
            stream.write_all(&[&bytes[..], &bytes].concat()).unwrap();
        },
        Ok(FetchStatus::Bytes),
    );
}

/// A node under test, and a proven connection to it by hand.
fn guest() -> (Node, TcpStream) {
    let two = Node::with(2, |config| config.credit_bytes = CREDIT);
    let mut stream = raw::connect(two.endpoint.addresses()[0]);
    let welcome = raw::dial(&mut stream, &raw::hello(1, 2, false), None).unwrap();
    assert_eq!((welcome.from, welcome.credit_bytes), (PeerId(2), CREDIT));
    (two, stream)
}

fn fetch(tag: u64, len_bytes: usize) -> [u8; REQUEST_BYTES] {
    let request = Request {
        tag,
        remaining_us: 1_000_000,
        ask: Ask::Fetch(request(len_bytes)),
    };
    request.encode()
}

/// Turns a node in the background of what a test does with its raw connection.
fn while_serving<T: Send>(mut node: Node, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let work = scope.spawn(work);
        let mut server = server();
        while !work.is_finished() {
            server.turn(&mut node.transport);
            rest();
        }
        work.join().unwrap()
    })
}

#[test]
fn requests_that_break_the_protocol_close_their_connection_alone() {
    let (two, mut good) = guest();
    let address = two.endpoint.addresses()[0];
    while_serving(two, move || {
        let garbled: [Vec<u8>; 3] = [
            vec![0xee; REQUEST_BYTES],
            // Beyond the granted credit, none of it answered before all is read.
            (0..600).flat_map(|tag| fetch(tag, 4_096)).collect(),
            fetch(1, CHUNK_BYTES + 1).to_vec(),
        ];
        for bytes in garbled {
            let mut bad = raw::connect(address);
            raw::dial(&mut bad, &raw::hello(3, 2, false), None).unwrap();
            let _ = bad.write_all(&bytes);
            assert!(raw::is_closed(&mut bad));
        }
        good.write_all(&fetch(1, 4_096)).unwrap();
        let mut bytes = vec![0; ANSWER_BYTES + 4 + 4_096];
        good.read_exact(&mut bytes).unwrap();
        let header = Answer::decode(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!((header.tag, header.len_bytes), (1, 4_096));
    });
}

/// A peer that asks and does not read is lent no more than its credit, and the others do not feel it.
#[test]
fn a_slow_receiver_holds_up_nobody() {
    let (mut two, mut slow) = guest();
    for tag in 0..2 {
        slow.write_all(&fetch(tag, CHUNK_BYTES)).unwrap();
    }
    let mut one = Node::new(1);
    introduce(&[&one, &two]);
    let mut asker = Asker::new();
    for _ in 0..20 {
        check(&asker.ask(&mut one, &mut two, 200_000));
    }
    // It reads after all: what it was owed comes.
    while_serving(two, move || {
        let mut bytes = vec![0; 2 * (ANSWER_BYTES + 256 * 4 + CHUNK_BYTES)];
        slow.read_exact(&mut bytes).unwrap();
    });
}

/// Answers to a reader leave before those to a warm-up that were ready earlier, but for what the socket holds.
#[test]
fn demand_overtakes_warm_up() {
    let mut two = Node::new(2);
    let mut stream = raw::connect(two.endpoint.addresses()[0]);
    raw::dial(&mut stream, &raw::hello(1, 2, false), None).unwrap();
    let warm = PeerFetch {
        class: Class::WarmUp,
        ..request(CHUNK_BYTES)
    };
    let ask = |tag, fetch| Request {
        tag,
        remaining_us: 1_000_000,
        ask: Ask::Fetch(fetch),
    };
    for tag in 0..15 {
        stream.write_all(&ask(tag, warm).encode()).unwrap();
    }
    let mut server = server();
    while server.served < 15 {
        server.turn(&mut two.transport);
    }
    stream.write_all(&ask(99, request(4_096)).encode()).unwrap();
    while server.served < 16 {
        server.turn(&mut two.transport);
    }
    let order = while_serving(two, move || {
        (0..16)
            .map(|_| {
                let mut head = [0; ANSWER_BYTES];
                stream.read_exact(&mut head).unwrap();
                let answer = Answer::decode(&head).unwrap();
                let rest = 4 * usize::from(answer.checksums) + answer.len_bytes as usize;
                stream.read_exact(&mut vec![0; rest]).unwrap();
                answer.tag
            })
            .collect::<Vec<_>>()
    });
    let at = order.iter().position(|tag| *tag == 99).unwrap();
    assert!(
        at < 14,
        "the reader's answer came as number {at}: {order:?}"
    );
}

/// An answer that is still here when its request is given up does not leave, and the short one does not stand behind
/// all others: else its credit stays in use, and the asker takes the silence for death.
#[test]
fn an_answer_that_nobody_waits_for_any_more_does_not_leave() {
    let mut two = Node::new(2);
    let mut stream = raw::connect(two.endpoint.addresses()[0]);
    raw::dial(&mut stream, &raw::hello(1, 2, false), None).unwrap();
    let ask = |tag, ask| Request {
        tag,
        remaining_us: 1_000_000,
        ask,
    };
    let warm = PeerFetch {
        class: Class::WarmUp,
        ..request(CHUNK_BYTES)
    };
    let last = 14;
    for tag in 0..=last {
        let asked = ask(tag, Ask::Fetch(warm));
        stream.write_all(&asked.encode()).unwrap();
    }
    let mut server = server();
    while server.served < 15 {
        server.turn(&mut two.transport);
    }
    // More than the socket holds wait now.
    stream.write_all(&ask(last, Ask::Cancel).encode()).unwrap();
    // What comes behind it on the connection is answered: so the cancel was seen.
    stream
        .write_all(&ask(99, Ask::Fetch(request(4_096))).encode())
        .unwrap();
    while server.served < 16 {
        server.turn(&mut two.transport);
    }
    let answers = while_serving(two, move || {
        (0..16)
            .map(|_| {
                let mut head = [0; ANSWER_BYTES];
                stream.read_exact(&mut head).unwrap();
                let answer = Answer::decode(&head).unwrap();
                let rest = 4 * usize::from(answer.checksums) + answer.len_bytes as usize;
                stream.read_exact(&mut vec![0; rest]).unwrap();
                (answer.tag, answer.status)
            })
            .collect::<Vec<_>>()
    });
    let short = FetchStatus::Failed(PeerFailure::Deadline);
    let at = answers.iter().position(|answer| *answer == (last, short));
    assert!(at.is_some_and(|at| at < 14), "{answers:?}");
}

/// A request that was given up is answered shortly, and its credit comes back.
#[test]
fn a_cancelled_request_gets_a_short_answer() {
    let (mut two, mut stream) = guest();
    let cancel = Request {
        tag: 5,
        remaining_us: 0,
        ask: Ask::Cancel,
    };
    stream.write_all(&fetch(5, CHUNK_BYTES)).unwrap();
    stream.write_all(&cancel.encode()).unwrap();
    let started = Instant::now();
    let mut server = server();
    let mut header = [0; ANSWER_BYTES];
    stream
        .set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    // Both are taken in one turn, so the cancel comes before the node answers; its answer ends all the same.
    std::thread::sleep(Duration::from_millis(50));
    loop {
        server.turn(&mut two.transport);
        if stream.read_exact(&mut header).is_ok() {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "no answer");
    }
    let answer = Answer::decode(&header).unwrap();
    assert_eq!((answer.tag, answer.len_bytes), (5, 0));
    assert!(matches!(answer.status, FetchStatus::Failed(_)));
}

/// The core that works on it is to hear that nobody waits.
#[test]
fn who_serves_hears_of_what_is_given_up_and_of_lost_connections() {
    let (mut two, mut stream) = guest();
    let mut next = || {
        let started = Instant::now();
        loop {
            match two.transport.poll() {
                Some(event) => return event,
                None => rest(),
            }
            assert!(started.elapsed() < Duration::from_secs(60), "no event");
        }
    };
    let cancel = Request {
        tag: 5,
        remaining_us: 0,
        ask: Ask::Cancel,
    };
    let mut handles = Vec::new();
    for tag in 5..8 {
        stream.write_all(&fetch(tag, 4_096)).unwrap();
        let event = next();
        let TransportEvent::Request { handle, .. } = event else {
            panic!("a request is expected, not {event:?}");
        };
        handles.push(handle);
    }
    for (number, given_up) in handles.into_iter().enumerate() {
        match number {
            0 => stream.write_all(&cancel.encode()).unwrap(),
            1 => stream.shutdown(std::net::Shutdown::Both).unwrap(),
            _ => {}
        }
        let event = next();
        let TransportEvent::GivenUp { handle } = event else {
            panic!("it was given up: {event:?}");
        };
        assert_eq!(handle, given_up);
    }
}

#[test]
fn credit_is_granted_and_comes_back() {
    let mut one = Node::new(1);
    let mut two = Node::with(2, |config| config.credit_bytes = CREDIT);
    introduce(&[&one, &two]);
    let mut asker = Asker::new();
    let mut server = server();
    for _ in 0..3 {
        let mut sent = 0;
        while asker.fetch(&mut one, 2, 65_536).is_some() {
            sent += 1;
        }
        assert_eq!(sent, CREDIT as usize / 65_536);
        for _ in 0..sent {
            check(&asker.next(&mut one, || {
                server.turn(&mut two.transport);
            }));
        }
    }
    let links = one.endpoint.links();
    assert_eq!(links.len(), 1);
    assert!(links[0].received_bytes > 3 * u64::from(CREDIT) && links[0].asks);
    assert!(two.endpoint.links()[0].sent_bytes > 3 * u64::from(CREDIT));
}

#[test]
fn sixty_four_peers_are_served_at_once() {
    let mut two = Node::new(100);
    let mut peers: Vec<Node> = (0..64).map(Node::new).collect();
    let mut askers: Vec<Asker> = (0..64).map(|_| Asker::new()).collect();
    for (peer, asker) in peers.iter_mut().zip(&mut askers) {
        introduce(&[peer, &two]);
        for _ in 0..3 {
            asker.fetch(peer, 100, 30_000).unwrap();
        }
    }
    let mut server = server();
    for (peer, asker) in peers.iter_mut().zip(&mut askers) {
        for _ in 0..3 {
            check(&asker.next(peer, || {
                server.turn(&mut two.transport);
            }));
        }
    }
    assert_eq!(server.served, 3 * 64);
}

/// Peers that send as fast as they can: the core gets its turn after a few MiB all the same.
#[test]
fn many_streams_leave_the_core_its_turns() {
    const PEERS: u64 = 24;
    const EACH: usize = 2;
    let mut one = Node::new(1);
    let listeners: Vec<_> = (0..PEERS)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let members = listeners.iter().zip(2..);
    let members = members.map(|(it, id)| member(PeerId(id), &[it.local_addr().unwrap()]));
    one.endpoint.set_members(&View::new(members.collect()));
    let peers: Vec<_> = listeners.into_iter().zip(2..).map(answering).collect();

    let mut asker = Asker::new();
    for peer in 2..PEERS + 2 {
        for _ in 0..EACH {
            asker.fetch(&mut one, peer, CHUNK_BYTES).unwrap();
        }
    }
    let (mut turns, mut most) = (0, 0);
    let (mut left, started) = (PEERS as usize * EACH, Instant::now());
    while left > 0 {
        assert!(started.elapsed() < Duration::from_secs(20), "{left} left");
        // Time for the sockets to fill: what is there is more than one turn takes.
        std::thread::sleep(Duration::from_millis(20));
        let mut ended = 0;
        while let Some(event) = one.transport.poll() {
            assert!(matches!(
                event,
                TransportEvent::Fetched { result: Ok(_), .. }
            ));
            ended += 1;
        }
        (turns, most, left) = (turns + 1, most.max(ended), left - ended);
    }
    assert!(most <= 8, "{most} MiB in one of {turns} turns");
    for peer in peers {
        peer.join().unwrap();
    }
}

/// A fake peer that answers two requests.
fn answering((listener, id): (TcpListener, u64)) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut stream = raw::accept(&listener, id, CREDIT);
        let mut head = [0; REQUEST_BYTES];
        let mut asked = Vec::new();
        while asked.len() < 2 {
            stream.read_exact(&mut head).unwrap();
            asked.push(Request::decode(&head).unwrap());
        }
        for request in &asked {
            stream.write_all(&answer(request)).unwrap();
        }
    })
}

/// The peer's process is killed while its answers are on their way: what had come is right, the rest fails at once.
#[test]
fn a_peer_killed_in_mid_body_is_noticed_at_once() {
    let mut peer = Command::new(env!("CARGO_BIN_EXE_forebay-tcp-peer"))
        .arg("2")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(peer.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line.trim().parse().unwrap();
    let mut one = Node::new(1);
    one.endpoint
        .set_members(&View::new(vec![member(PeerId(2), &[address])]));
    let mut asker = Asker::new();
    asker.fetch(&mut one, 2, 4_096).unwrap();
    assert_eq!(asker.next(&mut one, || {}).1, Ok(FetchStatus::Bytes));
    // More than the socket's buffers hold; nobody reads until the kill.
    let mut sent = 0;
    while asker.fetch(&mut one, 2, CHUNK_BYTES).is_some() {
        sent += 1;
    }
    assert_eq!(sent, 16);
    forebay_engine::ports::Transport::poll(&mut one.transport);
    std::thread::sleep(Duration::from_millis(300));
    peer.kill().unwrap();
    let killed = Instant::now();
    let (mut whole, mut lost) = (0, 0);
    for _ in 0..sent {
        match asker.next(&mut one, || {}).1 {
            Ok(FetchStatus::Bytes) => whole += 1,
            Err(TransportError::Unreachable) => lost += 1,
            other => panic!("a fetch ended as {other:?}"),
        }
    }
    assert!(lost > 0, "{whole} answers fitted into the socket");
    assert!(killed.elapsed() < Duration::from_secs(2));
    peer.wait().unwrap();
}
