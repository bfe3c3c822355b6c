//! The inode table: what the kernel knows of, and no more.
//!
//! An inode number is derived from what it names: a directory's prefix, or an object's version.
//! So a new version is a new inode, a directory entry has the number that `stat` will show
//! without being in the table, and numbers survive a remount.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_engine::identity::{ObjectId, ObjectVersion};
use forebay_engine::ports::Time;

/// The root directory's inode number.
pub const ROOT: u64 = 1;

/// One version of one object, as long as the kernel or a handle knows it.
#[derive(Debug)]
pub struct FileVersion {
    /// The version.
    pub object: Arc<ObjectVersion>,
    superseded: AtomicBool,
}

impl FileVersion {
    /// A version that the origin has.
    pub fn new(object: ObjectVersion) -> Arc<Self> {
        Arc::new(Self {
            object: Arc::new(object),
            superseded: AtomicBool::new(false),
        })
    }

    /// The origin no longer has this version: the next open answers ESTALE. Handles keep it.
    pub fn supersede(&self) {
        self.superseded.store(true, Ordering::Release);
    }

    /// The origin has this version (again).
    pub(super) fn reinstate(&self) {
        self.superseded.store(false, Ordering::Release);
    }

    /// Whether the origin is known to have another version, or none.
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Acquire)
    }
}

/// What an inode is.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// A directory: its prefix, empty or ending in `/`.
    Directory(Arc<str>),
    /// A file.
    File(FileNode),
}

/// A file's inode.
#[derive(Clone, Debug)]
pub(super) struct FileNode {
    pub(super) version: Arc<FileVersion>,
    pub(super) modified_ns: i128,
    /// When the origin last said that this is the version.
    pub(super) validated: Time,
}

impl Node {
    fn is_same(&self, other: &Node) -> bool {
        match (self, other) {
            (Node::Directory(a), Node::Directory(b)) => a == b,
            (Node::File(a), Node::File(b)) => a.version.object.id == b.version.object.id,
            _ => false,
        }
    }

    fn number(&self) -> u64 {
        match self {
            Node::Directory(prefix) => directory_number(prefix),
            Node::File(file) => file_number(file.version.object.id),
        }
    }
}

/// The number of directory `prefix`, unless another inode has taken it.
pub(super) fn directory_number(prefix: &str) -> u64 {
    // A hash that is the same in every release: inode numbers may be written down (`tar`, backups).
    let mut number = [0u8; 8];
    number.copy_from_slice(&blake3::hash(prefix.as_bytes()).as_bytes()[..8]);
    legal(u64::from_le_bytes(number))
}

