//! A file or block device, opened once and shared by the queue pairs of all cores.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_engine::limits::PAGE_BYTES;
use forebay_engine::ports::DeviceGeometry;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use crate::device::UringDevice;
use crate::namespace::{Namespace, block_device_of};
use crate::setup::SetupError;

/// The largest sector that the engine's pages fit.
const SECTOR_BYTES_MAX: u32 = PAGE_BYTES as u32;
/// The smallest sector there is.
const SECTOR_BYTES_MIN: u32 = 512;

/// How a file or device is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Bytes to be used, rounded down to whole sectors. `None` takes the block device's size, or
    /// the file's length.
    pub capacity_bytes: Option<u64>,
    /// Creates the file when it is not there.
    pub create: bool,
    /// Writes and discards end in `DeviceError::ReadOnly`; nothing about the file is changed.
    pub read_only: bool,
    /// Does not even try `O_DIRECT`.
    pub buffered: bool,
}

/// Why a file or device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel refused a step.
    #[error("cannot {step} {path}: {error}", path = path.display())]
    Refused {
        /// What was tried.
        step: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// Somebody else uses the block device.
    #[error("{path} is in use (mounted, or opened by another program): give another device", path = .0.display())]
    Busy(PathBuf),
    /// Neither a file nor a block device.
    #[error("{path} is neither a file nor a block device", path = .0.display())]
    Kind(PathBuf),
    /// A sector size that the engine cannot use.
    #[error("{path} has sectors of {sector_bytes} bytes; 512 and 4,096 can be used", path = path.display())]
    Sector {
        /// Of which device.
        path: PathBuf,
        /// What it has.
        sector_bytes: u32,
    },
    /// Smaller than what is asked for, or empty.
    #[error("{path} has {have_bytes} bytes, and {want_bytes} are asked for", path = path.display())]
    Size {
        /// Which file or device.
        path: PathBuf,
        /// What there is.
        have_bytes: u64,
        /// What is wanted.
        want_bytes: u64,
    },
}

impl OpenError {
    /// What the kernel said, when it was the kernel that refused.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            OpenError::Refused { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// An opened file or block device. Each core makes a queue pair of its own on it.
#[derive(Debug)]
pub struct UringFile {
    path: PathBuf,
    fd: OwnedFd,
    geometry: DeviceGeometry,
    block_device: bool,
    direct: bool,
    read_only: bool,
    /// The namespace, when it was opened by its character device.
    pub(crate) namespace: Option<Namespace>,
    /// What is told once for all queue pairs.
    pub(crate) told: Told,
}

/// Where a file is that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Where it was opened; a block device always.
    InPlace,
    /// It has no name any more: it is gone once it is closed.
    Removed,
    /// Another file is there or none: it was moved, or its file system was unmounted or covered.
    Elsewhere,
}

/// Warnings that were given already.
#[derive(Debug, Default)]
pub(crate) struct Told {
    no_fixed_buffers: AtomicBool,
    pub(crate) older_kernel: AtomicBool,
}

impl Told {
    pub(crate) fn no_fixed_buffers(&self, file: &UringFile, error: &io::Error) {
        if Self::first(&self.no_fixed_buffers) {
            tracing::warn!(
                "{}: buffers are not registered with the kernel ({error}); each read and write costs a little \
                 more. Raise the limit on locked memory (ulimit -l, LimitMEMLOCK=) to --memory",
                file.path().display()
            );
        }
    }

    pub(crate) fn no_fixed_commands(&self, file: &UringFile) {
        if Self::first(&self.no_fixed_buffers) {
            tracing::info!(
                "{}: this kernel takes no parts of registered buffers for NVMe commands; each costs a little more \
                 than on Linux 6.12 or later",
                file.path().display()
            );
        }
    }

    /// True the first time.
    pub(crate) fn first(told: &AtomicBool) -> bool {
        !told.swap(true, Ordering::Relaxed)
    }
}

