//! The core with a disk tier under it.

use std::rc::Rc;

use super::mem_device::Media;
use super::*;
use crate::disk::geometry::Geometry;
use crate::disk::layout::LogId;
use crate::disk::{DeviceSeat, DeviceShared, DeviceStats, DiskConfig};
use crate::limits::{BATCH_DELAY_MS, DEVICE_READ_MS_MAX, DIRECT_READS_MAX, PAGE_BYTES};

pub(super) const ARENA: u64 = 32 * MIB;
pub(super) const OBJECT: u64 = 256 * MIB;
const GEOMETRY: Geometry = Geometry {
    region_bytes: 8 << 20,
    regions: 24,
};

pub(super) type TestMedia = Rc<RefCell<Media>>;

pub(super) fn media() -> TestMedia {
    Media::new(GEOMETRY.offset_bytes(GEOMETRY.regions))
}

impl Bench {
    /// A core that begins on `media`; whether recovery ends is the media's affair.
    pub(super) fn starting_on(media: &TestMedia, arena_bytes: u64, object_bytes: u64) -> Self {
        Self::checking(media, arena_bytes, object_bytes, true)
    }

    /// The same, whether the disk tier checks pages or not.
    fn checking(media: &TestMedia, arena_bytes: u64, object_bytes: u64, verify: bool) -> Self {
        let shared = DeviceShared::new("mem".into(), GEOMETRY, LogId(9));
        let seat = DeviceSeat {
            device: MemDevice::new(media),
            shared: Arc::new(shared),
        };
        let config = DiskConfig {
            core: 0,
            cores: 1,
            entries_max: 10_000,
            tables_bytes_max: 1 << 20,
            write_bytes_max: 16 << 20,
            incarnation: 1,
            read_timeout: Duration::from_millis(DEVICE_READ_MS_MAX),
            verify,
        };
        Self::on(Disk::new(vec![seat], config), arena_bytes, object_bytes)
    }

    /// A core whose disk tier has found what is on `media`.
    pub(super) fn with_disk(media: &TestMedia, arena_bytes: u64, object_bytes: u64) -> Self {
        let mut bench = Self::starting_on(media, arena_bytes, object_bytes);
        bench.turn();
        assert!(!bench.core.parts.disk.is_recovering());
        media.borrow_mut().reads.clear();
        bench
    }

    /// What was fetched lies on disk.
    pub(super) fn settle(&mut self) {
        self.pass(Duration::from_millis(BATCH_DELAY_MS));
        for _ in 0..1_000 {
            if self.core.parts.disk.is_quiet() {
                return;
            }
            self.pass(Duration::from_millis(1));
        }
        panic!("the disk tier never settles");
    }

    pub(super) fn evict_all(&mut self) {
        while self.core.index.evict().is_some() {}
    }

    /// Reads and expects the right bytes, from wherever.
    pub(super) fn get(&mut self, offset: u64, len: u64) {
        let outcome = self.read(offset, len, 0);
        self.serve_all();
        expect_bytes(&outcome, offset, len);
    }

    /// Memory hits, disk hits, misses.
    pub(super) fn hits(&self) -> (u64, u64, u64) {
        let stats = self.core.stats();
        (stats.memory_hits, stats.disk_hits, stats.misses)
    }

    pub(super) fn device(&self) -> DeviceStats {
        self.core.stats().disk.devices[0].clone()
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        let block = self.object.block(offset);
        self.core.index.find(block).is_some_and(|key| {
            let sub = offset / (64 * KIB) % 64;
            self.core.index.block(key).present & 1 << sub != 0
        })
    }
}

/// Lengths of the reads since the last call.
pub(super) fn take_reads(media: &TestMedia) -> Vec<usize> {
    std::mem::take(&mut media.borrow_mut().reads)
}

/// A core on fresh media, with these ranges on disk and nothing in memory.
pub(super) fn bench_with(ranges: &[(u64, u64)]) -> (Bench, TestMedia) {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    for (offset, len) in ranges {
        bench.get(*offset, *len);
    }
    bench.settle();
    bench.evict_all();
    take_reads(&media);
    (bench, media)
}

#[test]
fn what_memory_evicted_comes_from_disk() {
    let ranges = [(8 * MIB, MIB), (13 * MIB + 5, 300 * KIB)];
    let (mut bench, _) = bench_with(&ranges);
    let origin = bench.core.stats().ledger.total_bytes();
    for (offset, len) in ranges {
        bench.get(offset, len);
    }
    let stats = bench.core.stats();
    assert_eq!(stats.ledger.total_bytes(), origin);
    assert_eq!(bench.hits(), (0, 2, 2));
    assert_eq!(stats.disk_hit_bytes, MIB + 300 * KIB);
    assert_eq!(stats.disk_latency_ns.len(), 2);
    bench.get(8 * MIB, MIB);
    assert_eq!(bench.hits(), (1, 2, 2), "it is in memory again");
}

