//! Public tools that do the same work, as sides.
//!
//! | file | tools |
//! |---|---|
//! | [`disks`] | fio, spdk_nvme_perf |
//! | [`links`] | iperf3, ucx_perftest |
//! | [`mounts`] | rclone mount, s3fs, mount-s3 |
//!
//! `captured` holds what they printed once, for the tests of what reads it.

pub mod disks;
pub mod links;
pub mod mounts;

use std::process::{Command, Stdio};

use anyhow::{Result, bail, ensure};

use crate::patterns::Work;
use crate::patterns::side::MountSide;
use crate::plan::Plan;
use crate::scenario::{Kind, Scenario};
use crate::side::Side;
use crate::spdk_perf;
use crate::targets::local::LocalFiles;

/// A tool by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Reads of files by io_uring.
    Fio,
    /// SPDK's own tool.
    Spdk,
    /// A stream over a socket.
    Iperf3,
    /// Messages over UCX.
    Ucx,
    /// `rclone mount` with its full cache.
    Rclone,
    /// s3fs with its cache.
    S3fs,
    /// AWS's mount with its cache.
    MountS3,
    /// The same files on the local file system.
    Local,
}

impl Peer {
    /// All of them.
    pub const ALL: [Peer; 8] = [
        Peer::Fio,
        Peer::Spdk,
        Peer::Iperf3,
        Peer::Ucx,
        Peer::Rclone,
        Peer::S3fs,
        Peer::MountS3,
        Peer::Local,
    ];

    /// Those that mount a bucket.
    pub const MOUNTS: [Peer; 3] = [Peer::MountS3, Peer::S3fs, Peer::Rclone];

