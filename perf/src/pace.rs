//! Who begins which operation when: closed and open loops, over work that is begun and ends later and over threads that wait.
//!
//! Places and arrivals come from the seed alone, so that both sides of a comparison get the same.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::interrupt;
use crate::load::Rng;
use crate::recorder::{Begun, Recorder};

/// After the last arrival, what waits is worked off for so long at most.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Nothing ended for so long: a side is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// The last part of a wait for an arrival is spent looking at the clock: sleeping is not that exact.
pub(crate) const SPIN: Duration = Duration::from_micros(80);
/// Arrivals that wait at most.
const BACKLOG_MAX: usize = 10_000_000;
/// Between looks at the signals, in operations.
const LOOK_EVERY: u64 = 1_024;

/// In which order blocks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The seed chooses.
    Random,
    /// One after the other, again from the first when all were read.
    Sequential,
}

impl Order {
    /// By its name in a scenario.
    pub fn named(word: &str) -> Order {
        match word {
            "sequential" => Order::Sequential,
            _ => Order::Random,
        }
    }
}

/// A load of one span.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Blocks to choose from.
    pub blocks: u64,
    /// Which is next.
    pub order: Order,
    /// Operations under way, or threads.
    pub depth: usize,
    /// Arrivals each second; none: a closed loop.
    pub rate: Option<u64>,
    /// How long operations begin.
    pub span: Duration,
    /// Of places and arrivals.
    pub seed: u64,
}

impl Load {
    /// From when times count.
    pub fn begun(&self) -> Begun {
        match self.rate {
            Some(_) => Begun::Arrival,
            None => Begun::EndOfTheOneBefore,
        }
    }
}

/// What came of a load.
#[derive(Debug, Default)]
pub struct Paced {
    /// Operations that ended.
    pub operations: u64,
    /// From the start to the end of the last.
    pub elapsed: Duration,
    /// How long they took.
    pub recorder: Recorder,
    /// Operations that had arrived and were never begun, or had not ended, when the load was given up.
    pub unfinished: u64,
}

/// The blocks that one thread reads, of `parts` threads.
#[derive(Debug)]
pub struct Places {
    first: u64,
    count: u64,
    at: u64,
    rng: Option<Rng>,
}

impl Places {
    /// Those of part `part`.
    pub fn new(load: &Load, part: usize, parts: usize) -> Places {
        let (part, parts) = (part as u64, parts.max(1) as u64);
        match load.order {
            Order::Random => Places {
                first: 0,
                count: load.blocks.max(1),
                at: 0,
                rng: Some(Rng::of(load.seed, part)),
            },
            Order::Sequential => {
                let first = load.blocks * part / parts;
                let end = load.blocks * (part + 1) / parts;
                Places {
                    // With fewer blocks than threads, some threads read the same.
                    first: first.min(load.blocks.saturating_sub(1)),
                    count: (end - first).max(1),
                    at: 0,
                    rng: None,
                }
            }
        }
    }

    /// The next.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        let number = match &mut self.rng {
            Some(rng) => rng.next() % self.count,
            None => self.at % self.count,
        };
        self.at += 1;
        self.first + number
    }
}

/// When operations arrive: independent of each other, so that some come close together.
#[derive(Debug)]
struct Arrivals {
    next: Instant,
    mean_s: f64,
    rng: Rng,
}

impl Arrivals {
    fn new(start: Instant, rate: u64, seed: u64) -> Arrivals {
        let mut arrivals = Arrivals {
            next: start,
            mean_s: 1.0 / rate as f64,
            rng: Rng::of(seed, u64::MAX),
        };
        arrivals.pass();
        arrivals
    }

    fn pass(&mut self) -> Instant {
        let this = self.next;
        let uniform = (self.rng.next() >> 11) as f64 / (1u64 << 53) as f64;
        self.next += Duration::from_secs_f64(-(1.0 - uniform).ln() * self.mean_s);
        this
    }
}

