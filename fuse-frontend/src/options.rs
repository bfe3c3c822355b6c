//! What a mount is told once.

use std::time::Duration;

/// Options of one mount. [`Default`] gives what the command line gives when nothing is said.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Other users may use the mount (`--allow-other`); permission bits are checked either way.
    pub allow_other: bool,
    /// Owner of every file and directory (`--uid`).
    pub uid: u32,
    /// Their group (`--gid`).
    pub gid: u32,
    /// Permission bits of files (`--file-mode`). The default says 0644 although the mount is
    /// read-only: what `cp -p`, `rsync -p` and `tar` make of it elsewhere must stay usable.
    pub file_mode: u16,
    /// Permission bits of directories (`--dir-mode`).
    pub dir_mode: u16,
    /// How long attributes are believed; an open or a stat after that asks the origin again.
    pub attr_ttl: Duration,
    /// How old what is known of a name may be that is told while the origin does not answer.
    pub stale_max: Duration,
    /// How long the kernel believes that a name leads to an inode.
    pub entry_ttl: Duration,
    /// How long a name that does not exist is believed not to.
    pub negative_ttl: Duration,
    /// Threads that take requests from the kernel; at least 2. They never wait for data.
    pub threads: usize,
    /// Background requests (read-ahead, asynchronous I/O) that the kernel keeps under way; at
    /// least 128. Those beyond it wait in the kernel, where no deadline runs, so it is far above
    /// what readers have under way at a time: no thread waits for a request here.
    pub max_background: u16,
    /// Bytes that all handles together may have announced by read-ahead and not read yet: a part
    /// of the engine's memory (the command line gives a quarter).
    pub read_ahead_budget_bytes: u64,
    /// The mount's own read-ahead in the kernel, KiB (`read_ahead_kb` of its backing device info).
    pub kernel_read_ahead_kib: u32,
}

/// Fewest background requests: below this the kernel's read-ahead waits for itself.
pub const MAX_BACKGROUND_MIN: u16 = 128;

impl Default for MountOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(2, |n| n.get());
        Self {
            allow_other: false,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            file_mode: 0o644,
            dir_mode: 0o755,
            attr_ttl: Duration::from_secs(1),
            stale_max: Duration::MAX,
            entry_ttl: Duration::from_secs(1),
            negative_ttl: Duration::from_secs(1),
            threads: (cpus / 2).clamp(2, 8),
            max_background: 4096,
            read_ahead_budget_bytes: 256 << 20,
            kernel_read_ahead_kib: 1024,
        }
    }
}
