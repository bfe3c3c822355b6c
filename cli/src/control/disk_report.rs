//! What the control API says of the cache on disk.

use forebay_engine::disk::{DeviceState, DeviceStats, DiskStats};
use serde::{Deserialize, Serialize};

use crate::device::health::Health;

/// One directory or device of the cache, as `status` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskStatus {
    /// The directory or device, as it was given.
    pub name: String,
    /// What kind of device it is, with model and serial number, where SPDK drives it; empty otherwise.
    pub device: String,
    /// What its controller says of its health; none where it is no NVMe device of its own, or says nothing.
    pub health: Option<Health>,
    /// `recovering`, `serving`, `read_only` or `retired`.
    pub state: String,
    /// Why it is read-only or retired; empty otherwise.
    pub why: String,
    /// Size of the log.
    pub size_bytes: u64,
    /// What the log may occupy now: less than its size when the disk's other users need room.
    pub allowed_bytes: u64,
    /// Of its regions, bytes for which nothing new is kept until the next start: read-only, or retired.
    pub out_bytes: u64,
    /// Bytes that it can hold now: what it may occupy, less what is out; where that is less, what it holds.
    pub capacity_bytes: u64,
    /// What it occupies on its file system; for a block device its size.
    pub occupied_bytes: u64,
    /// Bytes of what is cached.
    pub cached_bytes: u64,
    /// Entries (parts of objects) that are cached.
    pub entries: u64,
    /// Batches that the last start found damaged: what lay in them comes from S3 again.
    pub batches_damaged: u64,
    /// What has become of its file, when the next start will not find it: removed, moved, unmounted; empty otherwise.
    pub misplaced: String,
    /// Whether reads and writes go through the page cache, because there is no O_DIRECT.
    pub buffered: bool,
}

impl DiskStatus {
    /// Adds what the cores know to what the host knows.
    pub fn with(mut self, disk: &DiskStats) -> Self {
        self.capacity_bytes = self.allowed_bytes;
        let known = disk.devices.iter().find(|known| known.name == self.name);
        if let Some(known) = known {
            let (state, why) = state_of(&known.state);
            (self.state, self.why) = (state.to_owned(), why.to_owned());
            (self.cached_bytes, self.entries) = (known.live_bytes, known.entries);
            self.batches_damaged = known.batches_damaged;
            self.out_bytes = known.regions_out * known.region_bytes;
            let takes = known.regions - known.regions_out.min(known.regions);
            let part = u128::from(self.allowed_bytes) * u128::from(takes)
                / u128::from(known.regions.max(1));
            self.capacity_bytes = (part as u64).max(self.cached_bytes);
        }
        self
    }
}

fn state_of(state: &DeviceState) -> (&'static str, &str) {
    match state {
        DeviceState::Recovering => ("recovering", ""),
        DeviceState::Serving => ("serving", ""),
        DeviceState::ReadOnly(why) => ("read_only", why),
        DeviceState::Retired(why) => ("retired", why),
    }
}

/// What the cache on disk holds and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskCounts {
    /// Memory of its index.
    pub index_bytes: u64,
    /// Memory of cached checksum tables.
    pub tables_bytes: u64,
    /// Pages of checksum tables read.
    pub table_reads: u64,
    /// Each directory or device.
    pub devices: Vec<DeviceCounts>,
}

/// One directory or device of the cache, as `stats` shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceCounts {
    /// The directory or device, as it was given.
    pub name: String,
    /// As in `status`.
    pub state: String,
    /// As in `status`.
    pub why: String,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Regions in all.
    pub regions: u64,
    /// Of those, regions that hold nothing.
    pub regions_free: u64,
    /// Of blocks that were read once.
    pub regions_small: u64,
    /// Of blocks that were read again.
    pub regions_main: u64,
    /// Not used: no space, or beyond what the log may occupy.
    pub regions_lost: u64,
    /// Of engine cores for which the device is read-only or retired: nothing new is kept there.
    pub regions_out: u64,
    /// Entries in the index.
    pub entries: u64,
    /// Of those, pinned.
    pub entries_pinned: u64,
    /// Bytes of those.
    pub pinned_bytes: u64,
    /// Bytes of the entries.
    pub live_bytes: u64,
    /// Bytes written into the regions in use.
    pub used_bytes: u64,
    /// Share of `used_bytes` that no entry names any more.
    pub fragmentation: f64,
    /// Bytes of fills written.
    pub filled_bytes: u64,
    /// Bytes that reclaim wrote again.
    pub reinserted_bytes: u64,
    /// Bytes of headers, tables and padding.
    pub overhead_bytes: u64,
    /// Bytes written for each byte of fills; 0 before there is any.
    pub write_amplification: f64,
    /// Fills that were not kept: the device was too slow, or the index full.
    pub fills_dropped: u64,
    /// Bytes of those.
    pub dropped_bytes: u64,
    /// Regions reclaimed.
    pub regions_reclaimed: u64,
    /// Entries that reclaim evicted.
    pub entries_evicted: u64,
    /// Bytes of those.
    pub evicted_bytes: u64,
    /// Reads for readers.
    pub reads: u64,
    /// Bytes of those.
    pub read_bytes: u64,
    /// Reads that the device failed.
    pub read_errors: u64,
    /// Pages that failed their checksum.
    pub checksum_failures: u64,
    /// Reads that were given up because the device took too long.
    pub slow_reads: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Entries found at start.
    pub recovered_entries: u64,
    /// Bytes read to find them.
    pub recovery_bytes: u64,
    /// Seconds that took.
    pub recovery_seconds: f64,
    /// As in `status`.
    pub batches_damaged: u64,
}

