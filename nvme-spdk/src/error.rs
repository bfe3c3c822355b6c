//! Why something cannot be used, and why what was used is lost.

use std::time::Duration;

use forebay_engine::ports::DeviceError;

/// Why SPDK cannot be started in this process.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// It was started before, for other devices.
    #[error(
        "SPDK already runs in this process without PCI device {0}: name all devices when it is started"
    )]
    Started(String),
    /// SPDK's own start failed.
    #[error(
        "SPDK cannot start ({errno}): it needs huge pages (`sysctl vm.nr_hugepages=512` gives 1 GiB) and, for PCI devices, vfio; what it \
         said is above"
    )]
    Refused {
        /// A negative errno.
        errno: i32,
    },
    /// No thread could be started for it, or for a controller.
    #[error("cannot start a thread for SPDK: {0}")]
    Thread(std::io::Error),
    /// The thread for it, or for a controller, ended.
    #[error("a thread that waits for NVMe controllers has ended")]
    Ended,
}

/// Why a namespace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// SPDK cannot be used at all.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// SPDK cannot read the address.
    #[error("SPDK does not take the transport id `{0}`")]
    Address(String),
    /// The process was started without this device.
    #[error("{0} was not named when SPDK was started in this process")]
    NotAllowed(String),
    /// Nobody answers there, or it is no NVMe controller that is ours to drive.
    #[error(
        "cannot attach to {0}: see that the target listens there and knows the subsystem; what SPDK said is above"
    )]
    Attach(String),
    /// SPDK cannot drive the PCI device.
    #[error("cannot attach to PCI device {address}: {why}")]
    AttachPci {
        /// Where.
        address: String,
        /// What is likely, and what to do.
        why: String,
    },
    /// Another one is being taken out.
    #[error(
        "cannot attach to {address} while {other}, which this process drives, is being taken out: SPDK takes none then. Try again when this process \
         has let {other} go, at the latest by its restart"
    )]
    Unplugged {
        /// Where.
        address: String,
        /// The one that is taken out.
        other: String,
    },
    /// It is not bound to the driver that gives it to programs.
    #[error(
        "PCI device {address} {why}, and programs drive it by vfio-pci: `forebay device bind {address}` binds it (where no IOMMU stands before \
         it, by uio_pci_generic: docs/operations.md)"
    )]
    Driver {
        /// Where.
        address: String,
        /// What is so.
        why: String,
    },
    /// It is lost, and somebody in this process still has it.
    #[error(
        "{address} was lost ({loss}) and is still in use by this process: it can be opened again when that has ended, or by a restart"
    )]
    Held {
        /// Where.
        address: String,
        /// How it was lost.
        loss: Loss,
    },
    /// It is not shut down yet, or not attached.
    #[error("{0} is still being shut down, or attached, by this process: try again")]
    Busy(String),
    /// The controller does not have that namespace, or none at all.
    #[error("{address} has no namespace {namespace}; it has {found:?}")]
    NoNamespace {
        /// Where.
        address: String,
        /// What was asked for; 0 for the first.
        namespace: u32,
        /// What there is.
        found: Vec<u32>,
    },
    /// A sector size that the engine cannot use.
    #[error("{address} has sectors of {sector_bytes} bytes; 512 and 4,096 can be used")]
    Sector {
        /// Where.
        address: String,
        /// What it has.
        sector_bytes: u32,
    },
    /// Each sector carries more bytes than its data.
    #[error(
        "{address} is formatted with {metadata_bytes} bytes of metadata a sector: format it without (`nvme format --ms=0`)"
    )]
    Metadata {
        /// Where.
        address: String,
        /// What it has.
        metadata_bytes: u32,
    },
    /// Smaller than what is asked for, or empty.
    #[error("{address} has {have_bytes} bytes, and {want_bytes} are asked for")]
    Size {
        /// Where.
        address: String,
        /// What there is.
        have_bytes: u64,
        /// What is wanted.
        want_bytes: u64,
    },
}

