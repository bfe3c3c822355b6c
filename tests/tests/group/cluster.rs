//! Members and clients of one group, each a process.

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use forebay_cli::control::client::{ControlClient, living};
use forebay_cli::control::report::StatusReport;
use forebay_tests::harness::{HERE, Namespaces};
use forebay_tests::s3::Options;
use rustix::process::Signal;
use serde_json::Value;

use super::owners::Stored;
use super::support::{
    COMMAND_TIMEOUT, Place, Running, eventually, is_running, json, pattern, send,
};

/// The group's name in all tests.
pub const GROUP: &str = "g";
const MIB: usize = 1 << 20;

/// One test's group: members `a`, `b`, `c` ..., each at an address of its own, so that no two tests and no
/// two members race for a port.
pub struct Cluster {
    // Its processes end before their network does.
    pub place: Place,
    net: Net,
    names: Vec<String>,
}

/// Where the members are.
enum Net {
    /// At loopback addresses that begin so.
    Loopback([u8; 3]),
    /// In namespaces, with clients beside them.
    Apart(Namespaces),
    /// At these addresses in turn, each at a port of its own: those of RDMA devices.
    Shared(Vec<IpAddr>),
}

impl Cluster {
    /// A group of so many members; none runs yet.
    pub fn new(members: u8) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let pid = std::process::id();
        let test = NEXT.fetch_add(1, Ordering::Relaxed);
        // 127.0.0.x is what everybody else uses.
        let net = [
            127,
            16 + (pid >> 8) as u8 % 200,
            (pid as u8).wrapping_add(test.wrapping_mul(61)),
        ];
        Self {
            place: Place::new(),
            net: Net::Loopback(net),
            names: names(members),
        }
    }

    /// A group whose members, and these clients, are each in a network namespace of their own, with `rails`
    /// addresses. None, loudly, where there can be no namespaces.
    pub fn apart(members: u8, clients: &[&str], rails: u8) -> Option<Self> {
        if let Some(why) = Namespaces::lacking() {
            eprintln!(
                "SKIPPED: network namespaces are not to be had here ({why}): nothing was cut off"
            );
            return None;
        }
        let names = names(members);
        let hosts: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .chain(clients.iter().copied())
            .collect();
        let net = Namespaces::new(&hosts, rails).unwrap();
        let place = Place::with(Options {
            listen: (net.address(HERE, 0), 0).into(),
            ..Options::default()
        });
        write_secret(&place, SECRET, "s3cret");
        Some(Self {
            place,
            net: Net::Apart(net),
            names,
        })
    }

    /// A group whose members all have one address, and a secret.
    pub fn at(address: IpAddr, members: u8) -> Self {
        Self::at_each(vec![address], members)
    }

    /// A group whose members have these addresses in turn, and a secret.
    pub fn at_each(addresses: Vec<IpAddr>, members: u8) -> Self {
        let place = Place::new();
        write_secret(&place, SECRET, "s3cret");
        Self {
            place,
            net: Net::Shared(addresses),
            names: names(members),
        }
    }

    /// The namespaces of a group that is [`Cluster::apart`].
    pub fn spaces(&self) -> &Namespaces {
        match &self.net {
            Net::Apart(spaces) => spaces,
            Net::Loopback(_) | Net::Shared(_) => panic!("not apart"),
        }
    }

    /// A command on the host of a member or client.
    pub fn command(&self, name: &str, args: &[String]) -> Command {
        let command = self.place.command(args);
        match &self.net {
            Net::Apart(spaces) => spaces.on(name, &command),
            Net::Loopback(_) | Net::Shared(_) => command,
        }
    }

    /// The flags that every process of a group that is apart needs.
    fn secret_args(&self) -> Vec<String> {
        match &self.net {
            Net::Apart(_) | Net::Shared(_) => vec!["--group-secret-file".into(), SECRET.into()],
            Net::Loopback(_) => Vec::new(),
        }
    }

    /// A member's first address.
    pub fn address(&self, name: &str) -> String {
        let place = self.names.iter().position(|known| known == name);
        let place = place.expect("a member's name");
        match &self.net {
            Net::Loopback([x, y, z]) => format!("{x}.{y}.{z}.{}", place + 1),
            Net::Apart(spaces) => spaces.address(name, 0).to_string(),
            Net::Shared(ips) => ips[place % ips.len()].to_string(),
        }
    }

    fn port(&self, name: &str) -> u16 {
        let place = self.names.iter().position(|known| known == name);
        match &self.net {
            Net::Shared(_) => 7441 + place.expect("a member's name") as u16,
            _ => 7440,
        }
    }

    /// `--peers` for everybody.
    pub fn peers(&self) -> String {
        let at = |name: &String| format!("{}:{}", self.address(name), self.port(name));
        let all: Vec<String> = self.names.iter().map(at).collect();
        all.join(",")
    }

    /// The arguments of `serve` for a member. Names are believed for an hour unless `more` says something else.
    pub fn serve_args(&self, name: &str, more: &[&str]) -> Vec<String> {
        let cache = self.place.dir(&format!("cache-{name}"));
        let listen = format!("{}:{}", self.listen(name), self.port(name));
        let peers = self.peers();
        let rails = self.rails(name);
        let args = [
            &[
                "serve",
                "s3://bucket",
                "--background",
                "--node-id",
                name,
                "--cache-group",
                GROUP,
            ][..],
            &[
                "--listen",
                &listen,
                "--peers",
                &peers,
                "--cache-dir",
                cache.to_str().unwrap(),
            ],
            &["--free-space-ratio", "0"],
            cache_size(more),
            attr_ttl(more),
            more,
        ];
        let args = args.concat().into_iter().map(str::to_owned);
        args.chain(self.secret_args()).chain(rails).collect()
    }

    /// Where a member listens: everywhere, when it has several addresses.
    fn listen(&self, name: &str) -> String {
        match self.rails(name).is_empty() {
            true => self.address(name),
            false => "0.0.0.0".into(),
        }
    }

    /// `--group-ip` for each rail, when there are several.
    fn rails(&self, name: &str) -> Vec<String> {
        let Net::Apart(spaces) = &self.net else {
            return Vec::new();
        };
        let all = (0..spaces.rails()).filter(|_| spaces.rails() > 1);
        all.flat_map(|rail| ["--group-ip".into(), spaces.address(name, rail).to_string()])
            .collect()
    }

    /// Starts a member and waits until it serves.
    #[track_caller]
    pub fn serve(&self, name: &str, more: &[&str]) {
        let mut command = self.command(name, &self.serve_args(name, more));
        Running::start(&mut command).wait(COMMAND_TIMEOUT).ok();
    }

    /// Starts all members at once and waits until each knows all.
    #[track_caller]
    pub fn serve_all(&self) {
        self.serve_all_with(|_| &[]);
    }

    /// The same, with more flags for each.
    #[track_caller]
    pub fn serve_all_with<'a>(&self, more: impl Fn(&str) -> &'a [&'a str]) {
        let start = |name: &String| {
            Running::start(&mut self.command(name, &self.serve_args(name, more(name))))
        };
        let starts: Vec<Running> = self.names.iter().map(start).collect();
        starts
            .into_iter()
            .for_each(|start| drop(start.wait(COMMAND_TIMEOUT).ok()));
        let all: Vec<&str> = self.names.iter().map(String::as_str).collect();
        self.until_members(&all);
    }

    /// Waits until each of `names` sees just these as members.
    #[track_caller]
    pub fn until_members(&self, names: &[&str]) {
        self.until_members_of(names, names);
    }

    /// Waits until each of `names` sees just `members`.
    #[track_caller]
    pub fn until_members_of(&self, names: &[&str], members: &[&str]) {
        for name in names {
            eventually("the members are seen", || {
                self.seen_by(name).is_some_and(|seen| seen == *members)
            });
        }
    }

    /// Fails the test unless each of `names` sees just these as members.
    #[track_caller]
    pub fn assert_members(&self, names: &[&str]) {
        for name in names {
            let seen = self.seen_by(name);
            assert!(
                seen.as_ref().is_some_and(|seen| seen == names),
                "{name} sees {seen:?}"
            );
        }
    }

    /// The names of the members that a member sees; none when it does not answer.
    fn seen_by(&self, name: &str) -> Option<Vec<String>> {
        let group = self.status(name)?.group?;
        let mut seen: Vec<String> = group
            .members
            .into_iter()
            .map(|member| member.node)
            .collect();
        seen.sort();
        Some(seen)
    }

    fn daemon(&self, name: &str) -> Option<(ControlClient, StatusReport)> {
        let serve = format!("serve:{GROUP}/{name}");
        let mut all = living(&self.place.runtime_dir()).into_iter();
        all.find(|(_, status)| status.serve.as_deref() == Some(&serve))
    }

    /// What a member says of itself.
    pub fn status(&self, name: &str) -> Option<StatusReport> {
        self.daemon(name).map(|(_, status)| status)
    }

    /// Kills a member.
    pub fn kill(&self, name: &str) {
        let pid = self.status(name).expect("the member answers").pid;
        send(pid, Signal::KILL);
        eventually("the killed member is gone", || !is_running(pid));
    }

    /// Starts the members but one, which mounts the bucket at `m` as a member; waits until each knows all.
    #[track_caller]
    pub fn serve_all_and_mount(&self, name: &str) -> std::path::PathBuf {
        for other in self.names.iter().filter(|other| *other != name) {
            self.serve(other, &[]);
        }
        let path = self.place.dir("m");
        // All that a member's arguments say, but of another command.
        let args = self.serve_args(name, &[]);
        let args = args.iter().map(String::as_str);
        let args: Vec<&str> = args.filter(|arg| *arg != "--background").skip(2).collect();
        self.place
            .run(&[&["mount", "s3://bucket", "m"][..], &args].concat())
            .ok();
        let all: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let others: Vec<&str> = all.iter().copied().filter(|other| *other != name).collect();
        self.until_members_of(&others, &all);
        path
    }

    /// Mounts the bucket at `m` as a client that only takes.
    #[track_caller]
    pub fn mount_client(&self, more: &[&str]) -> std::path::PathBuf {
        let path = self.place.dir("m");
        let peers = self.peers();
        let args = [
            &[
                "mount",
                "s3://bucket",
                "m",
                "--node-id",
                "client",
                "--cache-group",
                GROUP,
            ][..],
            &["--no-sharing", "--peers", &peers, "--attr-ttl", "1h"],
            more,
        ];
        let args = args.concat().into_iter().map(str::to_owned);
        let args: Vec<String> = args.chain(self.secret_args()).collect();
        self.place.run(&args).ok();
        path
    }

    /// Mounts the bucket at a directory of the client's name, which only takes, on its host if it has one.
    #[track_caller]
    pub fn mount_as(&self, client: &str, more: &[&str]) -> std::path::PathBuf {
        let path = self.place.dir(client);
        let peers = self.peers();
        let args = [
            "mount",
            "s3://bucket",
            client,
            "--node-id",
            client,
            "--cache-group",
            GROUP,
        ];
        let group = ["--no-sharing", "--peers", &peers];
        let args = [&args[..], &group[..], attr_ttl(more), more].concat();
        let args: Vec<String> = args
            .into_iter()
            .map(str::to_owned)
            .chain(self.secret_args())
            .collect();
        let mut command = match &self.net {
            Net::Apart(spaces) if spaces.has(client) => self.command(client, &args),
            _ => self.place.command(&args),
        };
        Running::start(&mut command).wait(COMMAND_TIMEOUT).ok();
        path
    }

    /// Ends a mount.
    #[track_caller]
    pub fn unmount(&self, client: &str) {
        self.place.run(&["umount", client]).ok();
    }

    /// A client's number in its `stats --json`.
    #[track_caller]
    pub fn stat(&self, mount: &str, pointer: &str) -> u64 {
        let text = self.place.run(&["stats", mount, "--json"]).ok().text();
        let json: Value = serde_json::from_str(&text).unwrap();
        let number = json.pointer(pointer).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("no {pointer} in {text}"))
    }

    /// `status --json` of what `name` names.
    pub fn json(&self, name: &str) -> Value {
        let text = self.place.run(&["status", name, "--json"]).ok().text();
        json(&text)
    }
}

