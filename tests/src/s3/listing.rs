//! One page of a listing: prefix, delimiter, roll-up, limits; the same for both versions of the
//! operation.

use std::sync::Arc;

use super::store::{Store, Stored, Walk};

/// What to list.
pub(super) struct Query<'a> {
    pub(super) prefix: &'a [u8],
    /// Empty for none.
    pub(super) delimiter: &'a [u8],
    /// Entries lie strictly after this.
    pub(super) after: &'a [u8],
    pub(super) entries_max: usize,
}

/// What was found.
#[derive(Default)]
pub(super) struct Page {
    pub(super) objects: Vec<(Vec<u8>, Arc<Stored>)>,
    pub(super) prefixes: Vec<Vec<u8>>,
    /// There is more after `last`.
    pub(super) truncated: bool,
    /// The last entry of the page.
    pub(super) last: Vec<u8>,
}

/// The smallest byte string above everything that starts with `prefix`.
fn beyond(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

fn common_prefix<'k>(key: &'k [u8], query: &Query<'_>) -> Option<&'k [u8]> {
    if query.delimiter.is_empty() {
        return None;
    }
    let rest = &key[query.prefix.len()..];
    let at = rest
        .windows(query.delimiter.len())
        .position(|window| window == query.delimiter)?;
    Some(&key[..query.prefix.len() + at + query.delimiter.len()])
}

pub(super) fn list(store: &Store, bucket: &str, query: &Query<'_>) -> Page {
    let mut page = Page::default();
    if query.entries_max == 0 {
        return page;
    }
    let from = query.prefix.max(query.after);
    store.walk(bucket, from, |key, stored| {
        if !key.starts_with(query.prefix) {
            return if key < query.prefix {
                Walk::Next
            } else {
                Walk::Stop
            };
        }
        if key <= query.after {
            return Walk::Next;
        }
        let rolled = common_prefix(key, query);
        let skip_rolled = |prefix: &[u8]| beyond(prefix).map_or(Walk::Stop, Walk::From);
        // A page may end with a prefix: everything below it was told by that entry.
        if let Some(prefix) = rolled
            && prefix <= query.after
        {
            return skip_rolled(prefix);
        }
        if page.objects.len() + page.prefixes.len() == query.entries_max {
            page.truncated = true;
            return Walk::Stop;
        }
        match rolled {
            Some(prefix) => {
                page.prefixes.push(prefix.to_vec());
                page.last = prefix.to_vec();
                skip_rolled(prefix)
            }
            None => {
                page.objects.push((key.to_vec(), stored.clone()));
                page.last = key.to_vec();
                Walk::Next
            }
        }
    });
    page
}

#[cfg(test)]
mod tests {
    use super::super::store::Content;
    use super::*;

    fn store(keys: &[&str]) -> Store {
        let store = Store::default();
        for key in keys {
            store.put(
                "b",
                key.as_bytes(),
                Content::Synthetic {
                    seed: 0,
                    size_bytes: 1,
                },
            );
        }
        store
    }

    fn names(page: &Page) -> Vec<String> {
        let objects = page.objects.iter().map(|(key, _)| key.clone());
        let all = objects.chain(page.prefixes.iter().cloned());
        let mut all: Vec<_> = all.map(|key| String::from_utf8(key).unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn pages_of_one_tell_each_entry_once() {
        let store = store(&["a", "a/1", "a/2", "a0", "b//c", "b/d", "x\u{10ffff}"]);
        let mut after = Vec::new();
        let mut seen = Vec::new();
        loop {
            let query = Query {
                prefix: b"",
                delimiter: b"/",
                after: &after,
                entries_max: 1,
            };
            let page = list(&store, "b", &query);
            seen.extend(names(&page));
            after = page.last;
            if !page.truncated {
                break;
            }
        }
        assert_eq!(seen, ["a", "a/", "a0", "b/", "x\u{10ffff}"]);
    }

    #[test]
    fn prefix_and_no_delimiter() {
        let store = store(&["a", "a/1", "a/2", "b"]);
        let query = Query {
            prefix: b"a/",
            delimiter: b"",
            after: b"a/1",
            entries_max: 9,
        };
        assert_eq!(names(&list(&store, "b", &query)), ["a/2"]);
        let none = Query {
            entries_max: 0,
            ..query
        };
        assert!(!list(&store, "b", &none).truncated);
    }
}
