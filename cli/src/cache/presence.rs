//! Whether a cache's files are where the next start will look for them. One that is not is still read and written, since
//! it is open; but it is lost when the daemon ends, and until then nothing else would tell.

use std::path::Path;
use std::sync::Arc;

use forebay_nvme_uring::{Presence, UringFile};
use parking_lot::Mutex;

/// Where one log's file is, as it was seen last.
#[derive(Debug)]
pub struct Watched {
    /// None for what has no file that could be moved.
    file: Option<Arc<UringFile>>,
    seen: Mutex<Presence>,
}

impl Watched {
    /// A file that was opened just now.
    pub fn new(file: Option<Arc<UringFile>>) -> Self {
        Self {
            file,
            seen: Mutex::new(Presence::InPlace),
        }
    }

    /// Looks, and logs what has changed. What cannot be looked at now is left as it was.
    pub fn look(&self) {
        let Some(file) = &self.file else { return };
        let Ok(now) = file.presence() else {
            return;
        };
        let before = std::mem::replace(&mut *self.seen.lock(), now);
        if now == before {
            return;
        }
        match trouble(now, file.path()) {
            Some(trouble) => tracing::warn!("{trouble}"),
            None => tracing::info!("{} is in its place again", file.path().display()),
        }
    }

    /// What has become of it, and what to do; none when it is in its place.
    pub fn trouble(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        trouble(*self.seen.lock(), file.path())
    }
}

fn trouble(presence: Presence, path: &Path) -> Option<String> {
    let path = path.display();
    match presence {
        Presence::InPlace => None,
        Presence::Removed => Some(format!(
            "{path} was removed while it is used: it is read and written on, but all that is cached in it is lost, and its \
             room on the disk free, only when this daemon ends. End it when that suits, and start it again: with an empty cache"
        )),
        Presence::Elsewhere => Some(format!(
            "{path} is not the file that is used any more (it was moved, or its file system was unmounted or covered): it \
             is read and written on, but the next start will not find what is cached. Put it back, or mount its file system \
             there again, before this daemon ends; else the next start begins with an empty cache, or fails"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use forebay_nvme_uring::OpenOptions;

    use super::*;

    #[test]
    fn a_file_that_loses_its_place_is_told_until_it_is_back() {
        let root = tempfile::tempdir().unwrap();
        let [here, away] = ["here", "away"].map(|name| root.path().join(name));
        fs::create_dir(&here).unwrap();
        let path = here.join("blocks");
        let options = OpenOptions {
            capacity_bytes: Some(1 << 20),
            create: true,
            ..OpenOptions::default()
        };
        let watched = Watched::new(Some(UringFile::open(&path, &options).unwrap()));
        let look = || {
            watched.look();
            watched.trouble()
        };
        let says = |trouble: Option<String>, part: &str| {
            let told = trouble.unwrap_or_default();
            assert!(told.contains(part), "no {part:?} in {told:?}");
            assert!(told.contains(path.to_str().unwrap()), "{told}");
        };
        assert_eq!(look(), None);
        fs::rename(&here, &away).unwrap();
        says(look(), "Put it back");
        // Neither is a copy in its place the file.
        fs::create_dir(&here).unwrap();
        fs::copy(away.join("blocks"), &path).unwrap();
        says(look(), "Put it back");
        fs::remove_dir_all(&here).unwrap();
        fs::rename(&away, &here).unwrap();
        assert_eq!(look(), None);
        fs::remove_dir_all(&here).unwrap();
        says(look(), "was removed");
    }
}
