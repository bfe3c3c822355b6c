//! A device for one thread that waits: opening, formatting, tools. Any [`BlockDevice`] does.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use forebay_engine::arena::{Arena, Share};
use forebay_engine::limits::CHUNK_BYTES;
use forebay_engine::ports::{
    BlockDevice, DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, DeviceTag, Full,
};

use crate::host::{Buffers, HostDevice, Medium, arena_for_devices};

/// Operations under way at a time.
pub const DEPTH: usize = 8;
/// Buffers: so many chunks, and what the arena keeps for shares that are not used here.
const ARENA_BYTES: usize = 2 * DEPTH * CHUNK_BYTES;
/// Looks at the device before the thread sleeps between them.
const SPINS: u32 = 100;
/// What buffers hold before they are read into: where a read brings nothing, that must not look like a blank device.
const UNREAD: u8 = 0x5e;
/// How long it sleeps.
const PAUSE: Duration = Duration::from_micros(50);
/// How long a device that is lost may take to give back what it has.
const LOST_PATIENCE: Duration = Duration::from_secs(3);

/// A device, its buffers, and a thread that waits for each operation.
#[derive(Debug)]
pub struct Blocking<D> {
    device: D,
    arena: Arena,
    under_way: usize,
    /// It is lost and keeps operations: what it might still end is of no call any more.
    given_up: bool,
    patience: Duration,
}

impl Blocking<HostDevice> {
    /// On an open disk.
    ///
    /// # Errors
    /// When there is no memory, or no queue pair.
    pub fn on(medium: &Medium) -> Result<Self> {
        let arena = match medium.reaches_memory() {
            true => arena_for_devices(ARENA_BYTES),
            false => Arena::new(ARENA_BYTES),
        };
        Self::with(arena, |arena| {
            medium.queue_pair(&Buffers::of(arena), DEPTH, false)
        })
    }
}

impl<D: BlockDevice> Blocking<D> {
    /// On the queue pair that `make` makes for the arena.
    ///
    /// # Errors
    /// Of `make`, or when the kernel refuses memory.
    pub fn new(make: impl FnOnce(&mut Arena) -> Result<D>) -> Result<Self> {
        Self::with(Arena::new(ARENA_BYTES), make)
    }

    fn with(arena: io::Result<Arena>, make: impl FnOnce(&mut Arena) -> Result<D>) -> Result<Self> {
        let mut arena = arena.context("cannot map buffers")?;
        Ok(Self {
            device: make(&mut arena)?,
            arena,
            under_way: 0,
            given_up: false,
            patience: LOST_PATIENCE,
        })
    }

    /// Size and granularity.
    pub fn geometry(&self) -> DeviceGeometry {
        self.device.geometry()
    }

    /// Fills `out`, several chunks at a time. Offset and length are whole sectors.
    ///
    /// # Errors
    /// The first of the device's; what `out` holds then is undefined.
    pub fn read(&mut self, offset_bytes: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.check()?;
        let mut outcome = Ok(());
        let (mut asked, mut ended) = (0, 0);
        while ended < asked || (outcome.is_ok() && asked < out.len()) {
            while outcome.is_ok() && asked < out.len() && self.under_way < DEPTH {
                let len_bytes = CHUNK_BYTES.min(out.len() - asked);
                let mut lease = self
                    .arena
                    .lease(len_bytes, Share::Demand)
                    .map_err(|_| DeviceError::Range)?;
                lease.bytes_mut().fill(UNREAD);
                self.submit(DeviceOp::Read {
                    tag: DeviceTag(asked as u64),
                    offset_bytes: offset_bytes + asked as u64,
                    lease,
                });
                asked += len_bytes;
            }
            if let DeviceEvent::Read { tag, lease, result } = self.wait()? {
                let at = tag.0 as usize;
                ended += lease.len();
                out[at..at + lease.len()].copy_from_slice(lease.bytes());
                outcome = outcome.and(result);
            }
        }
        outcome
    }

