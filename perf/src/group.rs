//! A cache group of real processes on loopback addresses: members without mounts, and take-only clients, each with a
//! mount.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use forebay_cli::control::client::ControlClient;
use forebay_cli::control::sockets::{SERVE_PREFIX, is_alive, runtime_dir, socket_path};
use forebay_cli::group::report::MemberReport;
use forebay_tests::harness::{Held, Member, MemberOptions, Mount, forebay_binary, held};
use tempfile::TempDir;

use crate::bench::{self, LONG_LIVED_NAMES};
use crate::bucket::Bucket;
use crate::{interrupt, process};

/// A new view is known to all within a few seconds, on a busy machine too.
const VIEW_MAX: Duration = Duration::from_secs(40);

/// A member to be started.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Its name.
    pub node: String,
    /// `--memory`.
    pub memory: &'a str,
    /// `--cache-size` of its own cache directory; with none it has memory alone.
    pub cache: Option<&'a str>,
    /// `--group-weight`.
    pub weight: u32,
}

/// A member that was started: what it takes to start it again, and its process unless that was stopped.
#[derive(Debug)]
struct Seat {
    node: String,
    memory: String,
    flags: Vec<OsString>,
    member: Option<Member>,
}

/// A group and its bucket. Members are killed when it is dropped; clients belong to the caller, and go first.
#[derive(Debug)]
pub struct Group {
    // In the order of dropping: members go before what they need.
    seats: Vec<Seat>,
    bucket: Bucket,
    dir: TempDir,
    name: String,
    net: [u8; 3],
    addresses_given: usize,
}

