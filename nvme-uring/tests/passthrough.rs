//! An NVMe namespace by its character device: `ci/softroce` runs this in its guest, which has one.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::arena::{Arena, Lease, Share};
use forebay_engine::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceOp, DeviceTag};
use forebay_nvme_uring::{OpenError, OpenOptions, UringDevice, UringFile};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

const MIB: usize = 1 << 20;

/// The device that `FOREBAY_NVME_DEVICE` names (`/dev/ngXnY`), whose contents are lost. Without that name the test is left out.
fn device() -> Option<PathBuf> {
    let Ok(name) = std::env::var("FOREBAY_NVME_DEVICE") else {
        println!(
            "SKIPPED: FOREBAY_NVME_DEVICE names no NVMe namespace that may be overwritten: commands to it were not tried here (ci/softroce does, in a guest)"
        );
        return None;
    };
    Some(name.into())
}

fn block_device(path: &Path) -> PathBuf {
    let name = path.file_name().and_then(|name| name.to_str());
    let rest = name.and_then(|name| name.strip_prefix("ng"));
    Path::new("/dev").join(format!("nvme{}", rest.expect("a character device")))
}

fn open(path: &Path) -> Arc<UringFile> {
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        match UringFile::open(path, &OpenOptions::default()) {
            Ok(file) => return file,
            // The kernel takes a while to take back the ring of the test before.
            Err(OpenError::Busy(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

struct Bench {
    device: UringDevice,
    arena: Arena,
    event: OwnedFd,
}

impl Bench {
    fn new(file: &Arc<UringFile>, fixed: bool) -> Bench {
        let arena = Arena::new(16 * MIB).expect("an arena");
        let addresses: Range<usize> = if fixed { arena.addresses() } else { 0..0 };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let mut device = file.queue_pair(addresses, 8).expect("a queue pair");
        device.signal_at(event.as_fd()).unwrap();
        Bench {
            device,
            arena,
            event,
        }
    }

    /// Waits only where a core's thread does.
    fn next(&mut self) -> DeviceEvent {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            if let Some(event) = self.device.poll() {
                return event;
            }
            assert!(Instant::now() < deadline, "nothing ends");
            let wait = Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
            assert!(poll(&mut fds, Some(&wait)).unwrap() > 0, "no signal");
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.event, &mut count);
        }
    }

    fn run(&mut self, op: DeviceOp) -> DeviceEvent {
        self.device.submit(op).expect("room");
        self.device.commit();
        self.next()
    }

    fn lease(&mut self, len_bytes: usize, first: u8) -> Lease {
        let mut lease = self.arena.lease(len_bytes, Share::Demand).expect("a lease");
        for (at, byte) in lease.bytes_mut().iter_mut().enumerate() {
            *byte = pattern(at, first);
        }
        lease
    }

    fn write(&mut self, offset_bytes: u64, len_bytes: usize, first: u8) -> Result<(), DeviceError> {
        let lease = self.lease(len_bytes, first);
        let op = DeviceOp::Write {
            tag: DeviceTag(1),
            offset_bytes,
            bytes: self.arena.freeze(lease),
        };
        match self.run(op) {
            DeviceEvent::Write { result, .. } => result,
            event => panic!("{event:?}"),
        }
    }

    fn read(&mut self, offset_bytes: u64, len_bytes: usize) -> Result<Vec<u8>, DeviceError> {
        let lease = self.lease(len_bytes, 0xee);
        let op = DeviceOp::Read {
            tag: DeviceTag(2),
            offset_bytes,
            lease,
        };
        match self.run(op) {
            DeviceEvent::Read { lease, result, .. } => result.map(|()| lease.bytes().to_vec()),
            event => panic!("{event:?}"),
        }
    }
}

fn pattern(at: usize, first: u8) -> u8 {
    (at / 4096 + at) as u8 ^ first
}

fn expected(len_bytes: usize, first: u8) -> Vec<u8> {
    (0..len_bytes).map(|at| pattern(at, first)).collect()
}

#[test]
fn what_commands_write_they_and_the_block_device_read() {
    let Some(path) = device() else { return };
    let file = open(&path);
    assert!(file.is_passthrough() && file.is_block_device());
    let sector = file.geometry().sector_bytes as usize;
    for fixed in [true, false] {
        let mut bench = Bench::new(&file, fixed);
        // A MiB takes several commands; a sector is the smallest.
        for (offset_bytes, len_bytes) in
            [(0, 4096), (3 * MIB, MIB), (8192, 64 << 10), (20480, sector)]
        {
            let first = (offset_bytes >> 12) as u8 ^ u8::from(fixed);
            let offset = offset_bytes as u64;
            bench.write(offset, len_bytes, first).expect("a write");
            let came = bench.read(offset, len_bytes).expect("a read");
            assert!(
                came == expected(len_bytes, first),
                "{len_bytes} at {offset}"
            );
        }
        let flushed = bench.run(DeviceOp::Flush { tag: DeviceTag(3) });
        assert!(matches!(flushed, DeviceEvent::Flush { result: Ok(()), .. }));
        // The same bytes lie where the kernel's own driver looks for them.
        let first = ((3 * MIB) >> 12) as u8 ^ u8::from(fixed);
        let seen = file.read_at(3 << 20, MIB).expect("the block device");
        assert!(seen == expected(MIB, first));
        let discarded = bench.run(DeviceOp::Discard {
            tag: DeviceTag(4),
            offset_bytes: 3 << 20,
            len_bytes: MIB as u64,
        });
        assert!(matches!(
            discarded,
            DeviceEvent::Discard { result: Ok(()), .. }
        ));
    }
}

#[test]
fn many_commands_under_way_end_each_with_its_own_bytes() {
    let Some(path) = device() else { return };
    let file = open(&path);
    let mut bench = Bench::new(&file, true);
    for at in 0..8_u8 {
        let offset = u64::from(at) * MIB as u64;
        bench.write(offset, MIB, at * 16).expect("a write");
    }
    for round in 0..4 {
        for at in 0..8_u64 {
            let lease = bench.lease(MIB, 0xee);
            let op = DeviceOp::Read {
                tag: DeviceTag(at),
                offset_bytes: (at + round) % 8 * MIB as u64,
                lease,
            };
            bench.device.submit(op).expect("room for eight");
        }
        bench.device.commit();
        let mut seen = [false; 8];
        for _ in 0..8 {
            let DeviceEvent::Read { tag, lease, result } = bench.next() else {
                panic!("not a read");
            };
            result.expect("a read");
            let at = ((tag.0 + round) % 8) as u8;
            assert!(lease.bytes() == expected(MIB, at * 16), "block {at}");
            assert!(!std::mem::replace(&mut seen[tag.0 as usize], true));
        }
    }
}

#[test]
fn the_ends_of_a_namespace_and_a_second_opening_are_told() {
    let Some(path) = device() else { return };
    let file = open(&path);
    let capacity = file.geometry().capacity_bytes;
    let mut bench = Bench::new(&file, true);
    bench
        .write(capacity - 4096, 4096, 1)
        .expect("the last page");
    assert_eq!(bench.write(capacity, 4096, 1), Err(DeviceError::Range));
    assert_eq!(bench.read(1, 4096), Err(DeviceError::Range));
    // Whoever has the namespace by either of its names keeps others from both.
    for other in [path.clone(), block_device(&path)] {
        let again = UringFile::open(&other, &OpenOptions::default());
        assert!(matches!(again, Err(OpenError::Busy(_))), "{again:?}");
    }
    drop(bench);
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let only = UringFile::open(&path, &options).expect("for reading, beside another");
    let mut bench = Bench::new(&only, true);
    assert_eq!(bench.write(0, 4096, 1), Err(DeviceError::ReadOnly));
    assert_eq!(bench.read(capacity - 4096, 4096), Ok(expected(4096, 1)));
}
