//! The figures: each measures something and says whether its target was reached.
//!
//! Targets are the project's, written down before anything was measured. A figure that misses its
//! target says `short`; neither the target nor the load is changed for that.

mod amplification;
mod compared;
mod device_4k;
mod device_seq;
mod engine_overhead;
mod fuse_disk;
mod fuse_null;
mod idle;
mod join;
mod one_fetch;
mod one_fetch_local;
mod passthrough;
mod rdma;
mod remote_share;
mod replacement;
mod restart;
#[cfg(feature = "spdk")]
mod spdk_guest;
#[cfg(feature = "spdk")]
mod spdk_tcp;
mod spread;
mod tcp;
mod versus_foyer;

use anyhow::{Result, bail};

use crate::run::Run;
use crate::samples::Part;

/// Repetitions; medians of these count.
const REPETITIONS: usize = 5;

/// Where SPDK is not found the program is built without it.
const WITHOUT_SPDK: &str = "this forebay-perf was built without SPDK: install SPDK so that pkg-config finds spdk_nvme and spdk_env_dpdk, and make \
     figure builds with it";

/// A figure by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Reads that hit the memory tier, against a null FUSE server.
    FuseNull,
    /// Origin bytes over bytes asked for.
    Amplification,
    /// Many readers of one cold object.
    OneFetchLocal,
    /// Processor time while idle, memory under load.
    Idle,
    /// Small reads from disk at random, against fio.
    Device4k,
    /// Long reads and fills, against fio.
    DeviceSeq,
    /// Reads of what is on disk through the mount, against fio and the local file system.
    FuseDisk,
    /// Misses and write amplification of the region log, against S3-FIFO and LRU.
    MissRatio,
    /// Hits when the data is twice the cache.
    Overflow,
    /// What recovery costs.
    Restart,
    /// Hits from disk, against foyer's block engine.
    Foyer,
    /// Long fetches from a peer over TCP, against iperf3.
    Tcp1m,
    /// Short fetches from a peer over TCP, against UCX.
    Tcp4k,
    /// Blocks from a peer over RDMA, against perftest's writes.
    RdmaBw,
    /// A short block from a peer over RDMA, against perftest's messages one way.
    RdmaRtt,
    /// Short blocks from a peer over RDMA, many under way, against perftest's writes.
    RdmaRate,
    /// Blocks that who asks reads from a peer's memory, against perftest's reads.
    RdmaRead,
    /// Blocks from a peer over RDMA, against the same over TCP.
    RdmaVsTcp,
    /// NVMe commands of the disk tier through io_uring, against fio's and against the block layer.
    Passthrough,
    /// Many readers of one cold object through a group.
    OneFetch,
    /// What is read again from the origin when a member joins or leaves.
    Join,
    /// How data spreads over members of different weights.
    Spread,
    /// Reads of what other members have, against reads of what is here.
    RemoteShare,
    /// Hits in memory by one core, against a loop that reads and checks the same pages.
    Engine4k,
    /// Reads through the mount in order, against what FUSE allows and against fio.
    FuseSeq,
    /// Small reads at random through the mount, against other mounts.
    FuseRand,
    /// Small files one after the other, against other mounts and local files.
    SmallFiles,
    /// A second epoch over small files, against other mounts.
    Epoch,
    /// What nobody has read, against plain GETs and other mounts.
    ColdStream,
    /// Names and attributes of a large tree, against other mounts.
    Ls100k,
    /// A large file mapped by several processes, against other mounts.
    Safetensors,
    /// What checking pages costs.
    VerifyCost,
    /// Two cores against one.
    CoreScaling,
    /// Instructions of a small hit, and whose they are.
    EngineOverhead,
    /// The disk tier over SPDK and NVMe/TCP, against SPDK's own tool.
    SpdkTcp,
    /// The disk tier on a PCI device by SPDK, against SPDK's own tool and fio by the kernel's driver.
    SpdkGuest,
}

impl Figure {
    /// All figures, in the order of running.
    pub const ALL: [Figure; 36] = [
        Figure::FuseNull,
        Figure::Amplification,
        Figure::OneFetchLocal,
        Figure::Idle,
        Figure::Device4k,
        Figure::DeviceSeq,
        Figure::FuseDisk,
        Figure::MissRatio,
        Figure::Overflow,
        Figure::Restart,
        Figure::Foyer,
        Figure::Tcp1m,
        Figure::Tcp4k,
        Figure::RdmaBw,
        Figure::RdmaRtt,
        Figure::RdmaRate,
        Figure::RdmaRead,
        Figure::RdmaVsTcp,
        Figure::Passthrough,
        Figure::OneFetch,
        Figure::Join,
        Figure::Spread,
        Figure::RemoteShare,
        Figure::Engine4k,
        Figure::FuseSeq,
        Figure::FuseRand,
        Figure::SmallFiles,
        Figure::Epoch,
        Figure::ColdStream,
        Figure::Ls100k,
        Figure::Safetensors,
        Figure::VerifyCost,
        Figure::CoreScaling,
        Figure::EngineOverhead,
        Figure::SpdkTcp,
        Figure::SpdkGuest,
    ];

