//! One member: an endpoint and a transport turned by the test.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::{Duration, Instant};

use forebay_cli::host::MonotonicClock;
use forebay_engine::arena::{Arena, Lease, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::placement::{Member, View};
use forebay_engine::ports::{
    Class, Clock, FetchStatus, FetchTag, PeerCore, PeerFetch, PeerId, Transport, TransportError,
    TransportEvent, TransportOp,
};
use forebay_engine::ring::Doorbell;
use forebay_tests::peer::{CHECKSUM, Responder, content};
use forebay_transport_tcp::{ControlIncoming, Endpoint, EndpointConfig, TcpTransport};
use tokio::runtime::Runtime;

pub const GROUP: &str = "a group";

/// One clock, so that all nodes of a process compare deadlines.
pub fn clock() -> MonotonicClock {
    static CLOCK: OnceLock<MonotonicClock> = OnceLock::new();
    *CLOCK.get_or_init(MonotonicClock::start)
}

pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    })
}

pub struct Node {
    pub me: PeerId,
    pub endpoint: Endpoint,
    pub transport: TcpTransport,
    pub control: ControlIncoming,
}

impl Node {
    pub fn new(id: u64) -> Self {
        Self::with(id, |_| {})
    }

    pub fn with(id: u64, change: impl FnOnce(&mut EndpointConfig)) -> Self {
        let me = PeerId(id);
        let mut config = EndpointConfig::new(me, GROUP, runtime().handle().clone());
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        change(&mut config);
        let (endpoint, control) = Endpoint::start(config).unwrap();
        // The test polls without pause: nothing need wake it.
        let doorbell = Doorbell::new(Waker::noop().clone());
        let transport = endpoint.transport(0, doorbell, clock()).unwrap();
        Self {
            me,
            endpoint,
            transport,
            control,
        }
    }

    pub fn member(&self) -> Member {
        member(self.me, self.endpoint.addresses())
    }
}

pub fn member(id: PeerId, addresses: &[SocketAddr]) -> Member {
    Member {
        id,
        weight: 1,
        cores: 1,
        addresses: addresses.into(),
    }
}

/// Tells every node of every node.
pub fn introduce(nodes: &[&Node]) {
    let view = View::new(nodes.iter().map(|node| node.member()).collect());
    for node in nodes {
        node.endpoint.set_members(&view);
    }
}

pub fn rest() {
    std::thread::sleep(Duration::from_micros(20));
}

/// A fetch as the engine sends it, and how it ended.
pub struct Asker {
    arena: Arena,
    tags: u64,
}

pub type Ended = (
    FetchTag,
    Result<FetchStatus, TransportError>,
    Lease,
    Vec<u32>,
);

impl Asker {
    pub fn new() -> Self {
        let arena = Arena::new(64 << 20).unwrap();
        Self { arena, tags: 0 }
    }

    pub fn fetch(&mut self, node: &mut Node, to: u64, len_bytes: usize) -> Option<FetchTag> {
        self.tags += 1;
        let tag = FetchTag(self.tags);
        let lease = self.arena.lease(len_bytes, Share::Demand).unwrap();
        let op = TransportOp::Fetch {
            tag,
            to: PeerCore {
                peer: PeerId(to),
                core: 0,
            },
            request: request(len_bytes),
            lease,
            deadline: clock().now() + Duration::from_secs(20),
        };
        node.transport.submit(op).ok().map(|()| tag)
    }

    /// A fetch from its start to its end, while `other` answers.
    pub fn ask(&mut self, node: &mut Node, other: &mut Node, len_bytes: usize) -> Ended {
        self.fetch(node, other.me.0, len_bytes)
            .expect("there is credit");
        let mut server = server();
        self.next(node, || {
            server.turn(&mut other.transport);
        })
    }

    /// Polls until a fetch of the node has ended; panics after ten seconds.
    pub fn next(&mut self, node: &mut Node, mut meanwhile: impl FnMut()) -> Ended {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(10) {
            meanwhile();
            match node.transport.poll() {
                Some(TransportEvent::Fetched {
                    tag,
                    lease,
                    result,
                    checksums,
                    ..
                }) => return (tag, result, lease, checksums),
                Some(other) => panic!("not a fetch's end: {other:?}"),
                None => rest(),
            }
        }
        panic!("no fetch has ended");
    }
}

pub fn request(len_bytes: usize) -> PeerFetch {
    PeerFetch {
        object: ObjectId(5),
        size_bytes: 1 << 40,
        offset: 0,
        len_bytes: len_bytes as u32,
        want_bytes: len_bytes as u32,
        class: Class::Demand,
        view: 1,
        cached_only: false,
        forwarded: false,
        verify: false,
    }
}

pub fn server() -> Responder {
    Responder::new(64 << 20).unwrap()
}

pub fn check((_, result, lease, checksums): &Ended) {
    assert_eq!(*result, Ok(FetchStatus::Bytes));
    let expected = content(lease.len());
    assert!(lease.bytes().iter().all(|byte| *byte == expected));
    assert!(checksums.iter().all(|sum| *sum == CHECKSUM));
}
