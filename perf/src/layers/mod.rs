//! Forebay's layers, one at a time.

pub mod device;
pub mod engine;
pub mod origin;
pub mod tier;
pub mod transport;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::load::Rng;

/// A file of noise on stable media: nothing on the way can squeeze it, and none of it is a hole.
///
/// # Errors
/// When the disk does not hold it.
pub fn noise_file(path: &Path, len_bytes: u64) -> Result<()> {
    let mut rng = Rng(len_bytes);
    let words = (0..(1 << 20) / 8).flat_map(|_| rng.next().to_le_bytes());
    let noise: Vec<u8> = words.collect();
    let said = || format!("cannot write {len_bytes} bytes to {}", path.display());
    let mut file = File::create(path).with_context(said)?;
    let mut left = len_bytes;
    while left > 0 {
        crate::interrupt::check()?;
        let part = left.min(noise.len() as u64);
        file.write_all(&noise[..part as usize]).with_context(said)?;
        left -= part;
    }
    file.sync_all().with_context(said)
}
