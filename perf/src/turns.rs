//! Two sides that take turns within one run, so that the machine's moods hit both.

use std::time::Duration;

use anyhow::Result;

use crate::interrupt;
use crate::run::Run;
use crate::samples::{Part, Samples, Target};

const GIB: f64 = (1u64 << 30) as f64;
const MIB: f64 = (1u64 << 20) as f64;

/// What one side did in one turn.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Operations that ended.
    pub ios: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// From the start of the first to the end of the last.
    pub elapsed: Duration,
    /// Processor time, user and system, of everything on that side.
    pub cpu: Duration,
    /// Median latency in microseconds, where it was taken.
    pub p50_us: Option<f64>,
}

impl Measured {
    /// Operations per second.
    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.elapsed.as_secs_f64()
    }

    /// MiB per second.
    pub fn mib_per_second(&self) -> f64 {
        self.bytes as f64 / MIB / self.elapsed.as_secs_f64()
    }

    /// Processor time of one operation, nanoseconds.
    pub fn cpu_ns_per_io(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.ios.max(1) as f64
    }

    /// Processor seconds for each GiB.
    pub fn cpu_s_per_gib(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / GIB)
    }
}

/// All turns of one side.
#[derive(Debug)]
pub struct Side {
    /// How it is called in the figure's text.
    pub name: &'static str,
    /// Its turns, in order.
    pub turns: Vec<Measured>,
}

impl Side {
    /// A quantity of all turns.
    pub fn of(&self, quantity: impl Fn(&Measured) -> f64) -> Samples {
        Samples::new(self.turns.iter().map(quantity).collect())
    }

    /// The median of a quantity, and its spread, in words.
    pub fn words(&self, unit: &str, digits: usize, quantity: impl Fn(&Measured) -> f64) -> String {
        let samples = self.of(quantity);
        format!(
            "{} {:.digits$} {unit} ({:.digits$} to {:.digits$})",
            self.name,
            samples.median(),
            samples.min(),
            samples.max()
        )
    }
}

/// One side's name and what it does in a turn, given the turn's number.
pub struct Player<'a> {
    /// How it is called.
    pub name: &'static str,
    /// One turn.
    pub play: Box<dyn FnMut(u64) -> Result<Measured> + 'a>,
}

impl<'a> Player<'a> {
    /// Names a side.
    pub fn new(name: &'static str, play: impl FnMut(u64) -> Result<Measured> + 'a) -> Self {
        Self {
            name,
            play: Box::new(play),
        }
    }
}

/// Lets all play in turn, as often as the run says. Who begins moves on each time, so that nobody always
/// finds the machine as the same other one left it.
///
/// # Errors
/// The first turn that fails.
pub fn take_turns(run: &Run, mut players: Vec<Player<'_>>) -> Result<Vec<Side>> {
    let mut sides: Vec<Side> = players
        .iter()
        .map(|player| Side {
            name: player.name,
            turns: Vec::new(),
        })
        .collect();
    let count = players.len();
    for repetition in 0..run.repetitions() {
        for position in 0..count {
            let number = (position + repetition) % count;
            interrupt::check()?;
            let turn = (players[number].play)(repetition as u64)?;
            println!(
                "  {:>16}: {:9.0} IO/s {:8.1} MiB/s, {:8.0} ns and {:.3} s/GiB of processor time",
                sides[number].name,
                turn.iops(),
                turn.mib_per_second(),
                turn.cpu_ns_per_io(),
                turn.cpu_s_per_gib()
            );
            sides[number].turns.push(turn);
        }
    }
    Ok(sides)
}

/// The ratio of the sides' medians; the words give both medians with their spread and that of the ratios of single
/// pairs.
pub fn ratio(
    name: &'static str,
    target: Target,
    (ours, theirs): (&Side, &Side),
    unit: &str,
    quantity: impl Fn(&Measured) -> f64 + Copy,
) -> Part {
    let pairs = Samples::new(
        ours.turns
            .iter()
            .zip(&theirs.turns)
            .map(|(our, their)| quantity(our) / quantity(their))
            .collect(),
    );
    let measured = ours.of(quantity).median() / theirs.of(quantity).median();
    let digits = if ours.of(quantity).median() < 10.0 {
        3
    } else {
        0
    };
    Part {
        name,
        measured,
        target,
        detail: format!(
            "{}, {}; ratio of single pairs {:.3} to {:.3}",
            ours.words(unit, digits, quantity),
            theirs.words(unit, digits, quantity),
            pairs.min(),
            pairs.max()
        ),
    }
}

/// Adds the processor time of all sides, that of their readers included.
pub fn with_cpu(
    mut part: Part,
    (sides, unit, digits): (&[Side], &str, usize),
    quantity: fn(&Measured) -> f64,
) -> Part {
    let words: Vec<String> = sides
        .iter()
        .map(|side| side.words(unit, digits, quantity))
        .collect();
    part.detail += &format!("; processor time with the readers': {}", words.join(", "));
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(ios: u64, millis: u64) -> Measured {
        Measured {
            ios,
            bytes: ios * 4096,
            elapsed: Duration::from_millis(millis),
            cpu: Duration::from_millis(millis / 2),
            p50_us: None,
        }
    }

    #[test]
    fn everybody_plays_as_often_and_begins_in_turn() {
        let order = std::cell::RefCell::new(Vec::new());
        let run = Run {
            short: true,
            dir: "/nowhere".into(),
            rdma: Default::default(),
            nvme: Default::default(),
        };
        let play = |name: &'static str, ios| {
            let order = &order;
            Player::new(name, move |_| {
                order.borrow_mut().push(name);
                Ok(measured(ios, 1000))
            })
        };
        let sides = take_turns(&run, vec![play("a", 900), play("b", 1000)]).expect("no turn fails");
        assert_eq!(*order.borrow(), ["a", "b", "b", "a", "a", "b"]);
        let part = ratio(
            "p",
            Target::AtLeast(0.95),
            (&sides[0], &sides[1]),
            "IOPS",
            Measured::iops,
        );
        assert!((part.measured - 0.9).abs() < 1e-9 && !part.ok());
        assert_eq!(measured(1000, 1000).cpu_ns_per_io(), 500_000.0);
    }
}
