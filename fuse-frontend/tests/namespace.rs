//! The file system without a kernel, over a stand-in for the engine, against a plain model.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use common::mount::wait_until;
use common::{Engine, Store};
use forebay_engine::client::Reply;
use forebay_engine::errors::{OriginErrorKind, ReadError};
use forebay_engine::limits::{KEY_BYTES_MAX, RING_ENTRIES};
use forebay_engine::ports::Clock;
use forebay_fuse::namespace::{
    DirSink, Entry, FileVersion, KernelListing, Kind, LeftOut, LookupError, Namespace,
    OpenedDirectory, ROOT, Renewed,
};
use forebay_fuse::{MountOptions, ReadReply, reply};
use fuser::{Errno, FileAttr, FileType};
use proptest::prelude::*;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends a read's answer to the test.
#[derive(Debug)]
struct TestReply {
    sender: Sender<Result<Vec<u8>, Errno>>,
    file: Option<Arc<FileVersion>>,
}

impl Reply for TestReply {
    fn data(self, bytes: &[u8]) {
        let _ = self.sender.send(Ok(bytes.to_vec()));
    }

    fn error(self, error: ReadError) {
        if let (ReadError::VersionChanged, Some(file)) = (&error, &self.file) {
            file.supersede();
        }
        let _ = self.sender.send(Err(reply::read_errno(&error)));
    }
}

impl ReadReply for TestReply {
    fn errno(self, errno: Errno) {
        let _ = self.sender.send(Err(errno));
    }

    fn bind(&mut self, file: &Arc<FileVersion>) {
        self.file = Some(file.clone());
    }
}

#[derive(Clone, Debug)]
struct Row {
    name: String,
    attr: FileAttr,
    next: u64,
    ttl: Duration,
}

/// Takes at most `room` entries.
struct Rows {
    rows: Vec<Row>,
    room: usize,
    plus: bool,
    sender: Sender<Result<Vec<Row>, Errno>>,
}

impl DirSink for Rows {
    fn with_attributes(&self) -> bool {
        self.plus
    }

    fn add(&mut self, next: u64, name: &str, attr: &FileAttr, ttl: Duration) -> bool {
        if self.rows.len() == self.room {
            return true;
        }
        self.rows.push(Row {
            name: name.to_owned(),
            attr: *attr,
            next,
            ttl,
        });
        false
    }

    fn finish(self: Box<Self>, result: Result<(), Errno>) {
        let Rows { rows, sender, .. } = *self;
        let _ = sender.send(result.map(|()| rows));
    }
}

struct Fixture {
    store: Arc<Store>,
    engine: Engine<TestReply>,
    namespace: Arc<Namespace<TestReply>>,
}

impl Fixture {
    fn new(prefix: &str, options: &MountOptions) -> Self {
        let store = Store::new();
        let engine = Engine::start(store.clone());
        let namespace = Namespace::new(
            engine.client.clone(),
            engine.bucket.clone(),
            prefix,
            options,
        );
        Self {
            store,
            engine,
            namespace,
        }
    }

    fn default() -> Self {
        Self::new("", &MountOptions::default())
    }

    fn wait<T: Send + 'static>(&self, ask: impl FnOnce(Sender<T>)) -> T {
        let (sender, receiver) = channel();
        ask(sender);
        receiver.recv_timeout(ANSWER_TIMEOUT).expect("an answer")
    }

    fn lookup(&self, parent: u64, name: &str) -> Result<Entry, Errno> {
        self.lookup_os(parent, OsStr::new(name))
    }

    fn lookup_os(&self, parent: u64, name: &OsStr) -> Result<Entry, Errno> {
        self.lookup_with_ttl(parent, name)
            .map_err(|error| error.errno)
    }

    fn lookup_with_ttl(&self, parent: u64, name: &OsStr) -> Result<Entry, LookupError> {
        self.wait(|sender| {
            self.namespace.lookup(parent, name, move |found| {
                sender.send(found).unwrap_or_default()
            });
        })
    }

    /// Looks a path up and forgets the directories on the way.
    fn walk(&self, path: &str) -> Result<Entry, Errno> {
        let mut number = ROOT;
        let mut entry = None;
        for name in path.split('/') {
            let found = self.lookup(number, name);
            self.namespace.forget(number, 1);
            let found = found?;
            number = found.attr.ino.0;
            entry = Some(found);
        }
        Ok(entry.expect("a path has a part"))
    }

    fn getattr(&self, number: u64) -> Result<FileAttr, Errno> {
        self.getattr_with_ttl(number).map(|(attr, _)| attr)
    }

    fn getattr_with_ttl(&self, number: u64) -> Result<(FileAttr, Duration), Errno> {
        self.wait(|sender| {
            self.namespace.getattr(number, move |result| {
                sender.send(result).unwrap_or_default()
            });
        })
    }

    fn open(&self, number: u64) -> Result<u64, Errno> {
        self.wait(|sender| {
            self.namespace.open(number, move |result| {
                sender.send(result).unwrap_or_default()
            })
        })
    }

    fn read(&self, handle: u64, offset: u64, len_bytes: u32) -> Result<Vec<u8>, Errno> {
        self.wait(|sender| {
            self.namespace
                .read(handle, offset, len_bytes, TestReply { sender, file: None });
        })
    }

    fn readdir(
        &self,
        handle: u64,
        offset: u64,
        room: usize,
        plus: bool,
    ) -> Result<Vec<Row>, Errno> {
        self.wait(|sender| {
            let sink = Rows {
                rows: Vec::new(),
                room,
                plus,
                sender,
            };
            self.namespace.readdir(handle, offset, Box::new(sink));
        })
    }

    /// The whole directory, `room` entries at a time.
    fn list(&self, number: u64, room: usize, plus: bool) -> Result<Vec<Row>, Errno> {
        let handle = self.namespace.opendir(number)?.handle;
        let rows = self.list_from(handle, 0, room, plus);
        self.namespace.releasedir(handle);
        rows
    }

    fn list_from(
        &self,
        handle: u64,
        offset: u64,
        room: usize,
        plus: bool,
    ) -> Result<Vec<Row>, Errno> {
        let mut rows: Vec<Row> = Vec::new();
        let mut offset = offset;
        loop {
            let more = self.readdir(handle, offset, room, plus)?;
            let Some(last) = more.last() else {
                return Ok(rows);
            };
            assert!(last.next > offset, "offsets grow");
            offset = last.next;
            rows.extend(more);
        }
    }

    /// Waits until what was learned beside the answers is remembered.
    fn settle(&self) {
        wait_until("pages of listings have come", || {
            self.namespace.stats().sibling_pages_awaited == 0
        });
    }

    fn after_ttl(&self) {
        self.engine.clock.advance(Duration::from_secs(2));
    }
}