/// Work that is begun and ends later, many at a time, on one thread.
pub trait Slots {
    /// Begins to read block `place` under the number `slot`.
    ///
    /// # Errors
    /// When it cannot.
    fn begin(&mut self, slot: usize, place: u64) -> Result<()>;

    /// Goes on, and pushes the numbers of what ended. Where nothing ends it may sleep until something does, not longer than `most`.
    ///
    /// # Errors
    /// When an operation failed.
    fn go_on(&mut self, ended: &mut Vec<usize>, most: Duration) -> Result<()>;
}

/// Runs a load on work that ends later.
///
/// # Errors
/// When an operation fails, nothing ends any more, or a signal came.
pub fn slots(work: &mut impl Slots, load: &Load) -> Result<Paced> {
    match load.rate {
        None => closed_slots(work, load),
        Some(rate) => open_slots(work, load, rate, (DRAIN_MAX, BACKLOG_MAX)),
    }
}

/// Reads each block once, as many at a time as the load has under way.
///
/// # Errors
/// As [`slots`].
pub fn pass(work: &mut impl Slots, load: &Load) -> Result<()> {
    let mut ended: Vec<usize> = (0..load.depth).collect();
    let (mut next, mut left) = (0, load.blocks);
    let mut moved = Instant::now();
    while left > 0 {
        for slot in ended.drain(..) {
            if next < load.blocks {
                work.begin(slot, next)?;
                next += 1;
            }
        }
        work.go_on(&mut ended, Duration::from_millis(100))?;
        left -= ended.len() as u64;
        if ended.is_empty() {
            interrupt::check()?;
            ensure!(moved.elapsed() < STUCK_AFTER, "nothing ends any more");
        } else {
            moved = Instant::now();
        }
    }
    Ok(())
}

fn closed_slots(work: &mut impl Slots, load: &Load) -> Result<Paced> {
    let mut places = Places::new(load, 0, 1);
    let mut paced = Paced::default();
    let mut ended: Vec<usize> = (0..load.depth).collect();
    let start = Instant::now();
    let mut since = vec![start; load.depth];
    let (mut now, mut moved, mut under_way, mut looks) = (start, start, 0, 0u64);
    let end = start + load.span;
    loop {
        for slot in ended.drain(..) {
            if now < end {
                work.begin(slot, places.next())?;
                under_way += 1;
            }
        }
        if under_way == 0 {
            break;
        }
        work.go_on(&mut ended, Duration::from_millis(100))?;
        now = Instant::now();
        for slot in &ended {
            paced.recorder.record(now - since[*slot]);
            since[*slot] = now;
            moved = now;
        }
        under_way -= ended.len();
        paced.operations += ended.len() as u64;
        looks += 1;
        if looks.is_multiple_of(LOOK_EVERY) || now - moved > Duration::from_millis(50) {
            interrupt::check()?;
            ensure!(now - moved < STUCK_AFTER, "nothing ends any more");
        }
    }
    paced.elapsed = now - start;
    Ok(paced)
}

