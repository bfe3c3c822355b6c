//! Whether the origin still has the version that an inode stands for.

use std::sync::Arc;

use forebay_engine::client::{Accept, Told};
use forebay_engine::errors::OriginErrorKind;
use forebay_engine::ports::{ObjectMeta, Time};
use fuser::Errno;

use super::inodes::FileNode;
use super::{Namespace, count};
use crate::reply::{ReadReply, origin_errno};

impl<R: ReadReply> Namespace<R> {
    /// Makes sure that the origin has had a file's version within `attr_ttl`, and says when.
    pub(super) fn revalidate(
        self: &Arc<Self>,
        number: u64,
        file: FileNode,
        done: impl FnOnce(Result<Time, Errno>) + Send + 'static,
    ) {
        let now = self.client.now();
        if file.superseded {
            return done(Err(Errno::ESTALE));
        }
        if now.since(file.validated) < self.attr_ttl {
            return done(Ok(file.validated));
        }
        let Some(key) = self.inodes.lock().key(number) else {
            return done(Err(Errno::ESTALE));
        };
        count(&self.counters.revalidations);
        let this = self.clone();
        let asked_key = key.clone();
        let answered = move |answer: Told<ObjectMeta>| {
            // What a member of the group remembers counts from when it was told that.
            let at = answer.at.min(now);
            done(match answer.result {
                Ok(meta) if meta.version(&this.bucket).id == file.id => {
                    this.inodes.lock().validated(number, at);
                    Ok(at)
                }
                // The origin does not answer, or what is remembered elsewhere is older than what is known here.
                Err(error) if this.may_be_past(file.validated, &error) => Ok(file.validated),
                _ if at < file.validated => Ok(file.validated),
                Err(error) if error.kind != OriginErrorKind::NotFound => Err(origin_errno(&error)),
                _ => {
                    count(&this.counters.superseded);
                    this.inodes.lock().supersede(number, true);
                    this.known.lock().remove(&asked_key);
                    Err(Errno::ESTALE)
                }
            });
        };
        let accept = Accept {
            max_age: self.attr_ttl,
            knows_last: self.is_recent_enough(file.validated),
            until: None,
        };
        self.head(key, accept, Box::new(answered));
    }
}
