//! The io_uring device on real files and loop devices.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use forebay_engine::arena::{Arena, Frozen, Share};
use forebay_engine::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceOp, DeviceTag, Full};
use forebay_nvme_uring::{OpenError, OpenOptions, UringDevice, UringFile};
use forebay_tests::conformance::block_device::every_operation_ends;
use forebay_tests::devices::places::{LoopDevice, Mounted, obstacle};
use forebay_tests::devices::uring::{UringRig, conforms, wait};
use rustix::event::{EventfdFlags, eventfd};

const MIB: u64 = 1 << 20;
const CAPACITY_BYTES: u64 = 8 * MIB;

/// A directory on the disk that the workspace is built on.
fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// False, loudly, where a test cannot run.
fn can_make_places(test: &str) -> bool {
    if let Some(why) = obstacle() {
        println!("SKIPPED: {test}: {why}");
    }
    obstacle().is_none()
}

fn create(path: &Path, capacity_bytes: u64) -> Arc<UringFile> {
    let options = OpenOptions {
        capacity_bytes: Some(capacity_bytes),
        create: true,
        ..OpenOptions::default()
    };
    UringFile::open(path, &options).unwrap()
}

#[test]
fn a_file_conforms() {
    let dir = dir();
    let file = create(&dir.path().join("disk"), CAPACITY_BYTES);
    if !file.is_direct() {
        println!("SKIPPED: direct I/O: the file system of this checkout does not take it");
    }
    conforms(&file);
}

#[test]
fn a_file_behind_the_page_cache_conforms() {
    let dir = dir();
    let options = OpenOptions {
        capacity_bytes: Some(CAPACITY_BYTES),
        create: true,
        buffered: true,
        ..OpenOptions::default()
    };
    let file = UringFile::open(&dir.path().join("disk"), &options).unwrap();
    assert!(!file.is_direct());
    conforms(&file);
}

#[test]
fn a_file_in_memory_conforms() {
    if !can_make_places("a file in tmpfs") {
        return;
    }
    let dir = dir();
    let place = Mounted::tmpfs(&dir.path().join("tmpfs"), 4 * CAPACITY_BYTES).unwrap();
    conforms(&create(&place.path().join("disk"), CAPACITY_BYTES));
}

#[test]
fn a_file_system_without_direct_io_and_without_holes_conforms() {
    if !can_make_places("a file in ramfs") {
        return;
    }
    let dir = dir();
    let place = Mounted::ramfs(&dir.path().join("ramfs")).unwrap();
    let file = create(&place.path().join("disk"), CAPACITY_BYTES);
    assert!(
        !file.is_direct(),
        "ramfs takes O_DIRECT now: find another place for this test"
    );
    conforms(&file);
}

#[test]
fn a_block_device_conforms_with_either_sector_size() {
    if !can_make_places("block devices") {
        return;
    }
    for sector_bytes in [512, 4096] {
        let dir = dir();
        let place =
            LoopDevice::new(&dir.path().join("backing"), CAPACITY_BYTES, sector_bytes).unwrap();
        let file = UringFile::open(place.path(), &OpenOptions::default()).unwrap();
        assert!(file.is_block_device());
        assert_eq!(file.geometry().sector_bytes, sector_bytes);
        assert_eq!(file.geometry().capacity_bytes, CAPACITY_BYTES);
        conforms(&file);
    }
}

#[test]
fn a_block_device_that_others_use_is_left_alone() {
    if !can_make_places("a block device in use") {
        return;
    }
    let dir = dir();
    let place = LoopDevice::new(&dir.path().join("backing"), CAPACITY_BYTES, 512).unwrap();
    let file = UringFile::open(place.path(), &OpenOptions::default()).unwrap();
    let second = UringFile::open(place.path(), &OpenOptions::default()).unwrap_err();
    assert!(matches!(second, OpenError::Busy(_)), "{second}");
    let look = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    UringFile::open(place.path(), &look).unwrap();
    drop(file);
    UringFile::open(place.path(), &OpenOptions::default()).unwrap();
    let larger = OpenOptions {
        capacity_bytes: Some(CAPACITY_BYTES + 4096),
        ..OpenOptions::default()
    };
    let error = UringFile::open(place.path(), &larger).unwrap_err();
    assert!(matches!(error, OpenError::Size { .. }), "{error}");
}

