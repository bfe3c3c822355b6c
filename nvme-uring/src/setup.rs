//! A ring as good as this kernel has one, with the file and the arena registered.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use forebay_engine::limits::CHUNK_BYTES;
use io_uring::{Builder, IoUring};

use crate::file::{Told, UringFile};
use crate::queues::{Queues, WideRing};
use crate::ring::Ring;

/// The kernel's bound on entries of a ring.
const ENTRIES_MAX: u32 = 1 << 15;

/// Why there is no queue pair.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// No ring at all.
    #[error(
        "the kernel refuses io_uring for {path}: {error}. Look at sysctl kernel.io_uring_disabled and at \
         the container's seccomp profile"
    )]
    Ring {
        /// For which file.
        path: String,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// No ring for NVMe commands.
    #[error(
        "the kernel has no io_uring for the NVMe commands of {path}: {error}. Linux 6.1 has; give the block device of the \
         namespace elsewhere"
    )]
    Commands {
        /// For which device.
        path: String,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// The ring does not take the file.
    #[error("the kernel does not register {path} with io_uring: {error}")]
    Register {
        /// Which file.
        path: String,
        /// What the kernel said.
        error: std::io::Error,
    },
}

/// Flags of one ring, and the kernel that first had them all.
struct Kind {
    kernel: &'static str,
    deferred: bool,
    flags: fn(&mut Builder) -> &mut Builder,
}

/// From best to plainest. Each is tried when the kernel refused the ones before.
///
/// With `DEFER_TASKRUN` completions are made only when this thread asks for them, so nothing interrupts
/// it; the flag in the ring tells when asking is worth a system call. `SUBMIT_ALL` so that one refused entry does not hold up those
/// behind it.
const KINDS: [Kind; 4] = [
    Kind {
        kernel: "6.1",
        deferred: true,
        flags: |builder| {
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
        },
    },
    Kind {
        kernel: "6.0",
        deferred: false,
        flags: |builder| {
            builder
                .setup_single_issuer()
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
        },
    },
    Kind {
        kernel: "5.19",
        deferred: false,
        flags: |builder| {
            builder
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all()
        },
    },
    Kind {
        kernel: "5.6",
        deferred: false,
        flags: |builder| builder,
    },
];

/// Makes the ring of one queue pair.
pub(crate) fn ring(
    file: &Arc<UringFile>,
    arena_addresses: Range<usize>,
    depth: usize,
) -> Result<Ring, SetupError> {
    let (uring, deferred) = match &file.namespace {
        Some(namespace) => {
            let commands = CHUNK_BYTES.div_ceil(namespace.command_bytes);
            let uring = wide(depth as u32, commands as u32);
            let uring = uring.map_err(|error| {
                let path = file.path().display().to_string();
                match error.raw_os_error() {
                    // An unknown flag.
                    Some(libc::EINVAL) => SetupError::Commands { path, error },
                    _ => SetupError::Ring { path, error },
                }
            })?;
            (Queues::Wide(uring), true)
        }
        None => {
            let (uring, deferred) = best(file, &KINDS, depth as u32)?;
            (Queues::Plain(uring), deferred)
        }
    };
    let mut ring = Ring::new(uring, file.clone(), depth, deferred);
    ring.register_file().map_err(|error| SetupError::Register {
        path: file.path().display().to_string(),
        error,
    })?;
    if let Err(error) = ring.use_fixed(arena_addresses) {
        file.told.no_fixed_buffers(file, &error);
    }
    Ok(ring)
}

fn best(file: &UringFile, kinds: &[Kind], depth: u32) -> Result<(IoUring, bool), SetupError> {
    let (uring, number) = accepted(kinds, depth).map_err(|error| SetupError::Ring {
        path: file.path().display().to_string(),
        error,
    })?;
    let kind = &kinds[number];
    if number > 0 && Told::first(&file.told.older_kernel) {
        tracing::warn!(
            "{}: this kernel has the io_uring of Linux {} only; reads and writes cost more \
             than they would on 6.1 or later",
            file.path().display(),
            kind.kernel
        );
    }
    Ok((uring, kind.deferred))
}

/// A ring for NVMe commands, of which each operation may take so many. There is one kind: fixed buffers of commands came with
/// the same kernel as what else it has.
fn wide(depth: u32, commands: u32) -> io::Result<WideRing> {
    // Room for all commands of all operations: what the kernel does not take for a moment waits in the queue.
    let entries = depth.saturating_mul(commands).min(ENTRIES_MAX);
    let mut builder = WideRing::builder();
    builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_cqsize(2 * entries.next_power_of_two());
    builder.build(entries)
}

/// A ring of the first kind that the kernel takes, and which one that is.
fn accepted(kinds: &[Kind], depth: u32) -> io::Result<(IoUring, usize)> {
    let mut refused = None;
    for (number, kind) in kinds.iter().enumerate() {
        let mut builder = IoUring::builder();
        // One completion for each operation under way, so that it never overflows.
        builder.setup_cqsize(2 * depth.next_power_of_two());
        match (kind.flags)(&mut builder).build(depth) {
            Ok(uring) => return Ok((uring, number)),
            // Only an unknown flag is a reason to try without it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    Err(refused.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
}

/// Makes a small ring and drops it: the Linux version whose io_uring this kernel has as far as Forebay uses it; 6.1 is all.
///
/// # Errors
/// What the kernel said: not built in, switched off by `kernel.io_uring_disabled`, or kept from this container.
pub fn try_ring() -> io::Result<&'static str> {
    accepted(&KINDS, 2).map(|(_, number)| KINDS[number].kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::OpenOptions;

    fn file() -> (tempfile::TempDir, std::sync::Arc<UringFile>) {
        let dir = tempfile::tempdir().unwrap();
        let options = OpenOptions {
            capacity_bytes: Some(1 << 20),
            create: true,
            ..OpenOptions::default()
        };
        let file = UringFile::open(&dir.path().join("disk"), &options).unwrap();
        (dir, file)
    }

    #[test]
    fn a_kernel_without_a_flag_is_asked_without_it() {
        let (_dir, file) = file();
        // DEFER_TASKRUN without SINGLE_ISSUER is what any kernel refuses as it would an unknown flag.
        let refused = || Kind {
            kernel: "none",
            deferred: true,
            flags: |builder| builder.setup_defer_taskrun(),
        };
        assert!(best(&file, &[refused()], 8).is_err());
        let plain = Kind {
            kernel: "5.6",
            deferred: false,
            flags: |builder| builder,
        };
        assert!(best(&file, &[refused(), plain], 8).is_ok());
    }

    #[test]
    fn completions_never_overflow() {
        let (_dir, file) = file();
        for depth in [1, 3, 8, 100, 1024] {
            let (uring, _) = best(&file, &KINDS, depth).unwrap();
            assert!(uring.params().sq_entries() >= depth);
            assert!(uring.params().cq_entries() >= 2 * depth);
        }
    }

    #[test]
    fn every_kind_works_on_a_new_kernel() {
        let (_dir, file) = file();
        for number in 0..KINDS.len() {
            assert!(best(&file, &KINDS[number..], 8).is_ok());
        }
    }
}