fn names(rows: &[Row]) -> Vec<&str> {
    rows.iter()
        .map(|row| row.name.as_str())
        .filter(|name| !name.starts_with('.'))
        .collect()
}

#[test]
fn lookups_and_forgets_leave_the_table_empty() {
    let fixture = Fixture::default();
    fixture.store.put("a/b/c", "x");
    fixture.store.put("f", "x");
    for _ in 0..3 {
        let a = fixture.lookup(ROOT, "a").unwrap().attr;
        assert_eq!(a.kind, FileType::Directory);
        let b = fixture.lookup(a.ino.0, "b").unwrap().attr;
        let c = fixture.lookup(b.ino.0, "c").unwrap().attr;
        let handle = fixture.open(c.ino.0).unwrap();
        assert_eq!(fixture.read(handle, 0, 4096), Ok(b"x".to_vec()));
        for number in [a.ino.0, b.ino.0, c.ino.0] {
            fixture.namespace.forget(number, 1);
        }
        assert_eq!(fixture.namespace.stats().inodes, 2, "the open file stays");
        fixture.namespace.release(handle);
    }
    for row in fixture.list(ROOT, 100, true).unwrap() {
        if !row.name.starts_with('.') {
            fixture.namespace.forget(row.attr.ino.0, 1);
        }
    }
    // Entries that no longer fitted must not have been counted.
    for row in fixture.list(ROOT, 1, true).unwrap() {
        if !row.name.starts_with('.') {
            fixture.namespace.forget(row.attr.ino.0, 1);
        }
    }
    let stats = fixture.namespace.stats();
    assert_eq!(
        (stats.inodes, stats.open_files, stats.open_directories),
        (1, 0, 0)
    );
    assert_eq!(fixture.lookup(12345, "a"), Err(Errno::ESTALE));
}

#[test]
fn an_overwritten_object_is_a_new_inode_and_old_handles_keep_the_old_one() {
    let fixture = Fixture::default();
    fixture.store.put("f", "old bytes");
    let old = fixture.walk("f").unwrap().attr.ino.0;
    let handle = fixture.open(old).unwrap();
    fixture.store.put("f", "new");
    assert_eq!(
        fixture
            .open(old)
            .map(|extra| fixture.namespace.release(extra)),
        Ok(()),
        "within attr-ttl"
    );
    fixture.after_ttl();
    assert_eq!(
        fixture.getattr(old).unwrap().size,
        9,
        "an open file is not asked for again"
    );
    assert_eq!(fixture.open(old), Err(Errno::ESTALE));
    assert_eq!(fixture.open(old), Err(Errno::ESTALE), "and stays so");
    let new = fixture.walk("f").unwrap().attr;
    assert_ne!(new.ino.0, old);
    assert_eq!(new.size, 3);
    let new_handle = fixture.open(new.ino.0).unwrap();
    assert_eq!(fixture.read(new_handle, 0, 100), Ok(b"new".to_vec()));
    assert_eq!(fixture.getattr(old).unwrap().size, 9);
    fixture.namespace.release(handle);
    assert_eq!(fixture.getattr(old), Err(Errno::ESTALE));
}

#[test]
fn a_read_that_finds_the_version_gone_makes_the_next_open_look_again() {
    let minutes = Duration::from_secs(600);
    let options = MountOptions {
        attr_ttl: minutes,
        entry_ttl: minutes,
        ..MountOptions::default()
    };
    let fixture = Fixture::new("", &options);
    fixture.store.put("f", "old");
    let old = fixture.walk("f").unwrap().attr.ino.0;
    let handle = fixture.open(old).unwrap();
    fixture.store.put("f", "newer");
    assert_eq!(fixture.read(handle, 0, 10), Err(Errno::ESTALE));
    assert_eq!(
        fixture.open(old),
        Err(Errno::ESTALE),
        "long before attr-ttl"
    );
    assert_eq!(
        fixture.walk("f").unwrap().attr.size,
        5,
        "what was remembered is not believed"
    );
}

/// The group remembers, for as long, what it was told just before the object changed.
#[test]
fn a_group_that_remembers_the_old_version_does_not_hide_the_new_one() {
    let minutes = Duration::from_secs(600);
    let options = MountOptions {
        attr_ttl: minutes,
        entry_ttl: minutes,
        ..MountOptions::default()
    };
    let fixture = Fixture::new("", &options);
    fixture.store.put("f", "old");
    fixture.store.remember(Duration::from_secs(300));
    let old = fixture.walk("f").unwrap().attr.ino.0;
    let handle = fixture.open(old).unwrap();
    fixture.store.put("f", "newer");
    assert_eq!(fixture.read(handle, 0, 10), Err(Errno::ESTALE));
    assert_eq!(fixture.open(old), Err(Errno::ESTALE));
    // What the mount itself remembered has ended, the group's has not.
    for wait in [Duration::ZERO, Duration::from_secs(601)] {
        fixture.engine.clock.advance(wait);
        assert_eq!(fixture.walk("f").unwrap().attr.size, 5);
    }
}

