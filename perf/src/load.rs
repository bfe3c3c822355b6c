//! Readers. Each opens the file itself, as the processes of a job would.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::direct::{AlignedBuf, open_direct};
use crate::interrupt;

/// One request's length of the sequential readers.
pub const SEQUENTIAL_BYTES: usize = 1 << 20;
/// One request's length of the random readers.
pub const RANDOM_BYTES: usize = 4 << 10;

/// What is fetched at least for a read that is not cached.
pub const SUB_BLOCK_BYTES: u64 = forebay_engine::limits::SUB_BLOCK_BYTES as u64;

/// What a load did.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Reads that returned.
    pub reads: u64,
    /// Bytes they brought.
    pub bytes: u64,
    /// From the start of the first to the end of the last.
    pub elapsed: Duration,
}

impl Done {
    /// Bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64()
    }

    /// Reads per second.
    pub fn reads_per_second(&self) -> f64 {
        self.reads as f64 / self.elapsed.as_secs_f64()
    }
}

/// Whether reads go past the kernel's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// O_DIRECT.
    Past,
    /// Through the page cache, with the kernel's read-ahead.
    Through,
}

fn open(path: &Path, cache: Cache) -> Result<File> {
    let file = match cache {
        Cache::Past => open_direct(path),
        Cache::Through => File::open(path),
    };
    file.with_context(|| format!("cannot open {}", path.display()))
}

/// Reads the whole file once, [`SEQUENTIAL_BYTES`] at a time.
///
/// # Errors
/// The first read that fails.
pub fn read_once(path: &Path, cache: Cache) -> Result<Done> {
    let file = open(path, cache)?;
    let mut buf = AlignedBuf::new(SEQUENTIAL_BYTES);
    let start = Instant::now();
    let (reads, bytes) =
        one_pass(&file, buf.bytes()).with_context(|| format!("reading {}", path.display()))?;
    Ok(Done {
        reads,
        bytes,
        elapsed: start.elapsed(),
    })
}

fn one_pass(file: &File, buf: &mut [u8]) -> std::io::Result<(u64, u64)> {
    let (mut reads, mut bytes) = (0, 0);
    loop {
        if interrupt::came() {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let got = file.read_at(buf, bytes)?;
        if got == 0 {
            return Ok((reads, bytes));
        }
        reads += 1;
        bytes += got as u64;
    }
}

/// Reads the whole file again and again past the page cache, until a pass ends after `at_least`.
///
/// # Errors
/// The first read that fails.
pub fn sequential(path: &Path, at_least: Duration) -> Result<Done> {
    let file = open(path, Cache::Past)?;
    let mut buf = AlignedBuf::new(SEQUENTIAL_BYTES);
    let start = Instant::now();
    let mut done = Done {
        reads: 0,
        bytes: 0,
        elapsed: Duration::ZERO,
    };
    while done.elapsed < at_least {
        let (reads, bytes) =
            one_pass(&file, buf.bytes()).with_context(|| format!("reading {}", path.display()))?;
        anyhow::ensure!(bytes > 0, "{} is empty", path.display());
        done.reads += reads;
        done.bytes += bytes;
        done.elapsed = start.elapsed();
    }
    Ok(done)
}

/// One thread for each of `paths` reads that whole file once; they start together.
///
/// # Errors
/// The first read that fails.
pub fn readers_at_once<P: AsRef<Path> + Sync>(paths: &[P]) -> Result<Done> {
    let barrier = Barrier::new(paths.len());
    together(paths.len(), |reader| {
        let path = paths[reader].as_ref();
        let file = open(path, Cache::Past)?;
        let mut buf = AlignedBuf::new(SEQUENTIAL_BYTES);
        barrier.wait();
        one_pass(&file, buf.bytes()).with_context(|| format!("reading {}", path.display()))
    })
}

/// How long a random load goes on.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// A span of time.
    Elapsed(Duration),
    /// This many reads by each thread.
    Reads(u64),
}

