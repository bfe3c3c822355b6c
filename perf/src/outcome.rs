//! What came of a run: what `--json` writes, and everything else reads. `docs/perf-schema.json` describes it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::counters::Cost;
use crate::machine::Machine;
use crate::recorder::Latency;
use crate::samples::Samples;
use crate::scenario::Scenario;
use crate::trace::Trace;
use crate::verdict::{self, Verdict};

/// Counted up when a reader of the one before would misread this one.
pub const SCHEMA: u32 = 2;
/// From this share on a ceiling is said to bind.
const BINDS: f64 = 0.8;
const GIB: f64 = (1u64 << 30) as f64;

/// Everything that a run tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// [`SCHEMA`].
    pub schema: u32,
    /// This program's version.
    pub version: String,
    /// What it was built of: commit, compiler, optimised or not.
    pub build: String,
    /// The command line.
    pub command: String,
    /// When it began, seconds since 1970.
    pub began_unix_s: u64,
    /// The whole text form.
    pub scenario: String,
    /// The same, setting by setting.
    pub settings: BTreeMap<String, String>,
    /// Of places and arrivals.
    pub seed: u64,
    /// How long operations began in each span; patterns measure whole passes.
    pub span_s: f64,
    /// The same before the first span.
    pub warm_up_s: f64,
    /// Where.
    pub machine: Machine,
    /// Who; the first is Forebay.
    pub sides: Vec<SideOutcome>,
    /// The limits, each as it was measured between the spans.
    pub ceilings: Vec<CeilingOutcome>,
    /// The ceiling with the largest share, where that is 0.8 or more.
    pub bound_by: Option<String>,
    /// The first side against each other one: throughput, then what it costs.
    pub verdicts: Vec<Verdict>,
    /// What a reader must know besides.
    pub notes: Vec<String>,
    /// Which sides could not be measured to the end, and why.
    pub failed: Vec<String>,
}

/// One side's spans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideOutcome {
    /// How it is called.
    pub name: String,
    /// What it is, in which version.
    pub version: String,
    /// In the order in which they were measured.
    pub spans: Vec<Span>,
    /// Over the spans.
    pub summary: Summary,
}

/// One span of one side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Operations that ended.
    pub operations: u64,
    /// Bytes that they brought.
    pub bytes: u64,
    /// From the start to the end of the last.
    pub elapsed_s: f64,
    /// Of an open loop, arrivals each second; null in a closed one.
    pub offered_per_s: Option<u64>,
    /// Of an open loop, operations that had arrived and were given up.
    pub unfinished: u64,
    /// From opening a file to its first byte, the median of all readers; null where that is not what is measured.
    pub first_byte_us: Option<f64>,
    /// How long they took; null where nobody measured it.
    pub latency: Option<Latency>,
    /// What each process used.
    pub costs: Vec<Cost>,
    /// Time that all processors together were not idle; other work and the kernel's own included.
    pub machine_busy_s: f64,
}

impl Span {
    /// Bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.elapsed_s
    }

    /// Operations per second.
    pub fn operations_per_s(&self) -> f64 {
        self.operations as f64 / self.elapsed_s
    }

    /// Processor time of all processes of the side.
    pub fn cpu_s(&self) -> f64 {
        self.costs.iter().map(|cost| cost.cpu_s).sum()
    }

    /// Processor microseconds of an operation.
    pub fn cpu_us_per_operation(&self) -> f64 {
        self.cpu_s() * 1e6 / self.operations.max(1) as f64
    }

    /// Processor seconds of a GiB; none where no bytes were moved.
    pub fn cpu_s_per_gib(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.cpu_s() * GIB / self.bytes as f64)
    }
}

/// The middle of several spans, and how far they are apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// Of values, one for each span; none when one of them is no number.
    pub fn of(values: Vec<f64>) -> Option<Spread> {
        let usable = !values.is_empty() && values.iter().all(|value| value.is_finite());
        usable.then(|| {
            let samples = Samples::new(values);
            Spread {
                median: samples.median(),
                min: samples.min(),
                max: samples.max(),
            }
        })
    }
}

