//! The group: three members, each with a cache directory of its own, and the client with the mount.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::links::{self, OverRdma};
use super::server::Server;
use super::{Form, Stop};
use crate::harness::{BucketClient, Member, MemberOptions, Mount, MountOptions, held};

/// The members.
pub(super) const NODES: [&str; 3] = ["a", "b", "c"];
/// `--memory` of each member and of the client: less than the bucket, so that it is the disks that hold it.
const MEMORY: &str = "128MiB";
/// The same for a small demo.
const MEMORY_SMALL: &str = "96MiB";
/// `--cache-size` of each member: the bucket fits.
const CACHE_SIZE: &str = "1GiB";
const CACHE_SIZE_SMALL: &str = "256MiB";
/// Members know each other within seconds; a silent one is out after ten.
const VIEW_TIMEOUT: Duration = Duration::from_secs(40);

/// What stays when daemons come and go.
#[derive(Debug)]
pub(super) struct Site<'a> {
    server: &'a Server,
    bucket: String,
    dir: PathBuf,
    /// `--cache-group`: nobody else's.
    group: String,
    form: &'a Form,
    net: Net,
}

/// Where the members are.
#[derive(Debug)]
enum Net {
    /// At 127.x.y.1 to 127.x.y.3.
    Loopback([u8; 2]),
    /// All at the address of an RDMA port, each at a port of its own from this one on.
    Rdma(IpAddr, u16),
}

impl<'a> Site<'a> {
    /// Makes the directories.
    pub(super) fn new(
        server: &'a Server,
        client: &BucketClient,
        dir: &Path,
        form: &'a Form,
    ) -> Result<Self> {
        let site = Self {
            server,
            bucket: client.bucket().to_owned(),
            dir: dir.to_owned(),
            group: format!("demo-{}", std::process::id()),
            net: match &form.rdma {
                Some(rdma) => Net::Rdma(rdma.group_ip, free_ports(rdma.group_ip)?),
                None => Net::Loopback(free_net()?),
            },
            form,
        };
        if form.rdma.is_some() {
            links::write_secret(&site.secret_file())?;
        }
        std::fs::create_dir(site.point())?;
        for node in NODES {
            std::fs::create_dir(site.cache_dir(node))?;
        }
        Ok(site)
    }

