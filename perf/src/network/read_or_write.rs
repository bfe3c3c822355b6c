//! An experiment: who moves a block that lies in the owner's memory, the owner by RDMA WRITE, as members do, or the asker by
//! RDMA READ of a place that the owner tells? Two threads, each with a device object of its own; messages as long as
//! members' are; nothing else of the transport.
//!
//! | | WRITE | READ |
//! |---|---|---|
//! | asker | SEND of the request, with a place to write to | SEND of the request, which also gives back the block before it |
//! | owner | WRITE, SEND of the answer | SEND of the answer, with a place to read from |
//! | asker | | READ |
//!
//! That a READ's block is given back by the next request, not by a message of its own, is in favour of READ.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, anyhow, bail, ensure};
use forebay_transport_rdma::{
    Access, Batch, CompletionQueue, Device, MemoryRegion, PeerAddress, ProtectionDomain, QueuePair,
    QueuePairSize, RemoteSlice, Verbs, WorkKind,
};

use super::ours::Load;
use super::port::Port;
use crate::cpus;

/// Bytes of a request: what members send.
const REQUEST_BYTES: usize = 80;
/// Bytes of an answer without checksums.
const ANSWER_BYTES: usize = 32;
/// The checksums of a MiB, or the place to read from, fit.
const SLOT_BYTES: usize = ANSWER_BYTES + 4 * 256 + 16;
/// Blocks under way at most: their work fits a queue pair with members' room.
pub const DEPTH_MAX: usize = 32;
const SENDS: u32 = 128;
/// Before the measured span.
const WARM_UP: Duration = Duration::from_millis(300);
/// SoftRoCE was seen to stop for good.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Looks at an empty queue until the processor is offered to others.
const LOOKS: u32 = 64;

/// Where an RDMA device is reached.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its name.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// The entry of the port's table of GIDs.
    pub gid_index: u8,
    /// The processors of the owner and of the asker; none: wherever the kernel puts them.
    pub cpus: Option<[usize; 2]>,
}

impl Place {
    /// On a port.
    pub fn new(port: &Port, cpus: Option<[usize; 2]>) -> Place {
        Place {
            device: port.device.clone(),
            port: port.number,
            gid_index: port.gid_index,
            cpus,
        }
    }
}

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The owner.
    Write,
    /// The asker.
    Read,
}

/// What was reached.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Blocks in the span.
    pub blocks: u64,
    /// The span.
    pub span: Duration,
    /// Processor time of the asker's thread.
    pub asker: Duration,
    /// Processor time of the owner's thread.
    pub owner: Duration,
}

impl Reached {
    /// Blocks in a second.
    pub fn rate(&self) -> f64 {
        self.blocks as f64 / self.span.as_secs_f64()
    }
}

/// Both ways for the load's span each, and a line of JSON for each.
///
/// # Errors
/// When the device or a transfer fails.
pub fn turn(place: &Place, load: &Load) -> Result<()> {
    for way in [Way::Write, Way::Read] {
        let reached = run(place, way, load)?;
        let gib = reached.blocks as f64 * load.len_bytes as f64 / f64::from(1 << 30);
        let line = serde_json::json!({
            "way": format!("{way:?}").to_lowercase(),
            "blocks_per_s": reached.rate(),
            "mib_per_s": gib * 1024.0 / reached.span.as_secs_f64(),
            "asker_s_per_gib": reached.asker.as_secs_f64() / gib,
            "owner_s_per_gib": reached.owner.as_secs_f64() / gib,
        });
        println!("{line}");
    }
    Ok(())
}

/// Moves blocks one way for the load's span.
///
/// # Errors
/// When the device or a transfer fails, or a block came with other bytes.
pub fn run(place: &Place, way: Way, load: &Load) -> Result<Reached> {
    ensure!(
        (1..=DEPTH_MAX).contains(&load.depth) && load.len_bytes >= 8,
        "1 to {DEPTH_MAX} blocks under way, of 8 bytes and more"
    );
    let ended = [AtomicBool::new(false), AtomicBool::new(false)];
    let (to_owner, of_asker) = channel();
    let (to_asker, of_owner) = channel();
    thread::scope(|scope| {
        let ended = &ended;
        let owner = scope.spawn(move || {
            let cpu = place.cpus.map(|[owner, _]| owner);
            let worked = cpus::pinned(cpu, || {
                own(place, way, load, &to_asker, &of_asker, &ended[ASKER])
            });
            ended[OWNER].store(true, Ordering::Relaxed);
            worked
        });
        let cpu = place.cpus.map(|[_, asker]| asker);
        let asked = cpus::pinned(cpu, || ask(place, way, load, &to_owner, &of_owner, ended));
        ended[ASKER].store(true, Ordering::Relaxed);
        let owner = owner.join().map_err(|_| anyhow!("the owner panicked"))?;
        // The one who failed first says why.
        owner.and(asked)
    })
}

/// Ends, by which their threads tell that they have ended.
const ASKER: usize = 0;
const OWNER: usize = 1;

