//! Figures that are scenarios: Forebay's side against peers', or against itself with another setting.

use anyhow::{Context, Result, ensure};

use crate::ceilings::checksum::PageCheck;
use crate::counters::{Watch, Watched};
use crate::layers::engine::EngineSide;
use crate::layers::origin::OriginSide;
use crate::outcome::{Outcome, SideOutcome, Span, Spread, Summary};
use crate::patterns::{Target, Work};
use crate::peers::Peer;
use crate::plan::Plan;
use crate::process;
use crate::run::Run;
use crate::samples::{Part, Samples, Target as Bound};
use crate::scenario::Scenario;
use crate::session;
use crate::side::{Side, Turn};
use crate::sides;
use crate::table;
use crate::targets::forebay::ForebayMount;

const MIB: f64 = (1u64 << 20) as f64;
/// Begins the note of who is not here.
const MISSING: &str = "not compared with ";

fn plan(run: &Run, ceilings: bool) -> Plan {
    Plan {
        run: run.clone(),
        repeats: run.repetitions(),
        span: run.span(),
        warm_up: run.span() / 3,
        seed: 1,
        ceilings,
    }
}

fn measure(scenario: &Scenario, all: Vec<Box<dyn Side>>, plan: &Plan) -> Result<Outcome> {
    println!("  {scenario}");
    let outcome = session::run(scenario, all, plan)?;
    for note in &outcome.notes {
        println!("  note: {note}");
    }
    Ok(outcome)
}

/// Forebay and these peers, those that are here.
fn against(scenario: &Scenario, peers: &[Peer], plan: &Plan) -> Result<Outcome> {
    let mut all = vec![sides::forebay(scenario, plan)?];
    let mut missing = Vec::new();
    for peer in peers {
        match peer.is_here() {
            true => all.push(peer.side(scenario, plan)?),
            false => missing.push(peer.name()),
        }
    }
    for name in &missing {
        println!("  MISSING: {name} is not on the path: not compared with it");
    }
    ensure!(
        all.len() > 1,
        "this figure compares with {}, and none of them is here: install one (apt-get install s3fs rclone fio)",
        peers
            .iter()
            .map(|peer| peer.name())
            .collect::<Vec<_>>()
            .join(", ")
    );
    let mut outcome = measure(scenario, all, plan)?;
    if !missing.is_empty() {
        let names = missing.join(", ");
        outcome.notes.push(format!("{MISSING}{names}"));
    }
    Ok(outcome)
}

/// What a row of the page must say besides the numbers: which versions, who is missing, and where bytes came from.
fn circumstances(outcome: &Outcome) -> Vec<String> {
    let others = outcome.sides[1..].iter();
    let versions = others.map(|side| format!("{}: {}", side.name, side.version));
    let notes = outcome.notes.iter().filter(|note| {
        let of = |side: &SideOutcome| note.starts_with(&format!("{}: ", side.name));
        note.starts_with(MISSING) || note.contains(" bytes ") && outcome.sides.iter().any(of)
    });
    versions.chain(notes.cloned()).collect()
}

fn spread(side: &SideOutcome, of: fn(&Summary) -> Option<Spread>) -> Result<Spread> {
    of(&side.summary).with_context(|| format!("{}: not measured in each span", side.name))
}

/// A quantity, how it is shown, and whether more of it is better.
struct Quantity {
    of: fn(&Summary) -> Option<Spread>,
    shown: fn(f64) -> String,
    more: bool,
}

