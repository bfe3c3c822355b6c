//! foyer's block engine on io_uring, for the figure `foyer`: fills a directory (a file for
//! each of its blocks, as it advises on a file system), or reads what it holds.
//!
//! `forebay-perf-foyer fill|read DIR CAPACITY_BYTES ENTRY_BYTES ENTRIES [DEPTH MILLISECONDS SEED]`.
//! `read` prints operations, nanoseconds that they took and nanoseconds of processor time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    IoEngineConfig, Load, RecoverMode, UringIoEngineConfig,
};

/// As Forebay's largest regions.
const BLOCK_BYTES: usize = 64 << 20;
/// Entries that are being written at a time.
const FILLING_BYTES: usize = 32 << 20;
/// Bytes of the memory tier: nothing that is read stays in it.
const MEMORY_BYTES: usize = 1 << 20;

type Cache = HybridCache<u64, Bytes>;

struct Args {
    mode: String,
    dir: String,
    capacity_bytes: usize,
    entry_bytes: usize,
    entries: u64,
    depth: u64,
    span: Duration,
    seed: u64,
}

fn main() -> Result<()> {
    let args = args()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let cache = open(&args).await?;
        match args.mode.as_str() {
            "fill" => fill(&cache, &args).await?,
            "read" => read(&cache, &args).await?,
            other => bail!("{other}: fill or read"),
        }
        Ok(cache.close().await?)
    })
}

fn args() -> Result<Args> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: Option<u64>| -> Result<u64> {
        match given.get(at) {
            Some(word) => word.parse().with_context(|| format!("{word} is no number")),
            None => otherwise.context("too few arguments"),
        }
    };
    Ok(Args {
        mode: given.first().context("fill or read?")?.clone(),
        dir: given.get(1).context("which directory?")?.clone(),
        capacity_bytes: number(2, None)? as usize,
        entry_bytes: number(3, None)? as usize,
        entries: number(4, None)?,
        depth: number(5, Some(1))?,
        span: Duration::from_millis(number(6, Some(0))?),
        seed: number(7, Some(0))?,
    })
}

async fn open(args: &Args) -> Result<Cache> {
    let device = FsDeviceBuilder::new(&args.dir)
        .with_capacity(args.capacity_bytes)
        .with_direct(true)
        .build()?;
    let engine = BlockEngineConfig::new(device)
        .with_block_size(BLOCK_BYTES)
        .with_buffer_pool_size(2 * FILLING_BYTES)
        .with_submit_queue_size_threshold(4 * FILLING_BYTES);
    let uring: Box<dyn IoEngineConfig> = Box::new(UringIoEngineConfig::new());
    let cache = HybridCacheBuilder::new()
        .memory(MEMORY_BYTES)
        .with_weighter(|_: &u64, value: &Bytes| value.len())
        .storage()
        .with_io_engine_config(uring)
        .with_engine_config(engine)
        .with_recover_mode(RecoverMode::Strict)
        .build()
        .await?;
    Ok(cache)
}

async fn fill(cache: &Cache, args: &Args) -> Result<()> {
    let mut rng = args.seed;
    let noise: Vec<u8> = (0..args.entry_bytes / 8)
        .flat_map(|_| next(&mut rng).to_le_bytes())
        .collect();
    let value = Bytes::from(noise);
    let batch = (FILLING_BYTES / args.entry_bytes).max(1) as u64;
    for start in (0..args.entries).step_by(batch as usize) {
        for key in start..(start + batch).min(args.entries) {
            cache.storage_writer(key).force().insert(value.clone());
        }
        // What is not written yet is answered from memory: wait until it comes from disk.
        for key in start..(start + batch).min(args.entries) {
            wait_for(cache, key).await?;
        }
    }
    Ok(())
}

async fn wait_for(cache: &Cache, key: u64) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if matches!(cache.storage().load(&key).await?, Load::Entry { .. }) {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
    bail!("entry {key} does not get to disk")
}

async fn read(cache: &Cache, args: &Args) -> Result<()> {
    let done = Arc::new(AtomicU64::new(0));
    let (start, cpu) = (Instant::now(), processor_ns());
    let readers: Vec<_> = (0..args.depth)
        .map(|reader| {
            let (cache, done) = (cache.clone(), done.clone());
            let (entries, entry_bytes, span) = (args.entries, args.entry_bytes, args.span);
            let mut rng = args.seed.wrapping_mul(1_000_003) + reader;
            tokio::spawn(async move {
                while start.elapsed() < span {
                    let key = next(&mut rng) % entries;
                    match cache.storage().load(&key).await? {
                        Load::Entry { value, .. } => ensure!(value.len() == entry_bytes),
                        other => bail!("entry {key}: {other:?}"),
                    }
                    done.fetch_add(1, Relaxed);
                }
                Ok(())
            })
        })
        .collect();
    for reader in readers {
        reader.await??;
    }
    let elapsed = start.elapsed();
    let used = processor_ns() - cpu;
    println!("{} {} {used}", done.load(Relaxed), elapsed.as_nanos());
    Ok(())
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *state;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Processor time of all threads.
fn processor_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}
