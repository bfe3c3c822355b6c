//! What object versions are called, as peers told.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::index::StableMap;
use crate::identity::{ObjectId, ObjectVersion, Validator};
use crate::limits::NAMES_BYTES_MAX;
use crate::ports::PeerFetch;

/// Beside its strings, about what an entry takes: the version, its bucket, the entries of map and queue, and what
/// the allocator adds.
const ENTRY_BYTES: usize = 384;

/// Object versions that peers described, the oldest forgotten first.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: StableMap<ObjectId, Arc<ObjectVersion>>,
    order: VecDeque<ObjectId>,
    /// What all of them take, about.
    len_bytes: usize,
    /// The last one without a name: who reads an object asks for one part after the other.
    nameless: Option<Arc<ObjectVersion>>,
}

impl Names {
    pub fn learn(&mut self, object: Arc<ObjectVersion>) {
        let id = object.id;
        self.len_bytes += len_bytes(&object);
        if let Some(old) = self.known.insert(id, object) {
            self.len_bytes -= len_bytes(&old);
            return;
        }
        self.order.push_back(id);
        while self.len_bytes > NAMES_BYTES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(old) = self.known.remove(&oldest) {
                self.len_bytes -= len_bytes(&old);
            }
        }
    }

    /// The version, without its name where nobody has told it.
    pub fn version(&mut self, fetch: &PeerFetch) -> Arc<ObjectVersion> {
        if let Some(known) = self.known.get(&fetch.object) {
            return known.clone();
        }
        let is_it = |last: &&Arc<ObjectVersion>| {
            last.id == fetch.object && last.size_bytes == fetch.size_bytes
        };
        if let Some(last) = self.nameless.as_ref().filter(is_it) {
            return last.clone();
        }
        let version = Arc::new(ObjectVersion::nameless(fetch.object, fetch.size_bytes));
        self.nameless = Some(version.clone());
        version
    }
}

/// What an entry takes in memory, about.
fn len_bytes(object: &ObjectVersion) -> usize {
    let etag_bytes = match &object.validator {
        Validator::ETag(etag) => etag.len(),
        Validator::Modified(_) => 0,
    };
    let bucket = &object.bucket;
    ENTRY_BYTES + object.key.len() + etag_bytes + bucket.endpoint.len() + bucket.name.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Bucket;
    use crate::ports::Class;

    fn version(n: u64, key_bytes: usize) -> Arc<ObjectVersion> {
        let bucket = Arc::new(Bucket {
            endpoint: "http://o".into(),
            name: "b".into(),
        });
        let etag = Validator::ETag("\"e\"".into());
        let key = format!("{n:0key_bytes$}");
        Arc::new(ObjectVersion::new(bucket, key.into(), etag, 7))
    }

    #[test]
    fn a_name_that_is_told_is_known_from_then_on() {
        let mut names = Names::default();
        let told = version(1, 10);
        let fetch = |object, size_bytes| PeerFetch {
            object,
            size_bytes,
            offset: 0,
            len_bytes: 1,
            want_bytes: 1,
            class: Class::Demand,
            view: 0,
            cached_only: false,
            forwarded: false,
            verify: false,
        };
        let unknown = names.version(&fetch(told.id, 7));
        assert!(!unknown.is_named() && unknown.id == told.id);
        assert!(Arc::ptr_eq(&unknown, &names.version(&fetch(told.id, 7))));
        // Another length, another version: none of them is taken for the other.
        let other = version(2, 10).id;
        assert_eq!(names.version(&fetch(told.id, 8)).size_bytes, 8);
        assert_eq!(names.version(&fetch(other, 8)).id, other);
        names.learn(told.clone());
        assert!(Arc::ptr_eq(&told, &names.version(&fetch(told.id, 7))));
    }

    #[test]
    fn what_is_remembered_is_bounded_in_bytes_and_the_oldest_goes_first() {
        for key_bytes in [1, 1_024] {
            let mut names = Names::default();
            let many = 2 * NAMES_BYTES_MAX / (ENTRY_BYTES + key_bytes);
            let versions = (0..many as u64).map(|n| version(n, key_bytes));
            let versions: Vec<_> = versions.collect();
            for version in &versions {
                names.learn(version.clone());
                // Told once more, it counts once.
                names.learn(version.clone());
            }
            let sum: usize = names.known.values().map(|known| len_bytes(known)).sum();
            assert_eq!(names.len_bytes, sum);
            assert!(sum <= NAMES_BYTES_MAX && sum > NAMES_BYTES_MAX - 2 * (ENTRY_BYTES + 2_048));
            assert_eq!(names.order.len(), names.known.len());
            let kept = versions.len() - names.known.len();
            for (n, version) in versions.iter().enumerate() {
                assert_eq!(names.known.contains_key(&version.id), n >= kept);
            }
        }
    }
}