/// The secret's file in a group that is apart.
const SECRET: &str = "secret";

fn names(members: u8) -> Vec<String> {
    (0..members)
        .map(|n| char::from(b'a' + n).to_string())
        .collect()
}

/// A file with a secret, as the product wants it.
pub fn write_secret(place: &Place, name: &str, text: &str) -> String {
    let path = place.dir(".").join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Objects `name-N` of these lengths, each with other bytes.
pub fn put_objects(place: &Place, name: &str, lengths: &[usize]) -> u64 {
    let stored = store_objects(place, name, lengths);
    stored.iter().map(|object| object.len_bytes).sum()
}

/// The same; which they are.
pub fn store_objects(place: &Place, name: &str, lengths: &[usize]) -> Vec<Stored> {
    let put = |(n, len): (usize, &usize)| {
        let (key, bytes) = (
            format!("{name}-{n}"),
            pattern(*len, (n as u8).wrapping_add(1)),
        );
        Stored {
            etag: place.server.put("bucket", &key, bytes),
            key,
            len_bytes: *len as u64,
        }
    };
    lengths.iter().enumerate().map(put).collect()
}

/// Caches are small, unless flags say something else.
fn cache_size(more: &[&str]) -> &'static [&'static str] {
    match more.contains(&"--cache-size") {
        true => &[],
        false => &["--cache-size", "256MiB"],
    }
}

