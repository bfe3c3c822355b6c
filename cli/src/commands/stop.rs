//! `forebay stop`: ends a member that `serve` runs.

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::members;
use super::umount::Daemon;
use crate::args::StopArgs;
use crate::control::sockets::{SERVE_PREFIX, checked_runtime_dir};

/// Runs the command.
///
/// # Errors
/// When there is no such member, more than one, or it does not end.
pub fn run(args: &StopArgs) -> Result<()> {
    let wanted = args.name.as_deref().map(bare);
    let found = members(&checked_runtime_dir()?, wanted)?;
    let names: Vec<String> = found.iter().map(|(_, status)| status.name()).collect();
    let [(client, status)] = found.as_slice() else {
        match (names.len(), wanted) {
            (0, None) => bail!("no member runs here: `forebay status` lists what does"),
            (0, Some(wanted)) => {
                bail!("no member {wanted} runs here: `forebay status` lists what does")
            }
            (n, _) => bail!("{n} members match, name one of them: {}", names.join(", ")),
        }
    };
    let Some(daemon) = Daemon::find(client.socket()) else {
        bail!("{} has ended meanwhile", status.name());
    };
    let pid = i32::try_from(status.pid).ok().and_then(Pid::from_raw);
    match pid.map(|pid| kill_process(pid, Signal::TERM)) {
        Some(Ok(())) => {}
        Some(Err(error)) => bail!(
            "cannot end {} (process {}): {error}",
            status.name(),
            status.pid
        ),
        None => bail!("{} tells no process id", status.name()),
    }
    daemon.wait_for_end(&status.name())
}

/// Whether `serve:GROUP/NODE` is meant by `[serve:]GROUP` or `[serve:]GROUP/NODE`.
pub(super) fn is_named(name: &str, wanted: &str) -> bool {
    let [name, wanted] = [name, wanted].map(bare);
    name == wanted
        || name
            .split_once('/')
            .is_some_and(|(group, _)| group == wanted)
}

fn bare(name: &str) -> &str {
    name.strip_prefix(SERVE_PREFIX).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_or_a_node_of_it() {
        for (wanted, is) in [
            ("g", true),
            ("g/n", true),
            ("n", false),
            ("g/", false),
            ("", false),
            ("g/n2", false),
            ("serve:g/n", true),
            ("serve:g", true),
        ] {
            assert_eq!(is_named("serve:g/n", wanted), is, "{wanted}");
        }
    }
}
