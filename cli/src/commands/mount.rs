//! `forebay mount`: checks, goes to the background, serves, ends in order.

mod options;
mod place_lock;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use forebay_engine::client::Client;
use forebay_fuse::{FuseReply, MountHandle};

use self::place_lock::PlaceLock;
use super::daemon::{End, beside, control_runtime, opening, warn_of_seeds, watch_signals};
use super::drain::lines::{Goes, lost, unfinished};
use super::reports::{DaemonReports, namespace_counts};
use super::umount::{clean_up, how_to_end};
use crate::args::MountArgs;
use crate::assembly::Assembly;
use crate::background::{Caller, detach, log_path, open_log, settle_allocator, start_daemon};
use crate::cache::Cache;
use crate::cache::dirs::CacheDirs;
use crate::cache::running::purpose_of_mount;
use crate::control::client::peer_pid;
use crate::control::report::StatusReport;
use crate::control::server::ControlSocket;
use crate::control::sockets::{checked_runtime_dir, is_alive, socket_path};
use crate::group::draining::{DrainReport, DrainState};
use crate::group::{Group, GroupPlan};
use crate::host::EngineConfig;
use crate::host::engine::CoreDeath;
use crate::host::run::STOP_TIMEOUT;
use crate::mounts::{self, Detach, PlaceState};
use crate::warm::engine::MountEngine;
use crate::warm::jobs::{Jobs, Mounted};
use crate::warm::routes::routes;

/// How long a new mount may take to answer its first request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long readers may finish on their own once the mount shall end.
const GRACE: Duration = Duration::from_secs(1);
/// How long they may take to close their files after their reads were answered with EIO.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a killed daemon's connection may stay open after its control socket.
const DYING_TIMEOUT: Duration = Duration::from_secs(1);
/// How long taking the mount away may take when a core has died.
const DEATH_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs the command.
///
/// # Errors
/// Why the mount will not be, or how it broke.
pub fn run(args: &MountArgs) -> Result<()> {
    let mut args = args.clone();
    options::apply(&mut args)?;
    if args.daemon {
        let caller = Caller::Command;
        return daemon(args, &caller).inspect_err(|error| caller.failed(error));
    }
    if args.foreground {
        settle_allocator();
        return serve(&args, &Caller::Terminal);
    }
    let place = mounts::spelled(&args.mount_point)?;
    check_place(&place)?;
    let (path, log) = open_log(args.log_file.as_deref(), &mounts::file_name_of(&place))?;
    start_daemon(&path, log)
}

/// Serves, away from the caller's terminal and directory.
fn daemon(mut args: MountArgs, caller: &Caller) -> Result<()> {
    args.mount_point = mounts::spelled(&args.mount_point)?;
    args.serving = args.serving.absolute()?;
    args.log_file = Some(log_path(
        args.log_file.as_deref(),
        &mounts::file_name_of(&args.mount_point),
    )?);
    detach()?;
    serve(&args, caller)
}

fn serve(args: &MountArgs, caller: &Caller) -> Result<()> {
    let place = mounts::spelled(&args.mount_point)?;
    check_fuse()?;
    let dir = checked_runtime_dir()?;
    let lock = PlaceLock::take(&dir, &place)?;
    clear_place(&place, caller)?;
    let control = ControlSocket::bind(&socket_path(&dir, &place))?;
    let mounted = Arc::new(OnceLock::new());
    let serving = &args.serving;
    let mut config = serving.engine_config()?;
    config.core_death = core_death(place.clone(), control.path().to_owned(), mounted.clone());

    let plan = GroupPlan::new(&serving.group, &serving.cache.node, false)?;
    let runtime = control_runtime()?;
    let (sender, ends) = mpsc::channel();
    watch_signals(&runtime, &sender)?;
    let group = plan.map(|plan| Group::open(plan, config.cores.cores(), runtime.handle()));
    let group = group.transpose()?;
    let cache = open_cache(args, &place, &config, &ends)?;
    let assembly = Assembly::<FuseReply>::start(config, &serving.origin, cache, group)?;
    check_source(args, &assembly, &ends, caller)?;
    beside(&ends, assembly.joining())??;
    warn_of_seeds(&assembly, &ends, caller)?;

    let client = assembly.engine.client();
    let fuse = options::fuse_options(args, assembly.engine.config());
    let handle = forebay_fuse::mount(
        client.clone(),
        assembly.bucket(&args.source.bucket),
        &args.source.prefix,
        &place,
        &fuse,
    )
    .with_context(|| format!("cannot mount {} at {}", args.source, place.display()))?;
    let handle = Arc::new(handle);
    let _ = mounted.set(());
    drop(lock);
    watch_session(&handle, sender)?;
    let served = answers(&place, &ends).and_then(|()| {
        let namespace = handle.namespace().clone();
        let fixed = StatusReport {
            mount_point: place.clone(),
            source: args.source.to_string(),
            log_file: args.log_file.clone().filter(|_| args.daemon),
            ..StatusReport::default()
        };
        let counts = move || namespace_counts(&namespace);
        let reports = DaemonReports::start(fixed, &assembly, counts, drained);
        let _entered = runtime.enter();
        let jobs = jobs(&args.source.bucket, &place, &assembly, &handle);
        let drains = crate::group::routes::routes(assembly.group.clone());
        let more = routes(jobs).merge(drains);
        let more = more.merge(crate::trace::routes::routes(handle.accesses().clone()));
        let serving = control.serve_also(reports, more)?;
        caller.ready()?;
        Ok(serving)
    });
    let served = served.inspect_err(|_| unmount(&handle))?;
    tracing::info!("{} is mounted at {}", args.source, place.display());

    let end = ends.recv().context("nothing watches the mount any more")?;
    let outcome = finish(end, &handle, &client, assembly.group.as_deref());
    let stopped = assembly.stop(STOP_TIMEOUT);
    drop(served);
    runtime.shutdown_timeout(Duration::from_millis(100));
    outcome.and(stopped)
}

