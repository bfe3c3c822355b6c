//! What this mount knew of a name, for when the origin does not answer.

use std::time::Duration;

use forebay_engine::errors::OriginError;
use forebay_engine::ports::Time;

use super::known::Known;
use super::listing::Kind;
use super::{Namespace, count};
use crate::reply::ReadReply;

/// What a name was, nothing or something, and when the origin said so.
pub(super) type Last = (Option<Kind>, Time);

impl<R: ReadReply> Namespace<R> {
    /// What `key` was when the origin was asked last, if that may be told after `error`.
    pub(super) fn past(&self, key: &str, max_age: Duration, error: &OriginError) -> Option<Last> {
        let last = self.last(key, max_age)?;
        self.may_be_past(last.1, error).then_some(last)
    }

    /// Whether what the origin said at `at` may be told after `error`. It is counted then.
    pub(super) fn may_be_past(&self, at: Time, error: &OriginError) -> bool {
        let may = error.kind.is_transient() && self.is_recent_enough(at);
        if may {
            count(&self.counters.stale_answers);
        }
        may
    }

    /// Whether what was said at `at` may be told while the origin does not answer.
    pub(super) fn is_recent_enough(&self, at: Time) -> bool {
        // Who believes nothing that is remembered does not then either.
        !self.attr_ttl.is_zero() && self.client.now().since(at) <= self.stale_max
    }

    /// The last that is known, unless it is a version that is gone by now. Who asks with an age of 0 has met one.
    pub(super) fn last(&self, key: &str, max_age: Duration) -> Option<Last> {
        if max_age.is_zero() {
            return None;
        }
        let (at, known) = self.known.lock().last(key)?;
        if !self.is_recent_enough(at) {
            return None;
        }
        match known {
            Known::Absent => Some((None, at)),
            Known::Present(kind) => {
                if let Kind::File(meta) = &kind {
                    let id = meta.version(&self.bucket).id;
                    if self.inodes.lock().is_superseded(id) {
                        return None;
                    }
                }
                Some((Some(kind), at))
            }
        }
    }
}
