//! `tcp-1m` and `tcp-4k`: fetches from another process by `transport-tcp`, against iperf3 and ucx_perftest.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::network::node::{Poll, Way};
use crate::network::ours::{self, Load};
use crate::network::ucx::Test;
use crate::network::{iperf3, ucx};
use crate::run::Run;
use crate::samples::{Part, Target};
use crate::turns::{self, Measured, Player, Side};

const LONG_BYTES: usize = 1 << 20;
/// Blocks under way: what a sequential reader's window asks for.
const LONG_DEPTH: usize = 8;
const SHORT_BYTES: usize = 4 << 10;
const SHORT_DEPTH: usize = 32;
/// Messages of one turn of ucx_perftest, which counts instead of looking at the clock.
const MESSAGES: u64 = 400_000;
const GETS: u64 = 60_000;

/// Over the loopback interface.
fn loopback() -> Way {
    Way {
        listen: Ipv4Addr::LOCALHOST.into(),
        rdma: None,
        namespace: None,
        poll: Poll::Auto,
        cpus: None,
    }
}

/// 1 MiB blocks from a peer's memory over one connection.
pub(super) fn long(run: &Run) -> Result<Vec<Part>> {
    println!("  yardstick: {}", iperf3::version()?);
    let load = Load {
        len_bytes: LONG_BYTES,
        depth: LONG_DEPTH,
        span: run.span(),
    };
    let way = loopback();
    let sides = turns::take_turns(
        run,
        vec![
            Player::new("Forebay", |_| Ok(ours::run(&way, &load)?.measured)),
            Player::new("iperf3", |_| iperf3::run(LONG_BYTES, run.span())),
        ],
    )?;
    let mut part = turns::ratio(
        "1MiB",
        Target::AtLeast(0.85),
        (&sides[0], &sides[1]),
        "MiB/s",
        Measured::mib_per_second,
    );
    let cpu: Vec<String> = sides
        .iter()
        .map(|side| side.words("s", 3, Measured::cpu_s_per_gib))
        .collect();
    part.detail += &format!(
        "; processor time of both ends for each GiB: {}",
        cpu.join(", ")
    );
    Ok(vec![part])
}

/// 4 KiB, 32 under way. ucx_perftest's messages are sent without being asked for, its gets are asked for as ours.
pub(super) fn short(run: &Run) -> Result<Vec<Part>> {
    println!("  yardstick: {}", ucx::version()?);
    let load = Load {
        len_bytes: SHORT_BYTES,
        depth: SHORT_DEPTH,
        span: run.span(),
    };
    let theirs = |test, count| move |_| ucx::run(test, SHORT_BYTES, SHORT_DEPTH, run.amount(count));
    let way = loopback();
    let sides = turns::take_turns(
        run,
        vec![
            Player::new("Forebay", |_| Ok(ours::run(&way, &load)?.measured)),
            Player::new("UCX-messages", theirs(Test::Messages, MESSAGES)),
            Player::new("UCX-gets", theirs(Test::Gets, GETS)),
        ],
    )?;
    let part = |name, theirs: &Side| {
        let pair = (&sides[0], theirs);
        turns::ratio(name, Target::AtLeast(1.0), pair, "/s", Measured::iops)
    };
    Ok(vec![part("messages", &sides[1]), part("gets", &sides[2])])
}
