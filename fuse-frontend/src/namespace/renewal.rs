//! What a job (a warm-up, a check) lists is newer than what the mount knows, and replaces it: the tables here, and what
//! the kernel believes.
//!
//! | what was known | after a job that listed it |
//! |---|---|
//! | a name's kind and attributes | as listed |
//! | an inode whose version was listed | validated |
//! | an inode whose version was not | superseded: an open or a stat looks the name up again |
//! | names and listings that members remember | too old, unless the origin was asked since |

use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::identity::ObjectId;
use forebay_engine::ports::Time;

use super::Namespace;
use super::known::Known;
use super::listing::Kind;
use crate::reply::ReadReply;

/// Trees of which it is remembered when they were listed last.
const TREES_MAX: usize = 64;
/// How exactly ages of answers that came from members are known, on a busy network.
const AGES_APART: Duration = Duration::from_secs(1);
/// Inodes that are gone through at a time: lookups wait meanwhile.
const INODES_AT_ONCE: usize = 1_024;

/// What a job has listed, to the end.
#[derive(Clone, Debug, Default)]
pub struct Renewed {
    trees: BTreeSet<Arc<str>>,
    names: HashSet<Arc<str>>,
    owners: Owners,
}

/// What the members that own names know of a job's listings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owners {
    /// What they remember may be older than the job.
    #[default]
    NotAsked,
    /// They were asked for every directory since the job began.
    Asked,
    /// They were, and the job goes through all of it once more.
    AskedBefore,
}

impl Renewed {
    /// All keys that begin with `prefix` (empty, or ending in a slash). None of the trees lies in another.
    pub fn tree(&mut self, prefix: Arc<str>) {
        self.trees.insert(prefix);
    }

    /// One key.
    pub fn name(&mut self, key: Arc<str>) {
        self.names.insert(key);
    }

    /// What owners know of it.
    pub fn owners(&mut self, owners: Owners) {
        self.owners = owners;
    }

    fn covers(&self, key: &str) -> bool {
        let until = (Bound::Unbounded, Bound::Included(key));
        let before = self.trees.range::<str, _>(until).next_back();
        before.is_some_and(|tree| key.starts_with(&**tree)) || self.names.contains(key)
    }
}

/// When trees were listed last.
#[derive(Debug, Default)]
pub(super) struct Renewals(Vec<(Arc<str>, Time)>);

impl Renewals {
    fn note(&mut self, tree: &Arc<str>, since: Time) {
        self.0.retain(|(old, _)| !old.starts_with(&**tree));
        if self.0.len() >= TREES_MAX {
            self.0.remove(0);
        }
        self.0.push((tree.clone(), since));
    }

    fn since(&self, key: &str) -> Option<Time> {
        let holds = self.0.iter().filter(|(tree, _)| key.starts_with(&**tree));
        holds.map(|(_, since)| *since).max()
    }
}

impl<R: ReadReply> Namespace<R> {
    /// Remembers what the origin said of keys (no slash at their end) when it was asked at `asked`, as listings and
    /// lookups do.
    pub fn learn(&self, names: Vec<(Arc<str>, Kind)>, asked: Time) {
        let files = names.iter().filter_map(|(_, kind)| match kind {
            Kind::File(meta) => Some(meta.version(&self.bucket).id),
            Kind::Directory => None,
        });
        let files: Vec<ObjectId> = files.collect();
        {
            let mut inodes = self.inodes.lock();
            files.into_iter().for_each(|id| inodes.confirm(id, asked));
        }
        let mut known = self.known.lock();
        for (key, kind) in names {
            known.insert(key, asked, Known::Present(kind));
        }
    }

    /// A job that began at `since` has listed all this, and told [`Namespace::learn`] what it found: what was known
    /// of it before, and was not found, is no more. Returns versions that the kernel may still show. It takes a while
    /// where the kernel knows millions of files.
    pub fn renew(&self, listed: &Renewed, since: Time) -> Vec<ObjectId> {
        // What they were asked is not to be asked once more because it seems to be a little older.
        let not_before = match listed.owners {
            Owners::NotAsked => Some(since),
            Owners::Asked => Some(Time(since.0.saturating_sub(AGES_APART.as_nanos() as u64))),
            Owners::AskedBefore => None,
        };
        if let Some(not_before) = not_before {
            let mut renewals = self.renewals.lock();
            let trees = listed.trees.iter();
            trees.for_each(|tree| renewals.note(tree, not_before));
        }
        self.known
            .lock()
            .forget(|key, at| at < since && listed.covers(key));
        let numbers = self.inodes.lock().numbers();
        let mut gone = Vec::new();
        for numbers in numbers.chunks(INODES_AT_ONCE) {
            let mut inodes = self.inodes.lock();
            let is_gone = |key: &str, validated| validated < since && listed.covers(key);
            gone.extend(inodes.supersede_all(numbers, is_gone));
        }
        gone
    }

    /// How old what is remembered of `key`, or of what is in the directory `key`, may be: not older than the last job
    /// that listed it.
    pub(super) fn max_age(&self, key: &str) -> Duration {
        match self.renewals.lock().since(key) {
            Some(since) if !self.attr_ttl.is_zero() => {
                // An age of 0 would be more than that: nothing from the past, whatever happens.
                let age = self.client.now().since(since).max(Duration::from_millis(1));
                age.min(self.attr_ttl)
            }
            _ => self.attr_ttl,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_holds_what_is_below_it_and_a_name_itself() {
        let mut renewed = Renewed::default();
        for tree in ["a/", "b/c/", "d-/"] {
            renewed.tree(tree.into());
        }
        renewed.name("b/x".into());
        let covered = ["a/", "a/z/y", "b/c/d", "b/x", "d-/é"];
        let others = ["", "a", "a-", "b/", "b/c", "b/d", "b/x/", "d/e", "e"];
        assert!(covered.iter().all(|key| renewed.covers(key)));
        assert!(!others.iter().any(|key| renewed.covers(key)));
        let mut all = Renewed::default();
        all.tree("".into());
        assert!(["", "z"].iter().all(|key| all.covers(key)));
    }

    #[test]
    fn the_last_listing_of_a_tree_counts_and_few_are_remembered() {
        let mut renewals = Renewals::default();
        renewals.note(&"d/e/".into(), Time(5));
        assert_eq!(renewals.since("d/e/f"), Some(Time(5)));
        assert_eq!(renewals.since("d/x"), None);
        renewals.note(&"d/".into(), Time(7));
        assert_eq!(renewals.since("d/e/f"), Some(Time(7)));
        assert_eq!(renewals.0.len(), 1);
        for n in 0..2 * TREES_MAX {
            renewals.note(&format!("{n}/").into(), Time(9));
        }
        assert_eq!(renewals.0.len(), TREES_MAX);
    }
}
