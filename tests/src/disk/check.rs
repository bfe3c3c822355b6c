//! What must hold at rest, and after a restart.

use std::collections::BTreeSet;

use forebay_engine::disk::DiskStats;
use forebay_engine::disk::layout::EntryRecord;
use forebay_engine::limits::{DISK_ENTRY_BYTES, PAGES_PER_SUB_BLOCK};

use super::media::{Claimed, PageName, Platter, check_claims, claims, header, pages_of};
use super::model::Model;
use super::node::Node;
use crate::sim::bay::Bay;

/// Memory of the disk index that does not grow with entries, for each core.
const INDEX_FIXED_BYTES: u64 = 4 << 10;

/// Memory of the checksum pool that its bound leaves out, for each core.
const TABLES_FIXED_BYTES: u64 = 4 << 10;

/// Every page that the disk tier says it holds, by its extents.
///
/// # Errors
/// When it says so of what was never kept or was forgotten, or when `present` and `extent` disagree.
pub fn found(node: &Node, model: &Model) -> Result<BTreeSet<PageName>, String> {
    let mut found = BTreeSet::new();
    let per = PAGES_PER_SUB_BLOCK as u32;
    for (block, block_bytes) in model.universe.blocks() {
        let disk = node.disk(block);
        let pages = model.universe.pages(block);
        let mut page = 0;
        let mut whole = 0u64;
        while page < pages {
            let Some(extent) = disk.extent(block, page) else {
                page += 1;
                continue;
            };
            if extent.start != page || extent.end <= page || extent.end > pages {
                return Err(format!(
                    "{block:?}, page {page} of {pages}: extent {extent:?}"
                ));
            }
            for sub in page.div_ceil(per)..pages.div_ceil(per) {
                if extent.end >= ((sub + 1) * per).min(pages) {
                    whole |= 1 << sub;
                }
            }
            found.extend(extent.clone().map(|page| (block, page)));
            page = extent.end;
        }
        let present = disk.present(block, block_bytes);
        if present & !covered(&found, block, pages) != 0 || whole & !present != 0 {
            return Err(format!(
                "{block:?} of {block_bytes} bytes: present is {present:016x}, extents hold {whole:016x}"
            ));
        }
    }
    for page in &found {
        if let Some(why) = model.objection(*page) {
            return Err(format!("{page:?} is found, and {why}"));
        }
    }
    Ok(found)
}

/// Sub-blocks of which every page was found.
fn covered(
    found: &BTreeSet<PageName>,
    block: forebay_engine::identity::BlockId,
    pages: u32,
) -> u64 {
    let per = PAGES_PER_SUB_BLOCK as u32;
    (0..pages.div_ceil(per))
        .filter(|sub| {
            (sub * per..((sub + 1) * per).min(pages)).all(|page| found.contains(&(block, page)))
        })
        .fold(0, |bits, sub| bits | 1 << sub)
}

/// What must hold when nothing is under way.
///
/// # Errors
/// What does not.
pub fn at_rest(node: &mut Node, model: &mut Model) -> Result<(), String> {
    let (pending, open) = (model.pending_pages(), model.open_reads());
    if pending + open > 0 {
        return Err(format!(
            "at rest with {pending} pages not settled and {open} reads open"
        ));
    }
    let lent = node.lent_bytes();
    if lent > 0 {
        return Err(format!("{lent} bytes of buffers are lent at rest"));
    }
    let found = found(node, model)?;
    let stats = node.stats();
    check_stats(node, &stats, model.rehomed)?;
    let mut lost: Vec<PageName> = model
        .expected()
        .filter(|page| !found.contains(page))
        .collect();
    if model.faulty {
        // Whatever the device did may have cost it.
        model.lose(&lost);
        return Ok(());
    }
    // What lay in another core's region after `--cores` changed goes when its owner reclaims it.
    let reclaimed = stats
        .devices
        .iter()
        .any(|device| device.regions_reclaimed > 0);
    let (foreign, own): (Vec<_>, Vec<_>) =
        lost.into_iter().partition(|page| model.is_foreign(*page));
    lost = own;
    if !reclaimed && let Some(page) = <[PageName]>::first(&foreign) {
        return Err(format!(
            "{page:?} of another core's region is lost, and nothing was reclaimed"
        ));
    }
    model.lose_uncounted(&foreign);
    if let Some(page) = lost.iter().find(|page| model.is_pinned(**page)) {
        let number = model
            .universe
            .blocks()
            .position(|(block, _)| block == page.0);
        return Err(format!(
            "{page:?} (block number {number:?} of {}) was pinned, and is lost: {stats:?}",
            model.universe.len()
        ));
    }
    model.lose(&lost);
    let sum = |of: fn(&forebay_engine::disk::DeviceStats) -> u64| -> u64 {
        stats.devices.iter().map(of).sum()
    };
    let dropped = sum(|device| device.dropped_bytes).saturating_sub(model.refused_bytes);
    let explained = sum(|device| device.evicted_bytes) + dropped;
    if model.lost_bytes > explained {
        return Err(format!(
            "{} settled bytes are lost, {explained} were evicted or dropped; now {} pages from {:?} on: {stats:?}",
            model.lost_bytes,
            lost.len(),
            lost.first()
        ));
    }
    Ok(())
}

