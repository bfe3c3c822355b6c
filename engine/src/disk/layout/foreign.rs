//! Whose data a device holds when it is not ours: told to people before anything is overwritten.

/// What tells a format: bytes at an offset, and its name. The first that matches wins, so what is more
/// certain comes first.
const KNOWN: &[(usize, &[u8], &str)] = &[
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (16 << 10, b"SKUL\xba\xbe", "a LUKS volume"),
    (32 << 10, b"SKUL\xba\xbe", "a LUKS volume"),
    (64 << 10, b"SKUL\xba\xbe", "a LUKS volume"),
    (0, b"XFSB", "an XFS file system"),
    (0, b"dmvdo001", "a VDO volume"),
    (3, b"-FVE-FS-", "a BitLocker volume"),
    (0, b"bluestore block device", "a Ceph OSD"),
    (0, b"hsqs", "a SquashFS image"),
    (0, b"QFI\xfb", "a QEMU disk image"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (0, b"LABELONE", "an LVM physical volume"),
    (512, b"LABELONE", "an LVM physical volume"),
    (1024, b"LABELONE", "an LVM physical volume"),
    (1536, b"LABELONE", "an LVM physical volume"),
    (4086, b"SWAPSPACE2", "a swap area"),
    (4086, b"SWAP-SPACE", "a swap area"),
    (65_526, b"SWAPSPACE2", "a swap area"),
    (65_600, b"_BHRfS_M", "a btrfs file system"),
    (32_769, b"CD001", "an ISO 9660 file system"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of an MD RAID array"),
    (0, b"\xfc\x4e\x2b\xa9", "a member of an MD RAID array"),
    (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcache device"),
    (
        4120,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9",
        "a bcachefs file system",
    ),
    (1024, b"\xe2\xe1\xf5\xe0", "an EROFS image"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (510, b"\x55\xaa", "an MBR partition table"),
];

/// What lies at the end of a device whose beginning may be all zeros: bytes at the beginning of a sector. Where exactly depends on
/// the kind and on the device's size.
const AT_THE_END: &[(&[u8], &str)] = &[
    (b"\xfc\x4e\x2b\xa9", "a member of an MD RAID array"),
    (
        b"Intel Raid ISM Cfg Sig. ",
        "a member of an Intel (IMSM, VROC) RAID array",
    ),
    (b"\xde\x11\xde\x11", "a member of a DDF RAID array"),
    (
        b"Promise Technology, Inc.",
        "a member of a Promise RAID array",
    ),
    (b"NVIDIA  ", "a member of an NVIDIA RAID array"),
    (b"EFI PART", "a GPT partition table"),
];
/// What sectors are multiples of.
const SECTOR_BYTES: usize = 512;

/// ZFS keeps its configuration as a list of names and values in each label, from here
const ZFS_LABEL: std::ops::Range<usize> = 16 << 10..128 << 10;
/// on; this name is in every one.
const ZFS_NAME: &[u8] = b"pool_guid";

/// What the first bytes of a device look like.
pub(super) fn looks_like(bytes: &[u8]) -> &'static str {
    let known = KNOWN
        .iter()
        .find(|(offset, magic, _)| bytes.get(*offset..).is_some_and(|at| at.starts_with(magic)));
    match known {
        Some((_, _, name)) => name,
        None if is_zfs(bytes) => "a ZFS pool",
        None => UNKNOWN,
    }
}

/// What the last bytes of a device look like (1 MiB tells all that is known), which end where the device does; none when they are
/// all zeros.
pub(super) fn looks_like_at_the_end(bytes: &[u8]) -> Option<&'static str> {
    if bytes.iter().all(|byte| *byte == 0) {
        return None;
    }
    let sectors = bytes.len() / SECTOR_BYTES;
    let sectors = (1..=sectors).map(|n| &bytes[bytes.len() - n * SECTOR_BYTES..]);
    let known = sectors
        .flat_map(|sector| {
            AT_THE_END
                .iter()
                .find(|(magic, _)| sector.starts_with(magic))
        })
        .next();
    Some(match known {
        Some((_, name)) => name,
        None if has_pool(bytes) => "a ZFS pool",
        None => UNKNOWN,
    })
}

/// What nothing is known of.
pub(super) const UNKNOWN: &str = "unknown data";

fn has_pool(bytes: &[u8]) -> bool {
    bytes
        .windows(ZFS_NAME.len())
        .any(|window| window == ZFS_NAME)
}

fn is_zfs(bytes: &[u8]) -> bool {
    let label = &bytes[ZFS_LABEL.start.min(bytes.len())..ZFS_LABEL.end.min(bytes.len())];
    has_pool(label)
}