    /// The name on the command line and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Figure::FuseNull => "fuse-null",
            Figure::Amplification => "amplification",
            Figure::OneFetchLocal => "one-fetch-local",
            Figure::Idle => "idle",
            Figure::Device4k => "device-4k",
            Figure::DeviceSeq => "device-seq",
            Figure::FuseDisk => "fuse-disk",
            Figure::MissRatio => "miss-ratio",
            Figure::Overflow => "overflow",
            Figure::Restart => "restart",
            Figure::Foyer => "foyer",
            Figure::Tcp1m => "tcp-1m",
            Figure::Tcp4k => "tcp-4k",
            Figure::RdmaBw => "rdma-bw",
            Figure::RdmaRtt => "rdma-4k-rtt",
            Figure::RdmaRate => "rdma-rate",
            Figure::RdmaRead => "rdma-read",
            Figure::RdmaVsTcp => "rdma-vs-tcp",
            Figure::Passthrough => "passthrough",
            Figure::OneFetch => "one-fetch",
            Figure::Join => "join",
            Figure::Spread => "spread",
            Figure::RemoteShare => "remote-share",
            Figure::Engine4k => "engine-4k",
            Figure::FuseSeq => "fuse-seq",
            Figure::FuseRand => "fuse-rand",
            Figure::SmallFiles => "small-files",
            Figure::Epoch => "epoch",
            Figure::ColdStream => "cold-stream",
            Figure::Ls100k => "ls-100k",
            Figure::Safetensors => "safetensors",
            Figure::VerifyCost => "verify-cost",
            Figure::CoreScaling => "core-scaling",
            Figure::EngineOverhead => "engine-overhead",
            Figure::SpdkTcp => "spdk-tcp",
            Figure::SpdkGuest => "spdk-guest",
        }
    }

    /// The figure called `name`.
    ///
    /// # Errors
    /// When there is none; the message lists all names.
    pub fn by_name(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|figure| figure.name() == name) {
            Some(figure) => Ok(figure),
            None => bail!(
                "no figure {name}; there are: {}",
                Self::ALL.map(Self::name).join(" ")
            ),
        }
    }

    /// Measures.
    ///
    /// # Errors
    /// When it could not be measured. A missed target is no error.
    pub fn measure(self, run: &Run) -> Result<Vec<Part>> {
        match self {
            Figure::FuseNull => fuse_null::measure(),
            Figure::Amplification => amplification::measure(),
            Figure::OneFetchLocal => one_fetch_local::measure(),
            Figure::Idle => idle::measure(),
            Figure::Device4k => device_4k::measure(run),
            Figure::DeviceSeq => device_seq::measure(run),
            Figure::FuseDisk => fuse_disk::measure(run),
            Figure::MissRatio => replacement::miss_ratio(run),
            Figure::Overflow => replacement::overflow(run),
            Figure::Restart => restart::measure(run),
            Figure::Foyer => versus_foyer::measure(run),
            Figure::Tcp1m => tcp::long(run),
            Figure::Tcp4k => tcp::short(run),
            Figure::RdmaBw
            | Figure::RdmaRtt
            | Figure::RdmaRate
            | Figure::RdmaRead
            | Figure::RdmaVsTcp => rdma::measure(self, run),
            Figure::Passthrough => passthrough::measure(run),
            Figure::OneFetch => one_fetch::measure(run),
            Figure::Join => join::measure(run),
            Figure::Spread => spread::measure(run),
            Figure::RemoteShare => remote_share::measure(run),
            Figure::Engine4k => compared::engine_4k(run),
            Figure::FuseSeq => compared::fuse_seq(run),
            Figure::FuseRand => compared::fuse_rand(run),
            Figure::SmallFiles => compared::small_files(run),
            Figure::Epoch => compared::epoch(run),
            Figure::ColdStream => compared::cold_stream(run),
            Figure::Ls100k => compared::ls_100k(run),
            Figure::Safetensors => compared::safetensors(run),
            Figure::VerifyCost => compared::verify_cost(run),
            Figure::CoreScaling => compared::core_scaling(run),
            Figure::EngineOverhead => engine_overhead::measure(run),
            #[cfg(feature = "spdk")]
            Figure::SpdkTcp => spdk_tcp::measure(run),
            #[cfg(feature = "spdk")]
            Figure::SpdkGuest => spdk_guest::measure(run),
            #[cfg(not(feature = "spdk"))]
            Figure::SpdkTcp | Figure::SpdkGuest => bail!("{WITHOUT_SPDK}"),
        }
    }

    /// Why it cannot be measured by this program, wherever it runs; none when it can.
    pub fn skipped(self) -> Option<&'static str> {
        let on_spdk = matches!(self, Figure::SpdkTcp | Figure::SpdkGuest);
        (on_spdk && !cfg!(feature = "spdk")).then_some(WITHOUT_SPDK)
    }

    /// Whether it can be measured in a short run.
    pub fn has_short_run(self) -> bool {
        !matches!(
            self,
            Figure::FuseNull | Figure::Amplification | Figure::OneFetchLocal | Figure::Idle
        )
    }
}

const GIB: u64 = 1 << 30;
const MIB: f64 = (1 << 20) as f64;
