//! The program `forebay-perf`.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use forebay_perf::ab::{self, AbArgs};
use forebay_perf::figures::Figure;
use forebay_perf::html::{self, ReportArgs};
use forebay_perf::network::node::{self, Poll, Way};
use forebay_perf::network::ours::{self, Load};
use forebay_perf::network::port::PortArgs;
use forebay_perf::network::read_or_write;
use forebay_perf::outcome::{self, Outcome};
use forebay_perf::paths::Path as PinnedPath;
use forebay_perf::paths::command::{self, CountArgs};
use forebay_perf::patterns::tensors;
use forebay_perf::peers::Peer;
use forebay_perf::plan::{MeasureArgs, Plan};
use forebay_perf::run::{Nvme, Rdma, Run};
use forebay_perf::scenario::Scenario;
use forebay_perf::simulate::command::{self as simulation, SimulateArgs};
use forebay_perf::sweep::{self, SweepArgs};
use forebay_perf::trace::command::{self as traces, TraceCmd};
use forebay_perf::trace::record::Options as RecordOptions;
use forebay_perf::{cpus, guest, interrupt, null_server, report, samples};
use forebay_perf::{session, sides, table};

/// Measures Forebay: `run` a scenario, or a figure with its target. A missed target is reported, and no failure; what could
/// not be measured is a failure.
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
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    nvme: Nvme,
    /// The folder that holds perftest.
    #[arg(long, global = true, hide = true)]
    perftest: Option<PathBuf>,
    /// Where what was measured is put for whoever booted the guest.
    #[arg(long, global = true, hide = true)]
    parts: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Cmd {
    /// Measures a scenario: `run fuse:block=1MiB,depth=8,tier=memory`. `list` shows all.
    Run {
        /// The layer or pattern, and its settings; what is left out has its default.
        scenario: String,
        #[command(flatten)]
        measure: MeasureArgs,
    },
    /// Measures a scenario and the same work by public tools, in turns: `compare rclone,s3fs epoch:files=20000`. Or two outcomes
    /// of earlier runs: `compare a.json b.json`.
    Compare {
        /// fio, spdk, iperf3, ucx, rclone, s3fs, mount-s3, local; several with commas between. Or an outcome's file.
        peers: String,
        /// The layer or pattern, and its settings. Or the other outcome's file.
        scenario: String,
        #[command(flatten)]
        measure: MeasureArgs,
    },
    /// Counts the instructions of pinned hot paths with valgrind, and whose they are: `count hit-4k --functions`. Times of a
    /// machine have moods, these have not.
    Count(CountArgs),
    /// A mount's accesses: recorded, replayed against any configuration, shown.
    #[command(subcommand)]
    Trace(TraceCmd<MeasureArgs>),
    /// How a group of 8 to 1,000 nodes would do: the engine on virtual time, at costs that are measured here first.
    Simulate(SimulateArgs),
    /// Compares two builds: instructions of pinned paths (over 3 % more is a failure), and times in turns, which are told. `ab HEAD^`
    /// compares the commit before with this program; what it needs is built in target/ab.
    Ab(AbArgs),
    /// Does one pinned path so often, to be looked at with a profiler.
    #[command(hide = true)]
    Path {
        /// Its name.
        name: String,
        /// How often.
        #[arg(long)]
        operations: u64,
    },
    /// Measures a scenario at several values of one setting, or of two, in turns: `sweep engine --over depth=1,2,4`. Shows how it
    /// scales against the first.
    Sweep(SweepArgs),
    /// Writes one page of HTML with charts of outcomes: `report a.json b.json -o page.html`. It needs nothing beside itself.
    Report(ReportArgs),
    /// Shows all scenarios with their settings.
    List,
    /// Measures one figure; the last line is `NAME measured target ok|short`.
    Figure {
        /// The figure's name; a wrong one lists all.
        name: String,
    },
    /// Measures all figures, and ends with all their lines.
    Figures,
    /// The peer that tcp-* and rdma-* fetch from, until it is killed.
    #[command(hide = true)]
    Peer {
        /// Where it listens.
        #[arg(long)]
        listen: IpAddr,
        /// When its thread sleeps.
        #[arg(long, value_enum)]
        poll: Poll,
        /// The processor of its thread.
        #[arg(long)]
        cpu: Option<usize>,
    },
    /// Fetches from a peer for a while and tells how fast, to be looked at with a profiler: over RDMA with --device.
    #[command(hide = true)]
    Fetch {
        /// Bytes of one fetch.
        len_bytes: usize,
        /// Fetches under way.
        depth: usize,
        /// For so long.
        seconds: u64,
        /// When threads sleep.
        #[arg(long, value_enum, default_value = "auto")]
        poll: Poll,
    },
    /// Blocks over verbs, written by their owner and read by who asks, in turns: the experiment behind decision 25.
    ReadOrWrite {
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
    /// One process of a safetensors scenario.
    #[command(hide = true)]
    ReadTensors {
        /// What it maps.
        file: PathBuf,
        /// Into how many ranges that is cut.
        tensors: u64,
        /// In which order they are read.
        seed: u64,
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

impl Cmd {
    /// Whether a signal asks it to clean up: all that may leave something. Children are ended by whoever started them.
    fn watches(&self) -> bool {
        !matches!(
            self,
            Cmd::List
                | Cmd::Report(_)
                | Cmd::Path { .. }
                | Cmd::Peer { .. }
                | Cmd::ReadTensors { .. }
                | Cmd::NullServer { .. }
        )
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if interrupt::came() => {
            match error.to_string().contains(session::NOT_ENDED) {
                true => eprintln!("forebay-perf: {error:#}"),
                false => eprintln!("forebay-perf: interrupted; everything cleaned up"),
            }
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
    if args.command.watches() {
        interrupt::watch().context("cannot watch for signals")?;
    }
    match &args.command {
        Cmd::List => {
            print!("{}", table::list());
            Ok(true)
        }
        Cmd::Sweep(sweep) => sweep::sweep(sweep, place(args)?),
        Cmd::Report(report) => html::report(report).map(|()| true),
        Cmd::Ab(ab) => ab::compare(ab, &place(args)?),
        Cmd::Count(count) => command::count(count, place(args)?.scratch_anywhere()?.path()),
        Cmd::Run { scenario, measure } => measure_scenario(scenario, args, measure),
        Cmd::Trace(command) => trace(command, args),
        Cmd::Simulate(simulate) => {
            simulation::simulate(simulate, &short_plan(args, simulate.seed())?)?;
            Ok(true)
        }
        Cmd::Compare {
            peers,
            scenario,
            measure,
        } => compare(peers, scenario, &measure.plan(place(args)?), measure),
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
        other => hidden(other, args),
    }
}

fn measure_scenario(scenario: &str, args: &Args, measure: &MeasureArgs) -> Result<bool> {
    let scenario: Scenario = scenario.parse()?;
    let plan = measure.plan(place(args)?);
    let sides = vec![sides::forebay(&scenario, &plan)?];
    conclude(&session::run(&scenario, sides, &plan)?, measure)?;
    Ok(true)
}

fn trace(command: &TraceCmd<MeasureArgs>, args: &Args) -> Result<bool> {
    match command {
        TraceCmd::Record {
            mount_point,
            output,
            span,
            names,
        } => {
            let options = RecordOptions {
                mount_point: mount_point.clone(),
                output: output.clone(),
                names: *names,
            };
            traces::record(&options, *span)?;
        }
        TraceCmd::Show { file, records } => traces::show(file, *records)?,
        TraceCmd::Replay {
            file,
            settings,
            measure,
        } => {
            let scenario = traces::scenario(file, settings.as_deref())?;
            return measure_scenario(&scenario, args, measure);
        }
    }
    Ok(true)
}

/// What figures run, and what is run to look closer.
fn hidden(command: &Cmd, args: &Args) -> Result<bool> {
    let load = |len_bytes: usize, depth: usize, seconds: u64| Load {
        len_bytes,
        depth,
        span: Duration::from_secs(seconds),
    };
    match command {
        Cmd::Figure { .. }
        | Cmd::Figures
        | Cmd::Run { .. }
        | Cmd::Compare { .. }
        | Cmd::Trace(_)
        | Cmd::Simulate(_)
        | Cmd::Ab(_)
        | Cmd::Count(_)
        | Cmd::Sweep(_)
        | Cmd::Report(_)
        | Cmd::List => {}
        Cmd::Path { name, operations } => {
            let dir = place(args)?.scratch_anywhere()?;
            PinnedPath::by_name(name)?.walk(*operations, dir.path())?;
        }
        Cmd::ReadTensors {
            file,
            tensors,
            seed,
        } => tensors::process(file, *tensors, *seed)?,
        Cmd::Peer { listen, poll, cpu } => {
            node::peer(*listen, args.port.port()?.as_ref(), *poll, *cpu)?;
        }
        Cmd::Fetch {
            len_bytes,
            depth,
            seconds,
            poll,
        } => {
            let rdma = args.port.port()?;
            let listen = rdma.as_ref().map(|port| port.ip);
            let way = Way {
                listen: listen.unwrap_or(Ipv4Addr::LOCALHOST.into()),
                rdma,
                namespace: None,
                poll: *poll,
                cpus: Some(cpus::two()?),
            };
            let done = ours::run(&way, &load(*len_bytes, *depth, *seconds))?.measured;
            let p50 = done
                .p50_us
                .map_or(String::new(), |us| format!(", {us:.0} us"));
            println!(
                "{:.0} /s, {:.1} MiB/s{p50}",
                done.iops(),
                done.mib_per_second()
            );
        }
        Cmd::ReadOrWrite {
            block_bytes,
            depth,
            seconds,
            turns,
        } => {
            let port = args.port.port()?.context("--device names no device")?;
            let place = read_or_write::Place::new(&port, None);
            for _ in 0..*turns {
                read_or_write::turn(&place, &load(*block_bytes, *depth, *seconds))?;
            }
        }
        Cmd::NullServer { point, size_bytes } => null_server::serve(point, *size_bytes)?,
    }
    Ok(true)
}

/// Where things are measured, as the command line says.
fn place(args: &Args) -> Result<Run> {
    Ok(Run {
        short: args.short,
        dir: match &args.dir {
            Some(dir) => dir.clone(),
            None => beside_this_program()?,
        },
        rdma: Rdma {
            port: args.port.port()?,
            perftest: args.perftest.clone(),
        },
        nvme: args.nvme.clone(),
    })
}

/// What the costs of a simulation are measured by.
fn short_plan(args: &Args, seed: u64) -> Result<Plan> {
    Ok(Plan {
        run: place(args)?,
        repeats: 3,
        span: Duration::from_millis(500),
        warm_up: Duration::from_millis(200),
        seed,
        ceilings: false,
    })
}

/// Forebay and its peers in turns, or two outcomes.
fn compare(peers: &str, scenario: &str, plan: &Plan, measure: &MeasureArgs) -> Result<bool> {
    let files = [peers, scenario].map(Path::new);
    if files
        .iter()
        .all(|file| file.extension().is_some_and(|ending| ending == "json"))
    {
        let [first, second] = files.map(Outcome::read);
        conclude(&outcome::side_by_side(&first?, &second?)?, measure)?;
        return Ok(true);
    }
    let scenario: Scenario = scenario.parse()?;
    let mut all = vec![sides::forebay(&scenario, plan)?];
    let mut missing = Vec::new();
    for (place, name) in peers.split(',').enumerate() {
        let peer = Peer::by_name(name)?;
        ensure!(
            !peers.split(',').take(place).any(|before| before == name),
            "{name} is named twice: its verdicts could not be told apart"
        );
        let side = peer.side(&scenario, plan)?;
        match peer.is_here() {
            true => all.push(side),
            false => missing.push(name),
        }
    }
    for name in &missing {
        println!("MISSING: {name} is not on the path: not compared with it");
    }
    ensure!(
        all.len() > 1,
        "nobody to compare with: {} of {} missing",
        missing.len(),
        missing.len()
    );
    let mut outcome = session::run_without_the_failed(&scenario, all, plan)?;
    if !missing.is_empty() {
        let names = missing.join(", ");
        outcome
            .notes
            .push(format!("{} of the peers missing: {names}", missing.len()));
    }
    conclude(&outcome, measure)?;
    Ok(outcome.failed.is_empty())
}

/// Shows an outcome, and writes it where that was wanted.
fn conclude(outcome: &Outcome, measure: &MeasureArgs) -> Result<()> {
    // First what was measured: a path that cannot be written must not lose it.
    print!("{}", table::outcome(outcome));
    match &measure.json {
        Some(path) => outcome.write(path),
        None => Ok(()),
    }
}

fn measure(figure: Figure, args: &Args) -> Result<String> {
    let run = place(args)?;
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
    if let Some(why) = figure.skipped() {
        println!("SKIPPED: {}: {why}", figure.name());
        return Ok(format!("{} SKIPPED", figure.name()));
    }
    println!("{mark}{}:", figure.name());
    let parts = figure.measure(&run)?;
    if let Some(path) = &args.parts {
        // Who booted the guest tells of them.
        guest::write(path, &parts)?;
        return Ok(format!("{mark}{}: measured", figure.name()));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_may_leave_something_watches_for_signals() {
        for (words, watches) in [
            ("run device", true),
            ("compare local epoch", true),
            ("figure engine-4k", true),
            ("figures", true),
            ("trace record /mnt -o file --for 1s", true),
            ("simulate --nodes 8", true),
            ("count hit-4k", true),
            ("ab HEAD^ .", true),
            ("path hit-4k --operations 1", false),
            ("fetch 4096 1 1", true),
            ("read-or-write", true),
            ("sweep device --over depth=1,2", true),
            ("report a.json -o page.html", false),
            ("list", false),
            ("peer --listen 127.0.0.1 --poll auto", false),
            ("read-tensors file 1 1", false),
            ("null-server point 1", false),
        ] {
            let words = std::iter::once("forebay-perf").chain(words.split(' '));
            let args = Args::try_parse_from(words).expect("it is a command line");
            assert_eq!(args.command.watches(), watches);
        }
    }
}
