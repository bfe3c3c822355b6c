//! What is counted while a member leaves.

/// How far a member of weight 0 is with handing over what it holds. Of one core, or of several added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandoverStats {
    /// Cores that know that this member's weight is 0.
    pub cores_leaving: u64,
    /// Of those, cores that have looked through what they hold once, so that `left` counts all of it.
    pub cores_counted: u64,
    /// Of those, cores that are done: each block was handed over, or refused for want of room.
    pub cores_done: u64,
    /// Blocks that are still to be offered, or have been without an answer.
    pub left_blocks: u64,
    /// Bytes of those.
    pub left_bytes: u64,
    /// Blocks of which something went to its new owner since the weight became 0. What the new owner had already does
    /// not count.
    pub given_blocks: u64,
    /// Bytes that went.
    pub given_bytes: u64,
    /// Blocks for which their new owner has no room, as it said when it was asked last.
    pub refused_blocks: u64,
    /// Bytes of those, as far as their new owner lacks them.
    pub refused_bytes: u64,
    /// Offers that failed since the weight became 0 (no answer, busy, no owner). Each block is offered again.
    pub failures: u64,
    /// No other member has a weight: nobody can take anything.
    pub cores_without_heir: u64,
}

impl HandoverStats {
    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.cores_leaving, other.cores_leaving),
            (&mut self.cores_counted, other.cores_counted),
            (&mut self.cores_done, other.cores_done),
            (&mut self.left_blocks, other.left_blocks),
            (&mut self.left_bytes, other.left_bytes),
            (&mut self.given_blocks, other.given_blocks),
            (&mut self.given_bytes, other.given_bytes),
            (&mut self.refused_blocks, other.refused_blocks),
            (&mut self.refused_bytes, other.refused_bytes),
            (&mut self.failures, other.failures),
            (&mut self.cores_without_heir, other.cores_without_heir),
        ] {
            // Some of it is what peers said.
            *mine = mine.saturating_add(theirs);
        }
    }
}

/// What a member took over from others that leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakeoverStats {
    /// Blocks of which something came.
    pub taken_blocks: u64,
    /// Bytes that came.
    pub taken_bytes: u64,
    /// Blocks for which there was no room.
    pub refused_blocks: u64,
}

impl TakeoverStats {
    pub(super) fn add(&mut self, other: &Self) {
        self.taken_blocks += other.taken_blocks;
        self.taken_bytes += other.taken_bytes;
        self.refused_blocks += other.refused_blocks;
    }
}
