//! Which listed keys are files of the mount.
//!
//! A whole tree's listing holds every key in byte order. An object `a` beside keys below `a/` is shadowed by that
//! directory, which may come much later (`a-b`, `a.txt` stand between), so an object waits until no later key can
//! be below it. What waits is a stack in which each key begins with the one below it: bounded by a key's length.

use forebay_engine::ports::ObjectMeta;
use forebay_fuse::namespace::check_name;

/// Objects whose directory of the same name may still come.
#[derive(Debug, Default)]
pub struct Waiting(Vec<ObjectMeta>);

impl Waiting {
    /// Takes the next listed object below `prefix`. Gives what is certain to be a file to `out`; returns how many
    /// objects turned out to be none.
    pub fn feed(&mut self, prefix: &str, meta: ObjectMeta, out: &mut Vec<ObjectMeta>) -> u64 {
        let mut left_out = 0;
        while let Some(last) = self.0.pop() {
            let next = meta
                .key
                .strip_prefix(&*last.key)
                .map(|rest| rest.as_bytes().first());
            match next {
                Some(Some(b'/')) => left_out += 1,
                Some(Some(next)) if *next < b'/' => {
                    self.0.push(last);
                    break;
                }
                _ => out.push(last),
            }
        }
        match meta.key.strip_prefix(prefix) {
            // A directory's marker.
            Some(rest) if rest.is_empty() || rest.ends_with('/') => {}
            Some(rest) if rest.split('/').all(|part| check_name(part).is_ok()) => {
                self.0.push(meta);
            }
            _ => left_out += 1,
        }
        left_out
    }

    /// The listing has ended: nothing waits any more.
    pub fn finish(&mut self, out: &mut Vec<ObjectMeta>) {
        out.extend(std::iter::from_fn(|| self.0.pop()));
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::identity::Validator;

    use super::*;

    fn files(prefix: &str, keys: &[&str]) -> (Vec<String>, u64) {
        let (mut waiting, mut out, mut left_out) = (Waiting::default(), Vec::new(), 0);
        for key in keys {
            let meta = ObjectMeta {
                key: (*key).into(),
                size_bytes: 1,
                validator: Validator::Modified(0),
                modified_ns: 0,
            };
            left_out += waiting.feed(prefix, meta, &mut out);
        }
        waiting.finish(&mut out);
        let mut names: Vec<String> = out.iter().map(|meta| meta.key.to_string()).collect();
        names.sort();
        (names, left_out)
    }

    #[test]
    fn directories_shadow_objects_however_far_away() {
        let keys = ["d/a", "d/a-b", "d/a.txt", "d/a/x", "d/a/x/y", "d/a0", "d/b"];
        let (names, left_out) = files("d/", &keys);
        assert_eq!(names, ["d/a-b", "d/a.txt", "d/a/x/y", "d/a0", "d/b"]);
        assert_eq!(left_out, 2);
    }

    #[test]
    fn markers_are_no_files_and_what_is_no_path_is_counted() {
        let long = format!("d/{}", "x".repeat(256));
        let keys = ["d/", "d//x", "d/../x", "d/e/", "d/new\nline", &long];
        assert_eq!(files("d/", &keys), (vec!["d/new\nline".to_owned()], 3));
    }
}
