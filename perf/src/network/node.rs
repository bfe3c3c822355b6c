//! A node of a group of two: who asks, or the peer that answers from memory, over TCP or RDMA.
//!
//! The peer is a process of its own: `forebay-perf peer`, which says where it listens.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_cli::group::rdma::introduced;
use forebay_cli::host::MonotonicClock;
use forebay_engine::arena::Arena;
use forebay_engine::placement::{Member, View};
use forebay_engine::ports::{PeerCore, PeerId, Transport};
use forebay_tests::peer::{Responder, Seat};
use forebay_transport_rdma::auto::{Linked, Readiness};
use forebay_transport_rdma::{EndpointConfig as RdmaConfig, LinkedTransport};
use forebay_transport_tcp::limits::CREDIT_BYTES_DEFAULT;
use forebay_transport_tcp::{Endpoint, EndpointConfig, Key, TcpTransport};
use tokio::runtime::Runtime;

use super::Killed;
use super::port::Port;
use crate::cpus;

const GROUP: &str = "figures";
const SECRET: &[u8] = b"that of the figures' group";
const ASKER: PeerId = PeerId(1);
const PEER: PeerId = PeerId(2);
/// The peer's only core.
pub(crate) const TO: PeerCore = PeerCore {
    peer: PEER,
    core: 0,
};
const MEMORY_BYTES: usize = 64 << 20;
/// The first connection over RDMA must be there after so long.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// When a core's thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Poll {
    /// After 50 us without work, as production's cores do where they have processors of their own.
    Auto,
    /// Never: `--poll always`.
    Always,
}

impl Poll {
    pub(crate) fn spin(self) -> Duration {
        match self {
            Poll::Auto => Duration::from_micros(50),
            Poll::Always => Duration::MAX,
        }
    }
}

/// How the two reach each other.
#[derive(Clone, Debug)]
pub struct Way {
    /// Where the peer listens for TCP; also RDMA begins there.
    pub listen: IpAddr,
    /// Blocks travel over this port. None: over TCP.
    pub rdma: Option<Port>,
    /// The network namespace in which the peer runs; none: the asker's.
    pub namespace: Option<&'static str>,
    /// When their threads sleep.
    pub poll: Poll,
    /// The processors of the peer and of who asks, as production gives each core one; none: wherever the kernel puts them.
    pub cpus: Option<[usize; 2]>,
}

/// A node's ends of the network, and what keeps them going.
struct Node {
    tcp: Endpoint,
    rdma: Option<forebay_transport_rdma::Endpoint>,
    _runtime: Runtime,
}

impl Node {
    /// With `listen`, one that answers.
    fn start(me: PeerId, listen: Option<IpAddr>, port: Option<&Port>) -> Result<Node> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let key = Key::new(SECRET);
        let mut config = EndpointConfig::new(me, GROUP, runtime.handle().clone());
        config.secret = Some(key.clone());
        config.listen = listen
            .map(|ip| SocketAddr::new(ip, 0))
            .into_iter()
            .collect();
        let (tcp, _control) = Endpoint::start(config)?;
        let rdma = |port: &Port| {
            let config = RdmaConfig {
                me,
                rails: vec![port.rail()],
                serves: listen.is_some(),
                cores: 1,
                credit_bytes: CREDIT_BYTES_DEFAULT,
            };
            anyhow::Ok(introduced(config, &tcp, &key, runtime.handle())?)
        };
        Ok(Node {
            rdma: port.map(rdma).transpose()?,
            tcp,
            _runtime: runtime,
        })
    }

    /// Its only peer listens there.
    fn knows(&self, address: SocketAddr) {
        self.tcp.set_members(&View::new(vec![Member {
            id: PEER,
            weight: 1,
            cores: 1,
            addresses: [address].into(),
        }]));
    }

    fn asking(&self) -> Result<Asking<TcpTransport>> {
        let (mut seat, clock) = (Seat::new()?, MonotonicClock::start());
        Ok(Asking {
            transport: self.tcp(&mut seat, clock)?,
            seat,
            arena: Arena::new(MEMORY_BYTES)?,
            clock,
        })
    }

    fn tcp(&self, seat: &mut Seat, clock: MonotonicClock) -> Result<TcpTransport> {
        let transport = self.tcp.transport(0, seat.doorbell.clone(), clock)?;
        seat.parker.watch(transport.fd().try_clone_to_owned()?);
        Ok(transport)
    }

    fn rdma(
        &self,
        endpoint: &forebay_transport_rdma::Endpoint,
        seat: &mut Seat,
        arena: &Arena,
        clock: MonotonicClock,
    ) -> Result<LinkedTransport> {
        let transport = endpoint.transport(0, arena, seat.doorbell.clone(), clock)?;
        let fd: OwnedFd = transport.fd().try_clone_to_owned()?;
        seat.parker.watch(fd);
        Ok(transport)
    }
}

