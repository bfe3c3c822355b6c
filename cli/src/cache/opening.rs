//! Opening a cache: whose is it, is it ours, how large shall it be; or making a new one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use forebay_engine::disk::DeviceShared;
use forebay_engine::disk::geometry::{DATA_OFFSET_BYTES, Geometry};
use forebay_engine::disk::layout::{LogId, NotOurs, Superblock};
use forebay_engine::limits::PAGE_BYTES;
use forebay_nvme_uring::{OpenError, OpenOptions, UringFile};

use super::blocking::{Blocking, in_words};
use super::dirs::CacheDirs;
use super::lock::{DirLock, Held, PATIENCE, user_of_device};
use super::nvme::{self, NamespaceId, NvmeLock};
use super::place::{Identity, LOG_FILE, NEW_LOG_FILE, Owner, Place, sync_dir};
use super::room::Room;
use crate::host::Medium;
use crate::units::{Bytes, Share};

/// What is read to tell whose a device is.
pub const LOOK_BYTES: u64 = 128 << 10;
/// The same at its end, where some kinds of RAID have all that they write.
pub const LOOK_END_BYTES: u64 = 1 << 20;

/// What may be overwritten by a new cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Nothing: what is blank becomes a cache, what is ours is used.
    Nothing,
    /// What cannot be used: `--format`.
    Unusable,
    /// A cache of ours: `forebay cache format`.
    Ours,
    /// Anything: `forebay cache format --force`.
    Anything,
}

/// What a cache shall be.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Over all directories; none for the documented default.
    pub size: Option<Bytes>,
    /// Kept free on the file system of each directory.
    pub free_space_ratio: Share,
    /// What a new cache may be made over.
    pub overwrite: Overwrite,
    /// Whose.
    pub owner: Owner,
    /// Engine cores that will use it.
    pub cores: usize,
    /// What for, to whoever finds it in use: `mount /data`.
    pub purpose: String,
}

/// One log, opened and locked.
#[derive(Debug)]
pub struct OpenLog {
    /// What the cores share of it.
    pub shared: Arc<DeviceShared>,
    /// Its file or device, for the cores' queue pairs.
    pub medium: Medium,
    /// Where it is.
    pub place: Place,
    /// Whether it was made now.
    pub is_new: bool,
    _lock: Lock,
}

/// What keeps others from a place.
#[derive(Debug)]
enum Lock {
    Directory {
        _lock: DirLock,
    },
    /// Its exclusive open is its lock.
    Device,
    Nvme {
        _lock: NvmeLock,
        /// Keeps its controller attached.
        _medium: Medium,
    },
}

/// Where one part of a cache is, and how users name it.
#[derive(Clone, Debug)]
pub struct Named {
    /// The directory or device, as it was given.
    pub name: String,
    /// What it means.
    pub place: Place,
}

/// Opens all of a cache; makes what is not there.
///
/// # Errors
/// The first place that cannot be used: what is wrong there, and what to do. What others hold is [`Held`].
pub fn open(dirs: &CacheDirs, config: &CacheConfig) -> Result<Vec<OpenLog>> {
    let named = dirs.iter().map(|dir| {
        Ok(Named {
            name: dir.to_string(),
            place: Place::of(dir, &config.owner)?,
        })
    });
    open_places(named.collect::<Result<_>>()?, config)
}

/// The same for places that are known.
///
/// # Errors
/// See [`open`].
pub fn open_places(places: Vec<Named>, config: &CacheConfig) -> Result<Vec<OpenLog>> {
    check_each_once(&places)?;
    nvme::start(places.iter().filter_map(|named| match &named.place {
        Place::Nvme(address) => Some(address),
        _ => None,
    }))?;
    let claims = places.into_iter().map(|named| Claim::take(named, config));
    let claims = claims.collect::<Result<Vec<_>>>()?;
    let sizes = sizes(&claims, config)?;
    let logs = claims
        .into_iter()
        .zip(sizes)
        .map(|(claim, size)| claim.open(size, config));
    logs.collect()
}

