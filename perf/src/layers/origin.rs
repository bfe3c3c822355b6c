//! `origin`: ranged GETs by the adapter to S3, from the embedded server in this process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use forebay_cli::host::MonotonicClock;
use forebay_cli::host::parker::{EventParker, Park};
use forebay_engine::arena::{Arena, Lease, Share};
use forebay_engine::identity::{ObjectVersion, Validator};
use forebay_engine::limits::CHUNK_BYTES;
use forebay_engine::ports::{Clock, Full, GetOp, Origin, OriginEvent, OriginOp, OriginTag};
use forebay_engine::ring::Doorbell;
use forebay_origin_s3::{OriginConfig, OriginS3Runtime, S3Origin, StaticCredentials};

use super::device::load_of;
use crate::bucket::Bucket;
use crate::ceilings::Ceiling;
use crate::ceilings::memory::MemoryCopy;
use crate::ceilings::socket::Loopback;
use crate::counters::Watched;
use crate::outcome::Span;
use crate::pace::{self, Slots};
use crate::plan::Plan;
use crate::scenario::Scenario;
use crate::side::{Side, Turn, watched};

const KEY: &str = "object.bin";
const DEADLINE: Duration = Duration::from_secs(30);

/// GETs of one object.
struct Gets {
    // In the order of dropping: what is under way ends before its buffers and its server go.
    origin: S3Origin,
    _runtime: OriginS3Runtime,
    arena: Arena,
    parker: EventParker,
    doorbell: Arc<Doorbell>,
    clock: MonotonicClock,
    object: Arc<ObjectVersion>,
    block_bytes: u64,
    /// Slots by tag, with the buffers that came back.
    under_way: HashMap<u64, (usize, Vec<Lease>)>,
    free: Vec<Vec<Lease>>,
    tags: u64,
    bucket: Bucket,
}

impl Gets {
    fn start(scenario: &Scenario) -> Result<Gets> {
        let bucket = Bucket::start(&[(KEY.to_owned(), scenario.size("data"))])?;
        bucket.shape(scenario);
        let clock = MonotonicClock::start();
        let credentials = bucket.credentials();
        let config = OriginConfig {
            endpoint: Some(bucket.server().endpoint()),
            region: Some(credentials.region.clone()),
            credentials: Some(StaticCredentials {
                access_key: credentials.access_key.clone(),
                secret_key: credentials.secret_key.clone(),
            }),
            ..OriginConfig::default()
        };
        let runtime = OriginS3Runtime::start(config, Arc::new(clock))?;
        let parker = EventParker::new()?;
        let doorbell = Doorbell::new(parker.waker());
        let etag = bucket.etag(KEY)?;
        let object = ObjectVersion::new(
            runtime.bucket(bucket.name()),
            KEY.into(),
            Validator::ETag(etag.into()),
            scenario.size("data"),
        );
        let (block_bytes, depth) = (scenario.size("block"), scenario.count("depth") as usize);
        let chunks = (block_bytes as usize).div_ceil(CHUNK_BYTES);
        let mut arena = Arena::new(depth * chunks * CHUNK_BYTES + (16 << 20))?;
        let mut leases = || -> Result<Vec<Lease>> {
            let lens =
                (0..chunks).map(|n| (block_bytes as usize - n * CHUNK_BYTES).min(CHUNK_BYTES));
            lens.map(|len| {
                arena
                    .lease(len, Share::Demand)
                    .ok()
                    .context("no room for buffers")
            })
            .collect()
        };
        let free = (0..depth).map(|_| leases()).collect::<Result<_>>()?;
        Ok(Gets {
            origin: runtime.handle_for_core(doorbell.clone()),
            _runtime: runtime,
            arena,
            parker,
            doorbell,
            clock,
            object: Arc::new(object),
            block_bytes,
            under_way: HashMap::new(),
            free,
            tags: 0,
            bucket,
        })
    }