/// What waits so long after the last arrival, and what would be more than so many that wait, is given up and counted.
fn open_slots(
    work: &mut impl Slots,
    load: &Load,
    rate: u64,
    (drain_max, backlog_max): (Duration, usize),
) -> Result<Paced> {
    let mut places = Places::new(load, 0, 1);
    let mut paced = Paced::default();
    let mut ended = Vec::new();
    let mut free: Vec<usize> = (0..load.depth).collect();
    let start = Instant::now();
    let mut since = vec![start; load.depth];
    let mut arrivals = Arrivals::new(start, rate, load.seed);
    let mut waiting: VecDeque<Instant> = VecDeque::new();
    let (end, mut now, mut last) = (start + load.span, start, start);
    loop {
        while arrivals.next <= now && arrivals.next < end {
            let arrival = arrivals.pass();
            match waiting.len() < backlog_max {
                true => waiting.push_back(arrival),
                false => paced.unfinished += 1,
            }
        }
        while !waiting.is_empty()
            && let Some(slot) = free.pop()
        {
            since[slot] = waiting.pop_front().unwrap_or(now);
            work.begin(slot, places.next())?;
        }
        let idle = waiting.is_empty() && free.len() == load.depth;
        if arrivals.next >= end && idle {
            break;
        }
        if now > end + drain_max {
            // Each round comes by here until what is under way has ended.
            paced.unfinished += waiting.len() as u64;
            waiting.clear();
            ensure!(now < end + STUCK_AFTER, "nothing ends any more");
        }
        let until = match arrivals.next < end {
            true => arrivals.next.saturating_duration_since(now),
            false => Duration::from_millis(100),
        };
        if idle {
            wait_until(now + until);
        } else {
            work.go_on(&mut ended, until.saturating_sub(SPIN))?;
        }
        now = Instant::now();
        for slot in ended.drain(..) {
            paced.recorder.record(now - since[slot]);
            paced.operations += 1;
            last = now;
            free.push(slot);
        }
        interrupt::check()?;
    }
    paced.elapsed = last.max(end.min(now)) - start;
    Ok(paced)
}

/// Sleeps, and looks at the clock for the last bit.
fn wait_until(moment: Instant) {
    let left = moment.saturating_duration_since(Instant::now());
    // In steps, so that signals are seen.
    thread::sleep(left.saturating_sub(SPIN).min(Duration::from_millis(100)));
    if left <= Duration::from_millis(100) {
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
    }
}

/// Runs a load on `load.depth` threads that wait for each operation. `worker` is called once on each, and gives what reads a block.
///
/// # Errors
/// The first that fails, or that a signal came.
pub fn threads<W>(load: &Load, worker: impl Fn(usize) -> Result<W> + Sync) -> Result<Paced>
where
    W: FnMut(u64) -> Result<()>,
{
    let (barrier, failed) = (Barrier::new(load.depth), AtomicBool::new(false));
    let shared = Mutex::new(None);
    let worker = &worker;
    let (barrier, failed, shared) = (&barrier, &failed, &shared);
    let results: Vec<Result<Paced>> = thread::scope(|scope| {
        let running: Vec<_> = (0..load.depth)
            .map(|part| {
                scope.spawn(move || {
                    let made = worker(part);
                    failed.fetch_or(made.is_err(), Relaxed);
                    barrier.wait();
                    let mut work = made?;
                    if failed.load(Relaxed) {
                        // Another one tells why: nobody works a whole span for nothing.
                        return Ok(Paced::default());
                    }
                    match load.rate {
                        None => closed_thread(&mut work, load, part),
                        Some(rate) => open_thread(&mut work, load, rate, shared),
                    }
                })
            })
            .collect();
        let ended = running.into_iter().map(|one| one.join());
        ended
            .map(|one| one.unwrap_or_else(|_| Err(anyhow!("a reader panicked"))))
            .collect()
    });
    let mut sum = Paced::default();
    for result in results {
        let part = result?;
        sum.operations += part.operations;
        sum.elapsed = sum.elapsed.max(part.elapsed);
        sum.unfinished += part.unfinished;
        sum.recorder.add(&part.recorder)?;
    }
    Ok(sum)
}

fn closed_thread(
    work: &mut impl FnMut(u64) -> Result<()>,
    load: &Load,
    part: usize,
) -> Result<Paced> {
    let mut places = Places::new(load, part, load.depth);
    let mut paced = Paced::default();
    let start = Instant::now();
    let mut before = start;
    while before - start < load.span {
        work(places.next())?;
        let now = Instant::now();
        paced.recorder.record(now - before);
        paced.operations += 1;
        before = now;
        if paced.operations.is_multiple_of(16) {
            interrupt::check()?;
        }
    }
    paced.elapsed = before - start;
    Ok(paced)
}

/// What all threads of an open loop take arrivals from.
type Shared = Mutex<Option<(Arrivals, Places, Instant)>>;

