//! The inode table: what the kernel knows of, and no more.
//!
//! An inode number is derived from what it names: a directory's prefix, or an object's version.
//! So a new version is a new inode, a directory entry has the number that `stat` will show
//! without being in the table, and numbers survive a remount.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_engine::identity::{Bucket, ObjectId, ObjectVersion};
use forebay_engine::ports::Time;

pub use super::record::FileVersion;
pub(super) use super::record::{FileNode, FileRecord};

/// The root directory's inode number.
pub const ROOT: u64 = 1;

/// What an inode is.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// A directory: its prefix, empty or ending in `/`.
    Directory(Arc<str>),
    /// A file.
    File(FileNode),
}

/// The number of directory `prefix`, unless another inode has taken it.
pub(super) fn directory_number(prefix: &str) -> u64 {
    // A hash that is the same in every release: inode numbers may be written down (`tar`, backups).
    let mut number = [0u8; 8];
    number.copy_from_slice(&blake3::hash(prefix.as_bytes()).as_bytes()[..8]);
    legal(u64::from_le_bytes(number))
}

/// The number of an object version, unless another inode has taken it.
pub(crate) fn file_number(id: ObjectId) -> u64 {
    legal((id.0 ^ (id.0 >> 64)) as u64)
}

/// 0 is no inode, 1 the root, and all ones stands for "unknown" in some programs.
fn legal(number: u64) -> u64 {
    if number <= ROOT || number == u64::MAX {
        2
    } else {
        number
    }
}

/// What the table holds of an inode.
#[derive(Debug)]
enum Held {
    Directory(Arc<str>),
    File(Box<FileRecord>),
}

#[derive(Debug)]
struct Inode {
    held: Held,
    /// Lookups that the kernel has not forgotten.
    lookups: u64,
    /// Open handles.
    handles: u32,
}

/// What the kernel may keep of a directory's listing.
#[derive(Debug)]
struct KeptListing {
    /// Who gave the last of it.
    handle: u64,
    /// When the oldest page of it was listed; none: it is not to be shown again.
    oldest: Option<Time>,
    /// It is all of the directory, by that handle alone.
    is_whole: bool,
}

/// All inodes that the kernel or a handle refers to, and the root.
#[derive(Debug)]
pub(super) struct InodeTable {
    inodes: HashMap<u64, Inode>,
    /// Directories of whose listing the kernel may keep something.
    listed: HashMap<u64, KeptListing>,
}

impl InodeTable {
    pub(super) fn new(root_prefix: Arc<str>) -> Self {
        let root = Inode {
            held: Held::Directory(root_prefix),
            lookups: 1,
            handles: 0,
        };
        Self {
            inodes: HashMap::from([(ROOT, root)]),
            listed: HashMap::new(),
        }
    }

    /// Counts a lookup of directory `prefix` and gives its number.
    pub(super) fn remember_directory(&mut self, prefix: &Arc<str>) -> u64 {
        let is_same = |held: &Held| matches!(held, Held::Directory(name) if name == prefix);
        let number = self.place(directory_number(prefix), is_same);
        self.count(number, || Held::Directory(prefix.clone()));
        number
    }

    /// Counts a lookup that led to `object`, which the origin had at `at`, and gives its number
    /// and what the table knows of it.
    pub(super) fn remember_file(
        &mut self,
        object: &ObjectVersion,
        modified_ns: i128,
        at: Time,
    ) -> (u64, FileNode) {
        let is_same = |held: &Held| matches!(held, Held::File(file) if file.id() == object.id);
        let number = self.place(file_number(object.id), is_same);
        self.count(number, || {
            Held::File(FileRecord::new(object, modified_ns, at))
        });
        let node = self.file(number).map(|file| {
            file.modified(modified_ns);
            file.validated(at);
            file.node()
        });
        let fresh = FileNode {
            id: object.id,
            size_bytes: object.size_bytes,
            modified_ns,
            validated: at,
            superseded: false,
        };
        (number, node.unwrap_or(fresh))
    }

    /// The first number from `number` on that is free or already the same inode's. Two names
    /// with one number: practically never, and then they are neighbours.
    fn place(&self, mut number: u64, is_same: impl Fn(&Held) -> bool) -> u64 {
        while let Some(inode) = self.inodes.get(&number)
            && !is_same(&inode.held)
        {
            number = legal(number.wrapping_add(1));
        }
        number
    }

    fn count(&mut self, number: u64, held: impl FnOnce() -> Held) {
        let inode = self.inodes.entry(number).or_insert_with(|| Inode {
            held: held(),
            lookups: 0,
            handles: 0,
        });
        inode.lookups += 1;
    }

