//! The policy against a small model of the engine: what a read wants and what is prefetched is
//! fetched in whole sub-blocks, each once.

use std::collections::HashSet;

use forebay_engine::limits::{STRIPE_BYTES, SUB_BLOCK_BYTES};
use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// One handle, and what its reads made the engine fetch.
struct Reader {
    read_ahead: ReadAhead,
    size_bytes: u64,
    fetched: HashSet<u64>,
    prefetches: u64,
    /// What the prefetches are at the origin: none crosses a stripe, or is longer than half of one.
    gets: u64,
    now: Time,
    ns_per_byte: u64,
}

impl Reader {
    fn new(size_bytes: u64) -> Self {
        Self::sharing(size_bytes, &Budget::new(GIB))
    }

    fn sharing(size_bytes: u64, budget: &Arc<Budget>) -> Self {
        Self {
            read_ahead: ReadAhead::new(size_bytes, budget.clone()),
            size_bytes,
            fetched: HashSet::new(),
            prefetches: 0,
            gets: 0,
            now: Time(1),
            ns_per_byte: 1,
        }
    }

    /// A read with this plan waits for its bytes, if anybody wants to know.
    fn wait(&self, plan: &Plan) {
        if let Some(width) = plan.timed_width {
            let timed = Timed::begin(&self.read_ahead.waits, width);
            let begun = timed.begun.checked_sub(WAIT_MIN);
            let begun = begun.expect("the clock began long ago");
            Timed { begun, ..timed }.end();
        }
    }

    fn ahead_bytes(&self) -> u64 {
        let streams = self.read_ahead.streams.iter();
        streams.map(|stream| stream.announced - stream.next).sum()
    }

    /// Reads these MiB in order; all that is timed takes long.
    fn scan_and_wait_mib(&mut self, range: Range<u64>) -> u64 {
        let mut ahead_max = 0;
        for n in range {
            let plan = self.read(n * MIB, MIB as u32);
            self.wait(&plan);
            ahead_max = ahead_max.max(self.ahead_bytes());
        }
        ahead_max
    }

    fn read(&mut self, offset: u64, len_bytes: u32) -> Plan {
        self.now.0 += u64::from(len_bytes) * self.ns_per_byte;
        let plan = self.read_ahead.on_read(offset, len_bytes, self.now);
        let len = u64::from(len_bytes.max(plan.want_bytes));
        let stripe_end = (offset / STRIPE_BYTES as u64 + 1) * STRIPE_BYTES as u64;
        // The engine clips a read's wish to the stripe, and both to the object.
        let wanted = (offset + len)
            .min(stripe_end)
            .max(offset + u64::from(len_bytes));
        self.fetch(offset..wanted.min(self.size_bytes));
        if let Some(range) = plan.prefetch.clone() {
            assert!(
                range.start < range.end && range.end <= self.size_bytes,
                "{range:?}"
            );
            self.prefetches += 1;
            self.gets += range.end.div_ceil(PIECE_BYTES_MIN) - range.start / PIECE_BYTES_MIN;
            self.fetch(range);
        }
        plan
    }

    /// Reads these MiB in order.
    fn scan_mib(&mut self, range: Range<u64>) {
        for n in range {
            self.read(n * MIB, MIB as u32);
        }
    }

    fn fetch(&mut self, range: Range<u64>) {
        let sub_block = SUB_BLOCK_BYTES as u64;
        self.fetched
            .extend(range.start / sub_block..range.end.div_ceil(sub_block));
    }

    fn fetched_bytes(&self) -> u64 {
        self.fetched.len() as u64 * SUB_BLOCK_BYTES as u64
    }
}

#[test]
fn a_small_file_is_wanted_whole_by_its_first_read() {
    let mut reader = Reader::new(300_000);
    let plan = reader.read(0, 4096);
    assert_eq!(
        plan,
        Plan {
            want_bytes: 300_000,
            ..Plan::default()
        }
    );
    assert_eq!(Reader::new(5 * MIB).read(0, 4096).want_bytes, MIB as u32);
    assert_eq!(Reader::new(5 * MIB).read(MIB, 4096).want_bytes, 0);
    assert_eq!(Reader::new(0).read(0, 4096), Plan::default());
}

