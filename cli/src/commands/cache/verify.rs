//! `forebay cache verify`: reads every page of every entry and checks it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use forebay_engine::disk::layout::EntryRecord;
use forebay_engine::limits::{BLOCK_BYTES, PAGE_BYTES};
use serde::Serialize;

use super::progress::Progress;
use super::{Looked, find};
use crate::args::VerifyArgs;
use crate::cache::scan::{Checked, Region, State};
use crate::output::{json, print};
use crate::units::{Bytes, show_duration};

/// Bad entries that are named one by one; the others are only counted.
const NAMED_MAX: usize = 1_000;

/// Runs the command.
///
/// # Errors
/// When a cache cannot be read or is in use; when anything in it is wrong.
pub fn run(args: &VerifyArgs) -> Result<()> {
    let mut bad = Vec::new();
    for dir in &args.dirs {
        let mut cache = Looked::at(find(dir, &args.node)?, Some("cache verify"))?;
        let report = one(&mut cache);
        let text = match args.json {
            true => json(&report, false)?,
            false => report.text(),
        };
        print(&text)?;
        if report.is_bad() {
            bad.push(report.path);
        }
    }
    if bad.is_empty() {
        return Ok(());
    }
    bail!(
        "not all of {} is as it was written: mounts notice it when they read it, and fetch those bytes from S3 again; look \
         at the disk (`dmesg`, `smartctl -a`), and start anew with `forebay cache format` if you like",
        bad.join(", ")
    )
}

/// What a check came to.
#[derive(Debug, Default, Serialize)]
struct Report {
    kind: &'static str,
    path: String,
    regions: u64,
    entries: u64,
    pages: u64,
    entry_bytes: u64,
    seconds: f64,
    wrong_pages: u64,
    unreadable_pages: u64,
    bad_entries: u64,
    /// Regions whose header is damaged: what lay in them is lost.
    damaged_regions: u64,
    /// Regions that were being opened when the daemon or the machine stopped: nothing is lost with them.
    unfinished_regions: u64,
    /// The first of them.
    bad: Vec<BadEntry>,
    /// Structures that are not as they should be.
    troubles: Vec<String>,
}

/// An entry with bad pages.
#[derive(Debug, Serialize)]
struct BadEntry {
    object: String,
    offset_bytes: u64,
    len_bytes: u32,
    region: u32,
    region_page: u32,
    wrong_pages: u64,
    unreadable_pages: u64,
}

impl Report {
    fn add(&mut self, region: &Region, entry: &EntryRecord, checked: Checked) {
        self.entries += 1;
        self.pages += checked.pages;
        self.entry_bytes += u64::from(entry.len_bytes);
        self.wrong_pages += checked.wrong;
        self.unreadable_pages += checked.unreadable;
        if !checked.is_bad() {
            return;
        }
        self.bad_entries += 1;
        if self.bad.len() < NAMED_MAX {
            let block = u64::from(entry.block.index) * BLOCK_BYTES as u64;
            self.bad.push(BadEntry {
                object: format!("{:032x}", entry.block.object.0),
                offset_bytes: block + u64::from(entry.first_page) * PAGE_BYTES as u64,
                len_bytes: entry.len_bytes,
                region: region.number,
                region_page: entry.region_page,
                wrong_pages: checked.wrong,
                unreadable_pages: checked.unreadable,
            });
        }
    }

    /// Bytes of data that were read.
    fn read_bytes(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }

    fn count(&mut self, region: &Region) {
        match region.state {
            State::Sealed | State::Open => self.regions += 1,
            State::Damaged => self.damaged_regions += 1,
            State::Unfinished => self.unfinished_regions += 1,
            State::Free | State::Unreadable => {}
        }
        let number = region.number;
        let named = region.troubles.iter();
        let named = named.map(|trouble| format!("region {number}: {trouble}"));
        self.troubles.extend(named);
    }

    fn is_bad(&self) -> bool {
        self.bad_entries > 0 || !self.troubles.is_empty()
    }

