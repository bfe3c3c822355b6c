//! A peer without an engine: it answers every fetch from memory. For tests of transports, and figures.

use std::collections::BTreeMap;
use std::io;

use forebay_engine::arena::{Arena, Frozen, Share};
use forebay_engine::limits::PAGE_BYTES;
use forebay_engine::ports::{
    FetchStatus, Full, Payload, PeerAsk, Transport, TransportEvent, TransportOp,
};

/// What the bytes of an answer of that length all are.
pub fn content(len_bytes: usize) -> u8 {
    (len_bytes % 251) as u8
}

/// The checksum that each page of an answer comes with.
pub const CHECKSUM: u32 = 7;

/// Answers fetches with [`content`], and calls as invalid.
#[derive(Debug)]
pub struct Responder {
    arena: Arena,
    buffers: BTreeMap<u32, Frozen>,
    /// Fetches answered so far.
    pub served: usize,
}

impl Responder {
    /// A peer with so many bytes for answers, one buffer for each length that is asked for.
    ///
    /// # Errors
    /// When the kernel gives no memory.
    pub fn new(memory_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            arena: Arena::new(memory_bytes)?,
            buffers: BTreeMap::new(),
            served: 0,
        })
    }

    /// Answers what has arrived. True when something had.
    pub fn turn(&mut self, transport: &mut impl Transport) -> bool {
        let mut progressed = false;
        while let Some(event) = transport.poll() {
            progressed = true;
            let TransportEvent::Request { handle, ask, .. } = event else {
                continue;
            };
            let (status, payload) = match ask {
                PeerAsk::Fetch(fetch) => match self.payload(fetch.len_bytes) {
                    Some(payload) => (FetchStatus::Bytes, Some(payload)),
                    None => (FetchStatus::Busy, None),
                },
                PeerAsk::Call { .. } => (FetchStatus::NotCached, None),
            };
            let mut op = TransportOp::Answer {
                handle,
                status,
                payload,
            };
            while let Err(Full(back)) = transport.submit(op) {
                op = back;
            }
            self.served += 1;
        }
        progressed
    }

    fn payload(&mut self, len_bytes: u32) -> Option<Payload> {
        let len = len_bytes as usize;
        if !self.buffers.contains_key(&len_bytes) {
            let mut lease = self.arena.lease(len, Share::Serve).ok()?;
            lease.bytes_mut().fill(content(len));
            self.buffers.insert(len_bytes, self.arena.freeze(lease));
        }
        Some(Payload {
            parts: vec![self.buffers.get(&len_bytes)?.clone()],
            checksums: vec![CHECKSUM; len.div_ceil(PAGE_BYTES)],
        })
    }
}
