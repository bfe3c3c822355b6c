//! One flush at a time, for everything that completed before it began.

/// Who waits for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// A batch whose data is written: its header may follow.
    Data(usize),
    /// A batch whose header is written, and which reclaim waits for.
    Header(usize),
    /// A region whose tables are written: its trailer may follow.
    Tables(u32),
    /// A region whose header is written: data may follow.
    Region(u32),
    /// A region in which nothing lives: what replaced it was written before.
    Emptied(u32),
    /// A region whose header is void: it may be opened, or given back.
    Void(u32),
    /// Nobody: the last flush before an end.
    Nobody,
}

#[derive(Debug, Default)]
pub(super) struct Flush {
    /// Covered by the flush under way.
    covered: Vec<Waits>,
    /// For the next one.
    waiting: Vec<Waits>,
    under_way: bool,
}

impl Flush {
    pub fn request(&mut self, who: Waits) {
        self.waiting.push(who);
    }

    pub fn is_due(&self) -> bool {
        !self.under_way && !self.waiting.is_empty()
    }

    pub fn start(&mut self) {
        self.under_way = true;
        std::mem::swap(&mut self.covered, &mut self.waiting);
    }

    /// The flush ended; whom it covered.
    pub fn end(&mut self) -> Vec<Waits> {
        self.under_way = false;
        std::mem::take(&mut self.covered)
    }

    pub fn is_idle(&self) -> bool {
        !self.under_way && self.waiting.is_empty()
    }
}
