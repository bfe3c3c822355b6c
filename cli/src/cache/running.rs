//! A cache in use: opened, watched, and told about.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use forebay_engine::disk::{DeviceShared, DiskStats};

use super::monitor::SpaceMonitor;
use super::names::node_of_this_machine;
use super::opening::{CacheConfig, OpenLog, Overwrite, open};
use super::place::{Owner, Place};
use super::presence;
use super::room::Room;
use crate::args::{CacheArgs, NodeArgs};
use crate::control::disk_report::DiskStatus;
use crate::device::health::{HealthMonitor, LastHealth};
use crate::host::{DiskSource, Medium};
use crate::units::{Bytes, Share};

/// A node's cache. Its locks are held until it is dropped, which must be after the engine's end.
#[derive(Debug)]
pub struct Cache {
    logs: Vec<OpenLog>,
    monitor: SpaceMonitor,
    health: HealthMonitor,
    extent: Extent,
}

/// How much a cache may ever hold.
#[derive(Debug, Default, PartialEq, Eq)]
struct Extent {
    bytes: u64,
    /// File systems that are too small for what is asked of them, a line each.
    too_large: Vec<String>,
}

impl Extent {
    fn of(logs: &[OpenLog], ratio: Share) -> Self {
        let sized = logs.iter().map(|log| {
            let geometry = &log.shared.geometry;
            let size_bytes = u64::from(geometry.regions) * u64::from(geometry.region_bytes);
            let room = match &log.place {
                Place::Directory(_) => log
                    .medium
                    .file()
                    .and_then(|file| Room::around(&**file).ok()),
                Place::Device(_) | Place::Nvme(_) => None,
            };
            (log.shared.name.clone(), size_bytes, room)
        });
        Self::among(sized, ratio)
    }

    /// Logs that share a file system are bounded by it together.
    fn among(logs: impl Iterator<Item = (String, u64, Option<Room>)>, ratio: Share) -> Self {
        let mut extent = Self::default();
        let mut shared: BTreeMap<u64, (Vec<String>, u64, Room)> = BTreeMap::new();
        for (name, size_bytes, room) in logs {
            match room.filter(|room| room.total_bytes > 0) {
                None => extent.bytes += size_bytes,
                Some(room) => {
                    let (names, bytes, _) = shared
                        .entry(room.device)
                        .or_insert_with(|| (Vec::new(), 0, room));
                    names.push(name);
                    *bytes += size_bytes;
                }
            }
        }
        for (names, size_bytes, room) in shared.into_values() {
            let most_bytes = room.total_bytes - ratio.of(room.total_bytes).min(room.total_bytes);
            extent.bytes += size_bytes.min(most_bytes);
            if size_bytes > most_bytes {
                extent.too_large.push(format!(
                    "{} is to hold {}, and its file system has {}, {ratio} of which is kept free: it will never be full; \
                     give a smaller --cache-size",
                    names.join(", "),
                    Bytes(size_bytes),
                    Bytes(room.total_bytes)
                ));
            }
        }
        extent
    }
}

impl Cache {
    /// Opens what the flags name; none without `--cache-dir`. `purpose` says what for, to whoever finds it
    /// in use.
    ///
    /// # Errors
    /// The first place that cannot be used: what is wrong there, and what to do.
    pub fn open(args: &CacheArgs, cores: usize, purpose: &str) -> Result<Option<Self>> {
        let Some(dirs) = &args.cache_dir else {
            return Ok(None);
        };
        let overwrite = match args.format {
            true => Overwrite::Unusable,
            false => Overwrite::Nothing,
        };
        let config = CacheConfig {
            size: args.cache_size,
            free_space_ratio: args.free_space_ratio,
            overwrite,
            owner: args.node.owner(),
            cores,
            purpose: purpose.to_owned(),
        };
        let logs = open(&dirs.absolute()?, &config)?;
        for log in &logs {
            let geometry = &log.shared.geometry;
            tracing::info!(
                "cache at {}: {} regions of {} MiB{}",
                log.place,
                geometry.regions,
                geometry.region_bytes >> 20,
                if log.is_new { ", new" } else { "" }
            );
        }
        Ok(Some(Self {
            extent: Extent::of(&logs, args.free_space_ratio),
            monitor: SpaceMonitor::start(&logs, args.free_space_ratio)?,
            health: HealthMonitor::start(logs.iter().map(|log| &log.medium))?,
            logs,
        }))
    }

