//! What a run would take of this machine, looked at before anything is made: a scenario may name more than there is.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::patterns::Work;
use crate::plan::Plan;
use crate::scenario::{Kind, Scenario};
use crate::trace::Trace;

/// A name in the list of objects, in the server's, in the daemon's.
const NAME_BYTES: u128 = 256;
const GIB: f64 = (1u64 << 30) as f64;

/// At least so much; 128 bits, so that no product of settings overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bytes {
    memory: u128,
    disk: u128,
}

impl Bytes {
    /// What `sides` sides of a scenario take together, with so many spans each.
    fn needed(work: &Work, repeats: usize, sides: usize) -> Bytes {
        let scenario = work.scenario();
        let sides = sides as u128;
        let word = |name: &str| scenario.has(name).then(|| scenario.word(name));
        let size = |name: &str| u128::from(scenario.size(name));
        let buffers = match scenario.has("block") && scenario.has("depth") {
            true => size("block") * u128::from(scenario.count("depth")),
            false => 0,
        };
        let replayed = work.trace().map_or(0, Trace::memory_bytes);
        let replayed = u128::from(replayed);
        let in_memory = |memory: u128| Bytes { memory, disk: 0 };
        let on_disk = |disk: u128| Bytes { memory: 0, disk };
        let data = match scenario.kind() {
            Kind::Device if word("on") == Some("memory") => in_memory(size("data")),
            // The device is named, and takes what it has room for.
            Kind::Device if word("on") == Some("spdk") => Bytes::default(),
            Kind::Engine if word("tier") == Some("memory") => in_memory(size("data")),
            Kind::Device | Kind::Engine => on_disk(size("data") * sides),
            Kind::Transport | Kind::Origin => Bytes::default(),
            _ => {
                let passes = match work.is_cold() {
                    true => repeats as u128 + 1,
                    false => 1,
                };
                let (objects, bytes) = work.amount();
                let data = bytes * passes;
                let names = objects * passes * NAME_BYTES * sides;
                match (scenario.kind(), work.tier()) {
                    (Kind::List, _) => in_memory(names),
                    (_, "disk") => Bytes {
                        memory: names,
                        disk: data * sides,
                    },
                    _ => in_memory(names + data),
                }
            }
        };
        Bytes {
            memory: data.memory + buffers + replayed,
            ..data
        }
    }

    /// What is free here; what the system does not tell of is no bound.
    fn free(dir: &Path) -> Bytes {
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let available = memory.lines().find_map(|line| {
            let kib = line.strip_prefix("MemAvailable:")?.split_whitespace();
            kib.map_while(|word| word.parse::<u128>().ok()).next()
        });
        let there = dir.ancestors().find(|path| path.exists());
        let disk = there.and_then(|path| rustix::fs::statvfs(path).ok());
        Bytes {
            memory: available.map_or(u128::MAX, |kib| kib * 1024),
            disk: disk.map_or(u128::MAX, |disk| {
                u128::from(disk.f_bavail) * u128::from(disk.f_frsize)
            }),
        }
    }

    fn fits(self, free: Bytes, scenario: &Scenario, dir: &Path) -> Result<()> {
        let gib = |bytes: u128| bytes as f64 / GIB;
        ensure!(
            self.memory <= free.memory,
            "{scenario} takes {:.1} GiB of memory, and {:.1} GiB are available: less data, fewer files, repeats or sides",
            gib(self.memory),
            gib(free.memory)
        );
        ensure!(
            self.disk <= free.disk,
            "{scenario} takes {:.1} GiB below {}, and {:.1} GiB are free there: less data, fewer files, repeats or sides; or another --dir",
            gib(self.disk),
            dir.display(),
            gib(free.disk)
        );
        Ok(())
    }
}

/// Whether this machine has what a run takes.
///
/// # Errors
/// When it has not; says how much of what is missing.
pub fn check(scenario: &Scenario, plan: &Plan, sides: usize) -> Result<()> {
    let dir = &plan.run.dir;
    Bytes::needed(&Work::open(scenario)?, plan.repeats, sides).fits(Bytes::free(dir), scenario, dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_takes_follows_from_its_settings() {
        const MIB: u128 = 1 << 20;
        let needed = |text: &str, sides| {
            let scenario = text.parse().expect("it is one");
            let bytes = Bytes::needed(&Work::new(&scenario), 5, sides);
            // Buffers and names are less than this.
            (bytes.memory / (64 * MIB), bytes.disk / (64 * MIB))
        };
        assert_eq!(needed("device:on=memory,data=1GiB", 1), (16, 0));
        assert_eq!(needed("device:data=1GiB", 2), (0, 32));
        assert_eq!(needed("device:on=spdk,data=1TiB", 2), (0, 0));
        assert_eq!(needed("engine:data=128MiB", 1), (2, 0));
        assert_eq!(needed("fuse:data=128MiB", 1), (2, 0));
        assert_eq!(needed("fuse:block=16MiB,depth=32,tier=disk", 2), (8, 16));
        assert_eq!(needed("stream:state=cold", 2), (0, 192));
        assert_eq!(needed("stream:state=cold,tier=memory", 1), (96, 0));
        let names = needed("list:objects=10000000,state=cold", 4);
        assert_eq!(names, (6 * 4 * 2_560_000_000 / (64 * MIB), 0));
        // More than 64 bits hold, and no panic.
        let all = needed("epoch:files=10000000,size=1TiB,state=cold", 4);
        assert!(all.1 > u128::from(u64::MAX) / (64 * MIB));
    }

    #[test]
    fn a_trace_takes_its_readers_buffers() -> anyhow::Result<()> {
        use forebay_cli::trace::format::{Encoder, Record, header};

        use crate::trace::tests::{read, timed};

        let mut encoder = Encoder::default();
        encoder.push(&Record::File {
            size_bytes: 16 << 20,
            name: None,
        });
        encoder.push(&Record::Handle { file: 0 });
        for reader in 0..100 {
            encoder.push(&read(timed(1, 50, reader, 0), 0, 16 << 20));
        }
        encoder.push(&Record::End {
            elapsed_ns: 60,
            accesses: 100,
        });
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), [&header(false)[..], &encoder.take()].concat())?;
        let scenario = format!("trace:file={},tier=disk", file.path().display()).parse()?;
        let needed = Bytes::needed(&Work::open(&scenario)?, 5, 1);
        assert_eq!(needed.memory >> 20, 1_600);
        Ok(())
    }

    #[test]
    fn too_much_is_refused_with_both_numbers() {
        let (dir, scenario) = (Path::new("/"), "fuse".parse().expect("it is one"));
        let bytes = |memory: u128, disk: u128| Bytes {
            memory: memory << 30,
            disk: disk << 30,
        };
        let said = |needed: Bytes| {
            let fits = needed.fits(bytes(2, 3), &scenario, dir);
            fits.map_or_else(|error| error.to_string(), |()| String::new())
        };
        assert_eq!(said(bytes(2, 3)), "");
        let memory = said(bytes(4, 0));
        assert!(
            memory.contains("4.0 GiB of memory, and 2.0 GiB"),
            "{memory}"
        );
        let disk = said(bytes(0, 5));
        assert!(disk.contains("5.0 GiB below /, and 3.0 GiB"), "{disk}");
        let here = Bytes::free(Path::new("/no/such/dir"));
        assert!(here.memory < 1 << 60 && here.disk < 1 << 60, "{here:?}");
    }
}
