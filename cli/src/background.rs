//! How `mount` goes to the background: the command starts itself again as the daemon, before any
//! thread or ring exists in it, and passes on what the daemon says through a pipe.
//!
//! The pipe is the daemon's standard output until the mount answers: lines `note TEXT`, then
//! `ready`, or `error TEXT` (to the end). A pipe that closes without either is a daemon that died.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

/// glibc's environment variable; other allocators do not know it.
const MMAP_THRESHOLD: &str = "MALLOC_MMAP_THRESHOLD_";
/// The HTTP client's buffers of bodies are larger than this. glibc raises its own threshold above
/// them once they are freed, and then keeps them in heaps that fragment: 90 MB over `--memory`
/// were seen. With a fixed threshold, each of them goes back to the system when it is freed.
const MMAP_THRESHOLD_BYTES: &str = "65536";

/// Starts this program again as a daemon with the same arguments and `--daemon`; returns when its
/// mount answers.
///
/// # Errors
/// The daemon's own, or that it died.
pub fn start_daemon(log_file: &Path, log: File) -> Result<()> {
    let mut command = own_program();
    let mut child = command
        .args(daemon_arguments(std::env::args_os().skip(1)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .with_context(|| {
            let program = command.get_program().display();
            format!("cannot start {program} as a daemon")
        })?;
    let pipe = child.stdout.take().context("the daemon has no pipe")?;
    let outcome = hear(BufReader::new(pipe), |note| eprintln!("forebay: {note}"));
    match outcome {
        Ok(()) => Ok(()),
        Err(Some(error)) => {
            let _ = child.wait();
            Err(anyhow!(error))
        }
        Err(None) => {
            let ended = child
                .wait()
                .map_or_else(|error| error.to_string(), |status| status.to_string());
            bail!(
                "the daemon ended before it was ready ({ended}): see {}",
                log_file.display()
            )
        }
    }
}

/// Starts this program again in this process, once, so that the allocator has the threshold that a
/// mount needs. Returns at once when it has one, or when the system refuses. Call it before any
/// thread exists.
pub fn settle_allocator() {
    if allocator_setting(|name| std::env::var_os(name)).is_none() {
        return;
    }
    let error = own_program().args(std::env::args_os().skip(1)).exec();
    tracing::warn!(
        "cannot start again with {MMAP_THRESHOLD} set, memory may exceed --memory by more: {error}"
    );
}

/// This program and its name, with what the allocator of a mount needs.
fn own_program() -> Command {
    // A name that `ps` shows as it is, unlike /proc/self/exe; that one works after an upgrade
    // removed the file.
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let program = program.unwrap_or_else(|| "/proc/self/exe".into());
    let mut command = Command::new(program);
    command.arg0(
        std::env::args_os()
            .next()
            .unwrap_or_else(|| "forebay".into()),
    );
    command.envs(allocator_setting(|name| std::env::var_os(name)));
    command
}

/// What the environment lacks for a mount's allocator: nothing when the user chose a threshold.
fn allocator_setting(
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<(&'static str, &'static str)> {
    let tuned = variable("GLIBC_TUNABLES").is_some_and(|value| {
        value
            .to_string_lossy()
            .contains("glibc.malloc.mmap_threshold")
    });
    let chosen = tuned || variable(MMAP_THRESHOLD).is_some();
    (!chosen).then_some((MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES))
}

/// The daemon's arguments, from the command's without the program's name. `--daemon` follows the
/// command's own name: behind a `--` it would be one more directory.
fn daemon_arguments(mut arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let command = arguments.next();
    let flag = std::iter::once("--daemon".into());
    command.into_iter().chain(flag).chain(arguments).collect()
}

/// Reads the pipe; an error without a text is a daemon that died.
fn hear(mut pipe: impl BufRead, mut note: impl FnMut(&str)) -> Result<(), Option<String>> {
    loop {
        let mut line = String::new();
        match pipe.read_line(&mut line) {
            Ok(n) if n > 0 => {}
            _ => return Err(None),
        }
        let line = line.trim_end();
        if line == "ready" {
            return Ok(());
        } else if let Some(text) = line.strip_prefix("note ") {
            note(text);
        } else if let Some(text) = line.strip_prefix("error ") {
            let mut rest = String::new();
            let _ = pipe.read_to_string(&mut rest);
            return Err(Some(format!("{text}\n{rest}").trim_end().to_owned()));
        }
    }
}

/// Leaves the terminal and the caller's directory. Call it first in the daemon.
///
/// # Errors
/// When the system refuses.
pub fn detach() -> Result<()> {
    rustix::process::setsid().context("cannot start a session for the daemon")?;
    std::env::set_current_dir("/").context("cannot change to /")
}

/// Whom a starting mount tells how it goes.
#[derive(Debug)]
pub enum Caller {
    /// The user's terminal: everything goes to standard error.
    Terminal,
    /// The command that waits at the other end of standard output.
    Command,
}

impl Caller {
    /// Something worth knowing that is no error.
    pub fn note(&self, text: &str) {
        tracing::info!("{text}");
        if let Caller::Command = self {
            let _ = writeln!(std::io::stdout(), "note {text}");
        }
    }

    /// What the log says already.
    pub fn repeat(&self, text: &str) {
        if let Caller::Command = self {
            let _ = writeln!(std::io::stdout(), "note {text}");
        }
    }

    /// The mount answers. Afterwards the daemon's standard output is its log.
    ///
    /// # Errors
    /// When the caller is gone: the mount should be, too.
    pub fn ready(&self) -> Result<()> {
        if let Caller::Command = self {
            let mut out = std::io::stdout();
            out.write_all(b"ready\n")
                .and_then(|()| out.flush())
                .context("the command that started the daemon is gone")?;
            rustix::stdio::dup2_stdout(std::io::stderr())
                .context("cannot close the pipe to the caller")?;
        }
        Ok(())
    }

    /// The mount will not be.
    pub fn failed(&self, error: &anyhow::Error) {
        match self {
            Caller::Terminal => eprintln!("forebay: {error:#}"),
            Caller::Command => {
                tracing::error!("{error:#}");
                let _ = writeln!(std::io::stdout(), "error {error:#}");
            }
        }
    }
}

/// The daemon's log when none is named: `/var/log/forebay` for root, else
/// `$XDG_STATE_HOME/forebay` or `~/.local/state/forebay`.
fn log_dir() -> Result<PathBuf> {
    if rustix::process::getuid().is_root() {
        return Ok("/var/log/forebay".into());
    }
    let named = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let state =
        named("XDG_STATE_HOME").or_else(|| named("HOME").map(|home| home.join(".local/state")));
    Ok(state
        .context("neither XDG_STATE_HOME nor HOME is set: name the log with --log-file")?
        .join("forebay"))
}

/// The daemon's log; `name` is the file's without `--log-file`.
///
/// # Errors
/// When there is no place for it.
pub fn log_path(named: Option<&Path>, name: &str) -> Result<PathBuf> {
    match named {
        Some(path) => std::path::absolute(path).context("cannot make --log-file absolute"),
        None => Ok(log_dir()?.join(format!("{name}.log"))),
    }
}

/// Opens the daemon's log for appending; see [`log_path`].
///
/// # Errors
/// When it cannot be opened.
pub fn open_log(named: Option<&Path>, name: &str) -> Result<(PathBuf, File)> {
    let path = log_path(named, name)?;
    if let (None, Some(dir)) = (named, path.parent()) {
        fs::create_dir_all(dir).with_context(|| {
            format!(
                "cannot make {}: name the log with --log-file",
                dir.display()
            )
        })?;
    }
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o640)
        .open(&path);
    let file = file.with_context(|| {
        format!(
            "cannot open the log {}: name another with --log-file",
            path.display()
        )
    })?;
    Ok((path, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_daemon_says_is_understood() {
        let heard = |text: &str| {
            let mut notes = Vec::new();
            let outcome = hear(text.as_bytes(), |note| notes.push(note.to_owned()));
            (outcome, notes)
        };
        assert_eq!(
            heard("note a b\nready\nmore"),
            (Ok(()), vec!["a b".to_owned()])
        );
        assert_eq!(
            heard("error one\ntwo\n"),
            (Err(Some("one\ntwo".into())), vec![])
        );
        assert_eq!(heard("note a\n"), (Err(None), vec!["a".to_owned()]));
        assert_eq!(heard(""), (Err(None), vec![]));
        assert_eq!(heard("noise\nready\n"), (Ok(()), vec![]));
    }

    #[test]
    fn the_daemon_has_the_commands_arguments() {
        use clap::Parser;

        use crate::args::{Cli, Command};

        for line in [
            &["mount", "s3://b", "/mnt", "--memory", "7GiB"][..],
            &["mount", "--memory", "7GiB", "--", "s3://b", "/mnt"],
        ] {
            let arguments = daemon_arguments(line.iter().map(Into::into));
            let cli = Cli::try_parse_from(std::iter::once("forebay".into()).chain(arguments));
            let Command::Mount(args) = cli.unwrap().command else {
                panic!("another command")
            };
            assert!(
                args.daemon && args.serving.engine.memory.is_some(),
                "{line:?}"
            );
            assert_eq!(args.mount_point, Path::new("/mnt"));
        }
    }

    #[test]
    fn a_threshold_of_the_users_stays() {
        let setting = |name: &str, value: &str| {
            allocator_setting(|asked| (asked == name).then(|| value.into())).is_some()
        };
        assert!(setting("HOME", "/root"));
        assert!(setting("GLIBC_TUNABLES", "glibc.malloc.arena_max=2"));
        assert!(!setting("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1"));
        assert!(!setting(MMAP_THRESHOLD, "131072"));
    }

    #[test]
    fn logs_are_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        for _ in 0..2 {
            let (opened, mut file) = open_log(Some(&path), "unused").unwrap();
            assert_eq!(opened, path);
            writeln!(file, "line").unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\nline\n");
        let error = open_log(Some(&dir.path().join("no/x.log")), "unused").unwrap_err();
        assert!(format!("{error:#}").contains("--log-file"));
    }
}
