//! Keeps `--free-space-ratio` of each directory's file system free, and sees when a file loses its place: one thread for
//! the process.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use anyhow::{Context, Result};
use forebay_engine::disk::DeviceShared;
use forebay_nvme_uring::UringFile;

use super::gauge::{Gauge, Seen};
use super::opening::OpenLog;
use super::place::Place;
use super::presence;
use super::room::Room;
use crate::units::{Bytes, Share};

/// Between two looks.
pub const TICK: Duration = Duration::from_secs(2);

/// What wakes the cores; set when there are some.
type Wake = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

/// Watches until it is dropped.
pub struct SpaceMonitor {
    wake: Wake,
    places: Vec<Arc<presence::Watched>>,
    _stop: mpsc::Sender<()>,
}

impl std::fmt::Debug for SpaceMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpaceMonitor").finish_non_exhaustive()
    }
}

impl SpaceMonitor {
    /// Sets what each log may occupy, and watches the logs in directories. Of block devices, and file systems
    /// that do not tell their size, all may be used.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(logs: &[OpenLog], ratio: Share) -> Result<Self> {
        let mut watched = Watched::all(logs, ratio);
        let (stop, stopped) = mpsc::channel();
        let wake = Wake::default();
        let to_wake = wake.clone();
        let place = |log: &OpenLog| Arc::new(presence::Watched::new(log.medium.file().cloned()));
        let places: Vec<_> = logs.iter().map(place).collect();
        if logs.iter().any(|log| !log.medium.is_device()) {
            let places = places.clone();
            // Never joined: a file system that hangs must not hold up the process's end.
            std::thread::Builder::new()
                .name("free-space".into())
                .spawn(move || {
                    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                        places.iter().for_each(|place| place.look());
                        if look(&mut watched, ratio)
                            && let Some(wake) = to_wake.get()
                        {
                            wake();
                        }
                    }
                })
                .context("cannot start a thread")?;
        }
        Ok(Self {
            wake,
            places,
            _stop: stop,
        })
    }

    /// Where the logs' files are, in the logs' order.
    pub fn places(&self) -> &[Arc<presence::Watched>] {
        &self.places
    }

    /// `wake` is called after a log was allowed more or less: idle cores would not notice. The first
    /// one given counts.
    pub fn wake_with(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }
}

/// One log in a directory.
struct Watched {
    file: Arc<UringFile>,
    shared: Arc<DeviceShared>,
    gauge: Gauge,
}

impl Watched {
    fn all(logs: &[OpenLog], ratio: Share) -> Vec<Self> {
        let rooms: Vec<Option<Room>> = logs
            .iter()
            .map(|log| match &log.place {
                Place::Directory(_) => log.medium.file().and_then(|file| room_of(file)),
                Place::Device(_) | Place::Nvme(_) => None,
            })
            .collect();
        let mut watched = Vec::new();
        for (log, room) in logs.iter().zip(&rooms) {
            let capacity_bytes = log.medium.geometry().capacity_bytes;
            let Some((room, file)) = room.as_ref().zip(log.medium.file()) else {
                log.shared
                    .allowed_bytes
                    .store(capacity_bytes, Ordering::Relaxed);
                continue;
            };
            let seen = seen(file, room, sharers(&rooms, room), ratio);
            let gauge = Gauge::new(capacity_bytes, seen.unwrap_or(Seen::NOTHING));
            log.shared
                .allowed_bytes
                .store(gauge.allowed_bytes(), Ordering::Relaxed);
            if gauge.allowed_bytes() < capacity_bytes {
                tracing::warn!(
                    "the cache in {} may occupy {} of its {} for now: its file system has {} free, and {ratio} of it is kept free",
                    log.shared.name,
                    Bytes(gauge.allowed_bytes()),
                    Bytes(capacity_bytes),
                    Bytes(room.free_bytes)
                );
            }
            watched.push(Self {
                file: file.clone(),
                shared: log.shared.clone(),
                gauge,
            });
        }
        watched
    }
}

/// True when a log was allowed more or less.
fn look(watched: &mut [Watched], ratio: Share) -> bool {
    // What does not answer now is left as it is: the cores see its errors themselves.
    let rooms: Vec<Option<Room>> = watched
        .iter()
        .map(|watched| room_of(&watched.file))
        .collect();
    let mut changed = false;
    for (watched, room) in watched.iter_mut().zip(&rooms) {
        let Some(room) = room else { continue };
        let Some(seen) = seen(&watched.file, room, sharers(&rooms, room), ratio) else {
            continue;
        };
        let before = watched.gauge.allowed_bytes();
        if let Some(allowed) = watched.gauge.tick(seen) {
            changed = true;
            watched
                .shared
                .allowed_bytes
                .store(allowed, Ordering::Relaxed);
            tracing::info!(
                "the cache in {} may occupy {} from now on, {} before: its file system has {} free, and it occupies {}",
                watched.shared.name,
                Bytes(allowed),
                Bytes(before),
                Bytes(room.free_bytes),
                Bytes(seen.occupied_bytes)
            );
        }
    }
    changed
}

/// The open file's own file system, whatever is at its path now; none when it does not tell its size.
fn room_of(file: &UringFile) -> Option<Room> {
    let room = Room::around(file).ok();
    room.filter(|room| room.total_bytes > 0)
}

fn sharers(rooms: &[Option<Room>], room: &Room) -> usize {
    let same = |other: &&Room| other.device == room.device;
    rooms.iter().flatten().filter(same).count()
}

fn seen(file: &UringFile, room: &Room, sharers: usize, ratio: Share) -> Option<Seen> {
    Some(Seen {
        occupied_bytes: file.allocated_bytes().ok()?,
        slack_bytes: room.slack_bytes(ratio) / sharers.max(1) as i64,
    })
}
