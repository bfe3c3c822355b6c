//! `transport`: blocks of another process's memory, without an engine on either side.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use forebay_cli::host::MonotonicClock;
use forebay_engine::arena::{Arena, Lease, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::ports::{
    Class, Clock, FetchStatus, FetchTag, Full, PeerFetch, Transport, TransportEvent, TransportOp,
};
use forebay_tests::peer::{Seat, content};
use forebay_transport_rdma::LinkedTransport;
use forebay_transport_tcp::TcpTransport;

use super::device::load_of;
use crate::ceilings::Ceiling;
use crate::ceilings::memory::MemoryCopy;
use crate::ceilings::socket::Loopback;
use crate::counters::Watched;
use crate::network::node::{Asking, Pair, Poll, TO, Way};
use crate::outcome::Span;
use crate::pace::{self, Load, Slots};
use crate::plan::Plan;
use crate::scenario::Scenario;
use crate::side::{Side, Turn, watched};

const DEADLINE: Duration = Duration::from_secs(30);
/// At least so much before the first span: the connection is made, and its window grows.
const WARM_UP: Duration = Duration::from_millis(300);

/// Fetches over one connection, on a thread that sleeps as a core's does.
struct Fetches<T> {
    connection: Connection<T>,
    seat: Seat,
    spin: Duration,
}

struct Connection<T> {
    // Before the arena: what is under way comes back first.
    transport: T,
    arena: Arena,
    clock: MonotonicClock,
    len_bytes: usize,
    /// Buffers of slots that have nothing under way.
    leases: Vec<Option<Lease>>,
    /// Begun, but the connection had no credit for them.
    waiting: Vec<usize>,
}

impl<T: Transport> Fetches<T> {
    fn new(asking: Asking<T>, scenario: &Scenario, spin: Duration) -> Result<Self> {
        let Asking {
            seat,
            transport,
            mut arena,
            clock,
        } = asking;
        let (len_bytes, depth) = (scenario.size("block") as usize, scenario.count("depth"));
        let lease = |_| {
            let lease = arena.lease(len_bytes, Share::Demand);
            lease.map(Some).ok().context("no room for buffers")
        };
        let leases = (0..depth).map(lease).collect::<Result<Vec<_>>>();
        let said = || format!("depth={depth} of this block need more than is taken for buffers");
        let connection = Connection {
            leases: leases.with_context(said)?,
            transport,
            arena,
            clock,
            len_bytes,
            waiting: Vec::new(),
        };
        Ok(Self {
            connection,
            seat,
            spin,
        })
    }
}

impl<T: Transport> Connection<T> {
    /// False when it must wait for credit.
    fn submit(&mut self, slot: usize) -> Result<bool> {
        let lease = self.leases[slot].take().context("a slot is used twice")?;
        let len_bytes = self.len_bytes as u32;
        let request = PeerFetch {
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
        };
        let op = TransportOp::Fetch {
            tag: FetchTag(slot as u64),
            to: TO,
            request,
            lease,
            deadline: self.clock.now() + DEADLINE,
        };
        match self.transport.submit(op) {
            Ok(()) => Ok(true),
            Err(Full(TransportOp::Fetch { lease, .. })) => {
                self.leases[slot] = Some(lease);
                Ok(false)
            }
            Err(_) => bail!("the transport gave back something else"),
        }
    }

    fn look(&mut self, ended: &mut Vec<usize>) -> Result<bool> {
        let mut progressed = false;
        while let Some(event) = self.transport.poll() {
            progressed = true;
            let TransportEvent::Fetched {
                tag, lease, result, ..
            } = event
            else {
                continue;
            };
            // A byte of each answer is looked at: the rest is the engine's work, and not part of the way.
            let right = lease.bytes().first() == Some(&content(lease.len()));
            ensure!(
                result == Ok(FetchStatus::Bytes) && right,
                "a fetch ended as {result:?}"
            );
            let slot = tag.0 as usize;
            self.leases[slot] = Some(lease);
            ended.push(slot);
        }
        while let Some(slot) = self.waiting.pop() {
            if !self.submit(slot)? {
                self.waiting.push(slot);
                break;
            }
            progressed = true;
        }
        self.arena.reclaim();
        Ok(progressed)
    }
}

impl<T: Transport> Slots for Fetches<T> {
    fn begin(&mut self, slot: usize, _: u64) -> Result<()> {
        if !self.connection.submit(slot)? {
            self.connection.waiting.push(slot);
        }
        Ok(())
    }

    fn go_on(&mut self, ended: &mut Vec<usize>, most: Duration) -> Result<()> {
        let Self {
            connection,
            seat,
            spin,
        } = self;
        let mut failed = None;
        seat.turn_for(
            (*spin).min(most),
            most,
            &mut || match connection.look(ended) {
                Ok(progressed) => progressed,
                Err(error) => {
                    failed = Some(error);
                    true
                }
            },
        );
        failed.map_or(Ok(()), Err)
    }
}

enum State {
    Tcp(Fetches<TcpTransport>),
    Rdma(Fetches<LinkedTransport>),
}

/// Forebay's side of `transport`.
pub struct TransportSide {
    scenario: Scenario,
    plan: Plan,
    // Before the peer: a connection ends first.
    state: Option<State>,
    pair: Option<Pair>,
}

impl TransportSide {
    /// Of a scenario of that kind.
    pub fn new(scenario: &Scenario, plan: &Plan) -> TransportSide {
        TransportSide {
            scenario: scenario.clone(),
            plan: plan.clone(),
            state: None,
            pair: None,
        }
    }

    fn load(&self, turn: &Turn) -> Load {
        load_of(&self.scenario, turn)
    }

    fn fetch(&mut self, turn: &Turn) -> Result<Span> {
        let load = self.load(turn);
        let block = self.scenario.size("block");
        let pair = self.pair.as_ref().context("the peer was not started")?;
        let both = [
            Watched::Own("who asks".to_owned()),
            Watched::Other("who answers".to_owned(), pair.pid()),
        ];
        match &mut self.state {
            Some(State::Tcp(fetches)) => {
                watched(&both, &load, block, || pace::slots(fetches, &load))
            }
            Some(State::Rdma(fetches)) => {
                watched(&both, &load, block, || pace::slots(fetches, &load))
            }
            None => bail!("the peer was not started"),
        }
    }
}

impl Side for TransportSide {
    fn name(&self) -> &str {
        "Forebay"
    }

    fn version(&self) -> String {
        format!("{} (the transport alone)", env!("CARGO_PKG_VERSION"))
    }

    fn prepare(&mut self) -> Result<()> {
        let rdma = self.scenario.word("via") == "rdma";
        let port = &self.plan.run.rdma.port;
        ensure!(
            !rdma || port.is_some(),
            "via=rdma is measured on an RDMA device of this machine: give --device NAME, or run this in ci/softroce's guest \
             (ci/softroce --run target/release/forebay-perf run {})",
            self.scenario
        );
        let port = port.clone().filter(|_| rdma);
        let poll = Poll::Auto;
        let way = Way {
            listen: port
                .as_ref()
                .map_or(Ipv4Addr::LOCALHOST.into(), |port| port.ip),
            rdma: port,
            namespace: None,
            poll,
            cpus: None,
        };
        let pair = Pair::start(&way)?;
        self.state = Some(match rdma {
            true => State::Rdma(Fetches::new(
                pair.over_rdma()?,
                &self.scenario,
                poll.spin(),
            )?),
            false => State::Tcp(Fetches::new(pair.over_tcp()?, &self.scenario, poll.spin())?),
        });
        self.pair = Some(pair);
        Ok(())
    }

    fn warm(&mut self, turn: &Turn) -> Result<()> {
        let span = turn.span.max(WARM_UP);
        self.fetch(&Turn { span, ..*turn }).map(drop)
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        self.fetch(turn)
    }

    fn clean(&mut self) -> Result<()> {
        self.state = None;
        self.pair = None;
        Ok(())
    }

    fn processors(&self) -> Option<(&'static str, f64)> {
        let all = std::thread::available_parallelism().map_or(1, |n| n.get());
        Some(("a processor for each end", all.min(2) as f64))
    }

    fn ceilings(&self) -> Result<Vec<Box<dyn Ceiling>>> {
        let block_bytes = self.scenario.size("block") as usize;
        let copy: Box<dyn Ceiling> = Box::new(MemoryCopy::new(block_bytes, false)?);
        Ok(match self.scenario.word("via") {
            "tcp" => vec![Box::new(Loopback { block_bytes }), copy],
            _ => vec![copy],
        })
    }
}

impl std::fmt::Debug for TransportSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransportSide").finish_non_exhaustive()
    }
}