impl Group {
    /// A bucket with `objects` (key, bytes) and these members, all started at the same time; `dir` is on the disk that
    /// holds their caches.
    ///
    /// # Errors
    /// What the server or `forebay serve` said, or that the members do not find each other.
    pub fn start(dir: TempDir, objects: &[(String, u64)], plans: &[Plan<'_>]) -> Result<Self> {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
        // Control sockets are named after the mount point as the kernel spells it.
        ensure!(
            dir.path().canonicalize()? == dir.path(),
            "{} is reached by a link: give --dir DIR as it is",
            dir.path().display()
        );
        let mut group = Self {
            seats: Vec::new(),
            bucket: Bucket::start(objects)?,
            dir,
            name: format!("perf-{pid}-{number}"),
            // Loopback addresses that nobody else uses: 127.0.0.x is what everybody does.
            net: [
                127,
                16 + (pid >> 8) as u8 % 200,
                (pid as u8).wrapping_add(number.wrapping_mul(61)),
            ],
            addresses_given: 0,
        };
        group.join(plans, &[])?;
        Ok(group)
    }

    /// Starts members at the same time, and waits until each member and each of `clients` knows all.
    ///
    /// # Errors
    /// What `forebay serve` said, or that somebody does not get to know them.
    pub fn join(&mut self, plans: &[Plan<'_>], clients: &[Mount]) -> Result<()> {
        for plan in plans {
            self.addresses_given += 1;
            self.seats.push(Seat {
                node: plan.node.clone(),
                memory: plan.memory.to_owned(),
                flags: self.flags(plan)?,
                member: None,
            });
        }
        self.start_missing()?;
        self.until_all_agree(clients)
    }

    /// Ends all members in order and starts them again: what was in their memory is gone.
    ///
    /// # Errors
    /// What `forebay stop` or `forebay serve` said.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start_missing()?;
        self.until_all_agree(&[])
    }

    fn start_missing(&mut self) -> Result<()> {
        let (bucket, group) = (&self.bucket, &self.name);
        let missing = self.seats.iter_mut().filter(|seat| seat.member.is_none());
        all_at_once(missing, |seat| {
            seat.member = Some(Member::start(&MemberOptions {
                source: bucket.source(),
                endpoint: &bucket.server().endpoint(),
                credentials: Some(bucket.credentials()),
                group,
                node: &seat.node,
                memory: &seat.memory,
                flags: seat.flags.clone(),
            })?);
            Ok(())
        })
    }

    /// Ends all members in order, at the same time. Their caches stay.
    ///
    /// # Errors
    /// What `forebay stop` said, also when a member had ended before.
    pub fn stop(&mut self) -> Result<()> {
        let members = self.seats.iter_mut().filter_map(|seat| seat.member.take());
        all_at_once(members, Member::stop)
    }

    /// A member hands over what it holds, by `forebay drain`, and is gone; waits until all others know.
    ///
    /// # Errors
    /// When it could not hand over everything.
    pub fn drain(&mut self, node: &str) -> Result<()> {
        let place = self.seats.iter().position(|seat| seat.node == node);
        let seat = self
            .seats
            .remove(place.with_context(|| format!("no member {node}"))?);
        let status = Command::new(forebay_binary()?)
            .args(["drain", &format!("{}/{node}", self.name)])
            .stdin(Stdio::null())
            .status()?;
        ensure!(status.success(), "forebay drain {node}: {status}");
        let socket = socket_path(&runtime_dir(), &self.daemon(node));
        interrupt::until(&format!("{node} ends"), VIEW_MAX, || {
            Ok((!is_alive(&socket)).then_some(()))
        })?;
        drop(seat);
        self.until_all_agree(&[])
    }

    fn flags(&self, plan: &Plan<'_>) -> Result<Vec<OsString>> {
        let log = self.dir.path().join(format!("log-{}", plan.node));
        let address = self.address(self.addresses_given);
        let mut flags: Vec<OsString> = Vec::new();
        for (name, value) in [
            ("--listen", format!("{address}:7440")),
            ("--peers", self.peers()),
            ("--group-weight", plan.weight.to_string()),
            ("--attr-ttl", "1h".to_owned()),
        ] {
            flags.extend([name.into(), value.into()]);
        }
        flags.extend(["--log-file".into(), log.into()]);
        if let Some(size) = plan.cache {
            let cache = self.cache_dir(&plan.node);
            std::fs::create_dir_all(&cache)?;
            flags.extend(["--cache-dir".into(), cache.into()]);
            // What else lies on the disk shall not shrink the cache meanwhile.
            flags.extend(["--cache-size", size, "--free-space-ratio", "0"].map(OsString::from));
        }
        Ok(flags)
    }

    fn address(&self, number: usize) -> String {
        let [x, y, z] = self.net;
        format!("{x}.{y}.{z}.{number}")
    }

    /// The first three are stable; any one of them leads to the others.
    fn peers(&self) -> String {
        [1, 2, 3].map(|number| self.address(number)).join(",")
    }

    /// Mounts the bucket as a client that only takes, without a cache directory.
    ///
    /// # Errors
    /// What `forebay mount` said, or that it gets to know no member.
    pub fn client(&self, node: &str, memory: &str) -> Result<Mount> {
        let mut flags: Vec<OsString> = LONG_LIVED_NAMES.map(Into::into).into();
        let peers = self.peers();
        let group = ["--no-sharing", "--peers", &peers];
        let names = ["--cache-group", &self.name, "--node-id", node];
        flags.extend(group.iter().chain(&names).map(OsString::from));
        let log = self.dir.path().join(format!("log-{node}"));
        flags.extend(["--log-file".into(), log.into()]);
        let point = format!("mnt-{node}");
        let client = bench::mount(self.dir.path(), &point, &self.bucket, memory, flags)?;
        self.until_agrees(client.dir())?;
        Ok(client)
    }

    /// Brings the whole bucket into the group, by `forebay warmup` of a client.
    ///
    /// # Errors
    /// When not all of it is cached afterwards.
    pub fn warm_up(&self) -> Result<()> {
        let client = self.client("warmer", "256MiB")?;
        client.show("warmup")?;
        client.unmount()
    }

    fn until_all_agree(&self, clients: &[Mount]) -> Result<()> {
        for seat in self.running() {
            self.until_agrees(&self.daemon(&seat.node))?;
        }
        for client in clients {
            self.until_agrees(client.dir())?;
        }
        Ok(())
    }

    /// Bytes that the members' disks were read for, up to now.
    ///
    /// # Errors
    /// When a member does not answer.
    pub fn disk_read_bytes(&self) -> Result<u64> {
        let members = self.running();
        members
            .map(|seat| disk_read_bytes(&self.daemon(&seat.node)))
            .sum()
    }

    fn running(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().filter(|seat| seat.member.is_some())
    }

    /// Waits until a daemon, by its name or its mount point, sees just the members that there are.
    fn until_agrees(&self, daemon: &Path) -> Result<()> {
        let mut all: Vec<&str> = self.running().map(|seat| seat.node.as_str()).collect();
        all.sort_unstable();
        let what = format!("{} sees the members {}", daemon.display(), all.join(" "));
        interrupt::until(&what, VIEW_MAX, || {
            let mut seen: Vec<String> = members_seen_by(daemon)?
                .into_iter()
                .map(|member| member.node)
                .collect();
            seen.sort_unstable();
            Ok((seen == all).then_some(()))
        })
    }

    /// The members as the first of them sees them.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn members(&self) -> Result<Vec<MemberReport>> {
        let first = self.running().next().context("no member is there")?;
        members_seen_by(&self.daemon(&first.node))
    }