/// No reader sees anything older than `attr_ttl`, as on a node of its own.
#[test]
fn what_a_group_remembers_counts_from_when_it_was_told() {
    let seconds = Duration::from_secs;
    let options = MountOptions {
        attr_ttl: seconds(100),
        entry_ttl: seconds(100),
        negative_ttl: seconds(100),
        ..MountOptions::default()
    };
    let fixture = Fixture::new("", &options);
    fixture.engine.clock.advance(seconds(1_000));
    fixture.store.put("f", "x");
    fixture.store.remember(seconds(60));
    let near = |ttl: Duration| ttl <= seconds(40) && ttl > seconds(35);
    let entry = fixture.lookup(ROOT, "f").unwrap();
    assert!(near(entry.attr_ttl) && near(entry.entry_ttl), "{entry:?}");
    let absent = fixture.lookup_with_ttl(ROOT, OsStr::new("none"));
    assert!(near(absent.unwrap_err().ttl));
    let number = entry.attr.ino.0;
    fixture.engine.clock.advance(seconds(41));
    assert!(
        near(fixture.getattr_with_ttl(number).unwrap().1),
        "asked again"
    );
    let handle = fixture.namespace.opendir(ROOT).unwrap().handle;
    assert!(near(fixture.readdir(handle, 2, 5, true).unwrap()[0].ttl));
    fixture.namespace.releasedir(handle);
    // Older than what is asked for: the origin it is.
    fixture.store.remember(seconds(101));
    fixture.engine.clock.advance(seconds(41));
    let fresh = fixture.getattr_with_ttl(number).unwrap().1;
    assert!(fresh > seconds(95), "{fresh:?}");
}

#[test]
fn a_version_that_comes_back_is_the_same_inode_and_opens_again() {
    let fixture = Fixture::default();
    fixture.store.put("f", "x");
    let number = fixture.walk("f").unwrap().attr.ino.0;
    fixture.after_ttl();
    fixture.store.fail_metadata(Some(OriginErrorKind::NotFound));
    assert_eq!(fixture.getattr(number), Err(Errno::ESTALE));
    fixture.store.fail_metadata(None);
    assert_eq!(fixture.open(number), Err(Errno::ESTALE));
    assert_eq!(fixture.walk("f").unwrap().attr.ino.0, number);
    assert!(fixture.open(number).is_ok());
}

#[test]
fn origin_failures_are_errors_and_not_absence() {
    let fixture = Fixture::default();
    fixture.store.put("f", "x");
    let number = fixture.walk("f").unwrap().attr.ino.0;
    for (kind, errno) in [
        (OriginErrorKind::Denied, Errno::EACCES),
        (OriginErrorKind::NoSuchBucket, Errno::EIO),
    ] {
        fixture.after_ttl();
        fixture.store.fail_metadata(Some(kind));
        assert_eq!(fixture.walk("f").map(|entry| entry.attr.ino.0), Err(errno));
        assert_eq!(fixture.getattr(number), Err(errno));
        assert_eq!(fixture.open(number), Err(errno));
        assert_eq!(
            fixture.list(ROOT, 10, false).map(|rows| rows.len()),
            Err(errno)
        );
        fixture.store.fail_metadata(None);
        assert!(fixture.walk("f").is_ok(), "the failure was not remembered");
        assert!(fixture.list(ROOT, 10, false).is_ok());
    }
}

/// However the origin fails in passing, what was known goes on: names, absences, versions.
#[test]
fn while_the_origin_does_not_answer_names_are_what_they_were() {
    let fixture = Fixture::default();
    fixture.store.put("f", "x");
    fixture.store.put("changed", "x");
    fixture.store.put("d/in", "x");
    let number = |name: &str| fixture.walk(name).map(|entry| entry.attr.ino.0);
    let (f, d, changed) = (number("f"), number("d"), number("changed"));
    assert_eq!(number("none"), Err(Errno::ENOENT));
    fixture.after_ttl();
    fixture.store.put("changed", "y");
    let old = changed.unwrap();
    assert_eq!(fixture.getattr(old), Err(Errno::ESTALE));
    let kinds = [OriginErrorKind::Timeout, OriginErrorKind::Unavailable];
    for kind in kinds {
        fixture.store.fail_metadata(Some(kind));
        fixture.after_ttl();
        assert_eq!([number("f"), number("d")], [f, d]);
        assert_eq!(number("none"), Err(Errno::ENOENT));
        let entry = fixture.walk("f").unwrap();
        // The kernel is not to believe it for any time.
        assert!(entry.attr_ttl.is_zero() && entry.entry_ttl.is_zero());
        let file = f.unwrap();
        assert!(fixture.getattr(file).is_ok());
        let handle = fixture.open(file).unwrap();
        fixture.namespace.release(handle);
        // Nobody asked for it before, and of this one it is known that it has changed.
        assert_eq!(number("never"), Err(Errno::EIO));
        assert_eq!(number("changed"), Err(Errno::EIO));
        assert_eq!(fixture.open(old).map(drop), Err(Errno::ESTALE));
    }
    assert!(fixture.namespace.stats().stale_answers >= 8);
    fixture.store.fail_metadata(None);
    assert!(number("changed").is_ok_and(|number| number != old));
    fixture.store.put("f", "z");
    fixture.after_ttl();
    assert_eq!(fixture.getattr(f.unwrap()), Err(Errno::ESTALE));
}

