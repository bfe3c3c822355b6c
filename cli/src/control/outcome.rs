//! How a member's drain ended, beside its socket: for who asks when its daemon is gone. There until the member starts
//! again, or the machine does.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::group::draining::DrainReport;

/// How the drain of one daemon ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The daemon's process.
    pub pid: u32,
    /// Its last report.
    pub report: DrainReport,
}

const EXTENSION: &str = "drained";

fn path_of(socket: &Path) -> PathBuf {
    socket.with_extension(EXTENSION)
}

/// Notes it for the daemon that listens at `socket`. Whole, or not at all.
///
/// # Errors
/// When the file cannot be written.
pub fn write(socket: &Path, outcome: &Outcome) -> io::Result<()> {
    let text = serde_json::to_vec(outcome)?;
    let new = socket.with_extension("drained-new");
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&text)?;
    drop(file);
    fs::rename(&new, path_of(socket))
}

/// What the last daemon at `socket` left; none: it left nothing, or nothing that can be read.
pub fn read(socket: &Path) -> Option<Outcome> {
    let text = fs::read(path_of(socket)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Forgets it: another daemon starts.
///
/// # Errors
/// When there is one that cannot be removed.
pub fn remove(socket: &Path) -> io::Result<()> {
    match fs::remove_file(path_of(socket)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// All that lie in `dir`, by name.
pub fn all(dir: &Path) -> Vec<Outcome> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == EXTENSION)
    });
    paths.sort();
    paths.iter().filter_map(|path| read(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::sockets::{socket_path, sockets};
    use crate::group::draining::DrainState;

    #[test]
    fn what_is_noted_is_found_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        // Whatever a name has in it.
        let names = ["serve:g.x/node.1", "serve:g.x/node.2"];
        for (pid, name) in (1..).zip(names) {
            let report = DrainReport {
                name: name.into(),
                state: DrainState::Done,
                ..DrainReport::default()
            };
            let socket = socket_path(dir.path(), Path::new(name));
            write(&socket, &Outcome { pid, report }).unwrap();
            assert_eq!(read(&socket).unwrap().pid, pid);
        }
        let found = all(dir.path());
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].report.name, names[1]);
        assert!(sockets(dir.path()).is_empty(), "it is no socket");
        let socket = socket_path(dir.path(), Path::new(names[0]));
        remove(&socket).unwrap();
        remove(&socket).unwrap();
        assert_eq!(read(&socket), None);
        assert_eq!(all(dir.path()).len(), 1);
    }
}
