//! `rdma-bw`, `rdma-4k-rtt`, `rdma-rate`, `rdma-read` and `rdma-vs-tcp`: fetches from another process by `transport-rdma`, against perftest
//! and our own TCP. Without a device they are measured in a guest.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Figure, GIB};
use crate::cpus;
use crate::guest::{self, Errand};
use crate::network::node::{Poll, Way};
use crate::network::ours::{self, Load};
use crate::network::perftest::Perftest;
use crate::network::port::Port;
use crate::network::read_or_write::{self, Place};
use crate::run::Run;
use crate::samples::{Part, Samples, Target};
use crate::turns::{self, Measured, Player, Side};

const MIB_BYTES: usize = 1 << 20;
const SHORT_BYTES: usize = 4 << 10;
/// Blocks under way: what a sequential reader's window asks for.
const LONG_DEPTH: usize = 8;
const DEPTH: usize = 32;
/// A fetch as it travels, and the answer to one of 4 KiB: a header with a place, a header with one checksum.
const REQUEST_BYTES: usize = 80;
const ANSWER_BYTES: usize = 36;

/// Measures one of them: here when a device is named, else in the guest.
pub(super) fn measure(figure: Figure, run: &Run) -> Result<Vec<Part>> {
    let Some(port) = &run.rdma.port else {
        let errand = Errand {
            figure: figure.name(),
            arguments: vec!["--perftest".into(), perftest_tree()?.into()],
            environment: Vec::new(),
            instead: "name an RDMA device of this machine (--device)",
        };
        return guest::measure(&errand, run);
    };
    let cpus = cpus::two()?;
    let bench = Bench {
        run,
        cpus,
        port,
        perftest: Perftest {
            tree: run.rdma.perftest.clone(),
            port: port.clone(),
            cpus,
        },
    };
    let mut parts = match figure {
        Figure::RdmaRtt => bench.round_trips(),
        Figure::RdmaRate => bench.rate(),
        Figure::RdmaRead => bench.reads(),
        Figure::RdmaVsTcp => bench.versus_tcp(),
        _ => bench.bandwidths(),
    }?;
    for part in &mut parts {
        part.detail += &format!("; {}", bench.place());
    }
    Ok(parts)
}

