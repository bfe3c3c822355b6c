//! Paths that are asked for more than once: in a list twice, or below a directory that is asked for too.

use std::collections::{HashMap, HashSet};

/// A path below the mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// It.
    pub path: String,
    /// Another path that was asked for brings it, if it exists: it is only looked at, so that a wrong name is told.
    pub covered: bool,
}

/// Each path once, in the order of their coming.
pub fn once(paths: Vec<String>) -> Vec<Asked> {
    let kept = kept(&paths);
    let asked = paths.into_iter().zip(kept);
    asked
        .filter_map(|(path, covered)| covered.map(|covered| Asked { path, covered }))
        .collect()
}

/// Whether each path is covered; nothing for one that came before.
fn kept(paths: &[String]) -> Vec<Option<bool>> {
    // By name without slashes at its end, the path that stands for it. One that ends in a slash is refused when it
    // is a file, so it stands only for itself where the other is asked for too.
    let mut first: HashMap<&str, usize> = HashMap::with_capacity(paths.len());
    for (n, path) in paths.iter().enumerate() {
        let at = first.entry(path.trim_end_matches('/')).or_insert(n);
        if paths[*at].ends_with('/') && !path.ends_with('/') {
            *at = n;
        }
    }
    let mut met = HashSet::with_capacity(paths.len());
    let covered = |n: usize, path: &str| {
        let name = path.trim_end_matches('/');
        let mut above = name.match_indices('/').map(|(at, _)| &name[..at]);
        first.get(name) != Some(&n)
            || !name.is_empty() && first.contains_key("")
            || above.any(|directory| first.contains_key(directory))
    };
    let all = paths.iter().enumerate();
    all.map(|(n, path)| met.insert(path.as_str()).then(|| covered(n, path)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(paths: &[&str]) -> Vec<(String, bool)> {
        let asked = once(paths.iter().map(|path| (*path).to_owned()).collect());
        asked
            .into_iter()
            .map(|asked| (asked.path, asked.covered))
            .collect()
    }

    #[test]
    fn each_path_is_done_once_and_looked_at_under_each_of_its_names() {
        for (paths, asked) in [
            (&["a", "b", "a"][..], &[("a", false), ("b", false)][..]),
            (
                &["d/x", "d", "d-x"],
                &[("d/x", true), ("d", false), ("d-x", false)],
            ),
            (&["d/e/f/x", "d/e/"], &[("d/e/f/x", true), ("d/e/", false)]),
            // If it is a file, only the one without a slash brings it.
            (&["a/", "a", "a/"], &[("a/", true), ("a", false)]),
            (&["a/", "a/"], &[("a/", false)]),
            (
                &["", "a", "", "b/c"],
                &[("", false), ("a", true), ("b/c", true)],
            ),
            (&["a"], &[("a", false)]),
            (&[], &[]),
        ] {
            let asked: Vec<(String, bool)> = asked
                .iter()
                .map(|(path, covered)| ((*path).to_owned(), *covered))
                .collect();
            assert_eq!(told(paths), asked);
        }
    }
}
