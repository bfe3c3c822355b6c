//! Reads that wait: for room, then at the blocks whose bytes they need.

use super::super::Core;
use super::super::index::{BlockKey, Mask, Waiter, mask_of_bytes};
use super::super::plan::{Ask, Planned};
use super::super::reader::{LaneOf, Reader};
use super::super::timers::Due;
use super::{Look, Read, ReadKey, Route, Tier};
use crate::errors::ReadError;
use crate::limits::STRIPE_BYTES;
use crate::ports::{Class, Platform, Time};

impl<P: Platform> Core<P> {
    /// Sees to it that the missing bytes are on their way, and parks the read.
    pub(super) fn await_bytes(&mut self, now: Time, mut read: Read<P::Reply>) {
        if read.deadline <= now {
            return self.refuse(read, ReadError::Deadline);
        }
        // From here on it waits for the index: waking it must not take buffers.
        read.route = Route::Memory;
        let lane_of = read.reader.lane(self.is_here(&read, false));
        let footprint = read.footprint_bytes();
        read.lane = lane_of;
        let share_bytes = lane_of.share_bytes(self.parts.arena.capacity_bytes());
        let lane = self.lanes.of(lane_of);
        let fits = !lane.has_line_for(read.class) && lane.has_room_for(footprint, share_bytes);
        if !read.admitted && !fits {
            let class = read.class;
            let key = self.park(read);
            return self.lanes.of(lane_of).wait(key, class);
        }
        read.admitted = true;
        lane.admitted_bytes += footprint;
        let planned = self.plan_read(&read);
        if planned.joined && !read.waited {
            self.stats.joined += 1;
        }
        read.waited = true;
        let tier = planned.tier().unwrap_or(Tier::Disk);
        read.tier = read.tier.max(tier);
        if read.class != Class::Demand && !self.is_coming(&read) {
            // Dropped for want of room: nobody is to wait for it.
            self.lanes.of(lane_of).admitted_bytes -= footprint;
            return self.refuse(read, ReadError::Deadline);
        }
        let spans = read.spans();
        let key = self.park(read);
        for span in spans {
            let wants = mask_of_bytes(span.bytes.start, span.bytes.end);
            if let Some(block) = self.index.find(span.block) {
                let block = self.index.block_mut(block);
                let needs = wants & !block.present;
                block.waiters.push(Waiter {
                    read: key,
                    needs,
                    wants,
                });
            }
        }
    }

    /// Lets reads in that wait for room.
    pub(in crate::core) fn admit_reads(&mut self, now: Time) {
        for lane in LaneOf::ALL {
            self.admit_lane(now, lane);
        }
    }

    fn admit_lane(&mut self, now: Time, lane_of: LaneOf) {
        let share_bytes = lane_of.share_bytes(self.parts.arena.capacity_bytes());
        while let Some(key) = self.lanes.of(lane_of).next() {
            let Some(read) = self.reads.get(key.slot).filter(|read| read.id == key.id) else {
                continue;
            };
            if self.is_for_nobody(read) {
                drop(self.unpark(key, None));
                continue;
            }
            let lane = self.lanes.of(lane_of);
            if !lane.has_room_for(read.footprint_bytes(), share_bytes) {
                return lane.put_back(key, read.class);
            }
            if let Some(mut read) = self.unpark(key, None) {
                read.admitted = true;
                read.waited = true;
                if matches!(self.look(&read), Look::Hit) {
                    // It waited in line until its bytes had come for another.
                    read.tier = Tier::Origin;
                }
                self.advance(now, read);
            }
        }
    }

    /// Whether what a read is for has ended: its peer gave it up.
    fn is_for_nobody(&self, read: &Read<P::Reply>) -> bool {
        match read.reader {
            Reader::Front(_) | Reader::Peer(_) => false,
            Reader::Job(key) => !self.jobs.has(key),
            Reader::Take(key) => !self.takes.has(key),
        }
    }

