//! A fetch over TCP with both ends on one thread, each polled only when the kernel has something for it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_engine::arena::{Lease, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::ports::{
    Class, Clock, FetchStatus, FetchTag, Full, PeerFetch, Transport, TransportEvent, TransportOp,
};
use forebay_tests::peer::Responder;
use forebay_transport_tcp::TcpTransport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Work;
use crate::network::node::{Asking, Couple, TO};

const LEN_BYTES: usize = 4 << 10;
const DEPTH: usize = 8;
const STUCK_AFTER: Duration = Duration::from_secs(30);

struct Fetches {
    // Before the arenas: what is under way comes back first.
    asking: Asking<TcpTransport>,
    answering: TcpTransport,
    responder: Responder,
    leases: Vec<Lease>,
    _couple: Couple,
}

impl Fetches {
    fn new() -> Result<Self> {
        let couple = Couple::start()?;
        let mut asking = couple.asking()?;
        let (answering, arena) = couple.answering()?;
        let lease = |_| asking.arena.lease(LEN_BYTES, Share::Demand).ok();
        let leases: Option<Vec<Lease>> = (0..DEPTH).map(lease).collect();
        Ok(Self {
            leases: leases.context("no room for buffers")?,
            asking,
            answering,
            responder: Responder::over(arena),
            _couple: couple,
        })
    }

    fn submit(&mut self, tag: u64, lease: Lease) -> Result<()> {
        let request = PeerFetch {
            object: ObjectId(5),
            size_bytes: 1 << 40,
            offset: 0,
            len_bytes: LEN_BYTES as u32,
            want_bytes: LEN_BYTES as u32,
            class: Class::Demand,
            view: 1,
            cached_only: false,
            forwarded: false,
            verify: false,
        };
        let op = TransportOp::Fetch {
            tag: FetchTag(tag),
            to: TO,
            request,
            lease,
            deadline: self.asking.clock.now() + STUCK_AFTER,
        };
        match self.asking.transport.submit(op) {
            Ok(()) => Ok(()),
            Err(Full(_)) => bail!("the transport takes no {DEPTH} fetches"),
        }
    }

    fn look(&mut self) -> Result<()> {
        while let Some(event) = self.asking.transport.poll() {
            let TransportEvent::Fetched { lease, result, .. } = event else {
                continue;
            };
            ensure!(
                result == Ok(FetchStatus::Bytes),
                "a fetch ended as {result:?}"
            );
            self.leases.push(lease);
        }
        Ok(())
    }
}

fn wait(fd: BorrowedFd<'_>) -> Result<()> {
    let most = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&most)).context("cannot wait")?;
    Ok(())
}

impl Work for Fetches {
    fn operate(&mut self, count: u64) -> Result<()> {
        let (mut left, mut tag) = (count, 0);
        while left > 0 {
            let depth = left.min(DEPTH as u64);
            for _ in 0..depth {
                let lease = self.leases.pop().context("a buffer is missing")?;
                tag += 1;
                self.submit(tag, lease)?;
            }
            // Sends what was asked.
            self.look()?;
            let started = Instant::now();
            while self.leases.len() < DEPTH {
                wait(self.answering.fd().as_fd())?;
                self.responder.turn(&mut self.answering);
                wait(self.asking.transport.fd().as_fd())?;
                self.look()?;
                ensure!(started.elapsed() < STUCK_AFTER, "fetches do not end");
            }
            left -= depth;
        }
        Ok(())
    }
}

pub(super) fn fetch_4k(_: &FilePath) -> Result<Box<dyn Work>> {
    Ok(Box::new(Fetches::new()?))
}
