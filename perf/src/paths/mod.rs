//! Pinned hot paths: each does one thing again and again, in the same way in each run, so that its instructions can be counted.
//!
//! Nothing of a path depends on the time, on threads or on chance: its clock is moved by hand, its places come from a fixed seed,
//! and its devices have ended an operation when they are next asked. What is not so is not [`Path::is_judged`].

pub mod callgrind;
pub mod command;
pub mod known;

mod core;
mod groups;
mod lookups;
mod mount;
#[cfg(feature = "spdk")]
mod spdk;
mod transport;

use std::path::{Path as FilePath, PathBuf};

use anyhow::{Context, Result};

pub use groups::Group;

/// One thing that is done again and again.
trait Work {
    /// Does it so many times.
    ///
    /// # Errors
    /// When it cannot, or something else than the path was gone.
    fn operate(&mut self, count: u64) -> Result<()>;
}

/// A pinned path.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Its name on the command line.
    pub name: &'static str,
    /// What an operation is.
    pub meaning: &'static str,
    /// How often it is done in a count.
    pub operations: u64,
    judged: bool,
    make: fn(&FilePath) -> Result<Box<dyn Work>>,
}

const fn path(
    name: &'static str,
    operations: u64,
    make: fn(&FilePath) -> Result<Box<dyn Work>>,
    meaning: &'static str,
) -> Path {
    Path {
        name,
        meaning,
        operations,
        judged: true,
        make,
    }
}

/// All of them.
pub static PATHS: [Path; 10] = [
    path(
        "hit-4k",
        16_000,
        core::hit_4k,
        "4 KiB at random by a whole core from memory, checked, copied to its reader",
    ),
    path(
        "hit-1m",
        160,
        core::hit_1m,
        "1 MiB by a whole core from memory, checked, copied to its reader",
    ),
    path(
        "disk-4k",
        8_000,
        core::disk_4k,
        "4 KiB at random by a whole core from its disk tier, on a device in memory",
    ),
    path(
        "disk-1m",
        160,
        core::disk_1m,
        "1 MiB in sequence by a whole core from its disk tier, on a device in memory; room is made for it",
    ),
    path(
        "fill-1m",
        64,
        core::fill_1m,
        "1 MiB that an origin in memory gives at once: checksums, memory, disk tier on a device in memory",
    ),
    path(
        "mount-4k",
        16_000,
        mount::read_4k,
        "as hit-4k, from the FUSE front end's read on: handle, read-ahead, answer",
    ),
    path(
        "lookup",
        20_000,
        mount::lookup,
        "a name that the FUSE front end remembers",
    ),
    path(
        "disk-index",
        100_000,
        lookups::disk_index,
        "where a block is on disk, of 8,192",
    ),
    path(
        "ring",
        100_000,
        lookups::placement,
        "the member that owns a stripe, of 16",
    ),
    path(
        "wire",
        100_000,
        lookups::wire,
        "headers of a request and its answer, written and read",
    ),
];

/// Those that a kernel's device, a connection or another process is part of: told, not judged.
pub static TOLD: &[Path] = &[
    // What it takes is the kernel's and the file system's matter, too.
    Path {
        name: "uring-4k",
        meaning: "as disk-4k, on a file by io_uring that lies in the page cache",
        operations: 8_000,
        judged: false,
        make: core::uring_4k,
    },
    Path {
        name: "tcp-4k",
        meaning: "4 KiB of a peer's memory over TCP on loopback, both ends",
        operations: 8_000,
        judged: false,
        make: transport::fetch_4k,
    },
    #[cfg(feature = "spdk")]
    Path {
        name: "spdk-4k",
        meaning: "as disk-4k, on SPDK's NVMe/TCP target on loopback, which has answered when it is looked at",
        operations: 8_000,
        judged: false,
        make: spdk::disk_4k,
    },
];

impl Path {
    /// All, in the order in which they are shown.
    pub fn all() -> impl Iterator<Item = &'static Path> {
        PATHS.iter().chain(TOLD)
    }

    /// Names of those whose counts are judged.
    pub fn judged() -> Vec<&'static str> {
        let judged = Path::all().filter(|path| path.is_judged());
        judged.map(|path| path.name).collect()
    }

    /// The one called `name`.
    ///
    /// # Errors
    /// When there is none; the message lists all.
    pub fn by_name(name: &str) -> Result<&'static Path> {
        Path::all().find(|path| path.name == name).with_context(|| {
            let names: Vec<&str> = Path::all().map(|path| path.name).collect();
            format!("no pinned path {name}; there are: {}", names.join(", "))
        })
    }

    /// Whether two counts of one build are equal but for a thousandth, so that more instructions are a change of the code.
    pub fn is_judged(&self) -> bool {
        self.judged
    }

    /// Prepares and warms it, then does it so many times within [`COUNTED`].
    ///
    /// # Errors
    /// What the path says.
    pub fn walk(&self, operations: u64, dir: &FilePath) -> Result<()> {
        let mut work = (self.make)(dir).with_context(|| format!("{}: not prepared", self.name))?;
        work.operate(WARM_UP)
            .with_context(|| format!("{}: not warmed", self.name))?;
        counted(&mut *work, operations).with_context(|| self.name.to_owned())
    }
}

/// Operations before those that count.
const WARM_UP: u64 = 64;
/// Only what happens within the function of this name is counted.
pub const COUNTED: &str = "*forebay_perf*paths*counted*";

// A function of its own, and never part of another: the counter is switched on where it begins and off where it ends.
#[inline(never)]
fn counted(work: &mut dyn Work, operations: u64) -> Result<()> {
    let result = work.operate(operations);
    // The call above must not become a jump: then this function would have ended before it.
    std::hint::black_box(result)
}

/// Where a path puts its files, if it has any.
fn file(dir: &FilePath, name: &str) -> PathBuf {
    dir.join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_does_what_it_says_and_has_a_name_of_its_own() {
        let dir = tempfile::tempdir().expect("there is a place for files");
        let mut names = Vec::new();
        // Where SPDK is, its target may be missing.
        for path in Path::all().filter(|path| path.name != "spdk-4k") {
            match path.walk(96, dir.path()) {
                // It may be forbidden here, as io_uring is in many containers.
                Err(error) if !path.is_judged() => {
                    println!("SKIPPED: the pinned path {}: {error:#}", path.name);
                }
                walked => walked.unwrap_or_else(|error| panic!("{error:#}")),
            }
            assert_eq!(
                Path::by_name(path.name).expect("it is known").meaning,
                path.meaning
            );
            assert!(!names.contains(&path.name), "{} is there twice", path.name);
            names.push(path.name);
        }
        let wrong = Path::by_name("hit-5k").expect_err("there is none");
        assert!(wrong.to_string().contains("hit-4k, hit-1m"), "{wrong:#}");
    }
}
