//! What the bucket is filled with: a data set that a package ships, many small files that every
//! machine has, and a few large objects.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;

use crate::s3::synthetic_bytes;

/// A data set of 70,000 images in four files, from the Debian package of that name.
const DATA_SET: &str = "/usr/share/datasets/fashion-mnist";
/// Trees with many small files; the first that exists is taken.
const SMALL_FILE_TREES: [&str; 4] = [
    "/usr/lib/python3.11",
    "/usr/lib/python3.12",
    "/usr/lib/python3",
    "/usr/share/doc",
];
/// Small files taken at most.
const SMALL_FILES_MAX: usize = 1_000;
/// Larger files are left out of the small ones.
const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;
/// Large objects and their size.
const LARGE: u64 = 3;
const LARGE_BYTES: u64 = 128 << 20;
/// What a small demo takes of small files, and its large objects: no whole number of chunks.
const SMALL_FILES_MAX_SMALL: usize = 40;
const SMALL_FILE_BYTES_MAX_SMALL: u64 = 64 << 10;
const LARGE_BYTES_SMALL: u64 = (2 << 20) - 1;
/// Bytes that one batch of puts holds in memory, about.
const BATCH_BYTES: u64 = 256 << 20;

/// Where an object's bytes come from.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    File(PathBuf),
    /// A function of this seed and the offset.
    Synthetic(u64),
}

/// One object to be, and what it must read as.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) key: String,
    pub(super) size_bytes: u64,
    origin: Origin,
}

impl Source {
    /// Fills `buf` with the object's bytes from `offset`.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match &self.origin {
            Origin::Synthetic(seed) => synthetic_bytes(*seed, offset, buf),
            Origin::File(path) => {
                use std::os::unix::fs::FileExt;
                fs::File::open(path)
                    .and_then(|file| file.read_exact_at(buf, offset))
                    .with_context(|| format!("{}", path.display()))?;
            }
        }
        Ok(())
    }

    fn whole(&self) -> Result<Bytes> {
        let mut bytes = vec![0; self.size_bytes as usize];
        self.read(0, &mut bytes)?;
        Ok(bytes.into())
    }
}

/// All objects of the demo's bucket, but for those that get overwritten.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) list: Vec<Source>,
    /// What is in it, for people.
    what: String,
}

impl Sources {
    /// Of a small demo there are fewer, and no data set.
    pub(super) fn collect(is_small: bool) -> Result<Self> {
        let (files_max, file_bytes_max, large_bytes) = match is_small {
            true => (
                SMALL_FILES_MAX_SMALL,
                SMALL_FILE_BYTES_MAX_SMALL,
                LARGE_BYTES_SMALL,
            ),
            false => (SMALL_FILES_MAX, SMALL_FILE_BYTES_MAX, LARGE_BYTES),
        };
        let (mut list, mut what) = (Vec::new(), String::new());
        if !is_small {
            let data_set = files_under(Path::new(DATA_SET), "fashion-mnist", usize::MAX, u64::MAX)?;
            ensure!(
                !data_set.is_empty(),
                "{DATA_SET} is missing: apt-get install dataset-fashion-mnist"
            );
            list.extend(data_set);
            what.push_str("Fashion-MNIST, ");
        }
        let tree = SMALL_FILE_TREES
            .iter()
            .map(Path::new)
            .find(|tree| tree.is_dir());
        let tree = tree.context("no tree of small files found under /usr")?;
        let small = files_under(tree, "small", files_max, file_bytes_max)?;
        what.push_str(&format!(
            "{} small files, {LARGE} objects of {large_bytes} bytes",
            small.len()
        ));
        list.extend(small);
        list.extend((0..LARGE).map(|n| Source {
            key: format!("large/{n}.bin"),
            size_bytes: large_bytes,
            origin: Origin::Synthetic(n),
        }));
        Ok(Self { list, what })
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.list.iter().map(|source| source.size_bytes).sum()
    }

    pub(super) fn summary(&self) -> String {
        format!(
            "{}; {} MiB in {} objects",
            self.what,
            self.total_bytes() >> 20,
            self.list.len()
        )
    }

    /// The objects with their bytes, in batches that bound what is in memory.
    pub(super) fn batches(&self) -> impl Iterator<Item = Result<Vec<(String, Bytes)>>> + '_ {
        let mut rest = self.list.as_slice();
        std::iter::from_fn(move || {
            let mut taken = 0;
            let mut bytes = 0;
            while taken < rest.len()
                && (taken == 0 || bytes + rest[taken].size_bytes <= BATCH_BYTES)
            {
                bytes += rest[taken].size_bytes;
                taken += 1;
            }
            let (batch, later) = rest.split_at(taken);
            rest = later;
            let load = |source: &Source| Ok((source.key.clone(), source.whole()?));
            (!batch.is_empty()).then(|| batch.iter().map(load).collect())
        })
    }
}

/// Regular, non-empty files under `tree` with UTF-8 names, in a stable order.
fn files_under(tree: &Path, prefix: &str, most: usize, bytes_max: u64) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    let mut dirs = vec![tree.to_owned()];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let Ok(meta) = path.symlink_metadata() else {
                continue;
            };
            if meta.is_dir() {
                dirs.push(path);
            } else if meta.is_file() && (1..=bytes_max).contains(&meta.len()) && found.len() < most
            {
                let Some(name) = path.strip_prefix(tree)?.to_str() else {
                    continue;
                };
                found.push(Source {
                    key: format!("{prefix}/{name}"),
                    size_bytes: meta.len(),
                    origin: Origin::File(path.clone()),
                });
            }
        }
    }
    Ok(found)
}