#[test]
fn a_chunk_is_one_device_read_and_the_rest_of_it_sub_blocks() {
    let (mut bench, media) = bench_with(&[(8 * MIB, MIB)]);
    bench.get(8 * MIB, MIB);
    assert_eq!(take_reads(&media), [1 << 20]);
    bench.evict_all();
    bench.get(8 * MIB, 64 * KIB);
    bench.get(8 * MIB, 192 * KIB);
    assert_eq!(take_reads(&media), [65_536; 3]);
}

#[test]
fn a_stream_is_loaded_ahead_in_chunks() {
    let (mut bench, media) = bench_with(&[(0, MIB), (MIB, MIB), (2 * MIB, MIB), (3 * MIB, MIB)]);
    let outcome = bench.read(0, 128 * KIB, 4 * MIB);
    bench.turn();
    expect_bytes(&outcome, 0, 128 * KIB);
    assert_eq!(take_reads(&media), [1 << 20; 4]);
    for n in 0..4 {
        bench.get(n * MIB, MIB);
    }
    assert_eq!(bench.hits(), (4, 1, 4));
}

#[test]
fn another_core_on_the_same_media_asks_the_origin_for_nothing() {
    let media = media();
    let object_bytes = 5 * MIB + 777;
    let mut first = Bench::with_disk(&media, ARENA, object_bytes);
    first.get(0, MIB);
    first.get(4 * MIB + 777, MIB);
    first.ring.push(Request::Shutdown).unwrap();
    first.turn();
    assert!(first.core.is_quiet(), "shutdown settles what was fetched");
    drop(first);
    let mut second = Bench::with_disk(&media, ARENA, object_bytes);
    second.get(0, MIB);
    second.get(4 * MIB + 777, MIB);
    second.get(5 * MIB, 777);
    let stats = second.core.stats();
    assert_eq!((stats.gets, stats.ledger.total_bytes()), (0, 0));
}

#[test]
fn a_small_read_reads_its_pages_and_brings_nothing_to_memory() {
    let (mut bench, media) = bench_with(&[(MIB, MIB)]);
    bench.get(MIB + 5_000, 4 * KIB);
    bench.get(MIB + 64 * KIB, 4 * KIB);
    bench.get(MIB + 120 * KIB, 16 * KIB);
    assert_eq!(take_reads(&media), [8_192, 4_096, 16_384]);
    assert_eq!(bench.hits(), (0, 3, 1));
    assert_eq!(bench.core.stats().disk_hit_bytes, 24 * KIB);
    assert_eq!(bench.core.arena().in_flight_bytes(), 0);
    assert_eq!(bench.core.index.len(), 0);
}

#[test]
fn the_last_short_page_of_an_object_is_read_directly_too() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, 3 * MIB + 100);
    bench.get(3 * MIB - 8 * KIB, 8 * KIB + 100);
    bench.settle();
    bench.evict_all();
    bench.get(3 * MIB - 4 * KIB, 4 * KIB + 100);
    bench.get(3 * MIB + 50, 50);
    assert_eq!(bench.hits(), (0, 2, 1));
}

#[test]
fn what_is_read_directly_again_and_again_moves_to_memory() {
    let (mut bench, _) = bench_with(&[(MIB, 64 * KIB)]);
    for _ in 0..DIRECT_READS_MAX {
        bench.get(MIB + 8 * KIB, 4 * KIB);
        assert!(!bench.is_in_memory(MIB));
    }
    bench.get(MIB + 8 * KIB, 4 * KIB);
    assert!(bench.is_in_memory(MIB));
    bench.get(MIB + 60 * KIB, 4 * KIB);
    assert_eq!(bench.hits(), (1, 3, 1));
}

#[test]
fn a_small_read_of_what_is_on_its_way_to_memory_waits_for_it() {
    let (mut bench, media) = bench_with(&[(MIB, MIB)]);
    let large = bench.read(MIB, 128 * KIB, 0);
    let small = bench.read(MIB + 4 * KIB, 4 * KIB, 0);
    bench.turn();
    expect_bytes(&large, MIB, 128 * KIB);
    expect_bytes(&small, MIB + 4 * KIB, 4 * KIB);
    assert_eq!(take_reads(&media), [65_536; 2]);
}

