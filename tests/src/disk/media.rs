//! What a device claims to hold, read past the log and past every queue: our own walk over headers and
//! footers, and over the bytes that they name.

use std::collections::BTreeSet;

use forebay_engine::disk::layout::{
    BatchHeader, EntryRecord, RegionHeader, Trailer, decode_checksums, decode_entries,
};
use forebay_engine::identity::BlockId;
use forebay_engine::limits::PAGE_BYTES;

use super::node::Bay;
use super::universe::Universe;

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

/// Reads pages of a region.
fn look(bay: &Bay, stable: bool, region: u32, page: u32, pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; pages * PAGE_BYTES];
    let at = bay.geometry.offset_bytes(region) + u64::from(page) * PAGE_BYTES as u64;
    bay.media
        .borrow()
        .look(stable, at, bay.sector_bytes, &mut bytes);
    bytes
}

/// The header of a region as it is there now, or on stable media.
pub fn header(bay: &Bay, stable: bool, region: u32) -> Option<RegionHeader> {
    let page = look(bay, stable, region, 0, 1);
    RegionHeader::decode(bay.log, &page).filter(|header| header.region == region)
}

/// All regions with a valid header, and what they name: as it is there now, or on stable media.
pub fn claims(bay: &Bay, stable: bool) -> Vec<Claimed> {
    (0..bay.geometry.regions)
        .filter_map(|region| {
            let header = header(bay, stable, region)?;
            let footer = sealed(bay, stable, &header);
            let sealed = footer.is_some();
            let entries = footer.unwrap_or_else(|| walked(bay, stable, &header));
            Some(Claimed {
                header,
                sealed,
                entries,
            })
        })
        .collect()
}

/// What a region's footer names, when it is whole and of this generation.
fn sealed(bay: &Bay, stable: bool, header: &RegionHeader) -> Option<Vec<(EntryRecord, Vec<u32>)>> {
    let geometry = &bay.geometry;
    let page = look(bay, stable, header.region, geometry.trailer_page(), 1);
    let trailer = Trailer::decode(bay.log, &page)?;
    let ours = trailer.region == header.region
        && trailer.generation == header.generation
        && trailer.fits(geometry);
    if !ours {
        return None;
    }
    let count = trailer.entries as usize;
    let pages = Trailer::entry_table_pages(count);
    let table = look(bay, stable, header.region, trailer.entry_table_page, pages);
    if !trailer.holds_entries(&table) {
        return None;
    }
    let records = decode_entries(&table, count, geometry)?;
    let pages = geometry.checksum_table_pages() as usize;
    let at = geometry.checksum_table_page();
    let checksums = decode_checksums(&look(bay, stable, header.region, at, pages));
    let with_checksums = records.into_iter().map(|record| {
        let first = record.region_page as usize;
        let of_entry = checksums[first..first + record.pages() as usize].to_vec();
        (record, of_entry)
    });
    Some(with_checksums.collect())
}

/// What the chain of batch headers of an unsealed region names.
fn walked(bay: &Bay, stable: bool, header: &RegionHeader) -> Vec<(EntryRecord, Vec<u32>)> {
    let mut found = Vec::new();
    let (mut page, mut chain) = (1, header.chain(bay.log));
    let end = bay.geometry.region_pages();
    while page < end {
        let first = look(bay, stable, header.region, page, 1);
        let Some(shape) = BatchHeader::peek(bay.log, &first) else {
            break;
        };
        let next = page as usize + shape.header_pages + shape.data_pages;
        if next > end as usize {
            break;
        }
        let bytes = look(bay, stable, header.region, page, shape.header_pages);
        let batch = BatchHeader::decode(bay.log, &bytes).filter(|batch| {
            batch.region == header.region
                && batch.generation == header.generation
                && batch.page == page
                && batch.chain == chain
        });
        let Some(batch) = batch else {
            break;
        };
        let data_begins = page as usize + shape.header_pages;
        for entry in &batch.entries {
            let first = entry.region_page as usize - data_begins;
            let checksums = batch.checksums[first..first + entry.pages() as usize].to_vec();
            found.push((*entry, checksums));
        }
        chain = batch.next_chain(bay.log);
        page = next as u32;
    }
    found
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
pub fn check_claims(bay: &Bay, universe: &Universe, regions: &[Claimed]) -> Result<(), String> {
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
            let bytes = look(bay, false, header.region, entry.region_page, pages as usize);
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
