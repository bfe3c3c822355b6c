//! Who is not let in, and how soon that is known.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use forebay_engine::placement::View;
use forebay_engine::ports::{PeerCore, PeerId, TransportError};
use forebay_engine::wire::hello::{Key, PREFIX_BYTES, Purpose, Refusal, Welcome};
use forebay_transport_tcp::{DialError, EndpointConfig, LinkState};

use crate::node::{Asker, Node, check, introduce, member, rest, runtime, server};
use crate::raw;

/// Two nodes, configured differently: the first one's fetch fails soon, and both know why.
fn refused(
    first: impl FnOnce(&mut EndpointConfig),
    second: impl FnOnce(&mut EndpointConfig),
    reason: Refusal,
) {
    let (mut one, two) = (Node::with(1, first), Node::with(2, second));
    introduce(&[&one, &two]);
    let mut asker = Asker::new();
    let started = Instant::now();
    asker.fetch(&mut one, 2, 4_096).unwrap();
    let (_, result, ..) = asker.next(&mut one, || {});
    assert_eq!(result.unwrap_err(), TransportError::Unreachable);
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "a refusal took until {:?}",
        started.elapsed()
    );
    // Asked again during the pause, it fails at once.
    let started = Instant::now();
    asker.fetch(&mut one, 2, 4_096).unwrap();
    assert!(asker.next(&mut one, || {}).1.is_err());
    assert!(started.elapsed() < Duration::from_secs(1));

    assert!(count(&one, reason) > 0, "{:?}", one.endpoint.refusals());
    if reason == Refusal::Secret {
        let deadline = Instant::now() + Duration::from_secs(5);
        while count(&two, reason) == 0 {
            assert!(Instant::now() < deadline, "only one side knows");
            rest();
        }
    }
    let link = &one.endpoint.links()[0];
    let said = link.last_error.clone().unwrap();
    assert!(said.contains(&reason.to_string()), "{said}");
    assert_eq!((link.state, link.peer), (LinkState::Down, PeerId(2)));
}

fn count(node: &Node, reason: Refusal) -> u64 {
    let refusals = node.endpoint.refusals();
    let found = refusals.iter().find(|(refusal, _)| *refusal == reason);
    found.map_or(0, |(_, count)| *count)
}

fn secret(text: &str) -> impl FnOnce(&mut EndpointConfig) {
    let key = Key::new(text.as_bytes());
    move |config| config.secret = Some(key)
}

#[test]
fn another_secret_is_refused() {
    refused(secret("a"), secret("b"), Refusal::Secret);
    refused(secret("a"), |_| {}, Refusal::Secret);
    refused(|_| {}, secret("b"), Refusal::Secret);
}

#[test]
fn another_group_is_refused() {
    refused(|_| {}, |config| config.group = "b".into(), Refusal::Group);
}

#[test]
fn a_core_that_is_not_there_is_refused() {
    let mut one = Node::new(1);
    let two = Node::with(2, |config| config.cores = 2);
    introduce(&[&one, &two]);
    // Core 0 is there until its transport goes.
    let Node {
        endpoint: _endpoint,
        transport,
        ..
    } = two;
    drop(transport);
    let mut asker = Asker::new();
    asker.fetch(&mut one, 2, 4_096).unwrap();
    let (_, result, ..) = asker.next(&mut one, || {});
    assert_eq!(result.unwrap_err(), TransportError::Unreachable);
    assert_eq!(count(&one, Refusal::Core), 1);
}

#[test]
fn an_address_that_another_node_took_over_is_refused() {
    let (mut one, two) = (Node::new(1), Node::new(2));
    let stale = member(PeerId(9), two.endpoint.addresses());
    one.endpoint.set_members(&View::new(vec![stale]));
    let mut asker = Asker::new();
    asker.fetch(&mut one, 9, 4_096).unwrap();
    let (_, result, ..) = asker.next(&mut one, || {});
    assert_eq!(result.unwrap_err(), TransportError::Unreachable);
    assert_eq!(
        (
            count(&one, Refusal::Identity),
            count(&two, Refusal::Identity)
        ),
        (1, 1)
    );
}

