//! From paths to objects. Several paths at a time; listings run ahead of the work so that its share is known, but
//! not farther than memory allows.

use std::sync::Arc;

use forebay_engine::limits::{KEY_BYTES_MAX, LIST_PAGE_ENTRIES};
use forebay_engine::ports::{ListEntry, ListPage, ListRequest, ObjectMeta};
use forebay_fuse::namespace::check_name;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use super::engine::MountEngine;
use super::found::Waiting;
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
    /// All keys with this prefix; the first page of them.
    Directory(Arc<str>, Arc<ListPage>),
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
#[derive(Clone, Debug)]
pub struct Lister {
    engine: MountEngine,
    /// Of the mount: empty, or ending in a slash.
    root: Arc<str>,
}

impl Lister {
    /// Paths are below `root`.
    pub fn new(engine: MountEngine, root: Arc<str>) -> Self {
        Self { engine, root }
    }

    /// Starts to look for all of `paths`, and counts what it finds. It ends early when the receiver is dropped.
    pub fn start(&self, paths: Arc<[Asked]>, tally: Option<Arc<Tally>>) -> Receiver<Told> {
        let (sender, receiver) = channel(AHEAD_MAX);
        let lister = self.clone();
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
                let tally = tally.clone();
                under_way.spawn(async move {
                    let listed = lister.path(&paths[n], &sender, tally.as_deref()).await;
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
        });
        receiver
    }

    async fn path(
        &self,
        asked: &Asked,
        to: &Sender<Told>,
        tally: Option<&Tally>,
    ) -> Result<(), ListError> {
        match self.look(&asked.path).await? {
            _ if asked.covered => Ok(()),
            Place::Directory(prefix, first) => self.directory(&prefix, first, to, tally).await,
            Place::File(meta) => {
                if let Some(tally) = tally {
                    tally.found(meta.size_bytes);
                }
                let _ = to.send(Told::File(meta)).await;
                Ok(())
            }
        }
    }

    /// What `path` is.
    ///
    /// # Errors
    /// Why it cannot be told, or that it is not there.
    pub async fn look(&self, path: &str) -> Result<Place, String> {
        let name = path.trim_end_matches('/');
        if name.is_empty() {
            let first = self.page(&self.root, None).await?;
            return Ok(Place::Directory(self.root.clone(), first));
        }
        let key: Arc<str> = format!("{}{name}", self.root).into();
        let is_path = name.split('/').all(|part| check_name(part).is_ok());
        if !is_path || key.len() > KEY_BYTES_MAX {
            return Err(no_such());
        }
        // As the mount does it: whatever is below makes it a directory.
        let prefix: Arc<str> = format!("{key}/").into();
        let below = async {
            match prefix.len() > KEY_BYTES_MAX {
                true => Ok(Arc::default()),
                false => self.page(&prefix, None).await,
            }
        };
        let (below, object) = tokio::join!(below, self.engine.head(&key));
        let below = below?;
        if !below.entries.is_empty() || below.left_out > 0 {
            return Ok(Place::Directory(prefix, below));
        }
        match object? {
            Some(_) if path.ends_with('/') => Err("not a directory".to_owned()),
            Some(meta) => Ok(Place::File(meta)),
            None => Err(no_such()),
        }
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

    async fn directory(
        &self,
        prefix: &Arc<str>,
        first: Arc<ListPage>,
        to: &Sender<Told>,
        tally: Option<&Tally>,
    ) -> Result<(), ListError> {
        let (mut page, mut waiting, mut out) = (first, Waiting::default(), Vec::new());
        loop {
            let mut left_out = u64::from(page.left_out);
            for entry in &page.entries {
                if let ListEntry::Object(meta) = entry {
                    left_out += waiting.feed(&self.root, meta.clone(), &mut out);
                }
            }
            if page.next.is_none() {
                waiting.finish(&mut out);
            }
            if let Some(tally) = tally {
                out.iter().for_each(|meta| tally.found(meta.size_bytes));
                tally.left_out(left_out);
            }
            for meta in out.drain(..) {
                if to.send(Told::File(meta)).await.is_err() {
                    return Ok(());
                }
            }
            let Some(next) = page.next.clone() else {
                return Ok(());
            };
            page = self
                .page(prefix, Some(next))
                .await
                .map_err(ListError::BrokeOff)?;
        }
    }
}

fn no_such() -> String {
    "no such file or directory".to_owned()
}