    fn file(&mut self, number: u64) -> Option<&mut FileRecord> {
        match &mut self.inodes.get_mut(&number)?.held {
            Held::File(file) => Some(file),
            Held::Directory(_) => None,
        }
    }

    /// Whether the table holds this version, and knows it to be superseded.
    pub(super) fn is_superseded(&self, id: ObjectId) -> bool {
        match self.get(file_number(id)) {
            Some(Node::File(file)) => file.id == id && file.superseded,
            _ => false,
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<Node> {
        Some(match &self.inodes.get(&number)?.held {
            Held::Directory(prefix) => Node::Directory(prefix.clone()),
            Held::File(file) => Node::File(file.node()),
        })
    }

    /// A file's whole key.
    pub(super) fn key(&mut self, number: u64) -> Option<Arc<str>> {
        self.file(number).map(|file| file.key().into())
    }

    /// Whether a handle is open on it.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.inodes
            .get(&number)
            .is_some_and(|inode| inode.handles > 0)
    }

    /// The origin said, at `at`, that the inode's version is what it has.
    pub(super) fn validated(&mut self, number: u64, at: Time) {
        if let Some(file) = self.file(number) {
            file.validated(at);
        }
    }

    /// The origin has the inode's version no more (true), or again.
    pub(super) fn supersede(&mut self, number: u64, superseded: bool) {
        if let Some(file) = self.file(number) {
            file.supersede(superseded);
        }
    }

    /// The origin said, at `at`, that it has this version: so it does, if the table holds it.
    pub(super) fn confirm(&mut self, id: ObjectId, at: Time) {
        if let Some(file) = self.file(file_number(id))
            && file.id() == id
        {
            file.validated(at);
        }
    }

    /// All numbers.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.inodes.keys().copied().collect()
    }

    /// Of these inodes, the origin no longer has the versions of which `is_gone` says so, who is told the key and when
    /// the version was validated. Returns those of which that is news.
    pub(super) fn supersede_all(
        &mut self,
        numbers: &[u64],
        is_gone: impl Fn(&str, Time) -> bool,
    ) -> Vec<ObjectId> {
        let mut gone = Vec::new();
        for number in numbers {
            let Some(file) = self.file(*number) else {
                continue;
            };
            let node = file.node();
            if !node.superseded && is_gone(file.key(), node.validated) {
                file.supersede(true);
                gone.push(node.id);
            }
        }
        gone
    }

