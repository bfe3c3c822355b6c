//! Hosts of one machine: network namespaces, each with addresses of its own, joined by bridges that can be cut.
//!
//! One bridge is one rail. This machine has an address on each, so that servers of the test itself are reached.
//! Names begin with `fb`, the test's process id and `x`: what a test that was killed has left is swept by the next one.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// A neighbour that nobody is: packets for it leave, and vanish.
const NOBODY: &str = "02:00:00:00:00:01";
/// The benchmarking networks (RFC 2544): nobody's real addresses.
const FIRST_NET: [u8; 2] = [198, 18];
/// Rails at most: the networks above are two.
const RAILS_MAX: u8 = 2;

/// What is left in a namespace may take so long to end.
const END_MAX: Duration = Duration::from_secs(2);

/// This machine itself, where a host is named.
pub const HERE: &str = "";

/// Hosts and what joins them; all is removed when dropped, with the processes that still run there.
#[derive(Debug)]
pub struct Namespaces {
    tag: String,
    hosts: Vec<String>,
    rails: u8,
    net: u8,
}

impl Namespaces {
    /// Why there can be none here; nothing when there can.
    pub fn lacking() -> Option<String> {
        let tag = tag();
        let (probe, link) = (format!("{tag}probe"), format!("{tag}p"));
        let made = ip(&["netns", "add", &probe])
            .and_then(|()| {
                ip(&[
                    "-n", &probe, "link", "add", "name", &link, "type", "veth", "peer", "v",
                ])
            })
            .and_then(|()| {
                ip(&[
                    "-n", &probe, "link", "add", "name", "bridge0", "type", "bridge",
                ])
            })
            .and_then(|()| {
                run(Command::new("nsenter")
                    .arg(format!("--net={}", path(&probe)))
                    .arg("true"))
            });
        let _ = ip(&["netns", "del", &probe]);
        made.err().map(|error| format!("{error:#}"))
    }

    /// Makes hosts of these names, each on `rails` networks (1 or 2).
    ///
    /// # Errors
    /// When a command fails; what was made by then is removed.
    pub fn new(hosts: &[&str], rails: u8) -> Result<Self> {
        ensure!((1..=RAILS_MAX).contains(&rails), "1 or 2 rails");
        sweep();
        let made = Self {
            tag: tag(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            rails,
            net: std::process::id() as u8,
        };
        made.build()?;
        Ok(made)
    }

    fn build(&self) -> Result<()> {
        for host in &self.hosts {
            ip(&["netns", "add", &self.space(host)])?;
        }
        let mut lines = String::new();
        for rail in 0..self.rails {
            let (bridge, here) = (self.bridge(rail), self.address(HERE, rail));
            lines += &format!(
                "link add {bridge} type bridge\naddr add {here}/24 dev {bridge}\nlink set {bridge} up\n"
            );
            for host in &self.hosts {
                let (link, space) = (self.link(host, rail), self.space(host));
                lines += &format!(
                    "link add {link} type veth peer name eth{rail} netns {space}\nlink set {link} master {bridge} up\n"
                );
            }
        }
        batch(&[], &lines)?;
        for host in &self.hosts {
            let mut lines = "link set lo up\n".to_owned();
            for rail in 0..self.rails {
                let address = self.address(host, rail);
                lines += &format!("addr add {address}/24 dev eth{rail}\nlink set eth{rail} up\n");
            }
            batch(&["-n", &self.space(host)], &lines)?;
        }
        Ok(())
    }

    /// A host's address on a rail.
    ///
    /// # Panics
    /// When there is no such host.
    pub fn address(&self, host: &str, rail: u8) -> Ipv4Addr {
        let number = match host {
            HERE => 1,
            host => 10 + self.number(host) as u8,
        };
        let [first, second] = FIRST_NET;
        Ipv4Addr::new(first, second + rail, self.net, number)
    }

    /// Networks that each host is on.
    pub fn rails(&self) -> u8 {
        self.rails
    }

    /// Whether there is such a host.
    pub fn has(&self, host: &str) -> bool {
        self.hosts.iter().any(|known| known == host)
    }

    fn number(&self, host: &str) -> usize {
        let place = self.hosts.iter().position(|known| known == host);
        place.unwrap_or_else(|| panic!("no host {host}"))
    }

    fn space(&self, host: &str) -> String {
        format!("{}-{host}", self.tag)
    }

    fn bridge(&self, rail: u8) -> String {
        format!("{}r{rail}", self.tag)
    }

    /// This machine's end of a host's cable.
    fn link(&self, host: &str, rail: u8) -> String {
        format!("{}v{}", self.tag, self.number(host) * 2 + usize::from(rail))
    }

    /// The same command, on that host. It keeps its process id and sees the same files.
    pub fn on(&self, host: &str, command: &Command) -> Command {
        let mut entering = Command::new("nsenter");
        entering
            .arg(format!("--net={}", path(&self.space(host))))
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => entering.env(name, value),
                None => entering.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            entering.current_dir(dir);
        }
        entering
    }