#[test]
fn who_remembers_nothing_or_not_so_long_is_told_the_error() {
    let short = MountOptions {
        stale_max: Duration::from_secs(100),
        ..MountOptions::default()
    };
    let nothing = MountOptions {
        attr_ttl: Duration::ZERO,
        ..MountOptions::default()
    };
    for (options, within, after) in [(short, true, false), (nothing, false, false)] {
        let fixture = Fixture::new("", &options);
        fixture.store.put("f", "x");
        let number = fixture.walk("f").unwrap().attr.ino.0;
        fixture.store.fail_metadata(Some(OriginErrorKind::Timeout));
        for (span, expected) in [(50, within), (60, after)] {
            fixture.engine.clock.advance(Duration::from_secs(span));
            let found = fixture.walk("f").map(drop);
            assert_eq!(found.is_ok(), expected, "{found:?}");
            assert_eq!(fixture.getattr(number).is_ok(), expected);
        }
    }
}

/// A member that lost its way to the origin remembers a version from before the one that this mount knows.
#[test]
fn what_others_remember_from_long_ago_does_not_replace_what_is_known_here() {
    let fixture = Fixture::default();
    fixture.engine.clock.advance(Duration::from_secs(10_000));
    fixture.store.put("f", "old");
    fixture.store.remember(Duration::from_secs(5_000));
    fixture.store.put("f", "newer");
    let entry = fixture.walk("f").unwrap();
    assert_eq!(entry.attr.size, 5);
    fixture.after_ttl();
    fixture.store.silent.store(true, Ordering::Relaxed);
    assert_eq!(fixture.walk("f").unwrap().attr, entry.attr);
    assert!(fixture.getattr(entry.attr.ino.0).is_ok());
    assert!(fixture.open(entry.attr.ino.0).is_ok());
}

/// Of a name that nobody has asked for, what stands in the listing of its directory is told. Pages of three entries.
#[test]
fn while_the_origin_does_not_answer_a_name_is_as_its_directory_was_listed() {
    let fixture = Fixture::default();
    let store = &fixture.store;
    store.page_max.store(3, Ordering::Relaxed);
    for n in 0..9 {
        store.put(&format!("d/a-{n}"), vec![0; n]);
    }
    for key in ["d/a", "d/a/x", "d/m", "d/z"] {
        store.put(key, "12345");
    }
    store.listings_only.store(true, Ordering::Relaxed);
    // Far behind the object of its name.
    assert_eq!(fixture.walk("d/a").unwrap().attr.kind, FileType::Directory);
    let file = fixture.walk("d/m").unwrap().attr;
    assert_eq!((file.kind, file.size), (FileType::RegularFile, 5));
    assert_eq!(fixture.walk("d/a/x").unwrap().attr.size, 5);
    // What was gone through on the way is known: only the name itself is asked for.
    fixture.after_ttl();
    let lists = store.lists.load(Ordering::Relaxed);
    assert_eq!(fixture.walk("d/a-7").unwrap().attr.size, 7);
    assert_eq!(store.lists.load(Ordering::Relaxed), lists + 2);
    // That it does not stand there is no answer.
    for name in ["none", "d/a-", "d/zz"] {
        assert_eq!(fixture.walk(name).map(drop), Err(Errno::EIO), "{name}");
    }
    store.listings_only.store(false, Ordering::Relaxed);
    assert_eq!(fixture.walk("none").map(drop), Err(Errno::ENOENT));
}

/// An older answer for the name, a newer one in the listing that someone made since.
#[test]
fn the_newest_of_what_is_remembered_counts() {
    let fixture = Fixture::default();
    fixture.engine.clock.advance(Duration::from_secs(10_000));
    fixture.store.put("f", "old");
    fixture.store.remember(Duration::from_secs(5_000));
    fixture.store.silent.store(true, Ordering::Relaxed);
    fixture.store.put("f", "newer");
    fixture.store.listed_ago(Duration::from_secs(50));
    assert_eq!(fixture.walk("f").unwrap().attr.size, 5);
}

#[test]
fn what_a_job_lists_replaces_what_was_known() {
    let hour = MountOptions {
        attr_ttl: Duration::from_secs(3_600),
        ..MountOptions::default()
    };
    let fixture = Fixture::new("", &hour);
    let (store, namespace) = (&fixture.store, &fixture.namespace);
    let all = ["changed", "deleted", "same", "unlisted"];
    for name in all {
        store.put(&format!("v/{name}"), "123");
    }
    store.put("w", "123");
    let number = |name: &str| fixture.walk(name).map(|entry| entry.attr.ino.0);
    let directory = number("v").unwrap();
    let before = all.map(|name| number(&format!("v/{name}")).unwrap());
    let outside = number("w").unwrap();
    fixture.engine.clock.advance(Duration::from_secs(20));
    // A group that remembers all of it.
    store.remember(Duration::from_secs(10));
    store.put("v/changed", "12345");
    store.put("v/new", "12345");
    store.delete("v/deleted");
    store.put("w", "12345");

    let began = fixture.engine.client.now();
    let listed = ["changed", "same", "new"].map(|name| {
        let key: Arc<str> = format!("v/{name}").into();
        (key.clone(), Kind::File(store.meta(&key)))
    });
    namespace.learn(listed.into(), began);
    let mut renewed = Renewed::default();
    renewed.tree("v/".into());
    assert_eq!(namespace.renew(&renewed, began).len(), 3);
    let heads = store.heads.load(Ordering::Relaxed);
    let stats = before.map(|number| fixture.getattr(number).map(drop));
    let gone = Err(Errno::ESTALE);
    assert_eq!(stats, [gone, gone, Ok(()), gone]);
    assert!(fixture.getattr(outside).is_ok(), "it was not listed");
    assert_eq!(fixture.walk("v/changed").unwrap().attr.size, 5);
    assert_eq!(fixture.walk("v/new").unwrap().attr.size, 5);
    assert_eq!(number("v/same"), Ok(before[2]));
    let asked = store.heads.load(Ordering::Relaxed) - heads;
    assert_eq!(asked, 0, "all of it was told by the job");
    // Of the rest the origin is asked, whatever the group remembers.
    assert_eq!(number("v/deleted"), Err(Errno::ENOENT));
    assert_eq!(number("v/unlisted"), Ok(before[3]));
    let rows = fixture.list(directory, 10, true).unwrap();
    let sizes: Vec<u64> = rows[2..].iter().map(|row| row.attr.size).collect();
    assert_eq!(
        (names(&rows[2..]), sizes),
        (vec!["changed", "new", "same", "unlisted"], vec![5, 5, 3, 3])
    );
    assert!(namespace.renew(&renewed, began).is_empty());
}

