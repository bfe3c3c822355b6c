//! An open directory: a window of a few pages over a listing of any size.
//!
//! Offsets count entries: 0 is `.`, 1 is `..`, then what the listing gives. For each page that
//! was seen the handle keeps a [`Mark`]: the offset of its first entry, its continuation token,
//! and what waited for its directory at that point. So any earlier offset can be listed again
//! by asking for one page.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::ports::{ListPage, Time};
use fuser::{Errno, FileAttr};
use parking_lot::Mutex;

use super::listing::{Listed, Pending};
use super::names::LeftOut;

/// Pages held at a time: the one that is read, its neighbours.
pub(super) const PAGES_MAX: usize = 3;
/// Pages of one listing: 10^9 entries in full pages, 10^8 where an origin gives 100 at a time.
/// Each costs about 60 bytes and its continuation token.
const MARKS_MAX: usize = 1_000_000;
/// Pages in a row in which nothing can be shown: 10 million keys in full pages.
const EMPTY_PAGES_MAX: usize = 10_000;
/// A longer directory's listing is not kept by the kernel.
const KEPT_ENTRIES_MAX: u64 = 32_768;
/// The offset of the first listed entry, after `.` and `..`.
const FIRST_LISTED: u64 = 2;

/// Takes directory entries.
pub trait DirSink: Send + 'static {
    /// Whether entries go out with their attributes (readdirplus): each then counts as a lookup.
    fn with_attributes(&self) -> bool;
    /// Adds an entry; `next` is the offset that follows it, `ttl` how long name and attributes
    /// may be believed (it says nothing when entries go out without attributes, and for `.` and
    /// `..`). Returns true, having added nothing, when it does not fit.
    fn add(&mut self, next: u64, name: &str, attr: &FileAttr, ttl: Duration) -> bool;
    /// Sends what was added (nothing: the end of the directory), or an error.
    fn finish(self: Box<Self>, result: Result<(), Errno>);
}

/// What the namespace does for each entry.
pub(super) trait Emit {
    /// Adds `.` or `..`.
    fn dot(&self, sink: &mut dyn DirSink, next: u64, name: &str) -> bool;
    /// Adds a listed entry.
    fn entry(&self, sink: &mut dyn DirSink, next: u64, listed: &Listed, at: Time) -> bool;
}

/// One page to ask the origin for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    pub(super) page: usize,
    /// Which listing of the directory the page is for: one from before a `rewinddir` is no use.
    pub(super) generation: u64,
    pub(super) continuation: Option<Arc<str>>,
}

/// What to do after the lock is released.
#[derive(Default)]
pub(super) struct After {
    pub(super) finished: Vec<(Box<dyn DirSink>, Result<(), Errno>)>,
    pub(super) fetch: Option<Fetch>,
    /// When the oldest page was listed that entries were given of.
    pub(super) oldest: Option<Time>,
    /// Entries beyond [`KEPT_ENTRIES_MAX`] were given, or it was told that there are none, which is believed for less long.
    pub(super) is_not_kept: bool,
    /// With this the handle has given all entries, one after the other, since it began at the start.
    pub(super) is_whole: bool,
}

#[derive(Debug)]
struct Mark {
    first: u64,
    continuation: Option<Arc<str>>,
    pending: Pending,
}

#[derive(Debug)]
struct Page {
    number: usize,
    first: u64,
    entries: Vec<Listed>,
    at: Time,
}

impl Page {
    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }
}

struct Waiting {
    offset: u64,
    sink: Box<dyn DirSink>,
}

struct State {
    /// One for each page known to exist, in order.
    marks: Vec<Mark>,
    pages: VecDeque<Page>,
    fetching: Option<usize>,
    /// Grows when the listing starts anew.
    generation: u64,
    /// The page that is being read.
    current: usize,
    /// Pages whose hidden keys were counted.
    counted: usize,
    waiting: Vec<Waiting>,
    /// All entries before this offset were given, one after the other, since the handle began at the start.
    given: u64,
}

/// An open directory.
pub(super) struct Directory {
    pub(super) handle: u64,
    pub(super) number: u64,
    pub(super) prefix: Arc<str>,
    state: Mutex<State>,
}

enum Outcome {
    Finished(Box<dyn DirSink>),
    Waits { page: usize, waiting: Waiting },
}