/// `threads` threads read [`RANDOM_BYTES`] at aligned random places. `seed` chooses the places.
///
/// # Errors
/// The first read that fails.
pub fn random(path: &Path, cache: Cache, threads: usize, seed: u64, until: Until) -> Result<Done> {
    let barrier = Barrier::new(threads);
    together(threads, |thread| {
        let file = open(path, cache)?;
        if cache == Cache::Through {
            // What a loader that reads at random does, so that the kernel reads nothing ahead.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
        }
        let places = file.metadata()?.len() / RANDOM_BYTES as u64;
        anyhow::ensure!(places > 0, "{} is too small", path.display());
        let mut rng = Rng::of(seed, thread as u64);
        let mut buf = AlignedBuf::new(RANDOM_BYTES);
        barrier.wait();
        let start = Instant::now();
        let mut reads = 0;
        while !interrupt::came()
            && match until {
                // The clock is asked once in sixteen reads: it costs about as much as it measures.
                Until::Elapsed(span) => reads % 16 != 0 || start.elapsed() < span,
                Until::Reads(most) => reads < most,
            }
        {
            let offset = rng.next() % places * RANDOM_BYTES as u64;
            file.read_exact_at(buf.bytes(), offset)
                .with_context(|| format!("reading {} at {offset}", path.display()))?;
            reads += 1;
        }
        Ok((reads, reads * RANDOM_BYTES as u64))
    })
}

/// `threads` threads read one page at a random place of each [`SUB_BLOCK_BYTES`] of the file, in random order and past
/// the page cache: what the one thread reads brings nothing that another one, or a later read, asks for. `seed` chooses places and order.
///
/// # Errors
/// The first read that fails.
pub fn scattered(path: &Path, threads: usize, seed: u64) -> Result<Done> {
    let file = open(path, Cache::Past)?;
    let places = scattered_places(file.metadata()?.len(), seed);
    anyhow::ensure!(places.len() >= threads, "{} is too small", path.display());
    let barrier = Barrier::new(threads);
    together(threads, |thread| {
        let mut buf = AlignedBuf::new(RANDOM_BYTES);
        let mut reads = 0;
        barrier.wait();
        for offset in places.iter().skip(thread).step_by(threads) {
            interrupt::check()?;
            file.read_exact_at(buf.bytes(), *offset)
                .with_context(|| format!("reading {} at {offset}", path.display()))?;
            reads += 1;
        }
        Ok((reads, reads * RANDOM_BYTES as u64))
    })
}

fn scattered_places(len_bytes: u64, seed: u64) -> Vec<u64> {
    let mut rng = Rng::of(seed, 0);
    let pages = SUB_BLOCK_BYTES / RANDOM_BYTES as u64;
    let mut places: Vec<u64> = (0..len_bytes / SUB_BLOCK_BYTES)
        .map(|n| n * SUB_BLOCK_BYTES + rng.next() % pages * RANDOM_BYTES as u64)
        .collect();
    for n in (1..places.len()).rev() {
        places.swap(n, (rng.next() % (n as u64 + 1)) as usize);
    }
    places
}

fn together(threads: usize, work: impl Fn(usize) -> Result<(u64, u64)> + Sync) -> Result<Done> {
    let start = Instant::now();
    let work = &work;
    let results: Vec<Result<(u64, u64)>> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
        let ended = running.into_iter().map(|one| one.join());
        ended
            .map(|one| one.unwrap_or_else(|_| Err(anyhow!("a reader panicked"))))
            .collect()
    });
    let elapsed = start.elapsed();
    let mut done = Done {
        reads: 0,
        bytes: 0,
        elapsed,
    };
    for result in results {
        let (reads, bytes) = result?;
        done.reads += reads;
        done.bytes += bytes;
    }
    Ok(done)
}

/// A small generator (splitmix64): the same places in every run with the same seed.
#[derive(Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// A generator for one of several streams of one seed. Mixed first: a stream that began a
    /// few steps into another would read the same places.
    pub fn of(seed: u64, stream: u64) -> Self {
        Self(Rng(Rng(seed).next() ^ stream).next())
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_reads_ask_for_each_sub_block_once() {
        let places = scattered_places(1 << 20, 7);
        let mut blocks: Vec<u64> = places.iter().map(|at| at / SUB_BLOCK_BYTES).collect();
        assert!(!blocks.is_sorted() && places.iter().all(|at| at % RANDOM_BYTES as u64 == 0));
        blocks.sort_unstable();
        assert!(blocks.into_iter().eq(0..16));
        assert_ne!(places, scattered_places(1 << 20, 8));
    }

    #[test]
    fn streams_do_not_meet() {
        let mut seen = std::collections::HashSet::new();
        for stream in 0..8 {
            let mut rng = Rng::of(0, stream);
            assert!((0..1_000).all(|_| seen.insert(rng.next())));
        }
    }
}
