//! The disk tier's part of a turn: submitting, and what it tells.

use super::Core;
use super::direct::DirectKey;
use super::load::LoadKey;
use super::memory::DiskBuffers;
use crate::disk::{DiskEvent, DiskMiss};
use crate::ports::{Platform, Time};
use crate::stats::Reason;

/// Whose read from disk a ticket names. Tickets carry their owner's slot, so that an answer finds it
/// without a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ticket {
    Load(LoadKey),
    Direct(DirectKey),
}

const SLOT_BITS: u32 = 23;
const ID_BITS: u32 = 40;

impl Ticket {
    /// One bit for the kind, 23 for the slot, the rest for the id: no owner lives for 2^40 ids.
    pub fn encode(self) -> u64 {
        let (kind, slot, id) = match self {
            Ticket::Load(LoadKey { slot, id }) => (0, slot, id),
            Ticket::Direct(DirectKey { slot, id }) => (1, slot, id),
        };
        debug_assert!(slot < 1 << SLOT_BITS);
        kind << 63 | (slot as u64) << ID_BITS | id & id_mask()
    }

    /// `id_near` is an id of about the same time or later: it completes the id.
    pub fn decode(ticket: u64, id_near: u64) -> Self {
        let slot = (ticket >> ID_BITS) as usize & ((1 << SLOT_BITS) - 1);
        let age = id_near.wrapping_sub(ticket) & id_mask();
        let id = id_near.wrapping_sub(age);
        match ticket >> 63 {
            0 => Ticket::Load(LoadKey { slot, id }),
            _ => Ticket::Direct(DirectKey { slot, id }),
        }
    }
}

const fn id_mask() -> u64 {
    (1 << ID_BITS) - 1
}

/// Why bytes are read from the origin that the disk tier should have had.
pub(super) fn reason(why: DiskMiss) -> Reason {
    match why {
        DiskMiss::Checksum => Reason::Checksum,
        // The disk tier's own counters tell a device's failure from reclaim.
        DiskMiss::Reclaimed | DiskMiss::Device | DiskMiss::Slow => Reason::Evicted,
    }
}

impl<P: Platform> Core<P> {
    /// Starts reads, turns the disk tier, takes what it tells. Returns whether something was done,
    /// and when it must turn again.
    pub(super) fn turn_disk(&mut self, now: Time, budget: usize) -> (bool, Time) {
        if !self.parts.disk.is_present() {
            return (false, Time::NEVER);
        }
        let late = self.time_out_directs(now);
        self.start_directs(now);
        self.start_loads(now);
        let mut buffers = DiskBuffers {
            arena: &mut self.parts.arena,
            index: &mut self.index,
            now,
            evict_after: &mut self.evict_for_disk_after,
        };
        let turn = self.parts.disk.turn(now, &mut buffers);
        let told = self.take_disk_events(now, budget);
        let wake_at = turn.wake_at.min(self.directs.due_at());
        (late || turn.progressed || told, wake_at)
    }

    fn take_disk_events(&mut self, now: Time, budget: usize) -> bool {
        for taken in 0..budget {
            let Some(event) = self.parts.disk.next_event() else {
                return taken > 0;
            };
            match event {
                DiskEvent::Read {
                    ticket,
                    lease,
                    checksums,
                } => match Ticket::decode(ticket, self.last_id) {
                    Ticket::Direct(key) => self.direct_done(key, lease),
                    Ticket::Load(key) => self.loaded(now, key, lease, checksums),
                },
                DiskEvent::Missed { ticket, why } => match Ticket::decode(ticket, self.last_id) {
                    Ticket::Direct(key) => self.direct_missed(now, key, why),
                    Ticket::Load(key) => self.load_missed(key, why),
                },
                DiskEvent::Settled {
                    block,
                    first_page,
                    pages,
                } => {
                    let first = first_page as usize;
                    self.index.settled(block, first..first + pages as usize);
                    self.warm_ups_settled(now, block);
                }
            }
        }
        budget > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_names_its_owner_even_after_the_short_id_wrapped() {
        for id in [1, (1 << 40) - 1, 1 << 40, (5 << 40) + 7] {
            let (slot, later) = (4_711, id + 12_345);
            for ticket in [
                Ticket::Load(LoadKey { slot, id }),
                Ticket::Direct(DirectKey { slot, id }),
            ] {
                assert_eq!(Ticket::decode(ticket.encode(), later), ticket);
                assert_eq!(Ticket::decode(ticket.encode(), id), ticket);
            }
        }
    }
}
