//! `--metadata-only`: every directory is listed as the mount lists it, so that the members that own the names know
//! the answers for their lifetime, and the mount remembers the names.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_engine::limits::LIST_PAGE_ENTRIES;
use forebay_engine::ports::{ListEntry, ListPage, ListRequest, Time};
use forebay_fuse::namespace::check_name;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::engine::MountEngine;
use super::listing::{Lister, Place};
use super::names::{Leave, Renewal};
use super::once::Asked;
use super::tally::Tally;

/// Goes through directories, several at once.
pub struct Walk {
    /// Asks.
    pub engine: MountEngine,
    /// Tells what a path is.
    pub lister: Lister,
    /// Of the mount: empty, or ending in a slash.
    pub root: Arc<str>,
    /// Counts.
    pub tally: Arc<Tally>,
    /// How many directories at once, less one.
    pub permits: Arc<Semaphore>,
}

impl Walk {
    /// Goes through all of `paths`.
    pub async fn run(self: Arc<Self>, paths: &[Asked]) {
        let renewal = self.lister.renewal(Leave::Asked);
        for Asked { path, covered } in paths {
            match self.lister.look(path, &renewal).await {
                Ok(_) if *covered => {}
                Ok(Place::Directory(prefix)) => {
                    let tree = Arc::new(Tree {
                        walk: self.clone(),
                        renewal: renewal.clone(),
                        is_whole: AtomicBool::new(true),
                    });
                    tree.clone().directory(prefix.clone()).await;
                    if tree.is_whole.load(Ordering::Relaxed) {
                        renewal.listed(&prefix);
                    }
                }
                Ok(Place::File(meta)) => {
                    self.tally.found(meta.size_bytes);
                    self.tally.file_done();
                }
                Err(reason) => self.tally.failed(path, reason),
            }
        }
        self.tally.listed();
        renewal.finish().await;
    }
}

/// A directory that was asked for, with all below it.
struct Tree {
    walk: Arc<Walk>,
    renewal: Arc<Renewal>,
    /// No listing has failed.
    is_whole: AtomicBool,
}

impl Tree {
    /// A directory and all below it: each in a task of its own while there are permits, else here.
    fn directory(self: Arc<Self>, prefix: Arc<str>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let mut below = JoinSet::new();
            let mut request = ListRequest {
                bucket: self.walk.engine.bucket().clone(),
                prefix: prefix.clone(),
                delimited: true,
                continuation: None,
                entries_max: LIST_PAGE_ENTRIES,
            };
            loop {
                let asked = self.walk.engine.client().now();
                let page = match self.walk.engine.list(&request).await {
                    Ok(page) => page,
                    Err(error) => {
                        self.is_whole.store(false, Ordering::Relaxed);
                        let path = prefix.strip_prefix(&*self.walk.root).unwrap_or(&prefix);
                        let reason = format!("not listed: {error}");
                        self.walk.tally.failed(path, reason);
                        break;
                    }
                };
                for directory in self.learn(&prefix, &page, asked) {
                    match self.walk.permits.clone().try_acquire_owned() {
                        Ok(permit) => {
                            let tree = self.clone();
                            below.spawn(async move {
                                tree.directory(directory).await;
                                drop(permit);
                            });
                        }
                        Err(_) => self.clone().directory(directory).await,
                    }
                    while below.try_join_next().is_some() {}
                }
                request.continuation = page.next.clone();
                if request.continuation.is_none() {
                    break;
                }
            }
            while below.join_next().await.is_some() {}
        })
    }

    /// Learns a page's names; returns its directories.
    fn learn(&self, prefix: &str, page: &ListPage, asked: Time) -> Vec<Arc<str>> {
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for entry in &page.entries {
            let key: &Arc<str> = match entry {
                ListEntry::Object(meta) => &meta.key,
                ListEntry::Prefix(key) => key,
            };
            let name = key.strip_prefix(prefix).unwrap_or("");
            if name.is_empty() {
                continue;
            }
            if check_name(name.strip_suffix('/').unwrap_or(name)).is_err() {
                self.walk.tally.left_out(1);
                continue;
            }
            match entry {
                ListEntry::Object(meta) => {
                    self.walk.tally.found(meta.size_bytes);
                    self.walk.tally.file_done();
                    files.push(meta.clone());
                }
                ListEntry::Prefix(_) => directories.push(key.clone()),
            }
        }
        self.renewal.learn(&files, &directories, asked);
        directories
    }
}
