//! What is particular to this adapter. What every block device must do is checked by the conformance
//! suite in the crate `forebay-tests`.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::arena::{Arena, Frozen, Share};
use forebay_engine::limits::PAGE_BYTES;
use forebay_engine::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceOp, DeviceTag};
use forebay_nvme_uring::{DROP_WAIT, OpenError, OpenOptions, UringDevice, UringFile};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

const CAPACITY_BYTES: u64 = 8 << 20;

fn options() -> OpenOptions {
    OpenOptions {
        capacity_bytes: Some(CAPACITY_BYTES),
        create: true,
        ..OpenOptions::default()
    }
}

fn open(dir: &Path) -> Arc<UringFile> {
    UringFile::open(&dir.join("disk"), &options()).unwrap()
}

fn frozen(arena: &mut Arena, byte: u8, len_bytes: usize) -> Frozen {
    let mut lease = arena.lease(len_bytes, Share::Demand).unwrap();
    lease.bytes_mut().fill(byte);
    arena.freeze(lease)
}

/// A queue pair and the eventfd that it signals at: waited for only there, as a core's thread does.
struct Bench {
    device: UringDevice,
    event: OwnedFd,
    /// Wake-ups without anything to poll.
    idle_wakes: u32,
}

impl Bench {
    fn new(file: &Arc<UringFile>, addresses: std::ops::Range<usize>) -> Self {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let mut device = file.queue_pair(addresses, 8).unwrap();
        device.signal_at(event.as_fd()).unwrap();
        Self {
            device,
            event,
            idle_wakes: 0,
        }
    }