    /// Plans what a read misses. Fills stay within a stripe; a read may touch two.
    fn plan_read(&mut self, read: &Read<P::Reply>) -> Planned {
        let (start, end) = (read.offset, read.end());
        // What a peer asks for is brought also when the peer has gone, and what a warm-up began also when its time is
        // over: it is asked for again.
        let outlives = matches!(read.reader, Reader::Peer(_) | Reader::Job(_));
        let deadline = match outlives {
            true => read.deadline.max(self.now + self.config.io_timeout),
            false => read.deadline,
        };
        let want_end = start + u64::from(read.want_bytes.max(read.len_bytes));
        let stripe_end = start - start % STRIPE_BYTES as u64 + STRIPE_BYTES as u64;
        let part = |demand| Ask {
            object: &read.object,
            demand,
            want_end,
            class: read.class,
            deadline,
            lost: read.lost,
            reach: read.reach,
            for_peer: read.reader.is_peer(),
        };
        let mut planned = self.plan(&part(start..end.min(stripe_end)));
        if end > stripe_end {
            planned |= self.plan(&part(stripe_end..end));
        }
        planned
    }

    fn park(&mut self, read: Read<P::Reply>) -> ReadKey {
        let (id, deadline) = (read.id, read.deadline);
        let slot = self.reads.insert(read);
        let key = ReadKey { slot, id };
        self.timers.set(deadline, Due::Read(key));
        key
    }

    /// Takes a parked read out, and its name off every block but `except`.
    pub(in crate::core) fn unpark(
        &mut self,
        key: ReadKey,
        except: Option<BlockKey>,
    ) -> Option<Read<P::Reply>> {
        if self
            .reads
            .get(key.slot)
            .is_none_or(|read| read.id != key.id)
        {
            return None;
        }
        let mut read = self.reads.remove(key.slot);
        if std::mem::take(&mut read.is_direct) {
            self.directs.ended();
            return Some(read);
        }
        self.timers.clear(read.deadline, Due::Read(key));
        if !read.admitted {
            return Some(read);
        }
        self.lanes.of(read.lane).admitted_bytes -= read.footprint_bytes();
        for span in read.spans() {
            if let Some(block) = self.index.find(span.block)
                && Some(block) != except
            {
                self.index
                    .block_mut(block)
                    .waiters
                    .retain(|waiter| waiter.read != key);
                self.index.forget_if_idle(block);
            }
        }
        Some(read)
    }

    fn take_waiters(&mut self, block: BlockKey, of: Mask) -> Vec<ReadKey> {
        let waiters = &mut self.index.block_mut(block).waiters;
        waiters
            .extract_if(.., |waiter| waiter.needs & of != 0)
            .map(|waiter| waiter.read)
            .collect()
    }

    /// Bytes arrived: every read that waits for some of them looks again.
    pub(in crate::core) fn wake_readers(&mut self, now: Time, block: BlockKey, arrived: Mask) {
        for key in self.take_waiters(block, arrived) {
            if let Some(read) = self.unpark(key, Some(block)) {
                self.advance(now, read);
            }
        }
    }

    /// Bytes of these blocks will not arrive: every read that waits for some of them fails. All are
    /// taken off the blocks first: a read that spans two may be the last that keeps the second one's
    /// entry alive.
    pub(in crate::core) fn fail_readers(
        &mut self,
        missing: impl Iterator<Item = (BlockKey, Mask)>,
        error: &ReadError,
    ) {
        let keys: Vec<ReadKey> = missing
            .flat_map(|(block, of)| self.take_waiters(block, of))
            .collect();
        for key in keys {
            if let Some(read) = self.unpark(key, None) {
                self.refuse(read, error.clone());
            }
        }
    }

    /// A parked read's deadline is here. Its fill goes on for whoever comes next.
    pub(in crate::core) fn time_out_read(&mut self, key: ReadKey) {
        if let Some(read) = self.unpark(key, None) {
            self.refuse(read, ReadError::Deadline);
        }
    }

    /// Answers everything that waits.
    pub(in crate::core) fn refuse_all_reads(&mut self) {
        let keys: Vec<ReadKey> = self
            .reads
            .iter()
            .map(|(slot, read)| ReadKey { slot, id: read.id })
            .collect();
        for key in keys {
            if let Some(read) = self.unpark(key, None) {
                self.refuse(read, ReadError::Shutdown);
            }
        }
    }
}
