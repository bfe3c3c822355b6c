//! An NVMe namespace by its character device (`/dev/ngXnY`): commands go to it as they are, past the kernel's block layer.
//!
//! The block device of the same namespace stays open beside it: it keeps others away, says how large sectors are, and takes
//! flushes and discards.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

/// `NVME_IOCTL_ID` of `linux/nvme_ioctl.h`.
const IOCTL_ID: libc::c_ulong = 0x4e40;
/// `NVME_IOCTL_ADMIN_CMD`: _IOWR('N', 0x41, 72 bytes).
const IOCTL_ADMIN: libc::c_ulong = 0xc048_4e41;
/// `NVME_URING_CMD_IO`: _IOWR('N', 0x80, 72 bytes).
pub(crate) const URING_CMD_IO: u32 = 0xc048_4e80;

const ADMIN_IDENTIFY: u8 = 0x06;
const ADMIN_GET_LOG_PAGE: u8 = 0x02;
const LOG_HEALTH: u32 = 0x02;
/// Bytes of that log page.
pub(crate) const HEALTH_BYTES: usize = 512;
const IDENTIFY_BYTES: usize = 4096;
const NVM_WRITE: u8 = 0x01;
const NVM_READ: u8 = 0x02;
/// Blocks of one command: sixteen bits, counted from zero.
const BLOCKS_MAX: usize = 1 << 16;
/// What devices take whose driver says nothing.
const COMMAND_BYTES_MIN: usize = 4096;

/// `struct nvme_passthru_cmd` and `struct nvme_uring_cmd`, which differ in the name of the last field.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Command {
    opcode: u8,
    flags: u8,
    rsvd1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Command>() == 72);

impl Command {
    /// As an entry of a ring holds it.
    fn encode(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0] = self.opcode;
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(4, &self.nsid.to_ne_bytes());
        put(24, &self.addr.to_ne_bytes());
        put(36, &self.data_len.to_ne_bytes());
        put(40, &self.cdw10.to_ne_bytes());
        put(44, &self.cdw11.to_ne_bytes());
        put(48, &self.cdw12.to_ne_bytes());
        bytes
    }
}

/// An opened namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    fd: OwnedFd,
    id: u32,
    sector_bytes: u32,
    /// The longest transfer of one command.
    pub command_bytes: usize,
}

/// The block device of the namespace whose character device `path` is; none when it is no such device.
pub fn block_device_of(path: &Path) -> Option<PathBuf> {
    let stat = rustix::fs::stat(path).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice {
        return None;
    }
    let (major, minor) = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    let link = fs::read_link(format!("/sys/dev/char/{major}:{minor}")).ok()?;
    let block = block_name(link.file_name()?.to_str()?)?;
    Some(Path::new("/dev").join(block))
}

/// `ng0n1` is `nvme0n1` by other means.
fn block_name(character: &str) -> Option<String> {
    let rest = character.strip_prefix("ng")?;
    let (controller, namespace) = rest.split_once('n')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(controller) && is_number(namespace)).then(|| format!("nvme{rest}"))
}

impl Namespace {
    /// Opens the character device of a namespace whose block device has sectors of `sector_bytes`.
    ///
    /// # Errors
    /// What the kernel says; `Unsupported` for a format that reads and writes of whole sectors do not fit.
    pub fn open(
        path: &Path,
        block: &Path,
        sector_bytes: u32,
        read_only: bool,
    ) -> io::Result<Namespace> {
        let access = if read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        let flags = access | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let id = id_of(&fd)?;
        let identified = identify(&fd, id)?;
        let (sector, metadata_bytes) = format_of(&identified);
        if sector != Some(sector_bytes) || metadata_bytes != 0 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "its sectors carry {metadata_bytes} bytes of metadata: format it without, or give {}",
                    block.display()
                ),
            ));
        }
        Ok(Namespace {
            fd,
            id,
            sector_bytes,
            command_bytes: command_bytes(block, sector_bytes),
        })
    }

    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// The command that reads or writes `len_bytes` of whole sectors at `offset_bytes`, to or from `address`; at most
    /// `command_bytes`.
    pub fn transfer(
        &self,
        writes: bool,
        offset_bytes: u64,
        address: usize,
        len_bytes: usize,
    ) -> [u8; 80] {
        let sector = u64::from(self.sector_bytes);
        let (first, count) = (offset_bytes / sector, len_bytes as u64 / sector);
        let command = Command {
            opcode: if writes { NVM_WRITE } else { NVM_READ },
            nsid: self.id,
            addr: address as u64,
            data_len: len_bytes as u32,
            cdw10: first as u32,
            cdw11: (first >> 32) as u32,
            cdw12: (count.saturating_sub(1)) as u32,
            ..Command::default()
        };
        command.encode()
    }
}

