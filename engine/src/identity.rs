//! What a byte belongs to: bucket, object version, block, stripe, slot.

use std::fmt;
use std::sync::Arc;

use crate::limits::{BLOCK_BYTES, SLOTS, STRIPE_BYTES};

/// A bucket at an endpoint. Two mounts of one bucket spell it the same way, so that their blocks
/// have the same identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    /// The endpoint's URL without a trailing slash; `s3.REGION` for AWS itself.
    pub endpoint: String,
    /// The bucket's name.
    pub name: String,
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.name)
    }
}

/// What tells one version of an object from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Validator {
    /// The ETag as the origin spells it, quotes included.
    ETag(Arc<str>),
    /// No usable ETag: the time of the last change, in nanoseconds since 1970. Weaker: a second
    /// overwrite within the origin's clock resolution and of the same size is not seen.
    Modified(i128),
}

impl fmt::Display for Validator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Validator::ETag(etag) => f.write_str(etag),
            Validator::Modified(ns) => write!(f, "modified:{ns}"),
        }
    }
}

/// 128 bits of BLAKE3 over endpoint, bucket, key, validator and size: the same from every mount
/// of the same bucket, and never the same for two versions of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u128);

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One immutable version of one object. Shared by every request for its bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Identity of the bytes.
    pub id: ObjectId,
    /// Where the object lives.
    pub bucket: Arc<Bucket>,
    /// Its whole key, without the bucket.
    pub key: Arc<str>,
    /// What each ranged GET must answer with.
    pub validator: Validator,
    /// Length in bytes.
    pub size_bytes: u64,
}

impl ObjectVersion {
    /// Names a version; the id follows from the other fields.
    pub fn new(bucket: Arc<Bucket>, key: Arc<str>, validator: Validator, size_bytes: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("forebay object version v1");
        for field in [
            bucket.endpoint.as_bytes(),
            bucket.name.as_bytes(),
            key.as_bytes(),
        ] {
            hasher.update(&(field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
        match &validator {
            Validator::ETag(etag) => {
                hasher.update(b"e");
                hasher.update(&(etag.len() as u64).to_le_bytes());
                hasher.update(etag.as_bytes());
            }
            Validator::Modified(ns) => {
                hasher.update(b"m");
                hasher.update(&ns.to_le_bytes());
            }
        }
        hasher.update(&size_bytes.to_le_bytes());
        let mut id = [0u8; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self {
            id: ObjectId(u128::from_le_bytes(id)),
            bucket,
            key,
            validator,
            size_bytes,
        }
    }

    /// A version that only its id and length are known of: its bytes can be found, not fetched.
    pub fn nameless(id: ObjectId, size_bytes: u64) -> Self {
        Self {
            id,
            bucket: Arc::new(Bucket {
                endpoint: String::new(),
                name: String::new(),
            }),
            key: "".into(),
            validator: Validator::Modified(0),
            size_bytes,
        }
    }

    /// Whether it can be fetched from its origin.
    pub fn is_named(&self) -> bool {
        !self.bucket.name.is_empty()
    }

    /// The block that holds byte `offset`.
    pub fn block(&self, offset: u64) -> BlockId {
        BlockId {
            object: self.id,
            index: (offset / BLOCK_BYTES as u64) as u32,
        }
    }

    /// Bytes of block `index`: [`BLOCK_BYTES`] but for the last, 0 beyond the end.
    pub fn block_len_bytes(&self, index: u32) -> usize {
        let start = u64::from(index) * BLOCK_BYTES as u64;
        self.size_bytes
            .saturating_sub(start)
            .min(BLOCK_BYTES as u64) as usize
    }
}

/// One block of one object version: [`BLOCK_BYTES`] but for an object's last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    /// The object version.
    pub object: ObjectId,
    /// Offset in the object divided by [`BLOCK_BYTES`].
    pub index: u32,
}

impl BlockId {
    /// Where the block begins in its object.
    pub fn offset(&self) -> u64 {
        u64::from(self.index) * BLOCK_BYTES as u64
    }
}

/// A place in the placement table: 0 to [`SLOTS`] - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    /// The slot of the stripe that holds byte `offset` of `object`.
    pub fn of_stripe(object: ObjectId, offset: u64) -> Slot {
        Slot::of(object.0, offset / STRIPE_BYTES as u64)
    }

    /// The slot of a name (metadata).
    pub fn of_name(name: &str) -> Slot {
        let mut id = [0u8; 16];
        id.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..16]);
        Slot::of(u128::from_le_bytes(id), 0)
    }

    fn of(id: u128, n: u64) -> Slot {
        // SplitMix64's finaliser over the id's halves and the stripe: integers only, so the same
        // on every machine. The golden vectors below hold it in place.
        let mut x = (id as u64) ^ ((id >> 64) as u64).rotate_left(32);
        x = x.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        Slot((x % u64::from(SLOTS)) as u32)
    }

    /// Which of `cores` cores the slot belongs to: contiguous, even ranges.
    pub fn core(self, cores: usize) -> usize {
        (u64::from(self.0) * cores as u64 / u64::from(SLOTS)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(key: &str, etag: &str, size_bytes: u64) -> ObjectVersion {
        let bucket = Bucket {
            endpoint: "http://127.0.0.1:9000".into(),
            name: "data".into(),
        };
        ObjectVersion::new(
            Arc::new(bucket),
            key.into(),
            Validator::ETag(etag.into()),
            size_bytes,
        )
    }

    /// Blocks outlive processes and travel between nodes: these values must never change.
    #[test]
    fn golden_ids_and_slots() {
        let object = version("a/b.bin", "\"0123\"", 1 << 30);
        let slots: Vec<u32> = [0, 16 << 20, 1 << 29]
            .map(|offset| Slot::of_stripe(object.id, offset).0)
            .to_vec();
        let name = Slot::of_name("a/").0;
        assert_eq!(
            format!("{} {slots:?} {name}", object.id),
            "15ff5c69e7ce036fba85715bd1b30138 [58927, 52672, 1472] 60793"
        );
    }

    #[test]
    fn every_field_makes_another_version() {
        let base = version("k", "\"e\"", 1);
        let modified = ObjectVersion::new(
            base.bucket.clone(),
            base.key.clone(),
            Validator::Modified(0),
            base.size_bytes,
        );
        let others = [
            version("k2", "\"e\"", 1),
            version("k", "\"f\"", 1),
            version("k", "\"e\"", 2),
            modified,
        ];
        assert!(others.iter().all(|other| other.id != base.id));
        assert_eq!(version("k", "\"e\"", 1).id, base.id);
    }

    #[test]
    fn slots_spread_over_cores_by_even_contiguous_ranges() {
        for cores in [1, 3, 7, 64] {
            let mut counts = vec![0u32; cores];
            let mut last = 0;
            for slot in 0..SLOTS {
                let core = Slot(slot).core(cores);
                assert!(core >= last);
                last = core;
                counts[core] += 1;
            }
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{cores} cores: {counts:?}");
        }
    }

    #[test]
    fn the_last_block_is_as_long_as_the_rest() {
        let object = version("k", "\"e\"", BLOCK_BYTES as u64 + 5);
        assert_eq!(
            [0, 1, 2].map(|n| object.block_len_bytes(n)),
            [BLOCK_BYTES, 5, 0]
        );
    }
}
