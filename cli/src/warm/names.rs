//! What a job lists renews the names of its mount; a warm-up leaves them with the members that own them, too.
//!
//! A tree's flat listing tells all files, and is no listing that a mount asks for. So a warm-up asks for each directory
//! as well, as the mount would, so that whoever asks while S3 does not answer is told by those who own the answer.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_engine::limits::LIST_PAGE_ENTRIES;
use forebay_engine::ports::{ListRequest, ObjectMeta, Time};
use forebay_fuse::FuseReply;
use forebay_fuse::namespace::{Kind, Namespace, Owners, Renewed, check_name};
use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use super::engine::MountEngine;
use super::pass::ForgetPages;
use super::tally::Tally;

/// Directories that a warm-up leaves the names of: about what members remember.
const DIRECTORIES_MAX: usize = 65_536;
/// Of a directory as many pages as a member remembers.
const PAGES_MAX: usize = 32;
/// Directories that are listed at once.
const AT_ONCE: usize = 32;

/// The names of a mount.
#[derive(Clone)]
pub struct Names {
    /// Its tree.
    pub namespace: Arc<Namespace<FuseReply>>,
    /// Tells the kernel that a version is gone.
    pub forget_pages: ForgetPages,
}

/// What one walk learns.
pub struct Renewal {
    names: Names,
    engine: MountEngine,
    began: Time,
    renewed: Mutex<Renewed>,
    /// Directories above paths that were asked for.
    above: Mutex<HashSet<Arc<str>>>,
    leave: Leave,
}

/// Whether names are left with those who own them.
#[derive(Clone, Debug)]
pub enum Leave {
    /// No.
    Nothing,
    /// The walk asks for every directory itself.
    Asked,
    /// Directories are sent there to be asked for.
    Directories(Sender<Arc<str>>),
    /// They were, in the job's first pass.
    Before,
}

impl Renewal {
    /// Begins now.
    pub fn begin(names: &Names, engine: &MountEngine, leave: Leave) -> Arc<Self> {
        Arc::new(Self {
            names: names.clone(),
            engine: engine.clone(),
            began: engine.client().now(),
            renewed: Mutex::default(),
            above: Mutex::default(),
            leave,
        })
    }

    /// Learns files and directories (a slash at their end) that the origin had when it was asked at `asked`.
    pub fn learn(&self, files: &[ObjectMeta], directories: &[Arc<str>], asked: Time) {
        let directories = directories.iter().map(|directory| {
            let key = directory.trim_end_matches('/').into();
            (key, Kind::Directory)
        });
        let files = files.iter();
        let files = files.map(|meta| (meta.key.clone(), Kind::File(meta.clone())));
        let names = directories.chain(files).collect();
        self.names.namespace.learn(names, asked);
    }

    /// A directory is known: its names are to be asked for. Where there are too many they are not.
    pub fn ask_for(&self, directory: &Arc<str>) {
        if let Leave::Directories(directories) = &self.leave {
            let _ = directories.try_send(directory.clone());
        }
    }

    /// The path `key` is there, and so the directories above it, below `root`: the mount knows that from now on, and
    /// where names are to be left, whoever owns them too.
    pub async fn is_there(&self, root: &str, key: &str, asked: Time) {
        let below = key.get(root.len()..).unwrap_or_default();
        for (slash, _) in below.trim_end_matches('/').match_indices('/') {
            let directory: Arc<str> = key[..root.len() + slash].into();
            if !self.above.lock().insert(directory.clone()) {
                continue;
            }
            if !matches!(self.leave, Leave::Nothing | Leave::Before) {
                // If that fails nothing is left of it; the path itself was answered.
                let below = ListRequest::below(self.engine.bucket(), &directory);
                let _ = self.engine.list(&below).await;
            }
            self.learn(&[], &[directory], asked);
        }
    }

    /// All below `prefix` has been listed.
    pub fn listed(&self, prefix: &Arc<str>) {
        self.renewed.lock().tree(prefix.clone());
    }

    /// What is at `key` has been asked.
    pub fn asked(&self, key: Arc<str>) {
        self.renewed.lock().name(key);
    }