/// What a command may transfer at once, as the driver says of the block device.
fn command_bytes(block: &Path, sector_bytes: u32) -> usize {
    let name = block.file_name().unwrap_or_default();
    let queue = Path::new("/sys/class/block").join(name).join("queue");
    let number = |file: &str| -> Option<usize> {
        fs::read_to_string(queue.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let by_length = number("max_hw_sectors_kb").map(|kib| kib << 10);
    // Each page may lie elsewhere.
    let by_pieces = number("max_segments").map(|count| count << 12);
    let told = by_length.into_iter().chain(by_pieces).min();
    let most = BLOCKS_MAX * sector_bytes as usize;
    let bytes = told.unwrap_or(0).clamp(COMMAND_BYTES_MIN, most);
    bytes - bytes % COMMAND_BYTES_MIN
}

/// The log page "SMART / Health Information" of a controller, by one of its namespaces, block or character device. Waits for the
/// controller; the kernel gives it to root (CAP_SYS_ADMIN) only.
///
/// # Errors
/// What the kernel says, of another device than NVMe's too; or the controller's status.
pub(crate) fn health(fd: &OwnedFd) -> io::Result<Box<[u8; HEALTH_BYTES]>> {
    // Another driver may know another call by the same number.
    id_of(fd)?;
    let mut bytes = Box::new([0; HEALTH_BYTES]);
    let dwords = (HEALTH_BYTES / 4 - 1) as u32;
    let page = LOG_HEALTH | dwords << 16;
    admin(fd, ADMIN_GET_LOG_PAGE, u32::MAX, page, &mut bytes[..])?;
    Ok(bytes)
}

fn id_of(fd: &OwnedFd) -> io::Result<u32> {
    // SAFETY: this call takes no argument; another device than NVMe's refuses it.
    let id = unsafe { libc::ioctl(fd.as_raw_fd(), IOCTL_ID) };
    u32::try_from(id).map_err(|_| io::Error::last_os_error())
}

fn identify(fd: &OwnedFd, id: u32) -> io::Result<Box<[u8; IDENTIFY_BYTES]>> {
    let mut bytes = Box::new([0; IDENTIFY_BYTES]);
    admin(fd, ADMIN_IDENTIFY, id, 0, &mut bytes[..])?;
    Ok(bytes)
}

/// An admin command that only reads, and waits for it.
fn admin(fd: &OwnedFd, opcode: u8, id: u32, cdw10: u32, into: &mut [u8]) -> io::Result<()> {
    let mut command = Command {
        opcode,
        nsid: id,
        addr: into.as_mut_ptr().expose_provenance() as u64,
        data_len: into.len() as u32,
        cdw10,
        ..Command::default()
    };
    // SAFETY: the kernel reads and writes the command, and writes `data_len` bytes at `addr`: all of it lives, and is
    // borrowed for writing, until the call returns.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), IOCTL_ADMIN, &raw mut command) };
    match status {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        status => Err(io::Error::other(format!("NVMe status {status:#x}"))),
    }
}

/// The sector size of an identified namespace, and the bytes of metadata that each sector carries.
fn format_of(identified: &[u8; IDENTIFY_BYTES]) -> (Option<u32>, u16) {
    let chosen = identified[26];
    let index = usize::from(chosen & 0xf | chosen >> 1 & 0x30);
    let format = &identified[128 + 4 * index..][..4];
    let metadata_bytes = u16::from_le_bytes([format[0], format[1]]);
    (1_u32.checked_shl(u32::from(format[2])), metadata_bytes)
}

/// What the completion of a command means, as an errno below zero; 0 where it was done. The kernel puts NVMe's status there, or an errno of
/// its own.
pub(crate) fn errno_of(result: i32) -> i32 {
    if result <= 0 {
        return result;
    }
    let (code, is_final) = (result & 0x7ff, result & 0x4000 != 0);
    -match code {
        // Invalid namespace or format.
        0x00b => libc::ENODEV,
        // Namespace is write protected, or an access is denied.
        0x020 | 0x286 => libc::EROFS,
        // Capacity exceeded.
        0x081 => libc::ENOSPC,
        // The device says whether another try may do better: not ready, interrupted, a path that changes.
        _ if !is_final => libc::EAGAIN,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_device_names_its_block_device() {
        assert_eq!(block_name("ng0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(block_name("ng12n34").as_deref(), Some("nvme12n34"));
        for other in ["nvme0", "ng0", "ng0n", "ngn1", "ng0n1p1", "ngxn1", "null"] {
            assert_eq!(block_name(other), None, "{other}");
        }
        assert_eq!(block_device_of(Path::new("/dev/null")), None);
        assert_eq!(block_device_of(Path::new("/no/such")), None);
    }

    #[test]
    fn a_format_is_read_as_the_specification_has_it() {
        let mut identified = [0; IDENTIFY_BYTES];
        identified[128..132].copy_from_slice(&[0, 0, 9, 0]);
        assert_eq!(format_of(&identified), (Some(512), 0));
        identified[26] = 0b0010_0011;
        let at = 128 + 4 * 19;
        identified[at..at + 4].copy_from_slice(&[8, 0, 12, 0]);
        assert_eq!(format_of(&identified), (Some(4096), 8));
        identified[at + 2] = 200;
        assert_eq!(format_of(&identified).0, None);
    }

    #[test]
    fn commands_lie_where_the_kernel_reads_them() {
        let command = Command {
            opcode: 2,
            nsid: 7,
            addr: 0x1122_3344_5566_7788,
            data_len: 4096,
            cdw10: 10,
            cdw11: 11,
            cdw12: 12,
            ..Command::default()
        };
        let bytes = command.encode();
        let at = |place: usize| u32::from_ne_bytes(bytes[place..place + 4].try_into().unwrap());
        assert_eq!((bytes[0], at(std::mem::offset_of!(Command, nsid))), (2, 7));
        let address = std::mem::offset_of!(Command, addr);
        assert_eq!(bytes[address..address + 8], command.addr.to_ne_bytes());
        assert_eq!(at(std::mem::offset_of!(Command, data_len)), 4096);
        for (place, value) in [
            (std::mem::offset_of!(Command, cdw10), 10),
            (std::mem::offset_of!(Command, cdw11), 11),
            (std::mem::offset_of!(Command, cdw12), 12),
        ] {
            assert_eq!(at(place), value);
        }
    }

    #[test]
    fn every_status_has_a_meaning() {
        assert_eq!(errno_of(0), 0);
        assert_eq!(errno_of(-libc::EINTR), -libc::EINTR);
        assert_eq!(errno_of(0x4281), -libc::EIO, "an unrecovered read");
        for again in [0x006, 0x021, 0x022, 0x082, 0x281, 0x303, 0x370] {
            assert_eq!(errno_of(again), -libc::EAGAIN, "{again:#x}");
        }
        assert_eq!(
            errno_of(0x4370),
            -libc::EIO,
            "a path is no reason to give a disk up"
        );
        assert_eq!(errno_of(0x4082), -libc::EIO);
        assert_eq!(errno_of(0x4020), -libc::EROFS);
        assert_eq!(errno_of(0x400b), -libc::ENODEV);
        for status in 1..0x8000 {
            assert!(errno_of(status) < 0, "{status:#x}");
        }
    }
}