#[test]
fn readers_of_one_sub_block_share_a_load_and_a_prefetch_becomes_urgent() {
    let (mut bench, media) = bench_with(&[(0, MIB)]);
    media.borrow_mut().hold_reads = true;
    let request = PrefetchRequest {
        object: bench.object.clone(),
        offset: 0,
        len_bytes: 256 * KIB as u32,
        deadline: bench.clock.now() + TIMEOUT,
    };
    bench.ring.push(Request::Prefetch(request)).unwrap();
    let one = bench.read(100, 100 * KIB, 0);
    let two = bench.read(KIB, 4 * KIB, 0);
    bench.turn();
    media.borrow_mut().hold_reads = false;
    bench.turn();
    expect_bytes(&one, 100, 100 * KIB);
    expect_bytes(&two, KIB, 4 * KIB);
    assert_eq!(take_reads(&media), [65_536; 4]);
    assert_eq!(bench.hits(), (0, 2, 1));
    assert_eq!(bench.core.stats().joined, 0, "no fetch was joined");
}

#[test]
fn one_read_takes_from_disk_what_is_there_and_the_rest_from_the_origin() {
    let (mut bench, _) = bench_with(&[(64 * KIB, 64 * KIB)]);
    let outcome = bench.read(0, 256 * KIB, 0);
    bench.turn();
    assert_eq!(bench.gets(), [(0, 64 * KIB), (128 * KIB, 128 * KIB)]);
    bench.serve_all();
    expect_bytes(&outcome, 0, 256 * KIB);
    assert_eq!(bench.hits(), (0, 0, 2), "it waited for the origin");
    let ledger = bench.core.stats().ledger;
    assert_eq!(ledger.bytes(Reason::Cold), 256 * KIB);
    bench.settle();
    assert_eq!(bench.device().filled_bytes, 256 * KIB, "each byte once");
}

#[test]
fn a_block_put_together_from_scattered_reads_becomes_one_entry() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, 2 * MIB);
    for n in (0..32).rev() {
        bench.get(n * 64 * KIB, 64 * KIB);
        bench.settle();
        let entries = if n == 0 { 1 } else { 32 - n };
        assert_eq!(bench.device().entries, entries);
    }
    let written = 31 * 64 * KIB + 2 * MIB;
    assert_eq!(bench.device().filled_bytes, written, "the price");
    bench.evict_all();
    bench.get(0, MIB);
    assert_eq!(bench.core.stats().ledger.total_bytes(), 2 * MIB);
}

#[test]
fn a_block_that_lies_in_long_extents_is_not_written_twice() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, 4 * MIB);
    for n in (0..4).rev() {
        bench.get(n * MIB, MIB);
        bench.settle();
    }
    let device = bench.device();
    assert_eq!((device.filled_bytes, device.entries), (4 * MIB, 4));
}

#[test]
fn only_what_came_from_the_origin_is_kept() {
    let (mut bench, _) = bench_with(&[(0, MIB)]);
    bench.get(0, MIB);
    bench.settle();
    bench.get(0, MIB);
    assert_eq!(bench.hits(), (1, 1, 1));
    assert_eq!(bench.device().filled_bytes, MIB);
}

#[test]
fn what_memory_serves_again_and_again_stays_on_disk() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, 1024 * MIB);
    let (hot, cold) = (0, 4 * MIB);
    bench.get(hot, MIB);
    bench.get(cold, MIB);
    // Once and a half of what the disk holds.
    for n in 2..74 {
        for chunk in 0..4 {
            bench.get(n * 4 * MIB + chunk * MIB, MIB);
        }
        bench.settle();
        bench.get(hot, MIB);
    }
    let stats = bench.core.stats();
    assert!(bench.device().regions_reclaimed > 0);
    assert_eq!(
        stats.ledger.bytes(Reason::Evicted),
        0,
        "it was always at hand"
    );
    let on_disk = |offset| {
        bench
            .core
            .parts
            .disk
            .present(bench.object.block(offset), 4 << 20)
            != 0
    };
    assert!(on_disk(hot) && !on_disk(cold));
    let direct = bench.core.stats().disk_hits;
    assert!(direct <= 3, "it was read from disk {direct} times");
}

#[test]
fn pieces_that_are_being_written_stay_in_memory_until_they_are() {
    let (mut bench, _) = bench_with(&[]);
    bench.get(0, MIB);
    bench.settle();
    bench.get(8 * MIB, MIB);
    bench.get(8 * MIB, MIB);
    bench.evict_all();
    assert!(!bench.is_in_memory(0) && bench.is_in_memory(8 * MIB));
    bench.settle();
    bench.evict_all();
    assert!(!bench.is_in_memory(8 * MIB));
    assert_eq!(bench.core.index.len(), 0);
}

