//! A run: sides take turns, limits are measured between their spans, and all of it becomes an outcome.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};

use crate::budget;
use crate::ceilings::{Ceiling, Unit};
use crate::interrupt;
use crate::machine::Machine;
use crate::outcome::{CeilingOutcome, Outcome, Parts, SideOutcome, Span, Spread};
use crate::plan::Plan;
use crate::samples::Samples;
use crate::scenario::Scenario;
use crate::side::{Side, Turn};

/// In what is said of a side that left something behind.
pub const NOT_ENDED: &str = "did not end in order";

/// Measures a scenario. Who begins moves on with each round: A B, B A, and so on.
///
/// # Errors
/// What a side could not do; all are ended before that is told. That one did not end in order afterwards is a note.
pub fn run(scenario: &Scenario, sides: Vec<Box<dyn Side + '_>>, plan: &Plan) -> Result<Outcome> {
    conduct(scenario, sides, plan, false)
}

/// The same, but of the sides behind the first one that fails takes nothing with it: it is left out from then on, and the outcome says why.
///
/// # Errors
/// What the first side could not do.
pub fn run_without_the_failed(
    scenario: &Scenario,
    sides: Vec<Box<dyn Side + '_>>,
    plan: &Plan,
) -> Result<Outcome> {
    conduct(scenario, sides, plan, true)
}

fn conduct(
    scenario: &Scenario,
    mut sides: Vec<Box<dyn Side + '_>>,
    plan: &Plan,
    goes_on: bool,
) -> Result<Outcome> {
    ensure!(!sides.is_empty() && plan.repeats > 0, "nothing to measure");
    budget::check(scenario, plan, sides.len())?;
    let began = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut failed = Failed {
        goes_on,
        why: vec![None; sides.len()],
    };
    let measured = measure(&mut sides, plan, &mut failed);
    let mut left = Vec::new();
    for side in &mut sides {
        if let Err(error) = side.clean() {
            left.push(format!("{} {NOT_ENDED}: {error:#}", side.name()));
        }
    }
    let (spans, limits, mut notes) = measured.map_err(|error| match left.is_empty() {
        true => error,
        false => anyhow!("{error:#}; and {}", left.join("; ")),
    })?;
    // What was measured before that is right.
    notes.extend(left);
    let outcomes = sides.iter().zip(spans);
    let outcomes: Vec<SideOutcome> = outcomes
        .filter(|(_, spans)| !spans.is_empty())
        .map(|(side, spans)| SideOutcome::new(side.name(), side.version(), spans))
        .collect();
    let mut ceilings = shares(&outcomes[0], sides[0].as_ref(), limits);
    let own = sides[0].processors();
    ceilings.extend(own.and_then(|own| processors(&outcomes[0], own)));
    let why: Vec<String> = failed.why.into_iter().flatten().collect();
    let mut outcome = Outcome::new(Parts {
        scenario,
        seed: plan.seed,
        span_s: plan.span.as_secs_f64(),
        warm_up_s: plan.warm_up.as_secs_f64(),
        began_unix_s: began.map_or(0, |since| since.as_secs()),
        machine: Machine::here(&plan.run.dir),
        sides: outcomes,
        ceilings,
        notes,
    });
    outcome.failed = why;
    Ok(outcome)
}

/// Sides that are left out, and why.
struct Failed {
    /// Whether the others go on.
    goes_on: bool,
    why: Vec<Option<String>>,
}

