//! A whole engine, with threads and io_uring, on disks that go wrong: readers get the right bytes from the
//! next source, in time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use forebay_cli::host::run::{STOP_STALL, STOP_TIMEOUT};
use forebay_cli::host::{CoresArg, DiskSource, Engine, EngineConfig, Poll, core_stats};
use forebay_engine::client::Reply;
use forebay_engine::disk::geometry::{Geometry, REGION_BYTES_MIN};
use forebay_engine::disk::layout::LogId;
use forebay_engine::disk::{DeviceShared, DeviceState, DeviceStats};
use forebay_engine::errors::ReadError;
use forebay_engine::identity::{Bucket, ObjectVersion, Validator};
use forebay_engine::ports::{Full, Origin, OriginEvent, OriginOp, OriginTag};
use forebay_engine::stats::CoreStats;
use forebay_nvme_uring::{OpenOptions, UringFile};
use forebay_tests::devices::delayed::Delay;
use forebay_tests::devices::faulty::Chances;
use forebay_tests::devices::host::SwitchedDisks;
use forebay_tests::sim::rng::mix;

const MIB: u64 = 1 << 20;
const OBJECTS: u64 = 60;
const OBJECT_BYTES: u64 = 2 * MIB;
const READ_BYTES: u32 = 256 << 10;
const MEMORY_BYTES: u64 = 48 * MIB;
const LONG: Duration = Duration::from_secs(30);