/// Where perftest lies, for the guest.
fn perftest_tree() -> Result<String> {
    let output = Command::new("ci/perftest-tree")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run ci/perftest-tree")?;
    ensure!(
        output.status.success(),
        "perftest, which this figure compares with, is not to be had here"
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

struct Bench<'a> {
    run: &'a Run,
    port: &'a Port,
    cpus: [usize; 2],
    perftest: Perftest,
}

impl Bench<'_> {
    fn way(&self, poll: Poll) -> Way {
        Way {
            listen: self.port.ip,
            rdma: Some(self.port.clone()),
            namespace: None,
            poll,
            cpus: Some(self.cpus),
        }
    }

    fn load(&self, len_bytes: usize, depth: usize) -> Load {
        Load {
            len_bytes,
            depth,
            span: self.run.span(),
        }
    }

    /// The device, and the system where it is measured.
    fn place(&self) -> String {
        format!("device {} of {}", self.port.device, guest::kernel())
    }

    /// Blocks of a length against messages of that length.
    fn pair(&self, load: Load) -> Result<Vec<Side>> {
        let way = self.way(Poll::Auto);
        turns::take_turns(
            self.run,
            vec![
                Player::new("Forebay", |_| Ok(ours::run(&way, &load)?.measured)),
                Player::new("ib_write_bw", |_| {
                    let Load {
                        len_bytes, depth, ..
                    } = load;
                    let span = self.run.span();
                    self.perftest
                        .bandwidth("ib_write_bw", len_bytes, depth, span)
                }),
            ],
        )
    }

    fn bandwidths(&self) -> Result<Vec<Part>> {
        println!("  yardstick: {}", self.perftest.version()?);
        let part = |name, target, load: Load| {
            let sides = self.pair(load)?;
            let mut part = turns::ratio(
                name,
                Target::AtLeast(target),
                (&sides[0], &sides[1]),
                "MiB/s",
                Measured::mib_per_second,
            );
            part.detail += &format!("; {} under way", load.depth);
            anyhow::Ok(part)
        };
        Ok(vec![
            part("1MiB", 0.95, self.load(MIB_BYTES, LONG_DEPTH))?,
            part("64KiB", 0.85, self.load(64 << 10, DEPTH))?,
        ])
    }

    fn rate(&self) -> Result<Vec<Part>> {
        println!("  yardstick: {}", self.perftest.version()?);
        let sides = self.pair(self.load(SHORT_BYTES, DEPTH))?;
        let mut part = turns::ratio(
            "4KiB",
            Target::AtLeast(0.45),
            (&sides[0], &sides[1]),
            "/s",
            Measured::iops,
        );
        part.detail += &format!("; {DEPTH} under way");
        Ok(vec![part])
    }

    /// The experiment's reads against perftest's, and beside them its writes: the same messages, moved by the other end.
    fn reads(&self) -> Result<Vec<Part>> {
        println!("  yardstick: {}", self.perftest.version()?);
        let place = Place::new(self.port, Some(self.cpus));
        let load = self.load(MIB_BYTES, LONG_DEPTH);
        let ours = |way| {
            let place = &place;
            move |_| {
                let reached = read_or_write::run(place, way, &load)?;
                Ok(Measured {
                    ios: reached.blocks,
                    bytes: reached.blocks * MIB_BYTES as u64,
                    elapsed: reached.span,
                    cpu: reached.asker + reached.owner,
                    p50_us: None,
                })
            }
        };
        let theirs = |_| {
            let span = self.run.span();
            self.perftest
                .bandwidth("ib_read_bw", MIB_BYTES, LONG_DEPTH, span)
        };
        let sides = turns::take_turns(
            self.run,
            vec![
                Player::new("READ", ours(read_or_write::Way::Read)),
                Player::new("ib_read_bw", theirs),
                Player::new("WRITE", ours(read_or_write::Way::Write)),
            ],
        )?;
        let part = |name, target, other: usize| {
            let pair = (&sides[0], &sides[other]);
            let mut part = turns::ratio(name, target, pair, "MiB/s", Measured::mib_per_second);
            part.detail += &format!("; {LONG_DEPTH} under way");
            part
        };
        Ok(vec![
            part("1MiB", Target::AtLeast(0.95), 1),
            part("against-write", Target::None, 2),
        ])
    }

    fn round_trips(&self) -> Result<Vec<Part>> {
        println!("  yardstick: {}", self.perftest.version()?);
        let load = self.load(SHORT_BYTES, 1);
        let ways = [self.way(Poll::Always), self.way(Poll::Auto)];
        let ours = |way| move |_| Ok(ours::run(way, &load)?.measured);
        let sides = turns::take_turns(
            self.run,
            vec![
                Player::new("Forebay", ours(&ways[0])),
                Player::new("perftest", |_| self.one_way_times()),
                Player::new("Forebay-sleeping", ours(&ways[1])),
            ],
        )?;
        let p50_us = |measured: &Measured| measured.p50_us.unwrap_or(f64::NAN);
        let part =
            |name, target, ours: &Side| turns::ratio(name, target, (ours, &sides[1]), "us", p50_us);
        let mut always = part("always", Target::AtMost(1.25), &sides[0]);
        always.detail += "; both sides poll and never sleep, as perftest does (`--poll always`)";
        let mut auto = part("auto", Target::None, &sides[2]);
        auto.detail += "; both sides sleep after 50 us without work, as by default";
        Ok(vec![always, auto])
    }

    /// What a fetch is made of, each part by its own program.
    fn one_way_times(&self) -> Result<Measured> {
        let times_us = [
            self.perftest.latency_us("ib_send_lat", REQUEST_BYTES)?,
            self.perftest.latency_us("ib_write_lat", SHORT_BYTES)?,
            self.perftest.latency_us("ib_send_lat", ANSWER_BYTES)?,
        ];
        println!("  {:>16}: {times_us:.1?} us", "perftest");
        let sum_us: f64 = times_us.iter().sum();
        Ok(Measured {
            ios: 1,
            bytes: SHORT_BYTES as u64,
            elapsed: std::time::Duration::from_secs_f64(sum_us / 1e6),
            cpu: std::time::Duration::ZERO,
            p50_us: Some(sum_us),
        })
    }

    fn versus_tcp(&self) -> Result<Vec<Part>> {
        let load = self.load(MIB_BYTES, LONG_DEPTH);
        let far = Far::make()?;
        let ways = [
            self.way(Poll::Auto),
            Way {
                listen: far.as_ref().map_or(self.port.ip, |_| Far::IP),
                rdma: None,
                namespace: far.as_ref().map(|_| Far::NAME),
                poll: Poll::Auto,
                cpus: Some(self.cpus),
            },
        ];
        let busy = [const { RefCell::new(Vec::new()) }; 2];
        let ours = |way, busy: &RefCell<Vec<f64>>| {
            let fetched = ours::run(way, &load)?;
            let gib = fetched.measured.bytes as f64 / GIB as f64;
            busy.borrow_mut().push(fetched.busy.as_secs_f64() / gib);
            Ok(fetched.measured)
        };
        let sides = turns::take_turns(
            self.run,
            vec![
                Player::new("RDMA", |_| ours(&ways[0], &busy[0])),
                Player::new("TCP", |_| ours(&ways[1], &busy[1])),
            ],
        )?;
        let pair = (&sides[0], &sides[1]);
        let none = Target::None;
        let speed = turns::ratio("1MiB", none, pair, "MiB/s", Measured::mib_per_second);
        let cpu = turns::ratio("cpu", none, pair, "s/GiB", Measured::cpu_s_per_gib);
        let [ours, theirs] = busy.map(|busy| Samples::new(busy.into_inner()));
        let words = |name, samples: &Samples| {
            format!(
                "{name} {:.2} s/GiB ({:.2} to {:.2})",
                samples.median(),
                samples.min(),
                samples.max()
            )
        };
        let busy = Part {
            name: "machine",
            measured: ours.median() / theirs.median(),
            target: none,
            detail: format!("{}, {}", words("RDMA", &ours), words("TCP", &theirs)),
        };
        Ok(vec![speed, cpu, busy])
    }
}

