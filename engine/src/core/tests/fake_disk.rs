//! A disk tier without a device, for as long as the real one is not there.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use crate::checksum::BlockSeed;
use crate::disk::*;
use crate::identity::BlockId;
use crate::limits::*;
use crate::ports::{BlockDevice, Time};

#[derive(Debug, Default)]
pub struct Media {
    entries: BTreeMap<(BlockId, u32), (Vec<u8>, Vec<u32>)>,
    pub fail_reads: bool,
    pub hold_reads: bool,
    pub recovering: bool,
    pub reads: Vec<(u32, usize)>,
    pub touches: usize,
    pub kept_bytes: usize,
    pub queue_max: usize,
}

impl Media {
    pub fn flip(&mut self) {
        for (bytes, _) in self.entries.values_mut() {
            bytes
                .iter_mut()
                .step_by(PAGE_BYTES)
                .for_each(|byte| *byte ^= 1);
        }
    }
    pub fn entries(&self) -> usize {
        self.entries.len()
    }
}

#[derive(Debug)]
pub struct Disk<D> {
    media: Option<Rc<RefCell<Media>>>,
    staged: Vec<Fill>,
    close_at: Time,
    reads: VecDeque<(DiskRead, Time)>,
    events: VecDeque<DiskEvent>,
    device: PhantomData<D>,
}

