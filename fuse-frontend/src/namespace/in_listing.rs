//! A name as the listing of its directory has it, for when the origin does not answer and nobody remembers the name
//! itself. Who has listed a directory (this mount, another one, a warm-up) has left its pages with the members that
//! own it.

use std::sync::Arc;

use forebay_engine::client::{Accept, Told};
use forebay_engine::limits::LIST_PAGE_ENTRIES;
use forebay_engine::ports::{ListEntry, ListPage, ListRequest, Time};

use super::known::Known;
use super::listing::{Kind, Pending};
use super::past::Last;
use super::{Namespace, count};
use crate::reply::ReadReply;

/// Parts of a listing that are gone through: far more than are remembered of one directory.
const PARTS_MAX: u32 = 256;

type Found = Box<dyn FnOnce(Option<Last>) + Send>;

/// Goes through a directory's pages.
struct Search {
    key: Arc<str>,
    directory: Arc<str>,
    /// Objects that may be hidden by a directory of their name: half an answer is none.
    pending: Pending,
    parts: u32,
    /// When the oldest page was listed.
    at: Time,
    until: Time,
    found: Found,
}

impl<R: ReadReply> Namespace<R> {
    /// Whether a directory's listing has `key`: as what, and since when. That it has not says nothing.
    pub(super) fn find_listed(self: &Arc<Self>, key: Arc<str>, until: Time, found: Found) {
        let end = key.rfind('/').map_or(0, |slash| slash + 1);
        let search = Search {
            directory: key[..end].into(),
            key,
            pending: Pending::default(),
            parts: 0,
            at: self.client.now(),
            until,
            found,
        };
        self.search(search, None);
    }

    fn search(self: &Arc<Self>, search: Search, continuation: Option<Arc<str>>) {
        let request = ListRequest {
            bucket: self.bucket.clone(),
            prefix: search.directory.clone(),
            delimited: true,
            continuation,
            entries_max: LIST_PAGE_ENTRIES,
        };
        let accept = Accept {
            max_age: self.attr_ttl,
            // Where nobody knows that page either, the name itself is asked for once more.
            knows_last: true,
            until: Some(search.until),
        };
        let this = self.clone();
        let listed = move |answer: Told<Arc<ListPage>>| match answer.result {
            Ok(page) => {
                let namespace = this.clone();
                let at = answer.at;
                namespace
                    .helper
                    .run(move || this.search_page(search, &page, at));
            }
            Err(_) => (search.found)(None),
        };
        self.list(request, accept, Box::new(listed));
    }

    /// Remembers a page's names, and looks for the one.
    fn search_page(self: &Arc<Self>, mut search: Search, page: &ListPage, at: Time) {
        search.at = search.at.min(at);
        search.parts += 1;
        let mut listed = Vec::with_capacity(page.entries.len() + 1);
        for entry in &page.entries {
            search
                .pending
                .feed(&search.directory, entry, &mut listed, &mut |_, _| {});
        }
        if page.next.is_none() {
            search.pending.finish(&search.directory, &mut listed);
        }
        let name = &search.key[search.directory.len()..];
        let kind = listed.iter().find(|listed| &*listed.name == name);
        let kind = kind.map(|listed| listed.kind.clone());
        // The first key that stands behind all that could hide the name.
        let behind = format!("{}0", search.key);
        let is_past = page
            .entries
            .last()
            .is_some_and(|last| key(last) >= &*behind);
        {
            let mut known = self.known.lock();
            for listed in listed {
                let key = format!("{}{}", search.directory, listed.name);
                known.insert(key.into(), search.at, Known::Present(listed.kind));
            }
        }
        match (kind, &page.next) {
            (Some(kind), _) => {
                let last = self.as_it_was(kind, search.at);
                (search.found)(last);
            }
            (None, Some(next)) if !is_past && search.parts < PARTS_MAX => {
                self.search(search, Some(next.clone()));
            }
            (None, _) => (search.found)(None),
        }
    }

    /// What was listed at `at`, if that may be told. It is counted then.
    fn as_it_was(&self, kind: Kind, at: Time) -> Option<Last> {
        if !self.is_recent_enough(at) {
            return None;
        }
        if let Kind::File(meta) = &kind {
            let id = meta.version(&self.bucket).id;
            if self.inodes.lock().is_superseded(id) {
                return None;
            }
        }
        count(&self.counters.stale_answers);
        Some((Some(kind), at))
    }
}

fn key(entry: &ListEntry) -> &str {
    match entry {
        ListEntry::Object(meta) => &meta.key,
        ListEntry::Prefix(key) => key,
    }
}
