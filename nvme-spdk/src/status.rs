//! What an NVMe status means to the engine. Numbers are those of the NVM Express base specification, figure "Status Code".

use forebay_engine::ports::DeviceError;

/// The status field of a completion, with its phase bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub u16);

/// What kind of status it is.
const GENERIC: u8 = 0;
const COMMAND: u8 = 1;
const MEDIA: u8 = 2;
const PATH: u8 = 3;

impl Status {
    /// Status code type.
    fn kind(self) -> u8 {
        (self.0 >> 9) as u8 & 7
    }

    /// Status code.
    fn code(self) -> u8 {
        (self.0 >> 1) as u8
    }

    /// How the operation ended. `otherwise` is what a status means that says nothing in particular: the media for reads,
    /// the write for everything else.
    pub(crate) fn result(self, otherwise: DeviceError) -> Result<(), DeviceError> {
        let for_writes = match otherwise {
            DeviceError::Write => DeviceError::ReadOnly,
            other => other,
        };
        Err(match (self.kind(), self.code()) {
            (GENERIC, 0) => return Ok(()),
            // Aborted, because the queue is deleted, the controller reset, or the host gave the path up.
            (GENERIC, 0x07 | 0x08 | 0x19) | (PATH, 0x70 | 0x71) => DeviceError::Gone,
            // The namespace is not there any more, is smaller than it was, or cannot be reached for good.
            (GENERIC, 0x0b | 0x80) | (PATH, 0x01) => DeviceError::Gone,
            (GENERIC, 0x20) | (COMMAND, 0x82) => DeviceError::ReadOnly,
            // Another host has reserved it; access is denied.
            (GENERIC, 0x83) | (MEDIA, 0x86) => for_writes,
            (GENERIC, 0x81) => DeviceError::NoSpace,
            (MEDIA, 0x80) => DeviceError::Write,
            (MEDIA, 0x81..=0x85 | 0x87) => DeviceError::Media,
            _ => otherwise,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(kind: u8, code: u8) -> Status {
        Status(u16::from(kind) << 9 | u16::from(code) << 1)
    }

    #[test]
    fn every_status_has_a_meaning() {
        let write = |kind, code| status(kind, code).result(DeviceError::Write);
        let read = |kind, code| status(kind, code).result(DeviceError::Media);
        assert_eq!(write(GENERIC, 0), Ok(()));
        // The phase bit and "do not retry" say nothing.
        assert_eq!(Status(0x0001).result(DeviceError::Media), Ok(()));
        assert_eq!(
            Status(0x8000 | 0x08 << 1).result(DeviceError::Media),
            Err(DeviceError::Gone)
        );
        assert_eq!(write(GENERIC, 0x20), Err(DeviceError::ReadOnly));
        assert_eq!(write(GENERIC, 0x83), Err(DeviceError::ReadOnly));
        assert_eq!(read(GENERIC, 0x83), Err(DeviceError::Media));
        assert_eq!(write(GENERIC, 0x81), Err(DeviceError::NoSpace));
        assert_eq!(read(GENERIC, 0x80), Err(DeviceError::Gone));
        assert_eq!(read(MEDIA, 0x81), Err(DeviceError::Media));
        assert_eq!(write(MEDIA, 0x80), Err(DeviceError::Write));
        assert_eq!(read(GENERIC, 0x06), Err(DeviceError::Media));
        assert_eq!(write(GENERIC, 0x06), Err(DeviceError::Write));
        assert_eq!(read(PATH, 0x71), Err(DeviceError::Gone));
        for raw in 0..=u16::MAX {
            let ok = raw & 0x0ffe == 0;
            assert_eq!(
                Status(raw).result(DeviceError::Media).is_ok(),
                ok,
                "{raw:#x}"
            );
        }
    }
}