impl UringFile {
    /// Opens `path` for whole-sector I/O, with `O_DIRECT` where it works; where it does not, a
    /// warning names the path. A writable file shorter than its capacity becomes sparse up to it. A block device
    /// is opened exclusively for writing. The character device of an NVMe
    /// namespace (`/dev/ngXnY`) is one with its block device: reads and writes are NVMe commands, all else goes to the block device.
    ///
    /// # Errors
    /// [`OpenError`]; its text names the path.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Arc<Self>, OpenError> {
        let block = block_device_of(path);
        let named = path;
        let path = block.as_deref().unwrap_or(path);
        let opening = Opening { path, options };
        opening.create()?;
        let (fd, stat, mut direct) = opening.open_any()?;
        let block_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let (sector_bytes, have_bytes) = if block_device {
            opening.block_device(&fd)?
        } else {
            let sector = if direct {
                opening.file_sector(&fd)
            } else {
                None
            };
            // A file system without an answer still shows at the first read.
            direct &= sector != Some(0);
            (
                sector
                    .filter(|bytes| *bytes > 0)
                    .unwrap_or(SECTOR_BYTES_MAX),
                opening.grow(&fd, stat.st_size as u64)?,
            )
        };
        let capacity_bytes = opening.capacity(block_device, sector_bytes, have_bytes)?;
        if direct && !opening.reads(&fd)? {
            direct = false;
        }
        let fd = if direct || options.buffered {
            fd
        } else {
            tracing::warn!(
                "{} does not take O_DIRECT: it is read and written through the page cache",
                path.display()
            );
            opening.open(false).map_err(opening.refused("open"))?
        };
        let namespace = match &block {
            Some(block) => {
                // Whatever somebody has made there would keep nobody away from the namespace.
                if !block_device || !is_named(block, &stat) {
                    return Err(OpenError::Kind(block.clone()));
                }
                let opened = Namespace::open(named, block, sector_bytes, options.read_only);
                Some(opened.map_err(|error| OpenError::Refused {
                    step: "send NVMe commands to",
                    path: named.to_owned(),
                    error,
                })?)
            }
            None => None,
        };
        Ok(Arc::new(Self {
            path: named.to_owned(),
            fd,
            geometry: DeviceGeometry {
                sector_bytes,
                capacity_bytes,
            },
            block_device,
            direct,
            read_only: options.read_only,
            namespace,
            told: Told::default(),
        }))
    }

    /// A queue pair for the calling thread, with at most `depth` operations under way.
    /// What is used of `arena_addresses` (see `Arena::addresses`) is registered as fixed memory, as far as
    /// the limit on locked memory allows.
    ///
    /// # Errors
    /// When the kernel refuses a ring.
    pub fn queue_pair(
        self: &Arc<Self>,
        arena_addresses: Range<usize>,
        depth: usize,
    ) -> Result<UringDevice, SetupError> {
        UringDevice::new(self.clone(), arena_addresses, depth)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size and granularity.
    pub fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    /// Whether it is a block device; otherwise it is a file.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// Whether reads and writes are NVMe commands of ours, past the kernel's block layer.
    pub fn is_passthrough(&self) -> bool {
        self.namespace.is_some()
    }

    /// What the controller of an NVMe namespace says of its health: the log page "SMART / Health Information". Waits for it. None for
    /// what is no NVMe namespace.
    ///
    /// # Errors
    /// What the kernel or the controller says; the kernel tells root only.
    pub fn health(&self) -> io::Result<Option<Box<[u8; 512]>>> {
        if !self.block_device {
            return Ok(None);
        }
        match crate::namespace::health(&self.fd) {
            Ok(page) => Ok(Some(page)),
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether reads and writes bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether it was opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Reads `len_bytes` at `offset_bytes` and waits for it: for opening, formatting and inspecting, not
    /// for cores. What a file never held reads as zeros.
    ///
    /// # Errors
    /// What the kernel says; `InvalidInput` for a range that is not whole sectors within the capacity.
    pub fn read_at(&self, offset_bytes: u64, len_bytes: usize) -> io::Result<Vec<u8>> {
        self.check_range(offset_bytes, len_bytes)?;
        let mut space = vec![0u8; len_bytes + PAGE_BYTES];
        let start = space.as_ptr().align_offset(PAGE_BYTES);
        let bytes = &mut space[start..start + len_bytes];
        let mut done = 0;
        while done < len_bytes {
            match rustix::io::pread(&self.fd, &mut bytes[done..], offset_bytes + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                // Beyond an odd end of the file there is nothing more.
                Err(Errno::INVAL) if done > 0 => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(bytes.to_vec())
    }

    /// Writes `bytes` at `offset_bytes` and waits for it, see [`UringFile::read_at`]. Durable after
    /// [`UringFile::sync`].
    ///
    /// # Errors
    /// As for [`UringFile::read_at`].
    pub fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_range(offset_bytes, bytes.len())?;
        let mut space = vec![0u8; bytes.len() + PAGE_BYTES];
        let start = space.as_ptr().align_offset(PAGE_BYTES);
        let aligned = &mut space[start..start + bytes.len()];
        aligned.copy_from_slice(bytes);
        let mut done = 0;
        while done < aligned.len() {
            match rustix::io::pwrite(&self.fd, &aligned[done..], offset_bytes + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Waits until what was written is on stable media.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }

    fn check_range(&self, offset_bytes: u64, len_bytes: usize) -> io::Result<()> {
        if in_range(&self.geometry, offset_bytes, len_bytes as u64) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{len_bytes} bytes at {offset_bytes} of {} are not whole sectors within it",
                self.path.display()
            ),
        ))
    }

    /// Gives back what a file holds beyond its capacity, after it was made smaller. Nothing for a
    /// block device or a shorter file.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn trim(&self) -> io::Result<()> {
        let length = rustix::fs::fstat(&self.fd)?.st_size as u64;
        if !self.block_device && !self.read_only && length > self.geometry.capacity_bytes {
            rustix::fs::ftruncate(&self.fd, self.geometry.capacity_bytes)?;
        }
        Ok(())
    }

    /// Whether the path that it was opened by still leads to it.
    ///
    /// # Errors
    /// What the kernel says, other than that nothing is there.
    pub fn presence(&self) -> io::Result<Presence> {
        if self.block_device {
            return Ok(Presence::InPlace);
        }
        let open = rustix::fs::fstat(&self.fd)?;
        if open.st_nlink == 0 {
            return Ok(Presence::Removed);
        }
        match rustix::fs::stat(&self.path) {
            Ok(found) if (found.st_dev, found.st_ino) == (open.st_dev, open.st_ino) => {
                Ok(Presence::InPlace)
            }
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(Presence::Elsewhere),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Bytes that the file takes on its disk: what was written and not discarded, rounded up to the
    /// file system's blocks. For a block device its capacity.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn allocated_bytes(&self) -> io::Result<u64> {
        if self.block_device {
            return Ok(self.geometry.capacity_bytes);
        }
        Ok(rustix::fs::fstat(&self.fd)?.st_blocks as u64 * 512)
    }
}

impl AsFd for UringFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether a range is whole sectors within the device.
pub(crate) fn in_range(geometry: &DeviceGeometry, offset_bytes: u64, len_bytes: u64) -> bool {
    let sector = u64::from(geometry.sector_bytes);
    offset_bytes.is_multiple_of(sector)
        && len_bytes.is_multiple_of(sector)
        && offset_bytes
            .checked_add(len_bytes)
            .is_some_and(|end| end <= geometry.capacity_bytes)
}

/// Whether what was opened is the block device of that name.
fn is_named(block: &Path, stat: &Stat) -> bool {
    let name = block.file_name().unwrap_or_default();
    let told = std::fs::read_to_string(Path::new("/sys/class/block").join(name).join("dev"));
    let (major, minor) = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    told.is_ok_and(|told| told.trim() == format!("{major}:{minor}"))
}

/// One attempt to open something.
struct Opening<'a> {
    path: &'a Path,
    options: &'a OpenOptions,
}

impl Opening<'_> {
    fn refused(&self, step: &'static str) -> impl FnOnce(Errno) -> OpenError + '_ {
        move |errno| OpenError::Refused {
            step,
            path: self.path.to_owned(),
            error: errno.into(),
        }
    }

    /// Makes the file, and its name durable, when it is to be made and is not there.
    fn create(&self) -> Result<(), OpenError> {
        if !self.options.create || self.options.read_only {
            return Ok(());
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(self.path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(_) => {}
            Err(Errno::EXIST) => return Ok(()),
            Err(errno) => return Err(self.refused("create")(errno)),
        }
        let parent = self.path.parent().filter(|path| path != &Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let synced = rustix::fs::open(parent, flags, Mode::empty()).and_then(rustix::fs::fsync);
        // Some file systems cannot flush a directory; there the name is as durable as they make it.
        match synced {
            Err(errno) if errno != Errno::INVAL => {
                Err(self.refused("make durable the name of")(errno))
            }
            _ => Ok(()),
        }
    }

    fn open(&self, direct: bool) -> Result<OwnedFd, Errno> {
        let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
        flags |= if self.options.read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        if direct {
            flags |= OFlags::DIRECT;
        }
        let block_device = rustix::fs::stat(self.path)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
        if block_device && !self.options.read_only {
            // Without O_CREAT this asks for a device that nobody has mounted or claimed.
            flags |= OFlags::EXCL;
        }
        let fd = rustix::fs::open(self.path, flags, Mode::empty())?;
        // It was there so that opening a pipe does not wait; disks are read and written as ever.
        let status = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, status - OFlags::NONBLOCK)?;
        Ok(fd)
    }

    /// Opens with `O_DIRECT` if that is wanted and taken. True with the descriptor when it is.
    fn open_any(&self) -> Result<(OwnedFd, Stat, bool), OpenError> {
        let (opened, direct) = match self.open(!self.options.buffered) {
            Err(Errno::INVAL) if !self.options.buffered => (self.open(false), false),
            other => (other, !self.options.buffered),
        };
        let fd = opened.map_err(|errno| match errno {
            Errno::BUSY => OpenError::Busy(self.path.to_owned()),
            Errno::ISDIR => OpenError::Kind(self.path.to_owned()),
            errno => self.refused("open")(errno),
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(self.refused("look at"))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::BlockDevice => Ok((fd, stat, direct)),
            _ => Err(OpenError::Kind(self.path.to_owned())),
        }
    }

    /// Sector size and size of a block device.
    fn block_device(&self, fd: &OwnedFd) -> Result<(u32, u64), OpenError> {
        let sector_bytes =
            rustix::fs::ioctl_blksszget(fd).map_err(self.refused("ask the sector size of"))?;
        if ![SECTOR_BYTES_MIN, SECTOR_BYTES_MAX].contains(&sector_bytes) {
            return Err(OpenError::Sector {
                path: self.path.to_owned(),
                sector_bytes,
            });
        }
        let bytes = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0))
            .map_err(self.refused("ask the size of"))?;
        Ok((sector_bytes, bytes))
    }

    /// What the file system says about direct I/O on a file: its alignment, 0 when the engine
    /// cannot use it, `None` when it does not say.
    fn file_sector(&self, fd: &OwnedFd) -> Option<u32> {
        let statx = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        if !StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::DIOALIGN) {
            return None;
        }
        let (offset, memory) = (statx.stx_dio_offset_align, statx.stx_dio_mem_align);
        if offset == 0 || offset > SECTOR_BYTES_MAX || memory > SECTOR_BYTES_MAX {
            return Some(0);
        }
        Some(if offset <= SECTOR_BYTES_MIN {
            SECTOR_BYTES_MIN
        } else {
            SECTOR_BYTES_MAX
        })
    }

    /// Makes a writable file at least as long as its capacity: writes that do not change the length
    /// are cheaper, and reads of what was never written find zeros. Returns the length.
    fn grow(&self, fd: &OwnedFd, length: u64) -> Result<u64, OpenError> {
        let wanted = self.options.capacity_bytes.unwrap_or(length);
        if !self.options.read_only && wanted > length {
            rustix::fs::ftruncate(fd, wanted).map_err(self.refused("make room in"))?;
        }
        // What a file lacks of its capacity reads as zeros.
        Ok(wanted.max(length))
    }

    fn capacity(
        &self,
        block_device: bool,
        sector_bytes: u32,
        have_bytes: u64,
    ) -> Result<u64, OpenError> {
        let want_bytes = self.options.capacity_bytes.unwrap_or(have_bytes);
        let usable = want_bytes / u64::from(sector_bytes) * u64::from(sector_bytes);
        if usable == 0 || (block_device && want_bytes > have_bytes) {
            return Err(OpenError::Size {
                path: self.path.to_owned(),
                have_bytes,
                want_bytes: want_bytes.max(u64::from(sector_bytes)),
            });
        }
        Ok(usable)
    }

    /// Whether a direct read works: some file systems take the flag and refuse the I/O.
    fn reads(&self, fd: &OwnedFd) -> Result<bool, OpenError> {
        let mut space = vec![0u8; 2 * PAGE_BYTES];
        let at = space.as_ptr().align_offset(PAGE_BYTES);
        match rustix::io::pread(fd, &mut space[at..at + PAGE_BYTES], 0) {
            Err(Errno::INVAL) => Ok(false),
            // A page that cannot be read is for the log to judge, not a reason to refuse the disk.
            _ => Ok(true),
        }
    }
}
