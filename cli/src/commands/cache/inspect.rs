//! `forebay cache inspect`: what a cache on disk is, and what lies in it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use forebay_engine::disk::layout::{EntryRecord, FORMAT_VERSION, Queue};
use forebay_engine::limits::{BLOCK_BYTES, PAGE_BYTES};
use serde::Serialize;

use super::{Looked, find};
use crate::args::InspectArgs;
use crate::cache::opening::now_ns;
use crate::cache::scan::{Region, State};
use crate::output::{json, print, table};
use crate::units::{Bytes, show_duration};

/// Runs the command.
///
/// # Errors
/// When a cache cannot be read, or is none.
pub fn run(args: &InspectArgs) -> Result<()> {
    for (n, dir) in args.dirs.iter().enumerate() {
        let mut cache = Looked::at(find(dir, &args.node)?, None)?;
        if n > 0 && !args.json && !print("\n")? {
            return Ok(());
        }
        if !one(&mut cache, args)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Lines for regions and entries as they come, the summary last. False when nobody reads them any more.
fn one(cache: &mut Looked, args: &InspectArgs) -> Result<bool> {
    let mut found = Summary::of(cache);
    for number in 0..cache.scanner.geometry().regions {
        let region = cache.scanner.region(number, false);
        found.add(&region);
        let mut lines = String::new();
        if args.regions && region.state != State::Free {
            lines.push_str(&line(&RegionLine::of(&region), args.json)?);
        }
        if args.entries {
            for entry in &region.entries {
                lines.push_str(&line(&EntryLine::of(&region, entry), args.json)?);
            }
        }
        if !lines.is_empty() && !print(&lines)? {
            return Ok(false);
        }
    }
    let text = match args.json {
        true => json(&found, false)?,
        false => found.text(),
    };
    print(&text)
}

fn line<T: Serialize + std::fmt::Display>(value: &T, as_json: bool) -> Result<String> {
    match as_json {
        true => json(value, false),
        false => Ok(format!("{value}\n")),
    }
}

fn queue_name(queue: Queue) -> &'static str {
    match queue {
        Queue::Small => "small",
        Queue::Main => "main",
    }
}

/// Regions of one queue and state.
#[derive(Debug, Default, Serialize)]
struct Count {
    queue: &'static str,
    state: &'static str,
    regions: u64,
    entries: u64,
    entries_pinned: u64,
    entry_bytes: u64,
}

/// A cache as a whole.
#[derive(Debug, Serialize)]
struct Summary {
    kind: &'static str,
    path: String,
    format: u16,
    log: String,
    owner: String,
    created_unix_ns: u64,
    age_seconds: f64,
    held_by: Option<String>,
    size_bytes: u64,
    occupied_bytes: u64,
    sector_bytes: u32,
    direct: bool,
    region_bytes: u32,
    regions: u32,
    counts: Vec<Count>,
    troubles: Vec<String>,
    #[serde(skip)]
    by_kind: BTreeMap<(State, u8), usize>,
}

/// Troubles that are told; the others are counted by `verify`.
const TROUBLES_MAX: usize = 20;

impl Summary {
    fn of(cache: &Looked) -> Self {
        let (superblock, geometry) = (&cache.superblock, cache.scanner.geometry());
        let age_ns = now_ns().saturating_sub(superblock.created_ns);
        Self {
            kind: "cache",
            path: cache.place.log_path().display().to_string(),
            format: FORMAT_VERSION,
            log: format!("{:032x}", superblock.log.0),
            owner: superblock.owner.clone(),
            created_unix_ns: superblock.created_ns,
            age_seconds: age_ns as f64 / 1e9,
            held_by: cache.held_by.clone(),
            size_bytes: cache.medium.geometry().capacity_bytes,
            occupied_bytes: cache.medium.allocated_bytes(),
            sector_bytes: cache.medium.geometry().sector_bytes,
            direct: cache.medium.is_direct(),
            region_bytes: geometry.region_bytes,
            regions: geometry.regions,
            counts: Vec::new(),
            troubles: Vec::new(),
            by_kind: BTreeMap::new(),
        }
    }

    fn add(&mut self, region: &Region) {
        let queue = region.header.map(|header| header.queue);
        let key = (region.state, queue.map_or(0, |queue| queue as u8 + 1));
        let at = *self.by_kind.entry(key).or_insert_with(|| {
            self.counts.push(Count {
                queue: queue.map_or("-", queue_name),
                state: region.state.name(),
                ..Count::default()
            });
            self.counts.len() - 1
        });
        let pinned = region.entries.iter().filter(|entry| entry.pinned).count();
        let count = &mut self.counts[at];
        count.regions += 1;
        count.entries += region.entries.len() as u64;
        count.entries_pinned += pinned as u64;
        count.entry_bytes += region.entry_bytes();
        for trouble in &region.troubles {
            if self.troubles.len() < TROUBLES_MAX {
                self.troubles
                    .push(format!("region {}: {trouble}", region.number));
            }
        }
    }

    fn text(&self) -> String {
        let age = Duration::try_from_secs_f64(self.age_seconds).unwrap_or_default();
        let facts = [
            ("cache", self.path.clone()),
            ("owner", self.owner.clone()),
            (
                "made",
                format!(
                    "{} ago, format {}, log {}",
                    show_duration(age),
                    self.format,
                    self.log
                ),
            ),
            (
                "in use by",
                self.held_by.as_ref().map_or("nobody".into(), |holder| {
                    format!("{holder}; what changes meanwhile may look odd here")
                }),
            ),
            (
                "size",
                format!(
                    "{}, occupies {}; sectors of {} bytes{}",
                    Bytes(self.size_bytes),
                    Bytes(self.occupied_bytes),
                    self.sector_bytes,
                    if self.direct { "" } else { "; no O_DIRECT" }
                ),
            ),
            (
                "regions",
                format!("{} of {}", self.regions, Bytes(self.region_bytes.into())),
            ),
        ];
        let facts = facts.map(|(name, value)| vec![name.to_owned(), value]);
        let mut rows = vec![
            ["QUEUE", "STATE", "regions", "entries", "pinned", "bytes"]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows.extend(self.by_kind.values().map(|at| {
            let count = &self.counts[*at];
            vec![
                count.queue.into(),
                count.state.into(),
                count.regions.to_string(),
                count.entries.to_string(),
                count.entries_pinned.to_string(),
                Bytes(count.entry_bytes).to_string(),
            ]
        }));
        let mut text = table(&facts, &[]) + &table(&rows, &[2, 3, 4, 5]);
        for trouble in &self.troubles {
            text.push_str(&format!("{trouble}\n"));
        }
        text
    }
}

/// One region.
#[derive(Debug, Serialize)]
struct RegionLine {
    kind: &'static str,
    region: u32,
    state: &'static str,
    queue: &'static str,
    generation: u32,
    sequence: u64,
    core: u16,
    cores: u16,
    entries: usize,
    entry_bytes: u64,
}

impl RegionLine {
    fn of(region: &Region) -> Self {
        let header = region.header;
        Self {
            kind: "region",
            region: region.number,
            state: region.state.name(),
            queue: header.map_or("-", |header| queue_name(header.queue)),
            generation: header.map_or(0, |header| header.generation),
            sequence: header.map_or(0, |header| header.sequence),
            core: header.map_or(0, |header| header.core),
            cores: header.map_or(0, |header| header.cores),
            entries: region.entries.len(),
            entry_bytes: region.entry_bytes(),
        }
    }
}

impl std::fmt::Display for RegionLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "region {} {} {} generation {} core {} of {}: {} entries with {}",
            self.region,
            self.queue,
            self.state,
            self.generation,
            self.core,
            self.cores,
            self.entries,
            Bytes(self.entry_bytes)
        )
    }
}

