//! Questions other than for bytes: those of peers, and those that work in the background has for them.

use super::super::metadata::Question;
use super::super::{Core, Tagged};
use crate::arena::Share;
use crate::client::RangeWork;
use crate::limits::PAGE_BYTES;
use crate::ports::{
    Class, FetchStatus, FetchTag, Payload, PeerCore, PeerFailure, PeerId, Platform, RequestHandle,
    Time, Transport, TransportOp,
};
use crate::wire::call::{Call, CallAnswer};

impl<P: Platform> Core<P> {
    /// A question other than for bytes.
    pub(super) fn take_call(
        &mut self,
        now: Time,
        asker: PeerId,
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
                if !self.is_origin_of(question.bucket()) {
                    return self.decline_elsewhere(asker, handle, question.bucket());
                }
                return self.accept_question(now, question, max_age_ms, deadline, peer);
            }
            Ok(Call::List {
                request,
                max_age_ms,
            }) => {
                let question = Question::List(request);
                if !self.is_origin_of(question.bucket()) {
                    return self.decline_elsewhere(asker, handle, question.bucket());
                }
                return self.accept_question(now, question, max_age_ms, deadline, peer);
            }
            Ok(Call::Range {
                work,
                object,
                offset,
                len_bytes,
            }) => {
                if work == RangeWork::Warm && !self.is_origin_of(&object.bucket) {
                    return self.decline_elsewhere(asker, handle, &object.bucket);
                }
                if work == RangeWork::Warm {
                    self.serving.names.learn(object.clone());
                }
                let bytes = offset..offset.saturating_add(u64::from(len_bytes));
                return self.accept_peer_range(now, peer, work, object, bytes, deadline);
            }
            Ok(Call::Take {
                block,
                size_bytes,
                subs,
            }) => {
                let offer = (block, size_bytes, subs);
                return self.accept_take(now, asker, peer, offer, deadline);
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

    /// Asks a member's core, as work in the background, what has a short answer; `tagged` says whose the answer is. None
    /// when there is no room for one more question now.
    pub(in crate::core) fn call_member(
        &mut self,
        to: PeerCore,
        call: &Call,
        deadline: Time,
        tagged: impl FnOnce(FetchTag) -> Tagged,
    ) -> Option<FetchTag> {
        let lease = self.lease(PAGE_BYTES, Share::Prefetch).ok()?;
        let tag = FetchTag(self.next_id());
        let op = TransportOp::Call {
            tag,
            to,
            class: Class::WarmUp,
            body: call.encode(),
            lease,
            deadline,
        };
        self.parts.transport.submit(op).ok()?;
        self.tags.insert(tag.0, tagged(tag));
        Some(tag)
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
