//! `forebay cache`: looks at caches on disk, checks them, makes them. Without a mount.

mod format;
mod inspect;
mod progress;
mod verify;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::Superblock;
use forebay_engine::limits::PAGE_BYTES;
use forebay_nvme_uring::OpenOptions;

use crate::args::{CacheCommand, NodeArgs};
use crate::cache::CacheDir;
use crate::cache::blocking::Blocking;
use crate::cache::lock::{DirLock, LOCK_FILE, hold_device, holder_of, holder_of_device};
use crate::cache::nvme::{self, NamespaceId, NvmeLock};
use crate::cache::opening::{open_medium, read_superblock};
use crate::cache::place::{LOG_FILE, Place};
use crate::cache::scan::Scanner;
use crate::host::{HostDevice, Medium};

/// Runs one of the commands.
///
/// # Errors
/// What is wrong, where, and what to do.
pub fn run(command: &CacheCommand) -> Result<()> {
    let dirs = match command {
        CacheCommand::Inspect(args) => &args.dirs,
        CacheCommand::Verify(args) => &args.dirs,
        CacheCommand::Format(args) => &args.dirs,
    };
    nvme::start(dirs.iter().filter_map(CacheDir::address))?;
    match command {
        CacheCommand::Inspect(args) => inspect::run(args),
        CacheCommand::Verify(args) => verify::run(args),
        CacheCommand::Format(args) => format::run(args),
    }
}

/// The cache that `dir` means: a block device, a node's part of a cache directory, or a cache
/// directory with this node's part or just one.
fn find(dir: &CacheDir, args: &NodeArgs) -> Result<Place> {
    let path = match dir {
        CacheDir::Path(path) => path,
        CacheDir::Nvme(address) => return Ok(Place::Nvme(address.clone())),
    };
    if is_node_dir(path) {
        return Ok(Place::Directory(path.clone()));
    }
    let place = Place::of(dir, &args.owner())?;
    let Place::Directory(own) = &place else {
        return Ok(place);
    };
    let log = own.join(LOG_FILE);
    match fs::metadata(&log) {
        Ok(_) => return Ok(place),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => bail!(
            "cannot look for a cache at {}: {error}; ask as the user whose daemons use it, or as root",
            log.display()
        ),
        Err(_) => {}
    }
    let mut others = node_dirs(path);
    match others.len() {
        1 => Ok(Place::Directory(others.remove(0))),
        0 => bail!(
            "there is no cache in {}: neither {place} nor another node's; `forebay cache format` makes one",
            path.display()
        ),
        _ => {
            let names: Vec<String> = others.iter().map(|dir| dir.display().to_string()).collect();
            bail!(
                "{} has no cache of this node ({place}), but those of {} others: name one of them: {}",
                path.display(),
                names.len(),
                names.join(" ")
            )
        }
    }
}

fn is_node_dir(path: &Path) -> bool {
    path.join(LOG_FILE).is_file() || path.join(LOCK_FILE).is_file()
}

/// The parts of all nodes in a cache directory.
fn node_dirs(path: &Path) -> Vec<PathBuf> {
    let below = |dir: PathBuf| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let mut found: Vec<PathBuf> = below(path.to_owned())
        .flat_map(below)
        .filter(|dir| dir.join(LOG_FILE).is_file())
        .collect();
    found.sort();
    found
}

/// A cache, opened for looking at it.
#[derive(Debug)]
struct Looked {
    place: Place,
    superblock: Superblock,
    medium: Medium,
    scanner: Scanner<HostDevice>,
    /// Who uses it now, when somebody does.
    held_by: Option<String>,
    _hold: Option<Hold>,
}

impl Looked {
    /// Opens a cache for reading only; with a `purpose` it is held for that alone, or somebody has it.
    fn at(place: Place, purpose: Option<&str>) -> Result<Self> {
        let path = place.log_path();
        check_length(&place, &path)?;
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let attached = match &place {
            Place::Nvme(_) => Some(open_medium(&place, &path, &options)?),
            _ => None,
        };
        let id = attached.as_ref().map(NamespaceId::of).unwrap_or_default();
        let hold = purpose
            .map(|purpose| Hold::take(&place, &id, purpose))
            .transpose()?;
        let held_by = match (&place, &hold) {
            (_, Some(_)) => None,
            (Place::Directory(dir), None) => holder_of(dir),
            (Place::Device(path), None) => holder_of_device(path),
            (Place::Nvme(address), None) => nvme::holder_of(address, &id),
        };
        let medium = match attached {
            Some(medium) => medium,
            None => open_medium(&place, &path, &options)?,
        };
        let mut device = Blocking::on(&medium)?;
        let superblock = read_superblock(&mut device)
            .with_context(|| format!("cannot read {}", path.display()))?
            .map_err(|found| anyhow::anyhow!("{}: {found}", path.display()))?;
        let geometry = Geometry::fit(superblock.region_bytes, medium.geometry().capacity_bytes);
        let scanner = Scanner::new(device, superblock.log, geometry, medium.is_device());
        Ok(Self {
            place,
            superblock,
            medium,
            scanner,
            held_by,
            _hold: hold,
        })
    }
}

/// Refuses a file in which no cache can begin.
fn check_length(place: &Place, path: &Path) -> Result<()> {
    let Place::Directory(dir) = place else {
        return Ok(());
    };
    let meta = fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    if meta.is_file() && meta.len() < PAGE_BYTES as u64 {
        bail!(
            "{} is no Forebay cache, or was cut off: it has {} bytes, and a cache begins with {PAGE_BYTES}; `forebay cache \
             format --force {}` makes an empty one, and so does a mount with --format (what was cached comes from S3 again)",
            path.display(),
            meta.len(),
            dir.display()
        );
    }
    Ok(())
}

/// Keeps others away.
#[derive(Debug)]
enum Hold {
    Directory(#[expect(dead_code, reason = "held")] DirLock),
    Device(#[expect(dead_code, reason = "held")] fs::File),
    Nvme(#[expect(dead_code, reason = "held")] NvmeLock),
}

impl Hold {
    fn take(place: &Place, id: &NamespaceId, purpose: &str) -> Result<Self> {
        match place {
            Place::Directory(dir) => DirLock::take(dir, purpose).map(Hold::Directory),
            Place::Device(path) => hold_device(path).map(Hold::Device),
            Place::Nvme(address) => NvmeLock::take(address, id, purpose).map(Hold::Nvme),
        }
    }
}
