//! A connection's socket, and the buffer behind it.

use std::io::{self, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::{Errno, read, readv};
use rustix::net::sockopt;

use crate::limits::{
    KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES, RECEIVE_BUFFER_BYTES,
    SPARE_BUFFERS_MAX, USER_TIMEOUT_MS,
};

/// Sends small frames at once, and notices in seconds that the other host is gone.
pub(crate) fn tune(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(KEEPALIVE_IDLE_S))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(KEEPALIVE_INTERVAL_S))?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    Ok(())
}

/// Which connection of a core's transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// One that this core asks on.
    Asking(usize),
    /// One that a peer asks on.
    Serving(usize),
}

impl Which {
    fn data(self) -> EventData {
        EventData::new_u64(match self {
            Which::Asking(at) => (at as u64) << 1,
            Which::Serving(at) => (at as u64) << 1 | 1,
        })
    }

    pub fn of_data(data: EventData) -> Self {
        let (at, serving) = ((data.u64() >> 1) as usize, data.u64() & 1 == 1);
        match serving {
            true => Which::Serving(at),
            false => Which::Asking(at),
        }
    }
}

/// What one read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// So many bytes, and there may be more.
    More(usize),
    /// So many bytes, and the next ones will be told.
    All(usize),
}

/// A proven connection that never blocks. The kernel tells once when it becomes readable or writable (edge):
/// no call is needed to change what is waited for.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    /// In the list of those to read from.
    pub ready: bool,
    /// In the list of those to write to.
    pub dirty: bool,
    /// The last write took everything.
    pub writable: bool,
    /// The other side has ended, or the connection broke: read on until that is seen.
    pub ending: bool,
}

impl Socket {
    pub fn new(stream: TcpStream, epoll: &impl AsFd, which: Which) -> io::Result<Self> {
        let edge = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(epoll, &stream, which.data(), edge)?;
        Ok(Self {
            stream,
            ready: false,
            dirty: false,
            writable: true,
            ending: false,
        })
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads into the buffer, and before it into `first` if there is some of it.
    ///
    /// # Errors
    /// When the connection ended or broke.
    pub fn receive(&self, first: Option<&mut [u8]>, buffer: &mut Buffer) -> io::Result<Got> {
        let room_bytes = buffer.room().len();
        let (first_bytes, got) = match first.filter(|first| !first.is_empty()) {
            Some(first) => {
                let first_bytes = first.len();
                let mut slices = [IoSliceMut::new(first), IoSliceMut::new(buffer.room())];
                (first_bytes, readv(&self.stream, &mut slices))
            }
            None => (0, read(&self.stream, buffer.room())),
        };

        match got {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                buffer.filled(bytes.saturating_sub(first_bytes));
                // A short read has emptied the socket; an end that came before it is told by `ending`.
                match bytes == first_bytes + room_bytes || self.ending {
                    true => Ok(Got::More(bytes)),
                    false => Ok(Got::All(bytes)),
                }
            }
            Err(Errno::AGAIN) => Ok(Got::All(0)),
            Err(Errno::INTR) => Ok(Got::More(0)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Bytes received and not yet looked at. It has memory only while there are some: most connections are quiet.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// The memory of buffers that are empty.
#[derive(Debug, Default)]
pub(crate) struct SpareBuffers(Vec<Box<[u8]>>);

impl Buffer {
    /// What is in it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Takes so many bytes off its start.
    pub fn consume(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Makes room behind what is left. A message that is looked at as a whole fits into it.
    pub fn make_room(&mut self, spare: &mut SpareBuffers) {
        if self.bytes.is_empty() {
            self.bytes = spare
                .0
                .pop()
                .unwrap_or_else(|| vec![0; RECEIVE_BUFFER_BYTES].into_boxed_slice());
        }
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Gives its memory away if it is empty.
    pub fn rest(&mut self, spare: &mut SpareBuffers) {
        if self.end == 0 && !self.bytes.is_empty() {
            let bytes = std::mem::take(&mut self.bytes);
            if spare.0.len() < SPARE_BUFFERS_MAX {
                spare.0.push(bytes);
            }
        }
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    fn filled(&mut self, bytes: usize) {
        self.end += bytes;
    }
}
