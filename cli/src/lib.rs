//! Forebay's command line, as a library: the only place where adapters are chosen and wired.
//!
//! | module | holds |
//! |---|---|
//! | [`host`] | runs engine cores on threads of this machine |
//! | [`assembly`] | engine and origin put together |
//! | [`cache`] | the cache on disk: directories, locks, opening, formats, free space |
//! | [`args`] | the command line |
//! | [`commands`] | what the commands do |
//! | [`group`] | this node in a cache group |
//! | [`control`] | the control API of a mount: reports over a Unix socket |
//! | [`trace`] | a mount's accesses, for who records them |
//! | [`warm`] | `warmup`, `check`, `evict`: jobs of a mount's daemon |
//! | [`device`] | NVMe controllers and their drivers |
//! | [`doctor`] | what of a machine would hold a mount or member up |
//! | [`background`] | how `mount` goes to the background |
//! | [`mounts`] | the kernel's mount table, unmounting, who uses a mount |
//! | [`source`], [`units`] | URLs, sizes, durations and modes as people write them |
//! | [`output`], [`progress`], [`logging`] | what is printed, shown and logged |

#![forbid(unsafe_code)]

use std::process::ExitCode;

pub mod args;
pub mod assembly;
pub mod background;
pub mod cache;
pub mod commands;
pub mod control;
pub mod device;
pub mod doctor;
pub mod group;
pub mod host;
pub mod logging;
pub mod mounts;
pub mod output;
pub mod progress;
pub mod source;
pub mod trace;
pub mod units;
pub mod warm;

use args::{Cli, Command};

/// Runs the command line of this process. 0: done; 1: failed, with a message on standard error;
/// 2: the command line is wrong.
pub fn run() -> ExitCode {
    #[cfg(feature = "spdk")]
    forebay_nvme_spdk::end_at_bus_errors();
    let cli = Cli::parsed(std::env::args_os()).unwrap_or_else(|error| error.exit());
    // Commands that only ask print their own errors; a mount has a log.
    logging::start(match cli.command {
        Command::Mount(_) | Command::Serve(_) => "info",
        _ => "warn",
    });
    let told_already = match &cli.command {
        Command::Mount(args) => args.daemon,
        Command::Serve(args) => args.daemon,
        _ => false,
    };
    let outcome = match &cli.command {
        Command::Mount(args) => commands::mount::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Stop(args) => commands::stop::run(args),
        Command::Drain(args) => commands::drain::run(args),
        Command::Umount(args) => commands::umount::run(args),
        Command::Status(args) => commands::status::run(args),
        Command::Stats(args) => commands::stats::run(args),
        Command::Cat(args) => commands::cat::run(args),
        Command::Warmup(args) => commands::warmup::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Evict(args) => commands::evict::run(args),
        Command::Cache(command) => commands::cache::run(command),
        Command::Device(command) => commands::device::run(command),
        Command::Doctor(args) => commands::doctor::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !told_already {
                eprintln!("forebay: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}
