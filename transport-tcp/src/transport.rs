//! One core's turn over its connections.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_engine::ports::{Clock, FetchTag, Full, Time, Transport, TransportEvent, TransportOp};
use forebay_engine::ring::Doorbell;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};

use crate::asking::Asking;
use crate::limits::{TURN_READ_BYTES, WAIT_EVENTS_MAX};
use crate::serving::Serving;
use crate::shared::{Arrival, Seat, Shared};
use crate::socket::{Socket, SpareBuffers, Which};

const NO_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// What both kinds of connections share.
pub(crate) struct Io {
    pub epoll: OwnedFd,
    pub events: VecDeque<TransportEvent>,
    /// When this turn began.
    pub now: Time,
    pub spare: SpareBuffers,
    /// Bytes received since the engine was last told that there is no more.
    pub read_bytes: usize,
    /// Connections with bytes to read.
    ready: VecDeque<Which>,
    /// Connections with frames to write.
    dirty: VecDeque<Which>,
}

impl Io {
    /// Notes that a connection has something to write.
    pub fn soil(&mut self, socket: &mut Socket, which: Which) {
        if socket.writable && !socket.dirty {
            socket.dirty = true;
            self.dirty.push_back(which);
        }
    }

    /// Whether enough was read for one turn of the core: its disk, its origin and its readers wait.
    fn has_read_enough(&self) -> bool {
        self.read_bytes >= TURN_READ_BYTES
    }

    /// Notes that a connection may have something to read.
    pub fn ready(&mut self, socket: &mut Socket, which: Which) {
        if !socket.ready {
            socket.ready = true;
            self.ready.push_back(which);
        }
    }
}

/// The engine's way to peers, for one core. Used on that core's thread only.
pub struct TcpTransport {
    core: u16,
    shared: Arc<Shared>,
    seat: Arc<Seat>,
    clock: Box<dyn Clock>,
    io: Io,
    asking: Asking,
    serving: Serving,
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpTransport")
            .field("core", &self.core)
            .field("serving", &self.serving.len())
            .finish_non_exhaustive()
    }
}

impl TcpTransport {
    pub(crate) fn new(
        shared: Arc<Shared>,
        core: u16,
        doorbell: Arc<Doorbell>,
        clock: Box<dyn Clock>,
    ) -> io::Result<Self> {
        let seat = Seat::new(doorbell);
        let io = Io {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: VecDeque::new(),
            now: clock.now(),
            spare: SpareBuffers::default(),
            read_bytes: 0,
            ready: VecDeque::new(),
            dirty: VecDeque::new(),
        };
        shared
            .sit(core, seat.clone())
            .ok_or_else(|| io::Error::other(format!("the endpoint has no core {core}")))?;
        Ok(Self {
            asking: Asking::new(shared.clone(), seat.clone(), core),
            serving: Serving::new(shared.credit_bytes),
            core,
            shared,
            seat,
            clock,
            io,
        })
    }

    /// Readable when a connection wants something: the core's thread waits for it too.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.io.epoll.as_fd()
    }

    /// Writes, reads, and looks at deadlines once.
    fn turn(&mut self) {
        self.io.now = self.clock.now();
        while let Some(arrival) = self.seat.arrivals.pop() {
            self.arrived(arrival);
        }
        self.flush();
        // Where nobody is connected, a turn costs no system call.
        if !(self.asking.is_empty() && self.serving.is_empty()) {
            self.wait();
        }
        // Who was not reached is the first the next time.
        for _ in 0..self.io.ready.len() {
            if self.io.has_read_enough() {
                break;
            }
            let Some(which) = self.io.ready.pop_front() else {
                break;
            };
            self.read(which);
        }
        self.asking.tick(&mut self.io);
        self.flush();
    }

    fn arrived(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Dialled { to, result } => self.asking.dialled(&mut self.io, to, result),
            Arrival::Accepted { from, stream } => {
                let record = self.shared.record((from.peer, self.core, from.core, false));
                if let Err(error) = self.serving.accept(&mut self.io, from, stream, record) {
                    tracing::warn!(peer = from.peer.0, %error, "a peer's connection is lost");
                }
            }
        }
        self.count();
    }

    /// Tells the endpoint how many peers are served, so that it can refuse more.
    fn count(&self) {
        let waiting = self.seat.arrivals.len();
        self.seat
            .serving
            .store(self.serving.len() + waiting, Ordering::Relaxed);
    }

    fn flush(&mut self) {
        for _ in 0..self.io.dirty.len() {
            let Some(which) = self.io.dirty.pop_front() else {
                break;
            };
            if let Some(socket) = self.socket(which) {
                socket.dirty = false;
            }
            match which {
                Which::Asking(at) => self.asking.flush(&mut self.io, at),
                Which::Serving(at) => self.serving.flush(&mut self.io, at),
            }
        }
    }

    fn socket(&mut self, which: Which) -> Option<&mut Socket> {
        match which {
            Which::Asking(at) => self.asking.socket(at),
            Which::Serving(at) => self.serving.socket(at),
        }
    }

    /// Learns which connections became readable or writable.
    fn wait(&mut self) {
        let mut space = [const { MaybeUninit::<Event>::uninit() }; WAIT_EVENTS_MAX];
        // Interrupted or not: the next turn looks again.
        let Ok((events, _)) = epoll::wait(&self.io.epoll, &mut space, Some(&NO_WAIT)) else {
            return;
        };
        for event in events.iter() {
            let (data, flags) = (event.data, event.flags);
            let which = Which::of_data(data);
            let socket = match which {
                Which::Asking(at) => self.asking.socket(at),
                Which::Serving(at) => self.serving.socket(at),
            };
            let Some(socket) = socket else { continue };
            if flags.contains(EventFlags::OUT) {
                socket.writable = true;
                self.io.soil(socket, which);
            }
            let end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            socket.ending |= flags.intersects(end);
            if flags.intersects(end | EventFlags::IN) {
                self.io.ready(socket, which);
            }
        }
    }

    fn read(&mut self, which: Which) {
        if let Some(socket) = self.socket(which) {
            socket.ready = false;
        }
        let more = match which {
            Which::Asking(at) => self.asking.read(&mut self.io, at),
            Which::Serving(at) => self.serving.read(&mut self.io, at),
        };
        if more {
            let socket = match which {
                Which::Asking(at) => self.asking.socket(at),
                Which::Serving(at) => self.serving.socket(at),
            };
            if let Some(socket) = socket {
                self.io.ready(socket, which);
            }
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.asking.close();
        self.serving.close();
        self.shared.leave(self.core, &self.seat);
    }
}

impl Transport for TcpTransport {
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        if let TransportOp::Answer {
            handle,
            status,
            payload,
        } = op
        {
            self.serving.answer(&mut self.io, handle, status, payload);
            return Ok(());
        }
        self.io.now = self.clock.now();
        self.asking.submit(&mut self.io, op)
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        loop {
            if let Some(event) = self.io.events.pop_front() {
                return Some(event);
            }
            // What is left to read is read before the core sleeps: nothing would wake it, so `wake_at` says now.
            if self.io.has_read_enough() {
                break;
            }
            self.turn();
            if self.io.events.is_empty() && self.io.ready.is_empty() {
                break;
            }
        }
        self.io.read_bytes = 0;
        self.count();
        None
    }

    fn cancel(&mut self, tag: FetchTag) {
        self.asking.cancel(&mut self.io, tag);
    }

    fn wake_at(&self) -> Time {
        match self.io.events.is_empty() && self.io.ready.is_empty() {
            true => self.asking.wake_at(),
            false => self.io.now,
        }
    }
}