    /// From now on nothing that `from` sends to `to` arrives, and neither is told. The other direction stays.
    ///
    /// # Errors
    /// When the command fails.
    pub fn cut(&self, from: &str, to: &str) -> Result<()> {
        self.neighbours(from, to, |address, device| {
            format!("neigh replace {address} lladdr {NOBODY} nud permanent dev {device}\n")
        })
    }

    /// What [`Namespaces::cut`] cut goes on.
    ///
    /// # Errors
    /// When the command fails, as when nothing was cut.
    pub fn mend(&self, from: &str, to: &str) -> Result<()> {
        self.neighbours(from, to, |address, device| {
            format!("neigh del {address} dev {device}\n")
        })
    }

    fn neighbours(
        &self,
        from: &str,
        to: &str,
        line: impl Fn(Ipv4Addr, String) -> String,
    ) -> Result<()> {
        let device = |rail| match from {
            HERE => self.bridge(rail),
            _ => format!("eth{rail}"),
        };
        let lines: String = (0..self.rails)
            .map(|rail| line(self.address(to, rail), device(rail)))
            .collect();
        match from {
            HERE => batch(&[], &lines),
            _ => batch(&["-n", &self.space(from)], &lines),
        }
    }

    /// Cuts both directions.
    ///
    /// # Errors
    /// When a command fails.
    pub fn part(&self, one: &str, other: &str) -> Result<()> {
        self.cut(one, other)?;
        self.cut(other, one)
    }

    /// Mends both directions.
    ///
    /// # Errors
    /// When a command fails.
    pub fn join(&self, one: &str, other: &str) -> Result<()> {
        self.mend(one, other)?;
        self.mend(other, one)
    }

    /// Pulls a host's cable on a rail out, or plugs it in again.
    ///
    /// # Errors
    /// When the command fails.
    pub fn plug(&self, host: &str, rail: u8, plugged: bool) -> Result<()> {
        let state = if plugged { "up" } else { "down" };
        ip(&["link", "set", &self.link(host, rail), state])
    }

    /// What a host receives on its first rail comes at so many bits per second. An error says that this kernel cannot.
    ///
    /// # Errors
    /// When the kernel has no token buckets.
    pub fn slow_down(&self, host: &str, bits_per_s: u64) -> Result<()> {
        let (link, rate) = (self.link(host, 0), format!("{bits_per_s}bit"));
        let shape = [
            "qdisc", "replace", "dev", &link, "root", "tbf", "rate", &rate,
        ];
        let bounds = ["burst", "64kb", "latency", "100ms"];
        run(Command::new("tc").args(shape).args(bounds))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for host in &self.hosts {
            remove_space(&self.space(host));
            for rail in 0..self.rails {
                // Sockets that wait for a last answer keep a namespace, and its cables, for minutes.
                let _ = ip(&["link", "del", &self.link(host, rail)]);
            }
        }
        for rail in 0..self.rails {
            let _ = ip(&["link", "del", &self.bridge(rail)]);
        }
    }
}

/// What names of this process begin with; another one each time.
fn tag() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed) % 10;
    format!("fb{}x{next}", std::process::id())
}