#[test]
fn names_are_remembered_for_their_time_to_live() {
    let fixture = Fixture::default();
    assert_eq!(fixture.walk("f").map(drop), Err(Errno::ENOENT));
    fixture.store.put("f", "x");
    let asked = fixture.store.heads.load(Ordering::Relaxed);
    assert_eq!(fixture.walk("f").map(drop), Err(Errno::ENOENT));
    assert_eq!(fixture.store.heads.load(Ordering::Relaxed), asked);
    fixture.after_ttl();
    assert!(fixture.walk("f").is_ok());

    (0..50).for_each(|n| fixture.store.put(&format!("d/{n}"), "x"));
    let directory = fixture.walk("d").unwrap().attr.ino.0;
    let rows = fixture.list(directory, 7, false).unwrap();
    let asked = fixture.store.heads.load(Ordering::Relaxed);
    for row in rows.iter().filter(|row| !row.name.starts_with('.')) {
        let entry = fixture.lookup(directory, &row.name).unwrap();
        assert_eq!(entry.attr.ino, row.attr.ino, "d_ino is what stat shows");
    }
    assert_eq!(
        fixture.store.heads.load(Ordering::Relaxed),
        asked,
        "a listing answers lookups"
    );
}

#[test]
fn what_is_remembered_is_handed_on_with_what_is_left_of_its_time_to_live() {
    let seconds = Duration::from_secs;
    let options = MountOptions {
        attr_ttl: seconds(100),
        entry_ttl: seconds(50),
        negative_ttl: seconds(40),
        ..MountOptions::default()
    };
    let fixture = Fixture::new("", &options);
    // The clock runs on while the test does.
    let near = |ttl: Duration, secs: u64| ttl <= seconds(secs) && ttl > seconds(secs - 5);
    let absent = |name: &str| fixture.lookup_with_ttl(ROOT, OsStr::new(name)).unwrap_err();
    (0..20).for_each(|n| fixture.store.put(&format!("n{n:02}"), "x"));
    let handle = fixture.namespace.opendir(ROOT).unwrap().handle;
    let fresh = fixture.readdir(handle, 2, 5, true).unwrap();
    assert!(near(fresh[0].ttl, 50));
    assert!(near(absent("none").ttl, 40));
    let first = fixture.lookup(ROOT, "n00").unwrap();
    assert!(near(first.attr_ttl, 100) && near(first.entry_ttl, 50));

    fixture.engine.clock.advance(seconds(30));
    assert!(near(absent("none").ttl, 10));
    let later = fixture.lookup(ROOT, "n00").unwrap();
    assert!(near(later.attr_ttl, 70) && near(later.entry_ttl, 50));
    assert!(near(
        fixture.getattr_with_ttl(first.attr.ino.0).unwrap().1,
        70
    ));

    fixture.engine.clock.advance(seconds(50));
    let last = fixture.lookup(ROOT, "n00").unwrap();
    assert!(near(last.attr_ttl, 20) && near(last.entry_ttl, 20));
    let held = fixture.readdir(handle, 7, 5, true).unwrap();
    assert!(near(held[0].ttl, 20), "a page keeps its age");
    fixture.engine.clock.advance(seconds(30));
    let old = fixture.readdir(handle, 12, 5, true).unwrap();
    assert_eq!(old[0].ttl, Duration::ZERO);
}

#[test]
fn nothing_is_asked_for_below_the_longest_key() {
    let fixture = Fixture::default();
    let key = format!(
        "{}{}",
        format!("{}/", "d".repeat(200)).repeat(5),
        "f".repeat(19)
    );
    assert_eq!(key.len(), KEY_BYTES_MAX);
    fixture.store.put(&key, "x");
    let (parents, name) = key.rsplit_once('/').unwrap();
    let parent = fixture.walk(parents).unwrap().attr.ino.0;
    let asked = fixture.store.lists.load(Ordering::Relaxed);
    assert_eq!(fixture.lookup(parent, name).unwrap().attr.size, 1);
    assert_eq!(
        fixture.lookup(parent, &"g".repeat(19)).map(drop),
        Err(Errno::ENOENT)
    );
    assert_eq!(fixture.store.lists.load(Ordering::Relaxed), asked);
}

#[test]
fn impossible_names_are_refused_without_asking() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = Fixture::default();
    fixture.store.put("f", "x");
    let file = fixture.walk("f").unwrap().attr.ino.0;
    let asked = fixture.store.heads.load(Ordering::Relaxed);
    assert_eq!(
        fixture.lookup(ROOT, &"x".repeat(256)),
        Err(Errno::ENAMETOOLONG)
    );
    assert_eq!(
        fixture.lookup_os(ROOT, OsStr::from_bytes(b"\xff")),
        Err(Errno::ENOENT)
    );
    assert_eq!(fixture.lookup(file, "x"), Err(Errno::ENOTDIR));
    assert_eq!(fixture.open(ROOT), Err(Errno::EISDIR));
    assert_eq!(fixture.namespace.opendir(file), Err(Errno::ENOTDIR));
    assert_eq!(fixture.read(999, 0, 1), Err(Errno::EBADF));
    assert_eq!(fixture.store.heads.load(Ordering::Relaxed), asked);
}