#[test]
fn a_scan_opens_the_window_keeps_ahead_and_stops_at_the_end() {
    let size = 200 * MIB + 12_345;
    let mut reader = Reader::new(size);
    let mut ahead_of = |offset: u64| {
        let plan = reader.read(offset, MIB as u32);
        (plan, reader.read_ahead.streams[0].announced)
    };
    let mut widest = 0;
    let mut offset = 0;
    while offset < size {
        let (plan, announced) = ahead_of(offset);
        let next = (offset + MIB).min(size);
        assert!(announced - next <= WINDOW_BYTES_FAST && announced <= size);
        if offset > 20 * MIB && next + WINDOW_BYTES_FAST < size {
            assert!(
                announced - next >= 23 * MIB,
                "all but a piece of the window is left at {offset}"
            );
            if let Some(range) = plan.prefetch {
                assert_eq!(range.end % PIECE_BYTES_MIN, 0);
                assert!(range.end - range.start >= PIECE_BYTES_MIN);
            }
        }
        widest = widest.max(announced - next);
        offset = next;
    }
    assert!(widest > 16 * MIB);
    assert_eq!(
        reader.fetched_bytes(),
        size.next_multiple_of(SUB_BLOCK_BYTES as u64)
    );
    assert!(
        reader.prefetches <= 200 / 8 + 6,
        "{} prefetches",
        reader.prefetches
    );
    assert_eq!(
        reader.read_ahead.budget.used_bytes(),
        0,
        "nothing is held at the end"
    );
}

#[test]
fn a_reader_that_waits_gets_a_wider_window() {
    let size = 3 * GIB + 12_345;
    let mut reader = Reader::sharing(size, &Budget::new(4 * GIB));
    let ahead_max = reader.scan_and_wait_mib(0..2048);
    assert_eq!(reader.read_ahead.width, WINDOW_BYTES_MAX);
    assert!(
        ahead_max > WINDOW_BYTES_MAX - 2 * PIECE_BYTES_MIN,
        "{ahead_max}"
    );
    assert!(ahead_max <= WINDOW_BYTES_MAX);
    // Once it is wide it stays filled, by pieces that are worth a GET.
    let before = reader.gets;
    for n in 2048..2560 {
        reader.read(n * MIB, MIB as u32);
        let ahead = reader.ahead_bytes();
        assert!(
            ahead + 2 * PIECE_BYTES_MIN >= WINDOW_BYTES_MAX,
            "{ahead} ahead"
        );
    }
    assert!(
        reader.gets - before <= 512 / 8,
        "{} GETs",
        reader.gets - before
    );
    reader.scan_mib(2560..3073);
    assert_eq!(
        reader.fetched_bytes(),
        size.next_multiple_of(SUB_BLOCK_BYTES as u64)
    );
    assert_eq!(reader.read_ahead.budget.used_bytes(), 0);
}

#[test]
fn who_is_answered_soon_stays_narrow() {
    let mut reader = Reader::new(GIB);
    let mut timed = 0;
    for n in 0..512 {
        if let Some(width) = reader.read(n * MIB, MIB as u32).timed_width {
            timed += 1;
            let soon = Timed::begin(&reader.read_ahead.waits, width);
            // An hour from now it could not be said to be quick any more.
            let begun = soon.begun + Duration::from_secs(3600);
            Timed { begun, ..soon }.end();
        }
    }
    assert!(timed > 400, "{timed} reads were timed");
    assert_eq!(reader.read_ahead.width, WINDOW_BYTES_FAST);
}

/// More GETs on a line that is full would each be so slow that they come too late.
#[test]
fn a_slow_line_gets_no_wider_window() {
    let mut reader = Reader::sharing(4 * GIB, &Budget::new(4 * GIB));
    // 50 Mbit/s.
    reader.ns_per_byte = 160;
    let ahead_max = reader.scan_and_wait_mib(0..1024);
    assert!(ahead_max <= WINDOW_BYTES_FAST, "{ahead_max}");
    // 50 MB/s: two seconds of that.
    reader.ns_per_byte = 20;
    let ahead_max = reader.scan_and_wait_mib(1024..2048);
    assert!(
        ahead_max > 80_000_000 && ahead_max <= 110_000_000,
        "{ahead_max}"
    );
    reader.ns_per_byte = 160;
    reader.scan_and_wait_mib(2048..2304);
    assert!(
        reader.ahead_bytes() <= WINDOW_BYTES_FAST,
        "it is narrow again: {}",
        reader.ahead_bytes()
    );
}

#[test]
fn reads_that_waited_together_widen_once() {
    let mut reader = Reader::new(4 * GIB);
    reader.scan_mib(0..1024);
    let together: Vec<Plan> = (1024..1032)
        .map(|n| reader.read(n * MIB, MIB as u32))
        .collect();
    for (n, plan) in (1032..).zip(&together) {
        reader.wait(plan);
        reader.read(n * MIB, MIB as u32);
    }
    assert_eq!(reader.read_ahead.width, 2 * WINDOW_BYTES_FAST);
    // What was announced before is no proof of what the new width gives.
    let later: Vec<bool> = (1040..1200)
        .map(|n| reader.read(n * MIB, MIB as u32).timed_width.is_some())
        .collect();
    let first = later.iter().position(|timed| *timed);
    let first = first.expect("no read is timed again");
    assert!(
        first >= 32 && later[first..].iter().all(|timed| *timed),
        "from {first}"
    );
}

