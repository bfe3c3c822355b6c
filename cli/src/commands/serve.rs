//! `forebay serve`: a member of a cache group, without a mount.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use forebay_engine::client::Reply;
use forebay_engine::errors::ReadError;

use super::daemon::{End, beside, control_runtime, opening, warn_of_seeds, watch_signals};
use super::drain::lines::{Goes, unfinished};
use super::reports::DaemonReports;
use crate::args::ServeArgs;
use crate::assembly::Assembly;
use crate::background::{Caller, detach, log_path, open_log, settle_allocator, start_daemon};
use crate::cache::Cache;
use crate::cache::dirs::CacheDirs;
use crate::cache::place::Owner;
use crate::cache::running::purpose_of_member;
use crate::control::outcome::{self, Outcome};
use crate::control::report::{NamespaceCounts, StatusReport};
use crate::control::server::ControlSocket;
use crate::control::sockets::{checked_runtime_dir, is_alive, serve_name, socket_path};
use crate::group::draining::{DrainReport, DrainState};
use crate::group::routes::routes;
use crate::group::{Group, GroupPlan};
use crate::host::engine::CoreDeath;
use crate::host::run::STOP_TIMEOUT;
use crate::mounts::file_name_of;

/// Nobody reads at a member without a mount: its cores answer peers alone.
#[derive(Debug)]
pub struct NoReader;

impl Reply for NoReader {
    fn data(self, _: &[u8]) {}

    fn error(self, _: ReadError) {}
}

/// Runs the command.
///
/// # Errors
/// Why the member will not be, or how it broke.
pub fn run(args: &ServeArgs) -> Result<()> {
    if args.serving.group.no_sharing {
        bail!("a member that serves nobody is none: leave out `serve` or --no-sharing");
    }
    let name = serve_name(&args.serving.cache.node.owner());
    if args.daemon {
        let caller = Caller::Command;
        return daemon(args.clone(), &name, &caller).inspect_err(|error| caller.failed(error));
    }
    if !args.background {
        settle_allocator();
        return serve(args, &name, &Caller::Terminal);
    }
    let (path, log) = open_log(args.log_file.as_deref(), &log_name(&name))?;
    start_daemon(&path, log)
}

fn log_name(name: &str) -> String {
    format!("serve-{}", file_name_of(Path::new(name)))
}

/// Serves, away from the caller's terminal and directory.
fn daemon(mut args: ServeArgs, name: &str, caller: &Caller) -> Result<()> {
    args.serving = args.serving.absolute()?;
    args.log_file = Some(log_path(args.log_file.as_deref(), &log_name(name))?);
    detach()?;
    serve(&args, name, caller)
}

fn serve(args: &ServeArgs, name: &str, caller: &Caller) -> Result<()> {
    let serving = &args.serving;
    let plan = GroupPlan::new(&serving.group, &serving.cache.node, true)?
        .context("a member needs a group")?;
    let socket = socket_path(&checked_runtime_dir()?, Path::new(name));
    if is_alive(&socket) {
        bail!(
            "{name} runs already: `forebay stop` ends it; a second member on this machine wants its own --node-id"
        );
    }
    let control = ControlSocket::bind(&socket)?;
    outcome::remove(&socket).context("cannot remove what an earlier drain left")?;
    let mut config = serving.engine_config()?;
    config.core_death = core_death(name.to_owned(), control.path());
    let runtime = control_runtime()?;
    let (sender, ends) = mpsc::channel();
    watch_signals(&runtime, &sender)?;
    let group = Group::open(plan, config.cores.cores(), runtime.handle())?;
    let cache = open_cache(args, config.cores.cores(), &ends)?;
    let assembly = Assembly::<NoReader>::start(config, &serving.origin, cache, Some(group))?;
    check_sources(args, &assembly, &ends)?;
    beside(&ends, assembly.joining())??;
    warn_of_seeds(&assembly, &ends, caller)?;

    let sources: Vec<String> = args.sources.iter().map(ToString::to_string).collect();
    let fixed = StatusReport {
        serve: Some(name.to_owned()),
        source: sources.join(" "),
        log_file: args.log_file.clone().filter(|_| args.daemon),
        ..StatusReport::default()
    };
    let drained = move |report| drop(sender.send(End::Drained(report)));
    let reports = DaemonReports::start(fixed, &assembly, NamespaceCounts::default, drained);
    let served = {
        let _entered = runtime.enter();
        control.serve_also(reports, routes(assembly.group.clone()))?
    };
    caller.ready()?;
    tracing::info!("{name} serves");
    let end = ends
        .recv()
        .context("nothing watches for signals any more")?;
    // As it is now: the end of a drain and a signal may both be under way.
    let drain = assembly.group.as_deref().map(Group::drain_report);
    let left = leaving(name, &end, drain.unwrap_or_default(), &socket);
    let stopped = assembly.stop(STOP_TIMEOUT);
    drop(served);
    runtime.shutdown_timeout(Duration::from_millis(100));
    stopped.and(left)
}