    /// Whether something ended or moved.
    fn look(&mut self, ended: &mut Vec<usize>) -> Result<bool> {
        let mut progressed = false;
        while let Some(event) = self.origin.poll() {
            progressed = true;
            match event {
                OriginEvent::Filled { tag, lease } => {
                    let get = self.under_way.get_mut(&tag.0);
                    get.context("bytes of no GET")?.1.push(lease);
                }
                OriginEvent::GetDone { tag, result, .. } => {
                    result.map_err(|error| anyhow::anyhow!("a GET failed: {error}"))?;
                    let (slot, leases) =
                        self.under_way.remove(&tag.0).context("the end of no GET")?;
                    self.free.push(leases);
                    ended.push(slot);
                }
                _ => {}
            }
        }
        self.arena.reclaim();
        Ok(progressed)
    }
}

impl Slots for Gets {
    fn begin(&mut self, slot: usize, place: u64) -> Result<()> {
        self.tags += 1;
        let get = GetOp {
            tag: OriginTag(self.tags),
            object: self.object.clone(),
            offset: place * self.block_bytes,
            leases: self.free.pop().context("a slot is used twice")?,
            deadline: self.clock.now() + DEADLINE,
        };
        self.under_way.insert(self.tags, (slot, Vec::new()));
        match self.origin.submit(OriginOp::Get(get)) {
            Ok(()) => Ok(()),
            Err(Full(_)) => bail!("the adapter does not take that many GETs: a smaller depth"),
        }
    }

    fn go_on(&mut self, ended: &mut Vec<usize>, most: Duration) -> Result<()> {
        if self.look(ended)? {
            return Ok(());
        }
        self.doorbell.announce_sleep();
        let seen = self.look(ended);
        if matches!(seen, Ok(false)) {
            self.parker.park(Some(most));
        }
        self.doorbell.announce_awake();
        seen.map(drop)
    }
}

/// Forebay's side of `origin`.
pub struct OriginSide {
    scenario: Scenario,
    state: Option<Gets>,
    name: &'static str,
}

impl OriginSide {
    /// Of a scenario of that kind.
    pub fn new(scenario: &Scenario, _: &Plan) -> OriginSide {
        OriginSide {
            scenario: scenario.clone(),
            state: None,
            name: "Forebay",
        }
    }

    /// By another name, where it is a yardstick.
    pub fn named(self, name: &'static str) -> OriginSide {
        OriginSide { name, ..self }
    }
}

impl Side for OriginSide {
    fn name(&self) -> &str {
        self.name
    }

    fn version(&self) -> String {
        format!("{} (the adapter alone)", env!("CARGO_PKG_VERSION"))
    }

    fn prepare(&mut self) -> Result<()> {
        self.state = Some(Gets::start(&self.scenario)?);
        Ok(())
    }

    fn warm(&mut self, turn: &Turn) -> Result<()> {
        self.span(turn).map(drop)
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        let load = load_of(&self.scenario, turn);
        let gets = self.state.as_mut().context("the server was not started")?;
        let before = gets.bucket.server().counters().body_bytes;
        let here = [Watched::Own("adapter, load and S3 server".to_owned())];
        let block = self.scenario.size("block");
        let span = watched(&here, &load, block, || pace::slots(gets, &load))?;
        let sent = gets.bucket.server().counters().body_bytes - before;
        anyhow::ensure!(
            sent >= span.bytes,
            "the server sent {sent} bytes of {} that were counted",
            span.bytes
        );
        Ok(span)
    }

    fn clean(&mut self) -> Result<()> {
        self.state = None;
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        vec![
            "the S3 server runs in this process, and its processor time is in the side's"
                .to_owned(),
        ]
    }

    fn ceilings(&self) -> Result<Vec<Box<dyn Ceiling>>> {
        let block_bytes = self.scenario.size("block") as usize;
        Ok(vec![
            Box::new(Loopback { block_bytes }),
            Box::new(MemoryCopy::new(block_bytes, false)?),
        ])
    }
}

impl std::fmt::Debug for OriginSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OriginSide").finish_non_exhaustive()
    }
}
