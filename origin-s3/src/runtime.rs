//! Threads, client and limits that all cores share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use aws_sdk_s3::Client;
use forebay_engine::identity::Bucket;
use forebay_engine::ports::{Clock, Time};
use forebay_engine::ring::Doorbell;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::check::{self, CheckError};
use crate::config::{OriginConfig, Resolved, resolve};
use crate::listing::PlusSign;
use crate::port::S3Origin;

/// How long threads may take to end when the runtime is dropped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// What was asked of the origin and what came, over all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginCounters {
    /// GETs started.
    pub gets: u64,
    /// Bytes of their bodies that arrived, wasted ones included.
    pub get_bytes: u64,
    /// Of those, bytes that filled no lease.
    pub wasted_bytes: u64,
    /// HEADs started.
    pub heads: u64,
    /// Listing pages asked for.
    pub lists: u64,
    /// Entries that listing pages told.
    pub list_entries: u64,
    /// Operations that ended in an error.
    pub errors: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counting {
    pub(crate) gets: AtomicU64,
    pub(crate) get_bytes: AtomicU64,
    pub(crate) wasted_bytes: AtomicU64,
    pub(crate) heads: AtomicU64,
    pub(crate) lists: AtomicU64,
    pub(crate) list_entries: AtomicU64,
    pub(crate) errors: AtomicU64,
}

/// What every task needs.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) clock: Arc<dyn Clock + Send + Sync>,
    /// The endpoint as error texts name it.
    pub(crate) endpoint: String,
    /// Permits for GETs; HEADs and listings have their own.
    pub(crate) gets: Semaphore,
    pub(crate) metadata: Semaphore,
    pub(crate) counting: Counting,
    pub(crate) plus_sign: PlusSign,
}

impl Shared {
    /// Time left until `deadline`; zero when it has passed.
    pub(crate) fn left(&self, deadline: Time) -> Duration {
        deadline.since(self.clock.now())
    }
}

/// The origin of one endpoint: a tokio runtime beside the cores, and the S3 client on it.
///
/// Dropping it ends what is under way: every operation still gets its final event
/// (`Cancelled`), also those submitted afterwards.
pub struct OriginS3Runtime {
    shared: Arc<Shared>,
    resolved: Resolved,
    runtime: Option<Runtime>,
}

impl std::fmt::Debug for OriginS3Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OriginS3Runtime")
            .field("endpoint", &self.resolved.identity)
            .finish_non_exhaustive()
    }
}

impl OriginS3Runtime {
    /// Starts the runtime's threads and resolves endpoint and region; sends no request to S3.
    /// `clock` must be the cores' clock: deadlines are read against it.
    ///
    /// # Errors
    /// [`CheckError::BadEndpoint`], or [`CheckError::Machine`] when threads cannot be made.
    pub fn start(
        config: OriginConfig,
        clock: Arc<dyn Clock + Send + Sync>,
    ) -> Result<Self, CheckError> {
        let started = AtomicUsize::new(0);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.workers.max(1))
            .thread_name_fn(move || format!("origin-{}", started.fetch_add(1, Relaxed)))
            .enable_all()
            .build()
            .map_err(|error| CheckError::Machine {
                detail: error.to_string(),
            })?;
        let resolved = runtime.block_on(resolve(&config))?;
        let shared = Arc::new(Shared {
            client: resolved.client.clone(),
            clock,
            endpoint: resolved
                .endpoint
                .clone()
                .unwrap_or_else(|| format!("of AWS in {}", resolved.region)),
            gets: Semaphore::new(config.gets_max.max(1)),
            metadata: Semaphore::new(config.metadata_max.max(1)),
            counting: Counting::default(),
            plus_sign: PlusSign::default(),
        });
        Ok(Self {
            shared,
            resolved,
            runtime: Some(runtime),
        })
    }

    /// A bucket of this endpoint as identities name it.
    pub fn bucket(&self, name: &str) -> Arc<Bucket> {
        Arc::new(Bucket {
            endpoint: self.resolved.identity.clone(),
            name: name.to_owned(),
        })
    }

    /// The region that requests are signed for.
    pub fn region(&self) -> &str {
        &self.resolved.region
    }

    /// The instance of one core. `doorbell` is rung whenever an event is there to poll.
    pub fn handle_for_core(&self, doorbell: Arc<Doorbell>) -> S3Origin {
        S3Origin::new(
            self.shared.clone(),
            self.runtime().handle().clone(),
            doorbell,
        )
    }

    /// That `bucket` can be listed under `prefix`; at most about ten seconds.
    /// Blocks; not for tokio's or the cores' threads.
    ///
    /// # Errors
    /// What is wrong, on which bucket, and what to do next.
    pub fn check(&self, bucket: &str, prefix: &str) -> Result<(), CheckError> {
        self.has_keys(bucket, prefix).map(drop)
    }

    /// The same; whether there is any key that begins so.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn has_keys(&self, bucket: &str, prefix: &str) -> Result<bool, CheckError> {
        self.runtime()
            .block_on(check::check(&self.resolved, &self.shared, bucket, prefix))
    }

    /// What was asked and what came, so far.
    pub fn counters(&self) -> OriginCounters {
        let counting = &self.shared.counting;
        OriginCounters {
            gets: counting.gets.load(Relaxed),
            get_bytes: counting.get_bytes.load(Relaxed),
            wasted_bytes: counting.wasted_bytes.load(Relaxed),
            heads: counting.heads.load(Relaxed),
            lists: counting.lists.load(Relaxed),
            list_entries: counting.list_entries.load(Relaxed),
            errors: counting.errors.load(Relaxed),
        }
    }

    fn runtime(&self) -> &Runtime {
        self.runtime
            .as_ref()
            .expect("the runtime is there until drop")
    }
}

impl Drop for OriginS3Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        }
    }
}
