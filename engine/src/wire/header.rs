//! The fixed headers of requests and answers.
//!
//! A request is [`REQUEST_BYTES`], followed by a question's bytes if it is a call. An answer is
//! [`ANSWER_BYTES`], followed by its checksums (4 bytes each) and its bytes. A transport that writes into
//! the asker's memory adds to a request where that is, and sends the bytes there.

use super::bytes::{Fixed, Put, Reader};
use super::{WireError, codes};
use crate::identity::ObjectId;
use crate::limits::{CALL_BYTES_MAX, CHUNK_BYTES, PAGE_BYTES};
use crate::ports::{Class, FetchStatus, PeerFetch, PeerId};

/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 64;
/// Bytes of an answer's header.
pub const ANSWER_BYTES: usize = 32;
/// Checksums that an answer carries at most: one for each page of a chunk.
pub const CHECKSUMS_MAX: usize = CHUNK_BYTES / PAGE_BYTES;

const _: () = assert!(REQUEST_BYTES <= 128 && CHECKSUMS_MAX <= u16::MAX as usize);

/// What a request's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names the request on its connection until it is answered.
    pub tag: u64,
    /// How long the asker still waits; clocks are not compared.
    pub remaining_us: u32,
    /// What.
    pub ask: Ask,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Bytes.
    Fetch(PeerFetch),
    /// Something else; the question follows.
    Call {
        /// How urgent.
        class: Class,
        /// Bytes of the question: 1 to `CALL_BYTES_MAX`.
        body_bytes: u32,
        /// The longest answer that the asker has room for: up to `CHUNK_BYTES`.
        room_bytes: u32,
    },
    /// The asker does not want the answer to this tag any more. A short one still comes.
    Cancel,
}

const FETCH: u8 = 1;
const CALL: u8 = 2;
const CANCEL: u8 = 3;

const CACHED_ONLY: u8 = 1;
const FORWARDED: u8 = 2;
const VERIFY: u8 = 4;

impl Request {
    /// The header as it travels.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = Fixed::new();
        match &self.ask {
            Ask::Fetch(fetch) => {
                self.start(
                    &mut out,
                    FETCH,
                    codes::class_code(fetch.class),
                    flags(fetch),
                );
                out.u32(fetch.len_bytes);
                self.middle(&mut out, fetch.want_bytes);
                out.bytes(&fetch.object.0.to_le_bytes());
                out.u64(fetch.size_bytes);
                out.u64(fetch.offset);
                out.u64(fetch.view);
            }
            Ask::Call {
                class,
                body_bytes,
                room_bytes,
            } => {
                self.start(&mut out, CALL, codes::class_code(*class), 0);
                out.u32(*body_bytes);
                self.middle(&mut out, *room_bytes);
            }
            Ask::Cancel => {
                self.start(&mut out, CANCEL, 0, 0);
                out.u32(0);
                self.middle(&mut out, 0);
            }
        }
        out.finish()
    }

    fn start(&self, out: &mut impl Put, kind: u8, class: u8, flags: u8) {
        out.bytes(&[kind, class, flags, 0]);
    }

    fn middle(&self, out: &mut impl Put, room_bytes: u32) {
        out.u64(self.tag);
        out.u32(self.remaining_us);
        out.u32(room_bytes);
    }

    /// Reads a header.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Request, WireError> {
        let mut reader = Reader::new(bytes);
        let [kind, class, flags, zero] = reader.array("request")?;
        let len_bytes = reader.u32("length")?;
        let tag = reader.u64("tag")?;
        let remaining_us = reader.u32("deadline")?;
        let room_bytes = reader.u32("room")?;
        if zero != 0 {
            return Err(WireError::Unknown("request"));
        }
        let ask = match kind {
            FETCH => Ask::Fetch(PeerFetch {
                object: ObjectId(u128::from_le_bytes(reader.array("object")?)),
                size_bytes: reader.u64("size")?,
                offset: reader.u64("offset")?,
                len_bytes: within(len_bytes, CHUNK_BYTES)?,
                want_bytes: room_bytes,
                class: codes::class(class)?,
                view: reader.u64("view")?,
                cached_only: flags & CACHED_ONLY != 0,
                forwarded: flags & FORWARDED != 0,
                verify: flags & VERIFY != 0,
            }),
            CALL => Ask::Call {
                class: codes::class(class)?,
                body_bytes: within(len_bytes, CALL_BYTES_MAX)?,
                room_bytes: within(room_bytes, CHUNK_BYTES)?,
            },
            CANCEL => Ask::Cancel,
            _ => return Err(WireError::Unknown("request")),
        };
        let request = Request {
            tag,
            remaining_us,
            ask,
        };
        // One form only: unused fields and flags are zero.
        match request.encode() == *bytes {
            true => Ok(request),
            false => Err(WireError::Unknown("request")),
        }
    }
}

