//! The program `forebay`, run as its users run it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::Credentials;
use super::report::Report;

/// The program `forebay`: `FOREBAY_BIN`, or the one beside the running program (tests and
/// examples run one directory further down).
///
/// # Errors
/// When it has not been built.
pub fn forebay_binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("FOREBAY_BIN") {
        return Ok(path.into());
    }
    let own = env::current_exe()?;
    let beside = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("forebay"));
    beside
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "no program `forebay` beside {}: cargo build --bins",
                own.display()
            )
        })
}

/// A command that starts a daemon: without what the caller's environment sets of Forebay's flags, with these
/// credentials or else what the environment says.
pub(super) fn daemon_command(
    binary: &Path,
    verb: &str,
    credentials: Option<&Credentials>,
) -> Command {
    let mut command = Command::new(binary);
    command.arg(verb).stdin(Stdio::null());
    without_settings(&mut command, env::vars_os().map(|(name, _)| name));
    if let Some(known) = credentials {
        command
            .env("AWS_ACCESS_KEY_ID", &known.access_key)
            .env("AWS_SECRET_ACCESS_KEY", &known.secret_key)
            .env("AWS_REGION", &known.region)
            .env_remove("AWS_SESSION_TOKEN")
            .env_remove("AWS_PROFILE");
    }
    // A terminal's Ctrl-C goes to its whole process group. It must not kill the command halfway: the daemon
    // would come up with nobody to end it.
    command.process_group(0);
    command
}

/// Takes what the caller's environment sets of Forebay's flags away (`FOREBAY_FOREGROUND` would
/// hang us, others change what is measured). Where the control sockets are stays.
fn without_settings(command: &mut Command, variables: impl Iterator<Item = OsString>) {
    let settings = variables.filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("FOREBAY_") && name != "FOREBAY_RUNTIME_DIR"
    });
    for name in settings {
        command.env_remove(name);
    }
}

/// What `forebay COMMAND NAME --json` says.
pub(super) fn ask(binary: &Path, command: &str, name: &OsStr) -> Result<Report> {
    let output = Command::new(binary)
        .arg(command)
        .arg(name)
        .arg("--json")
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        output.status.success(),
        "forebay {command}: {}",
        output.status
    );
    let json = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("forebay {command} --json printed no JSON"))?;
    Ok(Report {
        command: command.to_owned(),
        json,
    })
}

/// Kills the process, if it still runs `binary`: a pid may have been reused.
pub(super) fn kill(pid: u32, binary: &Path) {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(raw) = raw
        && fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == binary)
    {
        let _ = kill_process(raw, Signal::KILL);
    }
}

/// Whether the process is gone, or a zombie that nobody has reaped (as in some containers).
pub(super) fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_environment_do_not_reach_a_mount() {
        let mut command = Command::new("forebay");
        let there = ["FOREBAY_FOREGROUND", "FOREBAY_RUNTIME_DIR", "HOME"];
        without_settings(&mut command, there.map(OsString::from).into_iter());
        let removed: Vec<_> = command.get_envs().collect();
        assert_eq!(removed, [("FOREBAY_FOREGROUND".as_ref(), None)]);
    }
}