fn path(space: &str) -> String {
    format!("/run/netns/{space}")
}

/// Ends the processes in a namespace, and removes it with its cables.
fn remove_space(space: &str) {
    // A mount that is asked to end takes its mount point away.
    for signal in [Signal::TERM, Signal::KILL] {
        for pid in processes(space) {
            let _ = kill_process(pid, signal);
        }
        let asked = Instant::now();
        while asked.elapsed() < END_MAX && !processes(space).is_empty() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let _ = ip(&["netns", "del", space]);
}

fn processes(space: &str) -> Vec<Pid> {
    let pids = output(Command::new("ip").args(["netns", "pids", space])).unwrap_or_default();
    let pids = pids.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter_map(Pid::from_raw).collect()
}

/// Removes what tests have left that were killed.
fn sweep() {
    let is_stale =
        |name: &&str| owner(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
    let spaces = output(Command::new("ip").args(["netns", "list"])).unwrap_or_default();
    let names = spaces.lines().filter_map(|line| line.split(' ').next());
    names.filter(is_stale).for_each(remove_space);
    let links: BTreeSet<String> = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    for link in links.iter().map(String::as_str).filter(is_stale) {
        let _ = ip(&["link", "del", link]);
    }
}

/// The process that has made what is named so; none when it is nothing of ours.
fn owner(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix("fb")?.split_once('x')?;
    pid.parse().ok()
}

fn ip(args: &[&str]) -> Result<()> {
    run(Command::new("ip").args(args))
}

fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Lines for one `ip`.
fn batch(options: &[&str], lines: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(options).args(["-batch", "-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run ip")?;
    let mut stdin = child.stdin.take().context("ip takes no input")?;
    stdin.write_all(lines.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "ip {options:?}: {} in:\n{lines}",
        said.trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_have_an_owner() {
        assert_eq!(owner("fb123x0-a"), Some(123));
        assert_eq!(owner("fb123x0r1"), Some(123));
        for other in ["eth0", "fb0", "fbx", "fbeefx1", "lo"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    /// What a killed test leaves is gone after the next one has begun, and what lives is let be.
    #[test]
    fn cables_are_cut_in_one_direction_and_leftovers_are_swept() {
        if let Some(why) = Namespaces::lacking() {
            println!(
                "SKIPPED: network namespaces are not to be had here ({why}): cables were not cut"
            );
            return;
        }
        // No process has so high a number.
        let stale = "fb4194999x0";
        ip(&["netns", "add", &format!("{stale}-a")]).unwrap();
        ip(&["link", "add", &format!("{stale}r0"), "type", "bridge"]).unwrap();
        let spaces = Namespaces::new(&["a", "b"], 1).unwrap();
        assert!(!Path::new(&path(&format!("{stale}-a"))).exists());
        assert!(!Path::new(&format!("/sys/class/net/{stale}r0")).exists());

        let is_heard = |from: &str| {
            let socket = std::net::UdpSocket::bind((spaces.address(HERE, 0), 0)).unwrap();
            let timeout = Some(Duration::from_millis(300));
            socket.set_read_timeout(timeout).unwrap();
            let port = socket.local_addr().unwrap().port();
            let mut say = Command::new("bash");
            let address = spaces.address(HERE, 0);
            say.args(["-c", &format!("echo hello >/dev/udp/{address}/{port}")]);
            run(&mut spaces.on(from, &say)).unwrap();
            socket.recv(&mut [0; 16]).is_ok()
        };
        assert!(is_heard("a") && is_heard("b"));
        spaces.cut("a", HERE).unwrap();
        assert!(!is_heard("a") && is_heard("b"));
        spaces.mend("a", HERE).unwrap();
        spaces.cut(HERE, "a").unwrap();
        assert!(is_heard("a"), "the other direction stays");
        spaces.plug("b", 0, false).unwrap();
        assert!(!is_heard("b"));
        let space = spaces.space("a");
        drop(spaces);
        assert!(!Path::new(&path(&space)).exists());
    }
}