/// The bytes of an object follow from its number.
fn fill(object: u64, offset: u64, bytes: &mut [u8]) {
    assert!(offset.is_multiple_of(8));
    for (number, word) in bytes.chunks_mut(8).enumerate() {
        let value = mix(object << 40 | (offset / 8 + number as u64));
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

/// An origin that has every object, at once.
struct Plenty {
    gets: Arc<AtomicU64>,
    events: VecDeque<OriginEvent>,
}

impl Origin for Plenty {
    fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>> {
        let OriginOp::Get(get) = op else {
            return Err(Full(op));
        };
        self.gets.fetch_add(1, Ordering::Relaxed);
        let (tag, object) = (get.tag, get.object.key.parse().unwrap());
        let mut offset = get.offset;
        for mut lease in get.leases {
            fill(object, offset, lease.bytes_mut());
            offset += lease.len() as u64;
            self.events.push_back(OriginEvent::Filled { tag, lease });
        }
        self.events.push_back(OriginEvent::GetDone {
            tag,
            result: Ok(()),
            unfilled: Vec::new(),
            wasted_bytes: 0,
        });
        Ok(())
    }

    fn poll(&mut self) -> Option<OriginEvent> {
        self.events.pop_front()
    }

    fn cancel(&mut self, _tag: OriginTag) {}
}

#[derive(Debug)]
struct Channel(mpsc::Sender<Result<Vec<u8>, ReadError>>);

impl Reply for Channel {
    fn data(self, bytes: &[u8]) {
        let _ = self.0.send(Ok(bytes.to_vec()));
    }
    fn error(self, error: ReadError) {
        let _ = self.0.send(Err(error));
    }
}

struct World {
    engine: Engine<Channel>,
    disks: SwitchedDisks,
    gets: Arc<AtomicU64>,
    _dir: tempfile::TempDir,
}

impl World {
    /// Twice as much data as memory, all of it read once and on its way to the disk.
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let geometry = Geometry {
            region_bytes: REGION_BYTES_MIN,
            regions: 128,
        };
        let options = OpenOptions {
            capacity_bytes: Some(geometry.offset_bytes(geometry.regions)),
            create: true,
            ..OpenOptions::default()
        };
        let disk = DiskSource {
            medium: UringFile::open(&dir.path().join("disk"), &options)
                .unwrap()
                .into(),
            shared: Arc::new(DeviceShared::new("disk".into(), geometry, LogId(7))),
        };
        let disks = SwitchedDisks::new(vec![disk], seed);
        let cores = CoresArg::Count(1);
        let config =
            EngineConfig::choose(Some(&cores), Some(MEMORY_BYTES), Poll::Auto, LONG, true).unwrap();
        let gets = Arc::new(AtomicU64::new(0));
        let origin = {
            let gets = gets.clone();
            move |_| {
                Ok(Plenty {
                    gets: gets.clone(),
                    events: VecDeque::new(),
                })
            }
        };
        let engine = Engine::start(config, disks.clone(), origin).unwrap();
        Self {
            engine,
            disks,
            gets,
            _dir: dir,
        }
    }

    fn object(&self, number: u64) -> Arc<ObjectVersion> {
        let bucket = Arc::new(Bucket {
            endpoint: "e".into(),
            name: "b".into(),
        });
        let validator = Validator::ETag("\"1\"".into());
        Arc::new(ObjectVersion::new(
            bucket,
            number.to_string().into(),
            validator,
            OBJECT_BYTES,
        ))
    }

    /// Reads everything in order and compares. Returns the longest wait.
    fn read_all(&self) -> Duration {
        let (mut longest, mut expected) = (Duration::ZERO, vec![0; READ_BYTES as usize]);
        for number in 0..OBJECTS {
            let object = self.object(number);
            for offset in (0..OBJECT_BYTES).step_by(READ_BYTES as usize) {
                let (sender, receiver) = mpsc::channel();
                let asked = Instant::now();
                let client = self.engine.client();
                client
                    .read(&object, offset, READ_BYTES, 0, Channel(sender))
                    .unwrap();
                let bytes = receiver.recv_timeout(LONG + LONG).unwrap().unwrap();
                longest = longest.max(asked.elapsed());
                fill(number, offset, &mut expected);
                assert!(
                    bytes == expected,
                    "object {number} at {offset}: wrong bytes"
                );
            }
        }
        longest
    }

    fn stats(&self) -> CoreStats {
        core_stats(&self.engine.client(), LONG).pop().unwrap()
    }

    fn disk(&self) -> DeviceStats {
        self.stats().disk.devices.pop().unwrap()
    }

    /// Reads until most of it comes from disk.
    fn warm(&self) {
        for _ in 0..10 {
            let before = self.gets.load(Ordering::Relaxed);
            self.read_all();
            if self.gets.load(Ordering::Relaxed) == before {
                return;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        panic!("the disk never holds everything: {:?}", self.disk());
    }

    fn end(self) {
        self.engine.stop(LONG).unwrap();
    }
}

#[test]
fn a_sound_disk_spares_the_origin() {
    let world = World::new(1);
    world.warm();
    let (disk, stats) = (world.disk(), world.stats());
    assert!(stats.disk_hits > 0 && disk.read_bytes > 0, "{disk:?}");
    assert_eq!(
        disk.checksum_failures + disk.read_errors + disk.slow_reads,
        0
    );
    assert_eq!(disk.state, DeviceState::Serving);
    let counts = world.disks.counters.now();
    assert!(counts.writes > 0 && counts.flushes > 0 && counts.reads > 0);
    world.end();
}

#[test]
fn flipped_bits_lost_and_misdirected_writes_are_never_served() {
    for (seed, chances) in [
        Chances {
            flipped: 50,
            ..Chances::default()
        },
        Chances {
            cut_short: 50,
            ..Chances::default()
        },
        Chances {
            misdirected: 50,
            ..Chances::default()
        },
    ]
    .into_iter()
    .enumerate()
    {
        let world = World::new(seed as u64);
        world.disks.faults.chances(chances);
        // A busy disk keeps little of what comes at once: as many rounds as it takes to read damage back.
        let started = std::time::Instant::now();
        while world.disk().checksum_failures == 0 && started.elapsed().as_secs() < 60 {
            world.read_all();
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        let (delivered, disk) = (world.disks.faults.delivered(), world.disk());
        assert!(
            delivered.flipped + delivered.cut_short + delivered.misdirected > 0,
            "no fault happened"
        );
        assert!(disk.checksum_failures > 0, "{delivered:?} {disk:?}");
        world.end();
    }
}

#[test]
fn media_errors_send_readers_to_the_origin_and_retire_the_disk() {
    let world = World::new(1);
    world.warm();
    let before = world.gets.load(Ordering::Relaxed);
    world
        .disks
        .faults
        .defects(|defects| defects.unreadable.push(0..u64::MAX));
    for _ in 0..3 {
        world.read_all();
    }
    assert!(world.gets.load(Ordering::Relaxed) > before);
    assert!(world.disks.faults.delivered().unreadable > 0);
    let disk = world.disk();
    assert!(matches!(disk.state, DeviceState::Retired(_)), "{disk:?}");
    world.end();
}

#[test]
fn a_disk_that_vanishes_costs_speed_only() {
    let world = World::new(1);
    world.warm();
    world.disks.faults.defects(|defects| defects.gone = true);
    world.read_all();
    world.read_all();
    assert!(world.disks.faults.delivered().gone > 0);
    let disk = world.disk();
    assert!(matches!(disk.state, DeviceState::Retired(_)), "{disk:?}");
    world.end();
}

#[test]
fn a_disk_that_turns_read_only_is_still_read() {
    let world = World::new(1);
    world.warm();
    let (before, hits) = (world.gets.load(Ordering::Relaxed), world.stats().disk_hits);
    world
        .disks
        .faults
        .defects(|defects| defects.read_only = true);
    world.read_all();
    assert!(world.stats().disk_hits > hits);
    assert_eq!(world.gets.load(Ordering::Relaxed), before);
    world.end();
}

#[test]
fn a_full_disk_and_write_errors_stop_no_reader() {
    let world = World::new(1);
    world
        .disks
        .faults
        .defects(|defects| defects.space_left_bytes = Some(20 * MIB));
    let full = (0..100).any(|_| {
        world.read_all();
        world.disks.faults.delivered().no_space > 0
    });
    assert!(full, "it was never full");
    world.end();
    let world = World::new(2);
    world.disks.faults.chances(Chances {
        torn: 100,
        unwritable: 100,
        ..Chances::default()
    });
    // A busy disk drops fills, so how many writes one round makes is not known.
    let both = (0..100).any(|_| {
        world.read_all();
        let delivered = world.disks.faults.delivered();
        delivered.torn > 0 && delivered.unwritable > 0 && world.disk().write_errors > 0
    });
    assert!(both, "{:?}", world.disks.faults.delivered());
    world.end();
}

#[test]
fn a_disk_that_hangs_holds_a_stop_for_its_bound_only() {
    let world = World::new(1);
    world.read_all();
    // What was read last waits to be written.
    world.disks.delays.hang();
    let asked = Instant::now();
    world.engine.stop(STOP_TIMEOUT).unwrap();
    let took = asked.elapsed();
    assert!(world.disks.delays.held() == 0, "the queue pairs are gone");
    assert!(
        took >= STOP_STALL && took < STOP_STALL + Duration::from_secs(2),
        "{took:?}"
    );
}

#[test]
fn a_disk_that_hangs_holds_no_reader_for_long() {
    let world = World::new(1);
    world.warm();
    world.disks.delays.hang();
    let longest = world.read_all();
    // One read waits for as long as a device may take; then others go around it.
    assert!(
        longest < Duration::from_secs(10),
        "a reader waited {longest:?}"
    );
    assert!(world.disks.delays.held() > 0);
    world.disks.delays.release();
    world.read_all();
    world.end();
}

#[test]
fn a_long_tail_is_bounded_and_gives_right_bytes() {
    let world = World::new(1);
    world.warm();
    let delay = Delay::long_tail(Duration::from_micros(200));
    world.disks.delays.set(delay);
    let longest = world.read_all();
    assert!(world.disks.delays.slow() > 0);
    assert!(
        longest < Duration::from_secs(5),
        "a reader waited {longest:?}"
    );
    world.end();
}
