//! HEAD and listings.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_engine::errors::OriginErrorKind::{NoSuchBucket, NotFound};
use forebay_engine::identity::Bucket;
use forebay_engine::ports::{ListEntry, ListPage, ListRequest};

use super::world::{Harness, OriginWorld};

fn name(entry: &ListEntry) -> String {
    match entry {
        ListEntry::Object(meta) => meta.key.to_string(),
        ListEntry::Prefix(prefix) => prefix.to_string(),
    }
}

/// All pages of a listing.
fn pages<W: OriginWorld>(
    harness: &mut Harness<W>,
    prefix: &str,
    delimited: bool,
    max: u32,
) -> Vec<ListPage> {
    let mut pages: Vec<ListPage> = Vec::new();
    loop {
        let request = ListRequest {
            bucket: harness.world.bucket(),
            prefix: prefix.into(),
            delimited,
            continuation: pages.last().and_then(|page| page.next.clone()),
            entries_max: max,
        };
        let page = harness.list(request).expect("a page");
        assert!(
            page.entries.len() <= max as usize,
            "at most as many as asked for"
        );
        let last = page.next.is_none();
        pages.push(page);
        if last {
            return pages;
        }
        assert!(pages.len() < 1000, "a listing that does not end");
    }
}

fn names(pages: &[ListPage]) -> Vec<String> {
    pages
        .iter()
        .flat_map(|page| &page.entries)
        .map(name)
        .collect()
}

/// Size, version and time.
pub fn head_tells_attributes(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    for size in [0, 1, 4097] {
        let key = format!("sizes/{size}");
        harness.world.put(&key, size, 1);
        let meta = harness.head(&key).expect("attributes");
        assert_eq!((meta.size_bytes, &*meta.key), (size, &*key));
        assert!(meta.modified_ns > 0, "a time of change");
    }
    harness.finish();
}

/// A key that is not there.
pub fn head_of_no_key_is_not_found(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    harness.world.put("there/too", 1, 1);
    for key in ["nowhere", "there", "there/to"] {
        assert_eq!(
            harness.head(key).map_err(|error| error.kind),
            Err(NotFound),
            "{key}"
        );
    }
    harness.finish();
}

/// Blocks read after a HEAD are the blocks read after a listing.
pub fn head_and_list_name_the_same_version(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    harness.world.put("same", 100, 1);
    let by_head = harness.version("same");
    let pages = pages(&mut harness, "", true, 10);
    let Some(ListEntry::Object(meta)) = pages[0].entries.first() else {
        panic!("no object in {pages:?}")
    };
    assert_eq!(meta.version(&harness.world.bucket()).id, by_head.id);
    assert_eq!(meta.size_bytes, 100);
    harness.finish();
}

/// Each key once, in byte order, over pages of any size.
pub fn pages_tell_each_key_once(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    let mut keys: Vec<String> = (0..25).map(|n| format!("p/{n:03}")).collect();
    keys.push("p/012/deep".to_owned());
    keys.push("q".to_owned());
    for key in &keys {
        harness.world.put(key, 3, 1);
    }
    keys.sort();
    for max in [1, 7, 1000] {
        let told = pages(&mut harness, "", false, max);
        assert_eq!(names(&told), keys, "pages of {max}");
    }
    let told = pages(&mut harness, "p/01", false, 4);
    let expected: Vec<String> = keys
        .iter()
        .filter(|key| key.starts_with("p/01"))
        .cloned()
        .collect();
    assert_eq!(names(&told), expected);
    harness.finish();
}

/// Keys below a `/` are one prefix, however many and however paged.
pub fn delimited_pages_roll_up(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    for key in ["a", "b/1", "b/2", "b/3", "b0", "c/d/e", "z"] {
        harness.world.put(key, 3, 1);
    }
    for max in [1, 2, 1000] {
        let told = pages(&mut harness, "", true, max);
        assert_eq!(names(&told), ["a", "b/", "b0", "c/", "z"], "pages of {max}");
        let prefixes = told.iter().flat_map(|page| &page.entries);
        let prefixes = prefixes
            .filter(|entry| matches!(entry, ListEntry::Prefix(_)))
            .count();
        assert_eq!(prefixes, 2);
    }
    assert_eq!(
        names(&pages(&mut harness, "b/", true, 2)),
        ["b/1", "b/2", "b/3"]
    );
    assert_eq!(names(&pages(&mut harness, "c/", true, 2)), ["c/d/"]);
    harness.finish();
}

/// Not an error.
pub fn a_prefix_without_keys_is_an_empty_page(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    harness.world.put("a", 1, 1);
    let told = pages(&mut harness, "nothing/", true, 10);
    assert_eq!(told, [ListPage::default()]);
    harness.finish();
}

/// Listing a bucket that does not exist.
pub fn a_bucket_that_is_missing_is_named_so(world: impl OriginWorld) {
    let mut harness = Harness::new(world);
    let endpoint = harness.world.bucket().endpoint.clone();
    let request = ListRequest {
        bucket: Arc::new(Bucket {
            endpoint,
            name: "no-such-bucket-here".to_owned(),
        }),
        prefix: "".into(),
        delimited: true,
        continuation: None,
        entries_max: 10,
    };
    assert_eq!(
        harness.list(request).map_err(|error| error.kind),
        Err(NoSuchBucket)
    );
    harness.finish();
}

/// Keys that need care in URLs and XML. Each is legal in S3.
const ODD_KEYS: [&str; 16] = [
    "odd/with space",
    "odd/plus+sign",
    "odd/plus + space",
    "odd/per%cent",
    "odd/%2B",
    "odd/a&b=c?d#e",
    "odd/<angle>\"quote\"'",
    "odd/ünï/日本",
    "odd/emoji-\u{1f600}",
    "odd/tilde~star*(paren)!",
    "odd/colon:semi;comma,at@dollar$",
    "odd/pipe|caret^tick`",
    "odd/[square]{curly}",
    "odd/dir/.hidden",
    "odd/trailing.",
    "odd/UPPER",
];

/// Keys that some S3 servers do not hold: those that keep files, and SeaweedFS, which takes a
/// backslash for a slash.
const ODDER_KEYS: [&str; 6] = [
    "odd/new\nline",
    "odd/a//b",
    "odd/trailing/",
    "odd/dot/../dot",
    "odd/tab\there",
    "odd/back\\slash",
];

/// Each key is listed as it is, and HEAD and GET find it.
pub fn odd_keys_are_listed_and_read(world: impl OriginWorld) {
    odd_keys(world, &ODD_KEYS);
}

/// Keys that are no file names; longer names than a file may have; a key that is also a prefix.
pub fn odder_keys_are_listed_and_read(world: impl OriginWorld) {
    let long = format!("odd/{}", "n".repeat(300));
    let mut keys = ODDER_KEYS.to_vec();
    keys.extend([&*long, "odd/both", "odd/both/below"]);
    odd_keys(world, &keys);
}

fn odd_keys(world: impl OriginWorld, keys: &[&str]) {
    let mut harness = Harness::new(world);
    for key in keys {
        harness.world.put(key, 100, 1);
    }
    let listed: BTreeSet<String> = names(&pages(&mut harness, "odd/", false, 5))
        .into_iter()
        .collect();
    let expected: BTreeSet<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    assert_eq!(listed, expected);
    for key in keys {
        let object = harness.version(key);
        let outcome = harness.get(&object, 1, &[99]);
        assert_eq!(outcome.result, Ok(()), "{key:?}");
        harness.check_bytes(key, 100, 1, 1, &outcome.filled);
    }
    harness.finish();
}
