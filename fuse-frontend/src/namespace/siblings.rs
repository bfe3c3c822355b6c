//! Names that are looked up one after the other in one directory, as a data loader opens its files, are learned from the
//! directory's listing: one request tells a thousand names, where each name by itself costs two.
//!
//! It goes on beside the answers, which wait for none of it. How much is listed depends on how much that helps: a page
//! each time that the number of names that were asked for doubles, and one more for every few names that were known
//! thanks to a page.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_engine::client::{Accept, Told};
use forebay_engine::limits::LIST_PAGE_ENTRIES;
use forebay_engine::ports::{ListPage, ListRequest, Time};

use super::known::{KNOWN_NAMES_MAX, Known};
use super::listing::Pending;
use super::{Namespace, count};
use crate::reply::ReadReply;

/// The first page is listed when so many names of a directory were asked for.
const NAMES_MIN: u32 = 4;
/// So many names that were known thanks to pages are worth another page.
const NAMES_PER_PAGE: u32 = 8;
/// More would only push each other out of what is remembered.
const PAGES_MAX: u32 = KNOWN_NAMES_MAX as u32 / 2 / LIST_PAGE_ENTRIES;
/// Directories whose names are being looked up.
const DIRECTORIES_MAX: usize = 1_024;

/// How far a directory's listing has come.
#[derive(Debug)]
struct Progress {
    since: Time,
    /// Names that the origin was asked for.
    asked: u32,
    /// Names that were known.
    known: u32,
    pages: u32,
    /// Where the next page begins.
    continuation: Option<Arc<str>>,
    pending: Pending,
    /// A page is on its way, or there is none any more.
    rests: bool,
}

impl Progress {
    fn new(since: Time) -> Self {
        Self {
            since,
            asked: 0,
            known: 0,
            pages: 0,
            continuation: None,
            pending: Pending::default(),
            rests: false,
        }
    }

    /// Whether one more page is worth its request.
    fn wants_page(&self) -> bool {
        let doubled = (self.asked / NAMES_MIN).checked_ilog2();
        let doubled = doubled.map_or(0, |times| times + 1);
        let helped = if self.pages > 0 {
            self.known / NAMES_PER_PAGE
        } else {
            0
        };
        !self.rests && self.pages < PAGES_MAX.min(doubled.saturating_add(helped))
    }
}

/// Directories by inode number.
#[derive(Debug, Default)]
pub(super) struct Siblings(HashMap<u64, Progress>);

/// A page to ask for.
struct Page {
    since: Time,
    continuation: Option<Arc<str>>,
}

impl Siblings {
    /// A name was known.
    fn was_known(&mut self, directory: u64) {
        if let Some(progress) = self.0.get_mut(&directory) {
            progress.known = progress.known.saturating_add(1);
        }
    }

    /// The origin is asked for a name. Perhaps a page is to be asked for as well.
    fn was_asked(&mut self, directory: u64, weight: u32, now: Time, ttl: Duration) -> Option<Page> {
        let is_over = |progress: &Progress| now.since(progress.since) >= ttl;
        if self.0.len() >= DIRECTORIES_MAX && !self.0.contains_key(&directory) {
            self.0.retain(|_, progress| !is_over(progress));
            if self.0.len() >= DIRECTORIES_MAX {
                self.0.clear();
            }
        }
        let progress = self
            .0
            .entry(directory)
            .or_insert_with(|| Progress::new(now));
        if is_over(progress) {
            *progress = Progress::new(now);
        }
        // The first counts for more where more are expected.
        let weight = if progress.asked == 0 { weight } else { 1 };
        progress.asked = progress.asked.saturating_add(weight);
        if !progress.wants_page() {
            return None;
        }
        progress.rests = true;
        Some(Page {
            since: progress.since,
            continuation: progress.continuation.clone(),
        })
    }

    /// Whether names that are known are worth further pages, anywhere.
    fn go_on(&self) -> bool {
        let mut all = self.0.values();
        all.any(|progress| progress.pages > 0 && !progress.rests)
    }

    /// The listing that a page is of, if it is still gone through.
    fn listing(&mut self, directory: u64, since: Time) -> Option<&mut Progress> {
        let progress = self.0.get_mut(&directory);
        progress.filter(|progress| progress.since == since)
    }
}

impl<R: ReadReply> Namespace<R> {
    /// A name of `directory` was known.
    pub(super) fn sibling_known(&self, directory: u64) {
        // Mostly nothing is gone through: a name that is known costs nothing here then.
        if self.siblings_go_on.load(Ordering::Relaxed) {
            self.siblings.lock().was_known(directory);
        }
    }

