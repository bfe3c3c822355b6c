//! Frames on their way out, by class.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use forebay_engine::ports::{Class, Payload, RequestHandle};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::limits::{WRITE_BATCH_BYTES, WRITE_SLICES_MAX};
use crate::socket::Socket;

/// Whose a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The request with this tag.
    Request(u64),
    /// The answer to a request.
    Answer {
        handle: RequestHandle,
        /// The asker's name for it.
        tag: u64,
        /// What it counts for of the connection's credit.
        cost_bytes: u32,
    },
    /// The short answer to a request that was given up.
    GivenUp(u32),
    /// Nobody waits for its end.
    Nobody,
}

/// One frame: header and what belongs to it, then the bytes.
#[derive(Debug)]
pub(crate) struct Frame {
    pub owner: Owner,
    pub head: Vec<u8>,
    pub payload: Option<Payload>,
}

impl Frame {
    fn len_bytes(&self) -> usize {
        self.head.len() + self.payload.as_ref().map_or(0, Payload::len_bytes)
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let parts = self.payload.iter().flat_map(|payload| &payload.parts);
        std::iter::once(self.head.as_slice()).chain(parts.map(|part| &**part))
    }

    fn slices_count(&self) -> usize {
        1 + self
            .payload
            .as_ref()
            .map_or(0, |payload| payload.parts.len())
    }
}

/// What waits to be written to one connection. The order is kept within a class; a frame that has begun is
/// finished, and a batch that was handed to the socket goes first.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queues: [VecDeque<Frame>; 3],
    leaving: VecDeque<Frame>,
    /// Bytes of the first of `leaving` that are gone.
    gone_bytes: usize,
    spare_heads: Vec<Vec<u8>>,
}

impl Outbox {
    /// An empty header, with the memory of one that has left.
    pub fn head(&mut self) -> Vec<u8> {
        self.spare_heads.pop().unwrap_or_default()
    }

    pub fn push(&mut self, class: Class, frame: Frame) {
        self.queues[class as usize].push_back(frame);
    }

    pub fn is_empty(&self) -> bool {
        self.leaving.is_empty() && self.queues.iter().all(VecDeque::is_empty)
    }

    /// Takes out a request of which no byte has left.
    pub fn take_request(&mut self, tag: u64) -> Option<Frame> {
        self.take(|owner| owner == Owner::Request(tag))
    }

    /// Takes out the answer to the asker's request `tag`, of which no byte has left.
    pub fn take_answer(&mut self, tag: u64) -> Option<Frame> {
        self.take(|owner| matches!(owner, Owner::Answer { tag: its, .. } if its == tag))
    }

    fn take(&mut self, is_it: impl Fn(Owner) -> bool) -> Option<Frame> {
        let begun = usize::from(self.gone_bytes > 0);
        let queues = std::iter::once((&mut self.leaving, begun))
            .chain(self.queues.iter_mut().map(|queue| (queue, 0)));
        for (queue, first) in queues {
            let found = queue
                .iter()
                .skip(first)
                .position(|frame| is_it(frame.owner));
            if let Some(at) = found {
                return queue.remove(first + at);
            }
        }
        None
    }

    /// Empties it, because the connection is gone.
    pub fn take_all(&mut self) -> Vec<Frame> {
        self.gone_bytes = 0;
        let mut all: Vec<Frame> = self.leaving.drain(..).collect();
        all.extend(self.queues.iter_mut().flat_map(|queue| queue.drain(..)));
        all
    }

    /// Writes until everything has left or the socket takes no more (`writable` says which). Returns how many bytes
    /// left; whole frames go to `left`.
    pub fn write(
        &mut self,
        socket: &mut Socket,
        mut left: impl FnMut(Owner, Option<Payload>),
    ) -> io::Result<usize> {
        let mut sum_bytes = 0;
        loop {
            self.fill_batch();
            if self.leaving.is_empty() {
                return Ok(sum_bytes);
            }
            let (sent, all) = self.send(socket)?;
            sum_bytes += sent;
            self.retire(sent, &mut left);
            if !all {
                socket.writable = false;
                return Ok(sum_bytes);
            }
        }
    }

    fn fill_batch(&mut self) {
        let mut bytes = self.leaving.iter().map(Frame::len_bytes).sum::<usize>();
        let mut slices = self.leaving.iter().map(Frame::slices_count).sum::<usize>();
        while bytes < WRITE_BATCH_BYTES {
            let Some(queue) = self.queues.iter_mut().find(|queue| !queue.is_empty()) else {
                return;
            };
            let Some(frame) = queue.front() else { return };
            slices += frame.slices_count();
            if slices > WRITE_SLICES_MAX && !self.leaving.is_empty() {
                return;
            }
            bytes += frame.len_bytes();
            self.leaving.extend(queue.pop_front());
        }
    }

    /// One write of what is leaving: the bytes that left, and whether that was everything.
    fn send(&self, socket: &Socket) -> io::Result<(usize, bool)> {
        let mut slices = [IoSlice::new(&[]); WRITE_SLICES_MAX];
        let (mut count, mut asked, mut skip) = (0, 0, self.gone_bytes);
        for slice in self.leaving.iter().flat_map(Frame::slices) {
            let skipped = skip.min(slice.len());
            skip -= skipped;
            if skipped == slice.len() {
                continue;
            }
            let Some(place) = slices.get_mut(count) else {
                break;
            };
            *place = IoSlice::new(&slice[skipped..]);
            asked += slice.len() - skipped;
            count += 1;
        }
        let mut control = SendAncillaryBuffer::default();
        match sendmsg(
            socket.stream(),
            &slices[..count],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Ok(sent) => Ok((sent, sent == asked)),
            Err(Errno::AGAIN) => Ok((0, false)),
            Err(Errno::INTR) => Ok((0, true)),
            Err(error) => Err(error.into()),
        }
    }

    fn retire(&mut self, sent: usize, left: &mut impl FnMut(Owner, Option<Payload>)) {
        self.gone_bytes += sent;
        while let Some(first) = self.leaving.front() {
            let len_bytes = first.len_bytes();
            if self.gone_bytes < len_bytes {
                return;
            }
            self.gone_bytes -= len_bytes;
            if let Some(mut frame) = self.leaving.pop_front() {
                frame.head.clear();
                if self.spare_heads.len() < WRITE_SLICES_MAX {
                    self.spare_heads.push(frame.head);
                }
                left(frame.owner, frame.payload);
            }
        }
    }
}
