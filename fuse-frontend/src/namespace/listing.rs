//! From listing pages to directory entries: pure logic.
//!
//! A page holds objects and common prefixes in byte order. An object `a` and the prefix `a/` may
//! both be there, with any number of keys between them (`a-b`, `a.txt`: bytes below `/`). The
//! directory wins, so an object waits until no later key can be its prefix. What waits is a
//! stack in which each name begins with the one below it: at most 255 names, whatever the
//! directory's size, and it is all that has to be kept to resume at a page's start.

use forebay_engine::ports::{ListEntry, ObjectMeta};

use super::names::{self, LeftOut};

/// What a directory entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file.
    File(ObjectMeta),
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name: one legal component.
    pub name: Box<str>,
    /// What it is.
    pub kind: Kind,
}

/// Objects whose directory of the same name may still come.
#[derive(Clone, Debug, Default)]
pub struct Pending(Vec<ObjectMeta>);

impl Pending {
    /// Takes the next listed entry of directory `prefix` (empty, or ending in `/`). Pushes what
    /// is certain now to `out` and tells `left_out` what is not shown.
    pub fn feed(
        &mut self,
        prefix: &str,
        entry: &ListEntry,
        out: &mut Vec<Listed>,
        left_out: &mut dyn FnMut(LeftOut, &str),
    ) {
        let key: &str = match entry {
            ListEntry::Object(meta) => &meta.key,
            ListEntry::Prefix(key) => key,
        };
        self.release_before(prefix, key, out, left_out);
        let Some(rest) = key.strip_prefix(prefix) else {
            left_out(LeftOut::NotAsked, key);
            return;
        };
        match entry {
            // The directory's own marker.
            ListEntry::Object(_) if rest.is_empty() => {}
            ListEntry::Object(meta) => match names::check(rest) {
                Ok(()) => self.0.push(meta.clone()),
                Err(kind) => left_out(kind, key),
            },
            ListEntry::Prefix(_) => {
                let name = rest.strip_suffix('/').unwrap_or(rest);
                match names::check(name) {
                    Ok(()) => out.push(Listed {
                        name: name.into(),
                        kind: Kind::Directory,
                    }),
                    Err(kind) => left_out(kind, key),
                }
            }
        }
    }

    /// The listing has ended: nothing waits any more.
    pub fn finish(&mut self, prefix: &str, out: &mut Vec<Listed>) {
        while let Some(meta) = self.0.pop() {
            out.push(listed(prefix, meta));
        }
    }

    /// Releases what `key` and everything after it cannot be the directory of.
    fn release_before(
        &mut self,
        prefix: &str,
        key: &str,
        out: &mut Vec<Listed>,
        left_out: &mut dyn FnMut(LeftOut, &str),
    ) {
        while let Some(meta) = self.0.pop() {
            match key
                .strip_prefix(&*meta.key)
                .map(|rest| rest.as_bytes().first())
            {
                Some(Some(b'/')) => left_out(LeftOut::Shadowed, &meta.key),
                Some(Some(next)) if *next < b'/' => {
                    self.0.push(meta);
                    return;
                }
                _ => out.push(listed(prefix, meta)),
            }
        }
    }
}

fn listed(prefix: &str, meta: ObjectMeta) -> Listed {
    Listed {
        name: meta.key[prefix.len()..].into(),
        kind: Kind::File(meta),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_engine::identity::Validator;

    use super::*;

    fn object(key: &str) -> ListEntry {
        ListEntry::Object(ObjectMeta {
            key: key.into(),
            size_bytes: 1,
            validator: Validator::ETag(Arc::from("\"e\"")),
            modified_ns: 0,
        })
    }

    fn list(prefix: &str, entries: &[ListEntry]) -> (Vec<String>, Vec<(LeftOut, String)>) {
        let mut pending = Pending::default();
        let mut out = Vec::new();
        let mut left_out = Vec::new();
        for entry in entries {
            pending.feed(prefix, entry, &mut out, &mut |kind, key| {
                left_out.push((kind, key.to_owned()));
            });
        }
        pending.finish(prefix, &mut out);
        let names = out.iter().map(|entry| match entry.kind {
            Kind::Directory => format!("{}/", entry.name),
            Kind::File(_) => entry.name.to_string(),
        });
        (names.collect(), left_out)
    }

    #[test]
    fn a_directory_hides_the_object_of_its_name_however_far_away_it_is_listed() {
        let mut entries = vec![object("d/a")];
        entries.extend((0..500).map(|n| object(&format!("d/a-{n:04}"))));
        entries.push(ListEntry::Prefix("d/a/".into()));
        entries.push(object("d/b"));
        let (names, left_out) = list("d/", &entries);
        assert_eq!(names.len(), 502);
        assert_eq!(names.iter().filter(|name| *name == "a/").count(), 1);
        assert!(!names.contains(&"a".to_owned()));
        assert_eq!(left_out, [(LeftOut::Shadowed, "d/a".to_owned())]);
    }

    #[test]
    fn what_waits_is_released_when_no_directory_can_follow() {
        let entries = [
            object("a"),
            object("a!"),
            object("a!!"),
            object("a0"),
            object("b"),
        ];
        let (names, left_out) = list("", &entries);
        assert_eq!(names, ["a!!", "a!", "a", "a0", "b"]);
        assert!(left_out.is_empty());
    }

    #[test]
    fn names_that_are_no_names_are_counted_by_kind() {
        let long = "x".repeat(256);
        let entries = [
            object("d/"),
            ListEntry::Prefix("d//".into()),
            object("d/."),
            ListEntry::Prefix("d/../".into()),
            object("d/new\nline"),
            object("d/nul\0byte"),
            object(&format!("d/{long}")),
            object("other"),
        ];
        let (names, left_out) = list("d/", &entries);
        assert_eq!(names, ["new\nline"]);
        let kinds: Vec<LeftOut> = left_out.into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(
            kinds,
            [
                LeftOut::EmptyComponent,
                LeftOut::DotComponent,
                LeftOut::DotComponent,
                LeftOut::NulByte,
                LeftOut::NameTooLong,
                LeftOut::NotAsked
            ]
        );
    }
}