/// Names an interface of the guest that nothing needs.
const SPARE: &str = "FOREBAY_RDMA_SPARE_INTERFACE";

/// The other end of the guest's pair of Ethernet devices, in a network namespace of its own: between two addresses of one
/// namespace TCP would not use them.
struct Far;

impl Far {
    const NAME: &str = "far";
    const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));

    /// None outside of the guest: there TCP goes from the port's address to itself.
    fn make() -> Result<Option<Far>> {
        let Ok(interface) = std::env::var(SPARE) else {
            return Ok(None);
        };
        let (name, address) = (Self::NAME, format!("{}/24", Self::IP));
        ip(&["netns", "add", name])?;
        let far = Far;
        ip(&["link", "set", &interface, "netns", name])?;
        ip(&["-n", name, "addr", "add", &address, "dev", &interface])?;
        for device in [interface.as_str(), "lo"] {
            ip(&["-n", name, "link", "set", device, "up"])?;
        }
        Ok(Some(far))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // With its namespace the interface would go, and with that the other end and its RDMA device.
        if let Ok(interface) = std::env::var(SPARE) {
            let _ = ip(&["-n", Self::NAME, "link", "set", &interface, "netns", "1"]);
        }
        let _ = ip(&["netns", "delete", Self::NAME]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let status = Command::new("ip").args(arguments).status();
    let status = status.context("cannot run ip")?;
    ensure!(status.success(), "ip {} failed", arguments.join(" "));
    Ok(())
}