/// Why a core has no queue pair.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The controller is lost.
    #[error("{address}: {loss}")]
    Lost {
        /// Where.
        address: String,
        /// How.
        loss: Loss,
    },
    /// It has no queue pair left, or does not answer.
    #[error("{0} gives no queue pair: it has fewer than this node has cores, or does not answer")]
    Refused(String),
    /// SPDK has no memory for one.
    #[error(
        "{address}: SPDK has no memory for a queue pair: it takes {wanted} reserved huge pages of 2 MiB, and {free} are free. Reserve more \
         (`sysctl vm.nr_hugepages`): --memory divided by 2 MiB, one for each core on each NVMe device without the kernel, and 32"
    )]
    Pages {
        /// Where.
        address: String,
        /// What it takes.
        wanted: u64,
        /// What there is.
        free: u64,
    },
    /// Its driver was changed meanwhile.
    #[error(transparent)]
    Driver(#[from] OpenError),
    /// The arena is not memory that a PCI device may reach.
    #[error("{address}: {why}")]
    Memory {
        /// Where the device is.
        address: String,
        /// Why not.
        why: MemoryError,
    },
}

/// Why an arena is no memory that a PCI device may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The device would reach memory by physical addresses, and this memory may move.
    #[error(
        "no IOMMU stands before the device, so it would reach memory that may move: switch the IOMMU on (in the firmware, and \
         `intel_iommu=on` or `amd_iommu=on` for the kernel), reserve huge pages (`sysctl vm.nr_hugepages`, pages of 2 MiB: \
         for all of --memory, one for each core on each NVMe device without the kernel, and 32), or give the kernel's device, such as /dev/nvme0n1"
    )]
    NoIommu,
    /// The limit on locked memory is too low for it.
    #[error(
        "the limit of locked memory is {limit_bytes} bytes, of which {locked_bytes} are used, and the device needs {wanted_bytes} more for \
         its buffers: raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity for systemd, the capability IPC_LOCK for containers), or give less --memory"
    )]
    Limit {
        /// `RLIMIT_MEMLOCK`.
        limit_bytes: u64,
        /// What is locked already.
        locked_bytes: u64,
        /// What would be.
        wanted_bytes: u64,
    },
    /// The device was tried out, and its reads bring nothing.
    #[error(
        "the device does not reach {buffers} of the node's buffers: its reads end well and bring nothing. The kernel or the IOMMU refused them: see \
         that locked memory is not limited (`ulimit -l`; in a user namespace the limit of the machine counts), that `dma_entry_limit` of \
         vfio_iommu_type1 is not too low, and the kernel's log; or give less --memory"
    )]
    Unreached {
        /// Places in which it was tried.
        buffers: usize,
    },
    /// The device was tried out, and cannot be read.
    #[error("its first sector cannot be read ({0})")]
    Device(DeviceError),
    /// SPDK does not take it.
    #[error(
        "SPDK does not take the buffers for device memory (errno {errno}): the kernel must have transparent huge pages switched on (`madvise` or \
         `always`) and be 5.14 or newer, and where the IOMMU is narrow this takes root"
    )]
    Refused {
        /// A negative errno.
        errno: i32,
    },
}

/// Why a controller, or a namespace of it, is of no use any more. It stays so until it is opened anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// It was taken away, or its target has ended the connection.
    #[error("the controller was removed, or its connection has ended")]
    Removed,
    /// A command did not end.
    #[error("a command did not end within {} s: the controller hangs", .0.as_secs())]
    TimedOut(Duration),
    /// It gave up, or was reset by others.
    #[error("the controller has failed or was reset")]
    Failed,
    /// The namespace is not what was opened.
    #[error("{0}")]
    Changed(Change),
}

/// What became of a namespace while it was in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Change {
    /// It is not there any more.
    #[error("the namespace was deleted, or detached from its controller")]
    Gone,
    /// Its sectors, or their metadata, have another length.
    #[error("the namespace was formatted with sectors of another size")]
    Sectors,
    /// It is smaller than what is used of it.
    #[error("the namespace became smaller")]
    Smaller,
    /// Its number belongs to another one.
    #[error("the namespace was replaced by another one")]
    Replaced,
}