/// Makes the places, and refuses one that is named twice: its lock would be found in use.
fn check_each_once(places: &[Named]) -> Result<()> {
    let mut known: Vec<(Identity, &str)> = Vec::new();
    for Named { name, place } in places {
        place.prepare()?;
        let identity = place.identity()?;
        match known.iter().find(|(other, _)| *other == identity) {
            Some((_, other)) if other == name => bail!("{name} is named twice: name it once"),
            Some((_, other)) => {
                bail!("{other} and {name} are the same place: name it once")
            }
            None => known.push((identity, name)),
        }
    }
    Ok(())
}

/// A place that is locked for us.
#[derive(Debug)]
struct Claim {
    name: String,
    place: Place,
    lock: Lock,
}

impl Claim {
    fn take(named: Named, config: &CacheConfig) -> Result<Self> {
        let Named { name, place } = named;
        let lock = match &place {
            Place::Directory(dir) => Lock::Directory {
                _lock: DirLock::take(dir, &config.purpose)?,
            },
            Place::Device(_) => Lock::Device,
            Place::Nvme(address) => {
                let medium = nvme::open(address, None, true)?;
                Lock::Nvme {
                    _lock: NvmeLock::take(address, &NamespaceId::of(&medium), &config.purpose)?,
                    _medium: medium,
                }
            }
        };
        Ok(Self { name, place, lock })
    }

    fn open(self, size_bytes: Option<u64>, config: &CacheConfig) -> Result<OpenLog> {
        let path = self.place.log_path();
        let kept = self.keep(&path, size_bytes, config)?;
        let is_new = kept.is_none();
        let (superblock, medium) = match kept {
            Some(superblock) => {
                let size_bytes = size_bytes.map(|size| whole_regions(&superblock, size));
                (superblock, self.open_medium(&path, size_bytes, false)?)
            }
            None => self.format(&path, size_bytes, config)?,
        };
        if let Some(file) = medium.file() {
            file.trim()
                .with_context(|| format!("cannot make {} smaller", path.display()))?;
        }
        let capacity_bytes = medium.geometry().capacity_bytes;
        let geometry = Geometry::fit(superblock.region_bytes, capacity_bytes);
        let shared = DeviceShared::new(self.name, geometry, superblock.log);
        Ok(OpenLog {
            shared: Arc::new(shared),
            medium,
            place: self.place,
            is_new,
            _lock: self.lock,
        })
    }

    /// The superblock of a cache that can be used as it is; none when a new one is to be made.
    fn keep(
        &self,
        path: &Path,
        size_bytes: Option<u64>,
        config: &CacheConfig,
    ) -> Result<Option<Superblock>> {
        let (found, capacity_bytes) = look(path, &self.place)?;
        let size_bytes = size_bytes.unwrap_or(capacity_bytes);
        let (refusal, may_be_replaced) = match found {
            Err(NotOurs::Blank) => return Ok(None),
            Err(other) => (
                anyhow!("{}: {other}", path.display()),
                matches!(config.overwrite, Overwrite::Unusable | Overwrite::Anything),
            ),
            Ok(superblock) if config.overwrite == Overwrite::Anything => {
                tracing::debug!("made over the cache of {}", superblock.owner);
                return Ok(None);
            }
            Ok(superblock) => match (self.others(&superblock, config), config.overwrite) {
                (Some(why), overwrite) => (why, overwrite == Overwrite::Unusable),
                (None, Overwrite::Ours) => return Ok(None),
                (None, overwrite) => match self.misfit(&superblock, size_bytes, config) {
                    None => return Ok(Some(superblock)),
                    Some(why) => (why, overwrite == Overwrite::Unusable),
                },
            },
        };
        if may_be_replaced {
            tracing::warn!("{refusal:#}; a new cache is made over it, as was asked for");
            return Ok(None);
        }
        Err(refusal).with_context(|| {
            format!(
                "{name} is not used and left as it is (to overwrite it: `forebay cache format --force {name}`, or mount with --format)",
                name = self.name
            )
        })
    }

