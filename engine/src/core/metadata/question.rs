//! What is asked of the origin's metadata, by whom, and what it said.

use std::sync::Arc;
use std::time::Duration;

use crate::client::{Accept, Callback, Told};
use crate::errors::{OriginError, OriginErrorKind};
use crate::identity::Bucket;
use crate::limits::{CALL_BYTES_MAX, CONTINUATION_BYTES_MAX, KEY_BYTES_MAX};
use crate::ports::{ListPage, ListRequest, ObjectMeta, RequestHandle, Time};
use crate::wire::call::{Call, CallAnswer};
use crate::wire::listing;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum Question {
    Head(Arc<Bucket>, Arc<str>),
    List(ListRequest),
}

impl Question {
    /// What it takes in memory, about.
    pub fn len_bytes(&self) -> usize {
        96 + match self {
            Question::Head(_, key) => key.len(),
            Question::List(request) => {
                request.prefix.len() + request.continuation.as_ref().map_or(0, |next| next.len())
            }
        }
    }

    /// The name that decides who owns it.
    pub fn name(&self) -> &str {
        match self {
            Question::Head(_, key) => key,
            Question::List(request) => &request.prefix,
        }
    }

    /// Where it is.
    pub fn bucket(&self) -> &Arc<Bucket> {
        match self {
            Question::Head(bucket, _) => bucket,
            Question::List(request) => &request.bucket,
        }
    }

    /// A question for little, about the same name. Without a name there is only the listing.
    pub fn probe(&self) -> Question {
        match self.name() {
            "" => self.source(),
            name => Question::Head(self.bucket().clone(), name.into()),
        }
    }

    /// As the origin understands it.
    pub fn source(&self) -> Question {
        match self {
            // A garbled continuation was refused when it was asked.
            Question::List(request) => {
                Question::List(listing::source(request).unwrap_or_else(|_| request.clone()))
            }
            head => head.clone(),
        }
    }

    pub fn is_garbled(&self) -> bool {
        match self {
            Question::List(request) => listing::source(request).is_err(),
            Question::Head(..) => false,
        }
    }

    /// Whether it is for the rest of a page that was cut.
    pub fn is_rest(&self) -> bool {
        matches!(self, Question::List(request) if listing::is_rest(request))
    }

    /// As a peer is asked; none when the protocol has no room for it (a continuation of more than 4 KiB, which
    /// only the origin itself can be asked with).
    pub fn encode(&self, max_age: Duration) -> Option<Box<[u8]>> {
        let continuation = match self {
            Question::List(request) => request.continuation.as_deref(),
            Question::Head(..) => None,
        };
        if self.name().len() > KEY_BYTES_MAX
            || continuation.is_some_and(|next| next.len() > CONTINUATION_BYTES_MAX)
        {
            return None;
        }
        let max_age_ms = u32::try_from(max_age.as_millis()).unwrap_or(u32::MAX);
        let call = match self {
            Question::Head(bucket, key) => Call::Head {
                bucket: bucket.clone(),
                key: key.clone(),
                max_age_ms,
            },
            Question::List(request) => Call::List {
                request: request.clone(),
                max_age_ms,
            },
        };
        Some(call.encode()).filter(|body| body.len() <= CALL_BYTES_MAX)
    }

    /// The answer for a peer.
    pub fn answer(&self, told: Told<Finding>, asked: Time) -> CallAnswer {
        let age_ms = asked.since(told.at).as_nanos().div_ceil(1_000_000);
        let age_ms = u32::try_from(age_ms).unwrap_or(u32::MAX);
        let failure = |error: OriginError| (error.kind, error.detail);
        match self {
            Question::Head(..) => CallAnswer::Head {
                result: told.result.and_then(Finding::head).map_err(failure),
                age_ms,
            },
            Question::List(_) => {
                let page = told.result.and_then(Finding::list);
                CallAnswer::List {
                    result: page.map(Arc::unwrap_or_clone).map_err(failure),
                    age_ms,
                }
            }
        }
    }

