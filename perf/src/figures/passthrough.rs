//! `passthrough`: reads by the engine's disk tier (index, device; no checks) as NVMe commands through io_uring, against fio's
//! commands to the same namespace, and against the same tier by the kernel's block layer. Without a device that may be
//! overwritten it is measured on an emulated one, in a guest.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::LogId;

use crate::disk::file::{self, Opening};
use crate::disk::load::{self, Blocks, Order, Reads};
use crate::fio::{self, Access, Engine, Job, Until};
use crate::guest::{self, Errand};
use crate::run::Run;
use crate::samples::{Part, Target};
use crate::turns::{self, Measured, Player, Side};

const BLOCK_BYTES: usize = 4 << 20;
/// What is read, on a device that has twice as much.
const DATA_BYTES_MAX: u64 = 4 << 30;
const DEPTH: usize = 32;
const ARENA_BYTES: usize = 64 << 20;
/// Fills that are not settled yet.
const FILLING_BYTES: usize = 16 << 20;
/// From this Linux on commands read and write parts of registered buffers.
const PARTS_SINCE: (u32, u32) = (6, 12);

/// Measures: here when a device is named that may be overwritten, else in the guest.
pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    let Some(node) = &run.nvme.device else {
        // No guest is booted for what would not be measured.
        fio::version()?;
        let errand = Errand {
            figure: "passthrough",
            arguments: vec!["--overwrite-nvme".into()],
            environment: Vec::new(),
            instead: "name an NVMe namespace of this machine whose contents may be lost (--nvme-device)",
        };
        return guest::measure(&errand, run);
    };
    let device = node.display();
    ensure!(
        run.nvme.overwrite,
        "EVERYTHING on {device} WOULD BE LOST: add --overwrite-nvme when that is meant, or name no device (--nvme-device, \
         FOREBAY_NVME_DEVICE) to measure in a guest"
    );
    println!("  yardstick: {}", fio::version()?);
    println!("  everything on {device} is lost");
    Bench::fill(run, node)?.parts()
}

/// A log on the device, and who reads it.
struct Bench<'a> {
    run: &'a Run,
    node: &'a Path,
    block: PathBuf,
    log: LogId,
    opening: Opening,
    blocks: Blocks,
    /// Where the log's regions begin.
    begin: u64,
}

impl<'a> Bench<'a> {
    fn fill(run: &'a Run, node: &'a Path) -> Result<Self> {
        let capacity_bytes = {
            let opened = file::device(node)?;
            ensure!(
                opened.is_passthrough(),
                "{} is no namespace's character device (/dev/ngXnY)",
                node.display()
            );
            opened.geometry().capacity_bytes
        };
        let count = run.amount((capacity_bytes / 2).min(DATA_BYTES_MAX)) / BLOCK_BYTES as u64;
        let blocks = Blocks {
            count,
            len_bytes: BLOCK_BYTES,
        };
        let bench = Self {
            run,
            node,
            block: forebay_nvme_uring::block_device_of(node).context("no block device")?,
            log: file::new_log(),
            opening: Opening {
                data_bytes: count * BLOCK_BYTES as u64,
                entries: 4 * count as usize,
                arena_bytes: ARENA_BYTES,
                verify: false,
            },
            blocks,
            begin: Geometry::choose(capacity_bytes, 1)?.offset_bytes(0),
        };
        let mut driver = bench.opening.open_device(node, bench.log)?;
        load::fill(&mut driver, blocks, FILLING_BYTES)?;
        Ok(bench)
    }

    fn ours(&self, path: &Path, len_bytes: usize, seed: u64) -> Result<Measured> {
        // Opened for each turn: only one side has the device at a time.
        let mut driver = self.opening.open_device(path, self.log)?;
        load::touch_each(&mut driver, self.blocks)?;
        let reads = Reads {
            blocks: self.blocks,
            len_bytes,
            depth: DEPTH,
            order: Order::Random(seed),
            span: self.run.span(),
        };
        load::read(&mut driver, &reads)
    }

    fn fio(&self, fixed: bool, len_bytes: usize, seed: u64) -> Result<Measured> {
        fio::run(&Job {
            file: self.node,
            engine: Engine::NvmeCommands,
            access: Access::RandomReads,
            block_bytes: len_bytes as u64,
            depth: DEPTH,
            extent: Some((self.begin, self.opening.data_bytes)),
            until: Until::Elapsed(self.run.span()),
            sync_every_bytes: None,
            fixed,
            lean: false,
            seed,
        })
    }

    fn parts(&self) -> Result<Vec<Part>> {
        let wanted = Target::AtLeast(1.0);
        let short = self.of_length(4 << 10, wanted, ["4KiB", "4KiB-fixed", "4KiB-block"])?;
        let long = ["128KiB", "128KiB-fixed", "128KiB-block"];
        let long = self.of_length(128 << 10, Target::None, long)?;
        Ok(short.into_iter().chain(long).collect())
    }

    /// Reads of one length: against fio, against fio with registered buffers, against the block layer. The target is for the
    /// one of fio's two ways that has its buffers as ours are here.
    fn of_length(
        &self,
        len_bytes: usize,
        target: Target,
        names: [&'static str; 3],
    ) -> Result<Vec<Part>> {
        let sides = turns::take_turns(
            self.run,
            vec![
                Player::new("Forebay", |seed| self.ours(self.node, len_bytes, seed)),
                Player::new("fio", |seed| self.fio(false, len_bytes, seed)),
                Player::new("fio-fixed", |seed| self.fio(true, len_bytes, seed)),
                Player::new("Forebay-block", |seed| {
                    self.ours(&self.block, len_bytes, seed)
                }),
            ],
        )?;
        let targets = match commands_take_parts()? {
            false => [target, Target::None, Target::None],
            true => [Target::None, target, Target::None],
        };
        let parts = names.into_iter().zip(targets).zip(&sides[1..]);
        Ok(parts
            .map(|((name, target), other)| self.part(name, target, [&sides[0], other]))
            .collect())
    }

    fn part(&self, name: &'static str, target: Target, [ours, other]: [&Side; 2]) -> Part {
        let mut part = turns::ratio(name, target, (ours, other), "IOPS", Measured::iops);
        let cpu = |side: &Side| side.words("ns", 0, Measured::cpu_ns_per_io);
        part.detail += &format!(
            "; processor time per read: {}, {}; {DEPTH} under way; {} of {}",
            cpu(ours),
            cpu(other),
            self.node.display(),
            guest::kernel()
        );
        part
    }
}

/// Whether this kernel's NVMe commands take parts of registered buffers, as ours are.
fn commands_take_parts() -> Result<bool> {
    let release = guest::kernel();
    match version(&release) {
        Some(version) => Ok(version >= PARTS_SINCE),
        None => bail!("{release}: not a version"),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Nvme;

    #[test]
    fn kernels_are_told_apart() {
        assert_eq!(version("Linux 6.1.0-57-amd64"), Some((6, 1)));
        assert_eq!(version("Linux 6.12.43+deb13"), Some((6, 12)));
        assert_eq!(version("Linux "), None);
        assert!((6, 2) < PARTS_SINCE && (7, 0) > PARTS_SINCE);
    }

    #[test]
    fn nothing_is_overwritten_by_the_name_alone() {
        let run = Run {
            short: true,
            dir: "/nowhere".into(),
            rdma: Default::default(),
            nvme: Nvme {
                device: Some("/dev/null".into()),
                ..Nvme::default()
            },
        };
        let refused = measure(&run).expect_err("it is refused");
        assert!(refused.to_string().contains("LOST"), "{refused:#}");
    }
}
