//! What a handle will read next: pure logic without I/O; only [`Timed`] looks at a clock.
//!
//! A handle's reads arrive out of order (the kernel reads ahead through several threads) and may
//! belong to several sequential runs at once (threads that share one mapping). So a handle
//! follows a few [`Stream`]s; a read belongs to the stream it continues, or starts a new one.
//!
//! A read that starts a stream wants nothing beyond itself: random readers pay for the
//! sub-blocks that they touch. A stream's window is twice what was read in order, so a reader of
//! a few records wastes little and a scanner is at full width once half of that was read.
//!
//! How wide full width is, readers find out: disks, members and near stores are ahead of them with
//! [`WINDOW_BYTES_FAST`]. A far store gives some ten MiB/s for each GET, tens of milliseconds late, and is as fast as there
//! are GETs under way; so a scanner that had to wait for what was announced long before doubles the width of its handle.
//! Where the line is the limit, more GETs make nothing quicker: no window is wider than what is read in [`AHEAD_S_MAX`],
//! so what is announced comes long before its deadline.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::limits::STRIPE_BYTES;
use forebay_engine::ports::Time;
use parking_lot::Mutex;

/// The widest window of one stream whose reader never waits.
pub const WINDOW_BYTES_FAST: u64 = 32 << 20;
/// The widest window of one stream.
pub const WINDOW_BYTES_MAX: u64 = 256 << 20;
/// A read of announced bytes that takes so long had to wait for them.
pub const WAIT_MIN: Duration = Duration::from_millis(10);
/// A window wider than [`WINDOW_BYTES_FAST`] holds at most what was read in so many seconds.
pub const AHEAD_S_MAX: u64 = 2;
/// Over which time it is looked at how much is read.
const RATE_NS: u64 = 500_000_000;
/// One stream has at most so much of what others leave of the budget, where that is more than
/// [`WINDOW_BYTES_FAST`]: about a tenth of the memory tier, so that one scan does not push out all that is hot.
const STREAM_SHARE: (u64, u64) = (3, 8);
/// What the first read wants when it begins at offset 0: most files are read from there.
pub const FIRST_BYTES: u64 = 1 << 20;
/// Once the window allows it, prefetches are not shorter than this.
pub const PIECE_BYTES_MIN: u64 = STRIPE_BYTES as u64 / 2;
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
    /// The width, when the window is that wide and the read's bytes were announced when it was: if the read takes long
    /// nevertheless, [`Waits`] wants to know.
    pub timed_width: Option<u64>,
}

/// What the reads of a handle waited for: they say so from the thread that answers them.
#[derive(Debug, Default)]
pub struct Waits {
    /// The width of the window when a read had to wait; 0: none had.
    width_bytes: AtomicU64,
}

/// One read on its way, of which is told how long it takes.
#[derive(Debug)]
pub struct Timed {
    waits: Arc<Waits>,
    width_bytes: u64,
    begun: Instant,
}

impl Timed {
    /// Begins now, with the width of [`Plan::timed_width`].
    pub fn begin(waits: &Arc<Waits>, width_bytes: u64) -> Timed {
        Timed {
            width_bytes,
            waits: waits.clone(),
            begun: Instant::now(),
        }
    }

    /// Its bytes are there.
    pub fn end(self) {
        if self.begun.elapsed() >= WAIT_MIN {
            self.waits
                .width_bytes
                .store(self.width_bytes, Ordering::Relaxed);
        }
    }
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

    /// Changes a share to `wish_bytes`, or to what it may have of what is left; `held_bytes` of it are announced already and
    /// are counted as long as there is room. Returns what was granted.
    fn resize(
        &self,
        share: &mut Share,
        wish_bytes: u64,
        held_bytes: u64,
        now: Option<Time>,
    ) -> u64 {
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
        let left = self.limit_bytes.saturating_sub(used);
        let (part, of) = STREAM_SHARE;
        let most = (left / of * part).max(WINDOW_BYTES_FAST).max(held_bytes);
        let most = left.min(most);
        let granted = wish_bytes.min(most);
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
    /// The handle's width when the stream last moved ...
    width: u64,
    /// ... and from where on bytes are announced by a window that had become as wide: they show what the width gives.
    wide_from: Option<u64>,
    /// What the budget gave, where that was less than was wished for.
    granted: Option<u64>,
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
            width: 0,
            wide_from: None,
            granted: None,
            used,
            share: Share::default(),
        }
    }

    /// Gives the share back. Random readers have none: they do not meet at the mount's lock.
    fn give_back(&mut self, budget: &Budget) {
        if self.share.bytes > 0 {
            budget.resize(&mut self.share, 0, 0, None);
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
        (2 * in_order).max(floor).min(self.width)
    }

    /// What the budget gives, as far as is known: with less, asking again for each read would meet all others at its lock.
    fn may_have(&self) -> u64 {
        self.granted
            .map_or(u64::MAX, |bytes| bytes.max(2 * FIRST_BYTES))
    }

    /// The window may be as wide as this now.
    fn widen(&mut self, width: u64) {
        if self.width != width {
            self.width = width;
            self.wide_from = None;
        }
    }

    /// The width, if these bytes were announced by a window as wide as it may be.
    fn shown_width(&mut self, offset: u64, window: u64) -> Option<u64> {
        if window < self.width || self.granted.is_some() {
            self.wide_from = None;
            return None;
        }
        // What lies nearer was announced while the window was on its way to this width.
        let wide_from = self.next + window.saturating_sub(PIECE_BYTES_MIN);
        let wide_from = *self.wide_from.get_or_insert(self.announced.max(wide_from));
        (offset >= wide_from).then_some(self.width)
    }
}