/// Counters that must agree with each other and with their bounds.
fn check_stats(node: &Node, stats: &DiskStats, rehomed: bool) -> Result<(), String> {
    let config = node.config();
    let cores = config.cores as u64;
    let entries: u64 = stats.devices.iter().map(|device| device.entries).sum();
    let entries_max = cores * config.entries_max as u64;
    if entries > entries_max {
        return Err(format!("{entries} entries, {entries_max} allowed"));
    }
    let index_max = entries_max * DISK_ENTRY_BYTES as u64 + cores * INDEX_FIXED_BYTES;
    if stats.index_bytes > index_max {
        return Err(format!(
            "the index takes {} bytes for at most {entries_max} entries",
            stats.index_bytes
        ));
    }
    let tables_max = cores * (config.tables_bytes_max as u64 + TABLES_FIXED_BYTES);
    if stats.tables_bytes > tables_max {
        return Err(format!(
            "{} bytes of checksum tables, {tables_max} allowed",
            stats.tables_bytes
        ));
    }
    for device in &stats.devices {
        let parts = device.regions_free + device.regions_small + device.regions_main;
        let all = parts + device.regions_lost;
        let used = device.regions_small + device.regions_main;
        if all != device.regions
            || (device.live_bytes > device.used_bytes && !rehomed)
            || device.used_bytes > used * device.region_bytes
            || device.recovered_entries > entries_max
        {
            return Err(format!("counters do not agree: {device:?}"));
        }
    }
    Ok(())
}

/// What lay on stable media when the power failed.
#[derive(Debug)]
pub struct Durable(Vec<Vec<Claimed>>);

impl Durable {
    /// Reads it; before the power comes back.
    pub fn read(bays: &[Bay]) -> Self {
        Self(
            bays.iter()
                .map(|bay| claims(&Platter::of(bay, true)))
                .collect(),
        )
    }

    /// Whether all of it is still there, where its region's header is. A header of a new generation
    /// that was not flushed may have replaced it.
    ///
    /// # Errors
    /// What is lost.
    fn check(&self, bays: &[Bay], now: &[Vec<Claimed>], model: &Model) -> Result<(), String> {
        let everywhere: BTreeSet<PageName> = now.iter().flat_map(|bay| pages_of(bay)).collect();
        for ((bay, before), after) in bays.iter().zip(&self.0).zip(now) {
            for region in before {
                let same =
                    header(&Platter::of(bay, false), region.header.region) == Some(region.header);
                let after = after
                    .iter()
                    .find(|after| after.header == region.header)
                    .filter(|_| same);
                // A footer may say of an entry that it is pinned, and its batch that it was not.
                let unpinned = |entry: &EntryRecord| EntryRecord {
                    pinned: false,
                    ..*entry
                };
                let names: Vec<_> = after
                    .iter()
                    .flat_map(|after| &after.entries)
                    .map(|(entry, _)| unpinned(entry))
                    .collect();
                let lost = region
                    .entries
                    .iter()
                    .find(|(entry, _)| !names.contains(&unpinned(entry)));
                if let Some((entry, _)) = lost.filter(|_| same) {
                    return Err(format!(
                        "{entry:?} was named by flushed headers of {:?}, and is lost",
                        region.header
                    ));
                }
                let first = region.entries.iter().find(|(entry, _)| {
                    let first = u32::from(entry.first_page);
                    (first..first + entry.pages())
                        .map(|page| (entry.block, page))
                        .any(|page| model.is_pinned(page) && !everywhere.contains(&page))
                });
                if let Some((entry, _)) = first {
                    return Err(format!("{entry:?} was pinned and flushed, and is lost"));
                }
            }
        }
        Ok(())
    }
}

/// What the devices claim after a restart: every entry is whole and right, and nothing durable is lost.
///
/// # Errors
/// The first thing that is wrong.
pub fn on_media(
    bays: &[Bay],
    model: &Model,
    durable: Option<&Durable>,
) -> Result<BTreeSet<PageName>, String> {
    let now: Vec<Vec<Claimed>> = bays
        .iter()
        .map(|bay| claims(&Platter::of(bay, false)))
        .collect();
    if !model.faulty {
        for (bay, regions) in bays.iter().zip(&now) {
            check_claims(&Platter::of(bay, false), &model.universe, regions)?;
        }
        if let Some(durable) = durable {
            durable.check(bays, &now, model)?;
        }
    }
    Ok(now.iter().flat_map(|bay| pages_of(bay)).collect())
}
