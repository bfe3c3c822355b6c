//! `--metadata-only`: every directory is listed as the mount lists it, so that the members that own the names know
//! the answers for their lifetime, and the mount remembers the names.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use forebay_engine::limits::LIST_PAGE_ENTRIES;
use forebay_engine::ports::{ListEntry, ListPage, ListRequest};
use forebay_fuse::FuseReply;
use forebay_fuse::namespace::{Kind, Namespace, check_name};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::engine::MountEngine;
use super::listing::{Lister, Place};
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
    /// Remembers names.
    pub namespace: Arc<Namespace<FuseReply>>,
    /// Counts.
    pub tally: Arc<Tally>,
    /// How many directories at once, less one.
    pub permits: Arc<Semaphore>,
}

impl Walk {
    /// Goes through all of `paths`.
    pub async fn run(self: Arc<Self>, paths: &[Asked]) {
        for Asked { path, covered } in paths {
            let asked = self.engine.client().now();
            match self.lister.look(path).await {
                Ok(_) if *covered => {}
                Ok(Place::Directory(prefix, _)) => self.clone().directory(prefix).await,
                Ok(Place::File(meta)) => {
                    self.tally.found(meta.size_bytes);
                    self.tally.file_done();
                    self.namespace
                        .learn(meta.key.clone(), Kind::File(meta), asked);
                }
                Err(reason) => self.tally.failed(path, reason),
            }
        }
        self.tally.listed();
    }

    /// A directory and all below it: each in a task of its own while there are permits, else here.
    fn directory(self: Arc<Self>, prefix: Arc<str>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let mut below = JoinSet::new();
            let mut request = ListRequest {
                bucket: self.engine.bucket().clone(),
                prefix: prefix.clone(),
                delimited: true,
                continuation: None,
                entries_max: LIST_PAGE_ENTRIES,
            };
            loop {
                let asked = self.engine.client().now();
                let page = match self.engine.list(&request).await {
                    Ok(page) => page,
                    Err(error) => {
                        let path = prefix.strip_prefix(&*self.root).unwrap_or(&prefix);
                        self.tally.failed(path, format!("not listed: {error}"));
                        break;
                    }
                };
                for directory in self.learn(&prefix, &page, asked) {
                    match self.permits.clone().try_acquire_owned() {
                        Ok(permit) => {
                            let walk = self.clone();
                            below.spawn(async move {
                                walk.directory(directory).await;
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

    /// Remembers a page's names; returns its directories.
    fn learn(
        &self,
        prefix: &str,
        page: &ListPage,
        asked: forebay_engine::ports::Time,
    ) -> Vec<Arc<str>> {
        let mut directories = Vec::new();
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
                self.tally.left_out(1);
                continue;
            }
            match entry {
                ListEntry::Object(meta) => {
                    self.tally.found(meta.size_bytes);
                    self.tally.file_done();
                    let kind = Kind::File(meta.clone());
                    self.namespace.learn(key.clone(), kind, asked);
                }
                ListEntry::Prefix(_) => {
                    let name = key.trim_end_matches('/').into();
                    self.namespace.learn(name, Kind::Directory, asked);
                    directories.push(key.clone());
                }
            }
        }
        directories
    }
}
