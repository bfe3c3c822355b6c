//! `spdk-guest`: reads by the engine's disk tier (index, device; no checks) from an NVMe controller that SPDK drives, against SPDK's own
//! tool and against fio by the kernel's driver. The controller goes from one driver to the other between turns. Without a
//! device that may be overwritten it is measured on an emulated one, in a guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_cli::device::binding;
use forebay_cli::device::controller::{Controller, Sysfs};
use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::LogId;
use forebay_nvme_spdk::{Environment, EnvironmentOptions, Namespace, OpenOptions, PciAddress};

use crate::cpus;
use crate::disk::file::{self, Opening};
use crate::disk::load::{self, Blocks, Order, Reads};
use crate::fio::{self, Access, Engine, Until};
use crate::guest::{self, Errand};
use crate::layers::noise_file;
use crate::run::Run;
use crate::samples::{Part, Target};
use crate::spdk_perf;
use crate::turns::{self, Measured, Player, Side};

const BLOCK_BYTES: usize = 4 << 20;
/// What is read at most; of a smaller device three fourths.
const DATA_BYTES_MAX: u64 = 4 << 30;
const DEPTH: usize = 32;
const ARENA_BYTES: usize = 64 << 20;
/// Fills that are not settled yet.
const FILLING_BYTES: usize = 16 << 20;
/// Huge pages of 2 MiB: for our buffers and SPDK's own memory, or for the tool's.
const HUGE_PAGES: u64 = 224;
/// The kernel's driver shows a namespace by then.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// Measures: here when a device is named that may be overwritten, else in the guest.
pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    // No guest is booted for what would not be measured.
    println!("  yardstick: {}", fio::version()?);
    let tool = fs::canonicalize(spdk_perf::program()?).context("spdk_nvme_perf")?;
    let Some(node) = &run.nvme.device else {
        let errand = Errand {
            figure: "spdk-guest",
            arguments: vec!["--overwrite-nvme".into()],
            environment: vec![(spdk_perf::VARIABLE, tool.into())],
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
    println!("  everything on {device} is lost");
    let _pages = HugePages::take()?;
    let moved = Moved(controller_of(node)?.address);
    let parts = Bench::fill(run, &moved)?.parts();
    moved.to_kernel()?;
    parts
}

/// The controller of the kernel's that has a namespace: `/dev/nvme0n1` or `/dev/ng0n1`.
fn controller_of(node: &Path) -> Result<Controller> {
    let name = node.file_name().unwrap_or_default().to_string_lossy();
    let block = match name.strip_prefix("ng") {
        Some(rest) => format!("nvme{rest}"),
        None => name.into_owned(),
    };
    let all = Sysfs::here().controllers()?;
    let found = all.into_iter().find(|one| one.blocks.contains(&block));
    let found = found.with_context(|| {
        format!(
            "no NVMe controller on PCI has {}: `forebay device list` shows them",
            node.display()
        )
    })?;
    ensure!(
        found.blocks.len() == 1,
        "{} has several namespaces ({}), and all would go: this figure wants a controller with one",
        found.address,
        found.blocks.join(", ")
    );
    Ok(found)
}

/// Huge pages, as many as are needed; the machine has what it had before when this is dropped.
struct HugePages {
    before: Option<u64>,
}

const NR_HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    fn take() -> Result<Self> {
        let count = |text: String| text.trim().parse::<u64>().ok();
        let read = |path: &str| fs::read_to_string(path).ok().and_then(count);
        let free = read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").unwrap_or(0);
        let mut taken = Self { before: None };
        if free < HUGE_PAGES {
            let before = read(NR_HUGE_PAGES).context("the kernel has no huge pages")?;
            let wanted = before + HUGE_PAGES - free;
            fs::write(NR_HUGE_PAGES, wanted.to_string())
                .with_context(|| format!("root is needed: cannot reserve {wanted} huge pages"))?;
            taken.before = Some(before);
            let now = read(NR_HUGE_PAGES).unwrap_or(0);
            ensure!(
                now >= wanted,
                "the kernel has no {wanted} huge pages in one piece, only {now}: reserve them when the machine starts"
            );
        }
        mount_huge_pages()?;
        Ok(taken)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = fs::write(NR_HUGE_PAGES, before.to_string());
        }
    }
}