#[test]
fn who_is_introduced_for_rdma_is_proven_and_both_know_what_with() {
    let dialled = |from: &Node, to: u64, core| {
        let peer = PeerId(to);
        let asked = from.endpoint.introduce(0, PeerCore { peer, core });
        runtime().block_on(asked)
    };
    let refusal = |from: &Node, to, core| match dialled(from, to, core) {
        Err(error) => error.refusal(),
        Ok(introduction) => panic!("let in: {introduction:?}"),
    };
    // Without a secret nobody is to write into memory.
    let (open, other) = (Node::new(1), Node::new(2));
    introduce(&[&open, &other]);
    let _taken = other.endpoint.introductions();
    assert_eq!(refusal(&open, 2, 0), Some(Refusal::NoSecret));

    let (one, two) = (Node::with(3, secret("a")), Node::with(4, secret("a")));
    introduce(&[&one, &two]);
    assert_eq!(refusal(&one, 4, 0), Some(Refusal::NoRdma));
    let mut taken = two.endpoint.introductions().expect("the first to ask");
    assert!(two.endpoint.introductions().is_none());
    assert_eq!(refusal(&one, 4, 7), Some(Refusal::Core));
    let asker = dialled(&one, 4, 0).expect("an introduction");
    let asked = runtime().block_on(taken.next()).expect("the same");
    assert_eq!((asker.core, asker.peer.peer), (0, PeerId(4)));
    assert_eq!((asked.core, asked.peer.peer), (0, PeerId(3)));
    assert_eq!(asker.hello, asked.hello);
    assert_eq!(asker.welcome, asked.welcome);
    // Whose it was is gone: nobody is left hanging.
    drop(taken);
    let late = dialled(&one, 4, 0);
    assert!(late.is_ok(), "it is let in, and hears nothing: {late:?}");
    let stranger = Node::with(5, secret("b"));
    introduce(&[&two, &stranger]);
    assert_eq!(refusal(&stranger, 4, 0), Some(Refusal::Secret));
}

/// An address of this machine that is not on the loopback interface.
fn outside() -> Option<SocketAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback()).then(|| SocketAddr::new(ip, 0))
}

#[test]
fn without_a_secret_nobody_off_loopback_is_talked_to() {
    let Some(outside) = outside() else {
        println!("SKIPPED: this machine has no address beside the loopback one");
        return;
    };
    let listen = |config: &mut EndpointConfig| config.listen = vec![outside];
    refused(|_| {}, listen, Refusal::NoSecret);
    // The listening side refuses too, whoever asks.
    let two = Node::with(2, listen);
    let mut stream = raw::connect(two.endpoint.addresses()[0]);
    let hello = raw::hello(1, 2, false);
    assert_eq!(raw::dial(&mut stream, &hello, None), Err(Refusal::NoSecret));
    assert_eq!(count(&two, Refusal::NoSecret), 1);
    assert!(
        Refusal::NoSecret
            .to_string()
            .contains("--group-secret-file")
    );

    // With one it works from there.
    let outside_too = |config: &mut EndpointConfig| {
        listen(config);
        config.secret = Some(Key::new(b"s"));
    };
    let (mut one, mut two) = (Node::with(1, outside_too), Node::with(2, outside_too));
    introduce(&[&one, &two]);
    check(&Asker::new().ask(&mut one, &mut two, 70_000));
}

#[test]
fn another_version_is_refused_and_told_so() {
    let two = Node::new(2);
    let mut stream = raw::connect(two.endpoint.addresses()[0]);
    let mut hello = raw::hello(1, 2, false).encode();
    hello[8] += 1;
    stream.write_all(&hello).unwrap();
    let expected = Welcome::refuse(Refusal::Version);
    let mut answer = vec![0; expected.len()];
    std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
    assert_eq!(answer, expected);
    assert!(raw::is_closed(&mut stream));
    assert_eq!(count(&two, Refusal::Version), 1);

    // As a peer of another version answers us.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = Node::new(1);
    let other = member(PeerId(3), &[listener.local_addr().unwrap()]);
    one.endpoint.set_members(&View::new(vec![other]));
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut refusal = Welcome::refuse(Refusal::Version);
        refusal[8] += 1;
        stream.write_all(&refusal).unwrap();
        raw::is_closed(&mut stream)
    });
    let mut asker = Asker::new();
    asker.fetch(&mut one, 3, 4_096).unwrap();
    let (_, result, ..) = asker.next(&mut one, || {});
    assert_eq!(result.unwrap_err(), TransportError::Unreachable);
    assert_eq!(count(&one, Refusal::Version), 1);
    assert!(peer.join().unwrap());
}

