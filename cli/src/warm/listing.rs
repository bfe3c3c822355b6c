//! From paths to objects. Several paths at a time; listings run ahead of the work so that its share is known, but
//! not farther than memory allows.

use std::sync::Arc;

use forebay_engine::limits::{KEY_BYTES_MAX, LIST_PAGE_ENTRIES};
use forebay_engine::ports::{ListEntry, ListPage, ListRequest, ObjectMeta, Time};
use forebay_fuse::namespace::check_name;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use super::engine::MountEngine;
use super::found::Waiting;
use super::names::{Directories, Leave, Names, Renewal};
use super::once::Asked;
use super::tally::Tally;

/// Objects that are known and wait for their turn: about 16 MiB.
const AHEAD_MAX: usize = 65_536;
/// Paths that are looked up or listed at once.
const PATHS_AT_ONCE: usize = 16;

/// What listings tell.
#[derive(Debug)]
pub enum Told {
    /// A file.
    File(ObjectMeta),
    /// A path failed: it, and why. Nothing was told of it.
    Failed(String, String),
    /// A path failed after some of its files were told.
    BrokeOff(String, String),
}

/// What a path is.
#[derive(Debug)]
pub enum Place {
    /// A file.
    File(ObjectMeta),
    /// All keys with this prefix.
    Directory(Arc<str>),
}

/// Why a path was not listed.
enum ListError {
    /// From the beginning.
    Failed(String),
    /// After some of it.
    BrokeOff(String),
}

impl From<String> for ListError {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl ListError {
    fn told(self, path: String) -> Told {
        match self {
            Self::Failed(reason) => Told::Failed(path, reason),
            Self::BrokeOff(reason) => {
                Told::BrokeOff(path, format!("its listing broke off: {reason}"))
            }
        }
    }
}

/// Finds the objects of `paths`.
#[derive(Clone)]
pub struct Lister {
    engine: MountEngine,
    /// Of the mount: empty, or ending in a slash.
    root: Arc<str>,
    names: Names,
}

/// Where what is found goes.
struct Sink<'a> {
    files: &'a Sender<Told>,
    tally: Option<&'a Tally>,
    renewal: &'a Renewal,
}

impl Lister {
    /// Paths are below `root`. What is listed renews `names`.
    pub fn new(engine: MountEngine, root: Arc<str>, names: Names) -> Self {
        Self {
            engine,
            root,
            names,
        }
    }

    /// Starts to look for all of `paths`, and counts what it finds. It ends early when the receiver is dropped.
    pub fn start(
        &self,
        paths: Arc<[Asked]>,
        tally: Option<Arc<Tally>>,
        leave: Leave,
    ) -> Receiver<Told> {
        let (sender, receiver) = channel(AHEAD_MAX);
        let lister = self.clone();
        let renewal = self.renewal(leave);
        tokio::spawn(async move {
            let mut under_way = JoinSet::new();
            for n in 0..paths.len() {
                while under_way.len() >= PATHS_AT_ONCE {
                    under_way.join_next().await;
                }
                if sender.is_closed() {
                    return;
                }
                let (lister, paths, sender) = (lister.clone(), paths.clone(), sender.clone());
                let (tally, renewal) = (tally.clone(), renewal.clone());
                under_way.spawn(async move {
                    let sink = Sink {
                        files: &sender,
                        tally: tally.as_deref(),
                        renewal: &renewal,
                    };
                    let listed = lister.path(&paths[n], &sink).await;
                    if let Err(error) = listed {
                        let path = paths[n].path.clone();
                        let _ = sender.send(error.told(path)).await;
                    }
                });
            }
            while under_way.join_next().await.is_some() {}
            if let Some(tally) = tally {
                tally.listed();
            }
            // Before the receiver sees the end: then the mount shows what the job speaks of.
            renewal.finish().await;
            drop(sender);
        });
        receiver
    }

    /// What the mount learns from a walk that begins now.
    pub fn renewal(&self, leave: Leave) -> Arc<Renewal> {
        Renewal::begin(&self.names, &self.engine, leave)
    }

