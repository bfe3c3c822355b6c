//! What daemons have in common: `mount`'s and `serve`'s start, and what ends them.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_engine::client::Reply;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::assembly::Assembly;
use crate::background::Caller;
use crate::cache::Cache;
use crate::group::draining::DrainReport;
use crate::group::report::GroupReport;

/// How long a signal may wait while a daemon starts.
const SIGNAL_POLL: Duration = Duration::from_millis(20);
/// Disks that do not answer for so long when they are opened are told of,
const OPEN_NOTICE: Duration = Duration::from_secs(10);
/// and after so long given up, as later are those on which no write ends.
const OPEN_MAX: Duration = Duration::from_secs(60);

/// What ends a daemon.
#[derive(Debug)]
pub enum End {
    /// A signal, by name.
    Signal(&'static str),
    /// The kernel ended the FUSE session.
    Session(std::io::Result<()>),
    /// This member has handed over what it holds.
    Drained(DrainReport),
}

/// Says which of `--peers` lead nowhere yet, that is at the end of joining, and whether this member is alone.
///
/// # Errors
/// When the daemon shall end before it has started.
pub fn warn_of_seeds<R: Reply>(
    assembly: &Assembly<R>,
    ends: &mpsc::Receiver<End>,
    caller: &Caller,
) -> Result<()> {
    for text in assembly.cache.iter().flat_map(Cache::too_large) {
        tracing::warn!("{text}");
        caller.repeat(&format!("warning: {text}"));
    }
    let report = assembly.group.as_ref().map(|group| group.report());
    for seed in report.iter().flat_map(|report| &report.seeds) {
        if let Some(error) = &seed.error {
            caller.repeat(&format!(
                "warning: --peers {}: {error}; it is looked at again and again",
                seed.seed
            ));
        }
    }
    let Some(group) = assembly.group.clone() else {
        return Ok(());
    };
    let unled = report.iter().filter_map(GroupReport::unled);
    for warning in unled.chain(group.watch_elsewhere()) {
        caller.repeat(&format!("warning: {warning}"));
    }
    if let Some(alone) = beside(ends, move || group.watch_alone())? {
        caller.repeat(&format!("warning: {alone}"));
    }
    Ok(())
}

/// The runtime of everything but data: the control socket, signals, the group.
///
/// # Errors
/// When the thread cannot be started.
pub fn control_runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(8)
        .thread_name("control")
        .enable_all()
        .build()
        .context("cannot start the control thread")
}

/// Sends what SIGTERM, SIGINT and SIGHUP mean to `ends`.
///
/// # Errors
/// When a signal cannot be handled.
pub fn watch_signals(runtime: &Runtime, ends: &mpsc::Sender<End>) -> Result<()> {
    let _entered = runtime.enter();
    let signals = [
        (SignalKind::terminate(), "SIGTERM"),
        (SignalKind::interrupt(), "SIGINT"),
        (SignalKind::hangup(), "SIGHUP"),
    ];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (kind, name) in signals {
        // Under nohup(1) the daemon outlives its terminal.
        if is_ignored(&status, kind) {
            continue;
        }
        let mut stream = signal(kind).with_context(|| format!("cannot handle {name}"))?;
        let ends = ends.clone();
        runtime.spawn(async move {
            while stream.recv().await.is_some() {
                let _ = ends.send(End::Signal(name));
            }
        });
    }
    Ok(())
}

/// Whether the caller of this program set a signal to be ignored, from `/proc/self/status`.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    mask & (1 << (kind.as_raw_value() - 1)) != 0
}

/// Does `work` on a thread of its own; what ends the daemon ends the wait for it at once.
///
/// # Errors
/// When the daemon shall end before it has started.
pub fn beside<T: Send + 'static>(
    ends: &mpsc::Receiver<End>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    beside_until(ends, |_| Ok(()), work)
}

/// Opens disks, which takes no long time: after [`OPEN_NOTICE`] the log says that they do not answer, and after [`OPEN_MAX`]
/// it is given up. The thread is left behind: the kernel may not let go of it.
///
/// # Errors
/// As [`beside`]; disks that do not answer.
pub fn opening<T: Send + 'static>(
    ends: &mpsc::Receiver<End>,
    dirs: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    opening_within(ends, dirs, (OPEN_NOTICE, OPEN_MAX), work)
}

fn opening_within<T: Send + 'static>(
    ends: &mpsc::Receiver<End>,
    dirs: &str,
    (notice, limit): (Duration, Duration),
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let mut said = false;
    let watch = move |waited: Duration| {
        if waited >= limit {
            bail!(
                "a disk of --cache-dir {dirs} does not answer within {} s: look at the kernel's log (dmesg), and leave \
                 that directory out until it is mended",
                limit.as_secs()
            );
        }
        if waited >= notice && !said {
            said = true;
            tracing::warn!("a disk of --cache-dir {dirs} does not answer yet: waiting");
        }
        Ok(())
    };
    beside_until(ends, watch, work)
}

fn beside_until<T: Send + 'static>(
    ends: &mpsc::Receiver<End>,
    mut watch: impl FnMut(Duration) -> Result<()>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let started = Instant::now();
    let (done, outcome) = mpsc::channel();
    std::thread::Builder::new()
        .name("start".into())
        .spawn(move || done.send(work()))
        .context("cannot start a thread")?;
    loop {
        let result = outcome.recv_timeout(SIGNAL_POLL);
        match ends.try_recv() {
            Ok(End::Signal(name)) => {
                bail!("{name} came before the start was over: nothing is left of it")
            }
            Ok(End::Session(_)) => bail!("the mount was taken away before it answered"),
            Ok(End::Drained(_)) | Err(_) => {}
        }
        match result {
            Ok(done) => return Ok(done),
            Err(mpsc::RecvTimeoutError::Timeout) => watch(started.elapsed())?,
            Err(error) => return Err(error).context("a thread of the start ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_does_not_answer_is_named_and_given_up() {
        let (_sender, ends) = mpsc::channel();
        let soon = (Duration::ZERO, Duration::from_millis(1));
        let (release, held) = mpsc::channel::<()>();
        let error = opening_within(&ends, "/nvme0:/nvme1", soon, move || held.recv());
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("/nvme0:/nvme1") && error.contains("dmesg"),
            "{error}"
        );
        drop(release);
        assert_eq!(opening(&ends, "/nvme0", || 7).unwrap(), 7);
    }

    #[test]
    fn ignored_signals_are_read_from_proc() {
        let status = "Name:\tx\nSigIgn:\t0000000000000001\n";
        assert!(is_ignored(status, SignalKind::hangup()));
        assert!(!is_ignored(status, SignalKind::terminate()));
        assert!(!is_ignored("", SignalKind::hangup()));
    }
}
