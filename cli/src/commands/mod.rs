//! The commands, one file each.

pub mod cat;
pub mod mount;
pub mod stats;
pub mod status;
pub mod umount;

use std::path::Path;

use anyhow::{Result, bail};

use crate::control::client::{ControlClient, living};
use crate::control::report::StatusReport;
use crate::control::sockets::{runtime_dir, socket_path};
use crate::mounts;

/// The daemon of the mount at `mount_point`, or the only one when none is named.
///
/// # Errors
/// When there is none, or more than one to choose from.
pub(crate) fn choose(mount_point: Option<&Path>) -> Result<(ControlClient, StatusReport)> {
    let dir = runtime_dir();
    if let Some(path) = mount_point {
        let path = mounts::spelled(path)?;
        let socket = socket_path(&dir, &path);
        if !crate::control::sockets::is_alive(&socket) {
            match mounts::mount_at(&path)? {
                Some(entry) if entry.is_forebay() => bail!(
                    "the daemon of {} does not answer at {}: it was killed (clean up with `forebay \
                     umount {}`), or belongs to another user",
                    path.display(),
                    socket.display(),
                    path.display()
                ),
                _ => bail!(
                    "no Forebay mount at {}: `forebay status` lists those there are",
                    path.display()
                ),
            }
        }
        let client = ControlClient::new(socket);
        let status = client.status()?;
        return Ok((client, status));
    }
    let mut daemons = living(&dir);
    match daemons.len() {
        1 => Ok(daemons.remove(0)),
        0 => bail!("no Forebay mount of this user: `forebay mount s3://BUCKET DIR` makes one"),
        _ => {
            let names: Vec<String> = daemons
                .iter()
                .map(|(_, status)| status.mount_point.display().to_string())
                .collect();
            bail!(
                "there are {} mounts, name one of them: {}",
                names.len(),
                names.join(", ")
            )
        }
    }
}
