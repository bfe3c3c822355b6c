//! The disks of a whole engine, with every wrapper between them and its cores.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};

use anyhow::Result;
use forebay_cli::host::{DiskPlace, DiskSource, Disks, HostDevice, MonotonicClock};
use forebay_engine::disk::DeviceSeat;

use super::counting::{Counters, CountingDevice};
use super::delayed::{DelayedDevice, Delays};
use super::faulty::{Faults, FaultyDevice};

/// Disks for `Engine::start`; the switches work on all queue pairs of all cores.
#[derive(Clone, Debug)]
pub struct SwitchedDisks {
    /// The disks themselves.
    pub disks: Vec<DiskSource>,
    /// What goes wrong.
    pub faults: Faults,
    /// What takes its time.
    pub delays: Delays,
    /// What cores asked of them.
    pub counters: Counters,
    clock: MonotonicClock,
}

impl SwitchedDisks {
    /// Over `disks`, with everything switched off.
    pub fn new(disks: Vec<DiskSource>, seed: u64) -> Self {
        Self {
            disks,
            faults: Faults::new(seed),
            delays: Delays::new(seed),
            counters: Counters::default(),
            clock: MonotonicClock::start(),
        }
    }
}

/// Signals at a core's eventfd.
struct Signal(OwnedFd);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Disks for SwitchedDisks {
    type Device = CountingDevice<FaultyDevice<DelayedDevice<HostDevice, MonotonicClock>>>;

    fn driver_pages(&self) -> Option<u64> {
        self.disks.driver_pages()
    }

    fn seats(&self, place: &DiskPlace<'_>) -> Result<Vec<DeviceSeat<Self::Device>>> {
        let event = place.wake.as_fd().try_clone_to_owned()?;
        let waker = Waker::from(Arc::new(Signal(event)));
        self.delays.keep_awake(waker.clone());
        let seats = self.disks.seats(place)?;
        let wrap = |seat: DeviceSeat<HostDevice>| {
            let device = DelayedDevice::new(seat.device, self.clock, self.delays.clone());
            let device = FaultyDevice::new(device, self.faults.clone()).waking(waker.clone());
            DeviceSeat {
                device: CountingDevice::new(device, self.counters.clone()),
                shared: seat.shared,
            }
        };
        Ok(seats.into_iter().map(wrap).collect())
    }
}
