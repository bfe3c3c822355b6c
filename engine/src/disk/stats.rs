//! What the disk tier counts.

/// State of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceState {
    /// Entries of earlier runs are being looked for.
    #[default]
    Recovering,
    /// Reads and writes.
    Serving,
    /// Reads only; the text says why.
    ReadOnly(String),
    /// Neither; the text says why.
    Retired(String),
}

/// One device, as one core (or several added up) sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// How users name it.
    pub name: String,
    /// State; of several cores the worst.
    pub state: DeviceState,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Regions in all.
    pub regions: u64,
    /// Of those, regions that hold nothing.
    pub regions_free: u64,
    /// Of the small queue, open ones included.
    pub regions_small: u64,
    /// Of the main queue, open ones included.
    pub regions_main: u64,
    /// Given up: no space, or beyond what the disk may hold now.
    pub regions_lost: u64,
    /// Of cores for which the device is read-only or retired: nothing new is kept there until the next start.
    pub regions_out: u64,
    /// Entries in the index.
    pub entries: u64,
    /// Of those, pinned.
    pub entries_pinned: u64,
    /// Bytes of those.
    pub pinned_bytes: u64,
    /// Bytes of those entries.
    pub live_bytes: u64,
    /// Bytes written into the regions in use: what is not live of them waits for reclaim.
    pub used_bytes: u64,
    /// Bytes of fills written.
    pub filled_bytes: u64,
    /// Bytes that reclaim wrote again.
    pub reinserted_bytes: u64,
    /// Bytes of headers, tables and padding written.
    pub overhead_bytes: u64,
    /// Fills not kept: the device was too slow, or there was no room in the index.
    pub fills_dropped: u64,
    /// Bytes of those.
    pub dropped_bytes: u64,
    /// Regions reclaimed.
    pub regions_reclaimed: u64,
    /// Entries that reclaim evicted.
    pub entries_evicted: u64,
    /// Bytes of those.
    pub evicted_bytes: u64,
    /// Reads for readers (tables and reclaim not counted).
    pub reads: u64,
    /// Bytes of those.
    pub read_bytes: u64,
    /// Reads that the device failed.
    pub read_errors: u64,
    /// Pages that failed their checksum.
    pub checksum_failures: u64,
    /// Reads given up because the device took too long.
    pub slow_reads: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Entries found at start.
    pub recovered_entries: u64,
    /// Bytes read to find them.
    pub recovery_bytes: u64,
    /// Batches without a footer that earlier runs wrote and of which the header is damaged: what lay in them is lost.
    pub batches_damaged: u64,
    /// How long that took, nanoseconds; of several cores the longest.
    pub recovery_ns: u64,
}

impl DeviceStats {
    /// Bytes written for each byte of fills.
    pub fn write_amplification(&self) -> f64 {
        let written = self.filled_bytes + self.reinserted_bytes + self.overhead_bytes;
        written as f64 / self.filled_bytes.max(1) as f64
    }

    /// Share of the bytes in used regions that no entry names any more.
    pub fn fragmentation(&self) -> f64 {
        let dead = self.used_bytes.saturating_sub(self.live_bytes);
        dead as f64 / self.used_bytes.max(1) as f64
    }

    fn add(&mut self, other: &DeviceStats) {
        if other.state.badness() > self.state.badness() {
            self.state = other.state.clone();
        }
        self.region_bytes = other.region_bytes;
        for (mine, theirs) in [
            (&mut self.regions, other.regions),
            (&mut self.regions_free, other.regions_free),
            (&mut self.regions_small, other.regions_small),
            (&mut self.regions_main, other.regions_main),
            (&mut self.regions_lost, other.regions_lost),
            (&mut self.regions_out, other.regions_out),
            (&mut self.entries, other.entries),
            (&mut self.entries_pinned, other.entries_pinned),
            (&mut self.pinned_bytes, other.pinned_bytes),
            (&mut self.live_bytes, other.live_bytes),
            (&mut self.used_bytes, other.used_bytes),
            (&mut self.filled_bytes, other.filled_bytes),
            (&mut self.reinserted_bytes, other.reinserted_bytes),
            (&mut self.overhead_bytes, other.overhead_bytes),
            (&mut self.fills_dropped, other.fills_dropped),
            (&mut self.dropped_bytes, other.dropped_bytes),
            (&mut self.regions_reclaimed, other.regions_reclaimed),
            (&mut self.entries_evicted, other.entries_evicted),
            (&mut self.evicted_bytes, other.evicted_bytes),
            (&mut self.reads, other.reads),
            (&mut self.read_bytes, other.read_bytes),
            (&mut self.read_errors, other.read_errors),
            (&mut self.checksum_failures, other.checksum_failures),
            (&mut self.slow_reads, other.slow_reads),
            (&mut self.write_errors, other.write_errors),
            (&mut self.recovered_entries, other.recovered_entries),
            (&mut self.recovery_bytes, other.recovery_bytes),
            (&mut self.batches_damaged, other.batches_damaged),
        ] {
            *mine += theirs;
        }
        self.recovery_ns = self.recovery_ns.max(other.recovery_ns);
    }
}

impl DeviceState {
    /// Whether nothing new is kept until the next start.
    pub fn is_out(&self) -> bool {
        matches!(self, DeviceState::ReadOnly(_) | DeviceState::Retired(_))
    }

    fn badness(&self) -> u8 {
        match self {
            DeviceState::Serving => 0,
            DeviceState::Recovering => 1,
            DeviceState::ReadOnly(_) => 2,
            DeviceState::Retired(_) => 3,
        }
    }
}

/// The whole disk tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Each device.
    pub devices: Vec<DeviceStats>,
    /// Memory of the index, its hash table and the ghosts.
    pub index_bytes: u64,
    /// Memory of cached checksum tables.
    pub tables_bytes: u64,
    /// Pages of checksum tables read from devices.
    pub table_reads: u64,
}

impl DiskStats {
    /// Adds another core's counters.
    pub fn add(&mut self, other: &DiskStats) {
        for device in &other.devices {
            match self
                .devices
                .iter_mut()
                .find(|mine| mine.name == device.name)
            {
                Some(mine) => mine.add(device),
                None => self.devices.push(device.clone()),
            }
        }
        self.index_bytes += other.index_bytes;
        self.tables_bytes += other.tables_bytes;
        self.table_reads += other.table_reads;
    }
}