/// The peer: answers until it is killed, by TCP and, with a port, by RDMA alone. Prints where it listens.
///
/// # Errors
/// When it cannot start.
pub fn peer(listen: IpAddr, port: Option<&Port>, poll: Poll, cpu: Option<usize>) -> Result<()> {
    let node = Node::start(PEER, Some(listen), port)?;
    let mut seat = Seat::new()?;
    let arena = Arena::new(MEMORY_BYTES)?;
    let clock = MonotonicClock::start();
    if let Some(cpu) = cpu {
        cpus::pin(cpu)?;
    }
    let address = node.tcp.addresses().first().copied();
    let said = || println!("{}", address.map_or_else(String::new, |at| at.to_string()));
    match &node.rdma {
        Some(endpoint) => {
            // Without it no such core is known over TCP, where peers are introduced; nothing is asked of it.
            let _idle = node.tcp(&mut Seat::new()?, clock)?;
            let transport = node.rdma(endpoint, &mut seat, &arena, clock)?;
            said();
            answer(seat, transport, arena, poll)
        }
        None => {
            let transport = node.tcp(&mut seat, clock)?;
            said();
            answer(seat, transport, arena, poll)
        }
    }
}

fn answer(mut seat: Seat, mut transport: impl Transport, arena: Arena, poll: Poll) -> ! {
    let mut responder = Responder::over(arena);
    loop {
        seat.turn(poll.spin(), &mut || responder.turn(&mut transport));
    }
}

/// Both ends of a TCP connection in this process, for one thread to turn.
pub(crate) struct Couple {
    asker: Node,
    peer: Node,
}

impl Couple {
    /// Two nodes on loopback, of which the first knows the second.
    pub fn start() -> Result<Couple> {
        let peer = Node::start(PEER, Some(Ipv4Addr::LOCALHOST.into()), None)?;
        let address = peer.tcp.addresses().first().copied();
        let asker = Node::start(ASKER, None, None)?;
        asker.knows(address.context("no listener")?);
        Ok(Couple { asker, peer })
    }

    /// Who asks.
    pub fn asking(&self) -> Result<Asking<TcpTransport>> {
        self.asker.asking()
    }

    /// Who answers, and its memory.
    pub fn answering(&self) -> Result<(TcpTransport, Arena)> {
        let transport = self.peer.tcp(&mut Seat::new()?, MonotonicClock::start())?;
        Ok((transport, Arena::new(MEMORY_BYTES)?))
    }
}

/// A peer that runs, and this process's way to it.
pub(crate) struct Pair {
    peer: Killed,
    node: Node,
}

/// What whoever asks works with, on one thread.
pub(crate) struct Asking<T> {
    pub seat: Seat,
    pub transport: T,
    pub arena: Arena,
    pub clock: MonotonicClock,
}

impl Pair {
    /// Starts a peer.
    pub fn start(way: &Way) -> Result<Pair> {
        let child = peer_command(way)?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the peer")?;
        let mut peer = Killed(child);
        let mut line = String::new();
        let stdout = peer.0.stdout.take().context("the peer has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse();
        let address = address.with_context(|| format!("the peer says {line:?}, no address"))?;
        let node = Node::start(ASKER, None, way.rdma.as_ref())?;
        node.knows(address);
        Ok(Pair { peer, node })
    }

    /// The peer's process.
    pub fn pid(&self) -> u32 {
        self.peer.0.id()
    }

    /// Asks over TCP.
    pub fn over_tcp(&self) -> Result<Asking<TcpTransport>> {
        self.node.asking()
    }

    /// Asks over RDMA; its connection is there.
    pub fn over_rdma(&self) -> Result<Asking<LinkedTransport>> {
        let endpoint = self.node.rdma.as_ref().context("no RDMA was wanted")?;
        let (mut seat, clock) = (Seat::new()?, MonotonicClock::start());
        let arena = Arena::new(MEMORY_BYTES)?;
        let mut transport = self.node.rdma(endpoint, &mut seat, &arena, clock)?;
        let started = Instant::now();
        loop {
            match transport.prepare(TO) {
                Readiness::Ready => break,
                Readiness::Unavailable(why) | Readiness::Lacking(why) | Readiness::Useless(why) => {
                    bail!("the peer cannot be reached by RDMA: {why}")
                }
                Readiness::Connecting if started.elapsed() > CONNECT_LIMIT => {
                    bail!("no queue pair within {} s", CONNECT_LIMIT.as_secs())
                }
                Readiness::Connecting => std::thread::sleep(Duration::from_millis(1)),
            }
            transport.poll();
        }
        Ok(Asking {
            seat,
            transport,
            arena,
            clock,
        })
    }
}

fn peer_command(way: &Way) -> Result<Command> {
    let own = std::env::current_exe()?;
    let mut command = match way.namespace {
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(own);
            command
        }
        None => Command::new(own),
    };
    let poll = match way.poll {
        Poll::Auto => "auto",
        Poll::Always => "always",
    };
    command.args(["peer", "--poll", poll, "--listen", &way.listen.to_string()]);
    if let Some([cpu, _]) = way.cpus {
        command.args(["--cpu", &cpu.to_string()]);
    }
    // A peer over TCP is not to find one in the environment.
    command.env_remove(super::port::DEVICE);
    if let Some(port) = &way.rdma {
        command.args(port.arguments());
    }
    Ok(command)
}