/// What one end tells the other: how it is reached, and its thread's place in `/proc`.
type Told = (PeerAddress, PathBuf);

struct End {
    // Before its memory: destroyed first.
    pair: QueuePair,
    queue: CompletionQueue,
    /// `DEPTH_MAX` slots for what comes, then as many for what goes.
    slots: MemoryRegion,
    /// The blocks, one after the other.
    blocks: MemoryRegion,
    batch: Batch,
    heard_at: Instant,
}

impl End {
    fn connected(
        place: &Place,
        load: &Load,
        access: Access,
        (to, from): (&Sender<Told>, &Receiver<Told>),
        fill: impl FnOnce(&MemoryRegion) -> Result<()>,
    ) -> Result<(End, PathBuf)> {
        let device: Device = Verbs::load()?.open(&place.device)?;
        let domain = ProtectionDomain::new(&device)?;
        let queue = CompletionQueue::new(&device, SENDS + DEPTH_MAX as u32)?;
        let size = QueuePairSize {
            sends: SENDS,
            receives: DEPTH_MAX as u32,
            elements: 1,
            inline_bytes: REQUEST_BYTES as u32,
        };
        let pair = QueuePair::new(&domain, &queue, &queue, size)?;
        let slots = MemoryRegion::new(&domain, 2 * DEPTH_MAX * SLOT_BYTES, Access::LOCAL)?;
        let blocks = MemoryRegion::new(&domain, load.depth * load.len_bytes, access)?;
        fill(&blocks)?;
        let at = device.port_address(place.port, place.gid_index)?;
        pair.prepare(&at, access)?;
        let mut end = End {
            pair,
            queue,
            slots,
            blocks,
            batch: Batch::default(),
            heard_at: Instant::now(),
        };
        for slot in 0..DEPTH_MAX {
            end.post_receive(slot)?;
        }
        let thread = Path::new("/proc").join(fs::read_link("/proc/thread-self")?);
        to.send((end.pair.address(&at, 7), thread))?;
        let told = from.recv_timeout(SILENCE_MAX);
        let (peer, thread) = told.context("the other end is gone")?;
        end.pair.connect(&at, 7, &peer)?;
        end.heard_at = Instant::now();
        Ok((end, thread))
    }

    fn post_receive(&mut self, slot: usize) -> Result<()> {
        let to = self.slots.slice(slot * SLOT_BYTES, SLOT_BYTES)?;
        Ok(self.pair.post_receive(slot as u64, to)?)
    }

    /// The next completions: their kinds, and the numbers of their work.
    fn completions(&mut self, out: &mut Vec<(WorkKind, usize)>) -> Result<()> {
        out.clear();
        let mut fault = None;
        self.queue.poll(|done| match done.outcome {
            Ok(completed) => out.push((completed.kind, done.work as usize)),
            Err(error) => fault = Some(error),
        })?;
        match fault {
            Some(fault) => bail!("work failed: {fault}"),
            None if out.is_empty() && self.heard_at.elapsed() > SILENCE_MAX => {
                bail!("nothing has completed for {SILENCE_MAX:?}")
            }
            None => Ok(()),
        }
    }

    fn message<const N: usize>(&self, slot: usize, offset_bytes: usize) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.slots
            .read_at(slot * SLOT_BYTES + offset_bytes, &mut bytes)?;
        Ok(bytes)
    }

    fn ring(&mut self) -> Result<()> {
        if !self.batch.is_empty() {
            self.batch.signal_last();
            self.pair.post_batch(&mut self.batch)?;
        }
        Ok(())
    }
}

/// Waits a little where nothing came.
fn pause(looks: &mut u32, empty: bool) {
    *looks = if empty { *looks + 1 } else { 0 };
    if *looks >= LOOKS {
        thread::yield_now();
    }
}

fn own(
    place: &Place,
    way: Way,
    load: &Load,
    to: &Sender<Told>,
    from: &Receiver<Told>,
    ended: &AtomicBool,
) -> Result<()> {
    let access = Access {
        remote_read: way == Way::Read,
        ..Access::LOCAL
    };
    let (mut end, _) = End::connected(place, load, access, (to, from), |blocks| {
        (0..load.depth).try_for_each(|tag| {
            Ok(blocks.write_at(tag * load.len_bytes, &pattern(tag, load.len_bytes))?)
        })
    })?;
    let pages = load.len_bytes.div_ceil(4096).min(256);
    let (mut came, mut looks) = (Vec::new(), 0);
    while !ended.load(Ordering::Relaxed) {
        end.completions(&mut came)?;
        for (kind, slot) in came.drain(..) {
            if kind != WorkKind::Receive {
                continue;
            }
            end.heard_at = Instant::now();
            let request: [u8; REQUEST_BYTES] = end.message(slot, 0)?;
            end.post_receive(slot)?;
            let tag = usize::from(request[0]) % load.depth;
            let block = (tag * load.len_bytes, load.len_bytes);
            let mut answer_bytes = ANSWER_BYTES + 4 * pages;
            let mut answer = [0; SLOT_BYTES];
            answer[0] = tag as u8;
            match way {
                Way::Write => {
                    end.batch
                        .write_at(0, &end.blocks, block, place_in(&request[64..]))?
                }
                Way::Read => {
                    let place = end.blocks.remote(block.0);
                    answer[answer_bytes..][..8].copy_from_slice(&place.address.to_le_bytes());
                    answer[answer_bytes + 8..][..4].copy_from_slice(&place.key.to_le_bytes());
                    answer_bytes += 16;
                }
            }
            let slot_bytes = (DEPTH_MAX + tag) * SLOT_BYTES;
            end.slots.write_at(slot_bytes, &answer[..answer_bytes])?;
            end.batch.send_at(0, &end.slots, slot_bytes, answer_bytes)?;
        }
        pause(&mut looks, end.batch.is_empty());
        end.ring()?;
    }
    Ok(())
}