/// How much a handle reads.
#[derive(Debug, Default)]
struct Rate {
    since: Option<Time>,
    bytes: u64,
    per_second: u64,
}

impl Rate {
    /// Bytes were read. Whether the rate was looked at anew.
    fn add(&mut self, bytes: u64, now: Time) -> bool {
        let since = *self.since.get_or_insert(now);
        self.bytes += bytes;
        let passed = now.0.saturating_sub(since.0);
        if passed < RATE_NS {
            return false;
        }
        let per_second = u128::from(self.bytes) * 1_000_000_000 / u128::from(passed);
        *self = Rate {
            since: Some(now),
            bytes: 0,
            per_second: u64::try_from(per_second).unwrap_or(u64::MAX),
        };
        true
    }

    /// The widest window at this rate.
    fn width_max(&self) -> u64 {
        let ahead = self.per_second.saturating_mul(AHEAD_S_MAX);
        ahead.clamp(WINDOW_BYTES_FAST, WINDOW_BYTES_MAX)
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
    /// How wide a window of it may be.
    width: u64,
    rate: Rate,
    waits: Arc<Waits>,
}

impl ReadAhead {
    /// State for a new handle on an object of `size_bytes`.
    pub fn new(size_bytes: u64, budget: Arc<Budget>) -> Self {
        Self {
            size_bytes,
            reads: 0,
            streams: Vec::new(),
            budget,
            width: WINDOW_BYTES_FAST,
            rate: Rate::default(),
            waits: Arc::default(),
        }
    }

    /// Whom reads tell that they waited.
    pub fn waits(&self) -> Arc<Waits> {
        self.waits.clone()
    }

    /// Doubles the width when a read waited that was timed with the present one: what an older width was too narrow for
    /// says nothing of this one. No width outlives the rate that it was for.
    fn widen(&mut self, moved_bytes: u64, now: Time) {
        if self.rate.add(moved_bytes, now) {
            self.width = self.width.min(self.rate.width_max());
        }
        if self.waits.width_bytes.load(Ordering::Relaxed) == self.width {
            self.width = (2 * self.width).min(self.rate.width_max());
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
                ..Plan::default()
            };
        };
        let stream = &mut self.streams[index];
        let moved = end.saturating_sub(stream.next);
        stream.record(offset, end, self.reads);
        if stream.is_sparse(end - offset) {
            stream.give_back(&self.budget);
            *stream = Stream::begin(offset, end, self.reads);
            return Plan::default();
        }
        if moved == 0 {
            return Plan::default();
        }
        self.widen(moved, now);
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
        stream.widen(self.width);
        let window = stream.window_bytes();
        let ahead = stream.announced - stream.next;
        let mut prefetch = None;
        if stream.next >= size {
            self.budget.resize(&mut stream.share, 0, 0, Some(now));
        } else if stream.announced < size && ahead < refill_below(window.min(stream.may_have())) {
            let end = |ahead: u64, window| {
                let target = stream.next.saturating_add(ahead).min(size);
                piece_end(stream.announced, target, size, window)
            };
            let target = end(window, window);
            let wish = target - stream.next;
            let granted = self
                .budget
                .resize(&mut stream.share, wish, ahead, Some(now));
            // With less than it wished for, its pieces are still worth a GET.
            let to = match granted < wish {
                true => end(granted, granted),
                false => target,
            };
            stream.granted = (granted < wish).then_some(granted);
            if to > stream.announced {
                if window >= FIRST_BYTES {
                    prefetch = Some(stream.announced..to);
                }
                stream.announced = to;
            }
        }
        let timed_width = stream.shown_width(offset, window);
        let want_end = stream.announced.min(offset.saturating_add(window)).max(end);
        Plan {
            want_bytes: u32::try_from(want_end - offset).unwrap_or(u32::MAX),
            prefetch,
            timed_width,
        }
    }
}

/// With fewer bytes ahead, more are announced: as soon as there is room for a piece, so that as many GETs as a window
/// has room for are under way nearly always.
fn refill_below(window: u64) -> u64 {
    (window / 2).max(window.saturating_sub(PIECE_BYTES_MIN))
}

/// Where the next piece ends: where a stripe or its half does, if that leaves a piece worth its GET, at the
/// object's end, or nowhere yet (`from`) when it would be too short. With a wide window one short piece brings those after
/// it to where stripes' halves begin: what crosses one is two GETs.
fn piece_end(from: u64, target: u64, size: u64, window: u64) -> u64 {
    if target == size {
        return target;
    }
    let aligned = target - target % PIECE_BYTES_MIN;
    if aligned >= from.saturating_add(PIECE_BYTES_MIN) {
        return aligned;
    }
    if window >= 2 * PIECE_BYTES_MIN {
        return match from % PIECE_BYTES_MIN {
            0 => from,
            _ => aligned.max(from),
        };
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