    /// What commands call a member.
    fn daemon(&self, node: &str) -> PathBuf {
        format!("{SERVE_PREFIX}{}/{node}", self.name).into()
    }

    /// The bucket.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// What a member's disk holds.
    ///
    /// # Errors
    /// When it has no cache directory, or that cannot be read.
    pub fn held_by(&self, node: &str) -> Result<Held> {
        held(&self.cache_dir(node), &self.name, node)
    }

    fn cache_dir(&self, node: &str) -> PathBuf {
        self.dir.path().join(format!("cache-{node}"))
    }

    /// Names and processes of the members that run.
    pub fn pids(&self) -> Vec<(String, u32)> {
        let members = self.seats.iter();
        members
            .filter_map(|seat| Some((seat.node.clone(), seat.member.as_ref()?.pid())))
            .collect()
    }

    /// Processor time of all members up to now.
    ///
    /// # Errors
    /// When one is gone.
    pub fn processor_time(&self) -> Result<Duration> {
        let members = self.seats.iter().filter_map(|seat| seat.member.as_ref());
        members
            .map(|member| process::processor_time(member.pid()))
            .sum()
    }
}

/// Does `work` with each of `all` on threads of their own.
fn all_at_once<T: Send>(
    all: impl Iterator<Item = T>,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let work = &work;
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let running: Vec<_> = all.map(|one| scope.spawn(move || work(one))).collect();
        let ended = running.into_iter().map(|one| one.join());
        ended
            .map(|one| one.unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
            .collect()
    });
    results.into_iter().collect()
}

fn control(daemon: &Path) -> ControlClient {
    ControlClient::new(socket_path(&runtime_dir(), daemon))
}

fn members_seen_by(daemon: &Path) -> Result<Vec<MemberReport>> {
    let group = control(daemon).status()?.group;
    let group = group.with_context(|| format!("{} is in no group", daemon.display()))?;
    Ok(group.members)
}

/// Bytes that a daemon, by its mount point or name, got from other members up to now.
///
/// # Errors
/// When it does not answer, or is in no group.
pub fn received_bytes(daemon: &Path) -> Result<u64> {
    let group = control(daemon).status()?.group;
    let group = group.with_context(|| format!("{} is in no group", daemon.display()))?;
    Ok(group.links.iter().map(|link| link.received_bytes).sum())
}

/// Bytes that a daemon, by its mount point or name, read from its disks up to now.
///
/// # Errors
/// When it does not answer.
pub fn disk_read_bytes(daemon: &Path) -> Result<u64> {
    let devices = control(daemon).stats()?.disk.devices;
    Ok(devices.iter().map(|device| device.read_bytes).sum())
}