fn open_thread(
    work: &mut impl FnMut(u64) -> Result<()>,
    load: &Load,
    rate: u64,
    shared: &Shared,
) -> Result<Paced> {
    let mut paced = Paced::default();
    let mut last = None;
    let start = loop {
        let mut guard = shared.lock().map_err(|_| anyhow!("a reader panicked"))?;
        let (arrivals, places, start) = guard.get_or_insert_with(|| {
            let start = Instant::now();
            let places = Places::new(load, 0, 1);
            (Arrivals::new(start, rate, load.seed), places, start)
        });
        let start = *start;
        let end = start + load.span;
        if arrivals.next >= end {
            break start;
        }
        let (arrival, place) = (arrivals.pass(), places.next());
        drop(guard);
        if Instant::now() > end + DRAIN_MAX {
            paced.unfinished += 1;
            continue;
        }
        while Instant::now() < arrival {
            interrupt::check()?;
            wait_until(arrival);
        }
        work(place)?;
        let now = Instant::now();
        paced.recorder.record(now - arrival);
        paced.operations += 1;
        last = Some(now);
        interrupt::check()?;
    };
    paced.elapsed = last.map_or(load.span, |last| last.max(start + load.span) - start);
    Ok(paced)
}

/// What one worker of a pass has done.
#[derive(Debug)]
pub struct Tally {
    recorder: Recorder,
    operations: u64,
    bytes: u64,
    before: Instant,
}

impl Tally {
    /// An operation has ended that brought so many bytes; the next one begins.
    pub fn ended(&mut self, bytes: u64) {
        let now = Instant::now();
        self.recorder.record(now - self.before);
        self.operations += 1;
        self.bytes += bytes;
        self.before = now;
    }
}

