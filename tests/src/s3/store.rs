//! Buckets and objects in memory.

use std::collections::{BTreeMap, hash_map::DefaultHasher};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use parking_lot::RwLock;

use super::synthetic::synthetic_bytes;

/// What an object holds.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// These bytes, served without copying.
    Bytes(Bytes),
    /// A function of (seed, offset).
    Synthetic { seed: u64, size_bytes: u64 },
}

impl Content {
    pub(super) fn len_bytes(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Synthetic { size_bytes, .. } => *size_bytes,
        }
    }

    /// `len` bytes from `offset`; the caller keeps within the object.
    pub(super) fn slice(&self, offset: u64, len: usize) -> Bytes {
        match self {
            Content::Bytes(bytes) => bytes.slice(offset as usize..offset as usize + len),
            Content::Synthetic { seed, .. } => {
                let mut made = vec![0; len];
                synthetic_bytes(*seed, offset, &mut made);
                made.into()
            }
        }
    }

    /// Other content of the same length.
    pub(super) fn altered(&self) -> Content {
        match self {
            Content::Bytes(bytes) => Content::Bytes(bytes.iter().map(|byte| byte ^ 0xff).collect()),
            Content::Synthetic { seed, size_bytes } => Content::Synthetic {
                seed: seed.wrapping_add(1),
                size_bytes: *size_bytes,
            },
        }
    }

    /// The same content gives the same ETag. The suffix keeps clients from taking it for an MD5.
    fn etag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        match self {
            Content::Bytes(bytes) => bytes.hash(&mut hasher),
            Content::Synthetic { seed, .. } => ("synthetic", seed).hash(&mut hasher),
        }
        format!("{:016x}{:016x}-1", hasher.finish(), self.len_bytes())
    }
}

/// One version of an object.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) content: Content,
    /// Without quotes.
    pub(super) etag: String,
    pub(super) modified: SystemTime,
}

type Objects = BTreeMap<Vec<u8>, Arc<Stored>>;

/// All buckets. Keys are bytes: real buckets hold keys that are no UTF-8.
#[derive(Debug, Default)]
pub(super) struct Store(RwLock<BTreeMap<String, Objects>>);

impl Store {
    pub(super) fn create_bucket(&self, bucket: &str) {
        self.0.write().entry(bucket.to_owned()).or_default();
    }

    pub(super) fn has_bucket(&self, bucket: &str) -> bool {
        self.0.read().contains_key(bucket)
    }

    pub(super) fn buckets(&self) -> Vec<String> {
        self.0.read().keys().cloned().collect()
    }

    /// Puts an object (making the bucket if need be) and returns its ETag, without quotes.
    pub(super) fn put(&self, bucket: &str, key: &[u8], content: Content) -> String {
        let stored = Stored {
            etag: content.etag(),
            content,
            modified: SystemTime::now(),
        };
        let etag = stored.etag.clone();
        let mut buckets = self.0.write();
        buckets
            .entry(bucket.to_owned())
            .or_default()
            .insert(key.to_vec(), Arc::new(stored));
        etag
    }

    pub(super) fn get(&self, bucket: &str, key: &[u8]) -> Option<Arc<Stored>> {
        self.0.read().get(bucket)?.get(key).cloned()
    }

    pub(super) fn delete(&self, bucket: &str, key: &[u8]) -> bool {
        self.0
            .write()
            .get_mut(bucket)
            .is_some_and(|objects| objects.remove(key).is_some())
    }

    /// Calls `visit` for the objects of a bucket from key `from` on, in byte order. `visit` says
    /// where to go on: at the next key, at the first key not below the one given, or nowhere.
    pub(super) fn walk(
        &self,
        bucket: &str,
        from: &[u8],
        mut visit: impl FnMut(&[u8], &Arc<Stored>) -> Walk,
    ) {
        let buckets = self.0.read();
        let Some(objects) = buckets.get(bucket) else {
            return;
        };
        let mut range = objects.range(from.to_vec()..);
        while let Some((key, stored)) = range.next() {
            match visit(key, stored) {
                Walk::Next => {}
                Walk::From(next) => range = objects.range(next..),
                Walk::Stop => return,
            }
        }
    }
}

/// Where a walk goes on.
pub(super) enum Walk {
    Next,
    From(Vec<u8>),
    Stop,
}