/// A queue pair with its buffers, for one operation at a time.
struct Bench {
    arena: Arena,
    event: OwnedFd,
    device: UringDevice,
    tags: u64,
}

impl Bench {
    fn new(file: &Arc<UringFile>) -> Self {
        let arena = Arena::new(16 << 20).unwrap();
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let mut device = file.queue_pair(arena.addresses(), 64).unwrap();
        device.signal_at(event.as_fd()).unwrap();
        Self {
            arena,
            event,
            device,
            tags: 0,
        }
    }

    fn tag(&mut self) -> DeviceTag {
        self.tags += 1;
        DeviceTag(self.tags)
    }

    fn frozen(&mut self, byte: u8, len_bytes: usize) -> Frozen {
        let mut lease = self.arena.lease(len_bytes, Share::Demand).unwrap();
        lease.bytes_mut().fill(byte);
        self.arena.freeze(lease)
    }

    fn run(&mut self, op: DeviceOp) -> DeviceEvent {
        let deadline = Instant::now() + Duration::from_secs(30);
        if let Err(Full(op)) = self.device.submit(op) {
            panic!("one operation is too many: {op:?}");
        }
        self.device.commit();
        loop {
            if let Some(event) = self.device.poll() {
                return event;
            }
            assert!(wait(&self.event, Duration::from_secs(10)), "no signal");
            assert!(Instant::now() < deadline);
        }
    }