    /// Why a cache is not this node's. In a directory each node has its own part; but a part, or its file, can be
    /// moved and copied.
    fn others(&self, superblock: &Superblock, config: &CacheConfig) -> Option<anyhow::Error> {
        let (owner, found) = (config.owner.to_string(), &superblock.owner);
        if *found == owner {
            return None;
        }
        let place = &self.place;
        Some(match place {
            Place::Device(_) | Place::Nvme(_) => anyhow!(
                "{place} is the cache of {found}, and this node is {owner}: if it is the same node, give its --cache-group \
                 and --node-id"
            ),
            Place::Directory(_) => anyhow!(
                "{} is the cache of {found}, and this node is {owner}: was it moved or copied here? Move it back to \
                 {}/{found}/{LOG_FILE}; if it is the same node, give that --cache-group and --node-id as well",
                place.log_path().display(),
                self.name
            ),
        })
    }

    /// Why a cache of ours cannot be used.
    fn misfit(
        &self,
        superblock: &Superblock,
        size_bytes: u64,
        config: &CacheConfig,
    ) -> Option<anyhow::Error> {
        let geometry = Geometry::fit(superblock.region_bytes, size_bytes);
        let needed = regions_needed(config.cores);
        let region_bytes = u64::from(superblock.region_bytes);
        (u64::from(geometry.regions) < needed).then(|| {
            anyhow!(
                "{} would have {} regions of {} with its size of {}, and {} engine cores need {needed}: give a larger \
                 --cache-size (at least {} for this directory), or fewer --cores",
                self.place,
                geometry.regions,
                Bytes(region_bytes),
                Bytes(size_bytes),
                config.cores,
                Bytes(DATA_OFFSET_BYTES + needed * region_bytes)
            )
        })
    }

    /// Makes a new cache. In a directory the old one, if there is one, is replaced in one step.
    fn format(
        &self,
        path: &Path,
        size_bytes: Option<u64>,
        config: &CacheConfig,
    ) -> Result<(Superblock, Medium)> {
        let Place::Directory(dir) = &self.place else {
            self.wipe_end(path)?;
            let file = self.open_medium(path, size_bytes, false)?;
            return Ok((write_superblock(&file, path, config)?, file));
        };
        let new = dir.join(NEW_LOG_FILE);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", new.display()));
            }
            _ => {}
        }
        let file = self.open_medium(&new, size_bytes, true)?;
        let superblock =
            write_superblock(&file, path, config).inspect_err(|_| drop(fs::remove_file(&new)))?;
        fs::rename(&new, path)
            .with_context(|| format!("cannot rename {} to {}", new.display(), path.display()))?;
        sync_dir(dir)?;
        let size_bytes = size_bytes.map(|size| whole_regions(&superblock, size));
        let file = self.open_medium(path, size_bytes, false)?;
        Ok((superblock, file))
    }

    /// What a RAID has at the end of a device must not be found there again. Before the beginning: cut off in between, it is
    /// foreign or blank, never half a cache.
    fn wipe_end(&self, path: &Path) -> Result<()> {
        let mut device = Blocking::on(&self.open_medium(path, None, false)?)?;
        let capacity_bytes = device.geometry().capacity_bytes;
        let zeros = vec![0; end_bytes(capacity_bytes) as usize];
        let wiped = device
            .write(capacity_bytes - zeros.len() as u64, &zeros)
            .and_then(|()| device.flush());
        wiped
            .map_err(in_words)
            .with_context(|| format!("cannot make a cache at {}", path.display()))
    }

    fn open_medium(
        &self,
        path: &Path,
        capacity_bytes: Option<u64>,
        create: bool,
    ) -> Result<Medium> {
        let options = OpenOptions {
            capacity_bytes,
            create,
            ..OpenOptions::default()
        };
        open_medium(&self.place, path, &options)
    }
}

