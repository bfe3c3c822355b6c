//! Members and clients of one group, each a process.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use forebay_cli::control::client::{ControlClient, living};
use forebay_cli::control::report::StatusReport;
use rustix::process::Signal;
use serde_json::Value;

use super::owners::Stored;
use super::support::{
    COMMAND_TIMEOUT, Place, Running, eventually, is_running, json, pattern, send,
};

/// The group's name in all tests.
pub const GROUP: &str = "g";
const MIB: usize = 1 << 20;

/// One test's group: members `a`, `b`, `c` ..., each at a loopback address of its own, so that no two tests and no
/// two members race for a port.
pub struct Cluster {
    pub place: Place,
    net: [u8; 3],
    names: Vec<String>,
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
        let names = (0..members).map(|n| char::from(b'a' + n).to_string());
        Self {
            place: Place::new(),
            net,
            names: names.collect(),
        }
    }

    /// A member's address.
    pub fn address(&self, name: &str) -> String {
        let place = self
            .names
            .iter()
            .position(|known| known == name)
            .expect("a member's name");
        let [x, y, z] = self.net;
        format!("{x}.{y}.{z}.{}", place + 1)
    }

    /// `--peers` for everybody.
    pub fn peers(&self) -> String {
        let all: Vec<String> = self.names.iter().map(|name| self.address(name)).collect();
        all.join(",")
    }

    /// The arguments of `serve` for a member.
    pub fn serve_args(&self, name: &str, more: &[&str]) -> Vec<String> {
        let cache = self.place.dir(&format!("cache-{name}"));
        let listen = format!("{}:7440", self.address(name));
        let peers = self.peers();
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
            &[
                "--cache-size",
                "256MiB",
                "--free-space-ratio",
                "0",
                "--attr-ttl",
                "1h",
            ],
            more,
        ];
        args.concat().into_iter().map(str::to_owned).collect()
    }

    /// Starts a member and waits until it serves.
    #[track_caller]
    pub fn serve(&self, name: &str, more: &[&str]) {
        self.place.run(&self.serve_args(name, more)).ok();
    }

    /// Starts all members at once and waits until each knows all.
    #[track_caller]
    pub fn serve_all(&self) {
        self.serve_all_with(|_| &[]);
    }

    /// The same with further arguments for each.
    #[track_caller]
    pub fn serve_all_with(&self, more: impl Fn(&str) -> &'static [&'static str]) {
        let start = |name: &String| {
            let args = self.serve_args(name, more(name));
            Running::start(&mut self.place.command(&args))
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
        self.until_seen(names, names);
    }

    /// Waits until each of `by` sees just `names` as members.
    #[track_caller]
    fn until_seen(&self, by: &[&str], names: &[&str]) {
        for name in by {
            eventually("the members see each other", || {
                self.seen_by(name).is_some_and(|seen| seen == *names)
            });
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
        self.until_seen(&others, &all);
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
        self.place.run(&args.concat()).ok();
        path
    }

    /// `status --json` of what `name` names.
    pub fn json(&self, name: &str) -> Value {
        let text = self.place.run(&["status", name, "--json"]).ok().text();
        json(&text)
    }
}

/// Objects `name-N` of these lengths, each with other bytes.
pub fn put_objects(place: &Place, name: &str, lengths: &[usize]) -> u64 {
    let stored = store_objects(place, name, lengths);
    stored.iter().map(|object| object.len_bytes).sum()
}

/// The same; which they are.
pub fn store_objects(place: &Place, name: &str, lengths: &[usize]) -> Vec<Stored> {
    let put = |(n, len): (usize, &usize)| {
        let (key, bytes) = (format!("{name}-{n}"), pattern(*len, n as u8 + 1));
        Stored {
            etag: place.server.put("bucket", &key, bytes),
            key,
            len_bytes: *len as u64,
        }
    };
    lengths.iter().enumerate().map(put).collect()
}

/// Reads them all past the kernel's page cache, and compares every byte.
#[track_caller]
pub fn read_objects(dir: &Path, name: &str, lengths: &[usize]) {
    for (n, len) in lengths.iter().enumerate() {
        let path = dir.join(format!("{name}-{n}"));
        let wanted = pattern(*len, n as u8 + 1);
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
