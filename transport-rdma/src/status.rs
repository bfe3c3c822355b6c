//! What became of posted work.

/// The end of one piece of posted work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that it was posted with.
    pub work: u64,
    /// The queue pair that it was posted on.
    pub queue_pair: u32,
    /// What became of it.
    pub outcome: Result<Completed, WorkFault>,
}

/// Work that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// What it was.
    pub kind: WorkKind,
    /// Bytes received; means nothing for other work.
    pub len_bytes: u32,
}

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A message to the peer.
    Send,
    /// Bytes written into the peer's memory.
    Write,
    /// Bytes read from the peer's memory.
    Read,
    /// A message from the peer.
    Receive,
}

impl WorkKind {
    /// From `enum ibv_wc_opcode`; `None` for what this crate never posts.
    pub(crate) fn from_code(code: u32) -> Option<WorkKind> {
        match code {
            0 => Some(WorkKind::Send),
            1 => Some(WorkKind::Write),
            2 => Some(WorkKind::Read),
            128 => Some(WorkKind::Receive),
            _ => None,
        }
    }
}

/// Why work was not done. After each of them the queue pair is in error and takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkFault {
    /// A received message was longer than its buffer.
    #[error("the message is longer than the buffer posted for it")]
    LocalLength,
    /// The queue pair could not do this work.
    #[error("the queue pair cannot do this work")]
    LocalOperation,
    /// The local memory is not registered, or not for this.
    #[error("the local memory is not registered for this work")]
    LocalProtection,
    /// The queue pair was in error before this work was done. It may have been done in part.
    #[error("the queue pair went into error first")]
    Flushed,
    /// The peer answered with a packet that fits nothing.
    #[error("the peer's answer makes no sense")]
    BadResponse,
    /// The peer's message could not be put into local memory.
    #[error("local memory refused what the peer wrote")]
    LocalAccess,
    /// The peer's device refused the request as such.
    #[error("the peer's device refused the request as invalid")]
    RemoteRequest,
    /// The peer grants no such access to these bytes.
    #[error("the peer grants no such access to these bytes")]
    RemoteAccess,
    /// The peer's device could not do it.
    #[error("the peer's device failed to do it")]
    RemoteOperation,
    /// The peer did not acknowledge, however often it was sent.
    #[error("the peer did not acknowledge it: gone, or the link is down")]
    NoAnswer,
    /// The peer had no receive posted, however often it was sent.
    #[error("the peer had no receive posted")]
    ReceiverNotReady,
    /// Any other status; none is expected on reliable connections.
    #[error("the device tells status {0}, which Forebay does not know (vendor's code {1:#x})")]
    Unknown(u32, u32),
    /// The device says done of work that was never posted here.
    #[error("the device completed work of kind {0}, which Forebay does not post")]
    UnknownKind(u32),
}

impl WorkFault {
    /// From `enum ibv_wc_status`; `None` for success.
    pub(crate) fn from_code(code: u32, vendor_code: u32) -> Option<WorkFault> {
        Some(match code {
            0 => return None,
            1 => WorkFault::LocalLength,
            2 => WorkFault::LocalOperation,
            4 => WorkFault::LocalProtection,
            5 => WorkFault::Flushed,
            7 => WorkFault::BadResponse,
            8 => WorkFault::LocalAccess,
            9 => WorkFault::RemoteRequest,
            10 => WorkFault::RemoteAccess,
            11 => WorkFault::RemoteOperation,
            12 => WorkFault::NoAnswer,
            13 => WorkFault::ReceiverNotReady,
            _ => WorkFault::Unknown(code, vendor_code),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_but_success_is_a_fault() {
        assert_eq!(WorkFault::from_code(0, 0), None);
        for code in (1..64).chain([u32::MAX]) {
            assert!(WorkFault::from_code(code, 7).is_some(), "status {code}");
        }
        assert_eq!(WorkFault::from_code(99, 7), Some(WorkFault::Unknown(99, 7)));
    }

    #[test]
    fn kinds_that_are_never_posted_are_unknown() {
        let known = (0..=u32::from(u8::MAX)).filter(|code| WorkKind::from_code(*code).is_some());
        assert_eq!(known.collect::<Vec<_>>(), [0, 1, 2, 128]);
    }
}
