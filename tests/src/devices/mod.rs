//! Devices that stack over any [`BlockDevice`](forebay_engine::ports::BlockDevice), switched from outside while
//! they run, and places for real ones.
//!
//! | module | holds |
//! |---|---|
//! | [`faulty`] | reads, writes and bytes that go wrong, by script or by chance |
//! | [`delayed`] | slow operations, and operations that hang |
//! | [`counting`] | what was asked of the device below |
//! | [`host`] | the disks of a whole engine, with all of these in between |
//! | [`uring`] | the real one, as the suite drives it |
//! | [`places`] | loop devices and small file systems of a test's own |
//! | [`target`] | SPDK's NVMe/TCP target as a child, with namespaces of a test's own |

pub mod counting;
pub mod delayed;
pub mod faulty;
pub mod host;
pub mod places;
pub mod target;
pub mod uring;

use forebay_engine::ports::DeviceGeometry;

/// Whether a range is whole sectors within the device.
fn in_range(geometry: &DeviceGeometry, offset_bytes: u64, len_bytes: u64) -> bool {
    let sector = u64::from(geometry.sector_bytes);
    offset_bytes.is_multiple_of(sector)
        && len_bytes.is_multiple_of(sector)
        && offset_bytes
            .checked_add(len_bytes)
            .is_some_and(|end| end <= geometry.capacity_bytes)
}

#[cfg(test)]
mod tests;