#[test]
fn any_earlier_offset_can_be_listed_again() {
    let fixture = Fixture::default();
    fixture.store.page_max.store(10, Ordering::Relaxed);
    (0..500).for_each(|n| fixture.store.put(&format!("n{n:04}"), "x"));
    // Something waits for its directory across several pages.
    fixture.store.put("n0100/x", "x");
    (0..35).for_each(|n| fixture.store.put(&format!("n0100-{n:02}"), "x"));
    let handle = fixture.namespace.opendir(ROOT).unwrap().handle;
    let all = fixture.list_from(handle, 0, 13, false).unwrap();
    assert_eq!(all.len(), 2 + 500 + 35);
    for at in [530, 3, 111, 95, 250, 0, 536] {
        let offset = if at == 0 { 2 } else { all[at - 1].next };
        let again = fixture.list_from(handle, offset, 17, at % 2 == 1).unwrap();
        let expected: Vec<&str> = all[at.max(2)..]
            .iter()
            .map(|row| row.name.as_str())
            .collect();
        let got: Vec<&str> = again.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(got, expected, "from {at}");
    }
    assert_eq!(fixture.readdir(handle, 10_000, 5, false).unwrap().len(), 0);
    let left_out = fixture.namespace.left_out();
    assert_eq!(
        left_out.get(LeftOut::Shadowed),
        1,
        "pages read again are not counted again"
    );
    // From the start a directory is as it is now.
    fixture.store.delete("n0000");
    assert_eq!(
        fixture.list_from(handle, 0, 100, false).unwrap()[2].name,
        "n0001"
    );
    fixture.namespace.releasedir(handle);
}

#[test]
fn a_directory_that_shrinks_under_a_reader_ends_and_does_not_loop() {
    let fixture = Fixture::default();
    fixture.store.page_max.store(10, Ordering::Relaxed);
    (0..200).for_each(|n| fixture.store.put(&format!("n{n:04}"), "x"));
    let handle = fixture.namespace.opendir(ROOT).unwrap().handle;
    let all = fixture.list_from(handle, 0, 10, false).unwrap();
    (20..180).for_each(|n| fixture.store.delete(&format!("n{n:04}")));
    let rest = fixture.list_from(handle, all[15].next, 10, false).unwrap();
    let unique: BTreeSet<&str> = names(&rest).into_iter().collect();
    assert_eq!(unique.len(), rest.len(), "nothing twice");
    assert!(unique.contains("n0019"));
}

#[test]
fn a_huge_directory_is_listed_with_few_pages_in_memory() {
    let fixture = Fixture::default();
    const ENTRIES: usize = 100_000;
    (0..ENTRIES).for_each(|n| fixture.store.put(&format!("n{n:07}"), ""));
    let handle = fixture.namespace.opendir(ROOT).unwrap().handle;
    let (mut offset, mut seen) = (0, 0);
    loop {
        let rows = fixture.readdir(handle, offset, 4096, false).unwrap();
        let Some(last) = rows.last() else { break };
        offset = last.next;
        seen += rows.len();
    }
    assert_eq!(seen, ENTRIES + 2);
    let stats = fixture.namespace.stats();
    assert_eq!(stats.inodes, 1, "a plain listing makes no inodes");
    assert_eq!(stats.pages_listed, ENTRIES as u64 / 1000, "each page once");
    assert!(stats.known_names <= 65_536);
}

#[test]
fn the_kernel_keeps_what_one_handle_read_from_start_to_end_only() {
    let fixture = Fixture::default();
    for n in 0..30 {
        fixture.store.put(&format!("d/n{n:02}"), "x");
    }
    let number = fixture.walk("d").unwrap().attr.ino.0;
    let open = || fixture.namespace.opendir(number).unwrap();
    let close = |opened: OpenedDirectory| fixture.namespace.releasedir(opened.handle);
    // Its first page comes after `.` and `..` were given.
    let begin = |opened: &OpenedDirectory| {
        let mut offset = 0;
        while offset < 9 {
            let part = fixture.readdir(opened.handle, offset, 9, false);
            offset = part.unwrap().last().unwrap().next;
        }
        offset
    };
    // A part of it.
    let first = open();
    let offset = begin(&first);
    close(first);
    // The rest, by another one.
    let second = open();
    assert_eq!(second.listing, KernelListing::Anew, "a part");
    fixture.list_from(second.handle, offset, 9, false).unwrap();
    close(second);
    // Two at a time.
    let third = open();
    assert_eq!(third.listing, KernelListing::Anew, "the end by another one");
    let fourth = open();
    begin(&third);
    fixture.list_from(fourth.handle, 0, 9, false).unwrap();
    fixture.list_from(third.handle, offset, 9, false).unwrap();
    close(third);
    close(fourth);
    let fifth = open();
    assert_eq!(fifth.listing, KernelListing::Anew, "by two in turns");
    fixture.list_from(fifth.handle, 0, 9, false).unwrap();
    close(fifth);
    assert_eq!(open().listing, KernelListing::Kept);
}

