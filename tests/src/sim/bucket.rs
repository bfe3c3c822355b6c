//! The objects of a simulated bucket. An object's bytes are a function of its version's identity
//! and the offset, so any wrong byte and any mix of versions is seen.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::identity::{Bucket, ObjectId, ObjectVersion, Validator};
use forebay_engine::ports::{ListEntry, ListPage, ListRequest, ObjectMeta, Time};

use super::rng::mix;

const WORD_BYTES: u64 = 8;
/// When virtual time began, as the store's own clock tells it: nanoseconds since 1970.
const BEGINNING_NS: i128 = 1_700_000_000_000_000_000;

/// What generates the bytes of an object.
fn content_seed(id: ObjectId) -> u64 {
    mix(id.0 as u64 ^ mix((id.0 >> 64) as u64))
}

fn word(seed: u64, number: u64) -> [u8; WORD_BYTES as usize] {
    mix(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
}

/// The bytes from `offset` on: what is left of the first word, the number of the first whole word,
/// and how many bytes come before it.
fn first_word(seed: u64, offset: u64, len: usize) -> ([u8; 8], usize, u64, usize) {
    let skip = (offset % WORD_BYTES) as usize;
    let head = if skip == 0 { 0 } else { (8 - skip).min(len) };
    (
        word(seed, offset / WORD_BYTES),
        skip,
        offset.div_ceil(WORD_BYTES),
        head,
    )
}

/// Writes the bytes of `object` from `offset` on.
pub fn fill(object: &ObjectVersion, offset: u64, bytes: &mut [u8]) {
    fill_id(object.id, offset, bytes);
}

/// Writes the bytes of the object `id` from `offset` on.
pub fn fill_id(id: ObjectId, offset: u64, bytes: &mut [u8]) {
    let seed = content_seed(id);
    let (first, skip, number, head) = first_word(seed, offset, bytes.len());
    let (start, rest) = bytes.split_at_mut(head);
    start.copy_from_slice(&first[skip..skip + head]);
    // The hot loop of a run: whole words only.
    let (words, tail) = rest.as_chunks_mut::<8>();
    let mut number = number;
    for bytes in words {
        *bytes = word(seed, number);
        number += 1;
    }
    tail.copy_from_slice(&word(seed, number)[..tail.len()]);
}

/// Where `bytes`, said to be those of `object` from `offset` on, are wrong first; to the word.
pub fn first_wrong(object: &ObjectVersion, offset: u64, bytes: &[u8]) -> Option<u64> {
    first_wrong_id(object.id, offset, bytes)
}

/// The same by the object's id alone.
pub fn first_wrong_id(id: ObjectId, offset: u64, bytes: &[u8]) -> Option<u64> {
    let seed = content_seed(id);
    let (first, skip, number, head) = first_word(seed, offset, bytes.len());
    let (start, rest) = bytes.split_at(head);
    if *start != first[skip..skip + head] {
        return Some(offset);
    }
    let (words, tail) = rest.as_chunks::<8>();
    let mut number = number;
    for bytes in words {
        if *bytes != word(seed, number) {
            return Some(number * WORD_BYTES);
        }
        number += 1;
    }
    (*tail != word(seed, number)[..tail.len()]).then(|| number * WORD_BYTES)
}

/// One version of an object and when it was current.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The version.
    pub version: Arc<ObjectVersion>,
    /// When it was put there.
    pub since: Time,
    modified_ns: i128,
}

impl Generation {
    /// Attributes as a HEAD tells them.
    pub fn meta(&self) -> ObjectMeta {
        ObjectMeta {
            key: self.version.key.clone(),
            size_bytes: self.version.size_bytes,
            validator: self.version.validator.clone(),
            modified_ns: self.modified_ns,
        }
    }
}

/// A bucket with all versions that its objects ever had.
#[derive(Debug)]
pub struct SimBucket {
    /// Its name.
    pub bucket: Arc<Bucket>,
    objects: BTreeMap<Arc<str>, Vec<Generation>>,
}

impl SimBucket {
    /// An empty bucket.
    pub fn new() -> Self {
        let bucket = Bucket {
            endpoint: "http://sim".into(),
            name: "bucket".into(),
        };
        Self {
            bucket: Arc::new(bucket),
            objects: BTreeMap::new(),
        }
    }