const OPERATIONS: Quantity = Quantity {
    of: |summary| summary.operations_per_s,
    shown: |value| format!("{value:.0} /s"),
    more: true,
};
const BYTES: Quantity = Quantity {
    of: |summary| summary.bytes_per_s,
    shown: table::rate,
    more: true,
};
const ELAPSED: Quantity = Quantity {
    of: |summary| summary.elapsed_s,
    shown: |value| format!("{value:.3} s"),
    more: false,
};
const P50: Quantity = Quantity {
    of: |summary| summary.latency_us.get("p50").copied(),
    shown: |value| format!("{value:.1} us"),
    more: false,
};
const P99: Quantity = Quantity {
    of: |summary| summary.latency_us.get("p99").copied(),
    shown: |value| format!("{value:.1} us"),
    more: false,
};
const CPU: Quantity = Quantity {
    of: |summary| summary.cpu_us_per_operation,
    shown: |value| format!("{value:.2} us each"),
    more: false,
};
const FIRST_BYTE: Quantity = Quantity {
    of: |summary| summary.first_byte_us,
    shown: |value| format!("{value:.0} us"),
    more: false,
};

/// Forebay's median over that of the best of the others.
fn best(name: &'static str, target: Bound, outcome: &Outcome, quantity: &Quantity) -> Result<Part> {
    let words = |side: &SideOutcome, spread: Spread| {
        let shown = quantity.shown;
        format!(
            "{} {} ({} to {})",
            side.name,
            shown(spread.median),
            shown(spread.min),
            shown(spread.max)
        )
    };
    let ours = spread(&outcome.sides[0], quantity.of)?;
    let mut detail = vec![words(&outcome.sides[0], ours)];
    let mut other: Option<f64> = None;
    for side in &outcome.sides[1..] {
        let theirs = spread(side, quantity.of)?;
        detail.push(words(side, theirs));
        other = Some(match (other, quantity.more) {
            (None, _) => theirs.median,
            (Some(before), true) => before.max(theirs.median),
            (Some(before), false) => before.min(theirs.median),
        });
    }
    let other = other.context("nobody to compare with")?;
    Ok(Part {
        name,
        measured: ours.median / other,
        target,
        detail: [vec![detail.join(", ")], circumstances(outcome)]
            .concat()
            .join("; "),
    })
}

/// What is gained over the best of the others: their time over ours.
fn gain(name: &'static str, target: Bound, outcome: &Outcome, quantity: &Quantity) -> Result<Part> {
    let part = best(name, Bound::None, outcome, quantity)?;
    Ok(Part {
        measured: 1.0 / part.measured,
        target,
        ..part
    })
}

/// Either target is enough: so many times the best peer, or such a share of the disk. At least 1.
fn peer_or_disk(name: &'static str, times: f64, share: f64, outcome: &Outcome) -> Result<Part> {
    let peers = best(name, Bound::None, outcome, &BYTES)?;
    let disk = outcome.ceilings.iter().find(|limit| limit.name == "device");
    let disk = disk.map_or(0.0, |limit| limit.share);
    Ok(Part {
        measured: (peers.measured / times).max(disk / share),
        target: Bound::AtLeast(1.0),
        detail: format!(
            "{:.2} of the best peer's ({times} wanted) or {disk:.2} of the disk ({share} wanted), the nearer one; {}",
            peers.measured, peers.detail
        ),
        ..peers
    })
}

/// A loop that reads and checks pages, as a side.
struct Bare {
    check: Option<PageCheck>,
    data_bytes: usize,
    block_bytes: usize,
}

impl Side for Bare {
    fn name(&self) -> &str {
        "bare loop"
    }

    fn version(&self) -> String {
        "reads and checks the same pages".to_owned()
    }

    fn prepare(&mut self) -> Result<()> {
        self.check = Some(PageCheck::new(self.data_bytes, self.block_bytes, false)?);
        Ok(())
    }

    fn warm(&mut self, turn: &Turn) -> Result<()> {
        self.span(turn).map(drop)
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        let check = self.check.as_mut().context("it was not prepared")?;
        let watch = Watch::start(&[Watched::Own("loop".to_owned())])?;
        let start = std::time::Instant::now();
        let per_s = check.run(turn.seed, turn.span)?;
        let elapsed_s = start.elapsed().as_secs_f64();
        let (costs, busy) = watch.stop()?;
        let operations = (per_s * elapsed_s) as u64;
        Ok(Span {
            operations,
            bytes: operations * self.block_bytes as u64,
            elapsed_s,
            offered_per_s: None,
            unfinished: 0,
            first_byte_us: None,
            latency: None,
            costs,
            machine_busy_s: busy.as_secs_f64(),
        })
    }