/// Says why the member ends, and leaves how its drain ended for who asks later. An error when what it was to hand over
/// is not all handed over.
fn leaving(name: &str, end: &End, report: DrainReport, socket: &Path) -> Result<()> {
    match end {
        End::Signal(signal) => tracing::info!("{signal}: leaving the group"),
        End::Drained(report) => tracing::info!(
            given_bytes = report.given_bytes,
            refused_bytes = report.refused_bytes,
            "everything was offered to other members: leaving the group"
        ),
        End::Session(_) => {}
    }
    let report = ended(name, report);
    if report.state != DrainState::None {
        let outcome = Outcome {
            pid: std::process::id(),
            report: report.clone(),
        };
        if let Err(error) = outcome::write(socket, &outcome) {
            tracing::warn!("`forebay drain --status` will not tell how it ended: {error}");
        }
    }
    match unfinished(&report, Goes::Left) {
        Some(text) => bail!("{name}: {text}"),
        None => Ok(()),
    }
}

/// The last report of a member that ends now.
fn ended(name: &str, report: DrainReport) -> DrainReport {
    DrainReport {
        name: name.to_owned(),
        state: match report.state {
            DrainState::Running => DrainState::Ended,
            state => state,
        },
        ..report
    }
}

/// Opens the cache on disk; a disk that hangs does not keep the member from being given up.
fn open_cache(args: &ServeArgs, cores: usize, ends: &mpsc::Receiver<End>) -> Result<Option<Cache>> {
    let cache = args.serving.cache.clone();
    let owner: Owner = cache.node.owner();
    let dirs = cache.cache_dir.as_ref().map(CacheDirs::in_words);
    opening(ends, &dirs.unwrap_or_default(), move || {
        Cache::open(&cache, cores, &purpose_of_member(&owner))
    })?
}

/// Looks at each source once, so that wrong credentials are found now and by this node.
fn check_sources(
    args: &ServeArgs,
    assembly: &Assembly<NoReader>,
    ends: &mpsc::Receiver<End>,
) -> Result<()> {
    for source in &args.sources {
        let (origin, source) = (assembly.origin.clone(), source.clone());
        beside(ends, move || origin.check(&source.bucket, &source.prefix))??;
    }
    Ok(())
}

/// Ends the process when a core panics: peers go on without it.
fn core_death(name: String, socket: &Path) -> CoreDeath {
    let socket = socket.to_owned();
    Arc::new(move |message| {
        eprintln!("forebay: {message}; {name} ends");
        let _ = std::fs::remove_file(&socket);
        std::process::exit(1);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_ends_it_what_it_could_not_hand_over_fails_and_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let socket = socket_path(dir.path(), Path::new("serve:g/a"));
        let mut report = DrainReport::default();
        let signal = End::Signal("SIGTERM");
        assert!(leaving("serve:g/a", &signal, report.clone(), &socket).is_ok());
        assert_eq!(outcome::read(&socket), None);
        report.state = DrainState::Running;
        let error = leaving("serve:g/a", &signal, report.clone(), &socket).unwrap_err();
        assert!(error.to_string().contains("ended before"), "{error}");
        let noted = outcome::read(&socket).unwrap();
        assert_eq!(noted.report.state, DrainState::Ended);
        assert_eq!(noted.report.name, "serve:g/a");
        // The signal was faster than the drain's own end.
        report.state = DrainState::Done;
        assert!(leaving("serve:g/a", &signal, report.clone(), &socket).is_ok());
        report.refused_blocks = 1;
        for end in [signal, End::Drained(report.clone())] {
            let error = leaving("serve:g/a", &end, report.clone(), &socket).unwrap_err();
            assert!(error.to_string().contains("no room"), "{error}");
        }
        let noted = outcome::read(&socket).unwrap();
        assert_eq!(
            (noted.pid, noted.report.refused_blocks),
            (std::process::id(), 1)
        );
    }
}
