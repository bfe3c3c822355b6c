//! Two members' cores with two rails each, over real devices: `ci/softroce` runs it in its guest, which has two.

mod common;

use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use common::{MIB, WAIT_MAX};
use forebay_engine::arena::{Arena, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::ports::{
    Class, Clock, FetchStatus, FetchTag, Full, Payload, PeerCore, PeerFetch, PeerId, Time,
    Transport, TransportError, TransportEvent, TransportOp,
};
use forebay_engine::ring::Doorbell;
use forebay_engine::wire::hello::Key;
use forebay_transport_rdma::auto::{Linked, Readiness};
use forebay_transport_rdma::endpoint::{EndpointConfig, Invite, Told};
use forebay_transport_rdma::introduce::{Ends, Session};
use forebay_transport_rdma::inventory::{Marking, Rail};
use forebay_transport_rdma::{Endpoint, LinkedTransport, Verbs};

const ASKER: PeerId = PeerId(1);
const OWNER: PeerCore = PeerCore {
    peer: PeerId(2),
    core: 0,
};
const DEPTH: usize = 4;

#[derive(Clone, Copy)]
struct Monotonic(Instant);

impl Clock for Monotonic {
    fn now(&self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }
}

/// Nobody sleeps here.
struct Awake;

impl Wake for Awake {
    fn wake(self: Arc<Self>) {}
}

/// What asks the owner in the place of TCP, once there is one.
type Owner = Arc<Mutex<Option<Endpoint>>>;

fn invite(owner: &Owner) -> Invite {
    let owner = Arc::clone(owner);
    Box::new(move |ends: Ends, told: Told| {
        let session = || Session::new(&Key::new(b"the group's secret"), b"hello", b"welcome");
        let owner = owner.lock().unwrap();
        let offer = owner
            .as_ref()
            .ok_or("nobody is there".to_owned())
            .and_then(|owner| {
                let offer = owner.offer(session(), ends.asker, ends.acceptor.core);
                offer.map_err(|refused| refused.to_string())
            });
        told.tell(offer.map(|offer| (session(), offer)));
    })
}

fn rail(device: &str) -> Rail {
    let open = Verbs::load().expect("libibverbs").open(device);
    let address = open.expect("a device").port_address(1, 1);
    let ip = address.expect("an address").gid.ip();
    Rail {
        device: device.to_owned(),
        port: 1,
        gid_index: 1,
        gid: None,
        forces_gid: false,
        ip: ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
        node: None,
        marking: Marking {
            traffic_class: Some(106),
            service_level: Some(3),
        },
    }
}

struct Bench {
    clock: Monotonic,
    /// The asker's, then the owner's.
    endpoints: [Endpoint; 2],
    transports: [LinkedTransport; 2],
    arena: Arena,
    tags: u64,
    /// How long a fetch may take.
    patience: Duration,
    ended: Vec<Result<FetchStatus, TransportError>>,
}

impl Bench {
    fn new(rails: &[Rail]) -> Bench {
        let clock = Monotonic(Instant::now());
        let arena = Arena::new(32 * MIB).expect("an arena");
        let owner = Owner::default();
        let endpoints = [ASKER, OWNER.peer].map(|me| {
            let config = EndpointConfig {
                me,
                rails: rails.to_vec(),
                serves: me == OWNER.peer,
                cores: 1,
                credit_bytes: 8 << 20,
            };
            Endpoint::start(config, invite(&owner), clock).expect("an endpoint")
        });
        *owner.lock().unwrap() = Some(endpoints[1].clone());
        let transports = [0, 1].map(|end: usize| {
            let doorbell = Doorbell::new(Waker::from(Arc::new(Awake)));
            let made = endpoints[end].transport(0, &arena, doorbell, clock);
            made.expect("a transport")
        });
        Bench {
            clock,
            endpoints,
            transports,
            arena,
            tags: 0,
            patience: WAIT_MAX,
            ended: Vec::new(),
        }
    }

    /// Asks for a MiB.
    fn fetch(&mut self) {
        self.tags += 1;
        let lease = self.arena.lease(MIB, Share::Demand).expect("a lease");
        let op = TransportOp::Fetch {
            tag: FetchTag(self.tags),
            to: OWNER,
            request: PeerFetch {
                object: ObjectId(1),
                size_bytes: 1 << 30,
                offset: 0,
                len_bytes: MIB as u32,
                want_bytes: MIB as u32,
                class: Class::Demand,
                view: 1,
                cached_only: false,
                forwarded: false,
                verify: false,
            },
            lease,
            deadline: self.clock.now() + self.patience,
        };
        if let Err(Full(_)) = self.transports[0].submit(op) {
            panic!("no room for {DEPTH} MiB");
        }
    }

    fn turn(&mut self) {
        while let Some(event) = self.transports[0].poll() {
            if let TransportEvent::Fetched { lease, result, .. } = event {
                if result == Ok(FetchStatus::Bytes) {
                    assert!(lease.bytes().iter().all(|byte| *byte == 7));
                }
                self.ended.push(result);
            }
        }
        while let Some(event) = self.transports[1].poll() {
            if let TransportEvent::Request { handle, .. } = event {
                let mut bytes = self.arena.lease(MIB, Share::Serve).expect("a lease");
                bytes.bytes_mut().fill(7);
                let answer = TransportOp::Answer {
                    handle,
                    status: FetchStatus::Bytes,
                    payload: Some(Payload {
                        parts: vec![self.arena.freeze(bytes)],
                        checksums: vec![0; MIB / 4096],
                    }),
                };
                assert!(self.transports[1].submit(answer).is_ok());
            }
        }
        self.arena.reclaim();
        std::thread::yield_now();
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Bench) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < WAIT_MAX, "in vain: {what}");
            self.turn();
        }
    }

    /// Fetches so often, some at once; what came of it.
    fn fetches(&mut self, count: usize) -> Vec<Result<FetchStatus, TransportError>> {
        self.ended.clear();
        let mut asked = 0;
        self.until("fetches end", |bench| {
            while asked < count && asked - bench.ended.len() < DEPTH {
                bench.fetch();
                asked += 1;
            }
            bench.ended.len() == count
        });
        std::mem::take(&mut self.ended)
    }

    /// Connections that the asker has.
    fn connections(&self) -> usize {
        let links = self.endpoints[0].links();
        let links = links.iter().filter(|link| link.asks);
        links.map(|link| link.connections).sum()
    }
}