impl From<&DiskStats> for DiskCounts {
    fn from(disk: &DiskStats) -> Self {
        Self {
            index_bytes: disk.index_bytes,
            tables_bytes: disk.tables_bytes,
            table_reads: disk.table_reads,
            devices: disk.devices.iter().map(DeviceCounts::from).collect(),
        }
    }
}

impl From<&DeviceStats> for DeviceCounts {
    fn from(device: &DeviceStats) -> Self {
        let (state, why) = state_of(&device.state);
        let write_amplification = match device.filled_bytes {
            0 => 0.0,
            _ => device.write_amplification(),
        };
        Self {
            name: device.name.clone(),
            state: state.to_owned(),
            why: why.to_owned(),
            region_bytes: device.region_bytes,
            regions: device.regions,
            regions_free: device.regions_free,
            regions_small: device.regions_small,
            regions_main: device.regions_main,
            regions_lost: device.regions_lost,
            regions_out: device.regions_out,
            entries: device.entries,
            entries_pinned: device.entries_pinned,
            pinned_bytes: device.pinned_bytes,
            live_bytes: device.live_bytes,
            used_bytes: device.used_bytes,
            fragmentation: device.fragmentation(),
            filled_bytes: device.filled_bytes,
            reinserted_bytes: device.reinserted_bytes,
            overhead_bytes: device.overhead_bytes,
            write_amplification,
            fills_dropped: device.fills_dropped,
            dropped_bytes: device.dropped_bytes,
            regions_reclaimed: device.regions_reclaimed,
            entries_evicted: device.entries_evicted,
            evicted_bytes: device.evicted_bytes,
            reads: device.reads,
            read_bytes: device.read_bytes,
            read_errors: device.read_errors,
            checksum_failures: device.checksum_failures,
            slow_reads: device.slow_reads,
            write_errors: device.write_errors,
            recovered_entries: device.recovered_entries,
            recovery_bytes: device.recovery_bytes,
            recovery_seconds: device.recovery_ns as f64 / 1e9,
            batches_damaged: device.batches_damaged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> DiskStats {
        let device = DeviceStats {
            name: "/nvme0".into(),
            state: DeviceState::Retired("65 faults".into()),
            live_bytes: 75,
            used_bytes: 100,
            filled_bytes: 100,
            reinserted_bytes: 20,
            overhead_bytes: 5,
            entries: 3,
            recovery_ns: 1_500_000_000,
            ..DeviceStats::default()
        };
        DiskStats {
            devices: vec![device],
            index_bytes: 7,
            ..DiskStats::default()
        }
    }

    #[test]
    fn status_joins_what_host_and_cores_know_by_name() {
        let host = |name: &str| DiskStatus {
            name: name.into(),
            state: "recovering".into(),
            size_bytes: 1000,
            ..DiskStatus::default()
        };
        let status = host("/nvme0").with(&disk());
        assert_eq!(
            (status.state.as_str(), status.why.as_str()),
            ("retired", "65 faults")
        );
        assert_eq!(
            (status.entries, status.cached_bytes, status.size_bytes),
            (3, 75, 1000)
        );
        assert_eq!(host("/other").with(&disk()).state, "recovering");
    }

    #[test]
    fn counts_are_the_cores_with_ratios_worked_out() {
        let counts = DiskCounts::from(&disk());
        let device = &counts.devices[0];
        assert_eq!(device.write_amplification, 1.25);
        assert_eq!((device.fragmentation, device.recovery_seconds), (0.25, 1.5));
        assert_eq!(
            DeviceCounts::from(&DeviceStats::default()).write_amplification,
            0.0
        );
        let json = serde_json::to_value(&counts).unwrap();
        assert_eq!(json.pointer("/devices/0/entries"), Some(&3.into()));
        let empty: DiskCounts = serde_json::from_str("{}").unwrap();
        assert_eq!(empty, DiskCounts::default());
    }
}
