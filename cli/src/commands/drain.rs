//! `forebay drain`: a member hands over what it holds, and leaves.

mod progress;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hyper::Method;
use tokio::signal::unix::{SignalKind, signal};

use self::progress::Progress;
use super::choose_member_or_mount;
use super::jobs::runtime;
use super::umount;
use crate::args::DrainArgs;
use crate::group::draining::{DrainReport, DrainState};
use crate::output::{json, print};
use crate::units::{Bytes, show_duration};
use crate::warm::asking::Daemon;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the command.
///
/// # Errors
/// When there is no such member, it cannot be drained, or not everything found a new owner.
pub fn run(args: &DrainArgs) -> Result<()> {
    let (client, status) = choose_member_or_mount(args.name.as_deref().map(Path::new))?;
    let (daemon, name) = (Daemon::new(client.socket()), status.name());
    let leaves = status.serve.is_some();
    let waits = leaves && !args.stop && !args.status && !args.background;
    let process = waits.then(|| umount::Daemon::find(client.socket()));
    runtime()?.block_on(async {
        if args.stop {
            let report = ask(&daemon, Method::POST, "/drain/stop", &name).await?;
            return tell(args, &report, leaves);
        }
        if args.status {
            let report = ask(&daemon, Method::GET, "/drain", &name).await?;
            return tell(args, &report, leaves);
        }
        let report = ask(&daemon, Method::POST, "/drain", &name).await?;
        if args.background {
            return match args.json {
                true => tell(args, &report, leaves),
                false => print(&format!("{name} hands over what it has: `forebay drain --status {name}` tells how far it is\n"))
                    .map(drop),
            };
        }
        let report = follow(&daemon, &name).await?;
        tell(args, &report, leaves)?;
        if let Some(process) = process.flatten().filter(|_| report.state == DrainState::Done) {
            // Whoever starts it again, or asks who is there, is not to find it.
            process.wait_for_end(&name)?;
        }
        ended(&report, leaves)
    })
}

async fn ask(daemon: &Daemon, method: Method, path: &str, name: &str) -> Result<DrainReport> {
    let report: DrainReport = daemon.ask(method, path, Vec::new()).await?;
    Ok(DrainReport {
        name: name.to_owned(),
        ..report
    })
}

/// Shows how far it is until it is over. SIGINT and SIGTERM stop it: the member gets its weight back.
async fn follow(daemon: &Daemon, name: &str) -> Result<DrainReport> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut progress = Progress::start();
    let outcome = loop {
        match ask(daemon, Method::GET, "/drain", name).await {
            Ok(report) if report.state != DrainState::Running => break Ok(report),
            Ok(report) => progress.show(&report),
            Err(error) => break Err(error),
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = interrupt.recv() => break ask(daemon, Method::POST, "/drain/stop", name).await,
            _ = terminate.recv() => break ask(daemon, Method::POST, "/drain/stop", name).await,
        }
    };
    progress.end();
    outcome
}

fn tell(args: &DrainArgs, report: &DrainReport, leaves: bool) -> Result<()> {
    let text = match args.json {
        true => json(report, true)?,
        false => summary(report, leaves),
    };
    print(&text).map(drop)
}

/// One line of how far it is, or came.
fn summary(report: &DrainReport, leaves: bool) -> String {
    let name = &report.name;
    let took = show_duration(Duration::try_from_secs_f64(report.seconds).unwrap_or_default());
    let given = Bytes(report.given_bytes);
    match report.state {
        DrainState::None => format!("{name}: no drain was asked for\n"),
        DrainState::Running if report.without_heir => {
            format!("{name}: waits, for no other member has a weight\n")
        }
        DrainState::Running => format!("{name}: {}\n", progress::line(report, 0.0)),
        DrainState::Stopped => format!(
            "{name}: stopped after {took}, {given} handed over; it has its weight again, and what it had\n"
        ),
        DrainState::Done => {
            let refused = match report.refused_blocks {
                0 => String::new(),
                blocks => format!(
                    ", {} in {blocks} blocks found no room",
                    Bytes(report.refused_bytes)
                ),
            };
            let what = if leaves {
                "it leaves the group"
            } else {
                "the mount goes on, and takes only"
            };
            format!("{name}: {given} handed over in {took}{refused}; {what}\n")
        }
    }
}

fn ended(report: &DrainReport, leaves: bool) -> Result<()> {
    match report.state {
        DrainState::Done if report.refused_blocks > 0 => bail!(lost(report, leaves)),
        DrainState::Done => Ok(()),
        _ => bail!("stopped; run the same command again to go on"),
    }
}

/// What it means that others had no room.
pub(super) fn lost(report: &DrainReport, leaves: bool) -> String {
    let stays = match leaves {
        true => "it stays in this member's cache directory, if it has one",
        false => "the mount still has it",
    };
    format!(
        "{} in {} blocks found no room at the members that own them now; the group reads it from S3 again when it is \
         needed ({stays}: give the others more room, or start this one again with a weight)",
        Bytes(report.refused_bytes),
        report.refused_blocks
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_is_told_on_one_line() {
        let mut report = DrainReport {
            name: "serve:g/a".into(),
            state: DrainState::Done,
            seconds: 2.0,
            given_bytes: 8 << 20,
            ..DrainReport::default()
        };
        assert_eq!(
            summary(&report, true),
            "serve:g/a: 8 MiB handed over in 2.0 s; it leaves the group\n"
        );
        assert!(ended(&report, true).is_ok());
        (report.refused_blocks, report.refused_bytes) = (2, 5 << 20);
        assert!(summary(&report, false).contains("5 MiB in 2 blocks found no room; the mount"));
        let error = ended(&report, true).unwrap_err().to_string();
        assert!(error.contains("from S3 again"), "{error}");
        report.state = DrainState::Stopped;
        assert!(summary(&report, true).contains("weight again"));
        assert!(ended(&report, true).is_err());
    }
}
