//! What things cost. Measured by the scenarios of the layers, in short spans; or read from a file, so that another machine's can be asked for.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use forebay_tests::sim::model::Costs;
use serde::{Deserialize, Serialize};

use crate::outcome::{Outcome, Summary};
use crate::plan::Plan;
use crate::scenario::Scenario;
use crate::{session, sides};

/// Of one machine, or of one that is imagined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    /// Where they are from.
    pub source: String,
    /// One way of a short message between two nodes: half of what a fetch of 4 KiB takes.
    pub delay_us: f64,
    /// What a node sends, and what it receives, at most.
    pub link_bytes_per_s: f64,
    /// From a GET to its first byte.
    pub origin_latency_us: f64,
    /// Of one GET.
    pub origin_bytes_per_s: f64,
    /// What a read of a mount takes when its bytes are in memory: kernel and front end.
    pub read_us: f64,
    /// The same for each byte.
    pub read_bytes_per_s: f64,
}

impl Constants {
    /// From a file.
    ///
    /// # Errors
    /// When it cannot be read, or is not as it should be.
    pub fn read(path: &Path) -> Result<Constants> {
        let said = || format!("the constants {}", path.display());
        let text = std::fs::read_to_string(path).with_context(said)?;
        let constants: Constants = serde_json::from_str(&text).with_context(said)?;
        constants.check().with_context(said)?;
        Ok(constants)
    }

    fn check(&self) -> Result<()> {
        for (name, value, (least, most)) in [
            ("delay_us", self.delay_us, (0.001, 1e7)),
            ("link_bytes_per_s", self.link_bytes_per_s, (1e3, 1e13)),
            ("origin_latency_us", self.origin_latency_us, (0.0, 1e7)),
            ("origin_bytes_per_s", self.origin_bytes_per_s, (1e3, 1e13)),
            ("read_us", self.read_us, (0.0, 1e7)),
            ("read_bytes_per_s", self.read_bytes_per_s, (1e3, 1e13)),
        ] {
            ensure!(
                (least..=most).contains(&value),
                "{name} is {value}: it may be {least} to {most}"
            );
        }
        Ok(())
    }

    /// For the model.
    pub fn costs(&self) -> Costs {
        let us = |us: f64| Duration::from_nanos((us * 1e3) as u64);
        Costs {
            delay: us(self.delay_us),
            link_bytes_per_s: self.link_bytes_per_s as u64,
            origin_latency: us(self.origin_latency_us),
            origin_bytes_per_s: self.origin_bytes_per_s as u64,
            read: us(self.read_us),
            read_bytes_per_s: self.read_bytes_per_s as u64,
        }
    }

    /// Measures them here.
    ///
    /// # Errors
    /// What could not be measured: mounts need root and `/dev/fuse`.
    pub fn measure(plan: &Plan) -> Result<Constants> {
        let short = measured("transport:block=4KiB,depth=1", plan)?;
        let wide = measured("transport:block=1MiB,depth=8", plan)?;
        let first = measured("origin:block=64KiB,depth=1,data=256MiB", plan)?;
        let whole = measured("origin:block=8MiB,depth=1,data=256MiB", plan)?;
        let small = measured("fuse:block=4KiB,depth=1,data=64MiB", plan)?;
        let large = measured("fuse:block=1MiB,depth=1,data=64MiB", plan)?;
        let (origin_latency_us, origin_bytes_per_s) =
            line((64 << 10, p50(&first)?), (8 << 20, p50(&whole)?));
        let (read_us, read_bytes_per_s) = line((4 << 10, p50(&small)?), (1 << 20, p50(&large)?));
        let wide = wide.bytes_per_s.context("the transport brought no bytes")?;
        let constants = Constants {
            source: "measured on this machine".to_owned(),
            delay_us: p50(&short)? / 2.0,
            link_bytes_per_s: wide.median,
            origin_latency_us,
            origin_bytes_per_s,
            read_us,
            read_bytes_per_s,
        };
        constants.check()?;
        Ok(constants)
    }
}

/// Through two points (bytes, microseconds): what nothing takes, and bytes a second.
fn line((few, short_us): (u64, f64), (many, long_us): (u64, f64)) -> (f64, f64) {
    // Noise may turn the line round: then all of the longer one's time is its bytes'.
    let each_us = (long_us - short_us) / (many - few) as f64;
    match each_us > 0.0 {
        true => ((short_us - few as f64 * each_us).max(0.0), 1e6 / each_us),
        false => (0.0, many as f64 * 1e6 / long_us.max(0.001)),
    }
}

fn p50(summary: &Summary) -> Result<f64> {
    let middle = summary.latency_us.get("p50");
    Ok(middle.context("too few operations for a median")?.median)
}

fn measured(text: &str, plan: &Plan) -> Result<Summary> {
    let scenario: Scenario = text.parse()?;
    let sides = vec![sides::forebay(&scenario, plan)?];
    let said = || format!("measuring {text}");
    let outcome: Outcome = session::run(&scenario, sides, plan).with_context(said)?;
    let side = outcome.sides.into_iter().next();
    Ok(side.context("a run has a side")?.summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_two_points() {
        let (us, each_s) = line((1_000, 20.0), (101_000, 120.0));
        assert!((us - 19.0).abs() < 1e-9 && (each_s - 1e9).abs() < 1.0);
        let (us, each_s) = line((1_000, 20.0), (101_000, 10.0));
        assert!(us == 0.0 && each_s > 1e9);
    }

    #[test]
    fn constants_that_cannot_be_are_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file can be made");
        let refused = |text: &str| {
            std::fs::write(file.path(), text).expect("it can be written");
            format!("{:#}", Constants::read(file.path()).expect_err(text))
        };
        let whole = |delay: &str| {
            format!(
                r#"{{"source":"x","delay_us":{delay},"link_bytes_per_s":1e9,"origin_latency_us":1,
                "origin_bytes_per_s":1e9,"read_us":1,"read_bytes_per_s":1e9}}"#
            )
        };
        assert!(refused("{}").contains("missing field"));
        assert!(refused(&whole("-1")).contains("delay_us is -1"));
        assert!(refused(&whole("\"a\"")).contains("invalid type"));
        std::fs::write(file.path(), whole("5")).expect("it can be written");
        let constants = Constants::read(file.path()).expect("it is right");
        assert_eq!(constants.costs().delay, Duration::from_micros(5));
    }
}
