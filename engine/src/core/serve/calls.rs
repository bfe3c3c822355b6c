//! Peers' questions other than for bytes.

use super::super::Core;
use super::super::metadata::Question;
use crate::arena::Share;
use crate::client::RangeWork;
use crate::ports::{FetchStatus, Payload, PeerFailure, Platform, RequestHandle, Time};
use crate::wire::call::{Call, CallAnswer};

impl<P: Platform> Core<P> {
    /// A question other than for bytes.
    pub(super) fn take_call(
        &mut self,
        now: Time,
        peer: (RequestHandle, u32),
        deadline: Time,
        body: &[u8],
    ) {
        let (handle, room_bytes) = peer;
        let answer = match Call::decode(body) {
            Ok(Call::Describe(object)) => {
                self.serving.names.learn(object);
                Some(CallAnswer::Done)
            }
            Ok(Call::Head {
                bucket,
                key,
                max_age_ms,
            }) => {
                let question = Question::Head(bucket, key);
                return self.accept_question(now, question, max_age_ms, deadline, peer);
            }
            Ok(Call::List {
                request,
                max_age_ms,
            }) => {
                let question = Question::List(request);
                return self.accept_question(now, question, max_age_ms, deadline, peer);
            }
            Ok(Call::Range {
                work,
                object,
                offset,
                len_bytes,
            }) => {
                if work == RangeWork::Warm {
                    self.serving.names.learn(object.clone());
                }
                let bytes = offset..offset.saturating_add(u64::from(len_bytes));
                return self.accept_peer_range(now, peer, work, object, bytes, deadline);
            }
            Err(_) => None,
        };
        match answer {
            Some(answer) => self.answer_call(handle, &answer, room_bytes),
            None => {
                let status = FetchStatus::Failed(PeerFailure::Invalid);
                self.answer_peer(handle, status, None);
            }
        }
    }

    /// Answers a call.
    pub(in crate::core) fn answer_call(
        &mut self,
        handle: RequestHandle,
        answer: &CallAnswer,
        room_bytes: u32,
    ) {
        match self.call_payload(answer, room_bytes) {
            Some(payload) => self.answer_peer(handle, FetchStatus::Bytes, Some(payload)),
            None => self.answer_peer(handle, FetchStatus::Busy, None),
        }
    }

    /// An answer in a buffer of the arena.
    fn call_payload(&mut self, answer: &CallAnswer, room_bytes: u32) -> Option<Payload> {
        let bytes = answer.encode(room_bytes as usize).ok()?;
        let mut lease = self.lease(bytes.len(), Share::Serve).ok()?;
        lease.bytes_mut().copy_from_slice(&bytes);
        let parts = vec![self.parts.arena.freeze(lease)];
        Some(Payload {
            parts,
            checksums: Vec::new(),
        })
    }
}