    fn write(&mut self, offset_bytes: u64, byte: u8, len_bytes: usize) -> Result<(), DeviceError> {
        let op = DeviceOp::Write {
            tag: self.tag(),
            offset_bytes,
            bytes: self.frozen(byte, len_bytes),
        };
        match self.run(op) {
            DeviceEvent::Write { result, .. } => result,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, offset_bytes: u64, len_bytes: usize) -> Result<Vec<u8>, DeviceError> {
        let op = DeviceOp::Read {
            tag: self.tag(),
            offset_bytes,
            lease: self.arena.lease(len_bytes, Share::Demand).unwrap(),
        };
        match self.run(op) {
            DeviceEvent::Read { result, lease, .. } => result.map(|()| lease.bytes().to_vec()),
            other => panic!("{other:?}"),
        }
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        let op = DeviceOp::Flush { tag: self.tag() };
        match self.run(op) {
            DeviceEvent::Flush { result, .. } => result,
            other => panic!("{other:?}"),
        }
    }

    fn discard(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let op = DeviceOp::Discard {
            tag: self.tag(),
            offset_bytes,
            len_bytes,
        };
        match self.run(op) {
            DeviceEvent::Discard { result, .. } => result,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_discard_gives_a_files_space_back() {
    let dir = dir();
    let file = create(&dir.path().join("disk"), CAPACITY_BYTES);
    let mut bench = Bench::new(&file);
    for mib in 0..8 {
        bench.write(mib * MIB, 1, MIB as usize).unwrap();
    }
    bench.flush().unwrap();
    assert!(file.allocated_bytes().unwrap() >= CAPACITY_BYTES);
    bench.discard(2 * MIB, 4 * MIB).unwrap();
    bench.flush().unwrap();
    let left = file.allocated_bytes().unwrap();
    assert!(left < 5 * MIB, "{left} bytes are still allocated");
    assert_eq!(file.geometry().capacity_bytes, CAPACITY_BYTES);
    assert!(
        bench
            .read(MIB, MIB as usize)
            .unwrap()
            .iter()
            .all(|byte| *byte == 1)
    );
    assert!(
        bench
            .read(6 * MIB, MIB as usize)
            .unwrap()
            .iter()
            .all(|byte| *byte == 1)
    );
}

#[test]
fn a_discard_gives_a_block_devices_space_back() {
    if !can_make_places("discard on a block device") {
        return;
    }
    let dir = dir();
    let place = LoopDevice::new(&dir.path().join("backing"), CAPACITY_BYTES, 4096).unwrap();
    let backing_bytes = || {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(place.backing()).unwrap().blocks() * 512
    };
    let file = UringFile::open(place.path(), &OpenOptions::default()).unwrap();
    let mut bench = Bench::new(&file);
    for mib in 0..8 {
        bench.write(mib * MIB, 1, MIB as usize).unwrap();
    }
    bench.flush().unwrap();
    assert!(backing_bytes() >= CAPACITY_BYTES);
    bench.discard(2 * MIB, 4 * MIB).unwrap();
    bench.flush().unwrap();
    assert!(
        backing_bytes() < 5 * MIB,
        "{} are still allocated",
        backing_bytes()
    );
}

#[test]
fn a_full_file_system_says_so_and_a_discard_makes_room() {
    if !can_make_places("a full file system") {
        return;
    }
    let dir = dir();
    let place = Mounted::tmpfs(&dir.path().join("tmpfs"), 4 * MIB).unwrap();
    let file = create(&place.path().join("disk"), 64 * MIB);
    let mut bench = Bench::new(&file);
    let mut written = 0;
    let error = loop {
        match bench.write(written * MIB, 1, MIB as usize) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 64, "the file system never got full");
    };
    assert_eq!(error, DeviceError::NoSpace);
    assert!(written >= 2);
    assert!(
        bench
            .read(0, MIB as usize)
            .unwrap()
            .iter()
            .all(|byte| *byte == 1)
    );
    // All of it: what the failed write left behind takes room as well.
    bench.discard(MIB, 63 * MIB).unwrap();
    bench.write(32 * MIB, 2, MIB as usize).unwrap();
    assert!(
        bench
            .read(0, MIB as usize)
            .unwrap()
            .iter()
            .all(|byte| *byte == 1)
    );
}

#[test]
fn a_read_only_file_is_read_and_never_changed() {
    let dir = dir();
    let path = dir.path().join("disk");
    let mut bench = Bench::new(&create(&path, CAPACITY_BYTES));
    bench.write(MIB, 7, 4096).unwrap();
    bench.flush().unwrap();
    let before = std::fs::read(&path).unwrap();
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let file = UringFile::open(&path, &options).unwrap();
    assert_eq!(file.geometry().capacity_bytes, CAPACITY_BYTES);
    let mut bench = Bench::new(&file);
    assert!(bench.read(MIB, 4096).unwrap().iter().all(|byte| *byte == 7));
    assert_eq!(bench.write(MIB, 8, 4096), Err(DeviceError::ReadOnly));
    assert_eq!(bench.discard(0, CAPACITY_BYTES), Err(DeviceError::ReadOnly));
    bench.flush().unwrap();
    every_operation_ends(UringRig::new(&file, 16, true), 1).unwrap();
    assert!(std::fs::read(&path).unwrap() == before, "it changed");
}

#[test]
fn a_file_system_that_turns_read_only_is_still_read() {
    if !can_make_places("a file system that turns read-only") {
        return;
    }
    let dir = dir();
    let (mount, backing) = (dir.path().join("mount"), dir.path().join("backing"));
    let place = Mounted::ext4(&mount, &backing, 64 * MIB).unwrap();
    let file = create(&place.path().join("disk"), CAPACITY_BYTES);
    let mut bench = Bench::new(&file);
    bench.write(0, 3, MIB as usize).unwrap();
    bench.flush().unwrap();
    place.break_ext4().unwrap();
    assert_eq!(
        bench.write(4 * MIB, 4, MIB as usize),
        Err(DeviceError::ReadOnly)
    );
    assert!(
        bench
            .read(0, MIB as usize)
            .unwrap()
            .iter()
            .all(|byte| *byte == 3)
    );
    every_operation_ends(UringRig::new(&file, 16, true), 1).unwrap();
}

/// The one case in which buffers are lost: the kernel may still read them.
#[test]
fn a_queue_pair_dropped_on_a_disk_that_hangs_leaks_what_the_kernel_has() {
    if !can_make_places("a disk that hangs") {
        return;
    }
    let dir = dir();
    let (mount, backing) = (dir.path().join("mount"), dir.path().join("backing"));
    let place = Mounted::ext4(&mount, &backing, 64 * MIB).unwrap();
    let file = create(&place.path().join("disk"), CAPACITY_BYTES);
    let mut bench = Bench::new(&file);
    bench.write(0, 3, MIB as usize).unwrap();
    place.freeze().unwrap();
    let op = DeviceOp::Write {
        tag: bench.tag(),
        offset_bytes: 4 * MIB,
        bytes: bench.frozen(1, MIB as usize),
    };
    bench.device.submit(op).unwrap();
    bench.device.commit();
    let hangs = !wait(&bench.event, Duration::from_millis(500));
    assert!(hangs, "the disk does not hang");
    // Not polled in between: what comes after a poll that finds nothing is handed over at once.
    let queued = DeviceOp::Write {
        tag: bench.tag(),
        offset_bytes: 5 * MIB,
        bytes: bench.frozen(1, 64 << 10),
    };
    bench.device.submit(queued).unwrap();
    let Bench {
        mut arena, device, ..
    } = bench;
    let start = Instant::now();
    drop(device);
    let waited = start.elapsed();
    arena.reclaim();
    let lost = arena.capacity_bytes() - arena.free_bytes();
    place.thaw().unwrap();
    assert!(
        waited > Duration::from_secs(4) && waited < Duration::from_secs(20),
        "waited {waited:?}"
    );
    assert_eq!(lost, MIB as usize, "what was not handed over is not lost");
}

#[test]
fn a_file_whose_tail_vanished_ends_every_operation_and_grows_again() {
    let dir = dir();
    let path = dir.path().join("disk");
    let file = create(&path, CAPACITY_BYTES);
    let mut bench = Bench::new(&file);
    for mib in 0..8 {
        bench.write(mib * MIB, 5, MIB as usize).unwrap();
    }
    let cut = MIB + 4096 + 100;
    let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    other.set_len(cut).unwrap();
    let bytes = bench.read(MIB, 64 << 10).unwrap();
    assert!(bytes[..4196].iter().all(|byte| *byte == 5));
    assert!(bytes[4196..].iter().all(|byte| *byte == 0));
    assert!(
        bench
            .read(4 * MIB, 4096)
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
    every_operation_ends(UringRig::new(&file, 16, true), 1).unwrap();
    bench.write(6 * MIB, 6, 4096).unwrap();
    assert!(
        bench
            .read(6 * MIB, 4096)
            .unwrap()
            .iter()
            .all(|byte| *byte == 6)
    );
}

#[test]
fn a_block_device_that_loses_its_backing_ends_every_operation() {
    if !can_make_places("a block device that loses its backing") {
        return;
    }
    let dir = dir();
    let place = LoopDevice::new(&dir.path().join("backing"), CAPACITY_BYTES, 4096).unwrap();
    let file = UringFile::open(place.path(), &OpenOptions::default()).unwrap();
    let backing = std::fs::OpenOptions::new()
        .write(true)
        .open(place.backing())
        .unwrap();
    backing.set_len(0).unwrap();
    every_operation_ends(UringRig::new(&file, 16, true), 5).unwrap();
}

#[test]
fn two_cores_share_one_file() {
    const ROUNDS: u64 = 100;
    let dir = dir();
    let file = create(&dir.path().join("disk"), CAPACITY_BYTES);
    let barrier = Arc::new(Barrier::new(2));
    let core = |number: u64| {
        let (file, barrier) = (file.clone(), barrier.clone());
        std::thread::spawn(move || {
            let mut bench = Bench::new(&file);
            for round in 0..ROUNDS {
                let at = |number: u64| (round % 16 * 2 + number) * (64 << 10);
                let byte = |number: u64| (round * 2 + number) as u8;
                bench.write(at(number), byte(number), 64 << 10).unwrap();
                barrier.wait();
                let theirs = bench.read(at(1 - number), 64 << 10).unwrap();
                assert!(theirs.iter().all(|have| *have == byte(1 - number)));
                barrier.wait();
            }
        })
    };
    let cores = [core(0), core(1)];
    for core in cores {
        core.join().unwrap();
    }
}
