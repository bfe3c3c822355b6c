//! Forebay's layers, one at a time.

pub mod device;
pub mod engine;
pub mod origin;
#[cfg(feature = "spdk")]
pub mod spdk_device;
pub mod tier;
pub mod transport;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_engine::arena::{Arena, Share};
use forebay_engine::limits::CHUNK_BYTES;
use forebay_engine::ports::{BlockDevice, DeviceEvent, DeviceOp, DeviceTag};

use crate::load::Rng;

/// A device that ends nothing for so long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// A file of noise on stable media: nothing on the way can squeeze it, and none of it is a hole.
///
/// # Errors
/// When the disk does not hold it.
pub fn noise_file(path: &Path, len_bytes: u64) -> Result<()> {
    let noise = noise(len_bytes, 1 << 20);
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

fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    let words = (0..len_bytes / 8).flat_map(|_| rng.next().to_le_bytes());
    words.collect()
}

/// The same for the first `len_bytes` of a device. What they held is lost.
///
/// # Errors
/// When the device does not take them.
pub fn noise_on<D: BlockDevice>(device: &mut D, arena: &mut Arena, len_bytes: u64) -> Result<()> {
    let mut offset_bytes = 0;
    while offset_bytes < len_bytes {
        crate::interrupt::check()?;
        let part = (len_bytes - offset_bytes).min(CHUNK_BYTES as u64) as usize;
        let lease = arena.lease(part, Share::Demand);
        let mut lease = lease.ok().context("no room for buffers")?;
        lease
            .bytes_mut()
            .copy_from_slice(&noise(offset_bytes, part));
        let bytes = arena.freeze(lease);
        let tag = DeviceTag(0);
        one(
            device,
            DeviceOp::Write {
                tag,
                offset_bytes,
                bytes,
            },
        )?;
        arena.reclaim();
        offset_bytes += part as u64;
    }
    one(device, DeviceOp::Flush { tag: DeviceTag(0) })
}

/// Does one operation, and waits for its end.
fn one<D: BlockDevice>(device: &mut D, op: DeviceOp) -> Result<()> {
    ensure!(device.submit(op).is_ok(), "the device's queue is full");
    let start = Instant::now();
    loop {
        device.commit();
        match device.poll() {
            Some(
                DeviceEvent::Read { result, .. }
                | DeviceEvent::Write { result, .. }
                | DeviceEvent::Flush { result, .. }
                | DeviceEvent::Discard { result, .. },
            ) => return result.map_err(|error| anyhow::anyhow!("the device says {error:?}")),
            None if start.elapsed() > STUCK_AFTER => bail!("the device does not answer"),
            None => std::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDevice;

    #[test]
    fn all_of_a_device_is_noise_and_nothing_behind() {
        let mut arena = Arena::new(16 << 20).expect("memory");
        let mut device = MemoryDevice::new(4 << 20);
        let len_bytes = (2 << 20) + 8192;
        noise_on(&mut device, &mut arena, len_bytes).expect("it is written");
        let mut page = |offset_bytes| {
            let lease = arena.lease(4096, Share::Demand).expect("room");
            let tag = DeviceTag(0);
            let read = DeviceOp::Read {
                tag,
                offset_bytes,
                lease,
            };
            assert!(device.submit(read).is_ok());
            device.commit();
            match device.poll() {
                Some(DeviceEvent::Read { lease, .. }) => lease.bytes().to_vec(),
                other => panic!("{other:?}"),
            }
        };
        let pages: Vec<Vec<u8>> = (0..len_bytes / 4096).map(|n| page(n * 4096)).collect();
        assert!(pages.iter().all(|page| page.iter().any(|byte| *byte != 0)));
        assert!(pages.windows(2).all(|two| two[0] != two[1]));
        assert!(page(len_bytes).iter().all(|byte| *byte == 0));
    }
}