    /// Where the client mounts.
    pub(super) fn point(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// A member's `--cache-dir`.
    pub(super) fn cache_dir(&self, node: &str) -> PathBuf {
        self.dir.join(format!("cache-{node}"))
    }

    /// Bytes of objects that a member's cache directory holds.
    pub(super) fn held_bytes(&self, node: &str) -> Result<u64> {
        Ok(held(&self.cache_dir(node), &self.group, node)?.bytes)
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    /// The last lines of each daemon's log, for whom the demo failed.
    pub(super) fn show_logs(&self) {
        for name in NODES.iter().chain(&["client"]) {
            let text = std::fs::read_to_string(self.log_file(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(5)..] {
                eprintln!("demo: log of {name}: {line}");
            }
        }
    }

    fn secret_file(&self) -> PathBuf {
        self.dir.join("secret")
    }

    fn memory(&self) -> &'static str {
        match self.form.small {
            true => MEMORY_SMALL,
            false => MEMORY,
        }
    }

    /// Address and port.
    fn address(&self, node: &str) -> String {
        let place = NODES.iter().position(|known| *known == node).unwrap_or(0);
        match self.net {
            Net::Loopback([x, y]) => format!("127.{x}.{y}.{}:7440", place + 1),
            Net::Rdma(ip, first) => std::net::SocketAddr::new(ip, first + place as u16).to_string(),
        }
    }

    fn common_flags(&self, name: &str) -> Vec<OsString> {
        let peers = NODES.map(|node| self.address(node)).join(",");
        let log = self.log_file(name).into_os_string();
        let flags = ["--peers", &peers, "--attr-ttl", "1s", "--log-file"];
        let mut flags: Vec<OsString> = flags.iter().map(OsString::from).collect();
        flags.push(log);
        if let Some(rdma) = &self.form.rdma {
            flags.extend(rdma.flags().into_iter().map(OsString::from));
            flags.extend(["--group-secret-file".into(), self.secret_file().into()]);
        }
        flags
    }

    fn member(&self, node: &str) -> Result<Member> {
        let mut flags = self.common_flags(node);
        let listen = self.address(node);
        let cache_size = match self.form.small {
            true => CACHE_SIZE_SMALL,
            false => CACHE_SIZE,
        };
        // The demo takes its room whatever else the disk holds. One core each: the machine is everybody's.
        let more = [
            ["--listen", &listen],
            ["--cache-size", cache_size],
            ["--free-space-ratio", "0"],
            ["--cores", "1"],
        ];
        flags.extend(more.iter().flatten().map(OsString::from));
        flags.extend(["--cache-dir".into(), self.cache_dir(node).into_os_string()]);
        Member::start(&MemberOptions {
            group: &self.group,
            node,
            source: format!("s3://{}", self.bucket),
            endpoint: &self.server.endpoint(),
            credentials: self.server.credentials(),
            memory: self.memory(),
            flags,
        })
    }

    fn client(&self) -> Result<Mount> {
        let mut flags = self.common_flags("client");
        let more = [
            ["--cache-group", &self.group],
            ["--node-id", "client"],
            ["--entry-ttl", "1s"],
            ["--cores", "1"],
        ];
        flags.extend(more.iter().flatten().map(OsString::from));
        flags.push("--no-sharing".into());
        Mount::new(
            &self.point(),
            &MountOptions {
                binary: None,
                source: format!("s3://{}", self.bucket),
                endpoint: &self.server.endpoint(),
                credentials: self.server.credentials(),
                memory: self.memory(),
                flags,
            },
        )
    }
}

/// A net of loopback addresses that nobody listens in: 127.0.0.x is what everybody else uses.
fn free_net() -> Result<[u8; 2]> {
    let pid = std::process::id();
    (0..50u32)
        .map(|n| pid.wrapping_add(n * 7919))
        .map(|n| [16 + (n >> 8) as u8 % 200, n as u8])
        .find(|[x, y]| {
            (1..=3).all(|host| TcpListener::bind((Ipv4Addr::new(127, *x, *y, host), 7440)).is_ok())
        })
        .context("no free loopback address for the members (127.x.y.z, port 7440)")
}

/// The first of three ports of an address that nobody listens at.
fn free_ports(ip: IpAddr) -> Result<u16> {
    (7441..7741)
        .step_by(NODES.len())
        .find(|first| {
            (0..NODES.len() as u16).all(|place| TcpListener::bind((ip, first + place)).is_ok())
        })
        .with_context(|| {
            format!("no free ports for the members at {ip}: is it an address of this machine?")
        })
}

/// The daemons that run. They end with it: the client first.
#[derive(Debug)]
pub(super) struct Group {
    client: Option<Mount>,
    members: Vec<(&'static str, Member)>,
}

impl Group {
    /// Starts the three members at once, then the client, and waits until all agree who the members are.
    pub(super) fn start(site: &Site<'_>, stop: &Stop) -> Result<Self> {
        let started: Vec<Result<Member>> = thread::scope(|scope| {
            let starts = NODES.map(|node| scope.spawn(move || site.member(node)));
            let ended = starts.into_iter().map(|start| start.join());
            ended
                .map(|end| end.unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
                .collect()
        });
        let mut group = Self {
            client: None,
            members: Vec::new(),
        };
        let mut failure = None;
        for (node, member) in NODES.into_iter().zip(started) {
            match member {
                Ok(member) => group.members.push((node, member)),
                Err(error) => failure = Some(error.context(format!("member {node}"))),
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        group.client = Some(site.client()?);
        group.until_agreed(stop)?;
        Ok(group)
    }

    /// The mount.
    pub(super) fn client(&self) -> Result<&Mount> {
        self.client.as_ref().context("the client is not mounted")
    }

    /// Unmounts the client and mounts it again: its memory and the kernel's page cache are empty.
    pub(super) fn remount(&mut self, site: &Site<'_>, stop: &Stop) -> Result<()> {
        if let Some(client) = self.client.take() {
            client.unmount()?;
        }
        self.client = Some(site.client()?);
        self.until_agreed(stop)
    }

    /// Unmounts the client, and stops the members in order.
    pub(super) fn end(mut self) -> Result<()> {
        if let Some(client) = self.client.take() {
            client.unmount()?;
        }
        for (node, member) in self.members.drain(..) {
            member.stop().with_context(|| format!("member {node}"))?;
        }
        Ok(())
    }

    /// SIGKILL for a member.
    pub(super) fn kill(&mut self, node: &str) -> Result<()> {
        let place = self.members.iter().position(|(known, _)| *known == node);
        let place = place.with_context(|| format!("no member {node}"))?;
        self.members.remove(place).1.kill()
    }

    /// Waits until every member that runs, and the client, has just those that run for members.
    pub(super) fn until_agreed(&self, stop: &Stop) -> Result<()> {
        let start = Instant::now();
        loop {
            stop.check()?;
            let views = self.views()?;
            let as_many = |(_, members): &(String, usize)| *members == self.members.len();
            let same = views.windows(2).all(|pair| pair[0].0 == pair[1].0);
            if same && views.iter().all(as_many) {
                return Ok(());
            }
            ensure!(
                start.elapsed() < VIEW_TIMEOUT,
                "the members and the client do not agree who the members are: {views:?}"
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until the client asks every member over RDMA; what it has received so from now on.
    pub(super) fn until_rdma(&self, stop: &Stop) -> Result<OverRdma> {
        let start = Instant::now();
        loop {
            stop.check()?;
            let client = self.client()?;
            links::ask_all(client.dir())?;
            let over = OverRdma::of(group_of(client.ask("status")?.json()));
            if over.up == self.members.len() {
                return Ok(over);
            }
            ensure!(
                start.elapsed() < VIEW_TIMEOUT,
                "the client asks {} of {} members over RDMA; `forebay status` of it: {:?}",
                over.up,
                self.members.len(),
                over.why_not
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// What the client has received over RDMA.
    pub(super) fn over_rdma(&self) -> Result<OverRdma> {
        Ok(OverRdma::of(group_of(self.client()?.ask("status")?.json())))
    }

    /// Who the members are, in each daemon's eyes: the view's id, and how many they are.
    fn views(&self) -> Result<Vec<(String, usize)>> {
        let view = |status: &Value| {
            let group = group_of(status);
            let members = group["members"].as_array().map_or(0, Vec::len);
            (
                group["view"].as_str().unwrap_or_default().to_owned(),
                members,
            )
        };
        let mut views = vec![view(self.client()?.ask("status")?.json())];
        for (_, member) in &self.members {
            views.push(view(member.ask("status")?.json()));
        }
        Ok(views)
    }

    /// Each member's share of the ring, for people.
    pub(super) fn shares(&self) -> Result<String> {
        let status = self.client()?.ask("status")?;
        let members = group_of(status.json())["members"].as_array();
        let Some(members) = members.filter(|members| !members.is_empty()) else {
            bail!("forebay status tells no members");
        };
        let share = |member: &Value| {
            let node = member["node"].as_str().unwrap_or("?").to_owned();
            (node, 100.0 * member["ring_share"].as_f64().unwrap_or(0.0))
        };
        let mut shares: Vec<(String, f64)> = members.iter().map(share).collect();
        shares.sort_by(|one, other| one.0.cmp(&other.0));
        let shares = shares
            .iter()
            .map(|(node, share)| format!("{node} {share:.1} %"));
        Ok(shares.collect::<Vec<_>>().join(", "))
    }

    /// Bytes that all daemons that run have read from S3, by their own count.
    pub(super) fn origin_bytes(&self) -> Result<u64> {
        let mut bytes = self.client()?.stats()?.origin_bytes;
        for (_, member) in &self.members {
            bytes += member.stats()?.origin_bytes;
        }
        Ok(bytes)
    }

    /// Bytes that all daemons that run have read from S3, by reason.
    pub(super) fn origin_reasons(&self) -> Result<BTreeMap<String, u64>> {
        let mut reports = vec![self.client()?.ask("stats")?];
        for (_, member) in &self.members {
            reports.push(member.ask("stats")?);
        }
        let mut reasons = BTreeMap::new();
        for report in &reports {
            let told = report.json()["origin"]["bytes_by_reason"].as_object();
            for (reason, bytes) in told.context("forebay stats --json tells no reasons")? {
                *reasons.entry(reason.clone()).or_default() += bytes.as_u64().unwrap_or(0);
            }
        }
        Ok(reasons)
    }

    /// Bytes that members could not write to their disks as fast as they came.
    pub(super) fn dropped_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        for (_, member) in &self.members {
            bytes += member.stats()?.disk_dropped_bytes;
        }
        Ok(bytes)
    }
}

fn group_of(status: &Value) -> &Value {
    match status.as_array() {
        Some(all) => all.first().map_or(&Value::Null, |one| &one["group"]),
        None => &status["group"],
    }
}
