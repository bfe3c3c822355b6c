//! Messages that need more than one datagram.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::seal::{PAYLOAD_BYTES_MAX, Part};

/// The longest message: chitchat keeps to the length of one UDP datagram, about a thousand members.
pub const MESSAGE_BYTES_MAX: usize = PAYLOAD_BYTES_MAX * u8::MAX as usize;

/// Messages that may be incomplete at one time; more push out the oldest.
const INCOMPLETE_MAX: usize = 64;

/// The parts of a message; none when it is too long.
pub fn split(message: u32, bytes: &[u8]) -> impl Iterator<Item = Part<'_>> {
    let count = bytes.len().div_ceil(PAYLOAD_BYTES_MAX).max(1);
    let parts = u8::try_from(count).unwrap_or(0);
    (0..parts).map(move |part| {
        let start = usize::from(part) * PAYLOAD_BYTES_MAX;
        let end = bytes.len().min(start + PAYLOAD_BYTES_MAX);
        Part {
            message,
            part,
            parts,
            payload: &bytes[start..end],
        }
    })
}

#[derive(Debug)]
struct Incomplete {
    from: SocketAddr,
    message: u32,
    parts: Vec<Option<Vec<u8>>>,
    missing: usize,
}

/// Puts parts together again.
#[derive(Debug, Default)]
pub struct Assembly {
    incomplete: VecDeque<Incomplete>,
}

impl Assembly {
    /// Takes a part; returns its message when that is complete.
    pub fn take(&mut self, from: SocketAddr, part: &Part<'_>) -> Option<Vec<u8>> {
        if part.parts == 1 {
            return Some(part.payload.to_vec());
        }
        let found = self.incomplete.iter().position(|one| {
            one.from == from
                && one.message == part.message
                && one.parts.len() == usize::from(part.parts)
        });
        let at = found.unwrap_or_else(|| self.begin(from, part));
        let one = &mut self.incomplete[at];
        let place = &mut one.parts[usize::from(part.part)];
        if place.is_none() {
            *place = Some(part.payload.to_vec());
            one.missing -= 1;
        }
        if one.missing > 0 {
            return None;
        }
        let complete = self.incomplete.remove(at)?;
        Some(complete.parts.into_iter().flatten().flatten().collect())
    }

    fn begin(&mut self, from: SocketAddr, part: &Part<'_>) -> usize {
        if self.incomplete.len() == INCOMPLETE_MAX {
            self.incomplete.pop_front();
        }
        self.incomplete.push_back(Incomplete {
            from,
            message: part.message,
            parts: vec![None; usize::from(part.parts)],
            missing: usize::from(part.parts),
        });
        self.incomplete.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251) as u8).collect()
    }

    #[test]
    fn messages_of_all_lengths_come_together_in_any_order() {
        for len in [
            0,
            1,
            PAYLOAD_BYTES_MAX,
            PAYLOAD_BYTES_MAX + 1,
            65_507,
            MESSAGE_BYTES_MAX,
        ] {
            let sent = bytes(len);
            let parts: Vec<Part<'_>> = split(7, &sent).collect();
            let mut assembly = Assembly::default();
            let (first, rest) = parts.split_first().unwrap();
            for part in rest.iter().rev() {
                assert_eq!(assembly.take(from(1), part), None);
                assert_eq!(
                    assembly.take(from(1), part),
                    None,
                    "a copy completes nothing"
                );
            }
            assert_eq!(assembly.take(from(1), first), Some(sent));
            assert!(assembly.incomplete.is_empty());
        }
        assert_eq!(split(7, &bytes(MESSAGE_BYTES_MAX + 1)).count(), 0);
    }

    #[test]
    fn senders_and_messages_are_kept_apart_and_the_oldest_gives_way() {
        let sent = bytes(PAYLOAD_BYTES_MAX * 2);
        let parts: Vec<Part<'_>> = split(7, &sent).collect();
        let other: Vec<Part<'_>> = split(8, &sent).collect();
        let mut assembly = Assembly::default();
        assert_eq!(assembly.take(from(1), &parts[0]), None);
        assert_eq!(assembly.take(from(2), &parts[1]), None);
        assert_eq!(assembly.take(from(1), &other[1]), None);
        assert!(assembly.take(from(1), &parts[1]).is_some());
        for port in 0..INCOMPLETE_MAX as u16 {
            assert_eq!(assembly.take(from(100 + port), &parts[0]), None);
        }
        assert_eq!(assembly.incomplete.len(), INCOMPLETE_MAX);
        assert_eq!(assembly.take(from(2), &parts[0]), None, "it was pushed out");
    }
}