/// Packets that a device has sent.
fn sent(device: &str) -> u64 {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.trim().parse().expect("a number")
}

fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).status();
    assert!(done.expect("ip").success(), "ip {arguments:?}");
}

/// The interface below a device.
fn interface(device: &str) -> String {
    let path = format!("/sys/class/infiniband/{device}/parent");
    let name = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    name.trim().to_owned()
}

#[test]
fn much_is_asked_for_by_both_rails_and_by_one_when_the_other_breaks() {
    let second = std::env::var("FOREBAY_RDMA_SECOND_DEVICE");
    let (Ok(first), Ok(second)) = (std::env::var("FOREBAY_RDMA_DEVICE"), second) else {
        println!(
            "SKIPPED: FOREBAY_RDMA_DEVICE and FOREBAY_RDMA_SECOND_DEVICE name no two RDMA devices: rails were not tried here (ci/softroce does, in a guest)"
        );
        return;
    };
    let rails = [first.as_str(), &second].map(rail);
    let mut bench = Bench::new(&rails);
    bench.until("a connection", |bench| {
        bench.transports[0].prepare(OWNER) == Readiness::Ready
    });
    assert_eq!(bench.connections(), 1, "one is enough for little");
    let came = bench.fetches(1);
    assert_eq!(came, [Ok(FetchStatus::Bytes)]);

    bench.until("a connection by the other rail", |bench| {
        let came = bench.fetches(DEPTH);
        assert_eq!(came, [Ok(FetchStatus::Bytes); DEPTH]);
        bench.connections() == 2
    });
    let before = [&first, &second].map(|device| sent(device));
    let came = bench.fetches(16);
    assert_eq!(came, [Ok(FetchStatus::Bytes); 16]);
    let after = [&first, &second].map(|device| sent(device));
    let [one, other] = [0, 1].map(|at| after[at] - before[at]);
    // 16 MiB in packets of 4 KiB at most, half of them by each, but for chance.
    assert!(one > 1_000 && other > 1_000, "{one} and {other} packets");

    let interface = interface(&second);
    bench.patience = Duration::from_secs(3);
    ip(&["link", "set", &interface, "down"]);
    // What is under way by it ends, and is asked again by whoever has TCP; no other request suffers.
    bench.until("the other rail is left", |bench| {
        bench.fetches(DEPTH);
        bench.connections() == 1
    });
    assert_eq!(bench.transports[0].prepare(OWNER), Readiness::Ready);
    bench.patience = WAIT_MAX;
    let came = bench.fetches(8);
    assert_eq!(came, [Ok(FetchStatus::Bytes); 8]);
    ip(&["link", "set", &interface, "up"]);
}
