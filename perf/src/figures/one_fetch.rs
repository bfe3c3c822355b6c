//! `one-fetch`: 64 readers on three clients of a group of three, each reading all of one cold object past the page cache,
//! with an origin that is slow to answer. The object may leave S3 once; also while a fourth member joins.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use forebay_tests::harness::Mount;
use forebay_tests::s3::Class;

use super::MIB;
use crate::group::{Group, Plan};
use crate::interrupt;
use crate::load::{self, Done};
use crate::run::Run;
use crate::samples::{Part, Samples, Target};

const READERS: usize = 64;
const CLIENTS: [&str; 3] = ["client-1", "client-2", "client-3"];
const ORIGIN_DELAY: Duration = Duration::from_millis(200);
/// 32 stripes.
const OBJECT_BYTES: u64 = 512 << 20;
/// The object fits each client's memory.
const CLIENT_MEMORY: &str = "1GiB";
const MEMBER_MEMORY: &str = "512MiB";
const MEMBER_CACHE: &str = "2GiB";
/// The member joins when this part of the object has been fetched.
const JOINS_AT: u64 = 16;
const START_MAX: Duration = Duration::from_secs(60);

/// What one cold read by everybody came to.
struct Cold {
    ratio: f64,
    mib_per_second: f64,
    /// What had been fetched when everybody knew the newcomer, as a share of the object.
    joined_at: Option<f64>,
}

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    let object_bytes = run.amount(OBJECT_BYTES);
    let (mut steady, mut joining) = (Vec::new(), Vec::new());
    for _ in 0..run.repetitions() {
        let objects = ["steady", "joining"].map(|key| (key.to_owned(), object_bytes));
        let mut group = Group::start(run.scratch()?, &objects, &["a", "b", "c"].map(plan))?;
        let faults = group.bucket().server().faults();
        faults.set_delay(Class::Get, ORIGIN_DELAY);
        let clients = CLIENTS.map(|node| group.client(node, CLIENT_MEMORY));
        let clients: Vec<Mount> = clients.into_iter().collect::<Result<_>>()?;
        steady.push(cold(&mut group, &clients, &objects[0], None)?);
        joining.push(cold(&mut group, &clients, &objects[1], Some(plan("d")))?);
        for client in clients {
            client.unmount()?;
        }
        group.stop()?;
    }
    Ok(vec![part("steady", &steady), part("one-joins", &joining)])
}

fn plan(node: &str) -> Plan<'static> {
    Plan {
        node: node.to_owned(),
        memory: MEMBER_MEMORY,
        cache: Some(MEMBER_CACHE),
        weight: 1,
    }
}

/// All readers read one object that nobody has; meanwhile `newcomer` joins.
fn cold(
    group: &mut Group,
    clients: &[Mount],
    (key, object_bytes): &(String, u64),
    newcomer: Option<Plan<'_>>,
) -> Result<Cold> {
    group.bucket().server().reset_counters();
    let files: Vec<PathBuf> = (0..READERS)
        .map(|reader| clients[reader % clients.len()].dir().join(key))
        .collect();
    let (done, joined_at) = std::thread::scope(|scope| {
        let readers = scope.spawn(|| load::readers_at_once(&files));
        let joined_at = newcomer.map(|newcomer| join(group, clients, newcomer, *object_bytes));
        let done = readers.join();
        let done = done.unwrap_or_else(|_| Err(anyhow!("the readers panicked")))?;
        Ok::<_, anyhow::Error>((done, joined_at.transpose()?))
    })?;
    check_all_read(&done, *object_bytes)?;
    group.bucket().settled_bytes()?;
    let counters = group.bucket().server().counters();
    ensure!(
        counters.unique_bytes == *object_bytes,
        "{} different bytes left the origin, of an object of {object_bytes}",
        counters.unique_bytes
    );
    if let Some(share) = joined_at {
        ensure!(
            share < 1.0,
            "all was fetched before the member had joined: not a measurement of a join"
        );
    }
    let cold = Cold {
        ratio: counters.body_bytes as f64 / counters.unique_bytes as f64,
        mib_per_second: done.bytes_per_second() / MIB,
        joined_at,
    };
    println!(
        "  {key}: {READERS} readers, {:.0} MiB/s together, {} bytes from the origin, {:.4} of the object{}",
        cold.mib_per_second,
        counters.body_bytes,
        cold.ratio,
        joined_at.map_or(String::new(), |share| format!("; joined at {share:.2}"))
    );
    Ok(cold)
}

/// Lets a member join once fetching is under way; tells which share of the object had been fetched when everybody knew it.
fn join(
    group: &mut Group,
    clients: &[Mount],
    newcomer: Plan<'_>,
    object_bytes: u64,
) -> Result<f64> {
    let fetched = |group: &Group| group.bucket().server().counters().body_bytes;
    interrupt::until("the readers began", START_MAX, || {
        Ok((fetched(group) >= object_bytes / JOINS_AT).then_some(()))
    })?;
    group.join(&[newcomer], clients)?;
    Ok(fetched(group) as f64 / object_bytes as f64)
}

fn check_all_read(done: &Done, object_bytes: u64) -> Result<()> {
    ensure!(
        done.bytes == READERS as u64 * object_bytes,
        "{READERS} readers got {} bytes",
        done.bytes
    );
    Ok(())
}

fn part(name: &'static str, colds: &[Cold]) -> Part {
    let ratios = Samples::new(colds.iter().map(|cold| cold.ratio).collect());
    let rates = Samples::new(colds.iter().map(|cold| cold.mib_per_second).collect());
    let joined: Vec<f64> = colds.iter().filter_map(|cold| cold.joined_at).collect();
    let mut detail = format!(
        "{:.4} to {:.4}; all readers together {:.0} MiB/s (median)",
        ratios.min(),
        ratios.max(),
        rates.median()
    );
    if !joined.is_empty() {
        let joined = Samples::new(joined);
        detail += &format!(
            "; everybody knew the newcomer when {:.0} to {:.0} % had been fetched",
            100.0 * joined.min(),
            100.0 * joined.max()
        );
    }
    Part {
        name,
        measured: ratios.median(),
        target: Target::AtMost(1.01),
        detail,
    }
}
