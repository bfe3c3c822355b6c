//! `foyer`: hits from disk by the engine's disk tier against foyer's block engine with io_uring and O_DIRECT: as
//! much data on the same disk, entries of the same length, as many reads under way, checksums on both sides.
//!
//! foyer is a program and a workspace of its own (`perf/foyer`), built when this figure is measured.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::disk::file::Opening;
use crate::disk::load::{self, Blocks, Order, Reads};
use crate::run::Run;
use crate::samples::{Part, Target};
use crate::turns::{self, Measured, Player};

/// foyer's side.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/foyer");
const PROGRAM: &str = "forebay-perf-foyer";
const DATA_BYTES: u64 = 2 << 30;
const ARENA_BYTES: usize = 256 << 20;
const FILLING_BYTES: usize = 64 << 20;

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    let program = build()?;
    let mut parts = Vec::new();
    for (names, entry_bytes, depth) in [
        (["hits-1MiB", "hits-1MiB-cpu"], 1 << 20, 8),
        (["hits-64KiB", "hits-64KiB-cpu"], 64 << 10, 32),
    ] {
        let dir = run.scratch()?;
        parts.extend(compare(
            run,
            &program,
            dir.path(),
            names,
            entry_bytes,
            depth,
        )?);
    }
    Ok(parts)
}

/// Builds foyer's side under the same target directory.
fn build() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own
        .ancestors()
        .nth(2)
        .context("this program lies in no target directory")?
        .join("foyer");
    println!("  building foyer's side in {}", target.display());
    let cargo = Command::new("cargo")
        .args([
            "build",
            "--release",
            "--locked",
            "--quiet",
            "--manifest-path",
        ])
        .arg(Path::new(WORKSPACE).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .stdin(Stdio::null())
        .status();
    let built = cargo.as_ref().is_ok_and(|status| status.success());
    ensure!(
        built,
        "SKIPPED: foyer's side ({WORKSPACE}) could not be built: {cargo:?}; it needs cargo and the crate registry"
    );
    Ok(target.join("release").join(PROGRAM))
}

fn compare(
    run: &Run,
    program: &Path,
    dir: &Path,
    names: [&'static str; 2],
    entry_bytes: usize,
    depth: usize,
) -> Result<Vec<Part>> {
    let blocks = Blocks {
        count: run.amount(DATA_BYTES) / entry_bytes as u64,
        len_bytes: entry_bytes,
    };
    let file = dir.join("log");
    let opening = Opening {
        data_bytes: blocks.count * entry_bytes as u64,
        entries: 4 * blocks.count as usize,
        arena_bytes: ARENA_BYTES,
        verify: true,
    };
    load::fill(&mut opening.open(&file)?, blocks, FILLING_BYTES)?;
    let foyer = Foyer {
        program,
        dir: dir.join("foyer"),
        blocks,
    };
    foyer.fill()?;
    let ours = |seed| {
        let mut driver = opening.open(&file)?;
        load::touch_each(&mut driver, blocks)?;
        let reads = Reads {
            blocks,
            len_bytes: entry_bytes,
            depth,
            order: Order::Random(seed),
            span: run.span(),
        };
        load::read(&mut driver, &reads)
    };
    let sides = turns::take_turns(
        run,
        vec![
            Player::new("Forebay", ours),
            Player::new("foyer", |seed| foyer.read(depth, run.span(), seed)),
        ],
    )?;
    let pair = (&sides[0], &sides[1]);
    let [speed, cpu] = names;
    Ok(vec![
        turns::ratio(
            speed,
            Target::AtLeast(1.0),
            pair,
            "MiB/s",
            Measured::mib_per_second,
        ),
        turns::ratio(
            cpu,
            Target::AtMost(0.6),
            pair,
            "s/GiB",
            Measured::cpu_s_per_gib,
        ),
    ])
}

struct Foyer<'a> {
    program: &'a Path,
    dir: PathBuf,
    blocks: Blocks,
}

impl Foyer<'_> {
    fn command(&self, mode: &str) -> Command {
        // Room for its headers, and as many free blocks as it wants.
        let data_bytes = self.blocks.count * self.blocks.len_bytes as u64;
        let capacity_bytes = data_bytes + data_bytes / 4 + (512 << 20);
        let mut command = Command::new(self.program);
        command.arg(mode).arg(&self.dir).args([
            capacity_bytes.to_string(),
            self.blocks.len_bytes.to_string(),
            self.blocks.count.to_string(),
        ]);
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        command
    }

    fn fill(&self) -> Result<()> {
        let status = self.command("fill").status()?;
        ensure!(status.success(), "foyer cannot be filled: {status}");
        Ok(())
    }

    fn read(&self, depth: usize, span: Duration, seed: u64) -> Result<Measured> {
        let more = [depth as u64, span.as_millis() as u64, seed + 1];
        let output = self
            .command("read")
            .args(more.map(|number| number.to_string()))
            .output()?;
        ensure!(output.status.success(), "foyer: {}", output.status);
        let printed = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<u64> = printed
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [ios, elapsed_ns, cpu_ns] = numbers[..] else {
            anyhow::bail!("foyer's side printed {printed}");
        };
        Ok(Measured {
            ios,
            bytes: ios * self.blocks.len_bytes as u64,
            elapsed: Duration::from_nanos(elapsed_ns),
            cpu: Duration::from_nanos(cpu_ns),
            p50_us: None,
        })
    }
}