#[test]
fn the_kernel_keeps_a_listing_for_its_time_to_live() {
    let fixture = Fixture::default();
    fixture.store.put("d/f", "x");
    let number = fixture.walk("d").unwrap().attr.ino.0;
    let open = || fixture.namespace.opendir(number).unwrap();
    let close = |opened: OpenedDirectory| fixture.namespace.releasedir(opened.handle);
    let first = open();
    assert_eq!(first.listing, KernelListing::Anew);
    close(first);
    // Nothing was read of it.
    let second = open();
    assert_eq!(second.listing, KernelListing::Anew);
    fixture.list_from(second.handle, 0, 9, false).unwrap();
    let third = open();
    assert_eq!(third.listing, KernelListing::Kept);
    fixture.after_ttl();
    assert_eq!(fixture.namespace.stats().open_directories, 2);
    close(third);
    // While somebody may still read what was listed long ago, nothing is kept.
    for _ in 0..2 {
        let opened = open();
        assert_eq!(opened.listing, KernelListing::Anew);
        fixture.list_from(opened.handle, 0, 9, false).unwrap();
        close(opened);
    }
    close(second);
    fixture.list(number, 9, false).unwrap();
    fixture.list(number, 9, true).unwrap();
    let fourth = open();
    assert_eq!(fourth.listing, KernelListing::Kept);
    close(fourth);
    // What a job has listed since is newer.
    let mut renewed = Renewed::default();
    renewed.tree("d/".into());
    fixture.engine.clock.advance(Duration::from_millis(1));
    let since = fixture.engine.clock.now();
    fixture.namespace.renew(&renewed, since);
    let fifth = open();
    assert_eq!(fifth.listing, KernelListing::Anew);
    close(fifth);
}

#[test]
fn the_kernel_keeps_no_listing_without_a_time_to_live_nor_a_very_long_one() {
    let options = MountOptions {
        attr_ttl: Duration::ZERO,
        ..MountOptions::default()
    };
    let fixture = Fixture::new("", &options);
    fixture.store.put("f", "x");
    fixture.list(ROOT, 9, false).unwrap();
    let opened = fixture.namespace.opendir(ROOT).unwrap();
    assert_eq!(opened.listing, KernelListing::Never);

    // Nor one of nothing: that is an absence, with a time to live of its own.
    let fixture = Fixture::default();
    assert!(names(&fixture.list(ROOT, 9, false).unwrap()).is_empty());
    let opened = fixture.namespace.opendir(ROOT).unwrap();
    assert_eq!(opened.listing, KernelListing::Anew);

    let minutes = MountOptions {
        attr_ttl: Duration::from_secs(600),
        ..MountOptions::default()
    };
    let fixture = Fixture::new("", &minutes);
    (0..33_000).for_each(|n| fixture.store.put(&format!("n{n:06}"), "x"));
    fixture.list(ROOT, 4_096, false).unwrap();
    let opened = fixture.namespace.opendir(ROOT).unwrap();
    assert_eq!(opened.listing, KernelListing::Anew);
}

/// Requests for names that the origin got: HEADs, and listings.
fn asked(fixture: &Fixture) -> (u64, u64) {
    let store = &fixture.store;
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    (get(&store.heads), get(&store.lists))
}

#[test]
fn names_of_one_directory_are_learned_from_its_listing() {
    let options = MountOptions {
        attr_ttl: Duration::from_secs(600),
        ..MountOptions::default()
    };
    let fixture = Fixture::new("", &options);
    (0..2_000).for_each(|n| fixture.store.put(&format!("d/n{n:04}"), "x"));
    fixture.store.put("d/n0007/below", "x");
    let directory = fixture.walk("d").unwrap().attr.ino.0;
    let before = asked(&fixture);
    // In an order without order: each once.
    for n in (0..2_000).map(|n| n * 1_213 % 2_000) {
        let name = format!("n{n:04}");
        let entry = fixture.lookup(directory, &name).unwrap();
        let kind = if n == 7 {
            FileType::Directory
        } else {
            FileType::RegularFile
        };
        assert_eq!(entry.attr.kind, kind, "{name}");
        fixture.settle();
    }
    let after = asked(&fixture);
    let (heads, lists) = (after.0 - before.0, after.1 - before.1);
    assert!(
        heads < 100 && lists < 100,
        "{heads} HEADs, {lists} listings for 2,000 names"
    );
    // Nothing is believed for longer.
    fixture.store.put("d/n0001", "longer");
    fixture.engine.clock.advance(Duration::from_secs(601));
    assert_eq!(fixture.lookup(directory, "n0001").unwrap().attr.size, 6);
}

#[test]
fn names_here_and_there_in_a_huge_directory_cost_few_listings() {
    let options = MountOptions {
        attr_ttl: Duration::from_secs(600),
        ..MountOptions::default()
    };
    let fixture = Fixture::new("", &options);
    (0..60_000).for_each(|n| fixture.store.put(&format!("d/n{n:05}"), "x"));
    let directory = fixture.walk("d").unwrap().attr.ino.0;
    let before = asked(&fixture);
    for n in 0..64 {
        fixture
            .lookup(directory, &format!("n{:05}", 59_999 - 300 * n))
            .unwrap();
        fixture.settle();
    }
    let after = asked(&fixture);
    assert_eq!(after.0 - before.0, 64);
    // One for each name, as ever; and pages at 4, 8, 16, 32 and 64 names.
    assert_eq!(after.1 - before.1, 64 + 5);
}

#[test]
fn without_a_time_to_live_names_are_asked_for_one_by_one() {
    let options = MountOptions {
        attr_ttl: Duration::ZERO,
        ..MountOptions::default()
    };
    let fixture = Fixture::new("", &options);
    (0..40).for_each(|n| fixture.store.put(&format!("d/{n}"), "x"));
    let directory = fixture.walk("d").unwrap().attr.ino.0;
    let before = asked(&fixture);
    for n in 0..40 {
        fixture.lookup(directory, &n.to_string()).unwrap();
        fixture.settle();
    }
    let after = asked(&fixture);
    assert_eq!((after.0 - before.0, after.1 - before.1), (40, 40));
}

#[test]
fn a_prefix_is_a_root_of_its_own() {
    for prefix in ["data", "data/"] {
        let fixture = Fixture::new(prefix, &MountOptions::default());
        fixture.store.put("data/x/y", "1");
        fixture.store.put("data2/z", "1");
        fixture.store.put("data", "1");
        assert_eq!(names(&fixture.list(ROOT, 10, false).unwrap()), ["x"]);
        let x = fixture.walk("x").unwrap().attr.ino.0;
        let rows = fixture.list(x, 10, false).unwrap();
        assert_eq!(
            (rows[0].attr.ino.0, rows[1].attr.ino.0),
            (x, ROOT),
            "`.` and `..`"
        );
        assert!(fixture.walk("x/y").is_ok());
        assert_eq!(fixture.walk("z").map(drop), Err(Errno::ENOENT));
    }
}