    /// Puts a new version of `key`.
    pub fn put(&mut self, key: &str, size_bytes: u64, now: Time) -> Arc<ObjectVersion> {
        let key: Arc<str> = key.into();
        let generations = self.objects.entry(key.clone()).or_default();
        let number = generations.len();
        // Every eighth key has no usable ETag, as on some servers.
        let modified_ns = BEGINNING_NS + i128::from(now.0) + number as i128;
        let validator = if key.bytes().map(u64::from).sum::<u64>() % 8 == 0 {
            Validator::Modified(modified_ns)
        } else {
            Validator::ETag(format!("\"{number}\"").into())
        };
        let version = Arc::new(ObjectVersion::new(
            self.bucket.clone(),
            key,
            validator,
            size_bytes,
        ));
        generations.push(Generation {
            version: version.clone(),
            since: now,
            modified_ns,
        });
        version
    }

    /// Removes `key` and all that it ever was.
    pub fn remove(&mut self, key: &str) {
        self.objects.remove(key);
    }

    /// The version of `key` that is there now.
    pub fn current(&self, key: &str) -> Option<&Generation> {
        self.objects.get(key)?.last()
    }

    /// Every version of `key`, oldest first.
    pub fn generations(&self, key: &str) -> &[Generation] {
        self.objects.get(key).map_or(&[], Vec::as_slice)
    }

    /// All keys, in byte order.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.objects.keys()
    }

    /// One page of a listing.
    pub fn list(&self, request: &ListRequest) -> ListPage {
        let prefix = &*request.prefix;
        let mut page = ListPage::default();
        for (key, generations) in self.objects.range(request.prefix.clone()..) {
            let Some(rest) = key.strip_prefix(prefix) else {
                break;
            };
            let entry = match rest.find('/').filter(|_| request.delimited) {
                Some(slash) => ListEntry::Prefix(key[..prefix.len() + slash + 1].into()),
                None => match generations.last() {
                    Some(generation) => ListEntry::Object(generation.meta()),
                    None => continue,
                },
            };
            let after = request
                .continuation
                .as_deref()
                .is_none_or(|last| entry_name(&entry) > last);
            if !after || page.entries.last() == Some(&entry) {
                continue;
            }
            if page.entries.len() == request.entries_max as usize {
                page.next = page.entries.last().map(|last| entry_name(last).into());
                break;
            }
            page.entries.push(entry);
        }
        page
    }
}

impl Default for SimBucket {
    fn default() -> Self {
        Self::new()
    }
}

/// The key or common prefix of a listing's entry.
pub fn entry_name(entry: &ListEntry) -> &str {
    match entry {
        ListEntry::Object(meta) => &meta.key,
        ListEntry::Prefix(prefix) => prefix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_depend_on_version_and_offset_only() {
        let mut bucket = SimBucket::new();
        let old = bucket.put("a", 100, Time(0));
        let new = bucket.put("a", 100, Time(5));
        let mut bytes = [0u8; 61];
        fill(&old, 3, &mut bytes);
        assert_eq!(first_wrong(&old, 3, &bytes), None);
        assert_eq!(
            first_wrong(&old, 10, &bytes[7..]),
            None,
            "pieces agree with the whole"
        );
        assert!(first_wrong(&new, 3, &bytes).is_some() && first_wrong(&old, 4, &bytes).is_some());
        for (from, to) in [(0, 1), (1, 4), (0, 61), (5, 61), (13, 22), (60, 61)] {
            assert_eq!(first_wrong(&old, 3 + from as u64, &bytes[from..to]), None);
        }
        bytes[60] ^= 1;
        assert_eq!(
            first_wrong(&old, 3, &bytes),
            Some(56),
            "the word that holds byte 63"
        );
    }

    #[test]
    fn pages_of_a_listing_add_up_to_the_whole() {
        let mut bucket = SimBucket::new();
        for key in ["a", "d/1", "d/2", "d/e/3", "f", "g/1"] {
            bucket.put(key, 1, Time(0));
        }
        let mut request = ListRequest {
            bucket: bucket.bucket.clone(),
            prefix: "".into(),
            delimited: true,
            continuation: None,
            entries_max: 1,
        };
        let mut names = Vec::new();
        loop {
            let page = bucket.list(&request);
            names.extend(
                page.entries
                    .iter()
                    .map(|entry| entry_name(entry).to_owned()),
            );
            request.continuation = page.next;
            if request.continuation.is_none() {
                break;
            }
        }
        assert_eq!(names, ["a", "d/", "f", "g/"]);
    }
}
