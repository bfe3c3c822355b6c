//! What lies on a device: structures, and how they become bytes and are read back.
//!
//! Every structure is whole pages, little endian, and begins and ends alike (see `frame.rs`); decoders
//! believe nothing: they never panic, never allocate by a number that was not checked, and refuse what
//! the encoder would not have written.
//!
//! | file | structure |
//! |---|---|
//! | `frame` | head and crc of every structure |
//! | `superblock` | page 0 of the device: [`Superblock`], and what else may be there: [`NotOurs`] |
//! | `region` | page 0 of a region: [`RegionHeader`], or of an emptied one: [`VoidHeader`] |
//! | `batch` | what was appended together: [`BatchHeader`] |
//! | `trailer` | the last page of a sealed region: [`Trailer`] |
//! | `entry` | tables of a batch header and of a footer: [`EntryRecord`], checksums |

mod batch;
mod entry;
mod foreign;
mod frame;
mod region;
mod superblock;
mod trailer;

pub use batch::{BatchFields, BatchHeader, BatchShape};
pub use entry::{
    ENTRY_BYTES, EntryRecord, decode_checksums, decode_entries, encode_checksums, encode_entries,
};
pub use frame::{FORMAT_VERSION, chain_of};
pub use region::{Queue, RegionHeader, VoidHeader};
pub use superblock::{NotOurs, OWNER_BYTES_MAX, Superblock};
pub use trailer::Trailer;

/// Names one log: drawn at format, carried by every structure, so that leftovers of another log are
/// never taken for ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogId(pub u128);

#[cfg(test)]
mod tests;
