//! What an errno of a disk means to the engine.

use forebay_engine::ports::DeviceError;
use rustix::io::Errno;

/// Whether the kernel asks to try again.
pub(crate) fn is_transient(errno: Errno) -> bool {
    matches!(errno, Errno::INTR | Errno::AGAIN)
}

/// Whether the file system or device lacks the operation.
pub(crate) fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY)
}

/// `otherwise` is what an errno means that says nothing in particular: the media for reads, the
/// write for everything else.
pub(crate) fn device_error(errno: Errno, otherwise: DeviceError) -> DeviceError {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => DeviceError::NoSpace,
        Errno::ROFS | Errno::PERM | Errno::ACCESS => DeviceError::ReadOnly,
        Errno::NODEV
        | Errno::NXIO
        | Errno::BADF
        | Errno::NOMEDIUM
        | Errno::STALE
        | Errno::NOTCONN
        | Errno::SHUTDOWN
        | Errno::NOENT => DeviceError::Gone,
        _ => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_has_a_meaning() {
        let write = |errno| device_error(errno, DeviceError::Write);
        assert_eq!(write(Errno::NOSPC), DeviceError::NoSpace);
        assert_eq!(write(Errno::DQUOT), DeviceError::NoSpace);
        assert_eq!(write(Errno::ROFS), DeviceError::ReadOnly);
        assert_eq!(write(Errno::NODEV), DeviceError::Gone);
        assert_eq!(write(Errno::BADF), DeviceError::Gone);
        assert_eq!(write(Errno::IO), DeviceError::Write);
        assert_eq!(
            device_error(Errno::IO, DeviceError::Media),
            DeviceError::Media
        );
        for raw in 1..4096 {
            write(Errno::from_raw_os_error(raw));
        }
    }
}
