//! Writes a region log to a file by a script and kills itself at a given write.
//!
//! `forebay-crash-victim FILE SEED [WRITE]`; without WRITE it lives and prints the number of writes and of
//! regions reclaimed. With the feature `spdk`, FILE may be an NVMe address.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use forebay_engine::disk::DiskStats;
use forebay_tests::disk::crash;

#[derive(Debug, Parser)]
struct Options {
    /// The file, or the namespace's address.
    file: String,
    /// Which script.
    seed: u64,
    /// Dies when this write, counted from 1, was handed to the kernel.
    write: Option<u64>,
}

fn run(options: &Options) -> Result<(u64, DiskStats)> {
    #[cfg(feature = "spdk")]
    if let Ok(address) = options.file.parse() {
        let environment = forebay_nvme_spdk::Environment::start(&Default::default())?;
        let medium =
            forebay_nvme_spdk::Namespace::open(&environment, &address, &Default::default())?;
        return crash::victim(&medium, options.seed, options.write);
    }
    let medium = crash::open(Path::new(&options.file))?;
    crash::victim(&medium, options.seed, options.write)
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
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
