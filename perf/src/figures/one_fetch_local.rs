//! `one-fetch-local`: 64 readers of one cold object, each reading all of it past the page cache,
//! with an origin that is slow to answer. The object may leave S3 once.

use std::time::Duration;

use anyhow::{Result, ensure};
use forebay_tests::s3::Class;

use super::{GIB, MIB, REPETITIONS};
use crate::bench::Bench;
use crate::load;
use crate::samples::{Part, Samples, Target};

const READERS: usize = 64;
const ORIGIN_DELAY: Duration = Duration::from_millis(200);
/// The object fits.
const MEMORY: &str = "2GiB";

pub(super) fn measure() -> Result<Vec<Part>> {
    let (mut ratios, mut rates) = (Vec::new(), Vec::new());
    for repetition in 0..REPETITIONS {
        let key = format!("object-{repetition}.bin");
        // A mount of its own each time: nothing but this object is in the memory tier.
        let bench = Bench::start(&[(key.clone(), GIB)], MEMORY)?;
        bench.server().faults().set_delay(Class::Get, ORIGIN_DELAY);
        let done = load::readers_at_once(&vec![bench.file(&key); READERS])?;
        ensure!(
            done.bytes == READERS as u64 * GIB,
            "{READERS} readers got {} bytes",
            done.bytes
        );
        let origin = bench.server().counters().body_bytes;
        let rate = done.bytes_per_second() / MIB;
        println!("  {READERS} readers, {rate:.0} MiB/s together, {origin} bytes from the origin");
        ratios.push(origin as f64 / GIB as f64);
        rates.push(rate);
        bench.end()?;
    }
    let (ratios, rates) = (Samples::new(ratios), Samples::new(rates));
    Ok(vec![Part {
        name: "origin-over-object",
        measured: ratios.median(),
        target: Target::AtMost(1.01),
        detail: format!(
            "{:.4} to {:.4}; all readers together {:.0} MiB/s (median)",
            ratios.min(),
            ratios.max(),
            rates.median()
        ),
    }])
}