    fn clean(&mut self) -> Result<()> {
        self.check = None;
        Ok(())
    }
}

/// `engine-4k`: hits in memory by one core against a loop that reads and checks the same pages.
pub(super) fn engine_4k(run: &Run) -> Result<Vec<Part>> {
    let text = "engine:tier=memory,block=4KiB,depth=32,order=random,data=256MiB,answer=dropped";
    let scenario: Scenario = text.parse()?;
    let plan = plan(run, false);
    let bare = Box::new(Bare {
        check: None,
        data_bytes: scenario.size("data") as usize,
        block_bytes: scenario.size("block") as usize,
    });
    let engine = EngineSide::new(&scenario, &plan);
    let allocated = engine.allocated();
    let sides: Vec<Box<dyn Side>> = vec![Box::new(engine), bare];
    let outcome = measure(&scenario, sides, &plan)?;
    let allocations = Part {
        name: "allocations-per-read",
        measured: allocated.per_read().context("no read was counted")?,
        // The load takes a few itself in each span.
        target: Bound::Below(0.001),
        detail:
            "of the core's thread in all spans, the load's own with them; locks are not counted"
                .to_owned(),
    };
    let reads = best("reads", Bound::AtLeast(0.6), &outcome, &OPERATIONS)?;
    Ok(vec![reads, allocations])
}

/// `fuse-rand`: 4 KiB at random of what is on disk, by one thread and by eight.
pub(super) fn fuse_rand(run: &Run) -> Result<Vec<Part>> {
    let data = run.amount(2 << 30) >> 20;
    let of = |depth: usize| -> Result<Outcome> {
        let memory = data / 4;
        let text = format!(
            "fuse:tier=disk,reader=direct,block=4KiB,order=random,depth={depth},data={data}MiB,memory={memory}MiB"
        );
        against(&text.parse()?, &Peer::MOUNTS, &plan(run, false))
    };
    let (one, eight) = (of(1)?, of(8)?);
    Ok(vec![
        best("p50", Bound::AtMost(1.0), &one, &P50)?,
        best("p99", Bound::AtMost(1.0), &one, &P99)?,
        best("iops-8-threads", Bound::AtLeast(1.5), &eight, &OPERATIONS)?,
        best("cpu-per-read", Bound::AtMost(0.6), &eight, &CPU)?,
    ])
}

/// `fuse-seq`: 1 MiB in order, from memory against what FUSE allows, from disk against fio.
pub(super) fn fuse_seq(run: &Run) -> Result<Vec<Part>> {
    let plan = plan(run, true);
    let data = run.amount(2 << 30) >> 20;
    let memory: Scenario = format!("fuse:tier=memory,data={}MiB", data / 4).parse()?;
    let memory = measure(&memory, vec![sides::forebay(&memory, &plan)?], &plan)?;
    let null = memory
        .ceilings
        .iter()
        .find(|limit| limit.name.starts_with("FUSE"));
    let null = null.context("the null server was not measured")?;
    let ours = spread(&memory.sides[0], BYTES.of)?;
    let memory = Part {
        name: "memory-of-null-server",
        measured: null.share,
        target: Bound::AtLeast(0.9),
        detail: format!(
            "Forebay {} ({} to {}), null server {} ({} to {})",
            table::rate(ours.median),
            table::rate(ours.min),
            table::rate(ours.max),
            table::rate(null.value.median),
            table::rate(null.value.min),
            table::rate(null.value.max)
        ),
    };
    // With the least memory: nearly all of it comes from disk, however often it comes round.
    let scenario: Scenario = format!("fuse:tier=disk,data={data}MiB").parse()?;
    // What the disk gives: the strongest reader, eight blocks under way.
    let disk: Scenario =
        format!("device:block=1MiB,depth=8,order=sequential,data={data}MiB").parse()?;
    ensure!(
        Peer::Fio.is_here(),
        "this figure compares with fio: apt-get install fio"
    );
    let sides = vec![
        sides::forebay(&scenario, &plan)?,
        Peer::Fio.side(&disk, &plan)?,
    ];
    let outcome = measure(&scenario, sides, &plan)?;
    Ok(vec![
        memory,
        best("disk-of-fio", Bound::AtLeast(0.97), &outcome, &BYTES)?,
    ])
}

