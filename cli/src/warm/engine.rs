//! The engine's calls as futures, tried again where another attempt may succeed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::client::{Client, RangeWork, Told};
use forebay_engine::errors::{OriginError, OriginErrorKind, ReadError};
use forebay_engine::identity::{Bucket, ObjectVersion};
use forebay_engine::ports::{ListPage, ListRequest, ObjectMeta};
use forebay_fuse::FuseReply;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// A full ring is tried again after this.
const RING_PAUSE: Duration = Duration::from_millis(5);
/// Pauses before further attempts: together longer than a member takes to be seen as lost.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(8),
];
/// Jobs are for the versions that the origin has when they begin, whatever the group remembers.
const AGE_MAX: Duration = Duration::ZERO;
/// A stripe may take at least so long before it is looked at again.
const STRIPE_TIME_MIN: Duration = Duration::from_secs(30);

/// The engine of one mount.
#[derive(Clone, Debug)]
pub struct MountEngine {
    client: Client<FuseReply>,
    bucket: Arc<Bucket>,
}

impl MountEngine {
    /// Asks `client` for what is in `bucket`.
    pub fn new(client: Client<FuseReply>, bucket: Arc<Bucket>) -> Self {
        Self { client, bucket }
    }

    /// Where the objects are.
    pub fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// The engine's client.
    pub fn client(&self) -> &Client<FuseReply> {
        &self.client
    }

    /// Does `work` on a range of one stripe: the bytes that are cached, or were dropped. As long as a warm-up
    /// gets on, however slowly, it is not given up.
    ///
    /// # Errors
    /// For people.
    pub async fn range(
        &self,
        work: RangeWork,
        object: &Arc<ObjectVersion>,
        bytes: Range<u64>,
    ) -> Result<u64, String> {
        let mut pauses = PAUSES.iter();
        let mut cached_before = 0;
        loop {
            let error = match self.range_once(work, object, bytes.clone()).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if !may_pass(&error) {
                return Err(error.to_string());
            }
            if work == RangeWork::Warm && error == ReadError::Deadline {
                let cached = self
                    .range_once(RangeWork::Check, object, bytes.clone())
                    .await;
                let cached = cached.unwrap_or(0);
                if cached > cached_before {
                    cached_before = cached;
                    continue;
                }
            }
            let Some(pause) = pauses.next() else {
                return Err(error.to_string());
            };
            sleep(*pause).await;
        }
    }

    async fn range_once(
        &self,
        work: RangeWork,
        object: &Arc<ObjectVersion>,
        bytes: Range<u64>,
    ) -> Result<u64, ReadError> {
        let within = self.client.io_timeout().max(STRIPE_TIME_MIN);
        loop {
            let (reply, answer) = oneshot::channel();
            let reply = Box::new(move |result| {
                let _ = reply.send(result);
            });
            let asked = self
                .client
                .range(work, object, bytes.clone(), within, reply);
            if asked.is_ok() {
                return answer.await.unwrap_or(Err(ReadError::Shutdown));
            }
            sleep(RING_PAUSE).await;
        }
    }

    /// Attributes of a key; none when there is no such object.
    ///
    /// # Errors
    /// For people.
    pub async fn head(&self, key: &Arc<str>) -> Result<Option<ObjectMeta>, String> {
        let mut pauses = PAUSES.iter();
        loop {
            let (reply, answer) = oneshot::channel();
            let reply = Box::new(move |told: Told<ObjectMeta>| {
                let _ = reply.send(told.result);
            });
            let asked = self.client.head(&self.bucket, key.clone(), AGE_MAX, reply);
            if asked.is_err() {
                sleep(RING_PAUSE).await;
                continue;
            }
            match answer.await.unwrap_or_else(|_| Err(ended())) {
                Ok(meta) => return Ok(Some(meta)),
                Err(error) if error.kind == OriginErrorKind::NotFound => return Ok(None),
                Err(error) => pause(error, &mut pauses).await?,
            }
        }
    }

    /// One page of a listing.
    ///
    /// # Errors
    /// For people.
    pub async fn list(&self, request: &ListRequest) -> Result<Arc<ListPage>, String> {
        let mut pauses = PAUSES.iter();
        loop {
            let (reply, answer) = oneshot::channel();
            let reply = Box::new(move |told: Told<Arc<ListPage>>| {
                let _ = reply.send(told.result);
            });
            if self.client.list(request.clone(), AGE_MAX, reply).is_err() {
                sleep(RING_PAUSE).await;
                continue;
            }
            match answer.await.unwrap_or_else(|_| Err(ended())) {
                Ok(page) => return Ok(page),
                Err(error) => pause(error, &mut pauses).await?,
            }
        }
    }
}

async fn pause(
    error: OriginError,
    pauses: &mut std::slice::Iter<'_, Duration>,
) -> Result<(), String> {
    match pauses.next().filter(|_| error.kind.is_transient()) {
        Some(pause) => {
            sleep(*pause).await;
            Ok(())
        }
        None => Err(error.to_string()),
    }
}

fn may_pass(error: &ReadError) -> bool {
    match error {
        ReadError::Deadline => true,
        ReadError::Origin(error) => error.kind.is_transient(),
        _ => false,
    }
}

fn ended() -> OriginError {
    OriginError::new(OriginErrorKind::Denied, "the daemon is ending")
}