/// Looks at the source once, so that wrong credentials and typing errors are found now.
fn check_source(
    args: &MountArgs,
    assembly: &Assembly<FuseReply>,
    ends: &mpsc::Receiver<End>,
    caller: &Caller,
) -> Result<()> {
    let (origin, source) = (assembly.origin.clone(), args.source.clone());
    let has_keys = beside(ends, move || {
        origin.has_keys(&source.bucket, &source.prefix)
    })??;
    if !has_keys && !args.source.prefix.is_empty() {
        let text = format!(
            "no object is below {}: is the prefix right? The mount is empty until there is one",
            args.source
        );
        tracing::warn!("{text}");
        caller.repeat(&format!("warning: {text}"));
    }
    Ok(())
}

/// The mount ends in the midst of a drain: what is left is said.
fn warn_of_drain(group: Option<&Group>) {
    let report = group.map(Group::drain_report).unwrap_or_default();
    if report.state == DrainState::Running
        && let Some(text) = unfinished(&report, Goes::Left)
    {
        tracing::warn!("{text}");
    }
}

/// Takes away what a killed daemon has left.
fn clear_place(place: &Path, caller: &Caller) -> Result<()> {
    if let PlaceState::Dead(_) = check_place(place)? {
        clean_up(place)?;
        caller.note(&format!(
            "cleaned up the mount that a killed daemon had left at {}",
            place.display()
        ));
        check_place(place)?;
    }
    Ok(())
}

/// The mount goes on without a share.
fn drained(report: DrainReport) {
    match report.refused_blocks {
        0 => tracing::info!(
            given_bytes = report.given_bytes,
            "everything was handed over: from now on this mount only takes"
        ),
        _ => tracing::warn!("{}", lost(&report, Goes::Stays)),
    }
}

/// The jobs of the mount: warm-ups, checks, evictions.
fn jobs(
    bucket: &str,
    place: &Path,
    assembly: &Assembly<FuseReply>,
    handle: &Arc<MountHandle<FuseReply>>,
) -> Arc<Jobs> {
    let pages = handle.pages();
    Jobs::new(Mounted {
        mount_point: place.display().to_string(),
        engine: MountEngine::new(assembly.engine.client(), assembly.bucket(bucket)),
        root: handle.namespace().root(),
        namespace: handle.namespace().clone(),
        forget_pages: Arc::new(move |object| pages.forget(object)),
    })
}

/// Opens the cache on disk; a disk that hangs does not keep the mount from being given up.
fn open_cache(
    args: &MountArgs,
    place: &Path,
    config: &EngineConfig,
    ends: &mpsc::Receiver<End>,
) -> Result<Option<Cache>> {
    let (cache, cores) = (args.serving.cache.clone(), config.cores.cores());
    let place = place.to_owned();
    let dirs = cache.cache_dir.as_ref().map(CacheDirs::in_words);
    opening(ends, &dirs.unwrap_or_default(), move || {
        if let Some(dirs) = &cache.cache_dir {
            dirs.check_apart_from(&place)?;
        }
        Cache::open(&cache, cores, &purpose_of_mount(&place))
    })?
}

