//! What a handle will read next: pure logic, no clock and no I/O of its own.
//!
//! A handle's reads arrive out of order (the kernel reads ahead through several threads) and may
//! belong to several sequential runs at once (threads that share one mapping). So a handle
//! follows a few [`Stream`]s; a read belongs to the stream it continues, or starts a new one.
//!
//! A read that starts a stream wants nothing beyond itself: random readers pay for the
//! sub-blocks that they touch. A stream's window is twice what was read in order, so a reader of
//! a few records wastes little and a scanner is at full width after 16 MiB.

use std::ops::Range;
use std::sync::Arc;

use forebay_engine::limits::STRIPE_BYTES;
use forebay_engine::ports::Time;
use parking_lot::Mutex;

/// The widest window of one stream.
pub const WINDOW_BYTES_MAX: u64 = 32 << 20;
/// What the first read wants when it begins at offset 0: most files are read from there.
pub const FIRST_BYTES: u64 = 1 << 20;
/// Once the window allows it, prefetches are not shorter than this.
pub const PIECE_BYTES_MIN: u64 = 8 << 20;
/// Sequential runs followed in one handle.
pub const STREAMS_PER_HANDLE_MAX: usize = 8;
/// A stream of this many reads tolerates gaps: reads that overtook each other on their way.
const STEADY_READS: u32 = 3;
/// The widest gap, in reads of the present length ...
const GAP_READS: u64 = 16;
/// ... and in bytes.
const GAP_BYTES_MAX: u64 = 8 << 20;
/// After two of these without a prefetch, a stream's share of the budget is given to others.
const EPOCH_NS: u64 = 5_000_000_000;

/// What to ask the engine for along with one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// For `Client::read`: bytes from the read's offset on that will be needed soon; 0 when
    /// nothing is known.
    pub want_bytes: u32,
    /// For `Client::prefetch`, after the read: within the object.
    pub prefetch: Option<Range<u64>>,
}

/// Bytes that all handles of a mount together may have announced and not read yet.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: u64,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    epoch: u64,
    current_bytes: u64,
    previous_bytes: u64,
}

/// One stream's share of the budget. Shares that are not renewed expire: a handle that stays
/// open without reading takes nothing from others.
#[derive(Debug, Default)]
struct Share {
    bytes: u64,
    epoch: u64,
}

impl Budget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            state: Mutex::new(BudgetState::default()),
        })
    }

    /// Bytes handed out at present.
    pub fn used_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.current_bytes + state.previous_bytes
    }

    /// Changes a share to `wish_bytes`, or to what is left. Returns what was granted.
    fn resize(&self, share: &mut Share, wish_bytes: u64, now: Option<Time>) -> u64 {
        let mut state = self.state.lock();
        if let Some(now) = now {
            let epoch = now.0 / EPOCH_NS;
            if epoch > state.epoch {
                let next = epoch == state.epoch + 1;
                state.previous_bytes = if next { state.current_bytes } else { 0 };
                state.current_bytes = 0;
                state.epoch = epoch;
            }
        }
        if share.epoch == state.epoch {
            state.current_bytes -= share.bytes;
        } else if share.epoch + 1 == state.epoch {
            state.previous_bytes -= share.bytes;
        }
        let used = state.current_bytes + state.previous_bytes;
        let granted = wish_bytes.min(self.limit_bytes.saturating_sub(used));
        state.current_bytes += granted;
        *share = Share {
            bytes: granted,
            epoch: state.epoch,
        };
        granted
    }
}

/// One sequential run.
#[derive(Debug)]
struct Stream {
    /// First byte of the run.
    start: u64,
    /// The byte after the furthest read.
    next: u64,
    /// Bytes asked for, re-reads included.
    read_bytes: u64,
    /// Number of reads.
    reads: u32,
    /// Bytes before this were read, wanted or prefetched.
    announced: u64,
    /// Which read of the handle used the stream last.
    used: u64,
    share: Share,
}

impl Stream {
    fn begin(offset: u64, end: u64, used: u64) -> Self {
        Self {
            start: offset,
            next: end,
            read_bytes: end - offset,
            reads: 1,
            announced: end,
            used,
            share: Share::default(),
        }
    }

    /// Gives the share back. Random readers have none: they do not meet at the mount's lock.
    fn give_back(&mut self, budget: &Budget) {
        if self.share.bytes > 0 {
            budget.resize(&mut self.share, 0, None);
        }
    }

    /// Whether the read continues this run, perhaps a little early or late.
    fn accepts(&self, offset: u64, end: u64) -> bool {
        if self.reads < STEADY_READS {
            return offset <= self.next && end >= self.start;
        }
        let gap = gap_bytes(end - offset);
        offset <= self.next.saturating_add(gap) && end.saturating_add(gap) >= self.next
    }