    fn rate(&self) -> Bytes {
        Bytes((self.read_bytes() as f64 / self.seconds.max(1e-9)) as u64)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for bad in &self.bad {
            text.push_str(&format!(
                "object {} from {} length {} (region {} page {}): {} wrong pages, {} unreadable\n",
                bad.object,
                bad.offset_bytes,
                bad.len_bytes,
                bad.region,
                bad.region_page,
                bad.wrong_pages,
                bad.unreadable_pages
            ));
        }
        let unnamed = self.bad_entries - self.bad.len() as u64;
        if unnamed > 0 {
            text.push_str(&format!("and {unnamed} more entries\n"));
        }
        for trouble in &self.troubles {
            text.push_str(&format!("{trouble}\n"));
        }
        if self.unfinished_regions > 0 {
            text.push_str(&format!(
                "{} regions were being opened when the daemon or the machine stopped: nothing is lost with them\n",
                self.unfinished_regions
            ));
        }
        let took = Duration::try_from_secs_f64(self.seconds).unwrap_or_default();
        text.push_str(&format!(
            "{}: {} entries with {} in {} regions, {} pages checked in {} ({}/s): {}\n",
            self.path,
            self.entries,
            Bytes(self.entry_bytes),
            self.regions,
            self.pages,
            show_duration(took),
            self.rate(),
            match self.is_bad() {
                false => "all right".into(),
                true => format!(
                    "{} entries are bad, with {} wrong and {} unreadable pages; {} structures are bad",
                    self.bad_entries,
                    self.wrong_pages,
                    self.unreadable_pages,
                    self.troubles.len()
                ),
            }
        ));
        text
    }
}

fn one(cache: &mut Looked) -> Report {
    let geometry = *cache.scanner.geometry();
    let mut report = Report {
        kind: "cache",
        path: cache.place.log_path().display().to_string(),
        ..Report::default()
    };
    let start = Instant::now();
    let mut progress = Progress::start();
    // First what there is to read, for an honest bar; it is little beside the data.
    let mut total_pages = 0;
    for number in 0..geometry.regions {
        let region = cache.scanner.region(number, false);
        let pages = region.entries.iter().map(|entry| u64::from(entry.pages()));
        total_pages += pages.sum::<u64>();
        progress.tables(u64::from(number) + 1, u64::from(geometry.regions));
    }
    progress.begin(total_pages * PAGE_BYTES as u64);
    for number in 0..geometry.regions {
        let region = cache.scanner.region(number, true);
        report.count(&region);
        cache.scanner.check(&region, |entry, checked| {
            report.add(&region, entry, checked);
            progress.data(report.read_bytes(), report.bad_entries);
        });
        report.seconds = start.elapsed().as_secs_f64();
    }
    progress.end();
    report
}

#[cfg(test)]
mod tests {
    use forebay_engine::identity::{BlockId, ObjectId};

    use super::*;

    fn entry(index: u32) -> EntryRecord {
        EntryRecord {
            block: BlockId {
                object: ObjectId(0xabc),
                index,
            },
            first_page: 2,
            len_bytes: 5000,
            region_page: 7,
            pinned: false,
            hits: 0,
        }
    }

    #[test]
    fn bad_entries_are_named_up_to_a_bound() {
        let region = Region {
            number: 3,
            state: State::Sealed,
            header: None,
            entries: Vec::new(),
            checksums: Vec::new(),
            troubles: Vec::new(),
        };
        let mut report = Report {
            path: "/c/blocks".into(),
            seconds: 1.0,
            ..Report::default()
        };
        let good = Checked {
            pages: 2,
            ..Checked::default()
        };
        report.add(&region, &entry(0), good);
        assert!(!report.is_bad() && report.text().contains("all right"));
        for index in 0..NAMED_MAX as u32 + 5 {
            report.add(&region, &entry(index), Checked { wrong: 1, ..good });
        }
        assert_eq!((report.bad.len(), report.bad_entries), (NAMED_MAX, 1005));
        let text = report.text();
        for part in [
            "object 00000000000000000000000000000abc from 8192 length 5000 (region 3 page 7): 1 wrong",
            "and 5 more entries",
            "1005 entries are bad, with 1005 wrong and 0 unreadable pages; 0 structures are bad",
        ] {
            assert!(
                text.contains(part),
                "{part} in {}",
                &text[text.len() - 300..]
            );
        }
    }
}
