//! The engine's calls as futures, tried again where another attempt may succeed.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::client::{Callback, Client, RangeWork, Told};
use forebay_engine::errors::{OriginError, OriginErrorKind, ReadError};
use forebay_engine::identity::{Bucket, ObjectVersion};
use forebay_engine::ports::{ListPage, ListRequest, ObjectMeta};
use forebay_fuse::FuseReply;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout, timeout_at};

use super::silence::{Silence, TRIAL_TIME, Turn};
use super::tally::Tally;

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
/// It is looked so often whether S3 answers.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// The engine of one mount, as one job uses it.
#[derive(Clone, Debug)]
pub struct MountEngine {
    client: Client<FuseReply>,
    bucket: Arc<Bucket>,
    silence: Arc<Silence>,
}

impl MountEngine {
    /// Asks `client` for what is in `bucket`.
    pub fn new(client: Client<FuseReply>, bucket: Arc<Bucket>) -> Self {
        Self {
            client,
            bucket,
            silence: Arc::default(),
        }
    }

    /// The same for another job.
    pub fn for_job(&self) -> Self {
        Self::new(self.client.clone(), self.bucket.clone())
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
        let ask = |reply| {
            let asked = self.client.head(&self.bucket, key.clone(), AGE_MAX, reply);
            asked.is_ok()
        };
        match self.insist(ask).await {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if error.kind == OriginErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// One page of a listing.
    ///
    /// # Errors
    /// For people.
    pub async fn list(&self, request: &ListRequest) -> Result<Arc<ListPage>, String> {
        let ask = |reply| self.client.list(request.clone(), AGE_MAX, reply).is_ok();
        let page = self.insist(ask).await;
        page.map_err(|error| error.to_string())
    }

    /// Asks until there is an answer, or none was given within all the time that a job has.
    async fn insist<T: Send + 'static>(
        &self,
        ask: impl Fn(Callback<Told<T>>) -> bool + Send + Sync,
    ) -> Result<T, OriginError> {
        let trial = match self.silence.turn().await {
            Turn::Refused(error) => return Err(error),
            Turn::Trial(trial) => Some(trial),
            Turn::Patient => None,
        };
        let patience = match trial {
            Some(_) => TRIAL_TIME,
            None => self.client.io_timeout() + PAUSES.iter().sum::<Duration>(),
        };
        let until = Instant::now() + patience;
        let mut pauses = PAUSES.iter();
        loop {
            let began = Instant::now();
            let Ok(answer) = timeout_at(until.into(), ask_once(&ask)).await else {
                self.silence.unanswered(began);
                break;
            };
            let error = match answer {
                Err(error) if error.kind.is_transient() => error,
                answer => {
                    self.silence.answered();
                    return answer;
                }
            };
            self.silence.failed(began, &error);
            let pause = pauses.next().filter(|pause| began + **pause < until);
            match pause {
                Some(pause) if trial.is_none() => sleep(*pause).await,
                _ if self.silence.span().is_some() => break,
                _ => return Err(error),
            }
        }
        if let Some(trial) = trial {
            trial.failed();
        }
        Err(self.silence.give_up())
    }

    /// Tells `tally` how long S3 has not answered, as the job or this node's cores find it; never ends.
    pub async fn watch(&self, tally: &Tally) -> Infallible {
        loop {
            sleep(WATCH_EVERY).await;
            let found = self.outage().await;
            tally.silent(found.max(self.silence.span()));
        }
    }

    /// How long the origin has not answered the cores of this node; none when it does.
    async fn outage(&self) -> Option<Duration> {
        let (sender, mut receiver) = unbounded_channel();
        self.client.stats(move |stats| {
            let _ = sender.send(stats.outage_ns);
        });
        let mut longest_ns = 0;
        let all = async {
            while let Some(outage_ns) = receiver.recv().await {
                longest_ns = longest_ns.max(outage_ns);
            }
        };
        // Who does not tell now is asked again soon.
        let _ = timeout(WATCH_EVERY, all).await;
        (longest_ns > 0).then(|| Duration::from_nanos(longest_ns))
    }
}

async fn ask_once<T: Send + 'static>(
    ask: impl Fn(Callback<Told<T>>) -> bool + Send + Sync,
) -> Result<T, OriginError> {
    loop {
        let (reply, answer) = oneshot::channel();
        let reply = Box::new(move |told: Told<T>| {
            let _ = reply.send(told.result);
        });
        if ask(reply) {
            return answer.await.unwrap_or_else(|_| Err(ended()));
        }
        sleep(RING_PAUSE).await;
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
