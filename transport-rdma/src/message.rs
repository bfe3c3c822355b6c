//! Messages as they travel between queue pairs: the engine's headers, with what verbs need beside them.

use forebay_engine::ports::{Class, FetchStatus, PeerFailure};
use forebay_engine::wire::WireError;
use forebay_engine::wire::header::{ANSWER_BYTES, Answer, Ask, REQUEST_BYTES, Request};

use crate::limits::{DESTINATION_BYTES, REQUEST_MESSAGE_BYTES, TRIAL_BYTES};

/// Where the serving end writes an answer's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Address of the first byte, in the asker's memory.
    pub address: u64,
    /// Key of the memory region that it lies in, from the device.
    pub key: u32,
    /// Bytes that there are.
    pub len_bytes: u32,
}

/// Marks the answer to a cancel. Tags of requests never have it.
pub const CANCEL_TAG: u64 = 1 << 63;

/// Marks the messages of a trial. Tags of requests never have it.
pub const TRIAL_TAG: u64 = 1 << 62;

/// A message of a trial: with bytes to be written into the asker's memory, or without any.
pub fn trial(is_large: bool) -> Request {
    let ask = match is_large {
        false => Ask::Cancel,
        // No body follows it.
        true => Ask::Call {
            class: Class::Demand,
            body_bytes: 1,
            room_bytes: TRIAL_BYTES as u32,
        },
    };
    Request {
        tag: TRIAL_TAG | u64::from(is_large),
        remaining_us: 0,
        ask,
    }
}

/// What answers a message of a trial.
pub fn tried(is_large: bool) -> Answer {
    Answer {
        tag: TRIAL_TAG | u64::from(is_large),
        status: FetchStatus::Failed(PeerFailure::Deadline),
        len_bytes: 0,
        checksums: 0,
    }
}

/// A request's first message. A cancel has no destination and is shorter.
pub fn encode_request(
    request: &Request,
    destination: Option<Destination>,
) -> ([u8; REQUEST_MESSAGE_BYTES], usize) {
    let mut bytes = [0; REQUEST_MESSAGE_BYTES];
    bytes[..REQUEST_BYTES].copy_from_slice(&request.encode());
    let Some(destination) = destination else {
        return (bytes, REQUEST_BYTES);
    };
    let (_, place) = bytes.split_at_mut(REQUEST_BYTES);
    place[..8].copy_from_slice(&destination.address.to_le_bytes());
    place[8..12].copy_from_slice(&destination.key.to_le_bytes());
    place[12..].copy_from_slice(&destination.len_bytes.to_le_bytes());
    (bytes, REQUEST_MESSAGE_BYTES)
}

/// Reads a request's first message.
///
/// # Errors
/// What is wrong with it.
pub fn decode_request(bytes: &[u8]) -> Result<(Request, Option<Destination>), WireError> {
    let (head, rest) = bytes
        .split_first_chunk::<REQUEST_BYTES>()
        .ok_or(WireError::Limit("message"))?;
    let request = Request::decode(head)?;
    if rest.is_empty() {
        return Ok((request, None));
    }
    let place: &[u8; DESTINATION_BYTES] =
        rest.try_into().map_err(|_| WireError::Limit("message"))?;
    let (address, rest) = place.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    let (key, len) = rest.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    let destination = Destination {
        address: u64::from_le_bytes(*address),
        key: u32::from_le_bytes(*key),
        len_bytes: u32::from_le_bytes(len.try_into().unwrap_or_default()),
    };
    Ok((request, Some(destination)))
}

/// An answer's message, put into `out`; its length in bytes.
pub fn encode_answer(answer: &Answer, checksums: &[u32], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&answer.encode());
    for checksum in checksums {
        out.extend_from_slice(&checksum.to_le_bytes());
    }
}

/// Reads an answer's message.
///
/// # Errors
/// What is wrong with it.
pub fn decode_answer(bytes: &[u8]) -> Result<(Answer, Vec<u32>), WireError> {
    let (head, rest) = bytes
        .split_first_chunk::<ANSWER_BYTES>()
        .ok_or(WireError::Limit("message"))?;
    let answer = Answer::decode(head)?;
    if rest.len() != 4 * usize::from(answer.checksums) {
        return Err(WireError::Limit("checksums"));
    }
    let (words, _) = rest.as_chunks::<4>();
    let checksums = words.iter().map(|word| u32::from_le_bytes(*word));
    Ok((answer, checksums.collect()))
}

/// What answers a cancel, after the answer to the request itself.
pub fn cancelled(tag: u64) -> Answer {
    Answer {
        tag: tag | CANCEL_TAG,
        status: FetchStatus::Failed(PeerFailure::Deadline),
        len_bytes: 0,
        checksums: 0,
    }
}
