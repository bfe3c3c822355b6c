//! Signals: the first one asks for an early end, so that mounts, members and files are gone when the program ends.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::signal::unix::{SignalKind, signal};

static SIGNALS: AtomicU32 = AtomicU32::new(0);
const LOOK: Duration = Duration::from_millis(100);

/// Watches for SIGINT, SIGTERM and SIGHUP on a thread of its own. A second signal ends the program at once.
///
/// # Errors
/// When signals cannot be watched.
pub fn watch() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let [mut interrupt, mut terminate, mut hangup] = {
        let _inside = runtime.enter();
        [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                        _ = hangup.recv() => {}
                    }
                    if SIGNALS.fetch_add(1, Relaxed) > 0 {
                        std::process::exit(130);
                    }
                    eprintln!("forebay-perf: stopping, cleaning up (again: at once)");
                }
            });
        })?;
    Ok(())
}

/// Whether a signal came.
pub fn came() -> bool {
    SIGNALS.load(Relaxed) > 0
}

/// Whatever takes long asks this now and then.
///
/// # Errors
/// When a signal came.
pub fn check() -> Result<()> {
    ensure!(!came(), "interrupted");
    Ok(())
}

/// Sleeps, unless a signal comes.
///
/// # Errors
/// When a signal came.
pub fn sleep(span: Duration) -> Result<()> {
    let end = Instant::now() + span;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK));
    }
}

/// Waits until `condition` gives something.
///
/// # Errors
/// When that takes longer than `most` (`what` was waited for), a signal comes, or `condition` fails.
pub fn until<T>(
    what: &str,
    most: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + most;
    loop {
        if let Some(found) = condition()? {
            return Ok(found);
        }
        ensure!(Instant::now() < end, "not within {most:?}: {what}");
        sleep(Duration::from_millis(20))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_with_what_they_wait_for_or_say_what_it_was() {
        let mut left = 3;
        let found = until("nothing left", Duration::from_secs(5), || {
            left -= 1;
            Ok((left == 0).then_some("done"))
        });
        assert_eq!(found.expect("it comes"), "done");
        let late = until::<()>("the moon", Duration::from_millis(50), || Ok(None));
        let late = late.expect_err("it never comes").to_string();
        assert!(late.contains("the moon"), "{late}");
    }
}