impl<D: BlockDevice> Disk<D> {
    pub fn absent() -> Self {
        Self {
            media: None,
            staged: Vec::new(),
            close_at: Time::NEVER,
            reads: VecDeque::new(),
            events: VecDeque::new(),
            device: PhantomData,
        }
    }
    pub fn on(media: Rc<RefCell<Media>>) -> Self {
        Self {
            media: Some(media),
            ..Self::absent()
        }
    }
    pub fn stats(&self) -> DiskStats {
        DiskStats::default()
    }
    pub fn is_present(&self) -> bool {
        self.media.is_some()
    }
    pub fn is_recovering(&self) -> bool {
        self.media.as_ref().is_some_and(|m| m.borrow().recovering)
    }
    pub fn present(&self, block: BlockId, block_bytes: u32) -> u64 {
        let pages = block_bytes.div_ceil(PAGE_BYTES as u32);
        (0..64)
            .filter(|sub| {
                let first = sub * PAGES_PER_SUB_BLOCK as u32;
                let end = (first + PAGES_PER_SUB_BLOCK as u32).min(pages);
                first < end && self.extent(block, first).is_some_and(|e| e.end >= end)
            })
            .fold(0, |all, sub| all | 1 << sub)
    }
    pub fn extent(&self, block: BlockId, page: u32) -> Option<Range<u32>> {
        let media = self.media.as_ref()?.borrow();
        let ((_, first), (_, sums)) = media
            .entries
            .range((block, 0)..=(block, page))
            .next_back()?;
        let end = first + sums.len() as u32;
        (end > page).then_some(page..end)
    }
    pub fn read(&mut self, now: Time, read: DiskRead) -> Result<(), DiskRead> {
        let media = self.media.as_ref().unwrap();
        if media.borrow().queue_max > 0 && self.reads.len() >= media.borrow().queue_max {
            return Err(read);
        }
        media
            .borrow_mut()
            .reads
            .push((read.first_page, read.lease.len()));
        self.reads.push_back((read, now));
        Ok(())
    }
    pub fn keep(&mut self, now: Time, fill: Fill) -> bool {
        self.media.as_ref().unwrap().borrow_mut().kept_bytes += fill.bytes.len();
        if self.staged.is_empty() {
            self.close_at = now + Duration::from_millis(BATCH_DELAY_MS);
        }
        self.staged.push(fill);
        true
    }
    pub fn touch(&mut self, _: BlockId) {
        if let Some(media) = &self.media {
            media.borrow_mut().touches += 1;
        }
    }
    pub fn was_evicted(&self, _: BlockId) -> bool {
        false
    }
    pub fn settle(&mut self) {
        self.close_at = Time::default();
    }
    pub fn is_quiet(&self) -> bool {
        self.staged.is_empty() && self.reads.is_empty() && self.events.is_empty()
    }
    pub fn turn(&mut self, now: Time, _: &mut impl Buffers) -> DiskTurn {
        let Some(media) = self.media.clone() else {
            return DiskTurn {
                progressed: false,
                wake_at: Time::NEVER,
            };
        };
        let mut media = media.borrow_mut();
        let mut progressed = false;
        if self.close_at <= now && !self.staged.is_empty() {
            progressed = true;
            self.write(&mut media);
        }
        let mut wake_at = if self.staged.is_empty() {
            Time::NEVER
        } else {
            self.close_at
        };
        let mut forgotten = Vec::new();
        for (mut read, since) in std::mem::take(&mut self.reads) {
            let limit = since + Duration::from_millis(DEVICE_READ_MS_MAX);
            if media.hold_reads && now < limit {
                wake_at = wake_at.min(limit);
                self.reads.push_back((read, since));
                continue;
            }
            progressed = true;
            let key = media
                .entries
                .range((read.block, 0)..=(read.block, read.first_page))
                .next_back()
                .map(|(key, _)| *key)
                .filter(|key| key.0 == read.block);
            let ticket = read.ticket;
            let missed = |why| DiskEvent::Missed { ticket, why };
            let event = match key {
                None => missed(DiskMiss::Reclaimed),
                Some(key) if media.hold_reads || media.fail_reads => {
                    forgotten.push(key);
                    missed(if media.hold_reads {
                        DiskMiss::Slow
                    } else {
                        DiskMiss::Device
                    })
                }
                Some(key) => {
                    let (bytes, sums) = &media.entries[&key];
                    let start = (read.first_page - key.1) as usize;
                    let pages = read.lease.len() / PAGE_BYTES;
                    let from = start * PAGE_BYTES;
                    let to = bytes.len().min(from + read.lease.len());
                    read.lease.bytes_mut().fill(0xee);
                    read.lease.bytes_mut()[..to - from].copy_from_slice(&bytes[from..to]);
                    let right = &sums[start..start + pages];
                    let is = BlockSeed::of(read.block)
                        .checksums(read.first_page, &read.lease.bytes()[..to - from]);
                    if *is == *right {
                        DiskEvent::Read {
                            ticket,
                            lease: read.lease,
                            checksums: right.into(),
                        }
                    } else {
                        forgotten.push(key);
                        missed(DiskMiss::Checksum)
                    }
                }
            };
            self.events.push_back(event);
        }
        for key in forgotten {
            media.entries.remove(&key);
        }
        DiskTurn {
            progressed,
            wake_at,
        }
    }
    fn write(&mut self, media: &mut Media) {
        let mut open: Option<(BlockId, u32, Vec<u8>, Vec<u32>)> = None;
        let mut done = Vec::new();
        for fill in self.staged.drain(..) {
            self.events.push_back(DiskEvent::Settled {
                block: fill.block,
                first_page: fill.first_page,
                pages: fill.checksums.len() as u32,
            });
            match &mut open {
                Some((block, first, bytes, sums))
                    if *block == fill.block && *first + sums.len() as u32 == fill.first_page =>
                {
                    bytes.extend_from_slice(&fill.bytes);
                    sums.extend_from_slice(&fill.checksums);
                }
                _ => done.extend(open.replace((
                    fill.block,
                    fill.first_page,
                    fill.bytes.to_vec(),
                    fill.checksums.to_vec(),
                ))),
            }
        }
        for (block, first, bytes, sums) in done.into_iter().chain(open) {
            let end = first + sums.len() as u32;
            media.entries.retain(|(id, at), (_, old)| {
                *id != block || *at < first || *at + old.len() as u32 > end
            });
            media.entries.insert((block, first), (bytes, sums));
        }
    }
    pub fn next_event(&mut self) -> Option<DiskEvent> {
        self.events.pop_front()
    }
}
