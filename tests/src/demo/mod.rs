//! `make demo`: a real bucket, mounted, read in random order, every byte compared; then the daemon is ended
//! and started again, and every byte comes from its disk.
//!
//! | module | holds |
//! |---|---|
//! | `server` | the S3 server: embedded, SeaweedFS, or somebody's |
//! | `sources` | the files that the bucket is filled with |
//! | `verify` | workers that read the mount and compare |
//! | `overwrite` | an object overwritten under an open handle |
//! | `table` | what it came to |

mod overwrite;
mod server;
mod sources;
mod table;
mod verify;

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use crate::harness::{BucketClient, Mount, MountOptions};
use server::Server;
use sources::Sources;
use table::{Restarted, Table};

/// The cache's ceiling: the bucket fits, so each byte has to come from S3 once.
const MEMORY: &str = "1536MiB";
/// The cache on disk: the bucket fits.
const CACHE_SIZE: &str = "3GiB";
/// Origin bytes over unique bytes may be this at most.
const ORIGIN_RATIO_MAX: f64 = 1.01;

/// Set by a signal; everything that takes long looks at it.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Asks for an early end with all cleaning up done.
    pub fn request(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether an early end was asked for.
    pub fn requested(&self) -> bool {
        self.0.load(Relaxed)
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.requested(), "interrupted");
        Ok(())
    }
}

/// Runs the demo against the server that `s3` names (`S3=` of `make demo`; none for the embedded
/// one). All that it made is gone when this returns, also after an error.
///
/// # Errors
/// A byte that differs, more origin bytes than allowed, or whatever did not work.
pub fn run(s3: Option<&str>, stop: &Stop) -> Result<()> {
    let start = Instant::now();
    let dir = tempfile::Builder::new().prefix("forebay-demo-").tempdir()?;
    let server = Server::start(s3, dir.path(), stop)?;
    say(
        start,
        &format!("S3 server: {} at {}", server.name(), server.endpoint()),
    );
    let sources = Sources::collect()?;
    let client = server.client()?;
    client.create()?;
    let result = with_bucket(&server, &client, &sources, dir.path(), start, stop);
    if let Err(error) = server.clear(&client) {
        eprintln!(
            "demo: the bucket {} could not be removed: {error:#}",
            client.bucket()
        );
    }
    result?;
    say(start, "unmounted, everything cleaned up");
    Ok(())
}

fn with_bucket(
    server: &Server,
    client: &BucketClient,
    sources: &Sources,
    dir: &Path,
    start: Instant,
    stop: &Stop,
) -> Result<()> {
    fill(client, sources, start, stop)?;
    let (point, cache) = (dir.join("mnt"), dir.join("cache"));
    std::fs::create_dir(&point)?;
    std::fs::create_dir(&cache)?;
    let mount = mount(server, client, &point, &cache)?;
    say(
        start,
        &format!("mounted at {} (daemon {})", point.display(), mount.pid()),
    );

    server.reset_counters();
    let first = verify::read_all(&point, sources, verify::Pass::First, stop)?;
    say(start, "first pass: every byte equals its source");
    let second = verify::read_all(&point, sources, verify::Pass::Again, stop)?;
    say(
        start,
        "second pass, page cache dropped: every byte equals its source",
    );
    let overwritten = overwrite::show(&point, client, stop)?;

    let stats = mount.stats()?;
    let origin_count = server.body_bytes();
    println!("\nforebay stats:");
    mount.show("stats")?;
    mount.unmount()?;
    let restarted = restart(server, client, sources, dir, start, stop)?;
    let table = Table {
        first,
        second,
        stats,
        unique_bytes: sources.total_bytes() + overwritten.unique_bytes,
        origin_count,
        restarted,
    };
    println!("\n{table}");
    let ratio = table.origin_ratio();
    if ratio > ORIGIN_RATIO_MAX {
        bail!("origin bytes are {ratio:.4} x unique bytes; at most {ORIGIN_RATIO_MAX} is allowed");
    }
    let (again, dropped) = (table.restarted_origin_bytes(), stats.disk_dropped_bytes);
    if again > dropped {
        bail!(
            "after the restart {again} bytes came from the origin again; only the {dropped} that the disk could not keep up \
             with were not cached"
        );
    }
    Ok(())
}

fn mount(server: &Server, client: &BucketClient, point: &Path, cache: &Path) -> Result<Mount> {
    let flags = [
        ["--attr-ttl", "1s"],
        ["--entry-ttl", "1s"],
        ["--cache-size", CACHE_SIZE],
        // The demo takes its room whatever else the disk holds.
        ["--free-space-ratio", "0"],
    ];
    let mut flags: Vec<OsString> = flags.iter().flatten().map(OsString::from).collect();
    flags.extend(["--cache-dir".into(), cache.as_os_str().to_owned()]);
    Mount::new(
        point,
        &MountOptions {
            binary: None,
            source: format!("s3://{}", client.bucket()),
            endpoint: &server.endpoint(),
            credentials: server.credentials(),
            memory: MEMORY,
            flags,
        },
    )
}

/// A new daemon on the same cache directory: its memory and the kernel's page cache are empty.
fn restart(
    server: &Server,
    client: &BucketClient,
    sources: &Sources,
    dir: &Path,
    start: Instant,
    stop: &Stop,
) -> Result<Restarted> {
    server.reset_counters();
    let point = dir.join("mnt");
    let mount = mount(server, client, &point, &dir.join("cache"))?;
    say(
        start,
        &format!("unmounted, and mounted again (daemon {})", mount.pid()),
    );
    let passed = verify::read_all(&point, sources, verify::Pass::First, stop)?;
    say(start, "after the restart: every byte equals its source");
    let restarted = Restarted {
        passed,
        stats: mount.stats()?,
        origin_count: server.body_bytes(),
    };
    mount.unmount()?;
    Ok(restarted)
}

fn fill(client: &BucketClient, sources: &Sources, start: Instant, stop: &Stop) -> Result<()> {
    for batch in sources.batches() {
        stop.check()?;
        client.put_all_while(batch?, || !stop.requested())?;
    }
    overwrite::fill(client)?;
    say(
        start,
        &format!(
            "bucket s3://{} filled: {}",
            client.bucket(),
            sources.summary()
        ),
    );
    stop.check()
}

fn say(start: Instant, what: &str) {
    println!("demo: {:5.1} s  {what}", start.elapsed().as_secs_f64());
}
