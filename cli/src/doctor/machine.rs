//! The kernel's files, below a root that tests choose.

use std::fs;
use std::path::{Path, PathBuf};

/// `/proc`, `/sys` and `/dev` of a machine.
#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
}

impl Files {
    /// Those of this machine.
    pub fn of_this_machine() -> Self {
        Self::below(Path::new("/"))
    }

    /// Those below `root`.
    pub fn below(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// The whole path of what is named by an absolute one.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file without spaces around it; none when it cannot be read.
    pub fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// The number that a file holds.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, sorted; none when it is not there.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// The word in brackets, as in `always [madvise] never`.
    pub fn chosen(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    }

    /// The number behind `name:` in a file of such lines, as in `/proc/meminfo`.
    pub fn value(&self, path: &str, name: &str) -> Option<u64> {
        let text = self.text(path)?;
        let line = text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key == name).then_some(value)
        })?;
        line.split_whitespace().next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_ways_to_write() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::below(dir.path());
        fs::create_dir_all(files.path("/sys/b")).unwrap();
        fs::write(files.path("/sys/a"), "always [madvise] never\n").unwrap();
        fs::write(files.path("/sys/n"), "7\n").unwrap();
        fs::write(
            files.path("/sys/m"),
            "HugePages_Free:       3\nSize: 2048 kB\n",
        )
        .unwrap();
        assert_eq!(files.chosen("/sys/a").as_deref(), Some("madvise"));
        assert_eq!(files.number("/sys/n"), Some(7));
        assert_eq!(files.value("/sys/m", "Size"), Some(2048));
        assert_eq!(files.value("/sys/m", "Siz"), None);
        assert_eq!(files.names("/sys"), ["a", "b", "m", "n"]);
        assert!(files.names("/proc").is_empty() && files.text("/proc/x").is_none());
    }
}