fn within(len_bytes: u32, max_bytes: usize) -> Result<u32, WireError> {
    match (1..=max_bytes).contains(&(len_bytes as usize)) {
        true => Ok(len_bytes),
        false => Err(WireError::Limit("length")),
    }
}

fn flags(fetch: &PeerFetch) -> u8 {
    [
        (fetch.cached_only, CACHED_ONLY),
        (fetch.forwarded, FORWARDED),
        (fetch.verify, VERIFY),
    ]
    .into_iter()
    .filter_map(|(set, bit)| set.then_some(bit))
    .sum()
}

/// What an answer's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request's.
    pub tag: u64,
    /// How the peer answers.
    pub status: FetchStatus,
    /// Bytes that follow: up to `CHUNK_BYTES`, and 0 unless `status` is `Bytes`.
    pub len_bytes: u32,
    /// Checksums that follow before the bytes: up to [`CHECKSUMS_MAX`].
    pub checksums: u16,
}

const BYTES: u8 = 1;
const NOT_CACHED: u8 = 2;
const NOT_OWNER: u8 = 3;
const NEED_NAME: u8 = 4;
const BUSY: u8 = 5;
const FAILED: u8 = 6;

impl Answer {
    /// The header as it travels.
    pub fn encode(&self) -> [u8; ANSWER_BYTES] {
        let (status, (failure, kind), owner) = match self.status {
            FetchStatus::Bytes => (BYTES, (0, 0), 0),
            FetchStatus::NotCached { before, .. } => {
                (NOT_CACHED, (0, 0), before.map_or(0, |before| before.0))
            }
            FetchStatus::NotOwner { owner } => (NOT_OWNER, (0, 0), owner.0),
            FetchStatus::NeedName => (NEED_NAME, (0, 0), 0),
            FetchStatus::Busy => (BUSY, (0, 0), 0),
            FetchStatus::Failed(failure) => (FAILED, codes::failure_codes(failure), 0),
        };
        let mut out = Fixed::new();
        out.bytes(&[status, failure, kind, 0]);
        out.u16(self.checksums);
        out.u16(match self.status {
            FetchStatus::NotCached { here, .. } => here,
            _ => 0,
        });
        out.u32(self.len_bytes);
        out.u32(0);
        out.u64(self.tag);
        out.u64(owner);
        out.finish()
    }