    /// The mount shows what was learned, and nothing older.
    pub async fn finish(&self) {
        let mut renewed = std::mem::take(&mut *self.renewed.lock());
        renewed.owners(match self.leave {
            Leave::Nothing => Owners::NotAsked,
            Leave::Asked | Leave::Directories(_) => Owners::Asked,
            Leave::Before => Owners::AskedBefore,
        });
        let (names, began) = (self.names.clone(), self.began);
        let renew = move || {
            for object in names.namespace.renew(&renewed, began) {
                (names.forget_pages)(object);
            }
        };
        let _ = tokio::task::spawn_blocking(renew).await;
    }
}

/// The directories above keys that come in byte order, each once.
#[derive(Debug, Default)]
pub struct Directories(String);

impl Directories {
    /// Those of the next key below `prefix` that are new.
    pub fn next(&mut self, prefix: &str, key: &str) -> Vec<Arc<str>> {
        let directory = &key[..key.rfind('/').map_or(0, |slash| slash + 1)];
        if directory == self.0 || !directory.starts_with(prefix) {
            return Vec::new();
        }
        let (mut new, mut begin) = (Vec::new(), prefix.len());
        for part in directory[prefix.len()..].split_inclusive('/') {
            if check_name(part.trim_end_matches('/')).is_err() {
                break;
            }
            begin += part.len();
            if !self.0.starts_with(&directory[..begin]) {
                new.push(directory[..begin].into());
            }
        }
        directory.clone_into(&mut self.0);
        new
    }
}

/// Asks for the names of directories.
pub struct Leaving {
    engine: MountEngine,
    root: Arc<str>,
    tally: Arc<Tally>,
    directories: Receiver<Arc<str>>,
}

impl Leaving {
    /// Of a mount with that root. What is sent to the second is asked for.
    pub fn new(engine: MountEngine, root: Arc<str>, tally: Arc<Tally>) -> (Self, Sender<Arc<str>>) {
        let (sender, directories) = channel(DIRECTORIES_MAX);
        let leaving = Self {
            engine,
            root,
            tally,
            directories,
        };
        (leaving, sender)
    }

    /// Asks until nothing more comes, or the first that fails: the others would, too.
    pub async fn run(mut self) {
        let (mut under_way, mut left) = (JoinSet::new(), DIRECTORIES_MAX);
        let mut failed = None;
        while failed.is_none() && left > 0 {
            let next = tokio::select! {
                next = self.directories.recv(), if under_way.len() < AT_ONCE => next,
                Some(done) = under_way.join_next() => {
                    failed = done.ok().and_then(Result::err);
                    continue;
                }
            };
            let Some(directory) = next else {
                break;
            };
            left -= 1;
            under_way.spawn(leave(self.engine.clone(), directory));
        }
        self.directories.close();
        while failed.is_none()
            && let Some(done) = under_way.join_next().await
        {
            failed = done.ok().and_then(Result::err);
        }
        if let Some((directory, error)) = failed {
            let path = directory.strip_prefix(&*self.root).unwrap_or(&directory);
            let path = path.trim_end_matches('/');
            let reason = format!(
                "its names were not listed, nor those of the directories after it: without S3 they are not known: {error}"
            );
            self.tally.failed(path, reason);
        }
    }
}

/// Lists a directory as the mount does, for those who then remember it.
async fn leave(engine: MountEngine, directory: Arc<str>) -> Result<(), (Arc<str>, String)> {
    let mut request = ListRequest {
        bucket: engine.bucket().clone(),
        prefix: directory.clone(),
        delimited: true,
        continuation: None,
        entries_max: LIST_PAGE_ENTRIES,
    };
    for _ in 0..PAGES_MAX {
        let page = engine.list(&request).await;
        let page = page.map_err(|error| (directory.clone(), error))?;
        request.continuation = page.next.clone();
        if request.continuation.is_none() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_is_told_once() {
        let mut directories = Directories::default();
        let mut told = Vec::new();
        let keys = [
            "d/",
            "d/a",
            "d/a!/x",
            "d/a-",
            "d/a/b/c/1",
            "d/a/b/c/2",
            "d/a/b/d",
            "d/b//x",
            "d/b/x",
            "d/c/",
            "d/z",
        ];
        for key in keys {
            let new = directories.next("d/", key);
            told.extend(new.iter().map(|new| new.to_string()));
        }
        let all = ["d/a!/", "d/a/", "d/a/b/", "d/a/b/c/", "d/b/", "d/c/"];
        assert_eq!(told, all);
    }
}