/// The data set is four times the memory.
fn small_files_of(files: u64) -> String {
    format!("epoch:files={files},size=100KiB,workers=1,memory=64MiB")
}

/// `small-files`: small files one after the other, from disk.
pub(super) fn small_files(run: &Run) -> Result<Vec<Part>> {
    let scenario: Scenario = small_files_of(run.amount(3_000)).parse()?;
    let plan = plan(run, false);
    let peers = against(&scenario, &Peer::MOUNTS, &plan)?;
    let local = against(&scenario, &[Peer::Local], &plan)?;
    Ok(vec![
        gain("best-mount", Bound::AtLeast(2.0), &peers, &ELAPSED)?,
        gain("local-files", Bound::AtLeast(0.5), &local, &ELAPSED)?,
    ])
}

/// `epoch`: a second epoch over many small files by eight workers.
pub(super) fn epoch(run: &Run) -> Result<Vec<Part>> {
    let files = run.amount(20_000);
    let text = format!("epoch:files={files},size=100KB,workers=8");
    let outcome = against(&text.parse()?, &Peer::MOUNTS, &plan(run, true))?;
    Ok(vec![peer_or_disk("files", 2.0, 0.9, &outcome)?])
}

/// A fourth of the file fits into memory, all of it on disk.
fn cold_stream_of(size_mib: u64) -> String {
    format!("stream:files=1,size={size_mib}MiB,workers=1,tier=disk,state=cold,memory=256MiB")
}

/// A store that is far: what S3 gives for one connection, and how late.
const FAR: &str = ",get-delay=30,get-rate=80MiB";

/// A large file that nobody has read, against GETs of Forebay's own adapter, so many of 8 MiB under way.
fn cold_large(run: &Run, name: &'static str, large: &str, store: &str, gets: u64) -> Result<Part> {
    let plan = plan(run, false);
    let large: Scenario = format!("{large}{store}").parse()?;
    let size = large.size("size") >> 20;
    let plain = format!("origin:block=8MiB,depth={gets},order=sequential,data={size}MiB{store}");
    let sides: Vec<Box<dyn Side>> = vec![
        sides::forebay(&large, &plan)?,
        Box::new(OriginSide::new(&plain.parse()?, &plan).named("plain GETs")),
    ];
    let outcome = measure(&large, sides, &plan)?;
    let mut part = best(name, Bound::AtLeast(0.95), &outcome, &BYTES)?;
    part.detail += &format!(
        "; plain GETs are of Forebay's own adapter to S3, {gets} of 8 MiB under way: no downloader of others is compared with"
    );
    Ok(part)
}

/// `cold-stream`: what nobody has read: one large file against plain GETs, of a server as near as can be and of a
/// far one; small ones against the fastest mount.
pub(super) fn cold_stream(run: &Run) -> Result<Vec<Part>> {
    let size = run.amount(1 << 30) >> 20;
    let large = cold_stream_of(size);
    // Read-ahead may have a part of the memory, and this many GETs need more of it.
    let roomy = large.replace("memory=256MiB", "memory=2GiB");
    let files = run.amount(2_000);
    let small = format!("epoch:files={files},size=100KiB,workers=8,state=cold");
    let small = against(&small.parse()?, &Peer::MOUNTS, &plan(run, false))?;
    Ok(vec![
        cold_large(run, "large-of-plain-gets", &large, "", 4)?,
        cold_large(run, "large-far-of-4-plain-gets", &large, FAR, 4)?,
        cold_large(run, "large-far-of-16-plain-gets", &roomy, FAR, 16)?,
        gain("small-of-best-mount", Bound::AtLeast(1.0), &small, &ELAPSED)?,
    ])
}

