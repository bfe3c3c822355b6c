//! `--cache-dir`: which directories and devices, as people write them.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use forebay_engine::limits::DEVICES_MAX;
use forebay_nvme_spdk::Address;

use super::nvme::{HAS_SPDK, NO_SPDK};

/// Where a user-space driver's devices are told from paths.
const PCI_PREFIX: &str = "pci:";
/// What a transport id begins with; it ends at a `,`.
const TRANSPORT_PREFIX: &str = "trtype:";
/// What follows a PCI address to choose a namespace.
const NAMESPACE: &str = " ns:";

/// Where one part of the cache is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheDir {
    /// A directory, or a block device.
    Path(PathBuf),
    /// An NVMe namespace that is driven without the kernel.
    Nvme(Address),
}

impl CacheDir {
    /// The namespace's address; none for a path.
    pub fn address(&self) -> Option<&Address> {
        match self {
            CacheDir::Path(_) => None,
            CacheDir::Nvme(address) => Some(address),
        }
    }
}

/// Whether a text is meant for an address and not for a path.
fn is_address(text: &str) -> bool {
    let starts = |prefix: &str| {
        text.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    text.starts_with(PCI_PREFIX) || starts(TRANSPORT_PREFIX)
}

impl FromStr for CacheDir {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_address(text.trim()) {
            let address: Address = text.parse().map_err(|error| format!("{error}"))?;
            return match HAS_SPDK {
                true => Ok(CacheDir::Nvme(address)),
                false => Err(format!("`{address}`: {NO_SPDK}")),
            };
        }
        if text.contains('*') {
            return Err(format!(
                "`{text}`: wildcards are not expanded; name each directory, separated by `:` or `,`"
            ));
        }
        match text.trim() {
            "" => Err("a directory is empty: name each one, separated by `:` or `,`".into()),
            path => Ok(CacheDir::Path(path.into())),
        }
    }
}

impl fmt::Display for CacheDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheDir::Path(path) => write!(f, "{}", path.display()),
            CacheDir::Nvme(address) => write!(f, "{address}"),
        }
    }
}

/// All of `--cache-dir`: at least one, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDirs(Vec<CacheDir>);

impl CacheDirs {
    /// Each of them, in the order of the flag.
    pub fn iter(&self) -> std::slice::Iter<'_, CacheDir> {
        self.0.iter()
    }

    /// As the flag has them.
    pub fn in_words(&self) -> String {
        let dirs: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        dirs.join(",")
    }

    /// The same places by absolute paths: a daemon leaves the caller's directory.
    ///
    /// # Errors
    /// When the present directory is gone.
    pub fn absolute(&self) -> Result<Self> {
        let absolute = |dir: &CacheDir| match dir {
            CacheDir::Path(path) => std::path::absolute(path)
                .map(CacheDir::Path)
                .with_context(|| format!("cannot make --cache-dir {} absolute", path.display())),
            CacheDir::Nvme(address) => Ok(CacheDir::Nvme(address.clone())),
        };
        let dirs = self.0.iter().map(absolute).collect::<Result<Vec<_>>>()?;
        for (n, dir) in dirs.iter().enumerate() {
            if dirs[..n].contains(dir) {
                bail!("--cache-dir names {dir} twice: name it once");
            }
        }
        Ok(Self(dirs))
    }

    /// Refuses a mount point that lies in a cache directory, and a cache directory that the mount would cover: its
    /// daemon would wait for itself. Looks at what the paths lead to, through links.
    ///
    /// # Errors
    /// Which two do not go together.
    pub fn check_apart_from(&self, mount_point: &Path) -> Result<()> {
        let place = fs::canonicalize(mount_point)
            .with_context(|| format!("cannot look at {}", mount_point.display()))?;
        for dir in self.iter() {
            let CacheDir::Path(path) = dir else { continue };
            // What is not there, or no directory, is told by whoever opens it.
            let Ok(dir) = fs::canonicalize(path) else {
                continue;
            };
            let relation = match (is_in(&place, &dir), is_in(&dir, &place)) {
                (false, false) => continue,
                (true, true) => "is also",
                (true, false) => "lies in",
                (false, true) => "would cover",
            };
            bail!(
                "mount point {} {relation} the cache directory {}: give them places that are not within each other",
                mount_point.display(),
                path.display()
            );
        }
        Ok(())
    }
}

/// Whether `inner` is `outer` or below it; both canonical. By the directories themselves, since one may be bound to
/// two paths.
fn is_in(inner: &Path, outer: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let outer = identity(outer);
    outer.is_some() && inner.ancestors().any(|above| identity(above) == outer)
}

impl FromStr for CacheDirs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let dirs: Vec<CacheDir> = pieces(text)
            .map(|piece| piece.parse())
            .collect::<Result<_, _>>()?;
        if let [_, _, ..] = dirs.as_slice()
            && Path::new(text).exists()
        {
            return Err(format!(
                "`{text}` exists, but `:` and `,` separate directories here and cannot be part of a name: give a symbolic link to it"
            ));
        }
        if dirs.len() > DEVICES_MAX {
            return Err(format!("at most {DEVICES_MAX} directories are supported"));
        }
        Ok(Self(dirs))
    }
}

