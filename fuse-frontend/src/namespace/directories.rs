//! Open directories, and what the kernel keeps of their listings.
//!
//! The kernel keeps the entries that a handle read, and shows them to whoever opens the directory while their time to live
//! lasts: nobody is asked then, not even this mount.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_engine::client::Told;
use forebay_engine::errors::OriginError;
use forebay_engine::limits::LIST_PAGE_ENTRIES;
use forebay_engine::ports::{ListPage, ListRequest, Time};
use fuser::Errno;

use super::directory::{After, DirSink, Directory, Fetch};
use super::emitter::Emitter;
use super::inodes::Node;
use super::{Namespace, count};
use crate::reply::{ReadReply, origin_errno};

/// What the kernel may do with a directory's listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelListing {
    /// Nothing: each reader asks.
    Never,
    /// Forget what it kept, and keep what this handle reads.
    Anew,
    /// Show what it kept.
    Kept,
}

/// A directory that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedDirectory {
    /// Its handle.
    pub handle: u64,
    /// What the kernel may do with its listing.
    pub listing: KernelListing,
}

impl<R: ReadReply> Namespace<R> {
    /// Opens a directory; [`Namespace::releasedir`] closes it.
    ///
    /// # Errors
    /// ESTALE for an unknown inode, ENOTDIR.
    pub fn opendir(&self, number: u64) -> Result<OpenedDirectory, Errno> {
        let mut inodes = self.inodes.lock();
        let prefix = match inodes.get(number) {
            Some(Node::Directory(prefix)) => prefix,
            Some(Node::File(_)) => return Err(Errno::ENOTDIR),
            None => return Err(Errno::ESTALE),
        };
        let at = inodes.whole_listed(number);
        let listing = match at.is_some_and(|at| self.is_believed(&prefix, at)) {
            true => KernelListing::Kept,
            false => {
                inodes.listing_dropped(number);
                match self.attr_ttl.is_zero() {
                    true => KernelListing::Never,
                    false => KernelListing::Anew,
                }
            }
        };
        inodes.opened(number);
        drop(inodes);
        let handle = self.next_directory.fetch_add(1, Ordering::Relaxed);
        let directory = Arc::new(Directory::new(handle, number, prefix));
        self.directories.lock().insert(handle, directory);
        Ok(OpenedDirectory { handle, listing })
    }

    /// Whether what was listed of directory `prefix` at `at` is still believed.
    fn is_believed(&self, prefix: &str, at: Time) -> bool {
        self.client.now().since(at) < self.max_age(prefix)
    }

    /// Open directories of which the kernel may keep a listing that is not believed any more: who reads them again from the
    /// start would be shown that.
    pub(crate) fn outlived_listings(&self) -> Vec<u64> {
        let open: Vec<Arc<Directory>> = self.directories.lock().values().cloned().collect();
        let inodes = self.inodes.lock();
        let outlived = open.iter().filter(|directory| {
            let at = inodes.oldest_listed(directory.number);
            let is_believed = |at| self.is_believed(&directory.prefix, at);
            at.is_some_and(|at| !at.is_some_and(is_believed))
        });
        outlived.map(|directory| directory.number).collect()
    }

    /// Gives entries of an open directory to `sink`, from `offset` on. Entries given with
    /// attributes count as lookups, `.` and `..` do not.
    ///
    /// # Errors
    /// To the sink: EBADF, EACCES when the origin refuses, EIO when it fails.
    pub fn readdir(self: &Arc<Self>, handle: u64, offset: u64, sink: Box<dyn DirSink>) {
        let directory = self.directories.lock().get(&handle).cloned();
        let Some(directory) = directory else {
            return sink.finish(Err(Errno::EBADF));
        };
        let emitter = Emitter {
            namespace: self,
            directory: &directory,
        };
        let after = directory.read(offset, sink, &emitter);
        self.finish_listing(directory, after);
    }

    fn finish_listing(self: &Arc<Self>, directory: Arc<Directory>, after: After) {
        if let Some(at) = after.oldest {
            // Before the kernel has it. A directory of very many entries is not kept: for each of them that it forgets the
            // origin would be asked by name, which costs more than to list it again.
            let at = Some(at).filter(|_| !after.is_not_kept);
            let whole = after.is_whole;
            self.inodes
                .lock()
                .listed(directory.number, directory.handle, at, whole);
        }
        for (sink, result) in after.finished {
            sink.finish(result);
        }
        if let Some(fetch) = after.fetch {
            self.fetch_page(directory, fetch);
        }
    }

    fn fetch_page(self: &Arc<Self>, directory: Arc<Directory>, fetch: Fetch) {
        count(&self.counters.pages_listed);
        let request = ListRequest {
            bucket: self.bucket.clone(),
            prefix: directory.prefix.clone(),
            delimited: true,
            continuation: fetch.continuation.clone(),
            entries_max: LIST_PAGE_ENTRIES,
        };
        let this = self.clone();
        let asked = self.client.now();
        let max_age = self.max_age(&directory.prefix);
        let arrived = move |answer: Told<Arc<ListPage>>| {
            let (answer, at) = (answer.result, answer.at.min(asked));
            let namespace = this.clone();
            namespace
                .helper
                .run(move || this.page_arrived(directory, fetch, answer, at));
        };
        self.list(request, max_age.into(), Box::new(arrived));
    }

    fn page_arrived(
        self: &Arc<Self>,
        directory: Arc<Directory>,
        fetch: Fetch,
        answer: Result<Arc<ListPage>, OriginError>,
        asked: Time,
    ) {
        let listed = match &answer {
            Ok(listed) => Ok(&**listed),
            Err(error) => Err(origin_errno(error)),
        };
        let mut left_out = |kind, n, key: &str| self.left_out.note(kind, n, key, asked);
        let emitter = Emitter {
            namespace: self,
            directory: &directory,
        };
        let after = directory.arrived(&fetch, listed, asked, &emitter, &mut left_out);
        self.finish_listing(directory, after);
    }

    /// Closes a directory.
    pub fn releasedir(&self, handle: u64) {
        let directory = self.directories.lock().remove(&handle);
        if let Some(directory) = directory {
            self.inodes.lock().closed(directory.number);
        }
    }
}