/// The place that a message names.
fn place_in(bytes: &[u8]) -> RemoteSlice {
    let (address, rest) = bytes.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    let key = rest.first_chunk::<4>().copied().unwrap_or_default();
    RemoteSlice {
        address: u64::from_le_bytes(*address),
        key: u32::from_le_bytes(key),
    }
}

fn ask(
    place: &Place,
    way: Way,
    load: &Load,
    to: &Sender<Told>,
    from: &Receiver<Told>,
    ended: &[AtomicBool; 2],
) -> Result<Reached> {
    let access = Access {
        remote_write: way == Way::Write,
        ..Access::LOCAL
    };
    let (mut end, owner) = End::connected(place, load, access, (to, from), |_| Ok(()))?;
    for tag in 0..load.depth {
        request(&mut end, tag, load)?;
    }
    end.ring()?;
    let pages = load.len_bytes.div_ceil(4096).min(256);
    let begun = Instant::now();
    let (mut from_then, mut blocks) = (None, 0);
    let (mut came, mut looks) = (Vec::new(), 0);
    let used = || anyhow::Ok([used_by(Path::new("/proc/thread-self"))?, used_by(&owner)?]);
    let reached = loop {
        ensure!(!ended[OWNER].load(Ordering::Relaxed), "the owner has ended");
        end.completions(&mut came)?;
        for (kind, work) in came.drain(..) {
            let done = match (kind, way) {
                (WorkKind::Receive, _) => {
                    end.heard_at = Instant::now();
                    let tag = usize::from(end.message::<1>(work, 0)?[0]) % load.depth;
                    let place: [u8; 16] = end.message(work, ANSWER_BYTES + 4 * pages)?;
                    end.post_receive(work)?;
                    if way == Way::Read {
                        let block = (tag * load.len_bytes, load.len_bytes);
                        let place = place_in(&place);
                        end.batch.read_at(tag as u64, &end.blocks, block, place)?;
                        end.batch.signal_last();
                    }
                    (way == Way::Write).then_some(tag)
                }
                (WorkKind::Read, _) => Some(work),
                _ => None,
            };
            if let Some(tag) = done {
                blocks += 1;
                request(&mut end, tag, load)?;
            }
        }
        pause(&mut looks, end.batch.is_empty());
        end.ring()?;
        match from_then {
            None if begun.elapsed() >= WARM_UP && blocks > 0 => {
                from_then = Some((Instant::now(), used()?));
                blocks = 0;
            }
            Some((since, before)) if since.elapsed() >= load.span && blocks > 0 => {
                let [asker, owner] = used()?;
                break Reached {
                    blocks,
                    span: since.elapsed(),
                    asker: asker - before[ASKER],
                    owner: owner - before[OWNER],
                };
            }
            _ => {}
        }
    };
    // Its work under way would fail without this queue pair.
    ended[ASKER].store(true, Ordering::Relaxed);
    while !ended[OWNER].load(Ordering::Relaxed) {
        thread::yield_now();
    }
    for tag in 0..load.depth {
        let mut bytes = vec![0; load.len_bytes];
        end.blocks.read_at(tag * load.len_bytes, &mut bytes)?;
        ensure!(
            bytes == pattern(tag, load.len_bytes),
            "block {tag} came with other bytes"
        );
    }
    Ok(reached)
}

fn request(end: &mut End, tag: usize, load: &Load) -> Result<()> {
    let place = end.blocks.remote(tag * load.len_bytes);
    let mut message = [0; REQUEST_BYTES];
    message[0] = tag as u8;
    message[64..72].copy_from_slice(&place.address.to_le_bytes());
    message[72..76].copy_from_slice(&place.key.to_le_bytes());
    end.batch.send_inline(u64::MAX, &message);
    Ok(())
}

fn pattern(tag: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at / 8 + at + tag) as u8).collect()
}

/// Processor time of a thread, user and system.
fn used_by(thread: &Path) -> Result<Duration> {
    let path = thread.join("schedstat");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let first = text.split_whitespace().next();
    let used_ns = first.and_then(|word| word.parse().ok());
    let used_ns = used_ns.with_context(|| format!("{}: {text}", path.display()))?;
    Ok(Duration::from_nanos(used_ns))
}
