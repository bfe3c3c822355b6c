//! From listed entries to what a directory's reader gets, with inode numbers and attributes.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::ports::Time;

use super::Namespace;
use super::directory::{DirSink, Directory, Emit};
use super::inodes::{self, Node, ROOT};
use super::known::Known;
use super::listing::{Kind, Listed};
use crate::reply::ReadReply;

/// Gives the entries of one directory to a sink.
pub(super) struct Emitter<'a, R> {
    pub(super) namespace: &'a Arc<Namespace<R>>,
    pub(super) directory: &'a Directory,
}

impl<R: ReadReply> Emit for Emitter<'_, R> {
    fn dot(&self, sink: &mut dyn DirSink, next: u64, name: &str) -> bool {
        let number = match name {
            "." => self.directory.number,
            _ => self.parent_number(),
        };
        let attr = self.namespace.attributes.directory(number);
        sink.add(next, name, &attr, Duration::ZERO)
    }

    fn entry(&self, sink: &mut dyn DirSink, next: u64, listed: &Listed, at: Time) -> bool {
        let namespace = self.namespace;
        let prefix = &self.directory.prefix;
        if sink.with_attributes() {
            let key = format!("{prefix}{}", listed.name);
            let entry = namespace.entry(&key, &listed.kind, at);
            let ttl = entry.attr_ttl.min(entry.entry_ttl);
            let full = sink.add(next, &listed.name, &entry.attr, ttl);
            if full {
                namespace.forget(entry.attr.ino.0, 1);
            }
            return full;
        }
        let key: Arc<str> = format!("{prefix}{}", listed.name).into();
        let attr = match &listed.kind {
            Kind::Directory => {
                let number = inodes::directory_number(&format!("{key}/"));
                namespace.attributes.directory(number)
            }
            Kind::File(meta) => {
                let number = inodes::file_number(meta.version(&namespace.bucket).id);
                namespace
                    .attributes
                    .file(number, meta.size_bytes, meta.modified_ns)
            }
        };
        let full = sink.add(next, &listed.name, &attr, Duration::ZERO);
        if !full {
            // The kernel may look each of them up next.
            namespace
                .known
                .lock()
                .insert(key, at, Known::Present(listed.kind.clone()));
        }
        full
    }
}

impl<R: ReadReply> Emitter<'_, R> {
    /// The number of the directory above; the root is above itself (the kernel shows what is
    /// really above the mount).
    fn parent_number(&self) -> u64 {
        if self.directory.number == ROOT {
            return ROOT;
        }
        let prefix = self.directory.prefix.trim_end_matches('/');
        let parent = prefix.rfind('/').map_or("", |slash| &prefix[..=slash]);
        match self.namespace.inodes.lock().get(ROOT) {
            Some(Node::Directory(root)) if &*root == parent => ROOT,
            _ => inodes::directory_number(parent),
        }
    }
}