    /// Bytes that it may hold, over all directories and devices: at most what their file systems can.
    pub fn size_bytes(&self) -> u64 {
        self.extent.bytes
    }

    /// What is larger than its file system, a line each.
    pub fn too_large(&self) -> &[String] {
        &self.extent.too_large
    }

    /// What the engine's cores make their queue pairs of.
    pub fn sources(&self) -> Vec<DiskSource> {
        let source = |log: &OpenLog| DiskSource {
            medium: log.medium.clone(),
            shared: log.shared.clone(),
        };
        self.logs.iter().map(source).collect()
    }

    /// `wake` is called when what a log may occupy has changed.
    pub fn wake_with(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.monitor.wake_with(wake);
    }

    /// What is to be told of it while it is used.
    pub fn watched(&self) -> WatchedCache {
        let places = self.monitor.places().iter().cloned();
        let health = self.health.last().iter().cloned();
        let one = |((log, place), health): ((&OpenLog, _), _)| WatchedLog {
            medium: log.medium.clone(),
            shared: log.shared.clone(),
            place,
            health,
        };
        let logs = self.logs.iter().zip(places).zip(health);
        WatchedCache(logs.map(one).collect())
    }
}

/// What `status` looks at. Holds no lock.
#[derive(Clone, Debug, Default)]
pub struct WatchedCache(Vec<WatchedLog>);

#[derive(Clone, Debug)]
struct WatchedLog {
    medium: Medium,
    shared: Arc<DeviceShared>,
    place: Arc<presence::Watched>,
    health: LastHealth,
}

impl WatchedCache {
    /// Each directory and device as it is now; `disk` is what the cores know.
    pub fn status(&self, disk: &DiskStats) -> Vec<DiskStatus> {
        let one = |log: &WatchedLog| {
            let WatchedLog {
                medium,
                shared,
                place,
                health,
            } = log;
            let size_bytes = medium.geometry().capacity_bytes;
            let host = DiskStatus {
                name: shared.name.clone(),
                state: "recovering".into(),
                size_bytes,
                allowed_bytes: shared.allowed_bytes.load(Ordering::Relaxed).min(size_bytes),
                occupied_bytes: medium.allocated_bytes(),
                device: medium.kind(),
                health: health.get(),
                buffered: !medium.is_direct(),
                misplaced: place.trouble().unwrap_or_default(),
                ..DiskStatus::default()
            };
            host.with(disk)
        };
        self.0.iter().map(one).collect()
    }
}

impl NodeArgs {
    /// Whose cache it is.
    pub fn owner(&self) -> Owner {
        Owner {
            group: self.cache_group.clone(),
            node: self.node_id.clone().unwrap_or_else(node_of_this_machine),
        }
    }
}

impl CacheArgs {
    /// The same flags with absolute paths.
    ///
    /// # Errors
    /// When the present directory is gone.
    pub fn absolute(mut self) -> Result<Self> {
        self.cache_dir = self.cache_dir.map(|dirs| dirs.absolute()).transpose()?;
        Ok(self)
    }
}

/// How a mount names its use of a cache.
pub fn purpose_of_mount(place: &Path) -> String {
    format!("mount {}", place.display())
}

/// How a member without a mount names its use of a cache.
pub fn purpose_of_member(owner: &Owner) -> String {
    format!("serve {owner}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_holds_no_more_than_its_file_systems_can() {
        const GIB: u64 = 1 << 30;
        let room = |device, total| Room {
            total_bytes: total * GIB,
            free_bytes: 0,
            device,
        };
        let ratio: Share = "0.1".parse().unwrap();
        let extent = |logs: &[(u64, Option<Room>)]| {
            let log = |(n, (size, room)): (usize, &(u64, Option<Room>))| {
                (format!("/d{n}"), size * GIB, *room)
            };
            let extent = Extent::among(logs.iter().enumerate().map(log), ratio);
            (extent.bytes / GIB, extent.too_large)
        };
        assert_eq!(
            extent(&[(90, Some(room(1, 100))), (7, None)]),
            (97, Vec::new())
        );
        let (gib, too_large) = extent(&[(50, Some(room(1, 100))), (50, Some(room(1, 100)))]);
        assert_eq!((gib, too_large.len()), (90, 1));
        let (gib, too_large) = extent(&[(9_999, Some(room(1, 100))), (50, Some(room(2, 100)))]);
        assert_eq!((gib, too_large.len()), (140, 1));
        assert!(too_large[0].starts_with("/d0 is to hold"), "{too_large:?}");
    }
}