    /// The origin is asked for `key` in `directory`: its siblings may be next.
    pub(super) fn sibling_asked(self: &Arc<Self>, directory: u64, key: &str) {
        if self.attr_ttl.is_zero() {
            return;
        }
        let now = self.client.now();
        // Of what the kernel keeps of a listing, more names will be asked for.
        let is_listed = self.inodes.lock().oldest_listed(directory).is_some();
        let weight = if is_listed { NAMES_MIN } else { 1 };
        let page = self
            .siblings
            .lock()
            .was_asked(directory, weight, now, self.attr_ttl);
        let Some(page) = page else {
            return;
        };
        let end = key.rfind('/').map_or(0, |slash| slash + 1);
        let prefix: Arc<str> = key[..end].into();
        let accept = Accept {
            max_age: self.max_age(&prefix),
            knows_last: true,
            until: None,
        };
        let request = ListRequest {
            bucket: self.bucket.clone(),
            prefix: prefix.clone(),
            delimited: true,
            continuation: page.continuation,
            entries_max: LIST_PAGE_ENTRIES,
        };
        let (this, since) = (self.clone(), page.since);
        let listed = move |answer: Told<Arc<ListPage>>| {
            let (namespace, at) = (this.clone(), answer.at.min(now));
            namespace.helper.run(move || {
                // An error is told to who asks for a name: here nothing is learned, that is all.
                if let Ok(page) = answer.result {
                    this.siblings_listed(directory, &prefix, since, &page, at);
                }
                let awaited = &this.counters.sibling_pages_awaited;
                awaited.fetch_sub(1, Ordering::Relaxed);
            });
        };
        count(&self.counters.sibling_pages_awaited);
        self.list(request, accept, Box::new(listed));
    }

    /// Remembers a page's names.
    fn siblings_listed(
        &self,
        directory: u64,
        prefix: &str,
        since: Time,
        page: &ListPage,
        at: Time,
    ) {
        let mut listed = Vec::with_capacity(page.entries.len() + 1);
        {
            let mut siblings = self.siblings.lock();
            let Some(progress) = siblings.listing(directory, since) else {
                return;
            };
            for entry in &page.entries {
                progress
                    .pending
                    .feed(prefix, entry, &mut listed, &mut |_, _| {});
            }
            if page.next.is_none() {
                progress.pending.finish(prefix, &mut listed);
            }
        }
        {
            let mut known = self.known.lock();
            for listed in listed {
                let key = format!("{prefix}{}", listed.name);
                known.insert(key.into(), at, Known::Present(listed.kind));
            }
        }
        // The next page only now: what it is worth shows when this one is known.
        let mut siblings = self.siblings.lock();
        if let Some(progress) = siblings.listing(directory, since) {
            progress.pages += 1;
            progress.rests = page.next.is_none();
            progress.continuation.clone_from(&page.next);
        }
        let go_on = siblings.go_on();
        self.siblings_go_on.store(go_on, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    /// Pages asked for while so many names are asked for and none is known.
    fn pages(names: u32) -> u32 {
        let mut siblings = Siblings::default();
        let mut pages = 0;
        for _ in 0..names {
            if let Some(page) = siblings.was_asked(7, 1, Time(5), TTL) {
                pages += 1;
                let progress = siblings.listing(7, page.since).expect("it is gone through");
                progress.pages += 1;
                progress.rests = false;
            }
        }
        pages
    }

    #[test]
    fn pages_that_do_not_help_are_few() {
        assert_eq!([3, 4, 7, 8, 16, 1_000].map(pages), [0, 1, 1, 2, 3, 8]);
    }

    #[test]
    fn pages_that_help_are_followed_by_more_up_to_a_bound() {
        let mut siblings = Siblings::default();
        let mut pages = 0;
        for _ in 0..10_000 {
            if let Some(page) = siblings.was_asked(7, 1, Time(5), TTL) {
                pages += 1;
                let progress = siblings.listing(7, page.since).expect("it is gone through");
                progress.pages += 1;
                progress.rests = false;
            }
            (0..8).for_each(|_| siblings.was_known(7));
        }
        assert_eq!(pages, PAGES_MAX);
    }

    #[test]
    fn one_page_is_asked_for_at_a_time_and_all_is_over_with_the_time_to_live() {
        let mut siblings = Siblings::default();
        let asked = |siblings: &mut Siblings, at: u64| {
            (0..100)
                .filter_map(|_| siblings.was_asked(7, 1, Time(at), TTL))
                .count()
        };
        assert_eq!(asked(&mut siblings, 5), 1);
        assert_eq!(asked(&mut siblings, 6), 0);
        assert!(siblings.listing(7, Time(6)).is_none());
        assert_eq!(asked(&mut siblings, 5 + TTL.as_nanos() as u64), 1);
    }

    #[test]
    fn the_number_of_directories_is_bounded() {
        let mut siblings = Siblings::default();
        for directory in 0..5 * DIRECTORIES_MAX as u64 {
            siblings.was_asked(directory, 1, Time(5), TTL);
        }
        assert!(siblings.0.len() <= DIRECTORIES_MAX);
    }
}
