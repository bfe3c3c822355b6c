//! A real NVMe namespace by commands of ours, and by its block device: `ci/softroce` runs this in its guest, which has one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_nvme_uring::{OpenError, OpenOptions, UringFile, block_device_of};
use forebay_tests::devices::uring::conforms;

const CAPACITY_BYTES: u64 = 8 << 20;

/// The device that `FOREBAY_NVME_DEVICE` names (`/dev/ngXnY`), whose contents are lost. Without that name the test is left out.
fn device() -> Option<PathBuf> {
    let Ok(name) = std::env::var("FOREBAY_NVME_DEVICE") else {
        println!(
            "SKIPPED: FOREBAY_NVME_DEVICE names no NVMe namespace that may be overwritten: none was tried here (ci/softroce does, in a guest)"
        );
        return None;
    };
    Some(name.into())
}

fn open(path: &Path) -> Arc<UringFile> {
    let options = OpenOptions {
        capacity_bytes: Some(CAPACITY_BYTES),
        ..OpenOptions::default()
    };
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        match UringFile::open(path, &options) {
            Ok(file) => return file,
            // The kernel takes a while to take back the rings of the test before.
            Err(OpenError::Busy(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_namespace_conforms_by_either_of_its_names() {
    let Some(path) = device() else { return };
    let block = block_device_of(&path).expect("a character device of a namespace");
    for (path, passthrough) in [(path, true), (block, false)] {
        let file = open(&path);
        assert_eq!(file.is_passthrough(), passthrough);
        conforms(&file);
    }
}

#[test]
fn a_controller_tells_of_its_health_by_either_name_of_a_namespace() {
    let Some(path) = device() else { return };
    let block = block_device_of(&path).expect("a character device of a namespace");
    for path in [path, block] {
        let page = open(&path).health().unwrap().expect("an NVMe device");
        let health = forebay_cli::device::health::Health::of(&page);
        // What QEMU makes up: 323 K.
        assert_eq!(health.temperature_c, 50, "{health:?}");
        assert_eq!((health.media_errors, health.used_percent), (0, 0));
        assert!(health.warnings.is_empty(), "{health:?}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = OpenOptions {
        capacity_bytes: Some(CAPACITY_BYTES),
        ..OpenOptions::default()
    };
    let file = UringFile::open(file.path(), &options).unwrap();
    assert!(file.health().unwrap().is_none(), "a file has none");
}
