//! `join`: a group of three that holds everything. A fourth member joins, then one of the three leaves; after each,
//! a client with empty memory reads everything, and nothing may come from the origin.

use anyhow::{Result, ensure};

use super::MIB;
use crate::group::{Group, Plan};
use crate::load::{self, Cache};
use crate::run::Run;
use crate::samples::{Part, Samples, Target};

/// Of several stripes, and of a part of one.
const LARGE: (u64, u64) = (12, 64 << 20);
const SMALL: (u64, u64) = (2_000, 128 << 10);
/// All of it is 1018 MiB. A third fits with room for what comes when another one leaves.
const MEMBER_CACHE: &str = "768MiB";
/// Less than what a member holds: most of it is on its disk.
const MEMORY: &str = "256MiB";

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    let objects = objects(run);
    let (mut joined, mut left) = (Vec::new(), Vec::new());
    let (mut taken, mut given) = (Vec::new(), Vec::new());
    for repetition in 0..run.repetitions() {
        let mut group = filled(run, &objects, repetition)?;
        let before = read_all(&group, &objects, "filled")?;
        ensure!(
            before == 0,
            "{before} bytes came from the origin although the group was full: not a measurement of a join"
        );
        group.join(&[plan("d", repetition)], &[])?;
        joined.push(read_all(&group, &objects, "joined")? as f64);
        taken.push(group.held_by(&node("d", repetition))?.bytes as f64 / MIB);
        let leaver = node("b", repetition);
        given.push(group.held_by(&leaver)?.bytes as f64 / MIB);
        group.drain(&leaver)?;
        left.push(read_all(&group, &objects, "left")? as f64);
        group.stop()?;
    }
    Ok(vec![
        part("bytes-after-join", joined, "the newcomer then held", taken),
        part("bytes-after-leave", left, "the leaver had held", given),
    ])
}

fn objects(run: &Run) -> Vec<(String, u64)> {
    let large = (0..run.amount(LARGE.0)).map(|n| (format!("large/{n:02}.bin"), LARGE.1));
    let small = (0..run.amount(SMALL.0)).map(|n| (format!("small/{n:04}.bin"), SMALL.1));
    large.chain(small).collect()
}

/// Other names in each repetition, and so another ring.
fn node(letter: &str, repetition: usize) -> String {
    format!("{letter}{repetition}")
}

fn plan(letter: &str, repetition: usize) -> Plan<'static> {
    Plan {
        node: node(letter, repetition),
        memory: MEMORY,
        cache: Some(MEMBER_CACHE),
        weight: 1,
    }
}

/// Three members that hold all objects.
fn filled(run: &Run, objects: &[(String, u64)], repetition: usize) -> Result<Group> {
    let plans = ["a", "b", "c"].map(|letter| plan(letter, repetition));
    let group = Group::start(run.scratch()?, objects, &plans)?;
    group.warm_up()?;
    Ok(group)
}

/// Reads everything through a client that has nothing; gives the bytes that came from the origin.
fn read_all(group: &Group, objects: &[(String, u64)], when: &str) -> Result<u64> {
    let before = group.bucket().settled_bytes()?;
    let client = group.client(when, MEMORY)?;
    let mut bytes = 0;
    for (key, _) in objects {
        bytes += load::read_once(&client.dir().join(key), Cache::Past)?.bytes;
    }
    client.unmount()?;
    let all: u64 = objects.iter().map(|(_, bytes)| bytes).sum();
    ensure!(bytes == all, "{bytes} bytes of {all} were read");
    let origin = group.bucket().settled_bytes()? - before;
    println!("  {when}: {bytes} bytes read, {origin} of them from the origin");
    Ok(origin)
}

/// The worst repetition counts: a median would hide two that went to the origin.
fn part(name: &'static str, bytes: Vec<f64>, moved_words: &str, moved_mib: Vec<f64>) -> Part {
    let (bytes, moved_mib) = (Samples::new(bytes), Samples::new(moved_mib));
    Part {
        name,
        measured: bytes.max(),
        target: Target::AtMost(0.0),
        detail: format!(
            "bytes from the origin in the worst repetition; median {:.0}; {moved_words} {:.0} MiB ({:.0} to {:.0})",
            bytes.median(),
            moved_mib.median(),
            moved_mib.min(),
            moved_mib.max()
        ),
    }
}
