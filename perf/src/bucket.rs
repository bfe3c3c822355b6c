//! A bucket of synthetic objects on the embedded S3 server, which counts what it hands out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_tests::harness::Credentials;
use forebay_tests::s3::{Class, EmbeddedS3, Options};

use crate::interrupt;
use crate::scenario::Scenario;

const NAME: &str = "perf";
/// What outlives its reader ends within the longest `--io-timeout` that a figure uses, and some.
const SETTLE_MAX: Duration = Duration::from_secs(120);

/// A bucket and its server, which ends with it.
#[derive(Debug)]
pub struct Bucket {
    server: EmbeddedS3,
    credentials: Credentials,
    etags: HashMap<String, String>,
}

impl Bucket {
    /// A bucket with `objects` (key, bytes).
    ///
    /// # Errors
    /// When the server cannot start.
    pub fn start(objects: &[(String, u64)]) -> Result<Self> {
        let server = EmbeddedS3::start(Options::default())?;
        server.create_bucket(NAME);
        let credentials = Credentials {
            access_key: server.options().access_key.clone(),
            secret_key: server.options().secret_key.clone(),
            region: "us-east-1".to_owned(),
        };
        let objects = objects.iter().enumerate();
        let etags = objects.map(|(seed, (key, size_bytes))| {
            let etag = server.put_synthetic(NAME, key, *size_bytes, seed as u64);
            (key.clone(), etag)
        });
        Ok(Self {
            etags: etags.collect(),
            server,
            credentials,
        })
    }

    /// Its server is as slow as the scenario says, if it says so.
    pub fn shape(&self, scenario: &Scenario) {
        if !scenario.has("get-delay") {
            return;
        }
        let delay = Duration::from_millis(scenario.count("get-delay"));
        let rate = scenario.size_or_auto("get-rate").unwrap_or(0);
        self.server.faults().set_delay(Class::Get, delay);
        self.server.faults().set_bandwidth(rate);
    }

    /// `s3://...`
    pub fn source(&self) -> String {
        format!("s3://{NAME}")
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// An object's ETag, with quotes.
    ///
    /// # Errors
    /// When there is no such object.
    pub fn etag(&self, key: &str) -> Result<String> {
        let etag = self.etags.get(key).cloned();
        etag.with_context(|| format!("the bucket has no object {key}"))
    }

    /// The keys that its server knows.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The S3 server.
    pub fn server(&self) -> &EmbeddedS3 {
        &self.server
    }

    /// Bytes of objects handed out up to now, once nothing is under way any more: fetches may outlive the readers that
    /// caused them.
    ///
    /// # Errors
    /// When interrupted, or when there is no end of it.
    pub fn settled_bytes(&self) -> Result<u64> {
        let mut last = self.server.counters().body_bytes;
        let began = Instant::now();
        loop {
            interrupt::sleep(Duration::from_millis(200))?;
            let now = self.server.counters();
            if now.body_bytes == last && now.bodies_open == 0 {
                return Ok(last);
            }
            ensure!(
                began.elapsed() < SETTLE_MAX,
                "after {} s the bucket is still read, {} bodies of it now: who reads it?",
                SETTLE_MAX.as_secs(),
                now.bodies_open
            );
            last = now.body_bytes;
        }
    }
}
