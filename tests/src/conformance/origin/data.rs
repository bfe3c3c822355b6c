//! GETs: the right bytes, of the version asked for.

use forebay_engine::errors::OriginErrorKind::VersionChanged;

use super::world::{Harness, OriginWorld, SPAN};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Every size of part and every alignment, up to the object's last byte.
pub fn right_bytes_at_all_part_sizes(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    let size = 3 * MIB as u64 + 17;
    harness.world.put("data/object", size, 1);
    let object = harness.version("data/object");
    assert_eq!(object.size_bytes, size);
    let whole = [MIB, MIB, MIB, 17];
    let mixed = [1, 4 * KIB, 100, 64 * KIB, 3, MIB, 64 * KIB - 1];
    let sub_blocks = [64 * KIB; 16];
    let end = |parts: &[usize]| size - parts.iter().sum::<usize>() as u64;
    for (offset, parts) in [
        (0, &whole[..]),
        (0, &[1]),
        (size - 1, &[1]),
        (4095, &[2]),
        (MIB as u64 - 1, &[4 * KIB]),
        (64 * KIB as u64, &sub_blocks),
        (1, &mixed),
        (end(&mixed), &mixed),
    ] {
        let outcome = harness.get(&object, offset, parts);
        assert_eq!(outcome.result, Ok(()), "{parts:?} from {offset}");
        assert_eq!(outcome.wasted_bytes, 0);
        harness.check_bytes("data/object", size, 1, offset, &outcome.filled);
    }
    harness.finish();
}

/// Many at a time, of several objects, with HEADs in between; each gets its own bytes.
pub fn many_gets_at_once(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    let (size, len) = (512 * KIB as u64, 64 * KIB);
    let keys: Vec<String> = (0..4).map(|n| format!("many/{n}")).collect();
    let mut objects = Vec::new();
    for key in &keys {
        harness.world.put(key, size, 7);
        objects.push(harness.version(key));
    }
    let mut gets = Vec::new();
    let mut heads = Vec::new();
    for offset in (0..size).step_by(len) {
        for (key, object) in keys.iter().zip(&objects) {
            gets.push((
                key,
                offset,
                harness.start_get(object, offset, &[len / 2, len / 2], SPAN),
            ));
        }
        heads.push(harness.start_head(&keys[0], SPAN));
    }
    for (key, offset, tag) in gets {
        let outcome = harness.finish_get(tag, SPAN);
        assert_eq!(outcome.result, Ok(()));
        harness.check_bytes(key, size, 7, offset, &outcome.filled);
    }
    for tag in heads {
        assert_eq!(
            harness.finish_head(tag, SPAN).map(|meta| meta.size_bytes),
            Ok(size)
        );
    }
    harness.finish();
}

/// A GET of the old version of an overwritten object fails; one of the new version succeeds.
pub fn an_overwritten_object_is_another_version(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    harness.world.put("o", 100 * KIB as u64, 1);
    let old = harness.version("o");
    harness.world.put("o", 100 * KIB as u64, 2);
    let outcome = harness.get(&old, 10, &[4 * KIB]);
    assert_eq!(outcome.kind(), Some(VersionChanged));
    assert!(outcome.filled.is_empty());
    drop(outcome);
    let new = harness.version("o");
    assert_ne!(new.id, old.id);
    let outcome = harness.get(&new, 10, &[4 * KIB]);
    assert_eq!(outcome.result, Ok(()));
    harness.check_bytes("o", 100 * KIB as u64, 2, 10, &outcome.filled);
    drop(outcome);
    harness.finish();
}

/// An object that is gone no longer has the version.
pub fn a_deleted_object_is_another_version(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    harness.world.put("gone", 4 * KIB as u64, 1);
    let old = harness.version("gone");
    harness.world.delete("gone");
    assert_eq!(
        harness.get(&old, 0, &[4 * KIB]).kind(),
        Some(VersionChanged)
    );
    harness.finish();
}

/// A range beyond the end of what the object became.
pub fn a_range_beyond_a_shrunken_object_is_another_version(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    harness.world.put("shrunk", 200 * KIB as u64, 1);
    let old = harness.version("shrunk");
    harness.world.put("shrunk", 10, 2);
    assert_eq!(
        harness.get(&old, 100 * KIB as u64, &[4 * KIB]).kind(),
        Some(VersionChanged)
    );
    harness.finish();
}
