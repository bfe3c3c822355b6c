//! The program `forebay-perf`.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use forebay_perf::figures::Figure;
use forebay_perf::run::Run;
use forebay_perf::{interrupt, network, null_server, report, samples};

/// Measures Forebay's figures. A missed target is reported, and no failure; what could not be
/// measured is a failure.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Cmd,
    /// The page whose table is updated.
    #[arg(long, global = true, default_value = "docs/performance.md")]
    page: PathBuf,
    /// Leave the page alone.
    #[arg(long, global = true)]
    no_page: bool,
    /// Measure little, to see that a figure works: the numbers mean less, and the page is left alone.
    #[arg(long, global = true)]
    short: bool,
    /// Where files of some GiB are made, on the disk to be measured. Default: beside this program.
    #[arg(long, global = true, env = "FOREBAY_PERF_DIR")]
    dir: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Cmd {
    /// Measures one figure; the last line is `NAME measured target ok|short`.
    Figure {
        /// The figure's name; a wrong one lists all.
        name: String,
    },
    /// Measures all figures, and ends with all their lines.
    Figures,
    /// The peer that tcp-1m and tcp-4k fetch from, until it is killed.
    #[command(hide = true)]
    TcpPeer,
    /// Blocks over verbs, written by their owner and read by who asks, in turns: the experiment behind decision 25.
    ReadOrWrite {
        /// The RDMA device.
        #[arg(long, env = "FOREBAY_RDMA_DEVICE")]
        device: String,
        /// Its port.
        #[arg(long, env = "FOREBAY_RDMA_PORT", default_value_t = 1)]
        rdma_port: u8,
        /// The entry of the port's table of GIDs.
        #[arg(long, env = "FOREBAY_RDMA_GID_INDEX", default_value_t = 1)]
        gid_index: u8,
        /// Bytes of a block.
        #[arg(long, default_value_t = 1 << 20)]
        block_bytes: usize,
        /// Blocks under way.
        #[arg(long, default_value_t = 8)]
        depth: usize,
        /// Seconds of each turn.
        #[arg(long, default_value_t = 2)]
        seconds: u64,
        /// Turns of each.
        #[arg(long, default_value_t = 5)]
        turns: usize,
    },
    /// The yardstick of fuse-null, until it is unmounted.
    #[command(hide = true)]
    NullServer {
        /// The mount point.
        point: PathBuf,
        /// The size of its file.
        size_bytes: u64,
    },
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(_) if interrupt::came() => {
            eprintln!("forebay-perf: interrupted; everything cleaned up");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("forebay-perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything was measured.
fn run(args: &Args) -> Result<bool> {
    // The hidden ones are ended by whoever started them.
    if matches!(args.command, Cmd::Figure { .. } | Cmd::Figures) {
        interrupt::watch().context("cannot watch for signals")?;
    }
    match &args.command {
        Cmd::Figure { name } => {
            println!("{}", measure(Figure::by_name(name)?, args)?);
            Ok(true)
        }
        Cmd::Figures => {
            // One figure's trouble does not hide the others.
            let lines: Vec<Result<String>> = Figure::ALL
                .into_iter()
                .take_while(|_| !interrupt::came())
                .map(|figure| measure(figure, args))
                .collect();
            interrupt::check()?;
            println!();
            for (figure, line) in Figure::ALL.into_iter().zip(&lines) {
                match line {
                    Ok(line) => println!("{line}"),
                    Err(error) => println!("{} not measured: {error:#}", figure.name()),
                }
            }
            Ok(lines.iter().all(Result::is_ok))
        }
        Cmd::TcpPeer => {
            network::ours::peer()?;
            Ok(true)
        }
        Cmd::ReadOrWrite {
            device,
            rdma_port,
            gid_index,
            block_bytes,
            depth,
            seconds,
            turns,
        } => {
            let place = network::read_or_write::Place {
                device: device.clone(),
                port: *rdma_port,
                gid_index: *gid_index,
            };
            let load = network::ours::Load {
                len_bytes: *block_bytes,
                depth: *depth,
                span: Duration::from_secs(*seconds),
            };
            for _ in 0..*turns {
                network::read_or_write::turn(&place, &load)?;
            }
            Ok(true)
        }
        Cmd::NullServer { point, size_bytes } => {
            null_server::serve(point, *size_bytes).map(|()| true)
        }
    }
}

fn measure(figure: Figure, args: &Args) -> Result<String> {
    let run = Run {
        short: args.short,
        dir: match &args.dir {
            Some(dir) => dir.clone(),
            None => beside_this_program()?,
        },
    };
    let mark = if run.short {
        "SHORT RUN, no measurement: "
    } else {
        ""
    };
    ensure!(
        !run.short || figure.has_short_run(),
        "{} has no short run",
        figure.name()
    );
    println!("{mark}{}:", figure.name());
    let parts = figure.measure(&run)?;
    for part in &parts {
        println!("  {}: {}", part.name, part.detail);
    }
    if !args.no_page && !run.short {
        report::update(&args.page, figure.name(), &parts)?;
    }
    Ok(format!(
        "{mark}{}",
        samples::closing_line(figure.name(), &parts)
    ))
}

fn beside_this_program() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let dir = own.parent().context("this program lies in no directory")?;
    Ok(dir.join("figures"))
}
