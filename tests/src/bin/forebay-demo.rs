//! The program behind `make demo`. `S3` chooses the server: none or `embedded`, `seaweedfs`, a URL.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use forebay_tests::demo::{self, Stop};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let stop = Arc::new(Stop::default());
    if let Err(error) = watch_signals(stop.clone()) {
        eprintln!("demo: cannot watch signals: {error}");
        return ExitCode::FAILURE;
    }
    let s3 = std::env::var("S3").ok();
    match demo::run(s3.as_deref(), &stop) {
        Ok(()) => {
            println!("demo: passed");
            ExitCode::SUCCESS
        }
        Err(_) if stop.requested() => {
            eprintln!("demo: interrupted; everything cleaned up");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("demo: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Turns SIGINT, SIGTERM and SIGHUP into a request to stop, on a thread of its own.
fn watch_signals(stop: Arc<Stop>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [mut interrupt, mut terminate, mut hangup] = {
        let _inside = runtime.enter();
        [signal(kinds[0])?, signal(kinds[1])?, signal(kinds[2])?]
    };
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                eprintln!("demo: stopping, cleaning up");
                stop.request();
            }
        });
    });
    Ok(())
}
