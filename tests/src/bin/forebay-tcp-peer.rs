//! A member's transport without a member: answers fetches until it is killed.
//!
//! `forebay-tcp-peer ID` prints the address on which it listens.

#![forbid(unsafe_code)]

use std::time::Duration;

use clap::Parser;
use forebay_tests::peer;

#[derive(Debug, Parser)]
struct Options {
    /// Its id.
    id: u64,
    /// The group.
    #[arg(long, default_value = "a group")]
    group: String,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match peer::serve(options.id, &options.group, Duration::ZERO)? {}
}
