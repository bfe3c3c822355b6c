//! The first page of a device.

use super::LogId;
use super::foreign;
use super::frame::{FORMAT_VERSION, Magic, Reader, Writer, crc_holds};
use crate::disk::geometry::{REGION_BYTES_MAX, REGION_BYTES_MIN};
use crate::limits::PAGE_BYTES;

const MAGIC: Magic = *b"FBcache\n";

/// The longest owner, in bytes.
pub const OWNER_BYTES_MAX: usize = 512;

/// The first page of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity.
    pub log: LogId,
    /// Bytes of a region: a power of two between the limits of `geometry`.
    pub region_bytes: u32,
    /// Sector size of the device at format.
    pub sector_bytes: u32,
    /// Nanoseconds since 1970 at format.
    pub created_ns: u64,
    /// Whose: `group/node`, at most [`OWNER_BYTES_MAX`]; for people.
    pub owner: String,
}

/// Why a device's first page is not a superblock that this version can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOurs {
    /// Zeros only: it can be formatted.
    #[error("it is blank: not formatted yet")]
    Blank,
    /// Somebody else's data, and what it looks like.
    #[error("it is no Forebay cache and not empty: it holds {0}")]
    Foreign(&'static str),
    /// Written by a newer Forebay.
    #[error(
        "it is a Forebay cache of format {version}, newer than this Forebay's {FORMAT_VERSION}: \
         use a newer Forebay, or format it"
    )]
    Newer {
        /// Its format.
        version: u16,
    },
    /// Written by an older Forebay whose format this one no longer reads.
    #[error(
        "it is a Forebay cache of format {version}, older than this Forebay's {FORMAT_VERSION} and no \
         longer read: format it"
    )]
    Older {
        /// Its format.
        version: u16,
    },
    /// It begins as a superblock does, and is not whole.
    #[error("it is a Forebay cache with a damaged superblock ({0}): format it")]
    Damaged(&'static str),
}

impl NotOurs {
    /// What else is known to be there, by its name: none for what is blank, unknown or a Forebay cache.
    pub fn known(&self) -> Option<&'static str> {
        match self {
            NotOurs::Foreign(name) if *name != foreign::UNKNOWN => Some(name),
            _ => None,
        }
    }
}

impl Superblock {
    /// The superblock as one page. An owner that is too long is cut.
    pub fn encode(&self) -> Box<[u8]> {
        let mut owner = self.owner.as_str();
        if owner.len() > OWNER_BYTES_MAX {
            owner = &owner[..owner.floor_char_boundary(OWNER_BYTES_MAX)];
        }
        let mut page = vec![0; PAGE_BYTES].into_boxed_slice();
        let mut writer = Writer::begin(&mut page, MAGIC, self.log);
        writer.u32(self.region_bytes);
        writer.u32(self.sector_bytes);
        writer.u64(self.created_ns);
        writer.u16(owner.len() as u16);
        writer.bytes(owner.as_bytes());
        writer.finish();
        page
    }

    /// Reads the first page of a device. `bytes` is at least that page; what else may be on the device
    /// is told the better the more there is of it (128 KiB tells all that is known).
    ///
    /// # Errors
    /// What is there instead; never a guess.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, NotOurs> {
        if !bytes.starts_with(&MAGIC) {
            return Err(match bytes.iter().all(|byte| *byte == 0) {
                true => NotOurs::Blank,
                false => NotOurs::Foreign(foreign::looks_like(bytes)),
            });
        }
        let page = bytes
            .get(..PAGE_BYTES)
            .ok_or(NotOurs::Damaged("shorter than a page"))?;
        // Before the version: a flipped bit must not make it another version's.
        if !crc_holds(page) {
            return Err(NotOurs::Damaged("its checksum does not match"));
        }
        let version = u16::from_le_bytes([page[8], page[9]]);
        if version > FORMAT_VERSION {
            return Err(NotOurs::Newer { version });
        }
        if version < FORMAT_VERSION {
            return Err(NotOurs::Older { version });
        }
        Self::fields(page).ok_or(NotOurs::Damaged("a field is out of range"))
    }

    /// The same of a device that others may have had, by what is at its beginning and at its end: a device is blank only when
    /// nothing is at its end either. `end` ends where the device does (1 MiB tells all that is known).
    ///
    /// # Errors
    /// See [`Superblock::decode`].
    pub fn decode_device(beginning: &[u8], end: &[u8]) -> Result<Superblock, NotOurs> {
        match (Self::decode(beginning), foreign::looks_like_at_the_end(end)) {
            (Err(NotOurs::Blank), Some(found)) => Err(NotOurs::Foreign(found)),
            // The end may know better.
            (Err(NotOurs::Foreign(foreign::UNKNOWN)), Some(found)) => Err(NotOurs::Foreign(found)),
            (decoded, _) => decoded,
        }
    }

    fn fields(page: &[u8]) -> Option<Superblock> {
        let mut head = Reader::over(page);
        let _: [u8; 16] = head.array()?;
        let log = LogId(head.u128()?);
        let mut reader = Reader::begin(page, MAGIC, log)?;
        let region_bytes = reader.u32()?;
        let sector_bytes = reader.u32()?;
        let created_ns = reader.u64()?;
        let owner_len = usize::from(reader.u16()?);
        if owner_len > OWNER_BYTES_MAX {
            return None;
        }
        let owner = std::str::from_utf8(reader.bytes(owner_len)?).ok()?;
        reader.finish()?;
        let whole = region_bytes.is_power_of_two()
            && (REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&region_bytes)
            && (sector_bytes == 512 || sector_bytes == PAGE_BYTES as u32);
        whole.then(|| Superblock {
            log,
            region_bytes,
            sector_bytes,
            created_ns,
            owner: owner.to_owned(),
        })
    }
}