#[test]
fn a_core_that_takes_nothing_makes_errors_and_no_waiting() {
    let fixture = Fixture::default();
    fixture.store.put("f", vec![1; 1 << 20]);
    let number = fixture.walk("f").unwrap().attr.ino.0;
    let handle = fixture.open(number).unwrap();
    let pause = fixture.store.pause();
    let (sender, answers) = channel();
    let started = std::time::Instant::now();
    // Random reads: no prefetch takes a place in the ring.
    let mut refused = 0;
    for n in 0..(RING_ENTRIES as u64 + 10) {
        let offset = n.wrapping_mul(7919) % 200 * 4096;
        let reply = TestReply {
            sender: sender.clone(),
            file: None,
        };
        fixture.namespace.read(handle, offset + 4096, 100, reply);
        refused += answers
            .try_iter()
            .filter(|answer| *answer == Err(Errno::EIO))
            .count();
    }
    assert!((1..=10).contains(&refused), "{refused} refused");
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(fixture.namespace.stats().reads_refused, refused as u64);
    drop(pause);
    for _ in refused..RING_ENTRIES + 10 {
        assert_eq!(
            answers.recv_timeout(ANSWER_TIMEOUT).unwrap().unwrap().len(),
            100
        );
    }
}

/// What the tree must be, by the rules of `names.rs` alone.
#[derive(Debug, Default)]
struct Model {
    /// Directories, each with its entries: true for a directory.
    directories: BTreeMap<String, BTreeMap<String, bool>>,
    files: BTreeMap<String, usize>,
}

impl Model {
    fn new(keys: &BTreeMap<String, usize>) -> Self {
        let legal = |name: &str| !["", ".", ".."].contains(&name) && name.len() <= 255;
        let mut model = Self::default();
        model.directories.insert(String::new(), BTreeMap::new());
        for key in keys.keys() {
            let mut parent = String::new();
            let parts: Vec<&str> = key.split('/').collect();
            for name in &parts[..parts.len() - 1] {
                if !legal(name) {
                    break;
                }
                model
                    .directories
                    .get_mut(&parent)
                    .unwrap()
                    .insert((*name).to_owned(), true);
                parent = if parent.is_empty() {
                    (*name).to_owned()
                } else {
                    format!("{parent}/{name}")
                };
                model.directories.entry(parent.clone()).or_default();
            }
        }
        for (key, size) in keys {
            let (parent, name) = key.rsplit_once('/').unwrap_or(("", key));
            let legal = key.split('/').all(legal);
            if legal && !model.directories.contains_key(key) {
                model
                    .directories
                    .get_mut(parent)
                    .unwrap()
                    .insert(name.to_owned(), false);
                model.files.insert(key.clone(), *size);
            }
        }
        model
    }
}

fn key() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        8 => "[ab]{1,2}",
        3 => "[ab][-.0!\n]{1,2}[ab]?",
        1 => Just(String::new()),
        1 => Just(".".to_owned()),
        1 => Just("..".to_owned()),
        1 => Just("x".repeat(255)),
        1 => Just("x".repeat(256)),
        1 => Just("\u{e9}".to_owned()),
    ];
    proptest::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_set_of_keys_shows_the_expected_tree(
        keys in proptest::collection::btree_map(key(), 0usize..3000, 0..40),
        page_max in 1u64..8,
        room in 1usize..20,
        plus in any::<bool>(),
        absent in proptest::collection::vec(key(), 5),
    ) {
        let fixture = Fixture::default();
        fixture.store.page_max.store(page_max, Ordering::Relaxed);
        for (key, size) in keys.iter().filter(|(key, _)| !key.is_empty()) {
            fixture.store.put(key, vec![7; *size]);
        }
        let keys: BTreeMap<String, usize> =
            keys.into_iter().filter(|(key, _)| !key.is_empty()).collect();
        let model = Model::new(&keys);
        for (path, expected) in &model.directories {
            let number = if path.is_empty() { ROOT } else { fixture.walk(path).unwrap().attr.ino.0 };
            let rows = fixture.list(number, room, plus).unwrap();
            prop_assert_eq!(&rows[0].name, ".");
            prop_assert_eq!(&rows[1].name, "..");
            let mut listed = BTreeMap::new();
            for row in &rows[2..] {
                let directory = row.attr.kind == FileType::Directory;
                let twice = listed.insert(row.name.clone(), directory);
                prop_assert!(twice.is_none(), "{} twice in {path}", row.name);
                let entry = fixture.lookup(number, &row.name).unwrap();
                prop_assert_eq!(entry.attr, row.attr);
            }
            prop_assert_eq!(&listed, expected);
        }
        fixture.after_ttl();
        for (path, size) in &model.files {
            let entry = fixture.walk(path).unwrap();
            prop_assert_eq!(entry.attr.size, *size as u64);
            let handle = fixture.open(entry.attr.ino.0).unwrap();
            prop_assert_eq!(fixture.read(handle, 0, 1 << 20), Ok(vec![7; *size]));
            fixture.namespace.release(handle);
        }
        for path in absent.into_iter().filter(|path| !path.is_empty()) {
            let expected = if model.files.contains_key(&path) {
                Some(FileType::RegularFile)
            } else {
                model.directories.contains_key(&path).then_some(FileType::Directory)
            };
            let found = fixture.walk(&path).ok().map(|entry| entry.attr.kind);
            // The kernel never sends `.` and `..`, nor empty names.
            prop_assert_eq!(found, expected, "{}", path);
        }
    }
}