    /// What is asked for, for people.
    pub fn subject(&self) -> String {
        match self {
            Question::Head(bucket, key) => format!("attributes of {bucket}/{key:?}"),
            Question::List(request) => {
                format!("listing of {}/{:?}", request.bucket, request.prefix)
            }
        }
    }

    pub fn timeout(&self) -> OriginError {
        OriginError::new(
            OriginErrorKind::Timeout,
            format!(
                "no {} in time; see whether the endpoint answers, or raise --io-timeout",
                self.subject()
            ),
        )
    }
}

/// What the origin said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::core) enum Finding {
    Head(ObjectMeta),
    List(Arc<ListPage>),
}

impl Finding {
    fn head(self) -> Result<ObjectMeta, OriginError> {
        match self {
            Finding::Head(meta) => Ok(meta),
            Finding::List(_) => Err(mismatch()),
        }
    }

    fn list(self) -> Result<Arc<ListPage>, OriginError> {
        match self {
            Finding::List(page) => Ok(page),
            Finding::Head(_) => Err(mismatch()),
        }
    }
}

fn mismatch() -> OriginError {
    let kind = OriginErrorKind::BadAnswer;
    OriginError::new(kind, "the origin answered something else")
}

/// Who wants to know.
pub(super) enum Who {
    Head(Callback<Told<ObjectMeta>>),
    List(Callback<Told<Arc<ListPage>>>),
    /// A peer, with room for so many bytes of answer.
    Peer(RequestHandle, u32),
    /// Nobody: the origin is tried.
    Nobody,
}

/// Someone who asked.
pub(super) struct Asker {
    pub deadline: Time,
    /// When the question came.
    pub asked: Time,
    /// The origin is to have been asked then, or later.
    pub need: Time,
    /// While the origin does not answer, an older answer will do.
    pub takes_old: bool,
    /// It has an answer of its own for that time.
    pub knows_last: bool,
    /// A member that should know was asked, and does not reach the origin: what it knew will do before long.
    pub is_offered: bool,
    pub who: Who,
}

impl Asker {
    pub fn new(now: Time, accept: Accept, deadline: Time, who: Who) -> Self {
        Self {
            deadline,
            asked: now,
            need: before(now, accept.max_age),
            takes_old: !accept.max_age.is_zero(),
            knows_last: accept.knows_last,
            is_offered: false,
            who,
        }
    }

    /// Nobody, who takes anything.
    pub fn nobody(now: Time, deadline: Time) -> Self {
        Self {
            takes_old: false,
            ..Self::new(now, Duration::ZERO.into(), deadline, Who::Nobody)
        }
    }

    /// Whether it has somewhere else to go for an answer.
    pub fn knows_better(&self) -> bool {
        self.is_peer() || self.knows_last
    }

    pub fn is_peer(&self) -> bool {
        matches!(self.who, Who::Peer(..))
    }

    /// Whether it asks on this node, and so of other members too.
    pub fn is_here(&self) -> bool {
        matches!(self.who, Who::Head(_) | Who::List(_))
    }

    pub fn is_nobody(&self) -> bool {
        matches!(self.who, Who::Nobody)
    }

    /// How long an answer may be.
    pub fn room_bytes(&self) -> usize {
        match self.who {
            Who::Peer(_, room_bytes) => room_bytes as usize,
            _ => usize::MAX,
        }
    }

    /// Answers an asker of this node; a peer is given back, with what it is told.
    pub fn tell(
        self,
        question: &Question,
        told: Told<Finding>,
    ) -> Option<(RequestHandle, u32, CallAnswer)> {
        let Told { result, at } = told;
        match self.who {
            Who::Peer(handle, room_bytes) => {
                let answer = question.answer(Told { result, at }, self.asked);
                return Some((handle, room_bytes, answer));
            }
            Who::Head(reply) => reply(Told {
                result: result.and_then(Finding::head),
                at,
            }),
            Who::List(reply) => reply(Told {
                result: result.and_then(Finding::list),
                at,
            }),
            Who::Nobody => {}
        }
        None
    }
}

/// So long before.
pub(super) fn before(now: Time, span: Duration) -> Time {
    let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Time(now.0.saturating_sub(span_ns))
}
