//! Which mount holds a path, without touching the mount: a million paths of a list cost no lookups.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::asking::Daemon;
use super::report::{Failure, REQUEST_BYTES_MAX};
use crate::control::client::living;
use crate::control::sockets::checked_runtime_dir;
use crate::mounts::{MountEntry, mount_table, within};

/// How long a directory outside of the mount may take to answer.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// A mount, and the paths below it.
#[derive(Debug)]
pub struct Place {
    /// Where.
    pub mount_point: PathBuf,
    /// Who serves it.
    pub daemon: Daemon,
    /// Below it, without a slash in front.
    pub paths: Vec<String>,
}

/// Paths by mount, and those that are in none.
#[derive(Debug, Default)]
pub struct Sorted {
    /// Mounts that have some.
    pub places: Vec<Place>,
    /// The others, and why.
    pub failures: Vec<Failure>,
}

/// All living mounts of this user.
///
/// # Errors
/// When the runtime directory cannot be trusted.
pub fn mounted() -> Result<Vec<Place>> {
    let daemons = living(&checked_runtime_dir()?);
    // A `serve` has no paths.
    let mounts = daemons
        .into_iter()
        .filter(|(_, status)| status.serve.is_none());
    let places = mounts.map(|(client, status)| Place {
        mount_point: status.mount_point,
        daemon: Daemon::new(client.socket()),
        paths: Vec::new(),
    });
    Ok(places.collect())
}

/// The paths of a list: one each line, as they are; empty lines are none. `-` is standard input.
///
/// # Errors
/// When it cannot be read.
pub fn read_list(list: &Path) -> Result<Vec<PathBuf>> {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::new();
    let read = match list.as_os_str() == "-" {
        true => io::stdin().lock().read_to_end(&mut bytes),
        false => fs::File::open(list).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.with_context(|| format!("cannot read the list {}", list.display()))?;
    let lines = bytes.split(|byte| *byte == b'\n');
    let lines = lines.filter(|line| !line.is_empty());
    Ok(lines
        .map(|line| std::ffi::OsString::from_vec(line.to_vec()).into())
        .collect())
}

/// Finds the mount of each path.
///
/// # Errors
/// When there is no mount at all, or the paths are too many for one request.
pub fn sort(paths: Vec<PathBuf>) -> Result<Sorted> {
    let mut places = mounted()?;
    if places.is_empty() {
        bail!("no Forebay mount of this user: `forebay mount s3://BUCKET DIR` makes one");
    }
    let mut finder = Finder {
        table: mount_table()?,
        links: None,
    };
    let mut failures = Vec::new();
    let (mut bytes, mut met) = (0, HashSet::with_capacity(paths.len()));
    for path in paths.into_iter().filter(|path| met.insert(path.clone())) {
        match finder.find(&path, &places) {
            Ok((place, below)) => {
                bytes += 2 * below.len() + 16;
                places[place].paths.push(below);
            }
            Err(reason) => failures.push(Failure {
                path: path.display().to_string(),
                reason,
            }),
        }
    }
    if bytes > REQUEST_BYTES_MAX {
        bail!("that are too many paths at once: give the directory, or split the list");
    }
    places.retain(|place| !place.paths.is_empty());
    Ok(Sorted { places, failures })
}

struct Finder {
    table: Vec<MountEntry>,
    /// The last directory that was resolved, and what it is.
    links: Option<(PathBuf, PathBuf)>,
}

impl Finder {
    /// Which of `places`, and the path below it.
    fn find(&mut self, path: &Path, places: &[Place]) -> Result<(usize, String), String> {
        let absolute = std::path::absolute(path).map_err(|error| error.to_string())?;
        let is_plain = !absolute
            .components()
            .any(|part| part == Component::ParentDir);
        let mut spelled = absolute.clone();
        if !is_plain || self.mount_of(&spelled).is_none_or(|e| !e.is_forebay()) {
            spelled = self.resolve(&absolute)?;
        }
        let place = match self.mount_of(&spelled) {
            Some(entry) if entry.is_forebay() => places
                .iter()
                .position(|place| place.mount_point == entry.mount_point)
                .ok_or_else(|| {
                    format!(
                        "the daemon of the mount at {} does not answer: `forebay status` tells more",
                        entry.mount_point.display()
                    )
                })?,
            _ => return Err("not in a Forebay mount".to_owned()),
        };
        let below = spelled
            .strip_prefix(&places[place].mount_point)
            .map_err(|error| error.to_string())?;
        let below = below
            .to_str()
            .ok_or("not UTF-8: keys in S3 are UTF-8, so that the mount has no such file")?;
        let is_directory = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let slash = if is_directory && !below.is_empty() && !below.ends_with('/') {
            "/"
        } else {
            ""
        };
        Ok((place, format!("{below}{slash}")))
    }

    /// The topmost mount that holds `path`.
    fn mount_of(&self, path: &Path) -> Option<&MountEntry> {
        let holds = self
            .table
            .iter()
            .filter(|entry| path.starts_with(&entry.mount_point));
        holds.max_by_key(|entry| entry.mount_point.components().count())
    }

    /// `path` without symbolic links and dots. The last directory is remembered: lists come sorted.
    fn resolve(&mut self, path: &Path) -> Result<PathBuf, String> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => (parent, name),
            _ => return canonical(path),
        };
        if self.links.as_ref().is_none_or(|(from, _)| from != parent) {
            self.links = Some((parent.to_owned(), canonical(parent)?));
        }
        let resolved = self.links.as_ref().map(|(_, to)| to.join(name));
        let resolved = resolved.unwrap_or_else(|| path.to_owned());
        match self.mount_of(&resolved) {
            // There are no links in a mount of ours.
            Some(entry) if entry.is_forebay() => Ok(resolved),
            _ => canonical(&resolved),
        }
    }
}