    async fn path(&self, asked: &Asked, to: &Sink<'_>) -> Result<(), ListError> {
        match self.look(&asked.path, to.renewal).await? {
            _ if asked.covered => Ok(()),
            Place::Directory(prefix) => self.directory(&prefix, to).await,
            Place::File(meta) => {
                if let Some(tally) = to.tally {
                    tally.found(meta.size_bytes);
                }
                let _ = to.files.send(Told::File(meta)).await;
                Ok(())
            }
        }
    }

    /// What `path` is: asked as the mount does it, so that the same is remembered.
    ///
    /// # Errors
    /// Why it cannot be told, or that it is not there.
    pub async fn look(&self, path: &str, renewal: &Renewal) -> Result<Place, String> {
        let name = path.trim_end_matches('/');
        if name.is_empty() {
            return Ok(Place::Directory(self.root.clone()));
        }
        let key: Arc<str> = format!("{}{name}", self.root).into();
        let is_path = name.split('/').all(|part| check_name(part).is_ok());
        if !is_path || key.len() > KEY_BYTES_MAX {
            return Err(no_such());
        }
        let asked = self.now();
        // Whatever is below makes it a directory.
        let prefix: Arc<str> = format!("{key}/").into();
        let below = async {
            match prefix.len() > KEY_BYTES_MAX {
                true => Ok(Arc::default()),
                false => {
                    let below = ListRequest::below(self.engine.bucket(), &key);
                    self.engine.list(&below).await
                }
            }
        };
        let (below, object) = tokio::join!(below, self.engine.head(&key));
        let below = below?;
        if !below.entries.is_empty() || below.left_out > 0 {
            renewal.is_there(&self.root, &prefix, asked).await;
            renewal.learn(&[], std::slice::from_ref(&prefix), asked);
            return Ok(Place::Directory(prefix));
        }
        let object = object?;
        renewal.asked(key.clone());
        match object {
            Some(_) if path.ends_with('/') => Err("not a directory".to_owned()),
            Some(meta) => {
                renewal.is_there(&self.root, &key, asked).await;
                renewal.learn(std::slice::from_ref(&meta), &[], asked);
                Ok(Place::File(meta))
            }
            None => Err(no_such()),
        }
    }

    fn now(&self) -> Time {
        self.engine.client().now()
    }

    async fn page(
        &self,
        prefix: &Arc<str>,
        continuation: Option<Arc<str>>,
    ) -> Result<Arc<ListPage>, String> {
        let request = ListRequest {
            bucket: self.engine.bucket().clone(),
            prefix: prefix.clone(),
            delimited: false,
            continuation,
            entries_max: LIST_PAGE_ENTRIES,
        };
        self.engine.list(&request).await
    }

    async fn directory(&self, prefix: &Arc<str>, to: &Sink<'_>) -> Result<(), ListError> {
        let (mut waiting, mut out) = (Waiting::default(), Vec::new());
        let (mut directories, mut next) = (Directories::default(), None);
        // What waits was listed with the page before.
        let mut asked = self.now();
        loop {
            let began = self.now();
            let is_first = next.is_none();
            let page = self.page(prefix, next).await.map_err(match is_first {
                true => ListError::Failed,
                false => ListError::BrokeOff,
            })?;
            if is_first {
                to.renewal.ask_for(prefix);
            }
            let mut left_out = u64::from(page.left_out);
            let mut new = Vec::new();
            for entry in &page.entries {
                if let ListEntry::Object(meta) = entry {
                    new.extend(directories.next(prefix, &meta.key));
                    left_out += waiting.feed(&self.root, meta.clone(), &mut out);
                }
            }
            if page.next.is_none() {
                waiting.finish(&mut out);
            }
            to.renewal.learn(&out, &new, asked);
            new.iter().for_each(|new| to.renewal.ask_for(new));
            asked = began;
            if let Some(tally) = to.tally {
                out.iter().for_each(|meta| tally.found(meta.size_bytes));
                tally.left_out(left_out);
            }
            for meta in out.drain(..) {
                if to.files.send(Told::File(meta)).await.is_err() {
                    return Ok(());
                }
            }
            next = page.next.clone();
            if next.is_none() {
                to.renewal.listed(prefix);
                return Ok(());
            }
        }
    }
}

fn no_such() -> String {
    "no such file or directory".to_owned()
}