impl Failed {
    /// What came of a side: none when it failed and the others go on.
    fn take<T>(&mut self, number: usize, what: &str, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            // A signal ends all.
            Err(error) if self.goes_on && number > 0 && !interrupt::came() => {
                let why = format!("{what}: {error:#}");
                println!("  FAILED: {why}");
                self.why[number] = Some(why);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn has(&self, number: usize) -> bool {
        self.why[number].is_some()
    }
}

/// Other work on the machine beyond so many processors is told.
const OTHERS_MAX: f64 = 0.2;

/// What a reader must know of the machine meanwhile: the middle of all spans.
fn company(spans: &[Vec<Span>]) -> Option<String> {
    let all = spans.iter().flatten().filter(|span| span.elapsed_s > 0.0);
    let others: Vec<f64> = all
        .map(|span| (span.machine_busy_s - span.cpu_s()) / span.elapsed_s)
        .collect();
    let others = (!others.is_empty()).then(|| Samples::new(others).median())?;
    (others > OTHERS_MAX).then(|| {
        format!(
            "other work, the kernel's own and the host's took the time of {others:.1} processors meanwhile: the numbers mean less"
        )
    })
}

/// A limit and what it measured.
type Limit = (Box<dyn Ceiling>, Vec<f64>);

type Measured = (Vec<Vec<Span>>, Vec<Limit>, Vec<String>);

fn measure(sides: &mut [Box<dyn Side + '_>], plan: &Plan, failed: &mut Failed) -> Result<Measured> {
    for (number, side) in sides.iter_mut().enumerate() {
        interrupt::check()?;
        let name = side.name().to_owned();
        println!("  {name}: {}, preparing", side.version());
        let turn = Turn {
            number: 0,
            span: plan.warm_up,
            seed: plan.seed,
        };
        let ready = side
            .prepare()
            .with_context(|| format!("{name}: not prepared"))
            .and_then(|()| {
                let warmed = side.warm(&turn);
                warmed.with_context(|| format!("{name}: not warmed"))
            });
        failed.take(number, "before its first span", ready)?;
    }
    let mut limits: Vec<Limit> = match plan.ceilings {
        true => sides[0]
            .ceilings()?
            .into_iter()
            .map(|one| (one, Vec::new()))
            .collect(),
        false => Vec::new(),
    };
    let mut spans = vec![Vec::new(); sides.len()];
    for round in 0..plan.repeats {
        let turn = Turn {
            number: round as u64 + 1,
            span: plan.span,
            seed: plan.seed.wrapping_add(round as u64 + 1),
        };
        for (limit, values) in &mut limits {
            interrupt::check()?;
            let value = limit.measure(turn.seed);
            values.push(value.with_context(|| format!("the limit {}", limit.name()))?);
        }
        for position in 0..sides.len() {
            interrupt::check()?;
            let number = (position + round) % sides.len();
            if failed.has(number) {
                continue;
            }
            let side = &mut sides[number];
            let span = side.span(&turn).and_then(|span| {
                ensure!(span.operations > 0, "no operation ended in a span");
                Ok(span)
            });
            let span = span.with_context(|| side.name().to_owned());
            let what = format!("in round {}", round + 1);
            let Some(span) = failed.take(number, &what, span)? else {
                continue;
            };
            println!("  {:>12}: {}", side.name(), crate::table::span(&span));
            spans[number].push(span);
        }
    }
    let notes = sides.iter().enumerate();
    let notes = notes.filter(|(number, _)| !failed.has(*number));
    let notes = notes.flat_map(|(_, side)| side.notes());
    let notes = notes.chain(company(&spans)).collect();
    Ok((spans, limits, notes))
}

fn shares(first: &SideOutcome, side: &dyn Side, limits: Vec<Limit>) -> Vec<CeilingOutcome> {
    let summary = &first.summary;
    let from_device = || {
        let spans = first.spans.iter();
        let rates = spans.map(|span| side.device_bytes(span) as f64 / span.elapsed_s);
        Spread::of(rates.collect())
    };
    let share = |(limit, values): (Box<dyn Ceiling>, Vec<f64>)| {
        let reached = match limit.unit() {
            Unit::Bytes if limit.name() == "device" => from_device(),
            Unit::Bytes => summary.bytes_per_s,
            Unit::Operations => summary.operations_per_s,
        };
        let value = Samples::new(values);
        Some(CeilingOutcome {
            name: limit.name().to_owned(),
            unit: limit.unit().name().to_owned(),
            share: reached?.median / value.median(),
            value: Spread {
                median: value.median(),
                min: value.min(),
                max: value.max(),
            },
        })
    };
    limits.into_iter().filter_map(share).collect()
}

/// The time of the processors that the side may use, which the spans tell.
fn processors(first: &SideOutcome, (name, count): (&'static str, f64)) -> Option<CeilingOutcome> {
    let used = first.summary.processors?;
    Some(CeilingOutcome {
        name: name.to_owned(),
        unit: "processors".to_owned(),
        value: Spread {
            median: count,
            min: count,
            max: count,
        },
        share: used.median / count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patterns::Work;
    use crate::patterns::side::MountSide;
    use crate::run::{Nvme, Rdma, Run};
    use crate::targets::local::LocalFiles;
    use std::time::Duration;

    struct Fixed(&'static str);

    impl Ceiling for Fixed {
        fn name(&self) -> &str {
            self.0
        }

        fn unit(&self) -> Unit {
            Unit::Bytes
        }

        fn measure(&mut self, _: u64) -> Result<f64> {
            Ok(0.0)
        }
    }

    /// Whose spans may fail, and whose end does.
    struct Lingering {
        fails: bool,
    }

    impl Side for Lingering {
        fn name(&self) -> &str {
            "Lingering"
        }

        fn version(&self) -> String {
            String::new()
        }

        fn prepare(&mut self) -> Result<()> {
            Ok(())
        }

        fn warm(&mut self, _: &Turn) -> Result<()> {
            Ok(())
        }

        fn span(&mut self, _: &Turn) -> Result<Span> {
            ensure!(!self.fails, "torn");
            Ok(span_of(1, 1.0))
        }

        fn clean(&mut self) -> Result<()> {
            ensure!(false, "busy");
            Ok(())
        }
    }

    #[test]
    fn a_side_that_does_not_end_is_told_and_loses_nothing() -> Result<()> {
        let plan = short_plan();
        let scenario: Scenario = "transport".parse()?;
        let of = |fails| run(&scenario, vec![Box::new(Lingering { fails })], &plan);
        let outcome = of(false)?;
        assert_eq!(outcome.sides[0].spans.len(), 1);
        let told = "Lingering did not end in order: busy".to_owned();
        assert!(outcome.notes.contains(&told), "{:?}", outcome.notes);
        let said = of(true).expect_err("its span fails").to_string();
        assert!(said.contains("torn") && said.contains(&told), "{said}");
        Ok(())
    }

    #[test]
    fn a_peer_that_fails_takes_no_spans_of_others_with_it() -> Result<()> {
        let plan = short_plan();
        let scenario: Scenario = "transport".parse()?;
        let of = |fails: &[bool]| {
            let sides = fails.iter().map(|fails| {
                let side: Box<dyn Side> = Box::new(Lingering { fails: *fails });
                side
            });
            run_without_the_failed(&scenario, sides.collect(), &plan)
        };
        let outcome = of(&[false, true, false])?;
        assert_eq!(outcome.sides.len(), 2);
        let wanted = ["in round 1: Lingering: torn"];
        assert_eq!(outcome.failed, wanted);
        assert!(crate::table::outcome(&outcome).contains("FAILED    in round 1"));
        let said = of(&[true, false]).expect_err("the first one's").to_string();
        assert!(said.contains("torn"), "{said}");
        let alone = of(&[false, true])?;
        assert_eq!((alone.sides.len(), alone.failed.len()), (1, 1));
        let sides: Vec<Box<dyn Side>> = vec![
            Box::new(Lingering { fails: false }),
            Box::new(Lingering { fails: true }),
        ];
        assert!(run(&scenario, sides, &plan).is_err());
        Ok(())
    }

    fn span_of(bytes: u64, elapsed_s: f64) -> Span {
        Span {
            operations: 1,
            bytes,
            elapsed_s,
            offered_per_s: None,
            unfinished: 0,
            first_byte_us: None,
            latency: None,
            costs: Vec::new(),
            machine_busy_s: 0.0,
        }
    }

    fn short_plan() -> Plan {
        Plan {
            run: Run {
                short: true,
                dir: std::env::temp_dir(),
                rdma: Rdma::default(),
                nvme: Nvme::default(),
            },
            repeats: 1,
            span: Duration::ZERO,
            warm_up: Duration::ZERO,
            seed: 1,
            ceilings: true,
        }
    }

    #[test]
    fn bytes_that_readers_share_come_from_the_disk_once() -> Result<()> {
        let plan = short_plan();
        const FILE: u64 = 1 << 30;
        for (scenario, read, from_disk) in [
            ("safetensors:size=1GiB,processes=4", 4 * FILE, FILE),
            ("checkpoint-load:size=1GiB,readers=8", 8 * FILE, FILE),
            ("stream:size=1GiB", FILE, FILE),
            ("fuse:data=1GiB,tier=disk", 3 * FILE, 3 * FILE),
        ] {
            let scenario: Scenario = scenario.parse()?;
            let target = Box::new(LocalFiles::new(&plan));
            let side = MountSide::peer(target, Work::new(&scenario), &plan);
            let span = span_of(read, 2.0);
            let outcome = SideOutcome::new("local", String::new(), vec![span]);
            let limit = |name| -> Limit { (Box::new(Fixed(name)), vec![FILE as f64]) };
            let limits = vec![limit("device"), limit("memory copy")];
            let shares = shares(&outcome, &side, limits);
            let wanted = [from_disk, read].map(|bytes| bytes as f64 / 2.0 / FILE as f64);
            assert_eq!([shares[0].share, shares[1].share], wanted, "{scenario}");
        }
        Ok(())
    }
}