    fn run(&mut self, op: DeviceOp) -> DeviceEvent {
        self.device.submit(op).unwrap();
        self.device.commit();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(event) = self.device.poll() {
                return event;
            }
            let timeout = Timespec {
                tv_sec: 5,
                tv_nsec: 0,
            };
            let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&timeout)).unwrap();
            assert!(ready > 0, "no signal");
            rustix::io::read(&self.event, &mut [0; 8]).unwrap();
            self.idle_wakes += 1;
            assert!(Instant::now() < deadline, "nothing to poll after a wake-up");
        }
    }

    fn write(&mut self, offset_bytes: u64, bytes: Frozen) -> Result<(), DeviceError> {
        let op = DeviceOp::Write {
            tag: DeviceTag(1),
            offset_bytes,
            bytes,
        };
        match self.run(op) {
            DeviceEvent::Write { result, .. } => result,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, arena: &mut Arena, offset_bytes: u64) -> Vec<u8> {
        let op = DeviceOp::Read {
            tag: DeviceTag(2),
            offset_bytes,
            lease: arena.lease(2 * PAGE_BYTES, Share::Demand).unwrap(),
        };
        match self.run(op) {
            DeviceEvent::Read { result, lease, .. } => {
                result.unwrap();
                lease.bytes().to_vec()
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_kind_of_operation_is_signalled() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    let mut arena = Arena::new(16 << 20).unwrap();
    let mut bench = Bench::new(&file, arena.addresses());
    for round in 0..50u64 {
        let bytes = frozen(&mut arena, round as u8, 64 << 10);
        bench.write(round * PAGE_BYTES as u64, bytes).unwrap();
        let flushed = bench.run(DeviceOp::Flush { tag: DeviceTag(3) });
        assert!(matches!(flushed, DeviceEvent::Flush { result: Ok(()), .. }));
        let bytes = bench.read(&mut arena, round * PAGE_BYTES as u64);
        assert!(bytes.iter().all(|byte| *byte == round as u8));
    }
    let discarded = bench.run(DeviceOp::Discard {
        tag: DeviceTag(4),
        offset_bytes: 0,
        len_bytes: 1 << 20,
    });
    assert!(matches!(
        discarded,
        DeviceEvent::Discard { result: Ok(()), .. }
    ));
}

#[test]
fn what_ends_without_the_kernel_is_signalled_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    let mut arena = Arena::new(16 << 20).unwrap();
    let mut bench = Bench::new(&file, arena.addresses());
    let bytes = frozen(&mut arena, 1, PAGE_BYTES);
    let op = DeviceOp::Write {
        tag: DeviceTag(1),
        offset_bytes: CAPACITY_BYTES,
        bytes,
    };
    bench.device.submit(op).unwrap();
    let mut fds = [PollFd::new(&bench.event, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(1));
    assert!(bench.device.poll().is_some());
}

/// What wakes a thread is that there is something new, not that it took something itself.
#[test]
fn a_reader_is_woken_once_for_each_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    let mut arena = Arena::new(16 << 20).unwrap();
    let bytes = frozen(&mut arena, 1, 1 << 20);
    let mut bench = Bench::new(&file, arena.addresses());
    bench.write(0, bytes).unwrap();
    bench.idle_wakes = 0;
    for round in 0..200u64 {
        bench.read(&mut arena, round * PAGE_BYTES as u64);
    }
    // A read that was there at the first look leaves a signal behind, for the next wait.
    assert!(
        bench.idle_wakes <= 200,
        "{} wake-ups for 200 reads",
        bench.idle_wakes
    );
}

/// A disk that has nothing to do does not wait for the end of the turn.
#[test]
fn the_first_operation_after_a_poll_that_found_nothing_goes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    let arena = Arena::new(16 << 20).unwrap();
    let mut bench = Bench::new(&file, arena.addresses());
    for _ in 0..3 {
        assert!(bench.device.poll().is_none());
        let flush = DeviceOp::Flush { tag: DeviceTag(1) };
        bench.device.submit(flush).unwrap();
        // Without a commit.
        let deadline = Instant::now() + Duration::from_secs(20);
        while bench.device.poll().is_none() {
            assert!(Instant::now() < deadline, "it still waits for a commit");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn buffers_outside_the_registered_range_work_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    let mut arena = Arena::new(16 << 20).unwrap();
    let mut device = Bench::new(&file, 0..0);
    let bytes = frozen(&mut arena, 9, 64 << 10);
    device.write(0, bytes).unwrap();
    let mut other = Arena::new(16 << 20).unwrap();
    let mut fixed = Bench::new(&file, arena.addresses());
    assert!(fixed.read(&mut other, 0).iter().all(|byte| *byte == 9));
    assert!(fixed.read(&mut arena, 0).iter().all(|byte| *byte == 9));
}

#[test]
fn a_range_that_cannot_be_registered_is_done_without() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    let mut arena = Arena::new(16 << 20).unwrap();
    // Each piece of the range lies partly where no buffer is, and the first where nothing is mapped.
    let around = arena.addresses().start - (1 << 20)..arena.addresses().end;
    let mut device = Bench::new(&file, PAGE_BYTES..around.end);
    let mut shifted = Bench::new(&file, around);
    let bytes = frozen(&mut arena, 3, PAGE_BYTES);
    device.write(0, bytes).unwrap();
    assert_eq!(device.read(&mut arena, 0)[0], 3);
    assert_eq!(shifted.read(&mut arena, 0)[0], 3);
}

#[test]
fn what_was_never_written_reads_as_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    let path = dir.path().join("disk");
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (CAPACITY_BYTES, 0));
    let mut arena = Arena::new(16 << 20).unwrap();
    let mut device = Bench::new(&file, arena.addresses());
    let end = CAPACITY_BYTES - 2 * PAGE_BYTES as u64;
    assert!(device.read(&mut arena, end).iter().all(|byte| *byte == 0));
    let bytes = frozen(&mut arena, 7, 2 * PAGE_BYTES);
    device.write(1 << 20, bytes).unwrap();
    // Cut off in the middle of a sector by somebody else: what is left is read, the rest is zeros.
    let keep = PAGE_BYTES + 100;
    let cut = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    cut.set_len((1 << 20) + keep as u64).unwrap();
    let bytes = device.read(&mut arena, 1 << 20);
    assert!(bytes[..keep].iter().all(|byte| *byte == 7));
    assert!(bytes[keep..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_dropped_queue_pair_gives_every_buffer_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    let mut arena = Arena::new(16 << 20).unwrap();
    let all = arena.free_bytes();
    for committed in [true, false] {
        let mut device = file.queue_pair(arena.addresses(), 64).unwrap();
        for n in 0..16u64 {
            let bytes = frozen(&mut arena, n as u8, 256 << 10);
            let op = DeviceOp::Write {
                tag: DeviceTag(n),
                offset_bytes: n * (256 << 10),
                bytes,
            };
            device.submit(op).unwrap();
            device
                .submit(DeviceOp::Flush {
                    tag: DeviceTag(100 + n),
                })
                .unwrap();
        }
        if committed {
            device.commit();
        }
        let start = Instant::now();
        drop(device);
        assert!(start.elapsed() < Duration::from_secs(4));
        arena.reclaim();
        assert_eq!(arena.free_bytes(), all, "committed: {committed}");
    }
}

#[test]
fn opening_what_cannot_be_used_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let missing = OpenOptions {
        create: false,
        ..options()
    };
    let error = UringFile::open(&dir.path().join("none"), &missing).unwrap_err();
    assert_eq!(
        error.io().map(std::io::Error::kind),
        Some(std::io::ErrorKind::NotFound)
    );
    assert!(error.to_string().contains("none"), "{error}");
    for path in [dir.path(), Path::new("/dev/null")] {
        let error = UringFile::open(path, &missing).unwrap_err();
        assert!(matches!(error, OpenError::Kind(_)), "{error}");
    }
    let empty = OpenOptions {
        capacity_bytes: Some(100),
        ..options()
    };
    let error = UringFile::open(&dir.path().join("empty"), &empty).unwrap_err();
    assert!(matches!(error, OpenError::Size { .. }), "{error}");
}

#[test]
fn a_file_is_read_and_written_without_a_ring_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    file.write_at(8192, &[5; 4096]).unwrap();
    file.sync().unwrap();
    assert_eq!(file.read_at(4096, 8192).unwrap()[4095..4097], [0, 5]);
    for (offset, len) in [
        (1, 4096),
        (0, 100),
        (CAPACITY_BYTES, 4096),
        (u64::MAX - 4095, 4096),
    ] {
        assert!(file.read_at(offset, len).is_err());
        assert!(file.write_at(offset, &vec![0; len]).is_err());
    }
}