/// Lets workers take items 0, 1, ... from one list until it is empty. `worker` is called once on each thread, and gives what works an item off.
/// Tells what was done, and its bytes.
///
/// # Errors
/// The first that fails, or that a signal came.
pub fn shared<W>(
    workers: usize,
    items: u64,
    worker: impl Fn(usize) -> Result<W> + Sync,
) -> Result<(Paced, u64)>
where
    W: FnMut(u64, &mut Tally) -> Result<()>,
{
    let (barrier, next) = (Barrier::new(workers), AtomicU64::new(0));
    let failed = AtomicBool::new(false);
    let (worker, barrier, next, failed) = (&worker, &barrier, &next, &failed);
    let one = move |number: usize| -> Result<(Tally, Duration)> {
        let made = worker(number);
        failed.fetch_or(made.is_err(), Relaxed);
        barrier.wait();
        let start = Instant::now();
        let mut tally = Tally {
            recorder: Recorder::default(),
            operations: 0,
            bytes: 0,
            before: start,
        };
        let mut work = made?;
        loop {
            let item = next.fetch_add(1, Relaxed);
            if item >= items || failed.load(Relaxed) {
                return Ok((tally, start.elapsed()));
            }
            interrupt::check()?;
            work(item, &mut tally).inspect_err(|_| failed.store(true, Relaxed))?;
        }
    };
    let one = &one;
    let results: Vec<Result<(Tally, Duration)>> = thread::scope(|scope| {
        let running: Vec<_> = (0..workers)
            .map(|number| scope.spawn(move || one(number)))
            .collect();
        let ended = running.into_iter().map(|one| one.join());
        ended
            .map(|one| one.unwrap_or_else(|_| Err(anyhow!("a reader panicked"))))
            .collect()
    });
    let (mut sum, mut bytes) = (Paced::default(), 0);
    for result in results {
        let (tally, elapsed) = result?;
        sum.operations += tally.operations;
        sum.elapsed = sum.elapsed.max(elapsed);
        sum.recorder.add(&tally.recorder)?;
        bytes += tally.bytes;
    }
    Ok((sum, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rate: Option<u64>, depth: usize, millis: u64) -> Load {
        Load {
            blocks: 64,
            order: Order::Random,
            depth,
            rate,
            span: Duration::from_millis(millis),
            seed: 1,
        }
    }

    /// Ends each operation at the next look, but for one that stalls for a while.
    struct Stalling {
        begun: Vec<usize>,
        left: u64,
        stall: Duration,
    }

    impl Slots for Stalling {
        fn begin(&mut self, slot: usize, _: u64) -> Result<()> {
            self.begun.push(slot);
            Ok(())
        }

        fn go_on(&mut self, ended: &mut Vec<usize>, _: Duration) -> Result<()> {
            self.left = self.left.saturating_sub(self.begun.len() as u64);
            if self.left == 0 && !self.stall.is_zero() {
                thread::sleep(std::mem::take(&mut self.stall));
            }
            ended.append(&mut self.begun);
            Ok(())
        }
    }

    fn p99_ms(paced: &Paced, load: &Load) -> f64 {
        let told = paced.recorder.summary(load.begun());
        told.and_then(|told| told.at(99.0))
            .map_or(0.0, |us| us / 1e3)
    }

    /// One operation of thousands stalls for 200 ms. With a rate, those that arrived meanwhile had to wait, and the p99 says
    /// so; a closed loop, in which nothing arrives meanwhile, cannot know.
    #[test]
    fn a_server_that_stalls_is_seen_by_all_that_arrive_meanwhile() -> Result<()> {
        let stalling = || Stalling {
            begun: Vec::new(),
            left: 500,
            stall: Duration::from_millis(200),
        };
        let open = load(Some(4_000), 4, 1_000);
        let paced = slots(&mut stalling(), &open)?;
        assert!(p99_ms(&paced, &open) > 100.0, "{}", p99_ms(&paced, &open));
        assert_eq!(paced.recorder.count(), paced.operations);
        let closed = load(None, 1, 400);
        let paced = slots(&mut stalling(), &closed)?;
        assert!(paced.operations > 1_000 && p99_ms(&paced, &closed) < 100.0);

        // The same of threads that wait.
        let stall = |counter: &Mutex<u64>| -> Result<()> {
            let mut counter = counter.lock().expect("no thread panics");
            *counter += 1;
            if *counter == 200 {
                thread::sleep(Duration::from_millis(200));
            }
            Ok(())
        };
        let (one, other) = (Mutex::new(0), Mutex::new(0));
        let open = load(Some(2_000), 2, 1_000);
        let paced = threads(&open, |_| Ok(|_| stall(&one)))?;
        assert!(p99_ms(&paced, &open) > 100.0, "{}", p99_ms(&paced, &open));
        let closed = load(None, 2, 400);
        let paced = threads(&closed, |_| Ok(|_| stall(&other)))?;
        assert!(paced.operations > 1_000 && p99_ms(&paced, &closed) < 100.0);
        Ok(())
    }

    /// Ends an operation only when it was looked at some times.
    struct Slow(Vec<(usize, u32)>);

    impl Slots for Slow {
        fn begin(&mut self, slot: usize, _: u64) -> Result<()> {
            self.0.push((slot, 5));
            Ok(())
        }

        fn go_on(&mut self, ended: &mut Vec<usize>, _: Duration) -> Result<()> {
            thread::sleep(Duration::from_millis(10));
            self.0.iter_mut().for_each(|(_, left)| *left -= 1);
            let done = self.0.extract_if(.., |(_, left)| *left == 0);
            ended.extend(done.map(|(slot, _)| slot));
            Ok(())
        }
    }

    #[test]
    fn what_arrived_has_ended_or_is_counted_as_given_up() -> Result<()> {
        let open = load(Some(2_000), 2, 200);
        let start = Instant::now();
        let mut arrivals = Arrivals::new(start, 2_000, open.seed);
        let mut arrived = 0;
        while arrivals.next < start + open.span {
            arrivals.pass();
            arrived += 1;
        }
        for backlog_max in [BACKLOG_MAX, 10] {
            let limits = (Duration::ZERO, backlog_max);
            let paced = open_slots(&mut Slow(Vec::new()), &open, 2_000, limits)?;
            assert!(paced.operations > 0 && paced.unfinished > 300, "{paced:?}");
            assert_eq!(paced.operations + paced.unfinished, arrived);
        }
        Ok(())
    }

    #[test]
    fn arrivals_come_at_their_rate() -> Result<()> {
        let open = load(Some(5_000), 8, 500);
        let mut work = Stalling {
            begun: Vec::new(),
            left: u64::MAX,
            stall: Duration::ZERO,
        };
        let paced = slots(&mut work, &open)?;
        assert!(
            (2_200..2_800).contains(&paced.operations),
            "{}",
            paced.operations
        );
        assert!(paced.elapsed >= Duration::from_millis(490));
        let again = slots(&mut work, &open)?;
        assert_eq!(paced.operations, again.operations, "the seed says how many");
        Ok(())
    }

    #[test]
    fn places_come_from_the_seed_and_parts_share_a_sequence() {
        let mut random = load(None, 4, 1);
        let of = |load: &Load, part| {
            let mut places = Places::new(load, part, 4);
            (0..32).map(|_| places.next()).collect::<Vec<_>>()
        };
        assert_eq!(of(&random, 1), of(&random, 1));
        assert_ne!(of(&random, 1), of(&random, 2));
        let other = Load { seed: 2, ..random };
        assert_ne!(of(&random, 1), of(&other, 1));
        random.order = Order::Sequential;
        assert_eq!(
            of(&random, 1)[..17].to_vec(),
            [(16..32).collect(), vec![16]].concat()
        );
        let one = Load {
            blocks: 1,
            ..random
        };
        assert!(of(&one, 3).iter().all(|place| *place == 0));
    }

    #[test]
    fn nobody_works_when_one_cannot_begin() {
        let worked = AtomicU64::new(0);
        let one = |_| {
            worked.fetch_add(1, Relaxed);
            thread::sleep(Duration::from_millis(1));
            Ok(())
        };
        for rate in [None, Some(100)] {
            let ended = threads(&load(rate, 3, 300), |part| {
                ensure!(part != 1, "no file");
                Ok(one)
            });
            assert_eq!(ended.expect_err("one fails").to_string(), "no file");
        }
        let ended = shared(3, 100, |part| {
            ensure!(part != 1, "no file");
            Ok(|item, _: &mut Tally| one(item))
        });
        assert_eq!(ended.expect_err("one fails").to_string(), "no file");
        assert_eq!(worked.load(Relaxed), 0);
    }

    #[test]
    fn workers_share_a_list() -> Result<()> {
        let seen = Mutex::new(Vec::new());
        let (paced, bytes) = shared(4, 100, |_| {
            Ok(|item, tally: &mut Tally| {
                seen.lock().expect("no thread panics").push(item);
                tally.ended(2);
                Ok(())
            })
        })?;
        let mut seen = seen.into_inner().expect("no thread panics");
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..100));
        assert_eq!(
            (paced.operations, paced.recorder.count(), bytes),
            (100, 100, 200)
        );
        let failing = shared(2, u64::MAX, |_| {
            Ok(|item, _: &mut Tally| {
                ensure!(item < 10, "torn");
                Ok(())
            })
        });
        assert!(failing.is_err_and(|error| error.to_string() == "torn"));
        Ok(())
    }

    #[test]
    fn what_fails_ends_the_load() {
        let failing = threads(&load(None, 2, 1_000), |part| {
            ensure!(part == 0, "no file");
            Ok(|_| Ok(()))
        });
        assert!(failing.is_err_and(|error| error.to_string() == "no file"));
        let failing = threads(&load(None, 1, 60_000), |_| Ok(|_| Err(anyhow!("torn"))));
        assert!(failing.is_err_and(|error| error.to_string() == "torn"));
    }
}
