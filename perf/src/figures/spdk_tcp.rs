//! `spdk-tcp`: reads by the engine's disk tier over SPDK's NVMe/TCP from a target on loopback, against SPDK's own tool. The target
//! has one processor, who reads the other; both sides poll without rest.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use forebay_nvme_spdk::{Environment, Namespace, OpenOptions, QueueOptions};
use forebay_tests::devices::target::{SpdkTarget, obstacle};

use crate::cpus;
use crate::disk::file::{self, Opening};
use crate::disk::load::{self, Blocks, Order, Reads};
use crate::layers::noise_on;
use crate::run::Run;
use crate::samples::{Part, Target};
use crate::spdk_perf::{self, Job};
use crate::turns::{self, Measured, Player, Side};

const BLOCK_BYTES: usize = 4 << 20;
const DATA_BYTES: u64 = 256 << 20;
const CAPACITY_BYTES: u64 = 1 << 30;
/// Of the target: its namespaces, and some for itself.
const TARGET_MIB: u32 = 1_792;
const DEPTH: usize = 32;
const ARENA_BYTES: usize = 128 << 20;
/// Fills that are not settled yet.
const FILLING_BYTES: usize = 16 << 20;
/// The target takes the first processor.
const CPU: usize = 1;

/// That all is there, before anything is started.
fn check() -> Result<()> {
    spdk_perf::program()?;
    if let Some(why) = obstacle() {
        bail!("{why}");
    }
    ensure!(
        cpus::two()? == [0, CPU],
        "this figure wants processors 0 (the target's) and 1, and those alone: taskset -c 0,1"
    );
    Ok(())
}

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    check()?;
    let target = SpdkTarget::start_with(TARGET_MIB)?;
    let transport_id = target.add("figure", CAPACITY_BYTES, 4096)?;
    // SPDK's tool reads all of a namespace: one of its own, as large as what Forebay reads, and written as that is.
    let yardstick = target.add("yardstick", DATA_BYTES, 4096)?;
    let environment = Environment::start(&Default::default())?;
    let address = transport_id.parse().context("the target's address")?;
    let namespace = Namespace::open(&environment, &address, &OpenOptions::default())?;
    write_all(&environment, &yardstick)?;
    let blocks = Blocks {
        count: DATA_BYTES / BLOCK_BYTES as u64,
        len_bytes: BLOCK_BYTES,
    };
    let opening = |verify| Opening {
        data_bytes: DATA_BYTES,
        entries: 4 * blocks.count as usize,
        arena_bytes: ARENA_BYTES,
        verify,
    };
    let log = file::new_log();
    load::fill(
        &mut opening(true).open_spdk(&namespace, log)?,
        blocks,
        FILLING_BYTES,
    )?;
    let ours = |verify: bool, len_bytes: usize, seed: u64| {
        cpus::pinned(Some(CPU), || {
            let mut driver = opening(verify).open_spdk(&namespace, log)?;
            load::touch_each(&mut driver, blocks)?;
            let reads = Reads {
                blocks,
                len_bytes,
                depth: DEPTH,
                order: Order::Random(seed),
                span: run.span(),
            };
            load::read(&mut driver, &reads)
        })
    };
    let theirs = |block_bytes: usize| {
        spdk_perf::run(&Job {
            transport_id: &yardstick,
            random: true,
            block_bytes,
            depth: DEPTH,
            span: run.span(),
            cpu: CPU,
        })
    };
    let of_length = |len_bytes: usize, target: Target, names: [&'static str; 2]| {
        let sides = turns::take_turns(
            run,
            vec![
                Player::new("Forebay", |seed| ours(false, len_bytes, seed)),
                Player::new("spdk_nvme_perf", |_| theirs(len_bytes)),
                Player::new("Forebay-verified", |seed| ours(true, len_bytes, seed)),
            ],
        )?;
        Ok::<_, anyhow::Error>(parts(&sides, target, names))
    };
    let short = of_length(4 << 10, Target::AtLeast(0.9), ["4KiB", "4KiB-verified"])?;
    let long = of_length(
        128 << 10,
        Target::AtLeast(0.95),
        ["128KiB", "128KiB-verified"],
    )?;
    Ok(short.into_iter().chain(long).collect())
}

/// Noise on all of a namespace.
fn write_all(environment: &Arc<Environment>, transport_id: &str) -> Result<()> {
    let address = transport_id.parse().context("the target's address")?;
    let namespace = Namespace::open(environment, &address, &OpenOptions::default())?;
    let mut arena = file::spdk_arena(&namespace, FILLING_BYTES)?;
    let mut device = namespace.queue_pair(&arena.mapping(), &QueueOptions::default())?;
    noise_on(&mut device, &mut arena, namespace.geometry().capacity_bytes)
}

/// Against SPDK's tool, and what checking adds.
fn parts(sides: &[Side], target: Target, names: [&'static str; 2]) -> Vec<Part> {
    let [ours, theirs, verified] = [&sides[0], &sides[1], &sides[2]];
    let mut plain = turns::ratio(names[0], target, (ours, theirs), "IOPS", Measured::iops);
    plain.detail += &format!(
        "; {DEPTH} under way, verification off; each side reads {} MiB that were written before, on one processor, polling; the target has the other",
        DATA_BYTES >> 20
    );
    let mut checked = turns::ratio(
        names[1],
        Target::None,
        (verified, theirs),
        "IOPS",
        Measured::iops,
    );
    let each_ns = |side: &Side| 1e9 / side.of(Measured::iops).median();
    checked.detail += &format!(
        "; checking adds {:.0} ns to a read",
        each_ns(verified) - each_ns(ours)
    );
    vec![plain, checked]
}
