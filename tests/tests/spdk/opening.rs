//! What cannot be opened, and what is found on a namespace.

use forebay_cli::cache::blocking::Blocking;
use forebay_cli::cache::opening::read_superblock;
use forebay_engine::disk::layout::NotOurs;
use forebay_engine::ports::DeviceError;
use forebay_nvme_spdk::{OpenError, OpenOptions, QueueOptions};

use crate::bench::{Bench, CAPACITY_BYTES, MIB, open, open_with, target};

#[test]
fn what_cannot_be_opened_says_why() {
    let Some(target) = target("opening") else {
        return;
    };
    let there = target.add("there", CAPACITY_BYTES, 4096).unwrap();
    let refused =
        |transport_id: &str, options: &OpenOptions| open_with(transport_id, options).unwrap_err();
    let plain = OpenOptions::default();
    let error = refused(&format!("{there} ns:7"), &plain);
    let OpenError::NoNamespace {
        namespace, found, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((*namespace, found.as_slice()), (7, [1].as_slice()));
    let larger = OpenOptions {
        capacity_bytes: Some(CAPACITY_BYTES + 4096),
        ..plain
    };
    let error = refused(&there, &larger);
    assert!(
        matches!(
            error,
            OpenError::Size {
                have_bytes: CAPACITY_BYTES,
                ..
            }
        ),
        "{error}"
    );
    let error = refused(&target.transport_id("nowhere"), &plain);
    assert!(matches!(error, OpenError::Attach(_)), "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
    let error = refused("pci:0000:5e:00.0", &plain);
    assert!(matches!(error, OpenError::NotAllowed(_)), "{error}");
    // A part of it, and all that the controller says of itself.
    let part = OpenOptions {
        capacity_bytes: Some(MIB + 100),
        ..plain
    };
    let namespace = open_with(&format!("{there} ns:1"), &part).unwrap();
    assert_eq!(namespace.geometry().capacity_bytes, MIB);
    assert_eq!(namespace.number(), 1);
    assert!(!namespace.model().is_empty() && !namespace.serial().is_empty());
}

#[test]
fn a_namespace_opened_for_reading_is_never_changed() {
    let Some(target) = target("reading only") else {
        return;
    };
    let there = target.add("ro", CAPACITY_BYTES, 512).unwrap();
    Bench::new(&open(&there)).write(MIB, 7, 4096).unwrap();
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let namespace = open_with(&there, &options).unwrap();
    assert!(namespace.is_read_only());
    let mut bench = Bench::new(&namespace);
    assert_eq!(bench.write(MIB, 8, 4096), Err(DeviceError::ReadOnly));
    assert_eq!(bench.discard(0, CAPACITY_BYTES), Err(DeviceError::ReadOnly));
    assert_eq!(bench.read(MIB, 4096).unwrap(), [7; 4096]);
    bench.flush().unwrap();
}

/// The check that keeps `--cache-dir` from overwriting what others have, on a namespace.
#[test]
fn what_a_namespace_holds_is_told_before_anything_is_written() {
    let Some(target) = target("foreign content") else {
        return;
    };
    let namespace = open(&target.add("foreign", CAPACITY_BYTES, 512).unwrap());
    let found = || {
        let device = |arena: &mut forebay_engine::arena::Arena| {
            Ok(namespace.queue_pair(&arena.mapping(), &QueueOptions::default())?)
        };
        read_superblock(&mut Blocking::new(device).unwrap()).unwrap()
    };
    assert!(matches!(found(), Err(NotOurs::Blank)), "{:?}", found());
    // A partition table's signature, and what mkfs.ext4 leaves.
    for (offset, bytes) in [(510, [0x55, 0xaa]), (1024 + 0x38, [0x53, 0xef])] {
        let mut device = Blocking::new(|arena| {
            Ok(namespace.queue_pair(&arena.mapping(), &QueueOptions::default())?)
        })
        .unwrap();
        let mut head = vec![0; 4096];
        head[offset..offset + 2].copy_from_slice(&bytes);
        device.write(0, &head).unwrap();
        device.flush().unwrap();
        assert!(matches!(found(), Err(NotOurs::Foreign(_))), "{:?}", found());
    }
}
