//! Asking what a name is: the origin and who remembers its answers, then what this mount knew, then the listing of
//! the directory that it is in.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::client::{Accept, Told};
use forebay_engine::errors::{OriginError, OriginErrorKind};
use forebay_engine::limits::KEY_BYTES_MAX;
use forebay_engine::ports::{ListPage, ListRequest, Time};

use super::listing::Kind;
use super::lookup::Join;
use super::past::Last;
use super::{EntryReply, Namespace};
use crate::reply::{ReadReply, origin_errno};

/// A name that someone wants to know.
pub(super) struct Wanted {
    pub(super) key: Arc<str>,
    /// How old what is told may be, while the origin answers.
    max_age: Duration,
    asked: Time,
    /// It is told by then.
    pub(super) until: Time,
    /// There is nowhere else to look: whoever is asked may wait for the origin.
    is_last: bool,
    reply: EntryReply,
}

impl<R: ReadReply> Namespace<R> {
    /// Asks what `key` is, as of at most `max_age` ago.
    pub(super) fn ask_name(self: &Arc<Self>, key: Arc<str>, max_age: Duration, reply: EntryReply) {
        let asked = self.client.now();
        self.ask(Wanted {
            key,
            max_age,
            asked,
            until: asked + self.client.io_timeout(),
            // Who asks with an age of 0 has met a version that is gone: what is remembered is no use.
            is_last: max_age.is_zero() || self.attr_ttl.is_zero(),
            reply,
        });
    }

    fn ask(self: &Arc<Self>, wanted: Wanted) {
        let key = wanted.key.clone();
        let accept = Accept {
            max_age: wanted.max_age,
            knows_last: !wanted.is_last || self.last(&key, wanted.max_age).is_some(),
            until: Some(wanted.until),
        };
        let (this, asked) = (self.clone(), wanted.asked);
        let join = Join::new(move |found| this.name_found(wanted, found));
        let head = join.clone();
        if key.len() >= KEY_BYTES_MAX {
            // No key can be longer, and a server may refuse so long a prefix.
            join.below(Told {
                result: Ok(false),
                at: asked,
            });
            return self.head(key, accept, Box::new(move |answer| head.head(answer)));
        }
        let below = ListRequest::below(&self.bucket, &key);
        self.head(key, accept, Box::new(move |answer| head.head(answer)));
        let any = |page: Arc<ListPage>| !page.entries.is_empty() || page.left_out > 0;
        let told = move |answer: Told<Arc<ListPage>>| {
            let (result, at) = (answer.result.map(any), answer.at);
            join.below(Told { result, at });
        };
        self.list(below, accept, Box::new(told));
    }

    /// What a name is was asked, and is known now, or why it is not. An answer that is older than was asked for, and
    /// an error, come where the origin does not answer: then the newest that is known here counts.
    fn name_found(
        self: &Arc<Self>,
        wanted: Wanted,
        found: Result<(Option<Kind>, Time), OriginError>,
    ) {
        let asked = wanted.asked;
        let found = found.map(|(kind, at)| (kind, at.min(asked)));
        match found {
            Ok(told) if asked.since(told.1) <= wanted.max_age => self.name_known(wanted, told),
            Ok(told) => match self.last(&wanted.key, wanted.max_age) {
                Some(last) if last.1 >= told.1 => self.name_known(wanted, last),
                _ if wanted.is_last => self.name_known(wanted, told),
                _ => self.look_in_listing(wanted, Ok(told)),
            },
            Err(error) => match self.past(&wanted.key, wanted.max_age, &error) {
                Some(last) => self.name_known(wanted, last),
                None if wanted.is_last || !is_silence(&error) => {
                    (wanted.reply)(Err(origin_errno(&error).into()));
                }
                None => self.look_in_listing(wanted, Err(error)),
            },
        }
    }

    /// Sees what the directory's listing said of a name, which may have been listed last by a warm-up, or by another
    /// mount.
    fn look_in_listing(self: &Arc<Self>, wanted: Wanted, found: Result<Last, OriginError>) {
        let this = self.clone();
        let (key, until) = (wanted.key.clone(), wanted.until);
        let looked = move |listed: Option<Last>| match (found, listed) {
            (Ok(told), Some(listed)) if listed.1 <= told.1 => this.name_known(wanted, told),
            (Ok(told), None) => this.name_known(wanted, told),
            (_, Some(listed)) => this.name_known(wanted, listed),
            (Err(_), None) => this.ask(Wanted {
                is_last: true,
                ..wanted
            }),
        };
        self.find_listed(key, until, Box::new(looked));
    }

    /// Tells what a name is. Where that is remembered, and a version that this mount knows to be gone, the origin
    /// itself is asked.
    fn name_known(self: &Arc<Self>, wanted: Wanted, (kind, at): Last) {
        if at < wanted.asked
            && !wanted.max_age.is_zero()
            && let Some(Kind::File(meta)) = &kind
        {
            let id = meta.version(&self.bucket).id;
            if self.inodes.lock().is_superseded(id) {
                return self.ask_name(wanted.key, Duration::ZERO, wanted.reply);
            }
        }
        (wanted.reply)(self.looked_up(&wanted.key, kind, at));
    }
}

/// Whether the origin said nothing.
pub(super) fn is_silence(error: &OriginError) -> bool {
    matches!(
        error.kind,
        OriginErrorKind::Unavailable | OriginErrorKind::Timeout
    )
}
