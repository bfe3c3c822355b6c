//! Numbers of enumerations on the wire. A number is never used again for something else.

use super::WireError;
use crate::errors::OriginErrorKind;
use crate::ports::{Class, PeerFailure};

const ORIGIN_KINDS: [(u8, OriginErrorKind); 11] = [
    (1, OriginErrorKind::NotFound),
    (2, OriginErrorKind::NoSuchBucket),
    (3, OriginErrorKind::Denied),
    (4, OriginErrorKind::WrongRegion),
    (5, OriginErrorKind::VersionChanged),
    (6, OriginErrorKind::Throttled),
    (7, OriginErrorKind::Unavailable),
    (8, OriginErrorKind::Timeout),
    (9, OriginErrorKind::ShortBody),
    (10, OriginErrorKind::BadAnswer),
    (11, OriginErrorKind::Cancelled),
];

pub(super) fn origin_kind_code(kind: OriginErrorKind) -> u8 {
    match kind {
        OriginErrorKind::NotFound => 1,
        OriginErrorKind::NoSuchBucket => 2,
        OriginErrorKind::Denied => 3,
        OriginErrorKind::WrongRegion => 4,
        OriginErrorKind::VersionChanged => 5,
        OriginErrorKind::Throttled => 6,
        OriginErrorKind::Unavailable => 7,
        OriginErrorKind::Timeout => 8,
        OriginErrorKind::ShortBody => 9,
        OriginErrorKind::BadAnswer => 10,
        OriginErrorKind::Cancelled => 11,
    }
}

pub(super) fn origin_kind(code: u8) -> Result<OriginErrorKind, WireError> {
    let found = ORIGIN_KINDS.iter().find(|(known, _)| *known == code);
    found
        .map(|(_, kind)| *kind)
        .ok_or(WireError::Unknown("kind of origin failure"))
}

pub(super) fn class_code(class: Class) -> u8 {
    match class {
        Class::Demand => 1,
        Class::Prefetch => 2,
        Class::WarmUp => 3,
    }
}

pub(super) fn class(code: u8) -> Result<Class, WireError> {
    match code {
        1 => Ok(Class::Demand),
        2 => Ok(Class::Prefetch),
        3 => Ok(Class::WarmUp),
        _ => Err(WireError::Unknown("class")),
    }
}

/// A failure, and for one of the origin's its kind.
pub(super) fn failure_codes(failure: PeerFailure) -> (u8, u8) {
    match failure {
        PeerFailure::Origin(kind) => (1, origin_kind_code(kind)),
        PeerFailure::Checksum => (2, 0),
        PeerFailure::Deadline => (3, 0),
        PeerFailure::Shutdown => (4, 0),
        PeerFailure::Invalid => (5, 0),
        PeerFailure::Elsewhere => (6, 0),
    }
}

pub(super) fn failure(code: u8, kind: u8) -> Result<PeerFailure, WireError> {
    match (code, kind) {
        (1, kind) => Ok(PeerFailure::Origin(origin_kind(kind)?)),
        (2, 0) => Ok(PeerFailure::Checksum),
        (3, 0) => Ok(PeerFailure::Deadline),
        (4, 0) => Ok(PeerFailure::Shutdown),
        (5, 0) => Ok(PeerFailure::Invalid),
        (6, 0) => Ok(PeerFailure::Elsewhere),
        _ => Err(WireError::Unknown("failure")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_number() {
        for (code, kind) in ORIGIN_KINDS {
            assert_eq!(origin_kind_code(kind), code);
        }
        assert!(origin_kind(0).is_err() && origin_kind(12).is_err());
    }
}