/// Names are believed for an hour, unless flags say something else.
fn attr_ttl(more: &[&str]) -> &'static [&'static str] {
    match more.contains(&"--attr-ttl") {
        true => &[],
        false => &["--attr-ttl", "1h"],
    }
}

/// Reads them all past the kernel's page cache, and compares every byte.
#[track_caller]
pub fn read_objects(dir: &Path, name: &str, lengths: &[usize]) {
    for (n, len) in lengths.iter().enumerate() {
        let path = dir.join(format!("{name}-{n}"));
        let wanted = pattern(*len, (n as u8).wrapping_add(1));
        assert_eq!(fs::metadata(&path).unwrap().len(), *len as u64);
        let file = File::options()
            .read(true)
            .custom_flags(O_DIRECT)
            .open(&path)
            .unwrap();
        let mut space = vec![0u8; MIB + PAGE];
        let skip = space.as_ptr().align_offset(PAGE);
        let buffer = &mut space[skip..skip + MIB];
        let mut at = 0;
        while at < *len {
            let got = file.read_at(buffer, at as u64).unwrap();
            assert!(
                got > 0 && buffer[..got] == wanted[at..at + got],
                "{} at {at}",
                path.display()
            );
            at += got;
        }
    }
}

const O_DIRECT: i32 = 0o40000;

/// Direct reads want buffers that begin at a page.
const PAGE: usize = 4096;

/// How long a silent member stays in the view, with room for a busy machine.
pub const SILENCE_MAX: Duration = Duration::from_secs(25);