/// Ends the mount in bounded time, whatever its users do.
fn finish(
    end: End,
    handle: &MountHandle<FuseReply>,
    client: &Client<FuseReply>,
    group: Option<&Group>,
) -> Result<()> {
    warn_of_drain(group);
    let name = match end {
        End::Session(result) => {
            tracing::info!("unmounted");
            return result.context("the FUSE session broke");
        }
        End::Signal(name) => name,
        End::Drained(_) => return Ok(()),
    };
    tracing::info!("{name}: ending the mount");
    unmount(handle);
    if handle.wait_timeout(GRACE).is_none() {
        // Files are still open: their readers get what waits as EIO, then close.
        client.shutdown();
        if handle.wait_timeout(CLOSE_TIMEOUT).is_none() {
            tracing::warn!("files are still open; their next use fails with ENOTCONN");
        }
    }
    Ok(())
}

fn unmount(handle: &MountHandle<FuseReply>) {
    let outcome = handle.unmount(false).or_else(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => {
            tracing::info!("files are open: the mount is taken away lazily");
            handle.unmount(true)
        }
        _ => Err(error),
    });
    if let Err(error) = outcome {
        tracing::error!("cannot unmount {}: {error}", handle.path().display());
    }
}

/// Refuses a place where no mount can be, with what to do about it.
fn check_place(place: &Path) -> Result<PlaceState> {
    let deadline = Instant::now() + DYING_TIMEOUT;
    let socket = socket_path(&checked_runtime_dir()?, place);
    let mut state = mounts::place_state(place)?;
    // A daemon that was killed just now: its socket is closed, its connection not yet.
    while matches!(&state, PlaceState::Busy(entry) if entry.is_forebay())
        && !is_alive(&socket)
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(20));
        state = mounts::place_state(place)?;
    }
    match state {
        PlaceState::Busy(entry) => bail!(
            "mount point {} is busy: {} ({}) is mounted there; unmount it, or choose another directory",
            place.display(),
            entry.source,
            entry.kind
        ),
        PlaceState::Hangs(entry) if entry.is_forebay() => bail!(
            "mount point {} is busy: {} is mounted there and does not answer: {}",
            place.display(),
            entry.source,
            how_to_end(place, peer_pid(&socket))
        ),
        PlaceState::Hangs(entry) => bail!(
            "mount point {} is busy: {} ({}), which does not answer, is mounted there; choose another directory",
            place.display(),
            entry.source,
            entry.kind
        ),
        PlaceState::Dead(entry) if !entry.is_forebay() => bail!(
            "mount point {} is busy: {} ({}), whose daemon is gone, is mounted there; clean it up with \
             `umount -l`, or choose another directory",
            place.display(),
            entry.source,
            entry.kind
        ),
        state => Ok(state),
    }
}

fn check_fuse() -> Result<()> {
    if !Path::new("/dev/fuse").exists() {
        bail!(
            "/dev/fuse is missing: load the module (`modprobe fuse`), or give the container the device"
        );
    }
    let on_path = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
    };
    if !rustix::process::geteuid().is_root() && !on_path("fusermount3") {
        bail!(
            "fusermount3 is missing, which users other than root need to mount: install the package fuse3"
        );
    }
    Ok(())
}

/// Ends the process when a core panics: its readers would wait for ever. The mount is taken away
/// first, so that nobody is left with a dead one.
fn core_death(place: PathBuf, socket: PathBuf, mounted: Arc<OnceLock<()>>) -> CoreDeath {
    Arc::new(move |message| {
        eprintln!("forebay: {message}; the mount at {} ends", place.display());
        if mounted.get().is_some() {
            let (done, outcome) = mpsc::channel();
            let place = place.clone();
            std::thread::spawn(move || {
                let _ = done.send(mounts::unmount(&place, Detach::Lazily));
            });
            let _ = outcome.recv_timeout(DEATH_TIMEOUT);
        }
        let _ = std::fs::remove_file(&socket);
        std::process::exit(1);
    })
}

fn watch_session(handle: &Arc<MountHandle<FuseReply>>, ends: mpsc::Sender<End>) -> Result<()> {
    let handle = handle.clone();
    std::thread::Builder::new()
        .name("session-end".into())
        .spawn(move || {
            let _ = ends.send(End::Session(handle.wait()));
        })
        .map(drop)
        .context("cannot start a thread")
}

/// Waits until the mount answers.
fn answers(place: &Path, ends: &mpsc::Receiver<End>) -> Result<()> {
    let path = place.to_owned();
    let looked = beside(ends, move || {
        mounts::within(ANSWER_TIMEOUT, move || std::fs::metadata(&path))
    })?;
    match looked {
        Some(result) => result
            .map(drop)
            .with_context(|| format!("the mount at {} does not work", place.display())),
        None => Err(anyhow!(
            "the mount at {} does not answer within {} s",
            place.display(),
            ANSWER_TIMEOUT.as_secs()
        )),
    }
}