    fn record(&mut self, offset: u64, end: u64, used: u64) {
        self.start = self.start.min(offset);
        self.next = self.next.max(end);
        self.announced = self.announced.max(self.next);
        self.read_bytes += end - offset;
        self.reads = self.reads.saturating_add(1);
        self.used = used;
    }

    /// A strided reader skips more than it reads: that is no run.
    fn is_sparse(&self, len: u64) -> bool {
        self.next - self.start > 2 * self.read_bytes + gap_bytes(len)
    }

    fn window_bytes(&self) -> u64 {
        let in_order = self.read_bytes.min(self.next - self.start);
        let floor = if self.start == 0 { FIRST_BYTES } else { 0 };
        (2 * in_order).clamp(floor, WINDOW_BYTES_MAX)
    }
}

fn gap_bytes(len: u64) -> u64 {
    (GAP_READS * len).min(GAP_BYTES_MAX)
}

/// The read-ahead state of one handle.
#[derive(Debug)]
pub struct ReadAhead {
    size_bytes: u64,
    reads: u64,
    streams: Vec<Stream>,
    budget: Arc<Budget>,
}

impl ReadAhead {
    /// State for a new handle on an object of `size_bytes`.
    pub fn new(size_bytes: u64, budget: Arc<Budget>) -> Self {
        Self {
            size_bytes,
            reads: 0,
            streams: Vec::new(),
            budget,
        }
    }

    /// Notes a read and says what to ask for with it.
    pub fn on_read(&mut self, offset: u64, len_bytes: u32, now: Time) -> Plan {
        let end = offset
            .saturating_add(u64::from(len_bytes))
            .min(self.size_bytes);
        if offset >= end {
            return Plan::default();
        }
        self.reads += 1;
        let Some(index) = self
            .streams
            .iter()
            .position(|stream| stream.accepts(offset, end))
        else {
            self.begin(offset, end);
            let first = if offset == 0 {
                FIRST_BYTES.min(self.size_bytes)
            } else {
                0
            };
            return Plan {
                want_bytes: first as u32,
                prefetch: None,
            };
        };
        let stream = &mut self.streams[index];
        let moved = end > stream.next;
        stream.record(offset, end, self.reads);
        if stream.is_sparse(end - offset) {
            stream.give_back(&self.budget);
            *stream = Stream::begin(offset, end, self.reads);
            return Plan::default();
        }
        if !moved {
            return Plan::default();
        }
        self.advance(index, offset, end, now)
    }

    fn begin(&mut self, offset: u64, end: u64) {
        let mut stream = Stream::begin(offset, end, self.reads);
        if offset == 0 {
            stream.announced = stream.announced.max(FIRST_BYTES.min(self.size_bytes));
        }
        if self.streams.len() < STREAMS_PER_HANDLE_MAX {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            oldest.give_back(&self.budget);
            *oldest = stream;
        }
    }

    /// The stream's front has moved: widen what is announced when less than half a window is left.
    fn advance(&mut self, index: usize, offset: u64, end: u64, now: Time) -> Plan {
        let size = self.size_bytes;
        let stream = &mut self.streams[index];
        let window = stream.window_bytes();
        let mut prefetch = None;
        if stream.next >= size {
            self.budget.resize(&mut stream.share, 0, Some(now));
        } else if stream.announced < size && stream.announced - stream.next < window / 2 {
            let target = piece_end(
                stream.announced,
                stream.next.saturating_add(window).min(size),
                size,
                window,
            );
            let granted = self
                .budget
                .resize(&mut stream.share, target - stream.next, Some(now));
            let to = target.min(stream.next + granted);
            if to > stream.announced {
                if window >= FIRST_BYTES {
                    prefetch = Some(stream.announced..to);
                }
                stream.announced = to;
            }
        }
        let want_end = stream.announced.min(offset.saturating_add(window)).max(end);
        Plan {
            want_bytes: u32::try_from(want_end - offset).unwrap_or(u32::MAX),
            prefetch,
        }
    }
}

/// Where the next piece ends: at a stripe's end where that leaves a piece worth its GET, at the
/// object's end, or nowhere yet (`from`) when it would be too short.
fn piece_end(from: u64, target: u64, size: u64, window: u64) -> u64 {
    if target == size {
        return target;
    }
    let stripe_end = target - target % STRIPE_BYTES as u64;
    if stripe_end >= from.saturating_add(PIECE_BYTES_MIN) {
        return stripe_end;
    }
    let shortest = PIECE_BYTES_MIN.min(window / 2);
    if target >= from.saturating_add(shortest) {
        target
    } else {
        from
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        for stream in &mut self.streams {
            stream.give_back(&self.budget);
        }
    }
}

#[cfg(test)]
mod tests;
