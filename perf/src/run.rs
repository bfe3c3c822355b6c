//! How much is measured, and where files are put.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::network::port::Port;

/// Where RDMA is measured.
#[derive(Clone, Debug, Default)]
pub struct Rdma {
    /// On this port; none: in a guest.
    pub port: Option<Port>,
    /// A folder that holds perftest; none: it is installed.
    pub perftest: Option<PathBuf>,
}

/// Where NVMe commands are measured.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Nvme {
    /// passthrough: measure on this NVMe namespace of this machine (`/dev/ngXnY`). Its contents are LOST, so it is done only
    /// together with --overwrite-nvme. Default: on an emulated one, in a guest that is booted for it.
    #[arg(
        id = "nvme-device",
        long = "nvme-device",
        global = true,
        env = "FOREBAY_NVME_DEVICE"
    )]
    pub device: Option<PathBuf>,
    /// device:on=spdk: measure on this namespace, by its PCI address (`pci:0000:5e:00.0`) or SPDK's transport id. Its contents are
    /// LOST, so it is done only together with --overwrite-nvme.
    #[arg(id = "spdk-device", long = "spdk-device", global = true)]
    pub spdk: Option<String>,
    /// Everything on the namespace that --nvme-device or --spdk-device names may be lost.
    #[arg(id = "overwrite-nvme", long = "overwrite-nvme", global = true)]
    pub overwrite: bool,
}

/// One run of the harness.
#[derive(Clone, Debug)]
pub struct Run {
    /// Three repetitions of short spans, to see that a figure works. Says so wherever it is shown.
    pub short: bool,
    /// Where the files lie that the disk figures read: a directory on the disk to be measured.
    pub dir: PathBuf,
    /// Where RDMA is measured.
    pub rdma: Rdma,
    /// Where NVMe commands are measured.
    pub nvme: Nvme,
}

impl Run {
    /// Medians of so many count.
    pub fn repetitions(&self) -> usize {
        if self.short { 3 } else { 5 }
    }

    /// One measurement of one side takes at least this.
    pub fn span(&self) -> Duration {
        Duration::from_secs(if self.short { 1 } else { 3 })
    }

    /// `whole`, or in a short run a fourth of it.
    pub fn amount(&self, whole: u64) -> u64 {
        if self.short { whole / 4 } else { whole }
    }

    /// A directory of its own on the disk to be measured; gone when dropped.
    ///
    /// # Errors
    /// When it cannot be made, or lies in memory.
    pub fn scratch(&self) -> Result<TempDir> {
        let dir = self.scratch_anywhere()?;
        anyhow::ensure!(
            !is_in_memory(dir.path())?,
            "{} is in memory, not on a disk: give --dir DIR",
            self.dir.display()
        );
        Ok(dir)
    }

    /// The same where nothing is timed, so that it may lie in memory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn scratch_anywhere(&self) -> Result<TempDir> {
        std::fs::create_dir_all(&self.dir)
            .with_context(|| format!("cannot make {}", self.dir.display()))?;
        let dir = tempfile::Builder::new()
            .prefix("forebay-perf-")
            .tempdir_in(&self.dir)?;
        Ok(dir)
    }
}

fn is_in_memory(path: &Path) -> Result<bool> {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    let kind = rustix::fs::statfs(path)?.f_type as u32;
    Ok(kind == TMPFS || kind == RAMFS)
}

/// Drops what the kernel caches of files: pages, names, inodes.
///
/// # Errors
/// Without root.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .context("cannot drop the page cache (this figure needs root)")
}
