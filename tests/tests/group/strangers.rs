//! Who is not of the group: strangers, members of another version, holders of another secret. Each is told so, counted
//! in `status`, named in the log, and holds up nobody.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use forebay_engine::ports::PeerId;
use forebay_engine::wire::hello::{Hello, NONCE_BYTES, Purpose, Refusal, Welcome};
use forebay_membership::gossip::{Group, GroupConfig};
use forebay_membership::record::Record;
use forebay_membership::views::Views;
use serde_json::Value;

use super::cluster::{Cluster, GROUP, put_objects, read_objects, write_secret};
use super::support::{eventually, have_fuse};

const MIB: usize = 1 << 20;
/// A few stripes, and so many small files that every member owns some.
const LENGTHS: [usize; 24] = {
    let mut lengths = [64 << 10; 24];
    lengths[0] = 4096;
    lengths[1] = MIB;
    lengths[2] = 3 * MIB;
    lengths[3] = 4 * MIB - 1;
    lengths[4] = 12 * MIB;
    lengths
};

/// Connections that the strangers hold at a time: more than a member lets anyone have.
const STRANGERS: usize = 300;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// Somebody else on this machine, from another address than the members'.
fn stranger(runtime: &tokio::runtime::Runtime, to: SocketAddr) -> TcpStream {
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.77:0".parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

/// Everything until the other side has closed.
fn last_words(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => None,
        _ => Some(said),
    }
}

fn refused(cluster: &Cluster, name: &str, why: Refusal) -> u64 {
    let status = cluster.json(name);
    status["group"]["connections_refused"][why.to_string()]
        .as_u64()
        .unwrap_or(0)
}

fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
}

#[test]
fn strangers_that_say_nothing_rubbish_or_too_much_hold_up_nobody() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve_all();
    let path = cluster.mount_client(&[]);
    let member: SocketAddr = format!("{}:7440", cluster.address("a")).parse().unwrap();
    let status = cluster.status("a").unwrap();
    let id = u64::from_str_radix(&status.group.unwrap().id, 16).unwrap();
    let before = open_files(status.pid);
    let runtime = runtime();

    let mut crowd: Vec<TcpStream> = (0..STRANGERS).map(|_| stranger(&runtime, member)).collect();
    for (n, stream) in crowd.iter_mut().enumerate().filter(|(n, _)| n % 3 > 0) {
        let rubbish: &[u8] = if n % 3 == 1 {
            b"GET / HTTP/1.1\r\n\r\n"
        } else {
            &[0xa5; 4096]
        };
        let _ = stream.write_all(rubbish);
    }
    let gossip = UdpSocket::bind("127.0.0.77:0").unwrap();
    for n in 0..1_000 {
        let _ = gossip.send_to(&[n as u8; 1_000][..n], member);
    }
    let began = Instant::now();
    read_objects(&path, "o", &LENGTHS);
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "it took {:?}",
        began.elapsed()
    );
    let cost = cluster.place.server.counters().body_bytes;
    assert!(cost as f64 <= 1.01 * total as f64, "{cost} of {total}");
    for stream in &mut crowd {
        assert!(last_words(stream).is_some(), "a stranger stays");
    }
    drop(crowd);
    assert!(refused(&cluster, "serve:g/a", Refusal::Busy) > 0);
    assert!(refused(&cluster, "serve:g/a", Refusal::Garbled) >= 64);

    // One of another release, and one of another group; what a hello has beside that is right.
    let hello = |group: &str| Hello {
        purpose: Purpose::Core {
            from_core: 0,
            to_core: 0,
        },
        from: PeerId(7),
        to: Some(PeerId(id)),
        has_secret: false,
        group: group.into(),
        nonce: [3; NONCE_BYTES],
    };
    let mut newer = hello(GROUP).encode();
    newer[8] += 1;
    for (hello, why) in [
        (newer, Refusal::Version),
        (hello("other").encode(), Refusal::Group),
    ] {
        let mut stream = stranger(&runtime, member);
        stream.write_all(&hello).unwrap();
        assert_eq!(last_words(&mut stream), Some(Welcome::refuse(why)));
        assert_eq!(refused(&cluster, "serve:g/a", why), 1);
        let said = format!("connection refused: {why}");
        eventually("the log tells", || cluster.place.log().contains(&said));
    }
    let group = &cluster.json("serve:g/a")["group"];
    assert!(
        group["gossip_dropped"]["foreign"].as_u64() > Some(0),
        "{group}"
    );
    cluster.until_members(&["a", "b"]);
    eventually("their descriptors are closed", || {
        open_files(status.pid) <= before + 8
    });
    cluster.unmount("m");
}