#[test]
fn reads_at_random_are_not_timed() {
    let mut reader = Reader::new(GIB);
    for n in 1..500u64 {
        let at = n * 7919 % 8000 * 128 * 1024;
        assert_eq!(reader.read(at, 4096).timed_width, None);
    }
}

#[test]
fn small_reads_in_order_come_to_where_stripes_begin() {
    for len in [4096, 100_000, 128 << 10, MIB] {
        let size = 512 * MIB;
        let mut reader = Reader::new(size);
        for n in 0..size / len {
            reader.read(n * len, len as u32);
        }
        let gets = reader.gets;
        assert!(gets <= size / PIECE_BYTES_MIN + 12, "{gets} GETs of {len}");
    }
}

#[test]
fn a_wide_window_leaves_room_for_others_and_asks_by_whole_pieces() {
    for limit in [128 * MIB, 256 * MIB, GIB] {
        let budget = Budget::new(limit);
        let mut reader = Reader::sharing(4 * GIB, &budget);
        let ahead_max = reader.scan_and_wait_mib(0..3072);
        let most = (limit * 3 / 8).clamp(WINDOW_BYTES_FAST, WINDOW_BYTES_MAX);
        assert!(ahead_max <= most, "{ahead_max} of {limit}");
        assert!(ahead_max + 17 * MIB > most, "{ahead_max} of {limit}");
        let mean = 3072 * MIB / reader.gets;
        assert!(
            mean >= PIECE_BYTES_MIN / 8 * 7,
            "{mean} bytes each of {limit}"
        );
        let mut other = Reader::sharing(GIB, &budget);
        other.scan_mib(0..64);
        assert!(other.ahead_bytes() > 14 * MIB, "of {limit}");
    }
}

#[test]
fn what_is_announced_stays_within_the_budget_when_others_come() {
    let budget = Budget::new(GIB);
    let mut readers: Vec<Reader> = (0..16).map(|_| Reader::sharing(8 * GIB, &budget)).collect();
    for count in [1, 2, 4, 16] {
        for n in 0..1024 {
            for (which, reader) in readers[..count].iter_mut().enumerate() {
                let at = n + 1024 * (count.trailing_zeros() as u64);
                let plan = reader.read(at * MIB, MIB as u32);
                if which % 2 == 0 {
                    reader.wait(&plan);
                }
            }
            let ahead: u64 = readers.iter().map(Reader::ahead_bytes).sum();
            assert!(ahead <= GIB, "{ahead} by {count} readers");
            assert!(budget.used_bytes() <= GIB);
        }
    }
    // The last that came are not the last in the line.
    assert!(readers.iter().all(|reader| reader.ahead_bytes() >= 8 * MIB));
}

#[test]
fn random_reads_fetch_only_what_they_touch() {
    let mut reader = Reader::new(GIB);
    let mut state = 1u64;
    let mut asked = 0;
    for _ in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        reader.read((state >> 20) % (GIB / 4096) * 4096, 4096);
        asked += 4096;
    }
    assert!(
        reader.fetched_bytes() <= 16 * asked,
        "{}",
        reader.fetched_bytes() / asked
    );
    assert_eq!(reader.prefetches, 0);
}

#[test]
fn a_reader_that_turns_random_stops_at_once() {
    let mut reader = Reader::new(GIB);
    reader.scan_mib(0..64);
    for n in 1..100u64 {
        let plan = reader.read(GIB - n * 7 * MIB, 4096);
        assert_eq!(plan, Plan::default());
    }
}

#[test]
fn strided_reads_are_random() {
    for stride in [128 << 10, MIB, 3 * MIB] {
        let mut reader = Reader::new(GIB);
        for n in 1..300 {
            reader.read(n * stride, 4096);
        }
        assert_eq!(
            reader.fetched_bytes() / SUB_BLOCK_BYTES as u64,
            299,
            "stride {stride}"
        );
        assert_eq!(reader.prefetches, 0);
    }
}