/// SPDK's tool wants the file system, which systemd mounts, and the guest has not.
fn mount_huge_pages() -> Result<()> {
    let mounts = fs::read_to_string("/proc/mounts").context("/proc is not there")?;
    if mounts.lines().any(|line| line.contains("hugetlbfs")) {
        return Ok(());
    }
    let at = "/dev/hugepages";
    fs::create_dir_all(at)?;
    let mut mount = Command::new("mount");
    let status = mount.args(["-t", "hugetlbfs", "none", at]).status()?;
    ensure!(status.success(), "cannot mount hugetlbfs at {at}: {status}");
    Ok(())
}

/// A controller that goes from driver to driver; with the kernel's again when this is dropped.
struct Moved(PciAddress);

impl Moved {
    fn look(&self) -> Result<Controller> {
        Sysfs::here().controller(self.0)
    }

    fn to_programs(&self) -> Result<()> {
        binding::bind(&Sysfs::here(), &[self.look()?]).map(drop)
    }

    /// Its block device then.
    fn to_kernel(&self) -> Result<PathBuf> {
        binding::unbind(&Sysfs::here(), &self.look()?)?;
        let start = Instant::now();
        loop {
            if let Some(block) = self.look()?.blocks.first() {
                let block = Path::new("/dev").join(block);
                if block.exists() {
                    return Ok(block);
                }
            }
            crate::interrupt::check()?;
            ensure!(
                start.elapsed() < SHOWN_WITHIN,
                "the kernel shows no namespace of {}",
                self.0
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        if let Err(error) = self.to_kernel() {
            eprintln!("{} was not given back to the kernel: {error:#}", self.0);
        }
    }
}

/// A log on the device, and who reads it.
struct Bench<'a> {
    run: &'a Run,
    moved: &'a Moved,
    environment: Arc<Environment>,
    log: LogId,
    opening: Opening,
    blocks: Blocks,
    capacity_bytes: u64,
    /// Where the log's regions begin.
    begin: u64,
    cpu: usize,
}

impl<'a> Bench<'a> {
    /// All of the device is written: SPDK's tool reads all of it.
    fn fill(run: &'a Run, moved: &'a Moved) -> Result<Self> {
        let block = moved.to_kernel()?;
        let name = block.file_name().unwrap_or_default().to_string_lossy();
        let capacity_bytes = Sysfs::here().block_bytes(&name);
        noise_file(&block, capacity_bytes)?;
        let count = (capacity_bytes / 4 * 3).min(DATA_BYTES_MAX) / BLOCK_BYTES as u64;
        let blocks = Blocks {
            count,
            len_bytes: BLOCK_BYTES,
        };
        moved.to_programs()?;
        let [_, cpu] = cpus::two()?;
        let bench = Self {
            run,
            moved,
            environment: Environment::start(&EnvironmentOptions { pci: vec![moved.0] })?,
            log: file::new_log(),
            opening: Opening {
                data_bytes: count * BLOCK_BYTES as u64,
                entries: 4 * count as usize,
                arena_bytes: ARENA_BYTES,
                verify: false,
            },
            blocks,
            capacity_bytes,
            begin: Geometry::choose(capacity_bytes, 1)?.offset_bytes(0),
            cpu,
        };
        let mut driver = bench.opening.open_spdk(&bench.open()?, bench.log)?;
        load::fill(&mut driver, blocks, FILLING_BYTES)?;
        drop(driver);
        Ok(bench)
    }

    fn open(&self) -> Result<Arc<Namespace>> {
        let address = format!("pci:{}", self.moved.0).parse()?;
        let options = OpenOptions::default();
        Ok(Namespace::open(&self.environment, &address, &options)?)
    }

