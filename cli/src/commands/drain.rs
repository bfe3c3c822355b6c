//! `forebay drain`: a member hands over what it holds, and leaves.

pub(super) mod lines;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hyper::Method;
use tokio::signal::unix::{SignalKind, signal};

use self::lines::{Goes, done_bytes, line, summary, unfinished};
use super::jobs::runtime;
use super::stop::is_named;
use super::{NotThere, choose_member_or_mount, umount};
use crate::args::DrainArgs;
use crate::control::outcome::{self, Outcome};
use crate::control::report::StatusReport;
use crate::control::sockets::checked_runtime_dir;
use crate::group::draining::{DrainReport, DrainState};
use crate::output::{json, print};
use crate::progress::Progress;
use crate::warm::asking::Daemon;
use crate::warm::following::Followed;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the command.
///
/// # Errors
/// When there is no such member, it cannot be drained, or not everything found a new owner.
pub fn run(args: &DrainArgs) -> Result<()> {
    let chosen = choose_member_or_mount(args.name.as_deref().map(Path::new));
    if args.status
        && chosen.as_ref().is_err_and(|error| error.is::<NotThere>())
        && let Some(ended) = ended_lately(args.name.as_deref())?
    {
        return tell(args, &ended, Goes::Left);
    }
    let (client, status) = chosen?;
    let member = Member::new(client.socket(), &status);
    let waits = !args.stop && !args.status && !args.background;
    let process = waits.then(|| umount::Daemon::find(client.socket()));
    let report = runtime()?.block_on(member.drain(args))?;
    if args.background && !args.json {
        let name = &member.name;
        return print(&format!(
            "{name} hands over what it has: `forebay drain --status {name}` tells how far it is, and how it ended\n"
        ))
        .map(drop);
    }
    tell(args, &report, member.goes)?;
    if !waits {
        return Ok(());
    }
    if let Some(process) = process.flatten()
        && member.goes == Goes::Leaves
        && matches!(report.state, DrainState::Done | DrainState::Ended)
    {
        // Whoever starts it again, or asks who is there, is not to find it.
        process.wait_for_end(&member.name)?;
    }
    verdict(&report, member.goes)
}

/// How the drain ended of a member of this name that runs no more; none when there is none, or more than one.
fn ended_lately(name: Option<&str>) -> Result<Option<DrainReport>> {
    let mut all = outcome::all(&checked_runtime_dir()?);
    all.retain(|ended| name.is_none_or(|name| is_named(&ended.report.name, name)));
    Ok(match all.len() {
        1 => all.pop().map(|ended| ended.report),
        _ => None,
    })
}

/// The member that is meant.
struct Member<'a> {
    daemon: Daemon,
    socket: &'a Path,
    pid: u32,
    name: String,
    goes: Goes,
}

impl<'a> Member<'a> {
    fn new(socket: &'a Path, status: &StatusReport) -> Self {
        Self {
            daemon: Daemon::new(socket),
            socket,
            pid: status.pid,
            name: status.name(),
            goes: match status.serve {
                Some(_) => Goes::Leaves,
                None => Goes::Stays,
            },
        }
    }

    /// Does what the command line says; how far the drain is then.
    async fn drain(&self, args: &DrainArgs) -> Result<DrainReport> {
        if args.stop {
            return self.ask(Method::POST, "/drain/stop").await;
        }
        if args.status {
            return self.ask(Method::GET, "/drain").await;
        }
        let report = self.ask(Method::POST, "/drain").await?;
        match args.background {
            true => Ok(report),
            false => self.follow().await,
        }
    }

    async fn ask(&self, method: Method, path: &str) -> Result<DrainReport> {
        let report = self.daemon.ask(method, path, Vec::new()).await?;
        Ok(self.named(report))
    }

    fn named(&self, report: DrainReport) -> DrainReport {
        DrainReport {
            name: self.name.clone(),
            ..report
        }
    }

    /// Shows how far it is until it is over. SIGINT and SIGTERM stop it: the member gets its weight back.
    async fn follow(&self) -> Result<DrainReport> {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
        let mut followed = Followed::new(&self.daemon).await;
        let mut progress = Progress::start();
        let mut pause = Duration::ZERO;
        let outcome = loop {
            let looked = async {
                tokio::time::sleep(pause).await;
                followed.look::<DrainReport>("/drain").await
            };
            let looked = tokio::select! {
                looked = looked => looked,
                _ = interrupt.recv() => break self.ask(Method::POST, "/drain/stop").await,
                _ = terminate.recv() => break self.ask(Method::POST, "/drain/stop").await,
            };
            match (looked, self.outcome()) {
                (Ok(Some(report)), _) if report.state != DrainState::Running => {
                    break Ok(self.named(report));
                }
                (Ok(Some(report)), _) => {
                    let report = self.named(report);
                    progress.show(done_bytes(&report), report.bytes, |rate| {
                        line(&report, rate)
                    });
                }
                (_, Some(report)) => break Ok(report),
                (Ok(None), None) => {}
                (Err(error), None) => {
                    let name = &self.name;
                    let text = format!(
                        "how the drain of {name} goes on is not known here: `forebay drain --status {name}` tells"
                    );
                    break Err(error.context(text));
                }
            }
            pause = LOOK_EVERY;
        };
        progress.end();
        outcome
    }

    /// How it ended, where its daemon has ended since it was asked last.
    fn outcome(&self) -> Option<DrainReport> {
        let Outcome { pid, report } = outcome::read(self.socket)?;
        (pid == self.pid).then_some(report)
    }
}

fn tell(args: &DrainArgs, report: &DrainReport, goes: Goes) -> Result<()> {
    let text = match args.json {
        true => json(report, true)?,
        false => summary(report, goes),
    };
    print(&text).map(drop)
}

fn verdict(report: &DrainReport, goes: Goes) -> Result<()> {
    if let Some(text) = unfinished(report, goes) {
        bail!(text);
    }
    match report.state {
        DrainState::Done => Ok(()),
        _ => bail!("stopped; run the same command again to go on"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::scripted::{Answer, Scripted};

    #[tokio::test]
    async fn a_question_that_fails_does_not_end_the_drain_that_is_followed() {
        let report = |state| {
            let report = DrainReport {
                state,
                ..DrainReport::default()
            };
            Answer::Json(serde_json::to_string(&report).unwrap())
        };
        let scripted = Scripted::start([
            Answer::Closed,
            report(DrainState::Running),
            Answer::Closed,
            report(DrainState::Done),
            Answer::Refused("it takes only"),
        ]);
        let status = StatusReport {
            serve: Some("serve:g/n".into()),
            pid: std::process::id(),
            ..StatusReport::default()
        };
        let member = Member::new(&scripted.socket, &status);
        let report = member.follow().await.unwrap();
        assert_eq!(report.state, DrainState::Done);
        assert_eq!(report.name, "serve:g/n");
        let error = format!("{:#}", member.follow().await.unwrap_err());
        assert!(error.contains("--status serve:g/n"), "{error}");
        assert!(error.contains("it takes only"), "{error}");
    }

    #[test]
    fn what_went_nowhere_and_what_was_stopped_fails() {
        let mut report = DrainReport {
            state: DrainState::Done,
            ..DrainReport::default()
        };
        assert!(verdict(&report, Goes::Leaves).is_ok());
        report.refused_blocks = 2;
        let error = verdict(&report, Goes::Leaves).unwrap_err().to_string();
        assert!(error.contains("from S3 again"), "{error}");
        for state in [DrainState::Stopped, DrainState::Ended] {
            report.state = state;
            assert!(verdict(&report, Goes::Leaves).is_err());
        }
    }
}