    /// On the command line, and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Fio => "fio",
            Peer::Spdk => "spdk",
            Peer::Iperf3 => "iperf3",
            Peer::Ucx => "ucx",
            Peer::Rclone => "rclone",
            Peer::S3fs => "s3fs",
            Peer::MountS3 => "mount-s3",
            Peer::Local => "local",
        }
    }

    /// The peer called `name`.
    ///
    /// # Errors
    /// When there is none; the message lists all.
    pub fn by_name(name: &str) -> Result<Peer> {
        match Peer::ALL.into_iter().find(|peer| peer.name() == name) {
            Some(peer) => Ok(peer),
            None => bail!(
                "no peer `{name}`; there are: {}",
                Peer::ALL.map(Peer::name).join(", ")
            ),
        }
    }

    /// The program, and how it is asked for its version.
    fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Peer::Fio => Some(("fio", "--version")),
            Peer::Iperf3 => Some(("iperf3", "--version")),
            Peer::Ucx => Some(("ucx_perftest", "-h")),
            Peer::Rclone => Some(("rclone", "version")),
            Peer::S3fs => Some(("s3fs", "--version")),
            Peer::MountS3 => Some(("mount-s3", "--version")),
            Peer::Spdk | Peer::Local => None,
        }
    }

    /// Whether its program is on the path.
    pub fn is_here(self) -> bool {
        if self == Peer::Spdk {
            return spdk_perf::program().is_ok();
        }
        self.program()
            .is_none_or(|(program, version)| output(program, version).is_some())
    }

    /// What of a scenario it does otherwise, in words: then nothing is compared.
    pub fn unlike(self, scenario: &Scenario) -> Vec<String> {
        let kind = scenario.kind();
        let mut unlike = Vec::new();
        let mut must = |is: bool, words: &str| {
            if !is {
                unlike.push(words.to_owned());
            }
        };
        let word = |key: &str| scenario.has(key).then(|| scenario.word(key));
        let mounts = matches!(
            kind,
            Kind::Fuse
                | Kind::Epoch
                | Kind::Stream
                | Kind::Safetensors
                | Kind::CheckpointLoad
                | Kind::List
                | Kind::Trace
        );
        match self {
            Peer::Fio => {
                let disk = word("on") == Some("uring")
                    || kind == Kind::Engine && word("tier") == Some("disk");
                must(disk, "fio reads files: device:on=uring or engine:tier=disk");
                must(
                    scenario.rate().is_none(),
                    "fio counts times from submission, not from arrival: rate=0",
                );
            }
            Peer::Spdk => {
                must(
                    word("on") == Some("spdk"),
                    "it reads what SPDK drives: device:on=spdk",
                );
                must(
                    scenario.rate().is_none(),
                    "it counts times from submission, not from arrival: rate=0",
                );
            }
            Peer::Iperf3 | Peer::Ucx => {
                must(
                    kind == Kind::Transport && word("via") == Some("tcp"),
                    "it moves bytes over TCP: transport:via=tcp",
                );
                must(scenario.rate().is_none(), "it knows no arrivals: rate=0");
                let long = kind != Kind::Transport || scenario.size("block") >= 64 << 10;
                must(
                    self == Peer::Ucx || long,
                    "iperf3 sends a stream that nobody asks for: block=64KiB or more",
                );
            }
            Peer::Rclone | Peer::S3fs | Peer::MountS3 => {
                must(mounts, "it mounts a bucket: fuse or a pattern");
                must(
                    word("tier") != Some("memory"),
                    "it caches on disk: tier=disk",
                );
            }
            Peer::Local => {
                must(
                    mounts,
                    "local files are read as a mount's: fuse or a pattern",
                );
                must(
                    word("tier") != Some("memory"),
                    "they are on disk: tier=disk",
                );
                must(
                    word("state") != Some("cold"),
                    "there is nothing that they were fetched from: state=warm",
                );
            }
        }
        unlike
    }

    /// It as a side.
    ///
    /// # Errors
    /// When it does something else than the scenario says; says in what.
    pub fn side(self, scenario: &Scenario, plan: &Plan) -> Result<Box<dyn Side>> {
        let unlike = self.unlike(scenario);
        ensure!(
            unlike.is_empty(),
            "{} does not do what {scenario} says: {}",
            self.name(),
            unlike.join("; ")
        );
        let work = Work::open(scenario)?;
        let mount = |target| -> Box<dyn Side> { Box::new(MountSide::peer(target, work, plan)) };
        Ok(match self {
            Peer::Fio => Box::new(disks::Fio::new(scenario, plan)),
            Peer::Spdk => disks::spdk(scenario, plan)?,
            Peer::Iperf3 => Box::new(links::Iperf3::new(scenario)),
            Peer::Ucx => Box::new(links::Ucx::new(scenario)),
            Peer::Local => mount(Box::new(LocalFiles::new(plan))),
            Peer::Rclone | Peer::S3fs | Peer::MountS3 => {
                mount(Box::new(mounts::PeerMount::new(self, scenario, plan)))
            }
        })
    }

    /// Name and version, in a line.
    pub(crate) fn version(self) -> String {
        let told = self
            .program()
            .and_then(|(program, version)| output(program, version));
        told.map_or_else(|| self.name().to_owned(), |text| first_line(&text))
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// What a program prints; none when it is not there.
fn output(program: &str, argument: &str) -> Option<String> {
    let output = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unlike(peer: Peer, scenario: &str) -> usize {
        peer.unlike(&scenario.parse().expect("it is one")).len()
    }

    #[test]
    fn a_peer_is_refused_for_what_it_does_otherwise() {
        for (peer, right, wrong) in [
            (Peer::Fio, "device", "device:on=memory"),
            (Peer::Fio, "engine:tier=disk", "device:rate=10"),
            (Peer::Fio, "device:on=uring", "device:on=spdk"),
            (Peer::Spdk, "device:on=spdk", "device"),
            (Peer::Spdk, "device:on=spdk", "device:on=spdk,rate=10"),
            (Peer::Iperf3, "transport", "transport:block=4KiB"),
            (Peer::Ucx, "transport:block=4KiB", "transport:via=rdma"),
            (Peer::Rclone, "list", "device"),
            (Peer::S3fs, "epoch:state=cold", "fuse:tier=memory"),
            (Peer::MountS3, "fuse:tier=disk", "group:tier=disk"),
            (Peer::Local, "stream", "stream:state=cold"),
        ] {
            assert_eq!(unlike(peer, right), 0, "{peer:?} {right}");
            assert!(unlike(peer, wrong) > 0, "{peer:?} {wrong}");
        }
        for peer in Peer::ALL {
            assert_eq!(Peer::by_name(peer.name()).ok(), Some(peer));
        }
        let refused = Peer::by_name("dd").expect_err("there is none").to_string();
        assert!(
            refused.contains("no peer `dd`; there are: fio, "),
            "{refused}"
        );
        assert!(Peer::Local.is_here());
    }

    #[test]
    fn versions_are_the_first_line() {
        assert_eq!(
            first_line(include_str!("captured/rclone.txt")),
            "rclone v1.60.1-DEV"
        );
        assert!(first_line(include_str!("captured/s3fs.txt")).contains("V1.90"));
    }
}