/// The number of an object version, unless another inode has taken it.
pub(super) fn file_number(id: ObjectId) -> u64 {
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

#[derive(Debug)]
struct Inode {
    node: Node,
    /// Lookups that the kernel has not forgotten.
    lookups: u64,
    /// Open handles.
    handles: u32,
}

/// All inodes that the kernel or a handle refers to, and the root.
#[derive(Debug)]
pub(super) struct InodeTable {
    inodes: HashMap<u64, Inode>,
}

impl InodeTable {
    pub(super) fn new(root_prefix: Arc<str>) -> Self {
        let root = Inode {
            node: Node::Directory(root_prefix),
            lookups: 1,
            handles: 0,
        };
        Self {
            inodes: HashMap::from([(ROOT, root)]),
        }
    }

    /// Counts a lookup that led to `node` and gives its number and what the table holds of it:
    /// a file's version is shared by all who refer to it.
    pub(super) fn remember(&mut self, node: Node) -> (u64, Node) {
        let mut number = node.number();
        loop {
            match self.inodes.get_mut(&number) {
                Some(inode) if inode.node.is_same(&node) => {
                    inode.lookups += 1;
                    if let (Node::File(held), Node::File(file)) = (&mut inode.node, &node) {
                        held.modified_ns = file.modified_ns;
                        held.validated = held.validated.max(file.validated);
                    }
                    return (number, inode.node.clone());
                }
                // Two names with one number: practically never, and then they are neighbours.
                Some(_) => number = legal(number.wrapping_add(1)),
                None => {
                    self.inodes.insert(
                        number,
                        Inode {
                            node: node.clone(),
                            lookups: 1,
                            handles: 0,
                        },
                    );
                    return (number, node);
                }
            }
        }
    }

    /// Whether the table holds this version, and knows it to be superseded.
    pub(super) fn is_superseded(&self, id: ObjectId) -> bool {
        match self.get(file_number(id)) {
            Some(Node::File(file)) => file.version.object.id == id && file.version.is_superseded(),
            _ => false,
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<&Node> {
        self.inodes.get(&number).map(|inode| &inode.node)
    }

    /// Whether a handle is open on it.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.inodes
            .get(&number)
            .is_some_and(|inode| inode.handles > 0)
    }

    /// The origin said, at `at`, that the inode's version is what it has.
    pub(super) fn validated(&mut self, number: u64, at: Time) {
        if let Some(Inode {
            node: Node::File(file),
            ..
        }) = self.inodes.get_mut(&number)
        {
            file.validated = file.validated.max(at);
        }
    }

    /// The kernel has forgotten `lookups` lookups.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
        }
        self.drop_unused(number);
    }

    pub(super) fn opened(&mut self, number: u64) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.handles += 1;
        }
    }

    pub(super) fn closed(&mut self, number: u64) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.handles = inode.handles.saturating_sub(1);
        }
        self.drop_unused(number);
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
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::identity::{Bucket, Validator};

    use super::*;

    fn file(etag: &str) -> Node {
        let bucket = Arc::new(Bucket {
            endpoint: "http://here".into(),
            name: "b".into(),
        });
        let validator = Validator::ETag(etag.into());
        let object = ObjectVersion::new(bucket, "key".into(), validator, 10);
        let version = FileVersion::new(object);
        Node::File(FileNode {
            version,
            modified_ns: 0,
            validated: Time(0),
        })
    }

    #[test]
    fn lookups_and_forgets_leave_only_the_root() {
        let mut table = InodeTable::new("".into());
        let (a, _) = table.remember(file("1"));
        assert_eq!(table.remember(file("1")).0, a);
        let (d, _) = table.remember(Node::Directory("d/".into()));
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
        let (old, _) = table.remember(file("1"));
        table.opened(old);
        let (new, _) = table.remember(file("2"));
        assert_ne!(old, new);
        table.forget(old, 1);
        assert!(table.get(old).is_some() && table.is_open(old));
        table.closed(old);
        assert!(table.get(old).is_none());
        assert!(table.get(new).is_some());
    }

    /// Numbers survive a remount by a later release: these values must never change.
    #[test]
    fn golden_numbers() {
        let numbers = [directory_number("d/"), file("1").number()];
        assert_eq!(
            numbers.map(|number| format!("{number:016x}")),
            ["c8413a3dfa61e579", "2a4c7250f124f603"]
        );
    }

    #[test]
    fn a_taken_number_goes_to_the_neighbour() {
        let mut table = InodeTable::new("".into());
        let wanted = directory_number("d/");
        table.inodes.insert(
            wanted,
            Inode {
                node: file("1"),
                lookups: 1,
                handles: 0,
            },
        );
        let (number, _) = table.remember(Node::Directory("d/".into()));
        assert_eq!(number, wanted + 1);
        assert_eq!(table.remember(Node::Directory("d/".into())).0, wanted + 1);
    }

    #[test]
    fn one_version_is_shared_by_all_who_look_it_up() {
        let mut table = InodeTable::new("".into());
        let (_, first) = table.remember(file("1"));
        let Node::File(first) = first else {
            panic!("a file")
        };
        first.version.supersede();
        assert!(table.is_superseded(first.version.object.id));
        let (_, second) = table.remember(file("1"));
        let Node::File(second) = second else {
            panic!("a file")
        };
        assert!(second.version.is_superseded());
    }
}
