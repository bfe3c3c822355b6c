//! What a device claims to hold, read past the log and past every queue: headers and footers, and the bytes that
//! they name.

use std::collections::BTreeSet;
use std::fmt;

use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::{
    EntryRecord, LogId, RegionHeader, Trailer, decode_checksums, decode_entries,
};
use forebay_engine::disk::walk::Walk;
use forebay_engine::identity::BlockId;
use forebay_engine::limits::PAGE_BYTES;

use super::universe::Universe;
use crate::sim::bay::Bay;

/// One region with contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Its header.
    pub header: RegionHeader,
    /// Whether it has a footer.
    pub sealed: bool,
    /// Its entries, each with the checksums of its pages.
    pub entries: Vec<(EntryRecord, Vec<u32>)>,
}

/// A page of a block.
pub type PageName = (BlockId, u32);

/// Fills a buffer from an offset in bytes.
pub type RawRead<'a> = Box<dyn Fn(u64, &mut [u8]) + 'a>;

/// A device without its queues and faults: where its bytes are read from.
pub struct Platter<'a> {
    /// The log's identity.
    pub log: LogId,
    /// Where its regions are.
    pub geometry: Geometry,
    /// Reads its bytes.
    pub read: RawRead<'a>,
}

impl fmt::Debug for Platter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Platter")
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl<'a> Platter<'a> {
    /// A simulated disk as it is now, or what is on stable media only.
    pub fn of(bay: &'a Bay, stable: bool) -> Self {
        let read = move |at, bytes: &mut [u8]| {
            let media = bay.media.borrow();
            media.look(stable, at, bay.sector_bytes, bytes);
        };
        Self {
            log: bay.log,
            geometry: bay.geometry,
            read: Box::new(read),
        }
    }

    /// Reads pages of a region.
    fn look(&self, region: u32, page: u32, pages: usize) -> Vec<u8> {
        let mut bytes = vec![0; pages * PAGE_BYTES];
        let at = self.geometry.offset_bytes(region) + u64::from(page) * PAGE_BYTES as u64;
        (self.read)(at, &mut bytes);
        bytes
    }
}

/// The header of a region  as it is there.
pub fn header(platter: &Platter<'_>, region: u32) -> Option<RegionHeader> {
    let page = platter.look(region, 0, 1);
    RegionHeader::decode(platter.log, &page).filter(|header| header.region == region)
}

/// All regions with a valid header, and what they name.
pub fn claims(platter: &Platter<'_>) -> Vec<Claimed> {
    (0..platter.geometry.regions)
        .filter_map(|region| {
            let header = header(platter, region)?;
            let footer = sealed(platter, &header);
            let sealed = footer.is_some();
            let entries = footer.unwrap_or_else(|| walked(platter, &header));
            Some(Claimed {
                header,
                sealed,
                entries,
            })
        })
        .collect()
}

/// What a region's footer names, when it is whole and of this generation.
fn sealed(platter: &Platter<'_>, header: &RegionHeader) -> Option<Vec<(EntryRecord, Vec<u32>)>> {
    let geometry = &platter.geometry;
    let page = platter.look(header.region, geometry.trailer_page(), 1);
    let trailer = Trailer::decode(platter.log, &page)?;
    let ours = trailer.region == header.region
        && trailer.generation == header.generation
        && trailer.sequence == header.sequence
        && trailer.fits(geometry);
    if !ours {
        return None;
    }
    let count = trailer.entries as usize;
    let pages = Trailer::entry_table_pages(count);
    let table = platter.look(header.region, trailer.entry_table_page, pages);
    if !trailer.holds_entries(&table) {
        return None;
    }
    let records = decode_entries(&table, count, geometry)?;
    let pages = geometry.checksum_table_pages() as usize;
    let at = geometry.checksum_table_page();
    let checksums = decode_checksums(&platter.look(header.region, at, pages));
    let with_checksums = records.into_iter().map(|record| {
        let first = record.region_page as usize;
        let of_entry = checksums[first..first + record.pages() as usize].to_vec();
        (record, of_entry)
    });
    Some(with_checksums.collect())
}

/// What the batch headers of an unsealed region name, by the same walk as recovery's: what is checked is that every
/// entry which it finds is whole and right, also behind a header that is lost.
fn walked(platter: &Platter<'_>, header: &RegionHeader) -> Vec<(EntryRecord, Vec<u32>)> {
    let mut walk = Walk::new(platter.log, platter.geometry, *header);
    while let Some((page, pages)) = walk.needs() {
        walk.take(&platter.look(header.region, page, pages as usize));
    }
    let (records, checksums) = walk.into_parts();
    let with_checksums = records.into_iter().map(|record| {
        let first = record.region_page as usize;
        let of_entry = checksums[first..first + record.pages() as usize].to_vec();
        (record, of_entry)
    });
    with_checksums.collect()
}

/// The pages that regions name.
pub fn pages_of(regions: &[Claimed]) -> BTreeSet<PageName> {
    regions
        .iter()
        .flat_map(|region| &region.entries)
        .flat_map(|(entry, _)| {
            let first = u32::from(entry.first_page);
            (first..first + entry.pages()).map(|page| (entry.block, page))
        })
        .collect()
}

/// Reads every page of every entry from the media and compares it with what was kept, and its checksum
/// with the page.
///
/// # Errors
/// The first entry that is not whole and right.
pub fn check_claims(
    platter: &Platter<'_>,
    universe: &Universe,
    regions: &[Claimed],
) -> Result<(), String> {
    for Claimed {
        header,
        entries,
        sealed,
    } in regions
    {
        for (entry, checksums) in entries {
            let place = || {
                let region = header.region;
                format!(
                    "region {region} generation {} (sealed: {sealed}) names {entry:?}",
                    header.generation
                )
            };
            let pages = entry.pages();
            let first = u32::from(entry.first_page);
            let should = universe.bytes_of(entry.block, first..first + pages);
            if entry.len_bytes as usize != should {
                return Err(format!("{}: {should} bytes were kept", place()));
            }
            let bytes = platter.look(header.region, entry.region_page, pages as usize);
            universe
                .check(entry.block, first, &bytes)
                .map_err(|wrong| format!("{}: {wrong}", place()))?;
            if bytes[should..].iter().any(|byte| *byte != 0) {
                return Err(format!("{}: no zeros behind its end", place()));
            }
            if checksums[..] != universe.checksums(entry.block, first..first + pages)[..] {
                return Err(format!("{}: wrong checksums", place()));
            }
        }
    }
    Ok(())
}