    fn ours(&self, len_bytes: usize, seed: u64) -> Result<Measured> {
        self.moved.to_programs()?;
        cpus::pinned(Some(self.cpu), || {
            // Opened for each turn: only one side has the device at a time.
            let mut driver = self.opening.open_spdk(&self.open()?, self.log)?;
            load::touch_each(&mut driver, self.blocks)?;
            let reads = Reads {
                blocks: self.blocks,
                len_bytes,
                depth: DEPTH,
                order: Order::Random(seed),
                span: self.run.span(),
            };
            load::read(&mut driver, &reads)
        })
    }

    fn tool(&self, len_bytes: usize) -> Result<Measured> {
        self.moved.to_programs()?;
        spdk_perf::run(&spdk_perf::Job {
            transport_id: &spdk_perf::pci(&self.moved.0.to_string()),
            random: true,
            block_bytes: len_bytes,
            depth: DEPTH,
            span: self.run.span(),
            cpu: self.cpu,
        })
    }

    fn fio(&self, len_bytes: usize, seed: u64) -> Result<Measured> {
        let block = self.moved.to_kernel()?;
        fio::run(&fio::Job {
            file: &block,
            engine: Engine::Uring,
            access: Access::RandomReads,
            block_bytes: len_bytes as u64,
            depth: DEPTH,
            extent: Some((self.begin, self.opening.data_bytes)),
            until: Until::Elapsed(self.run.span()),
            sync_every_bytes: None,
            fixed: true,
            lean: false,
            seed,
        })
    }

    fn parts(&self) -> Result<Vec<Part>> {
        let short = self.of_length(4 << 10, ["4KiB", "4KiB-kernel"])?;
        let long = self.of_length(128 << 10, ["128KiB", "128KiB-kernel"])?;
        Ok(short.into_iter().chain(long).collect())
    }

    fn of_length(&self, len_bytes: usize, names: [&'static str; 2]) -> Result<Vec<Part>> {
        let sides = turns::take_turns(
            self.run,
            vec![
                Player::new("Forebay", |seed| self.ours(len_bytes, seed)),
                Player::new("spdk_nvme_perf", |_| self.tool(len_bytes)),
                Player::new("fio", |seed| self.fio(len_bytes, seed)),
            ],
        )?;
        let targets = [Target::AtLeast(0.95), Target::AtLeast(1.2)];
        let parts = names.into_iter().zip(targets).zip(&sides[1..]);
        Ok(parts
            .map(|((name, target), other)| self.part(name, target, [&sides[0], other]))
            .collect())
    }

    fn part(&self, name: &'static str, target: Target, [ours, other]: [&Side; 2]) -> Part {
        let mut part = turns::ratio(name, target, (ours, other), "IOPS", Measured::iops);
        let cpu = |side: &Side| side.words("ns", 0, Measured::cpu_ns_per_io);
        part.detail += &format!(
            "; processor time per read (who polls uses all of a processor): {}, {}; {DEPTH} under way, verification off; {} MiB are read, by SPDK's tool \
             all {} MiB of the device, written before; {} of {}",
            cpu(ours),
            cpu(other),
            self.opening.data_bytes >> 20,
            self.capacity_bytes >> 20,
            self.moved.0,
            guest::kernel()
        );
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Nvme;

    #[test]
    fn a_node_that_is_no_namespace_is_refused() {
        for node in ["/dev/null", "/", "/dev/ng"] {
            let refused = controller_of(Path::new(node)).expect_err("it is refused");
            let said = format!("{refused:#}");
            assert!(said.contains("PCI"), "{node}: {said}");
        }
    }

    #[test]
    fn nothing_is_overwritten_by_the_name_alone() {
        let Ok(_) = spdk_perf::program() else {
            println!("SKIPPED: spdk_nvme_perf is not here (FOREBAY_SPDK_PERF)");
            return;
        };
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