/// As `ls -R` lists it.
fn tree_of(objects: u64, state: &str) -> String {
    let directories = (objects / 100).max(1);
    format!("list:objects={objects},directories={directories},attributes=no,state={state}")
}

/// `ls-100k`: names of a large tree, cold and warm, and what the daemon grows by.
pub(super) fn ls_100k(run: &Run) -> Result<Vec<Part>> {
    let objects = run.amount(100_000);
    let of = |state: &str| -> Result<Outcome> {
        let text = tree_of(objects, state);
        against(&text.parse()?, &Peer::MOUNTS, &plan(run, false))
    };
    Ok(vec![
        gain("cold", Bound::AtLeast(1.0), &of("cold")?, &ELAPSED)?,
        gain("warm", Bound::None, &of("warm")?, &ELAPSED)?,
        growth(run, objects)?,
    ])
}

/// MiB that a daemon grows by while a tree is listed.
fn growth(run: &Run, objects: u64) -> Result<Part> {
    let scenario: Scenario = tree_of(objects, "cold").parse()?;
    let (work, plan) = (Work::new(&scenario), plan(run, false));
    let mut grown = Vec::new();
    for _ in 0..run.repetitions() {
        let mut mount = ForebayMount::new(&scenario, &plan);
        mount.start(&work.objects(0), work.data_bytes())?;
        let pid = mount.pid()?;
        let before = process::resident_bytes(pid)?;
        let turn = Turn {
            number: 0,
            span: plan.span,
            seed: 1,
        };
        let root = mount.root()?.to_owned();
        let most = process::resident_bytes_max(pid, || work.run(&root, &turn).map(drop))?;
        mount.end()?;
        grown.push(most.saturating_sub(before) as f64 / MIB);
    }
    let grown = Samples::new(grown);
    Ok(Part {
        name: "grows-by-MiB",
        measured: grown.median(),
        target: Bound::AtMost(64.0),
        detail: format!(
            "{:.1} to {:.1} MiB for {objects} objects, looked at every 50 ms",
            grown.min(),
            grown.max()
        ),
    })
}

/// Of `safetensors`, as of a large file's bytes.
const FIRST_BYTE_GAIN: Bound = Bound::AtLeast(1.5);

/// `safetensors`: a large file mapped by four processes, and what its first byte takes.
pub(super) fn safetensors(run: &Run) -> Result<Vec<Part>> {
    let size = run.amount(1 << 30) >> 20;
    let text = format!("safetensors:size={size}MiB,tensors=256,processes=4");
    let outcome = against(&text.parse()?, &Peer::MOUNTS, &plan(run, true))?;
    Ok(vec![
        peer_or_disk("bytes", 1.5, 0.95, &outcome)?,
        gain("first-byte", FIRST_BYTE_GAIN, &outcome, &FIRST_BYTE)?,
    ])
}

/// `verify-cost`: what checking pages costs the processor, at 64 KiB and 1 MiB.
pub(super) fn verify_cost(run: &Run) -> Result<Vec<Part>> {
    let data = run.amount(2 << 30) >> 20;
    let mut parts = Vec::new();
    for (name, block, depth) in [("64KiB", "64KiB", 16), ("1MiB", "1MiB", 8)] {
        let text =
            format!("engine:tier=disk,block={block},depth={depth},order=random,data={data}MiB");
        let on: Scenario = text.parse()?;
        let off = on.with("verify", "off")?;
        let plan = plan(run, false);
        let sides: Vec<Box<dyn Side>> = vec![
            Box::new(EngineSide::new(&on, &plan).named("checked")),
            Box::new(EngineSide::new(&off, &plan).named("unchecked")),
        ];
        let outcome = measure(&on, sides, &plan)?;
        parts.push(best(name, Bound::AtMost(1.05), &outcome, &CPU)?);
    }
    Ok(parts)
}