#[test]
fn records_of_a_few_pages_cost_a_few_pages() {
    let mut reader = Reader::new(GIB);
    let mut asked = 0;
    for n in 0..500u64 {
        let at = (n * 7919 + 13) % 8000 * 128 * 1024;
        for part in 0..4 {
            reader.read(at + part * 16_384, 16_384);
            asked += 16_384;
        }
    }
    assert!(
        reader.fetched_bytes() <= 4 * asked,
        "{}",
        reader.fetched_bytes() / asked
    );
}

#[test]
fn interleaved_scans_on_one_handle_are_each_followed() {
    let mut reader = Reader::new(4 * GIB);
    for n in 0..64 {
        for scan in 0..4 {
            reader.read(scan * GIB + n * MIB, MIB as u32);
        }
    }
    for scan in 0..4 {
        let ahead = reader.read(scan * GIB + 64 * MIB, MIB as u32);
        assert!(ahead.want_bytes > 8 * MIB as u32, "{ahead:?}");
    }
    assert!(reader.prefetches >= 4 * 3 && reader.prefetches < 4 * 16);
}

#[test]
fn the_budget_is_shared_and_never_exceeded() {
    let budget = Budget::new(64 * MIB);
    let mut readers: Vec<Reader> = (0..16).map(|_| Reader::sharing(GIB, &budget)).collect();
    for n in 0..200 {
        for reader in &mut readers {
            reader.read(n * MIB, MIB as u32);
            assert!(budget.used_bytes() <= 64 * MIB);
        }
    }
    drop(readers);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn idle_handles_give_their_share_back() {
    let budget = Budget::new(32 * MIB);
    let mut idle = Reader::sharing(GIB, &budget);
    idle.scan_mib(0..32);
    assert!(budget.used_bytes() >= 16 * MIB);
    let mut busy = Reader::sharing(GIB, &budget);
    busy.now = Time(3 * EPOCH_NS);
    busy.scan_mib(0..64);
    assert!(busy.read_ahead.streams[0].announced >= 80 * MIB);
    // The idle one goes on, and its expired share is not given back twice.
    idle.now = busy.now;
    idle.scan_mib(32..64);
    drop((idle, busy));
    assert_eq!(budget.used_bytes(), 0);
}

proptest! {
    #[test]
    fn reads_that_overtake_each_other_are_still_a_scan(
        swaps in proptest::collection::vec(0usize..8, 256),
        len in prop_oneof![Just(128u64 << 10), Just(1u64 << 20)],
    ) {
        let size = 256 * len;
        let mut reader = Reader::new(size);
        let mut order: Vec<u64> = (0..256).collect();
        for (at, swap) in swaps.into_iter().enumerate() {
            let with = (at + swap % 4).min(255);
            order.swap(at, with);
        }
        for n in order {
            reader.read(n * len, len as u32);
        }
        prop_assert_eq!(reader.fetched_bytes(), size);
        prop_assert!(reader.prefetches <= 2 + 2 * size / (8 * MIB) + 12, "{}", reader.prefetches);
        prop_assert_eq!(reader.read_ahead.streams.iter().filter(|s| s.reads > 100).count(), 1);
    }

    #[test]
    fn no_plan_leaves_the_object_or_the_bounds(
        size in 0u64..(1 << 36),
        reads in proptest::collection::vec((any::<u64>(), 1u32..=(1 << 20)), 1..200),
    ) {
        let mut reader = Reader::new(size);
        let mut next = 0u64;
        for (offset, len) in reads {
            // Half of the reads go on where the last one ended.
            let offset = if offset % 2 == 0 { next } else { offset % (size + 2) };
            let plan = reader.read_ahead.on_read(offset, len, Time(1));
            prop_assert!(u64::from(plan.want_bytes) <= WINDOW_BYTES_MAX + MIB);
            prop_assert!(offset + u64::from(plan.want_bytes) <= size.max(offset));
            if let Some(range) = plan.prefetch {
                prop_assert!(range.start < range.end && range.end <= size);
            }
            prop_assert!(reader.read_ahead.streams.len() <= STREAMS_PER_HANDLE_MAX);
            next = (offset + u64::from(len)).min(size);
        }
    }
}

#[test]
fn random_readers_do_not_take_the_budgets_lock() {
    let budget = Budget::new(GIB);
    let mut reader = Reader::sharing(100 * GIB, &budget);
    let held = budget.state.lock();
    let (done, finished) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        for n in 0..4 * STREAMS_PER_HANDLE_MAX as u64 {
            reader.read((n + 1) * GIB, 4096);
        }
        drop(reader);
        done.send(()).unwrap();
    });
    let finished = finished.recv_timeout(std::time::Duration::from_secs(10));
    drop(held);
    thread.join().unwrap();
    assert_eq!(finished, Ok(()));
}