/// Opens what a place means: by its path, or its address.
///
/// # Errors
/// [`Held`], or why it cannot be used.
pub fn open_medium(place: &Place, path: &Path, options: &OpenOptions) -> Result<Medium> {
    match place {
        Place::Nvme(address) => nvme::open(address, options.capacity_bytes, options.read_only),
        Place::Directory(_) | Place::Device(_) => open_file(path, options).map(Medium::from),
    }
}

/// Opens a file or device; one that is busy says whose it is.
///
/// # Errors
/// [`Held`], or why it cannot be used.
pub fn open_file(path: &Path, options: &OpenOptions) -> Result<Arc<UringFile>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match UringFile::open(path, options) {
            // The kernel lets go of a ring's files some time after the process that had it.
            Err(OpenError::Busy(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(OpenError::Busy(what)) => bail!(Held {
                holder: user_of_device(&what),
                what,
                advice: "give another device",
            }),
            opened => return opened.map_err(anyhow::Error::from),
        }
    }
}

/// Regions that so many cores need at least.
fn regions_needed(cores: usize) -> u64 {
    8 * cores.max(1) as u64
}

/// What is at `path`, and how many bytes there are.
fn look(path: &Path, place: &Place) -> Result<(Result<Superblock, NotOurs>, u64)> {
    if let Place::Directory(_) = place {
        let meta = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Err(NotOurs::Blank), 0));
            }
            meta => meta.with_context(|| format!("cannot look at {}", path.display()))?,
        };
        if !meta.is_file() {
            bail!(
                "{} is not a file: remove it, or give another --cache-dir",
                path.display()
            );
        }
        if meta.len() < PAGE_BYTES as u64 {
            let empty = meta.len() == 0;
            let found = if empty {
                NotOurs::Blank
            } else {
                NotOurs::Foreign("a short file")
            };
            return Ok((Err(found), meta.len()));
        }
    }
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let medium = open_medium(place, path, &options)?;
    let mut device = Blocking::on(&medium)?;
    let found = match medium.is_device() {
        true => read_device(&mut device),
        false => read_superblock(&mut device),
    };
    let found = found.with_context(|| format!("cannot read {}", path.display()))?;
    Ok((found, device.geometry().capacity_bytes))
}

/// Reads the superblock of a device that others may have had, or what is there instead, also at its end.
///
/// # Errors
/// The device's.
pub fn read_device<D: forebay_engine::ports::BlockDevice>(
    device: &mut Blocking<D>,
) -> Result<Result<Superblock, NotOurs>> {
    let capacity_bytes = device.geometry().capacity_bytes;
    let mut beginning = vec![0; capacity_bytes.min(LOOK_BYTES) as usize];
    let mut end = vec![0; end_bytes(capacity_bytes) as usize];
    device.read(0, &mut beginning).map_err(in_words)?;
    device
        .read(capacity_bytes - end.len() as u64, &mut end)
        .map_err(in_words)?;
    Ok(Superblock::decode_device(&beginning, &end))
}

/// How much of a device is its end: not what is its beginning.
fn end_bytes(capacity_bytes: u64) -> u64 {
    capacity_bytes
        .saturating_sub(LOOK_BYTES)
        .min(LOOK_END_BYTES)
}

/// Reads the superblock, or what is there instead.
///
/// # Errors
/// The device's.
pub fn read_superblock<D: forebay_engine::ports::BlockDevice>(
    device: &mut Blocking<D>,
) -> Result<Result<Superblock, NotOurs>> {
    let len_bytes = device.geometry().capacity_bytes.min(LOOK_BYTES);
    let mut bytes = vec![0; len_bytes as usize];
    device.read(0, &mut bytes).map_err(in_words)?;
    Ok(Superblock::decode(&bytes))
}

/// What whole regions take of a size. A file that ended within a region would lose that region's end when it is
/// made smaller, and show what is left of it when it is made larger again.
fn whole_regions(superblock: &Superblock, size_bytes: u64) -> u64 {
    let geometry = Geometry::fit(superblock.region_bytes, size_bytes);
    geometry.offset_bytes(geometry.regions)
}