/// A side's spans in few numbers. Null is what was not measured in each span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Bytes per second.
    pub bytes_per_s: Option<Spread>,
    /// Operations per second.
    pub operations_per_s: Option<Spread>,
    /// Of a span, seconds: what a pattern takes.
    pub elapsed_s: Option<Spread>,
    /// Processor microseconds of an operation, all processes of the side.
    pub cpu_us_per_operation: Option<Spread>,
    /// Processor seconds of a GiB.
    pub cpu_s_per_gib: Option<Spread>,
    /// Processors that the side kept busy on average.
    pub processors: Option<Spread>,
    /// Switches, of both kinds, for each operation.
    pub switches_per_operation: Option<Spread>,
    /// Instructions of an operation.
    pub instructions_per_operation: Option<Spread>,
    /// From opening a file to its first byte.
    pub first_byte_us: Option<Spread>,
    /// Percentiles of the latency in microseconds, by their name (`p50`, `p99.9`).
    pub latency_us: BTreeMap<String, Spread>,
}

impl Summary {
    fn of(spans: &[Span]) -> Summary {
        let spread = |of: &dyn Fn(&Span) -> Option<f64>| {
            let values: Option<Vec<f64>> = spans.iter().map(of).collect();
            values.and_then(Spread::of)
        };
        let each = |span: &Span, sum: u64| sum as f64 / span.operations.max(1) as f64;
        let switches = |span: &Span| {
            let costs = span.costs.iter();
            let sums =
                costs.map(|cost| Some(cost.voluntary_switches? + cost.involuntary_switches?));
            let sum: Option<u64> = sums.sum();
            Some(each(span, sum?))
        };
        let instructions = |span: &Span| {
            let sum: Option<u64> = span.costs.iter().map(|cost| cost.instructions).sum();
            Some(each(span, sum.filter(|sum| *sum > 0)?))
        };
        let named = spans.iter().filter_map(|span| span.latency.as_ref());
        let mut names: Vec<f64> = named
            .flat_map(|latency| latency.percentiles.iter().map(|one| one.percentile))
            .collect();
        names.sort_by(f64::total_cmp);
        names.dedup();
        let percentile = |percentile: f64| {
            let spread = spread(&|span| span.latency.as_ref()?.at(percentile));
            spread.map(|spread| (format!("p{percentile}"), spread))
        };
        Summary {
            bytes_per_s: spread(&|span| (span.bytes > 0).then(|| span.bytes_per_s())),
            operations_per_s: spread(&|span| Some(span.operations_per_s())),
            elapsed_s: spread(&|span| Some(span.elapsed_s)),
            cpu_us_per_operation: spread(&|span| {
                (!span.costs.is_empty()).then(|| span.cpu_us_per_operation())
            }),
            cpu_s_per_gib: spread(&|span| span.cpu_s_per_gib().filter(|_| !span.costs.is_empty())),
            processors: spread(&|span| {
                (!span.costs.is_empty()).then(|| span.cpu_s() / span.elapsed_s)
            }),
            switches_per_operation: spread(&switches),
            instructions_per_operation: spread(&instructions),
            first_byte_us: spread(&|span| span.first_byte_us),
            latency_us: names.into_iter().filter_map(percentile).collect(),
        }
    }
}

impl SideOutcome {
    /// Of a side's spans.
    pub fn new(name: &str, version: String, spans: Vec<Span>) -> SideOutcome {
        SideOutcome {
            name: name.to_owned(),
            version,
            summary: Summary::of(&spans),
            spans,
        }
    }

    fn of(&self, quantity: impl Fn(&Span) -> f64) -> Vec<f64> {
        let values = self.spans.iter().map(quantity);
        values.filter(|value| value.is_finite()).collect()
    }
}

/// What a limit can do, and how much of that the first side reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CeilingOutcome {
    /// Which limit.
    pub name: String,
    /// Of `value`.
    pub unit: String,
    /// As measured between the spans.
    pub value: Spread,
    /// The first side's median in this unit, over the limit's.
    pub share: f64,
}

/// A setting that says which trace it was, whatever its file is called.
const DIGEST: &str = "file-blake3";

/// What a run was told, and what came of it.
#[derive(Debug)]
pub struct Parts<'a> {
    /// What was done.
    pub scenario: &'a Scenario,
    /// Of places and arrivals.
    pub seed: u64,
    /// How long operations began.
    pub span_s: f64,
    /// The same before the first span.
    pub warm_up_s: f64,
    /// When it began.
    pub began_unix_s: u64,
    /// Where.
    pub machine: Machine,
    /// Who.
    pub sides: Vec<SideOutcome>,
    /// The limits.
    pub ceilings: Vec<CeilingOutcome>,
    /// What a reader must know besides.
    pub notes: Vec<String>,
}