fn canonical(path: &Path) -> Result<PathBuf, String> {
    let path = path.to_owned();
    let looked = within(LOOK_TIMEOUT, move || fs::canonicalize(path));
    match looked {
        Some(Ok(path)) => Ok(path),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            Err("no such file or directory".to_owned())
        }
        Some(Err(error)) => Err(error.to_string()),
        None => Err("it does not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(mount_point: &str, kind: &str) -> MountEntry {
        MountEntry {
            mount_point: mount_point.into(),
            kind: kind.into(),
            source: "s3://b/".into(),
        }
    }

    fn place(mount_point: &str) -> Place {
        Place {
            mount_point: mount_point.into(),
            daemon: Daemon::new(Path::new("/none")),
            paths: Vec::new(),
        }
    }

    #[test]
    fn the_topmost_mount_counts() {
        let mut finder = Finder {
            table: vec![
                entry("/", "ext4"),
                entry("/fb-m", "fuse.forebay"),
                entry("/fb-m/in", "tmpfs"),
                entry("/fb-m2", "fuse.forebay"),
            ],
            links: None,
        };
        let places = [place("/fb-m")];
        let mut find = |path: &str| finder.find(Path::new(path), &places);
        assert_eq!(find("/fb-m"), Ok((0, String::new())));
        assert_eq!(find("/fb-m/"), Ok((0, String::new())));
        assert_eq!(find("/fb-m/a b/./c\n"), Ok((0, "a b/c\n".to_owned())));
        assert_eq!(find("/fb-m//d/"), Ok((0, "d/".to_owned())));
        assert!(find("/fb-m2/x").unwrap_err().contains("does not answer"));
        assert!(find("/proc/self").unwrap_err().contains("not in a Forebay"));
        assert!(find("/fb-nothing/x").unwrap_err().contains("no such"));
        let name = std::os::unix::ffi::OsStrExt::from_bytes(&b"/fb-m/\xff"[..]);
        let name = Path::new::<std::ffi::OsStr>(name);
        let refused = finder.find(name, &places).unwrap_err();
        assert!(refused.contains("not UTF-8"), "{refused}");
    }

    #[test]
    fn a_list_has_a_path_each_line() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("list");
        fs::write(&list, "a b\n\n# c\nd").unwrap();
        let paths: Vec<PathBuf> = ["a b", "# c", "d"].map(PathBuf::from).into();
        assert_eq!(read_list(&list).unwrap(), paths);
        assert!(read_list(&dir.path().join("none")).is_err());
    }
}