    /// Reads a header.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Answer, WireError> {
        let mut reader = Reader::new(bytes);
        let [status, failure, kind, _] = reader.array("answer")?;
        let checksums = reader.u16("checksums")?;
        let here = reader.u16("sub-blocks")?;
        let len_bytes = reader.u32("length")?;
        reader.u32("answer")?;
        let tag = reader.u64("tag")?;
        let owner = PeerId(reader.u64("owner")?);
        let status = match status {
            BYTES => FetchStatus::Bytes,
            NOT_CACHED => FetchStatus::NotCached {
                here,
                before: Some(owner).filter(|before| before.0 != 0),
            },
            NOT_OWNER => FetchStatus::NotOwner { owner },
            NEED_NAME => FetchStatus::NeedName,
            BUSY => FetchStatus::Busy,
            FAILED => FetchStatus::Failed(codes::failure(failure, kind)?),
            _ => return Err(WireError::Unknown("status")),
        };
        let none = len_bytes == 0 && checksums == 0;
        if !(none || status == FetchStatus::Bytes)
            || len_bytes as usize > CHUNK_BYTES
            || usize::from(checksums) > CHECKSUMS_MAX
        {
            return Err(WireError::Limit("length"));
        }
        let answer = Answer {
            tag,
            status,
            len_bytes,
            checksums,
        };
        // One form only: unused fields are zero.
        match answer.encode() == *bytes {
            true => Ok(answer),
            false => Err(WireError::Unknown("answer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::OriginErrorKind;
    use crate::ports::PeerFailure;

    fn fetch() -> PeerFetch {
        PeerFetch {
            object: ObjectId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
            size_bytes: 1 << 40,
            offset: 4_096,
            len_bytes: 1 << 20,
            want_bytes: 8 << 20,
            class: Class::Prefetch,
            view: 0xfeed,
            cached_only: true,
            forwarded: false,
            verify: true,
        }
    }

    fn requests() -> Vec<Request> {
        let call = Ask::Call {
            class: Class::Demand,
            body_bytes: CALL_BYTES_MAX as u32,
            room_bytes: 4_096,
        };
        [Ask::Fetch(fetch()), call, Ask::Cancel]
            .map(|ask| Request {
                tag: 77,
                remaining_us: 30_000_000,
                ask,
            })
            .to_vec()
    }

    fn answers() -> Vec<Answer> {
        let owner = PeerId(9);
        [
            FetchStatus::Bytes,
            FetchStatus::NotCached {
                here: 0,
                before: None,
            },
            FetchStatus::NotCached {
                here: 0x8005,
                before: Some(owner),
            },
            FetchStatus::NotOwner { owner },
            FetchStatus::NeedName,
            FetchStatus::Busy,
            FetchStatus::Failed(PeerFailure::Origin(OriginErrorKind::NotFound)),
            FetchStatus::Failed(PeerFailure::Checksum),
            FetchStatus::Failed(PeerFailure::Deadline),
            FetchStatus::Failed(PeerFailure::Shutdown),
            FetchStatus::Failed(PeerFailure::Invalid),
            FetchStatus::Failed(PeerFailure::Elsewhere),
        ]
        .map(|status| {
            let bytes = status == FetchStatus::Bytes;
            Answer {
                tag: 77,
                status,
                len_bytes: u32::from(bytes) << 20,
                checksums: u16::from(bytes) << 8,
            }
        })
        .to_vec()
    }

    #[test]
    fn headers_arrive_as_they_were() {
        for request in requests() {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        for answer in answers() {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn a_header_has_one_form_only() {
        for request in requests() {
            for bit in 0..REQUEST_BYTES * 8 {
                let mut bytes = request.encode();
                bytes[bit / 8] ^= 1 << (bit % 8);
                if let Ok(other) = Request::decode(&bytes) {
                    assert_eq!(other.encode(), bytes);
                }
            }
        }
        for answer in answers() {
            for bit in 0..ANSWER_BYTES * 8 {
                let mut bytes = answer.encode();
                bytes[bit / 8] ^= 1 << (bit % 8);
                if let Ok(other) = Answer::decode(&bytes) {
                    assert_eq!(other.encode(), bytes);
                }
            }
        }
    }

    #[test]
    fn lengths_beyond_a_chunk_are_refused() {
        for len_bytes in [0, CHUNK_BYTES as u32 + 1, u32::MAX] {
            let request = Request {
                tag: 1,
                remaining_us: 1,
                ask: Ask::Fetch(PeerFetch {
                    len_bytes,
                    ..fetch()
                }),
            };
            assert_eq!(
                Request::decode(&request.encode()),
                Err(WireError::Limit("length"))
            );
        }
        let answer = Answer {
            len_bytes: 1,
            ..answers()[1]
        };
        assert!(Answer::decode(&answer.encode()).is_err());
        let answer = Answer {
            checksums: CHECKSUMS_MAX as u16 + 1,
            ..answers()[0]
        };
        assert!(Answer::decode(&answer.encode()).is_err());
    }
}