#[test]
fn a_smaller_capacity_gives_the_tail_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = open(dir.path());
    file.write_at(CAPACITY_BYTES - 4096, &[1; 4096]).unwrap();
    assert!(file.allocated_bytes().unwrap() >= 4096);
    let smaller = OpenOptions {
        capacity_bytes: Some(CAPACITY_BYTES / 2),
        ..OpenOptions::default()
    };
    let file = UringFile::open(&dir.path().join("disk"), &smaller).unwrap();
    assert_eq!(file.geometry().capacity_bytes, CAPACITY_BYTES / 2);
    assert!(
        file.allocated_bytes().unwrap() >= 4096,
        "opening alone drops nothing"
    );
    file.trim().unwrap();
    assert_eq!(file.allocated_bytes().unwrap(), 0);
}

#[test]
fn reading_only_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).write_at(0, &[4; 4096]).unwrap();
    let options = OpenOptions {
        read_only: true,
        create: true,
        capacity_bytes: Some(2 * CAPACITY_BYTES),
        ..OpenOptions::default()
    };
    let file = UringFile::open(&dir.path().join("disk"), &options).unwrap();
    let mut arena = Arena::new(16 << 20).unwrap();
    let mut device = Bench::new(&file, arena.addresses());
    assert_eq!(device.read(&mut arena, 0)[0], 4);
    assert_eq!(device.read(&mut arena, CAPACITY_BYTES)[0], 0);
    let bytes = frozen(&mut arena, 1, PAGE_BYTES);
    assert_eq!(device.write(0, bytes), Err(DeviceError::ReadOnly));
    assert_eq!(
        std::fs::metadata(dir.path().join("disk")).unwrap().len(),
        CAPACITY_BYTES
    );
}

/// Undoes what a command did, in the end.
struct Undo([String; 3]);

impl Drop for Undo {
    fn drop(&mut self) {
        let [command, option, path] = &self.0;
        let _ = std::process::Command::new(command)
            .args([option, path])
            .status();
    }
}

fn works(command: &str, args: &[&str]) -> bool {
    let output = std::process::Command::new(command).args(args).output();
    output.is_ok_and(|output| output.status.success())
}

/// Waits until so many threads of this process wait in the kernel for a device: a write that no thread has begun yet
/// can still be cancelled.
fn until_threads_hang(count: usize) {
    let hangs = |task: &std::path::Path| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('D'))
    };
    let start = Instant::now();
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let hanging = tasks.filter(|task| hangs(&task.path())).count();
        if hanging >= count {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{hanging} threads hang, not {count}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Writes to a frozen file system wait in the kernel, and cannot be cancelled.
#[test]
fn queue_pairs_that_hang_are_waited_for_together() {
    let dir = tempfile::tempdir().unwrap();
    let [image, at] = ["image", "at"].map(|name| dir.path().join(name));
    std::fs::File::create(&image)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    std::fs::create_dir(&at).unwrap();
    let [image, mounted] = [&image, &at].map(|path| path.display().to_string());
    if !works("mkfs.ext4", &["-q", "-F", &image])
        || !works("mount", &["-o", "loop", &image, &mounted])
    {
        eprintln!("SKIPPED: no mkfs.ext4, or no right to mount: disks that hang were not tried");
        return;
    }
    let _unmount = Undo(["umount", "-l", &mounted].map(str::to_owned));
    let mut arena = Arena::new(16 << 20).unwrap();
    let mut devices: Vec<UringDevice> = (0..3)
        .map(|n| {
            let file = UringFile::open(&at.join(n.to_string()), &options()).unwrap();
            file.queue_pair(arena.addresses(), 8).unwrap()
        })
        .collect();
    assert!(works("fsfreeze", &["-f", &mounted]));
    let thaw = Undo(["fsfreeze", "-u", &mounted].map(str::to_owned));
    for device in &mut devices {
        let bytes = frozen(&mut arena, 1, 64 << 10);
        let op = DeviceOp::Write {
            tag: DeviceTag(1),
            offset_bytes: 0,
            bytes,
        };
        device.submit(op).unwrap();
        device.commit();
    }
    until_threads_hang(3);
    let start = Instant::now();
    drop(devices);
    let took = start.elapsed();
    assert!(
        took >= DROP_WAIT && took < DROP_WAIT + Duration::from_secs(2),
        "{took:?}"
    );
    drop(thaw);
}
