//! The commands, one file each; `daemon` and `reports` are what `mount` and `serve` have in common.

pub mod cache;
pub mod cat;
pub mod check;
pub mod daemon;
pub mod device;
pub mod doctor;
pub mod drain;
pub mod evict;
pub mod mount;
pub mod reports;
pub mod serve;
pub mod stats;
pub mod status;
pub mod stop;
pub mod umount;
pub mod warmup;

mod jobs;

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

use crate::control::client::{ControlClient, living, peer_pid};
use crate::control::report::StatusReport;
use crate::control::sockets::{SERVE_PREFIX, checked_runtime_dir, is_alive, socket_path};
use crate::mounts::{self, Life};

/// The daemon of the mount at `mount_point` (or of the member `serve:GROUP[/NODE]`), or the only one when none is
/// named.
///
/// # Errors
/// When there is none, or more than one to choose from.
pub(crate) fn choose(mount_point: Option<&Path>) -> Result<(ControlClient, StatusReport)> {
    let dir = checked_runtime_dir()?;
    if let Some(name) = mount_point.and_then(|path| path.to_str()?.strip_prefix(SERVE_PREFIX)) {
        return choose_member(&dir, name);
    }
    if let Some(path) = mount_point {
        let path = mounts::spelled(path)?;
        let socket = socket_path(&dir, &path);
        if !is_alive(&socket) {
            match mounts::mount_at(&path)? {
                Some(entry) if entry.is_forebay() => bail!(
                    "the daemon of {} does not answer at {}: {}",
                    path.display(),
                    socket.display(),
                    why_silent(&path, &socket)
                ),
                _ => {
                    return not_there(format!(
                        "no Forebay mount at {}: `forebay status` lists those there are",
                        path.display()
                    ));
                }
            }
        }
        let client = ControlClient::new(socket);
        let status = client.status()?;
        return Ok((client, status));
    }
    let mut daemons = living(&dir);
    match daemons.len() {
        1 => Ok(daemons.remove(0)),
        0 => not_there("no Forebay mount of this user: `forebay mount s3://BUCKET DIR` makes one"),
        _ => bail!("there are {}", listing("mounts", &daemons)),
    }
}

/// A member without a mount, by `GROUP` or `GROUP/NODE`.
fn choose_member(dir: &Path, name: &str) -> Result<(ControlClient, StatusReport)> {
    let mut daemons = members(dir, Some(name))?;
    match daemons.len() {
        1 => Ok(daemons.remove(0)),
        0 => not_there(format!(
            "no member {name} runs here: `forebay status` lists what does"
        )),
        _ => bail!("there are {}", listing("members", &daemons)),
    }
}

/// The members without a mount that run here and are meant by `GROUP`, `GROUP/NODE` or nothing. The whole name leads to
/// the member's socket: others, one of which may hang, are not asked then.
///
/// # Errors
/// When the one that is named does not answer.
fn members(dir: &Path, name: Option<&str>) -> Result<Vec<(ControlClient, StatusReport)>> {
    let whole = name.map(|name| socket_path(dir, Path::new(&format!("{SERVE_PREFIX}{name}"))));
    if let Some(socket) = whole.filter(|socket| is_alive(socket)) {
        let client = ControlClient::new(socket);
        let status = client.status()?;
        return Ok(vec![(client, status)]);
    }
    let mut daemons = living(dir);
    daemons.retain(|(_, status)| {
        let serve = status.serve.as_deref();
        serve.is_some_and(|serve| name.is_none_or(|name| stop::is_named(serve, name)))
    });
    Ok(daemons)
}

/// What a member is named by: its mount point, `[serve:]GROUP[/NODE]`, or its control socket; without a name the only
/// daemon there is.
///
/// # Errors
/// When there is none, or more than one to choose from.
pub(crate) fn choose_member_or_mount(name: Option<&Path>) -> Result<(ControlClient, StatusReport)> {
    let Some(path) = name else {
        return choose(None);
    };
    if crate::control::sockets::is_alive(path) {
        let client = ControlClient::new(path.to_owned());
        let status = client.status()?;
        return Ok((client, status));
    }
    let member = path
        .to_str()
        .filter(|_| !path.exists() && !path.is_absolute());
    match member {
        Some(name) if !name.starts_with(SERVE_PREFIX) => {
            choose_member(&checked_runtime_dir()?, name)
        }
        _ => choose(Some(path)),
    }
}

/// The same; what is no member's name is a mount point.
///
/// # Errors
/// When there is none, or more than one to choose from.
pub(crate) fn choose_named(name: Option<&Path>) -> Result<(ControlClient, StatusReport)> {
    match choose_member_or_mount(name) {
        Err(error) if error.is::<NotThere>() => choose(name),
        found => found,
    }
}

fn listing(what: &str, daemons: &[(ControlClient, StatusReport)]) -> String {
    let names: Vec<String> = daemons.iter().map(|(_, status)| status.name()).collect();
    format!(
        "{} {what}, name one of them: {}",
        names.len(),
        names.join(", ")
    )
}

/// Nothing runs that was meant: other than where more than one does, or one does not answer.
#[derive(Debug)]
struct NotThere(String);

impl fmt::Display for NotThere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn not_there<T>(text: impl Into<String>) -> Result<T> {
    Err(anyhow::Error::msg(NotThere(text.into())))
}

/// Why nobody answers for a mount, and what to do.
fn why_silent(path: &Path, socket: &Path) -> String {
    match mounts::life(path) {
        Life::Killed => format!(
            "it was killed (clean up with `forebay umount {}`)",
            path.display()
        ),
        Life::Hangs => format!(
            "nor does the mount: {}",
            umount::how_to_end(path, peer_pid(socket))
        ),
        Life::Alive => format!(
            "the mount works, but its control socket is gone or in another runtime directory: set \
             FOREBAY_RUNTIME_DIR to that one (`forebay umount {}` ends the mount without it)",
            path.display()
        ),
        Life::Unknown => "it belongs to another user, or cannot be looked at".into(),
    }
}