    /// The kernel has forgotten `lookups` lookups.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
        }
        self.drop_unused(number);
    }

    /// A handle on a directory is opened.
    pub(super) fn opened(&mut self, number: u64) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.handles += 1;
        }
    }

    /// The kernel was given, by a handle, a page of a directory that was listed at `at`; none: what is not to be shown again.
    /// Whether with it the handle has given all of the directory.
    pub(super) fn listed(&mut self, number: u64, handle: u64, at: Option<Time>, is_whole: bool) {
        if !self.inodes.contains_key(&number) {
            return;
        }
        let kept = self.listed.entry(number).or_insert(KeptListing {
            handle,
            oldest: at,
            is_whole: false,
        });
        // The kernel puts together what handles give, by place: of two states of the directory, which have all of neither.
        let is_mixed = kept.handle != handle && !kept.is_whole;
        if kept.handle != handle {
            (kept.handle, kept.is_whole) = (handle, false);
        }
        kept.oldest = if is_mixed { None } else { at.min(kept.oldest) };
        kept.is_whole |= is_whole;
    }

    /// Whether the kernel may keep something of a directory's listing: when the oldest page of it was listed, if it may be
    /// shown again.
    pub(super) fn oldest_listed(&self, number: u64) -> Option<Option<Time>> {
        self.listed.get(&number).map(|kept| kept.oldest)
    }

    /// When the oldest page was listed of what the kernel has of a directory, if it is all of it and may be shown again.
    pub(super) fn whole_listed(&self, number: u64) -> Option<Time> {
        let kept = self.listed.get(&number).filter(|kept| kept.is_whole)?;
        kept.oldest
    }

    /// The kernel is told to drop what it keeps of a directory's listing. What handles that are open read may go on
    /// coming from before.
    pub(super) fn listing_dropped(&mut self, number: u64) {
        if !self.is_open(number) {
            self.listed.remove(&number);
        }
    }

    /// A handle on a file is opened: what it reads; none when the inode is no file of the table.
    pub(super) fn opened_file(
        &mut self,
        number: u64,
        bucket: &Arc<Bucket>,
    ) -> Option<Arc<FileVersion>> {
        let version = self.file(number)?.version(bucket);
        self.opened(number);
        Some(version)
    }

    pub(super) fn closed(&mut self, number: u64) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.handles = inode.handles.saturating_sub(1);
        }
        self.drop_unused(number);
    }

    /// A handle on a file is closed, with the version it read.
    pub(super) fn closed_file(&mut self, number: u64, version: &FileVersion) {
        self.closed(number);
        if !self.is_open(number)
            && let Some(file) = self.file(number)
        {
            file.rest(version.is_superseded());
        }
    }

    /// Inodes, the root included.
    pub(super) fn len(&self) -> usize {
        self.inodes.len()
    }

    fn drop_unused(&mut self, number: u64) {
        if number != ROOT
            && self
                .inodes
                .get(&number)
                .is_some_and(|inode| inode.lookups == 0 && inode.handles == 0)
        {
            self.inodes.remove(&number);
            self.listed.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::identity::Validator;

    use super::*;

    fn bucket() -> Arc<Bucket> {
        Arc::new(Bucket {
            endpoint: "http://here".into(),
            name: "b".into(),
        })
    }

    fn object(etag: &str) -> ObjectVersion {
        let validator = Validator::ETag(etag.into());
        ObjectVersion::new(bucket(), "key".into(), validator, 10)
    }

    fn remember(table: &mut InodeTable, etag: &str) -> u64 {
        table.remember_file(&object(etag), 0, Time(0)).0
    }

    #[test]
    fn lookups_and_forgets_leave_only_the_root() {
        let mut table = InodeTable::new("".into());
        let a = remember(&mut table, "1");
        assert_eq!(remember(&mut table, "1"), a);
        let d = table.remember_directory(&"d/".into());
        table.forget(a, 1);
        assert_eq!(table.len(), 3);
        table.forget(a, 1);
        table.forget(d, 1);
        table.forget(d, 1);
        table.forget(ROOT, 5);
        assert_eq!(table.len(), 1);
        assert!(table.get(ROOT).is_some());
    }

    #[test]
    fn a_new_version_is_a_new_inode_and_a_handle_keeps_the_old_one() {
        let mut table = InodeTable::new("".into());
        let old = remember(&mut table, "1");
        let version = table.opened_file(old, &bucket()).unwrap();
        let new = remember(&mut table, "2");
        assert_ne!(old, new);
        table.forget(old, 1);
        assert!(table.get(old).is_some() && table.is_open(old));
        table.closed_file(old, &version);
        assert!(table.get(old).is_none());
        assert!(table.get(new).is_some());
    }

    /// Numbers survive a remount by a later release: these values must never change.
    #[test]
    fn golden_numbers() {
        let numbers = [directory_number("d/"), file_number(object("1").id)];
        assert_eq!(
            numbers.map(|number| format!("{number:016x}")),
            ["c8413a3dfa61e579", "2a4c7250f124f603"]
        );
    }

    #[test]
    fn a_taken_number_goes_to_the_neighbour() {
        let mut table = InodeTable::new("".into());
        let wanted = directory_number("d/");
        let held = Held::File(FileRecord::new(&object("1"), 0, Time(0)));
        table.count(wanted, || held);
        for _ in 0..2 {
            assert_eq!(table.remember_directory(&"d/".into()), wanted + 1);
        }
    }

    #[test]
    fn handles_share_one_version_and_what_they_learn_outlives_them() {
        let mut table = InodeTable::new("".into());
        let number = remember(&mut table, "1");
        let first = table.opened_file(number, &bucket()).unwrap();
        let second = table.opened_file(number, &bucket()).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert!(!table.is_superseded(first.object.id));
        second.supersede();
        assert!(table.is_superseded(first.object.id));
        let (_, seen) = table.remember_file(&object("1"), 0, Time(0));
        assert!(seen.superseded);
        table.closed_file(number, &first);
        table.closed_file(number, &second);
        assert!(table.is_superseded(first.object.id));
        table.supersede(number, false);
        assert!(!table.is_superseded(first.object.id));
    }

    #[test]
    fn a_handle_reads_the_version_that_was_looked_up() {
        let validators = [Validator::ETag("\"e\"".into()), Validator::Modified(-7)];
        for validator in validators {
            let object = ObjectVersion::new(bucket(), "a/\u{e9}".into(), validator, 10);
            let mut table = InodeTable::new("".into());
            let (number, _) = table.remember_file(&object, 0, Time(0));
            let version = table.opened_file(number, &bucket()).unwrap();
            assert_eq!(*version.object, object);
        }
    }

    /// docs/operations.md says what a known file costs.
    #[test]
    fn a_known_file_stays_small() {
        assert!(size_of::<(u64, Inode)>() <= 40);
        assert!(size_of::<FileRecord>() <= 96);
    }
}