/// One entry.
#[derive(Debug, Serialize)]
struct EntryLine {
    kind: &'static str,
    object: String,
    offset_bytes: u64,
    len_bytes: u32,
    region: u32,
    region_page: u32,
    pinned: bool,
    hits: u8,
}

impl EntryLine {
    fn of(region: &Region, entry: &EntryRecord) -> Self {
        let block = u64::from(entry.block.index) * BLOCK_BYTES as u64;
        Self {
            kind: "entry",
            object: format!("{:032x}", entry.block.object.0),
            offset_bytes: block + u64::from(entry.first_page) * PAGE_BYTES as u64,
            len_bytes: entry.len_bytes,
            region: region.number,
            region_page: entry.region_page,
            pinned: entry.pinned,
            hits: entry.hits,
        }
    }
}

impl std::fmt::Display for EntryLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "object {} from {} length {} in region {} page {} hits {}{}",
            self.object,
            self.offset_bytes,
            self.len_bytes,
            self.region,
            self.region_page,
            self.hits,
            if self.pinned { " pinned" } else { "" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_counted_by_queue_and_state() {
        let mut summary = Summary {
            kind: "cache",
            path: "/c/g/n/blocks".into(),
            format: 1,
            log: String::new(),
            owner: "g/n".into(),
            created_unix_ns: 0,
            age_seconds: 60.0,
            held_by: None,
            size_bytes: 1 << 30,
            occupied_bytes: 0,
            sector_bytes: 512,
            direct: true,
            region_bytes: 2 << 20,
            regions: 3,
            counts: Vec::new(),
            troubles: Vec::new(),
            by_kind: BTreeMap::new(),
        };
        let mut free = Region {
            number: 0,
            state: State::Free,
            header: None,
            entries: Vec::new(),
            checksums: Vec::new(),
            troubles: Vec::new(),
        };
        summary.add(&free);
        summary.add(&free);
        free.state = State::Unreadable;
        free.troubles.push("header: media error".into());
        summary.add(&free);
        let counted: Vec<_> = summary
            .counts
            .iter()
            .map(|count| (count.state, count.regions))
            .collect();
        assert_eq!(counted, [("free", 2), ("unreadable", 1)]);
        let text = summary.text();
        for part in ["1m0s ago", "nobody", "region 0: header: media error", "g/n"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let value = serde_json::to_value(&summary).unwrap();
        assert_eq!(value["counts"][0]["state"], "free");
        assert!(value.get("by_kind").is_none());
    }
}
