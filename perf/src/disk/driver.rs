//! An arena, a `Disk`, and the turns of both.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_engine::arena::{Arena, Denied, Frozen, Lease, Share};
use forebay_engine::checksum::BlockSeed;
use forebay_engine::disk::{
    Buffers, DeviceSeat, DeviceState, Disk, DiskConfig, DiskEvent, DiskRead, DiskTurn, Fill,
};
use forebay_engine::identity::BlockId;
use forebay_engine::limits::{CHUNK_BYTES, PAGE_BYTES};
use forebay_engine::ports::{BlockDevice, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Longest wait without a completion before it is looked at again anyway.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// A disk tier that neither finishes nor progresses for so long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// The arena, as the disk tier asks for buffers.
struct Arenas<'a>(&'a mut Arena);

impl Buffers for Arenas<'_> {
    fn lease(&mut self, len_bytes: usize) -> Result<Lease, Denied> {
        self.0.lease(len_bytes, Share::Disk)
    }

    fn freeze(&mut self, lease: Lease) -> Frozen {
        self.0.freeze(lease)
    }
}

/// Waits at an eventfd, and empties it.
///
/// # Errors
/// When the kernel does not let it.
pub fn wait_at(bell: &OwnedFd, most: Duration) -> Result<()> {
    let most = Timespec {
        tv_sec: most.as_secs() as i64,
        tv_nsec: i64::from(most.subsec_nanos()),
    };
    match poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&most)) {
        Ok(0) | Err(Errno::INTR) => Ok(()),
        Ok(_) => match rustix::io::read(bell, &mut [0u8; 8]) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error).context("cannot read the ring's eventfd"),
        },
        Err(error) => Err(error).context("cannot wait for the ring"),
    }
}

/// Where the driver's time comes from.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// The system's.
    Real(Instant),
    /// Moved by hand.
    Manual(Time),
}

/// One core's disk tier, turned by hand.
#[derive(Debug)]
pub struct Driver<D: BlockDevice> {
    arena: Arena,
    disk: Disk<D>,
    clock: Clock,
    /// An eventfd that the device signals at; none for a device that ends everything at once.
    bell: Option<OwnedFd>,
}

impl<D: BlockDevice> Driver<D> {
    /// A tier on one device; `device` is made over the arena.
    ///
    /// # Errors
    /// What `device` says, or the kernel about memory.
    pub fn new(
        arena_bytes: usize,
        clock: Clock,
        config: DiskConfig,
        device: impl FnOnce(&mut Arena) -> Result<(DeviceSeat<D>, Option<OwnedFd>)>,
    ) -> Result<Self> {
        let arena = Arena::new(arena_bytes).context("no memory for buffers")?;
        Self::over(arena, clock, config, device)
    }

    /// The same over an arena that was chosen for the device.
    ///
    /// # Errors
    /// What `device` says.
    pub fn over(
        mut arena: Arena,
        clock: Clock,
        config: DiskConfig,
        device: impl FnOnce(&mut Arena) -> Result<(DeviceSeat<D>, Option<OwnedFd>)>,
    ) -> Result<Self> {
        let (seat, bell) = device(&mut arena)?;
        Ok(Self {
            arena,
            disk: Disk::new(vec![seat], config),
            clock,
            bell,
        })
    }

    /// The tier.
    pub fn disk(&mut self) -> &mut Disk<D> {
        &mut self.disk
    }

    /// The present.
    pub fn now(&self) -> Time {
        match self.clock {
            Clock::Real(start) => Time(start.elapsed().as_nanos() as u64),
            Clock::Manual(now) => now,
        }
    }

    /// Moves a clock that is moved by hand.
    pub fn pass(&mut self, span: Duration) {
        if let Clock::Manual(now) = &mut self.clock {
            *now = *now + span;
        }
    }

    /// One turn.
    pub fn turn(&mut self) -> DiskTurn {
        let now = self.now();
        self.disk.turn(now, &mut Arenas(&mut self.arena))
    }

