//! What devices tell unasked.

/// An event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A queue pair is in error; which one, [`crate::QueuePair::is_at`] knows.
    QueuePair {
        /// Where the library has it.
        address: u64,
    },
    /// A completion queue lost completions: its queue pairs are of no more use.
    CompletionQueue,
    /// The device does nothing any more.
    Fatal,
    /// Something of a port is not as it was: whether it is up, its LID, its GIDs.
    Port {
        /// Which; the first is 1.
        port: u8,
        /// The event's number.
        kind: u32,
    },
    /// Nothing that Forebay acts on, by its number; also what later versions tell.
    Other(u32),
}

impl DeviceEvent {
    /// From `enum ibv_event_type`, with what the event is of.
    pub(crate) fn of(kind: u32, port: i32, address: u64) -> DeviceEvent {
        match kind {
            0 => DeviceEvent::CompletionQueue,
            // Fatal, an invalid request, an access that is not allowed.
            1..=3 => DeviceEvent::QueuePair { address },
            8 => DeviceEvent::Fatal,
            // Up, down, LID, keys, subnet manager, registration with it, GIDs.
            9..=13 | 17 | 18 => match u8::try_from(port) {
                Ok(port) => DeviceEvent::Port { port, kind },
                Err(_) => DeviceEvent::Other(kind),
            },
            other => DeviceEvent::Other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_something_and_none_panics() {
        for kind in (0..200).chain([u32::MAX, u32::MAX - 1, 1 << 31]) {
            for port in [1, 0, -1, 256, i32::MIN, i32::MAX] {
                let event = DeviceEvent::of(kind, port, 7);
                let is_of_a_port = matches!(event, DeviceEvent::Port { .. });
                let could_be = [9, 10, 11, 12, 13, 17, 18].contains(&kind);
                assert_eq!(is_of_a_port, could_be && (0..256).contains(&port));
                // Of communication established, drained sends, migrations, shared queues nothing follows.
                if !(0..=3).contains(&kind) && kind != 8 && !is_of_a_port {
                    assert_eq!(event, DeviceEvent::Other(kind));
                }
            }
        }
        assert_eq!(DeviceEvent::of(8, 0, 0), DeviceEvent::Fatal);
        assert_eq!(DeviceEvent::of(0, 0, 0), DeviceEvent::CompletionQueue);
    }
}