impl Outcome {
    /// With what follows from the parts.
    pub fn new(parts: Parts<'_>) -> Outcome {
        let mut settings = parts.scenario.settings();
        settings.extend(Trace::digest_of(parts.scenario).map(|digest| (DIGEST.to_owned(), digest)));
        let mut outcome = Outcome {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: build(),
            command: command(),
            began_unix_s: parts.began_unix_s,
            scenario: parts.scenario.to_string(),
            settings,
            seed: parts.seed,
            span_s: parts.span_s,
            warm_up_s: parts.warm_up_s,
            bound_by: None,
            verdicts: match &parts.sides[..] {
                [first, others @ ..] => others
                    .iter()
                    .flat_map(|other| verdicts(first, other))
                    .collect(),
                [] => Vec::new(),
            },
            machine: parts.machine,
            sides: parts.sides,
            ceilings: parts.ceilings,
            notes: parts.notes,
            failed: Vec::new(),
        };
        outcome.bind();
        outcome
    }

    /// Finds what binds it, by the shares of the limits.
    pub(crate) fn bind(&mut self) {
        let near = self.ceilings.iter().filter(|one| one.share >= BINDS);
        let largest = near.max_by(|one, other| one.share.total_cmp(&other.share));
        self.bound_by = largest.map(|one| one.name.clone());
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads what [`Outcome::write`] wrote.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(path: &Path) -> Result<Outcome> {
        let file = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
        let outcome: Outcome = serde_json::from_str(&text)
            .with_context(|| format!("{file} is no outcome of forebay-perf"))?;
        ensure!(
            outcome.schema == SCHEMA,
            "{file} has schema {}, this program reads {SCHEMA}: measure again",
            outcome.schema
        );
        Ok(outcome)
    }
}

/// What this program was built of.
fn build() -> String {
    let how = match cfg!(debug_assertions) {
        true => "with assertions, for tests",
        false => "optimised",
    };
    format!(
        "{}, {how}, {}",
        env!("FOREBAY_PERF_COMMIT"),
        env!("FOREBAY_PERF_RUSTC")
    )
}

/// How this program was called, without the folder it lies in.
fn command() -> String {
    let mut words = std::env::args_os();
    let own = words.next().unwrap_or_default();
    let own = Path::new(&own).file_name().unwrap_or_default().to_owned();
    let words: Vec<String> = std::iter::once(own)
        .chain(words)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    words.join(" ")
}

/// More is better in each. In a closed loop: throughput, and work for each second of processor time. In an open one, where arrivals
/// set the first and who waits for them spins in the second: how short latencies are.
fn verdicts(first: &SideOutcome, second: &SideOutcome) -> Vec<Verdict> {
    let mut said = Vec::new();
    let mut compare = |quantity: &str, of: &dyn Fn(&Span) -> f64| {
        let (one, other) = (first.of(of), second.of(of));
        said.extend(verdict::compare(&second.name, quantity, &one, &other));
    };
    let both = || first.spans.iter().chain(&second.spans);
    if both().any(|span| span.offered_per_s.is_some()) {
        for percentile in [50.0, 99.0] {
            let at = |span: &Span| span.latency.as_ref()?.at(percentile);
            // Of each span on both sides, or of none.
            if both().all(|span| at(span).is_some()) {
                let quantity = format!("shortness of p{percentile} (1/s)");
                compare(&quantity, &|span| at(span).map_or(f64::NAN, |us| 1e6 / us));
            }
        }
        return said;
    }
    compare("operations/s", &Span::operations_per_s);
    compare(
        "operations for each second of processor time",
        &|span| match span.cpu_s() {
            used if used > 0.0 => span.operations as f64 / used,
            _ => f64::NAN,
        },
    );
    said
}

/// Two outcomes of earlier runs, the first side of each, as one.
///
/// # Errors
/// When they differ in what matters; says in what.
pub fn side_by_side(first: &Outcome, second: &Outcome) -> Result<Outcome> {
    let scenarios: [Scenario; 2] = [first.scenario.parse()?, second.scenario.parse()?];
    let mut differ = scenarios[0].differences(&scenarios[1]);
    match [first, second].map(|outcome| outcome.settings.get(DIGEST)) {
        [Some(one), Some(other)] if one == other => differ.retain(|one| !one.starts_with("file=")),
        [one, other] if one != other => differ.push("the traces are not the same".to_owned()),
        _ => {}
    }
    let (one, other) = (&first.machine, &second.machine);
    if (&one.processor, one.processors) != (&other.processor, other.processors) {
        differ.push(format!(
            "{} x {} is not {} x {}",
            one.processors, one.processor, other.processors, other.processor
        ));
    }
    if one.disk.device != other.disk.device {
        differ.push("the disks are not the same".to_owned());
    }
    // Where there is no device (overlayfs, nfs, ...) it is all that tells disks apart.
    if one.disk.file_system != other.disk.file_system {
        differ.push(format!(
            "files on {} are not on {}",
            one.disk.file_system, other.disk.file_system
        ));
    }
    if first.seed != second.seed {
        differ.push(format!("seed {} is not {}", first.seed, second.seed));
    }
    if first.span_s != second.span_s {
        differ.push(format!(
            "spans of {} s are not of {} s",
            first.span_s, second.span_s
        ));
    }
    ensure!(differ.is_empty(), "not comparable: {}", differ.join("; "));
    let side = |outcome: &Outcome, number: u32| {
        let side = outcome.sides.first().context("an outcome without a side")?;
        let name = format!("{} ({number})", side.name);
        anyhow::Ok(SideOutcome::new(
            &name,
            side.version.clone(),
            side.spans.clone(),
        ))
    };
    let together = Outcome::new(Parts {
        scenario: &scenarios[0],
        seed: first.seed,
        span_s: first.span_s,
        warm_up_s: first.warm_up_s,
        began_unix_s: first.began_unix_s,
        machine: first.machine.clone(),
        sides: vec![side(first, 1)?, side(second, 2)?],
        ceilings: Vec::new(),
        notes: vec![
            "measured in two runs, not in turns: the machine's mood may be in the difference"
                .to_owned(),
            format!("(1) is of {}; (2) is of {}", first.build, second.build),
        ],
    });
    Ok(Outcome {
        settings: first.settings.clone(),
        ..together
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Begun, Recorder};
    use std::time::Duration;

    fn span(operations: u64) -> Span {
        let mut recorder = Recorder::default();
        for us in 0..1_000 {
            recorder.record(Duration::from_micros(us));
        }
        Span {
            operations,
            bytes: operations << 12,
            elapsed_s: 1.0,
            offered_per_s: None,
            unfinished: 0,
            first_byte_us: None,
            // The last digit of a mean may change on its way through JSON.
            latency: recorder.summary(Begun::EndOfTheOneBefore).map(|told| {
                crate::recorder::Latency {
                    mean_us: 499.5,
                    ..told
                }
            }),
            costs: vec![Cost {
                who: "Forebay".to_owned(),
                cpu_s: 0.5,
                voluntary_switches: Some(operations),
                involuntary_switches: Some(0),
                instructions: None,
                cycles: None,
            }],
            machine_busy_s: 1.0,
        }
    }

    fn outcome<const N: usize>(scenario: &str, operations: [u64; N]) -> Outcome {
        let spans = operations.map(span).to_vec();
        let one = |name: &str, share| CeilingOutcome {
            name: name.to_owned(),
            unit: "bytes/s".to_owned(),
            value: Spread {
                median: 1.0,
                min: 1.0,
                max: 1.0,
            },
            share,
        };
        Outcome::new(Parts {
            scenario: &scenario.parse().expect("it is one"),
            seed: 1,
            span_s: 1.0,
            warm_up_s: 1.0,
            began_unix_s: 1,
            machine: Machine::here(Path::new("/")),
            sides: vec![SideOutcome::new("Forebay", "0".to_owned(), spans)],
            ceilings: vec![
                one("memory copy", 0.79),
                one("one processor", 0.9),
                one("device", 0.85),
            ],
            notes: Vec::new(),
        })
    }

    #[test]
    fn medians_shares_and_what_binds() {
        let outcome = outcome("device", [100, 300, 200]);
        let summary = &outcome.sides[0].summary;
        let rate = summary.operations_per_s.expect("measured");
        assert_eq!((rate.min, rate.median, rate.max), (100.0, 200.0, 300.0));
        assert_eq!(
            summary.switches_per_operation.map(|one| one.median),
            Some(1.0)
        );
        assert_eq!(summary.processors.map(|one| one.median), Some(0.5));
        assert!(summary.instructions_per_operation.is_none());
        assert!(
            summary.latency_us.contains_key("p99") && !summary.latency_us.contains_key("p99.9")
        );
        assert_eq!(outcome.bound_by.as_deref(), Some("one processor"));
        assert!(outcome.verdicts.is_empty());
    }

    #[test]
    fn what_is_written_is_read_again_and_rubbish_is_refused() -> Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        let written = outcome("fuse", [1, 2, 3]);
        written.write(file.path())?;
        assert_eq!(Outcome::read(file.path())?, written);
        let mut later = written.clone();
        later.schema += 1;
        later.write(file.path())?;
        let refused = Outcome::read(file.path()).expect_err("another schema");
        assert!(refused.to_string().contains("measure again"), "{refused}");
        for rubbish in ["", "[]", "{\"schema\": 1}"] {
            fs::write(file.path(), rubbish)?;
            let refused = Outcome::read(file.path()).expect_err("rubbish");
            assert!(refused.to_string().contains("no outcome"), "{refused}");
        }
        Ok(())
    }

    #[test]
    fn a_trace_is_known_by_its_contents() -> Result<()> {
        use forebay_cli::trace::format::{Encoder, Record, header};

        use crate::trace::tests::{read, timed};

        let dir = tempfile::tempdir()?;
        let of = |name: &str, reader_ns: u64, file: &str| -> Result<Outcome> {
            let mut encoder = Encoder::default();
            let (size_bytes, name_told) = (9, None);
            encoder.push(&Record::File {
                size_bytes,
                name: name_told,
            });
            encoder.push(&Record::Handle { file: 0 });
            encoder.push(&read(timed(1, reader_ns, 0, 0), 0, 9));
            let (elapsed_ns, accesses) = (9, 1);
            encoder.push(&Record::End {
                elapsed_ns,
                accesses,
            });
            let path = dir.path().join(name);
            std::fs::write(&path, [&header(false)[..], &encoder.take()].concat())?;
            let scenario = format!("trace:file={}", path.display());
            Trace::of(&scenario.parse()?)?;
            let mut outcome = outcome(&scenario, [1; 4]);
            // As if the second run had been elsewhere, or after the file was replaced.
            outcome.scenario = format!("trace:file={file}");
            Ok(outcome)
        };
        let (one, moved) = (of("a", 5, "/x/a")?, of("b", 5, "/y/b")?);
        let together = side_by_side(&one, &moved)?;
        assert_eq!(together.settings, one.settings);
        let replaced = of("c", 6, "/x/a")?;
        let refused = side_by_side(&one, &replaced).expect_err("another trace");
        assert!(refused.to_string().contains("traces are not"), "{refused}");
        Ok(())
    }

    #[test]
    fn outcomes_of_other_settings_are_not_compared() -> Result<()> {
        let slow = outcome("device", [100, 101, 102, 103]);
        let fast = outcome("device", [200, 201, 202, 203]);
        let both = side_by_side(&fast, &slow)?;
        assert_eq!(both.verdicts[0].word, verdict::Word::Faster);
        assert_eq!(both.sides[1].name, "Forebay (2)");
        let other = outcome("device:block=8KiB", [1, 1, 1]);
        let refused = side_by_side(&slow, &other).expect_err("other settings");
        assert!(
            refused.to_string().contains("block=4KiB is not block=8KiB"),
            "{refused}"
        );
        let mut elsewhere = slow.clone();
        elsewhere.machine.processors += 1;
        elsewhere.seed = 2;
        let refused = side_by_side(&slow, &elsewhere).expect_err("another machine");
        assert!(refused.to_string().contains("seed 1 is not 2"), "{refused}");
        assert!(
            refused.to_string().matches(" is not ").count() == 2,
            "{refused}"
        );
        let mut elsewhere = slow.clone();
        elsewhere.machine.disk.file_system = "nfs".to_owned();
        let refused = side_by_side(&slow, &elsewhere).expect_err("another file system");
        assert!(refused.to_string().contains("are not on nfs"), "{refused}");
        let less = outcome("fuse:tier=disk,memory=64MiB", [1; 4]);
        let more = outcome("fuse:tier=disk,memory=256MiB", [1; 4]);
        let refused = side_by_side(&less, &more).expect_err("more memory");
        assert!(refused.to_string().contains("memory=64MiB"), "{refused}");
        Ok(())
    }

    #[test]
    fn in_an_open_loop_latencies_are_compared() -> Result<()> {
        let at_a_rate = |longer: f64| {
            let mut outcome = outcome("device:rate=100", [100; 4]);
            for span in &mut outcome.sides[0].spans {
                span.offered_per_s = Some(100);
                let latency = span.latency.as_mut().expect("it has latencies");
                latency
                    .percentiles
                    .iter_mut()
                    .for_each(|one| one.us *= longer);
            }
            outcome
        };
        let both = side_by_side(&at_a_rate(1.0), &at_a_rate(2.0))?;
        let said = both.verdicts.iter();
        let said: Vec<_> = said.map(|one| (one.quantity.as_str(), one.word)).collect();
        let wanted = ["shortness of p50 (1/s)", "shortness of p99 (1/s)"];
        assert_eq!(said, wanted.map(|name| (name, verdict::Word::Faster)));
        Ok(())
    }
}