impl Directory {
    pub(super) fn new(handle: u64, number: u64, prefix: Arc<str>) -> Self {
        let first = Mark {
            first: FIRST_LISTED,
            continuation: None,
            pending: Pending::default(),
        };
        let state = State {
            marks: vec![first],
            pages: VecDeque::new(),
            fetching: None,
            generation: 0,
            current: 0,
            counted: 0,
            waiting: Vec::new(),
            given: 0,
        };
        Self {
            handle,
            number,
            prefix,
            state: Mutex::new(state),
        }
    }

    /// Lists from `offset` on, now or when the page is there.
    pub(super) fn read(&self, offset: u64, sink: Box<dyn DirSink>, emit: &dyn Emit) -> After {
        let mut state = self.state.lock();
        if offset == 0 && state.waiting.is_empty() {
            state.restart();
        }
        let mut after = After::default();
        state.serve(Waiting { offset, sink }, emit, &mut after);
        after
    }

    /// A page has come. `left_out` counts what it hides, once for each page.
    pub(super) fn arrived(
        &self,
        fetch: &Fetch,
        listed: Result<&ListPage, Errno>,
        at: Time,
        emit: &dyn Emit,
        left_out: &mut dyn FnMut(LeftOut, u64, &str),
    ) -> After {
        let mut after = After::default();
        let mut state = self.state.lock();
        if fetch.generation != state.generation {
            return after;
        }
        state.fetching = None;
        let waiting = std::mem::take(&mut state.waiting);
        let taken =
            listed.and_then(|listed| state.take(fetch.page, &self.prefix, listed, at, left_out));
        for waiting in waiting {
            match taken {
                Ok(()) => state.serve(waiting, emit, &mut after),
                Err(errno) => after.finished.push((waiting.sink, Err(errno))),
            }
        }
        after
    }
}

impl State {
    /// Reading from the start (`rewinddir`) shows the directory as it is now.
    fn restart(&mut self) {
        self.generation += 1;
        self.fetching = None;
        self.marks.truncate(1);
        self.pages.clear();
        self.current = 0;
        self.given = 0;
    }

    fn serve(&mut self, waiting: Waiting, emit: &dyn Emit, after: &mut After) {
        let here = match self.fill(waiting, emit, after) {
            Outcome::Finished(sink) => {
                after.finished.push((sink, Ok(())));
                self.page_to_prefetch()
            }
            Outcome::Waits { page, waiting } => {
                self.waiting.push(waiting);
                Some(page)
            }
        };
        if self.fetching.is_none()
            && let Some(page) = here
        {
            self.fetching = Some(page);
            let continuation = self.marks[page].continuation.clone();
            after.fetch = Some(Fetch {
                page,
                generation: self.generation,
                continuation,
            });
        }
    }

    /// Fills the sink from the pages at hand.
    fn fill(&mut self, waiting: Waiting, emit: &dyn Emit, after: &mut After) -> Outcome {
        let Waiting {
            mut offset,
            mut sink,
        } = waiting;
        let mut added = false;
        let in_order = offset <= self.given;
        let mut given = |offset: u64| {
            if in_order {
                self.given = self.given.max(offset);
            }
        };
        while offset < FIRST_LISTED {
            let name = if offset == 0 { "." } else { ".." };
            if emit.dot(&mut *sink, offset + 1, name) {
                return Outcome::Finished(sink);
            }
            added = true;
            offset += 1;
            given(offset);
        }
        loop {
            // The last page that begins at or before the offset (empty pages begin together).
            let number = self.marks.partition_point(|mark| mark.first <= offset) - 1;
            self.current = number;
            let Some(page) = self.pages.iter().find(|page| page.number == number) else {
                if added {
                    return Outcome::Finished(sink);
                }
                return Outcome::Waits {
                    page: number,
                    waiting: Waiting { offset, sink },
                };
            };
            after.oldest = Some(after.oldest.map_or(page.at, |at| at.min(page.at)));
            after.is_not_kept |= page.end() > KEPT_ENTRIES_MAX || page.end() == FIRST_LISTED;
            while offset < page.end() {
                let listed = &page.entries[(offset - page.first) as usize];
                if emit.entry(&mut *sink, offset + 1, listed, page.at) {
                    return Outcome::Finished(sink);
                }
                added = true;
                offset += 1;
                given(offset);
            }
            match self.marks.get(number + 1) {
                Some(next) => offset = offset.max(next.first),
                None => {
                    after.is_whole |= in_order;
                    return Outcome::Finished(sink);
                }
            }
            given(offset);
        }
    }