#[test]
fn memory_is_had_from_the_main_queue_when_the_small_one_is_on_its_way_to_disk() {
    let (mut bench, media) = bench_with(&[(0, MIB)]);
    // Evicted before, so in the main queue.
    bench.get(0, MIB);
    media.borrow_mut().hold_writes = true;
    // More than the small queue's tenth.
    for n in 1..6 {
        bench.get(n * 8 * MIB, MIB);
    }
    // Nothing is settled: the main queue's only block is being completed.
    let more = bench.read(MIB, MIB, 0);
    bench.turn();
    assert_eq!(bench.core.index.saving_bytes as u64, 5 * MIB);
    assert!(bench.core.index.evict().is_some());
    assert!(!bench.is_in_memory(0));
    bench.serve_all();
    expect_bytes(&more, MIB, MIB);
}

#[test]
fn small_objects_on_their_way_to_disk_never_take_all_memory() {
    let media = media();
    let mut bench = Bench::with_disk(&media, 16 * MIB, OBJECT);
    // Each takes a buffer of 64 KiB; no time passes, so nothing is written.
    for n in 0..600 {
        bench.object = object(&format!("small/{n}"), 5_000);
        bench.get(0, 5_000);
    }
    assert!(bench.core.index.saving_bytes as u64 <= 4 * MIB);
    assert_eq!(bench.device().fills_dropped, 600 - 64);
    bench.settle();
    assert_eq!(bench.core.index.saving_bytes, 0);
    bench.evict_all();
    bench.object = object("small/7", 5_000);
    bench.get(0, 5_000);
    assert_eq!(bench.hits(), (0, 1, 600));
}

#[test]
fn writes_whose_pieces_memory_dropped_never_take_all_memory() {
    let media = media();
    let mut bench = Bench::with_disk(&media, 16 * MIB, OBJECT);
    // The device takes nothing for a while.
    media.borrow_mut().queue_max = 0;
    for n in 0..40 {
        bench.get(n * 4 * MIB, MIB);
        let block = bench.object.block(n * 4 * MIB);
        let key = bench.core.index.find(block).expect("it was read just now");
        bench.core.index.spoil(key, 0);
    }
    assert_eq!(bench.core.index.saving_bytes, 0);
    bench.core.parts.arena.reclaim();
    assert!(bench.core.arena().frozen_bytes() as u64 <= 8 * MIB);
    media.borrow_mut().queue_max = 64;
    bench.settle();
    assert!(bench.device().filled_bytes >= 4 * MIB);
}

#[test]
fn a_tier_that_does_not_check_brings_bytes_that_memory_checks() {
    let media = media();
    let mut bench = Bench::checking(&media, ARENA, OBJECT, false);
    bench.turn();
    bench.get(0, MIB);
    bench.settle();
    bench.evict_all();
    bench.get(0, MIB);
    bench.get(0, MIB);
    assert!(bench.core.index.corrupt(bench.object.block(0)));
    bench.get(0, MIB);
    assert_eq!(bench.core.stats().checksum_failures, 1);
    assert_eq!(bench.core.stats().ledger.total_bytes(), MIB);
}

#[test]
fn what_arrives_in_a_turn_is_not_checked_again_in_it_and_later_it_is() {
    let (mut bench, _) = bench_with(&[(0, MIB)]);
    for _ in 0..2 {
        bench.get(0, MIB);
        // The turn in which it arrived is over: a page that goes bad in memory is found,
        assert!(bench.core.index.corrupt(bench.object.block(0)));
        bench.get(0, MIB);
    }
    // and mended from disk.
    assert_eq!(bench.core.stats().checksum_failures, 2);
    assert_eq!(bench.core.stats().ledger.total_bytes(), MIB);
}

#[test]
fn more_readers_than_the_arena_holds_are_served_from_disk_once_each() {
    let media = media();
    let mut bench = Bench::with_disk(&media, 16 * MIB, OBJECT);
    for n in 0..40 {
        bench.get(n * 4 * MIB + 100, MIB);
        bench.settle();
    }
    let origin = bench.core.stats().ledger.total_bytes();
    take_reads(&media);
    let outcomes: Vec<_> = (0..40)
        .map(|n| bench.read(n * 4 * MIB + 100, MIB, 0))
        .collect();
    bench.turn();
    for (n, outcome) in (0..).zip(&outcomes) {
        expect_bytes(outcome, n * 4 * MIB + 100, MIB);
    }
    assert_eq!(bench.core.stats().ledger.total_bytes(), origin);
    let bytes: usize = take_reads(&media)
        .iter()
        .filter(|len| **len > PAGE_BYTES)
        .sum();
    assert!(bytes as u64 <= 40 * 17 * 64 * KIB, "{bytes} bytes read");
    assert_eq!(bench.core.lanes.admitted_bytes(), 0);
}
