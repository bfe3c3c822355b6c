//! Writes a region log to a file by a script and kills itself at a given write.
//!
//! `forebay-crash-victim FILE SEED [WRITE]`; without WRITE it lives and prints the number of writes and of
//! regions reclaimed.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use forebay_tests::disk::crash;

#[derive(Debug, Parser)]
struct Options {
    /// The file.
    file: PathBuf,
    /// Which script.
    seed: u64,
    /// Dies when this write, counted from 1, was handed to the kernel.
    write: Option<u64>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match crash::victim(&options.file, options.seed, options.write) {
        Ok((writes, stats)) => {
            let reclaimed = stats.devices.iter().map(|device| device.regions_reclaimed);
            println!("{writes} {}", reclaimed.sum::<u64>());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