/// A member that gossips as this release does and refuses every connection, as one of the next release would: it owns
/// a third of the slots.
struct Newer {
    _gossip: Group,
    runtime: tokio::runtime::Runtime,
}

impl Newer {
    fn join(cluster: &Cluster, name: &str) -> Self {
        let address: SocketAddr = format!("{}:7440", cluster.address(name)).parse().unwrap();
        let listener = TcpListener::bind(address).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut refusal = Welcome::refuse(Refusal::Version);
                refusal[8] += 1;
                let _ = stream.and_then(|mut stream| stream.write_all(&refusal));
            }
        });
        let config = GroupConfig {
            group: GROUP.into(),
            secret: None,
            record: Record {
                node: name.into(),
                weight: 1,
                cores: 1,
                addresses: vec![address],
                version: "99.0".into(),
                endpoint: String::new(),
            },
            seeds: vec![cluster.address("a").parse().unwrap()],
            port_default: 7440,
            networks: Vec::new(),
        };
        let runtime = runtime();
        let socket = UdpSocket::bind(address).unwrap();
        let joined = runtime.block_on(Group::join(config, socket, Views::default()));
        Self {
            _gossip: joined.unwrap(),
            runtime,
        }
    }
}

#[test]
fn a_member_of_another_version_is_named_and_stood_in_for() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve("a", &[]);
    cluster.serve("b", &[]);
    let newer = Newer::join(&cluster, "c");
    cluster.until_members_of(&["a", "b"], &["a", "b", "c"]);
    for round in 0..2 {
        let path = cluster.mount_client(&[]);
        let began = Instant::now();
        read_objects(&path, "o", &LENGTHS);
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "it took {:?}",
            began.elapsed()
        );
        let cost = cluster.place.server.counters().body_bytes;
        assert!(
            cost as f64 <= 1.01 * total as f64,
            "round {round}: {cost} of {total}"
        );
        let status = cluster.json("m");
        let links = status["group"]["links"].as_array().unwrap();
        let link = links.iter().find(|link| link["peer"] == "c").unwrap();
        assert_eq!(link["state"], "down");
        let why = link["last_error"].as_str().unwrap();
        assert!(why.contains(&Refusal::Version.to_string()), "{why}");
        assert!(refused(&cluster, "m", Refusal::Version) > 0);
        cluster.unmount("m");
    }
    let said = format!("connection refused: {}", Refusal::Version);
    assert!(cluster.place.log().contains(&said));
    let text = cluster.place.run(&["status", "serve:g/a"]).ok().text();
    assert!(text.contains("99.0"), "the version is shown:\n{text}");

    newer.runtime.shutdown_background();
    drop(newer._gossip);
    cluster.until_members_of(&["a", "b"], &["a", "b"]);
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    cluster.unmount("m");
}

/// It gets nothing from the group and gives nothing to it, reads by itself, and is told why.
#[test]
fn a_client_with_another_secret_reads_by_itself_and_is_told_why() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    let [right, wrong] = ["right", "wrong"].map(|text| write_secret(&cluster.place, text, text));
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    for name in ["a", "b"] {
        cluster.serve(name, &["--group-secret-file", &right]);
    }
    cluster.until_members(&["a", "b"]);
    for (n, secret) in [wrong, right].iter().enumerate() {
        let path = cluster.mount_client(&["--group-secret-file", secret]);
        read_objects(&path, "o", &LENGTHS);
        let cost = cluster.place.server.counters().body_bytes;
        let most = (n as f64 + 1.01) * total as f64;
        assert!(
            cost >= (n as u64 + 1) * total && cost as f64 <= most,
            "{cost} of {total}"
        );
        let error: Value = cluster.json("m")["group"]["asking_error"].clone();
        match n {
            0 => assert!(
                error
                    .as_str()
                    .is_some_and(|why| why.contains(&Refusal::Secret.to_string())),
                "{error}"
            ),
            _ => assert_eq!(error, Value::Null),
        }
        cluster.unmount("m");
    }
    let counts = ["serve:g/a", "serve:g/b"].map(|name| refused(&cluster, name, Refusal::Secret));
    assert!(counts.iter().sum::<u64>() > 0);
    assert!(
        cluster
            .place
            .log()
            .contains(&format!("connection refused: {}", Refusal::Secret))
    );
}
