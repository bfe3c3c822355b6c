//! One member: an endpoint and a transport turned by the test.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::Duration;

use forebay_cli::host::MonotonicClock;
use forebay_engine::placement::{Member, View};
use forebay_engine::ports::PeerId;
use forebay_engine::ring::Doorbell;
use forebay_transport_tcp::{Endpoint, EndpointConfig, TcpTransport};
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
}

impl Node {
    pub fn with(id: u64, change: impl FnOnce(&mut EndpointConfig)) -> Self {
        let me = PeerId(id);
        let mut config = EndpointConfig::new(me, GROUP, runtime().handle().clone());
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        change(&mut config);
        let (endpoint, _) = Endpoint::start(config).unwrap();
        // The test polls without pause: nothing need wake it.
        let doorbell = Doorbell::new(Waker::noop().clone());
        let transport = endpoint.transport(0, doorbell, clock()).unwrap();
        Self {
            me,
            endpoint,
            transport,
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