#[test]
fn a_proof_by_another_secret_opens_nothing() {
    let two = Node::with(2, secret("s"));
    let address = two.endpoint.addresses()[0];
    let hello = raw::hello(1, 2, true);
    for wrong in [None, Some(b"t".as_slice())] {
        let mut stream = raw::connect(address);
        let verdict = raw::dial(&mut stream, &hello, wrong);
        assert_eq!(verdict, Err(Refusal::Secret));
        assert!(raw::is_closed(&mut stream));
    }
    let mut stream = raw::connect(address);
    raw::dial(&mut stream, &hello, Some(b"s")).unwrap();
    assert_eq!(count(&two, Refusal::Secret), 2);
}

/// Garbage, half a hello, and strangers that say nothing or little: they are thrown out, and members from
/// elsewhere get in all the while.
#[test]
fn strangers_are_thrown_out_and_keep_nobody_out() {
    let mut two = Node::new(2);
    let address = two.endpoint.addresses()[0];
    for garbage in [
        vec![0xa5; 4_096],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        [
            &raw::hello(1, 2, false).encode()[..PREFIX_BYTES],
            &[0xff; 500],
        ]
        .concat(),
    ] {
        let mut stream = raw::connect(address);
        let _ = stream.write_all(&garbage);
        assert!(raw::is_closed(&mut stream), "{:?}", &garbage[..4]);
    }
    let silent: Vec<_> = (0..300).map(|n| stranger(address, n)).collect();
    let mut one = Node::new(1);
    introduce(&[&one, &two]);
    check(&Asker::new().ask(&mut one, &mut two, 4_096));
    for mut stream in silent.into_iter().flatten() {
        assert!(raw::is_closed(&mut stream), "a silent stranger stays");
    }
    assert!(count(&two, Refusal::Busy) > 0 && count(&two, Refusal::Garbled) >= 64 + 3);
}

/// From another address of this host; says half of a hello.
fn stranger(to: SocketAddr, number: usize) -> Option<std::net::TcpStream> {
    let stream = runtime().block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.77:0".parse().unwrap()).unwrap();
        socket.connect(to).await
    });
    let mut stream = stream.unwrap().into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let hello = raw::hello(number as u64 + 10, 2, false).encode();
    let _ = stream.write_all(&hello[..number % hello.len()]);
    Some(stream)
}

#[test]
fn control_connections_are_proven_and_handed_over() {
    let key = || secret("s");
    let (one, mut two) = (Node::with(1, key()), Node::with(2, key()));
    let address = two.endpoint.addresses()[0];
    runtime().block_on(async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (peer, mut here) = one.endpoint.connect_control(address).await.unwrap();
        assert_eq!(peer, PeerId(2));
        let (peer, mut there) = two.control.next().await.unwrap();
        assert_eq!(peer, PeerId(1));
        here.write_all(b"view?").await.unwrap();
        let mut question = [0; 5];
        there.read_exact(&mut question).await.unwrap();
        assert_eq!(&question, b"view?");

        let three = Node::with(3, secret("other"));
        let error = three.endpoint.connect_control(address).await.unwrap_err();
        assert_eq!(error.refusal(), Some(Refusal::Secret), "{error}");
        let nobody = "127.0.0.1:1".parse().unwrap();
        let error = three.endpoint.connect_control(nobody).await.unwrap_err();
        assert!(matches!(error, DialError::Connect { .. }), "{error}");
    });
    let mut stream = raw::connect(address);
    let mut hello = raw::hello(1, 2, true);
    hello.purpose = Purpose::Control;
    assert_eq!(
        raw::dial(&mut stream, &hello, Some(b"x")),
        Err(Refusal::Secret)
    );
}

#[test]
fn a_peer_that_comes_back_is_asked_again() {
    let (mut one, two) = (Node::new(1), Node::new(2));
    introduce(&[&one, &two]);
    let addresses = two.endpoint.addresses().to_vec();
    drop(two);
    let mut asker = Asker::new();
    asker.fetch(&mut one, 2, 4_096).unwrap();
    let (_, result, ..) = asker.next(&mut one, || {});
    assert_eq!(result.unwrap_err(), TransportError::Unreachable);

    let mut two = Node::with(2, |config| config.listen = addresses);
    let mut server = server();
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < Duration::from_secs(10));
        asker.fetch(&mut one, 2, 4_096).unwrap();
        let ended = asker.next(&mut one, || {
            server.turn(&mut two.transport);
        });
        if ended.1.is_ok() {
            check(&ended);
            break;
        }
        rest();
    }
}