/// Where a PCI address ends, at the beginning of a text: with its function's number, or its namespace's.
fn end_of_pci(text: &str) -> usize {
    let Some(dot) = text.find('.') else {
        return text.len() - text.trim_start().len() + PCI_PREFIX.len();
    };
    let digits = text[dot + 1..].find(|c: char| !c.is_ascii_hexdigit());
    let function = digits.map_or(text.len(), |at| dot + 1 + at);
    match text[function..]
        .trim_start()
        .starts_with(NAMESPACE.trim_start())
    {
        true => text[function..]
            .find(':')
            .map_or(text.len(), |at| function + at + 1),
        false => function,
    }
}

/// The parts between `:` and `,`. A PCI address (`pci:0000:5e:00.0`, or `pci:0000:5e:00.0 ns:2`) has colons of its own; a
/// transport id is full of them, and ends at a `,` alone.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let now = rest?;
        let address = match is_address(now.trim_start()) {
            true if now.trim_start().starts_with(PCI_PREFIX) => end_of_pci(now),
            true => now.find(',').unwrap_or(now.len()),
            false => 0,
        };
        match now[address..].find([':', ',']) {
            Some(at) => {
                rest = Some(&now[address + at + 1..]);
                Some(&now[..address + at])
            }
            None => {
                rest = None;
                Some(now)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<String>, String> {
        let dirs: CacheDirs = text.parse()?;
        Ok(dirs.iter().map(CacheDir::to_string).collect())
    }

    #[test]
    fn both_separators_separate() {
        assert_eq!(parsed("/a").unwrap(), ["/a"]);
        assert_eq!(parsed("/a:/b,c").unwrap(), ["/a", "/b", "c"]);
        assert_eq!(parsed("/dev/nvme0n1").unwrap(), ["/dev/nvme0n1"]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        for (text, part) in [
            ("", "empty"),
            ("/a:", "empty"),
            ("/a::/b", "empty"),
            ("/nvme*", "wildcards"),
            ("/a:/b*/c", "wildcards"),
            ("pci:0000:5e:00", "PCI address"),
            ("/a,trtype:RDMA traddr:192.0.2.1,/b", "`RDMA`"),
            (&vec!["/x"; 65].join(":"), "at most 64"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_keep_their_colons() {
        let text = "/a:pci:0000:5e:00.0:/b,pci:1:2";
        let all: Vec<&str> = pieces(text).collect();
        assert_eq!(all, ["/a", "pci:0000:5e:00.0", "/b", "pci:1", "2"]);
        let tcp = "trtype:TCP traddr:192.0.2.1 trsvcid:4420 subnqn:nqn.2026-11.example:a ns:2";
        let text = format!("pci:5e:00.0 ns:3:/a,{tcp}, {tcp},/b:pci:5f:00.1 ns:1,pci:60:00.0");
        let all: Vec<&str> = pieces(&text).map(str::trim).collect();
        let second = ["pci:5f:00.1 ns:1", "pci:60:00.0"];
        assert_eq!(
            all,
            [["pci:5e:00.0 ns:3", "/a"], [tcp, tcp], ["/b", second[0]]]
                .concat()
                .into_iter()
                .chain([second[1]])
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn addresses_are_taken_where_there_is_spdk_and_refused_with_a_way_where_not() {
        for text in [
            "pci:0000:5e:00.0",
            "/a,TRTYPE:tcp traddr:192.0.2.1 trsvcid:4420 subnqn:nqn.x",
        ] {
            let taken = parsed(text);
            assert_eq!(taken.is_ok(), HAS_SPDK, "{taken:?}");
            match taken {
                Ok(dirs) => assert_eq!(parsed(&dirs.join(",")).unwrap(), dirs),
                Err(error) => assert!(
                    error.contains("has no SPDK") && error.contains("--features"),
                    "{error}"
                ),
            }
        }
    }

    #[test]
    fn a_name_with_a_separator_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a:b");
        std::fs::create_dir(&odd).unwrap();
        let error = parsed(odd.to_str().unwrap()).unwrap_err();
        assert!(error.contains("symbolic link"), "{error}");
    }

    #[test]
    fn a_mount_point_and_a_cache_are_apart() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for dir in ["cache/in/deep", "m/in", "cache2"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        std::os::unix::fs::symlink(at("cache/in"), at("link")).unwrap();
        let check = |cache: &str, place: &str| {
            let dirs: CacheDirs = at(cache).to_str().unwrap().parse().unwrap();
            dirs.check_apart_from(&at(place))
        };
        for (cache, place, part) in [
            ("cache", "cache", "is also"),
            ("cache", "cache/in", "lies in"),
            ("cache", "link/deep", "lies in"),
            ("link", "cache/in/deep", "lies in"),
            ("cache2/../cache", "m/../link", "lies in"),
            ("m/in", "m", "would cover"),
            ("link/deep", "cache", "would cover"),
        ] {
            let error = check(cache, place).unwrap_err().to_string();
            assert!(error.contains(part), "{cache} {place}: {error}");
        }
        for (cache, place) in [
            ("cache", "m"),
            ("cache", "cache2"),
            ("cache2", "cache"),
            ("typo", "m"),
        ] {
            check(cache, place).unwrap();
        }
    }

    #[test]
    fn absolute_and_each_once() {
        let absolute = |text: &str| text.parse::<CacheDirs>().unwrap().absolute();
        let here = std::env::current_dir().unwrap().join("x");
        let expected = CacheDir::Path(here.clone());
        assert_eq!(absolute("x").unwrap().iter().next(), Some(&expected));
        let twice = format!("x:{}", here.display());
        assert!(absolute(&twice).is_err());
    }
}