    /// Writes `bytes`, whole sectors.
    ///
    /// # Errors
    /// The device's.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check()?;
        for (chunk, at) in bytes.chunks(CHUNK_BYTES).zip((0..).step_by(CHUNK_BYTES)) {
            let mut lease = self
                .arena
                .lease(chunk.len(), Share::Demand)
                .map_err(|_| DeviceError::Range)?;
            lease.bytes_mut().copy_from_slice(chunk);
            let bytes = self.arena.freeze(lease);
            self.submit(DeviceOp::Write {
                tag: DeviceTag(0),
                offset_bytes: offset_bytes + at as u64,
                bytes,
            });
            if let DeviceEvent::Write { result, .. } = self.wait()? {
                result?;
            }
        }
        Ok(())
    }

    /// Everything written before is on stable media.
    ///
    /// # Errors
    /// The device's.
    pub fn flush(&mut self) -> Result<(), DeviceError> {
        self.check()?;
        self.submit(DeviceOp::Flush { tag: DeviceTag(0) });
        match self.wait()? {
            DeviceEvent::Flush { result, .. } => result,
            _ => Ok(()),
        }
    }

    /// There is room: never more than [`DEPTH`] are under way.
    fn submit(&mut self, op: DeviceOp) {
        let mut next = op;
        while let Err(Full(back)) = self.device.submit(next) {
            next = back;
            self.device.commit();
            std::thread::sleep(PAUSE);
        }
        self.under_way += 1;
    }

    fn check(&self) -> Result<(), DeviceError> {
        match self.given_up {
            true => Err(DeviceError::Gone),
            false => Ok(()),
        }
    }

    /// For one that ends; not without end when the device is lost, which may keep what it has until it is closed.
    fn wait(&mut self) -> Result<DeviceEvent, DeviceError> {
        self.device.commit();
        let mut looks = 0;
        let mut lost_since = None;
        loop {
            if let Some(event) = self.device.poll() {
                self.under_way -= 1;
                return Ok(event);
            }
            looks += 1;
            if looks <= SPINS {
                continue;
            }
            if lost_since.is_none() && self.device.loss().is_some() {
                lost_since = Some(Instant::now());
            }
            if lost_since.is_some_and(|since| since.elapsed() >= self.patience) {
                self.given_up = true;
                return Err(DeviceError::Gone);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// What a device's error means to people.
pub fn in_words(error: DeviceError) -> anyhow::Error {
    match error {
        DeviceError::NoSpace => anyhow!("no space is left (or a quota is used up)"),
        DeviceError::ReadOnly => {
            anyhow!("it takes no writes: it is read-only, or this user may not")
        }
        error => anyhow!(io::Error::other(error)),
    }
}

#[cfg(test)]
mod tests {
    use forebay_nvme_uring::{OpenOptions, UringFile};

    use super::*;

    fn device(bytes: u64) -> (tempfile::TempDir, Medium) {
        let dir = tempfile::tempdir().unwrap();
        let options = OpenOptions {
            capacity_bytes: Some(bytes),
            create: true,
            ..OpenOptions::default()
        };
        let file = UringFile::open(&dir.path().join("device"), &options).unwrap();
        (dir, file.into())
    }

    #[test]
    fn what_was_written_is_read() {
        let (_dir, file) = device(64 << 20);
        let mut device = Blocking::on(&file).unwrap();
        let bytes: Vec<u8> = (0..21 * CHUNK_BYTES + 4096)
            .map(|n| (n / 4096 * 7 + n) as u8)
            .collect();
        device.write(8192, &bytes).unwrap();
        device.flush().unwrap();
        let mut read = vec![0; bytes.len()];
        device.read(8192, &mut read).unwrap();
        assert!(read == bytes);
        device.read(0, &mut read[..8192]).unwrap();
        assert!(read[..8192].iter().all(|byte| *byte == 0));
    }

    /// Says that all is well, and does nothing: as a device does whose memory the IOMMU has refused.
    #[derive(Debug, Default)]
    struct Unreaching(Option<DeviceEvent>);

    impl BlockDevice for Unreaching {
        fn geometry(&self) -> DeviceGeometry {
            DeviceGeometry {
                sector_bytes: 512,
                capacity_bytes: 8 << 20,
            }
        }

        fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
            if self.0.is_some() {
                return Err(Full(op));
            }
            let DeviceOp::Read { tag, lease, .. } = op else {
                panic!("{op:?}");
            };
            let result = Ok(());
            self.0 = Some(DeviceEvent::Read { tag, lease, result });
            Ok(())
        }

        fn commit(&mut self) {}

        fn poll(&mut self) -> Option<DeviceEvent> {
            self.0.take()
        }
    }

    #[test]
    fn what_was_never_read_does_not_look_blank() {
        let mut device = Blocking::new(|_| Ok(Unreaching::default())).unwrap();
        let found = super::super::opening::read_superblock(&mut device).unwrap();
        assert!(
            matches!(
                found,
                Err(forebay_engine::disk::layout::NotOurs::Foreign(_))
            ),
            "{found:?}"
        );
        let mut out = [0; 4096];
        device.read(4096, &mut out).unwrap();
        assert_ne!(out, [0; 4096]);
    }

    /// Is lost, and keeps what it is given.
    #[derive(Debug, Default)]
    struct Keeping(Vec<DeviceOp>);

    impl BlockDevice for Keeping {
        fn geometry(&self) -> DeviceGeometry {
            Unreaching::default().geometry()
        }

        fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
            self.0.push(op);
            Ok(())
        }

        fn commit(&mut self) {}

        fn poll(&mut self) -> Option<DeviceEvent> {
            None
        }

        fn loss(&self) -> Option<String> {
            Some("lost".into())
        }
    }

    #[test]
    fn a_lost_device_that_keeps_all_is_given_up() {
        let mut device = Blocking::new(|_| Ok(Keeping::default())).unwrap();
        device.patience = Duration::from_millis(20);
        let mut out = vec![0; 4 << 20];
        assert_eq!(device.read(0, &mut out), Err(DeviceError::Gone));
        let given = device.device.0.len();
        assert_eq!(device.read(0, &mut out), Err(DeviceError::Gone));
        assert_eq!(device.write(0, &[0; 4096]), Err(DeviceError::Gone));
        assert_eq!(device.flush(), Err(DeviceError::Gone));
        assert_eq!(device.device.0.len(), given, "nothing more is given to it");
    }

    #[test]
    fn an_error_ends_a_long_read_and_the_device_goes_on() {
        let (_dir, file) = device(8 << 20);
        let mut device = Blocking::on(&file).unwrap();
        let mut read = vec![0; 16 << 20];
        assert_eq!(device.read(0, &mut read), Err(DeviceError::Range));
        assert_eq!(device.write(1, &[0; 4096]), Err(DeviceError::Range));
        assert_eq!(device.read(0, &mut read[..8 << 20]), Ok(()));
    }
}
