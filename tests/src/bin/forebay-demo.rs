//! The program behind `make demo`. `S3` chooses the server: none or `embedded`, `seaweedfs`, a URL.

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use clap::Parser;
use forebay_tests::demo::{self, Form, Rdma, Stop};
use tokio::signal::unix::{SignalKind, signal};

/// A real bucket behind a cache of three members and a client, every byte compared.
#[derive(Parser)]
struct Args {
    /// A bucket of some megabytes instead of some hundred
    #[arg(long)]
    small: bool,
    /// How members and client speak
    #[arg(long, value_parser = ["tcp", "rdma"], default_value = "tcp")]
    transport: String,
    /// With --transport rdma: an address of this machine that an RDMA port has
    #[arg(long, value_name = "IP", required_if_eq("transport", "rdma"))]
    group_ip: Option<IpAddr>,
    /// With --transport rdma: use this device
    #[arg(long, value_name = "NAME")]
    rdma_device: Option<String>,
}

impl Args {
    fn form(self) -> Form {
        let by_rdma = self.group_ip.filter(|_| self.transport == "rdma");
        Form {
            s3: std::env::var("S3").ok(),
            small: self.small,
            rdma: by_rdma.map(|group_ip| Rdma {
                group_ip,
                device: self.rdma_device,
            }),
        }
    }
}

fn main() -> ExitCode {
    let form = Args::parse().form();
    let stop = Arc::new(Stop::default());
    if let Err(error) = watch_signals(stop.clone()) {
        eprintln!("demo: cannot watch signals: {error}");
        return ExitCode::FAILURE;
    }
    match demo::run(&form, &stop) {
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
