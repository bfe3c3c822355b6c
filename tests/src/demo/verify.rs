//! Workers that read the mount in random order and compare every byte with its source.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::Stop;
use super::sources::{Source, Sources};

/// A large object is read in pieces of this size, each by whichever worker comes first.
const PIECE_BYTES: u64 = 8 << 20;
/// One read.
const READ_BYTES: usize = 1 << 20;
/// More than there are cores: readers wait for members most of the time.
const WORKERS: usize = 8;

/// What a pass came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
}

struct Piece<'a> {
    source: &'a Source,
    offset: u64,
    len_bytes: u64,
}

/// Reads all of `sources` under `point`, in an order that follows from `seed`.
pub(super) fn read_all(point: &Path, sources: &Sources, seed: u64, stop: &Stop) -> Result<Passed> {
    let mut pieces = cut(sources);
    shuffle(&mut pieces, seed);
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    let results: Vec<Result<u64>> = thread::scope(|scope| {
        let work = || work(point, &pieces, &next, stop);
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended
            .map(|end| end.unwrap_or_else(|_| Err(anyhow!("a worker panicked"))))
            .collect()
    });
    let elapsed = start.elapsed();
    let mut bytes = 0;
    for result in results {
        bytes += result?;
    }
    stop.check()?;
    ensure!(
        bytes == sources.total_bytes(),
        "read {bytes} bytes of {}",
        sources.total_bytes()
    );
    Ok(Passed { bytes, elapsed })
}

fn work(point: &Path, pieces: &[Piece<'_>], next: &AtomicUsize, stop: &Stop) -> Result<u64> {
    let (mut seen, mut wanted) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
    let mut bytes = 0;
    while let Some(piece) = pieces.get(next.fetch_add(1, Relaxed)) {
        if stop.requested() {
            break;
        }
        compare(point, piece, &mut seen, &mut wanted)
            .with_context(|| format!("{} from {}", piece.source.key, piece.offset))
            .inspect_err(|_| next.store(pieces.len(), Relaxed))?;
        bytes += piece.len_bytes;
    }
    Ok(bytes)
}

fn compare(point: &Path, piece: &Piece<'_>, seen: &mut [u8], wanted: &mut [u8]) -> Result<()> {
    let file = File::open(point.join(&piece.source.key))?;
    let size = file.metadata()?.len();
    ensure!(
        size == piece.source.size_bytes,
        "{size} bytes long, not {}",
        piece.source.size_bytes
    );
    let end = piece.offset + piece.len_bytes;
    let mut at = piece.offset;
    while at < end {
        let len = ((end - at) as usize).min(READ_BYTES);
        file.read_exact_at(&mut seen[..len], at)?;
        piece.source.read(at, &mut wanted[..len])?;
        if seen[..len] != wanted[..len] {
            let first = (0..len).find(|&n| seen[n] != wanted[n]).unwrap_or_default();
            anyhow::bail!("byte {} differs from the source", at + first as u64);
        }
        at += len as u64;
    }
    Ok(())
}

fn cut(sources: &Sources) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for source in &sources.list {
        let mut offset = 0;
        while offset < source.size_bytes {
            let len_bytes = PIECE_BYTES.min(source.size_bytes - offset);
            pieces.push(Piece {
                source,
                offset,
                len_bytes,
            });
            offset += len_bytes;
        }
    }
    pieces
}

/// Fisher and Yates, with a small generator: the same order in every run.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for n in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(n, (state % (n as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::shuffle;

    #[test]
    fn a_shuffle_keeps_all_and_moves_most() {
        let mut items: Vec<usize> = (0..1000).collect();
        shuffle(&mut items, 1);
        assert!(
            items
                .iter()
                .enumerate()
                .filter(|(n, item)| n == *item)
                .count()
                < 20
        );
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