    /// A turn; when it did nothing, waits until the device has something or time is due.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn turn_or_wait(&mut self) -> Result<()> {
        self.turn_or_wait_for(WAIT_MAX)
    }

    /// The same; waits for at most so long.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn turn_or_wait_for(&mut self, most: Duration) -> Result<()> {
        let turn = self.turn();
        if !turn.progressed {
            self.wait(turn.wake_at, most.min(WAIT_MAX))?;
        }
        Ok(())
    }

    fn wait(&mut self, until: Time, most: Duration) -> Result<()> {
        let Some(bell) = &self.bell else {
            self.pass(Duration::from_millis(1));
            return Ok(());
        };
        wait_at(bell, until.since(self.now()).min(most))
    }

    /// Turns until `done` says so. Events are dropped.
    ///
    /// # Errors
    /// When it takes too long or the device was retired.
    pub fn turn_until(&mut self, what: &str, done: impl Fn(&Disk<D>) -> bool) -> Result<()> {
        let start = Instant::now();
        while !done(&self.disk) {
            self.turn_or_wait()?;
            while self.disk.next_event().is_some() {}
            ensure!(
                start.elapsed() < STUCK_AFTER,
                "the disk tier does not come to an end: {what}"
            );
        }
        self.serves()
    }

    /// That the device serves and has failed nothing.
    ///
    /// # Errors
    /// What `stats` says of it.
    pub fn serves(&self) -> Result<()> {
        for device in self.disk.stats().devices {
            let faults = device.read_errors
                + device.write_errors
                + device.checksum_failures
                + device.slow_reads;
            match device.state {
                DeviceState::Serving if faults == 0 => {}
                state => bail!("{}: {state:?}, {faults} faults", device.name),
            }
        }
        Ok(())
    }

    /// Waits for recovery.
    ///
    /// # Errors
    /// See [`Driver::turn_until`].
    pub fn recover(&mut self) -> Result<()> {
        self.turn_until("recovery", |disk| !disk.is_recovering())
    }

    /// Closes what is staged and waits until all is on disk.
    ///
    /// # Errors
    /// See [`Driver::turn_until`].
    pub fn settle(&mut self) -> Result<()> {
        self.disk.settle();
        self.turn_until("settling", Disk::is_quiet)
    }

    /// A buffer for a reader, none when all are out.
    pub fn lease(&mut self, len_bytes: usize) -> Option<Lease> {
        self.arena.lease(len_bytes, Share::Demand).ok()
    }

    /// Bytes as they come from an origin: `contents` with their checksums.
    pub fn fill(&mut self, block: BlockId, first_page: u32, contents: &Contents) -> Option<Fill> {
        let mut lease = self.lease(contents.bytes.len())?;
        lease.bytes_mut().copy_from_slice(&contents.bytes);
        let checksums = contents.checksums_at(block, first_page);
        Some(Fill {
            block,
            first_page,
            bytes: self.arena.freeze(lease),
            checksums,
            wanted: false,
        })
    }

    /// Begins a read of `len_bytes` at `first_page`. False when the device's queue is full or there is no buffer.
    pub fn read(
        &mut self,
        ticket: u64,
        block: BlockId,
        block_bytes: u32,
        pages: (u32, usize),
    ) -> bool {
        let (first_page, len_bytes) = pages;
        let Some(lease) = self.lease(len_bytes) else {
            return false;
        };
        let now = self.now();
        let read = DiskRead {
            ticket,
            block,
            block_bytes,
            first_page,
            lease,
        };
        self.disk.read(now, read).is_ok()
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<DiskEvent> {
        self.disk.next_event()
    }
}

/// What fills hold: the same bytes again and again, at most a chunk. Their pages' checksums are computed for each fill,
/// as when they come from an origin.
#[derive(Debug)]
pub struct Contents {
    bytes: Vec<u8>,
}

impl Contents {
    /// `len_bytes` of noise: nothing on the way can squeeze it.
    pub fn new(len_bytes: usize) -> Self {
        assert!(len_bytes <= CHUNK_BYTES && len_bytes.is_multiple_of(PAGE_BYTES));
        let mut rng = crate::load::Rng(len_bytes as u64);
        let bytes = (0..len_bytes / 8)
            .flat_map(|_| rng.next().to_le_bytes())
            .collect();
        Self { bytes }
    }

    /// Bytes of one fill.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn checksums_at(&self, block: BlockId, first_page: u32) -> Rc<[u32]> {
        BlockSeed::of(block).checksums(first_page, &self.bytes)
    }
}