/// `core-scaling`: two cores against one, asked by a thread of its own.
pub(super) fn core_scaling(run: &Run) -> Result<Vec<Part>> {
    let one: Scenario = "engine:cores=1,depth=64,data=256MiB,answer=dropped".parse()?;
    let two = one.with("cores", "2")?;
    let plan = plan(run, false);
    let sides: Vec<Box<dyn Side>> = vec![
        Box::new(EngineSide::new(&two, &plan).named("two cores")),
        Box::new(EngineSide::new(&one, &plan).named("one core")),
    ];
    let outcome = measure(&two, sides, &plan)?;
    let mut part = best("reads", Bound::AtLeast(1.8), &outcome, &OPERATIONS)?;
    let free = outcome.machine.processors;
    if free < 3 {
        part.detail += &format!(
            "; {free} processors for two cores and who asks them: none is free for the second core"
        );
    }
    Ok(vec![part])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::outcome::Parts;
    use std::path::Path;

    /// Settings and targets as they were written down before anything was measured.
    #[test]
    fn settings_and_targets_are_those_that_were_written_down() -> Result<()> {
        let stated = |text: String, settings: &[(&str, &str)]| -> Result<Scenario> {
            let scenario: Scenario = text.parse()?;
            for (name, value) in settings {
                assert_eq!(scenario.settings()[*name], *value, "{scenario}: {name}");
            }
            Ok(scenario)
        };
        let names = [("attributes", "no"), ("objects", "100000")];
        stated(tree_of(100_000, "cold"), &names)?;
        let cold = [("tier", "disk"), ("memory", "256MiB"), ("state", "cold")];
        for scenario in [
            stated(cold_stream_of(1024), &cold)?,
            stated(small_files_of(3_000), &[("tier", "disk"), ("workers", "1")])?,
        ] {
            let memory = scenario.size("memory");
            assert!(
                Work::new(&scenario).data_bytes() >= 4 * memory,
                "{scenario}"
            );
        }
        assert!(matches!(FIRST_BYTE_GAIN, Bound::AtLeast(least) if least == 1.5));
        Ok(())
    }

    #[test]
    fn rows_say_of_which_versions_and_who_is_missing() -> Result<()> {
        let side = |name: &str, version: &str, operations| {
            let span = Span {
                operations,
                bytes: 0,
                elapsed_s: 1.0,
                offered_per_s: None,
                unfinished: 0,
                first_byte_us: None,
                latency: None,
                costs: Vec::new(),
                machine_busy_s: 0.0,
            };
            SideOutcome::new(name, version.to_owned(), vec![span])
        };
        let outcome = Outcome::new(Parts {
            scenario: &"epoch".parse()?,
            seed: 1,
            span_s: 1.0,
            warm_up_s: 1.0,
            began_unix_s: 1,
            machine: Machine::here(Path::new("/")),
            sides: vec![side("Forebay", "0.1.0", 30), side("s3fs", "V1.90", 10)],
            ceilings: Vec::new(),
            notes: vec![
                format!("{MISSING}mount-s3, rclone"),
                "s3fs: 7 bytes came from the origin".to_owned(),
                "s3fs: the weather is fine".to_owned(),
                "7 bytes of others".to_owned(),
            ],
        });
        let part = best("x", Bound::None, &outcome, &OPERATIONS)?;
        assert_eq!(part.measured, 3.0);
        assert_eq!(
            part.detail,
            "Forebay 30 /s (30 /s to 30 /s), s3fs 10 /s (10 /s to 10 /s); s3fs: V1.90; \
             not compared with mount-s3, rclone; s3fs: 7 bytes came from the origin"
        );
        Ok(())
    }
}
