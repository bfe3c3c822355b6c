//! Region size, numbers and offsets of regions.

use crate::limits::PAGE_BYTES;

/// Open regions of one core: one of each queue.
const OPEN_REGIONS: u64 = 2;
/// Open regions of all cores hold at most one part in this many of the device.
const OPEN_SHARE: u64 = 16;
/// With fewer regions of its own a core cannot reclaim sensibly.
const REGIONS_PER_CORE_MIN: u64 = 8;

/// Regions begin here.
pub const DATA_OFFSET_BYTES: u64 = 1 << 20;
/// The smallest region.
pub const REGION_BYTES_MIN: u32 = 2 << 20;
/// The largest region.
pub const REGION_BYTES_MAX: u32 = 64 << 20;

/// Where a log's regions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a region: a power of two.
    pub region_bytes: u32,
    /// How many there are.
    pub regions: u32,
}

/// The device is too small for so many cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} MiB is too little for {cores} cores: at least {} MiB is needed, or fewer cores",
    capacity_bytes >> 20,
    needed_bytes >> 20
)]
pub struct TooSmall {
    /// What there is.
    pub capacity_bytes: u64,
    /// How many cores share it.
    pub cores: usize,
    /// What they need at least.
    pub needed_bytes: u64,
}

impl Geometry {
    /// Chooses the size of regions at format: the largest with which the open regions of all cores hold
    /// at most 1/16 of the capacity; the smallest when none does.
    ///
    /// # Errors
    /// When a core would have fewer than eight regions.
    pub fn choose(capacity_bytes: u64, cores: usize) -> Result<Geometry, TooSmall> {
        let writers = cores.max(1) as u64;
        let open_max = capacity_bytes / OPEN_SHARE / OPEN_REGIONS / writers;
        let mut region_bytes = REGION_BYTES_MAX;
        while u64::from(region_bytes) > open_max && region_bytes > REGION_BYTES_MIN {
            region_bytes /= 2;
        }
        let geometry = Self::fit(region_bytes, capacity_bytes);
        let regions_min = REGIONS_PER_CORE_MIN.saturating_mul(writers);
        if u64::from(geometry.regions) >= regions_min {
            return Ok(geometry);
        }
        let data_bytes = regions_min.saturating_mul(u64::from(REGION_BYTES_MIN));
        Err(TooSmall {
            capacity_bytes,
            cores,
            needed_bytes: data_bytes.saturating_add(DATA_OFFSET_BYTES),
        })
    }

    /// As many regions of `region_bytes` as fit; none when the capacity is too small for one.
    pub fn fit(region_bytes: u32, capacity_bytes: u64) -> Geometry {
        let data_bytes = capacity_bytes.saturating_sub(DATA_OFFSET_BYTES);
        let regions = data_bytes.checked_div(u64::from(region_bytes)).unwrap_or(0);
        Geometry {
            region_bytes,
            regions: u32::try_from(regions).unwrap_or(u32::MAX),
        }
    }

    /// Where region `region` begins on the device, in bytes.
    pub fn offset_bytes(&self, region: u32) -> u64 {
        DATA_OFFSET_BYTES + u64::from(region) * u64::from(self.region_bytes)
    }

    /// Pages of a region.
    pub fn region_pages(&self) -> u32 {
        self.region_bytes / PAGE_BYTES as u32
    }

    /// Pages of a region's checksum table: four bytes for each page of the region.
    pub fn checksum_table_pages(&self) -> u32 {
        (self.region_pages() * 4).div_ceil(PAGE_BYTES as u32)
    }

    /// The page of a region where its checksum table begins.
    pub fn checksum_table_page(&self) -> u32 {
        self.trailer_page() - self.checksum_table_pages()
    }

    /// The page of a region's trailer: its last.
    pub fn trailer_page(&self) -> u32 {
        self.region_pages() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn regions_grow_with_the_device_and_shrink_with_cores() {
        let chosen = |capacity, cores| {
            let geometry = Geometry::choose(capacity, cores).unwrap();
            (u64::from(geometry.region_bytes) / MIB, geometry.regions)
        };
        assert_eq!(chosen(2048 * MIB, 1), (64, 31));
        assert_eq!(chosen(2048 * MIB, 2), (32, 63));
        assert_eq!(chosen(1024 * MIB, 2), (16, 63));
        assert_eq!(chosen(4 << 40, 64), (64, 65_535));
        // Smaller than the share of 1/16 allows: the smallest regions.
        assert_eq!(chosen(33 * MIB, 2), (2, 16));
    }

    #[test]
    fn open_regions_hold_at_most_a_sixteenth_where_there_is_room() {
        for cores in [1usize, 2, 3, 8, 64] {
            for capacity in (64..4096).step_by(61).map(|mib| mib * MIB * cores as u64) {
                let geometry = Geometry::choose(capacity, cores).unwrap();
                let region_bytes = u64::from(geometry.region_bytes);
                let open = |bytes: u64| 2 * cores as u64 * bytes;
                assert!(open(region_bytes) * 16 <= capacity, "{capacity} {cores}");
                let larger = region_bytes * 2;
                assert!(larger > 64 * MIB || open(larger) * 16 > capacity);
                assert!(
                    geometry.offset_bytes(geometry.regions) <= capacity,
                    "the last region ends within the device"
                );
            }
        }
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_with_what_is_needed() {
        let refused = Geometry::choose(32 * MIB, 2).unwrap_err();
        assert_eq!(refused.needed_bytes, 33 * MIB);
        assert!(Geometry::choose(refused.needed_bytes, 2).is_ok());
        assert!(Geometry::choose(refused.needed_bytes - 1, 2).is_err());
        assert_eq!(
            refused.to_string(),
            "32 MiB is too little for 2 cores: at least 33 MiB is needed, or fewer cores"
        );
        assert!(Geometry::choose(0, 1).is_err());
        assert!(Geometry::choose(u64::MAX, usize::MAX).is_err());
    }

    #[test]
    fn fitting_keeps_the_region_size() {
        let fit = |mib: u64| Geometry::fit(4 << 20, mib * MIB).regions;
        assert_eq!([0, 1, 4, 5, 8, 9].map(fit), [0, 0, 0, 1, 1, 2]);
        assert_eq!(Geometry::fit(0, 64 * MIB).regions, 0);
        assert_eq!(Geometry::fit(REGION_BYTES_MIN, u64::MAX).regions, u32::MAX);
    }

    #[test]
    fn the_tables_of_every_size_fit_before_the_trailer() {
        for shift in 21..=26 {
            let geometry = Geometry::fit(1 << shift, 1 << 30);
            let table = geometry.checksum_table_page();
            let bytes = u64::from(geometry.trailer_page() - table) * PAGE_BYTES as u64;
            assert!(bytes >= u64::from(geometry.region_pages()) * 4);
            assert_eq!(geometry.trailer_page() + 1, geometry.region_pages());
        }
    }
}
