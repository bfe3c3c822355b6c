//! A device that somebody else resets, or takes away, while it is driven.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_cli::host::arena_for_devices;
use forebay_engine::ports::{BlockDevice, DeviceError};
use forebay_nvme_spdk::{Address, Environment, EnvironmentOptions, Loss, Namespace, OpenOptions};

use crate::bench::{Bench, CAPACITY_BYTES, MIB, PATIENCE};
use crate::device::Taken;

const BLOCKS: u64 = 8;
const BLOCK_BYTES: usize = 128 << 10;

fn options() -> OpenOptions {
    OpenOptions {
        capacity_bytes: Some(CAPACITY_BYTES),
        timeout: Duration::from_secs(3),
        ..OpenOptions::default()
    }
}

fn byte(block: u64) -> u8 {
    block as u8 + 1
}

/// Reads of all blocks, begun together; those that end well bring what was written there.
fn read_all(bench: &mut Bench) -> Vec<Result<(), DeviceError>> {
    let begun: Vec<u64> = (0..BLOCKS)
        .map(|block| bench.begin_read(block * MIB, BLOCK_BYTES))
        .collect();
    let end = |_| {
        let (tag, end) = bench.wait_tagged();
        let block = begun.iter().position(|one| *one == tag).unwrap();
        let expected = byte(block as u64);
        end.map(|bytes| {
            let wrong = bytes.iter().position(|byte| *byte != expected);
            assert_eq!(wrong.map(|at| (at, bytes[at])), None, "not {expected}");
        })
    };
    (0..BLOCKS).map(end).collect()
}

/// `echo 1 > reset` by an administrator: the controller forgets its queues, and answers nothing any more.
#[test]
fn a_controller_that_is_reset_by_others_gives_no_wrong_byte() {
    let Some(taken) = Taken::new() else { return };
    let reset = PathBuf::from(format!("/sys/bus/pci/devices/{}/reset", taken.address));
    assert!(reset.exists(), "the emulated device can be reset");
    let namespace = taken.open(&options());
    let mut bench = Bench::new(&namespace);
    for block in 0..BLOCKS {
        bench.write(block * MIB, byte(block), BLOCK_BYTES).unwrap();
    }
    assert!(read_all(&mut bench).iter().all(Result::is_ok));
    let resets = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        fs::write(reset, "1")
    });
    let deadline = Instant::now() + PATIENCE;
    while !read_all(&mut bench).contains(&Err(DeviceError::Gone)) {
        assert!(Instant::now() < deadline, "it was not reset");
    }
    resets.join().unwrap().unwrap();
    let loss = namespace.loss();
    assert!(
        matches!(loss, Some(Loss::TimedOut(_) | Loss::Failed)),
        "{loss:?}"
    );
    assert_eq!(bench.write(0, 9, 4096), Err(DeviceError::Gone));
    bench.assert_nothing_lent();
    drop(bench);
    drop(namespace);
    // Opened anew it works, and what was written is there.
    let again = taken.open(&options());
    let mut bench = Bench::new(&again);
    assert!(read_all(&mut bench).iter().all(Result::is_ok));
}

/// Nothing of it answers any more, and nothing shows that it reaches memory no more. (That the registers themselves go away is tried in
/// `nvme-spdk`: here the kernel leaves them.)
#[test]
fn a_device_without_an_iommu_that_is_taken_away_ends_no_process() {
    let Some(taken) = Taken::bare() else { return };
    let namespace = taken.open(&options());
    let arena = arena_for_devices(16 << 20).unwrap();
    let mut bench = Bench::on(&namespace, arena);
    bench.write(0, 7, BLOCK_BYTES).unwrap();
    assert_eq!(bench.read(0, BLOCK_BYTES).unwrap(), [7; BLOCK_BYTES]);
    take_away(&taken);
    // Its buffer stays with it.
    bench.begin_read(0, BLOCK_BYTES);
    let deadline = Instant::now() + PATIENCE;
    while namespace.loss().is_none() {
        assert!(Instant::now() < deadline, "it is not missed");
        assert!(bench.device.poll().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bench.write(0, 1, 4096), Err(DeviceError::Gone));
    let begun = Instant::now();
    drop(bench);
    drop(namespace);
    assert!(begun.elapsed() < PATIENCE, "its end waits for nothing");
    bring_back(&taken);
}

/// SPDK hears of it when it attaches another one, and ends what is under way by its own word: the device may still write.
#[test]
fn what_spdk_ends_for_a_device_that_is_taken_away_stays_with_it() {
    let Some(taken) = Taken::bare() else { return };
    let other = Taken::other("forebay", "uio_pci_generic");
    let both = [&taken, &other].map(|one| one.nvme());
    let pci = both.iter().filter_map(Address::pci).collect();
    let environment = Environment::start(&EnvironmentOptions { pci }).unwrap();
    // Longer than this takes: it is not known to hang.
    let namespace = taken.open_part();
    let mut bench = Bench::on(&namespace, arena_for_devices(16 << 20).unwrap());
    bench.write(0, 7, BLOCK_BYTES).unwrap();
    take_away(&taken);
    bench.begin_read(0, BLOCK_BYTES);
    assert!(bench.device.poll().is_none());
    drop(Namespace::open(&environment, &both[1], &OpenOptions::default()).unwrap());
    let deadline = Instant::now() + PATIENCE;
    while namespace.loss().is_none() {
        assert!(Instant::now() < deadline, "it is not missed");
        assert!(
            bench.device.poll().is_none(),
            "not disarmed, and given back"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    // By SPDK, whose thread for it may know first, and not because the read takes long.
    let loss = namespace.loss();
    assert!(
        matches!(loss, Some(Loss::Failed | Loss::Removed)),
        "{loss:?}"
    );
    for _ in 0..100 {
        assert!(
            bench.device.poll().is_none(),
            "not disarmed, and given back"
        );
    }
    drop(bench);
    drop(namespace);
    bring_back(&taken);
    other.give_to("nvme");
}

fn take_away(taken: &Taken) {
    let device = Path::new("/sys/bus/pci/devices").join(&taken.address);
    fs::write(device.join("remove"), "1").unwrap();
    assert!(!device.exists());
}

/// The kernel finds it, and takes it.
fn bring_back(taken: &Taken) {
    fs::write("/sys/bus/pci/rescan", "1").unwrap();
    let device = Path::new("/sys/bus/pci/devices").join(&taken.address);
    let deadline = Instant::now() + PATIENCE;
    while !device.join("driver").exists() {
        assert!(
            Instant::now() < deadline,
            "the kernel does not take it again"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