    /// The page where the reader will go on, or the one after it, if it is not at hand.
    fn page_to_prefetch(&self) -> Option<usize> {
        let missing = |page: &usize| self.pages.iter().all(|held| held.number != *page);
        let known = (self.current + 2).min(self.marks.len());
        (self.current..known).find(missing)
    }

    fn take(
        &mut self,
        number: usize,
        prefix: &str,
        listed: &ListPage,
        at: Time,
        left_out: &mut dyn FnMut(LeftOut, u64, &str),
    ) -> Result<(), Errno> {
        let Some(mark) = self.marks.get(number) else {
            return Ok(());
        };
        let first_time = number >= self.counted;
        self.counted = self.counted.max(number + 1);
        let mut pending = mark.pending.clone();
        let first = mark.first;
        let mut entries = Vec::with_capacity(listed.entries.len() + 1);
        for entry in &listed.entries {
            pending.feed(prefix, entry, &mut entries, &mut |kind, key| {
                if first_time {
                    left_out(kind, 1, key);
                }
            });
        }
        if first_time && listed.left_out > 0 {
            left_out(LeftOut::NotUtf8, u64::from(listed.left_out), prefix);
        }
        if listed.next.is_none() {
            pending.finish(prefix, &mut entries);
        }
        let end = first + entries.len() as u64;
        if let Some(next) = &listed.next
            && let Some(reason) = self.leads_nowhere(number + 1, end, next)
        {
            tracing::warn!(prefix = ?prefix, page = number, reason, "listing a directory fails");
            return Err(Errno::EIO);
        }
        self.mark_next(number, end, listed.next.as_ref(), pending);
        self.keep(Page {
            number,
            first,
            entries,
            at,
        });
        Ok(())
    }

    /// Why page `number`, which begins at `first` and is asked for by `token`, would keep a
    /// reader waiting for ever. A token seen before is found by Brent's rule: it is compared
    /// with that of the page before, and with that of the last page whose number is a power of
    /// two, so any circle is found within about three rounds.
    fn leads_nowhere(&self, number: usize, first: u64, token: &Arc<str>) -> Option<&'static str> {
        let is_token = |page: usize| self.marks[page].continuation.as_ref() == Some(token);
        let anchor = number.next_power_of_two() / 2;
        if is_token(number - 1) || is_token(anchor.min(number - 1)) {
            return Some("the origin's continuation tokens go round in a circle");
        }
        if number >= EMPTY_PAGES_MAX && self.marks[number - EMPTY_PAGES_MAX].first == first {
            return Some("too many pages in a row hold nothing that can be shown");
        }
        (number >= MARKS_MAX).then_some("it has too many pages")
    }

    /// Notes where the page after `number` begins. A page that was seen before may end elsewhere
    /// now: then what is known of those after it no longer fits, and they are learned anew.
    fn mark_next(
        &mut self,
        number: usize,
        first: u64,
        continuation: Option<&Arc<str>>,
        pending: Pending,
    ) {
        let same = |mark: &Mark| mark.first == first && mark.continuation.as_ref() == continuation;
        if self.marks.get(number + 1).is_some_and(same) {
            return;
        }
        self.marks.truncate(number + 1);
        self.pages.retain(|held| held.number <= number);
        if let Some(continuation) = continuation {
            self.marks.push(Mark {
                first,
                continuation: Some(continuation.clone()),
                pending,
            });
        }
    }

    /// Holds a page; the one furthest from the reader goes when there are too many.
    fn keep(&mut self, page: Page) {
        self.pages.retain(|held| held.number != page.number);
        if self.pages.len() >= PAGES_MAX {
            let furthest = self
                .pages
                .iter()
                .enumerate()
                .max_by_key(|(_, held)| held.number.abs_diff(self.current))
                .map(|(index, _)| index);
            if let Some(index) = furthest {
                self.pages.remove(index);
            }
        }
        let at = self.pages.partition_point(|held| held.number < page.number);
        self.pages.insert(at, page);
    }
}

#[cfg(test)]
mod tests;
