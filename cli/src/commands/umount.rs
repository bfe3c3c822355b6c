//! `forebay umount`: ends a mount, waits for its daemon, cleans up after a killed one.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::args::UmountArgs;
use crate::control::client::{ControlClient, peer_pid};
use crate::control::process::Process;
use crate::control::sockets::{checked_runtime_dir, is_alive, remove_stale, socket_path};
use crate::mounts::{self, Detach, PlaceState};

/// How long a daemon may take to end after its mount is gone.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// How long `--lazy` waits before it leaves the daemon to its last users.
const LAZY_TIMEOUT: Duration = Duration::from_secs(1);
/// Users of a busy mount that are named.
const USERS_MAX: usize = 5;

/// Runs the command.
///
/// # Errors
/// When nothing of ours is mounted there, it is in use, or the daemon does not end.
pub fn run(args: &UmountArgs) -> Result<()> {
    let path = mounts::spelled(&args.mount_point)?;
    let socket = socket_path(&checked_runtime_dir()?, &path);
    let entry = mounts::mount_at(&path)?;
    let daemon = Daemon::find(&socket);
    match &entry {
        Some(entry) if entry.is_forebay() => detach(&path, &socket, args.lazy)?,
        Some(entry) => bail!(
            "{} is a mount of {} ({}), not of Forebay: use `umount`",
            path.display(),
            entry.source,
            entry.kind
        ),
        None if daemon.is_some() => {}
        None if remove_stale(&socket).unwrap_or(false) => {
            eprintln!(
                "forebay: removed what a killed daemon had left of {}",
                path.display()
            );
            return Ok(());
        }
        None => bail!("nothing is mounted at {}", path.display()),
    }
    if let Some(daemon) = daemon {
        daemon.wait(&path, args.lazy)?;
    }
    remove_stale(&socket).with_context(|| format!("cannot remove {}", socket.display()))?;
    Ok(())
}

/// Takes the mount away; a dead one although files are open in it.
fn detach(path: &Path, socket: &Path, lazy: bool) -> Result<()> {
    let how = if lazy {
        Detach::Lazily
    } else {
        Detach::WhenUnused
    };
    match mounts::unmount(path, how) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            let users = users_text(path);
            match mounts::place_state(path) {
                Ok(PlaceState::Dead(_)) => clean_up(path),
                Ok(PlaceState::Hangs(_)) => bail!(
                    "{} is busy{users} and does not answer: {}",
                    path.display(),
                    how_to_end(path, peer_pid(socket))
                ),
                _ => bail!(
                    "{} is busy{users}: end what uses it, or give --lazy to take it away now and let \
                     the daemon end with its last user",
                    path.display()
                ),
            }
        }
        Err(error) => Err(error).with_context(|| format!("cannot unmount {}", path.display())),
    }
}

/// Detaches the mount of a daemon that is gone.
///
/// # Errors
/// When the kernel or `fusermount3` refuses.
pub fn clean_up(path: &Path) -> Result<()> {
    mounts::unmount(path, Detach::Lazily).with_context(|| {
        format!("cannot clean up the mount at {} whose daemon is gone: try as the user who mounted it, or as root", path.display())
    })
}

/// What to do about a mount that does not answer.
pub fn how_to_end(path: &Path, daemon: Option<u32>) -> String {
    let daemon = match daemon {
        Some(pid) => format!("`kill -9 {pid}`, its daemon"),
        None => "end its daemon".into(),
    };
    format!(
        "take it away with `forebay umount --lazy {}`, then {daemon}",
        path.display()
    )
}

fn users_text(path: &Path) -> String {
    let users = mounts::users_of(path, USERS_MAX + 1);
    if users.is_empty() {
        return String::new();
    }
    let mut names: Vec<String> = users
        .iter()
        .take(USERS_MAX)
        .map(|user| format!("{} ({})", user.pid, user.name))
        .collect();
    if users.len() > USERS_MAX {
        names.push("others".into());
    }
    format!(", used by process {}", names.join(", "))
}

/// A daemon that is alive, and what tells when it has ended.
#[derive(Debug)]
pub(super) struct Daemon {
    pid: u32,
    process: Option<Process>,
    answers: bool,
}

impl Daemon {
    /// The one that listens at `socket`.
    pub(super) fn find(socket: &Path) -> Option<Self> {
        if !is_alive(socket) {
            return None;
        }
        let status = ControlClient::new(socket.to_owned()).status();
        let answers = status.is_ok();
        let pid = match status {
            Ok(status) => status.pid,
            // Stopped or hung; the kernel still knows who listens.
            Err(error) => {
                eprintln!("forebay: {error:#}");
                peer_pid(socket)?
            }
        };
        let process = Process::of(pid);
        Some(Self {
            pid,
            process,
            answers,
        })
    }

    /// Waits until a daemon that was told to end has ended.
    pub(super) fn wait_for_end(&self, name: &str) -> Result<()> {
        match &self.process {
            Some(process) if !process.has_ended(END_TIMEOUT) => bail!(
                "{name} (process {}) has not ended within {} s: see its log, end it with `kill -9 {}`",
                self.pid,
                END_TIMEOUT.as_secs(),
                self.pid
            ),
            _ => Ok(()),
        }
    }

    fn wait(&self, path: &Path, lazy: bool) -> Result<()> {
        let Some(process) = &self.process else {
            return Ok(());
        };
        // One that does not answer is most likely to stay: there is little to wait for.
        let timeout = if lazy || !self.answers {
            LAZY_TIMEOUT
        } else {
            END_TIMEOUT
        };
        match ends(process, self.pid, timeout) {
            Ends::All => return Ok(()),
            Ends::ButDisks => {
                eprintln!(
                    "forebay: {} is unmounted, and daemon {} has ended but for what a disk that hangs has under way: the kernel \
                     ends that with the disk's answer (`dmesg`), and the cache there is in use until then",
                    path.display(),
                    self.pid
                );
                return Ok(());
            }
            Ends::Not => {}
        }
        if !self.answers {
            let text = format!(
                "{} is unmounted, but its daemon {} is stopped or hangs: end it with `kill -9 {}`",
                path.display(),
                self.pid,
                self.pid
            );
            if lazy {
                eprintln!("forebay: {text}");
                return Ok(());
            }
            bail!(text);
        }
        if lazy {
            eprintln!(
                "forebay: {} is still in use; daemon {} ends with its last user",
                path.display(),
                self.pid
            );
            return Ok(());
        }
        bail!(
            "{} is unmounted, but its daemon {} has not ended within {} s: see its log, end it with `kill {}`",
            path.display(),
            self.pid,
            timeout.as_secs(),
            self.pid
        )
    }
}

/// How far a process has ended.
enum Ends {
    All,
    /// Its main thread has, others are in the kernel.
    ButDisks,
    Not,
}

fn ends(process: &Process, pid: u32, timeout: Duration) -> Ends {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // The other threads of one that ends in order take a moment.
        let main_ended = is_zombie(pid);
        if process.has_ended(left.min(Duration::from_secs(1))) {
            return Ends::All;
        }
        if main_ended {
            return Ends::ButDisks;
        }
        if left.is_zero() {
            return Ends::Not;
        }
    }
}

fn is_zombie(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:\tZ"))
}