/// Writes a new log's superblock and waits until it is on stable media. What lies on a device before the
/// first region is wiped, so that nothing else is found there. `path` is where the log will be when it is made.
fn write_superblock(file: &Medium, path: &Path, config: &CacheConfig) -> Result<Superblock> {
    let path = path.display();
    let sized = file.geometry();
    let geometry = Geometry::choose(sized.capacity_bytes, config.cores).with_context(|| {
        format!("cannot make a cache at {path}: give a larger --cache-size, or fewer --cores")
    })?;
    let superblock = Superblock {
        log: random_log_id()?,
        region_bytes: geometry.region_bytes,
        sector_bytes: sized.sector_bytes,
        created_ns: now_ns(),
        owner: config.owner.to_string(),
    };
    let mut device = Blocking::on(file)?;
    let page = superblock.encode();
    // A new file is empty; a device may hold other signatures.
    let wiped = match file.is_device() {
        true => vec![0; DATA_OFFSET_BYTES as usize - page.len()],
        false => Vec::new(),
    };
    let written = [(page.len() as u64, wiped.as_slice()), (0, &page)]
        .into_iter()
        .try_for_each(|(at, bytes)| {
            device.write(at, bytes)?;
            device.flush()
        });
    written
        .map_err(in_words)
        .with_context(|| format!("cannot make a cache at {path}"))?;
    tracing::info!(
        "made a cache of {} at {path}, with {} regions of {}",
        Bytes(sized.capacity_bytes),
        geometry.regions,
        Bytes(u64::from(geometry.region_bytes))
    );
    Ok(superblock)
}

fn random_log_id() -> Result<LogId> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("the kernel gives no random numbers")?;
    if filled < bytes.len() {
        bail!("the kernel gives too few random numbers");
    }
    Ok(LogId(u128::from_le_bytes(bytes)))
}

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since
        .ok()
        .and_then(|since| u64::try_from(since.as_nanos()).ok())
        .unwrap_or(1)
}

/// How large each log shall be; none for all of a block device.
fn sizes(claims: &[Claim], config: &CacheConfig) -> Result<Vec<Option<u64>>> {
    if let Some(Bytes(total)) = config.size {
        let part = total / claims.len() as u64 / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        return Ok(vec![Some(part); claims.len()]);
    }
    let rooms = claims.iter().map(|claim| match &claim.place {
        Place::Directory(dir) => Room::of(dir)
            .map(Some)
            .with_context(|| format!("cannot ask for the free space of {}", dir.display())),
        Place::Device(_) | Place::Nvme(_) => Ok(None),
    });
    let rooms = rooms.collect::<Result<Vec<Option<Room>>>>()?;
    let one = |(claim, room): (&Claim, &Option<Room>)| {
        let Some(room) = room else { return Ok(None) };
        let same = |other: &&Option<Room>| other.is_some_and(|other| other.device == room.device);
        let sharers = rooms.iter().filter(same).count();
        default_size(claim, room, sharers, config.free_space_ratio).map(Some)
    };
    claims.iter().zip(&rooms).map(one).collect()
}

/// A log that is there keeps at least its size: its file is sparse, and what it may occupy follows the
/// free space while it is used.
fn default_size(claim: &Claim, room: &Room, sharers: usize, ratio: Share) -> Result<u64> {
    let path: PathBuf = claim.place.log_path();
    let (length, held) = match fs::metadata(&path) {
        Ok(meta) => {
            use std::os::unix::fs::MetadataExt;
            (meta.len(), meta.blocks() * 512)
        }
        Err(_) => (0, 0),
    };
    let default = room.default_bytes(held, ratio, sharers);
    let size = length.max(default / PAGE_BYTES as u64 * PAGE_BYTES as u64);
    if size < DATA_OFFSET_BYTES {
        bail!(
            "the file system of {} has {} free of {}, which is no more than --free-space-ratio {ratio}: free some space, \
             or set --cache-size and a smaller ratio",
            claim.name,
            Bytes(room.free_bytes),
            Bytes(room.total_bytes)
        );
    }
    Ok(size)
}

#[cfg(test)]
mod tests;
