//! A ranged GET into leases, and what its answer must be.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use forebay_engine::arena::Lease;
use forebay_engine::errors::{OriginError, OriginErrorKind};
use forebay_engine::identity::{ObjectVersion, Validator};
use forebay_engine::ports::{GetOp, OriginEvent, OriginTag, Time};
use tokio::sync::{AcquireError, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::errors::{Attempt, causes, chain};
use crate::metadata::usable_etag;
use crate::port::Mailbox;
use crate::runtime::Shared;

/// How often a slow GET tells the core that it is alive.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A GET's leases on their way. Dropped without `finish` (cancelled, runtime gone) it sends the
/// final event all the same.
struct Job {
    tag: OriginTag,
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
    leases: std::vec::IntoIter<Lease>,
    filling: Option<Lease>,
    /// Bytes written to `filling`.
    at: usize,
    received_bytes: u64,
    filled_bytes: u64,
    done: bool,
    /// When the core last heard of this GET.
    told: Instant,
}

impl Job {
    fn new(tag: OriginTag, leases: Vec<Lease>, shared: Arc<Shared>, mailbox: Arc<Mailbox>) -> Self {
        let mut leases = leases.into_iter();
        let filling = leases.next();
        Self {
            tag,
            mailbox,
            shared,
            leases,
            filling,
            at: 0,
            received_bytes: 0,
            filled_bytes: 0,
            done: false,
            told: Instant::now(),
        }
    }

    /// Tells the core, at most once a second, that the GET has not stalled.
    fn tell_progress(&mut self) {
        if self.told.elapsed() >= PROGRESS_EVERY {
            self.told = Instant::now();
            self.mailbox.send(OriginEvent::Progress { tag: self.tag });
        }
    }

    /// Copies a piece of the body to where it belongs. Bytes beyond the last lease are counted
    /// as received and dropped.
    fn take(&mut self, mut piece: &[u8]) {
        self.received_bytes += piece.len() as u64;
        self.tell_progress();
        self.shared
            .counting
            .get_bytes
            .fetch_add(piece.len() as u64, Relaxed);
        while let Some(mut lease) = self.filling.take() {
            let len = piece.len().min(lease.len() - self.at);
            lease.bytes_mut()[self.at..self.at + len].copy_from_slice(&piece[..len]);
            self.at += len;
            piece = &piece[len..];
            if self.at < lease.len() {
                self.filling = Some(lease);
                return;
            }
            self.filled_bytes += lease.len() as u64;
            self.mailbox.send(OriginEvent::Filled {
                tag: self.tag,
                lease,
            });
            self.at = 0;
            self.filling = self.leases.next();
        }
    }

    fn is_full(&self) -> bool {
        self.filling.is_none()
    }

    fn finish(&mut self, result: Result<(), OriginError>) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let unfilled = self
            .filling
            .take()
            .into_iter()
            .chain(self.leases.by_ref())
            .collect();
        let wasted_bytes = self.received_bytes - self.filled_bytes;
        self.shared
            .counting
            .wasted_bytes
            .fetch_add(wasted_bytes, Relaxed);
        if result.is_err() {
            self.shared.counting.errors.fetch_add(1, Relaxed);
        }
        self.mailbox.send(OriginEvent::GetDone {
            tag: self.tag,
            result,
            unfilled,
            wasted_bytes,
        });
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.done {
            self.finish(Err(OriginError::new(
                OriginErrorKind::Cancelled,
                "the GET was cancelled",
            )));
        }
    }
}

/// What a GET asks for.
struct Asked {
    object: Arc<ObjectVersion>,
    offset: u64,
    len_bytes: u64,
}

impl Asked {
    fn attempt<'a>(&'a self, shared: &'a Shared) -> Attempt<'a> {
        let (bucket, key) = (&self.object.bucket.name, &self.object.key);
        Attempt {
            verb: "GET",
            bucket,
            key,
            endpoint: &shared.endpoint,
        }
    }
}

/// The task of one GET. Not an `async fn`: the job must exist before the first poll, so that a
/// task that is dropped unpolled still sends its event.
pub(crate) fn run(
    op: GetOp,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
) -> impl Future<Output = ()> + Send + 'static {
    let len_bytes = op.len_bytes();
    let asked = Asked {
        object: op.object,
        offset: op.offset,
        len_bytes,
    };
    let job = Job::new(op.tag, op.leases, shared.clone(), mailbox);
    drive(asked, op.deadline, shared, job)
}

async fn drive(asked: Asked, deadline: Time, shared: Arc<Shared>, mut job: Job) {
    shared.counting.gets.fetch_add(1, Relaxed);
    let result = match timeout(shared.left(deadline), fetch(&asked, &shared, &mut job)).await {
        Ok(result) => result,
        Err(_) => {
            let got = format!(
                "no end by the deadline ({} bytes had come)",
                job.received_bytes
            );
            Err(asked.attempt(&shared).error(OriginErrorKind::Timeout, got))
        }
    };
    job.finish(result);
}

async fn fetch(asked: &Asked, shared: &Shared, job: &mut Job) -> Result<(), OriginError> {
    let attempt = || asked.attempt(shared);
    let end = asked.offset.saturating_add(asked.len_bytes);
    if asked.len_bytes == 0 || end > asked.object.size_bytes {
        return Err(attempt().error(
            OriginErrorKind::BadAnswer,
            "the range is not within the object",
        ));
    }
    // The permit is held for as long as the body occupies a connection.
    let Ok(_permit) = permit(shared, job).await else {
        return Err(attempt().error(OriginErrorKind::Cancelled, "shutting down"));
    };
    let mut request = shared
        .client
        .get_object()
        .bucket(&asked.object.bucket.name)
        .key(&*asked.object.key)
        .range(format!("bytes={}-{}", asked.offset, end - 1));
    if let Validator::ETag(etag) = &asked.object.validator {
        request = request.if_match(&**etag);
    }
    let answer = request.send().await.map_err(|error| {
        let mut error = attempt().sdk_error(&error);
        // A GET names a version: an object that is gone no longer has it.
        if error.kind == OriginErrorKind::NotFound {
            error.kind = OriginErrorKind::VersionChanged;
        }
        error
    })?;
    check_answer(asked, &answer).map_err(|(kind, what)| attempt().error(kind, what))?;
    receive(answer.body, answer.content_length.is_some(), job)
        .await
        .map_err(|(kind, what)| attempt().error(kind, what))
}

/// A connection's permit. Waiting for one is not a stall: the core is told so.
async fn permit<'a>(
    shared: &'a Shared,
    job: &mut Job,
) -> Result<SemaphorePermit<'a>, AcquireError> {
    let acquire = shared.gets.acquire();
    tokio::pin!(acquire);
    loop {
        match timeout(PROGRESS_EVERY, &mut acquire).await {
            Ok(permit) => return permit,
            Err(_) => job.tell_progress(),
        }
    }
}

type Wrong = (OriginErrorKind, String);

/// Checks that an answer is the range of the version that was asked for. The SDK does not show
/// the status; `Content-Range` is what a 206 has and a 200 lacks, and it must be exactly right.
fn check_answer(asked: &Asked, answer: &GetObjectOutput) -> Result<(), Wrong> {
    check_validator(
        &asked.object.validator,
        answer.e_tag(),
        answer.last_modified(),
    )?;
    let Some(told) = answer.content_range() else {
        let what = "the answer is the whole object (200) instead of the range (206)";
        return Err((OriginErrorKind::BadAnswer, what.to_owned()));
    };
    let Some((first, last, total)) = parse_content_range(told) else {
        return Err((
            OriginErrorKind::BadAnswer,
            format!("unreadable Content-Range {told:?}"),
        ));
    };
    if total != asked.object.size_bytes {
        let what = format!(
            "the object has {total} bytes, not {}",
            asked.object.size_bytes
        );
        return Err((OriginErrorKind::VersionChanged, what));
    }
    let wanted_last = asked.offset + asked.len_bytes - 1;
    if (first, last) != (asked.offset, wanted_last) {
        let what = format!(
            "asked for bytes {}-{wanted_last}, got {first}-{last}",
            asked.offset
        );
        return Err((OriginErrorKind::BadAnswer, what));
    }
    match answer.content_length() {
        Some(len) if u64::try_from(len) != Ok(asked.len_bytes) => Err((
            OriginErrorKind::BadAnswer,
            format!("Content-Length {len} does not fit the range"),
        )),
        _ => Ok(()),
    }
}

fn check_validator(
    validator: &Validator,
    etag: Option<&str>,
    modified: Option<&DateTime>,
) -> Result<(), Wrong> {
    let (same, told) = match validator {
        Validator::ETag(wanted) => {
            let told = etag.and_then(usable_etag);
            (
                told.as_deref() == Some(&**wanted),
                told.unwrap_or_else(|| "none".into()).into_owned(),
            )
        }
        Validator::Modified(wanted) => {
            let told = modified.map(crate::metadata::whole_seconds_ns);
            (
                told == Some(*wanted),
                told.map_or("none".to_owned(), |ns| format!("modified:{ns}")),
            )
        }
    };
    if same {
        return Ok(());
    }
    let what = format!("the object is version {told} now, version {validator} was asked for");
    Err((OriginErrorKind::VersionChanged, what))
}

/// `bytes FIRST-LAST/TOTAL`.
fn parse_content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, total) = text
        .trim()
        .strip_prefix("bytes")?
        .trim_start()
        .split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((
        first.trim().parse().ok()?,
        last.trim().parse().ok()?,
        total.trim().parse().ok()?,
    ))
}

async fn receive(mut body: ByteStream, has_length: bool, job: &mut Job) -> Result<(), Wrong> {
    loop {
        // With a Content-Length the connection is free again after the last byte. Without one,
        // only reading the end of the body frees it.
        if job.is_full() && has_length {
            return Ok(());
        }
        match body.next().await {
            Some(Ok(piece)) => {
                let was_full = job.is_full();
                job.take(&piece);
                if was_full && !piece.is_empty() {
                    return Err((
                        OriginErrorKind::BadAnswer,
                        "the body is longer than the range".into(),
                    ));
                }
            }
            Some(Err(_)) | None if job.is_full() => return Ok(()),
            None => {
                let what = format!("the body ended after {} bytes", job.received_bytes);
                return Err((OriginErrorKind::ShortBody, what));
            }
            Some(Err(error)) => {
                let why = causes(&error);
                let what = format!(
                    "the body broke off after {} bytes: {why}",
                    job.received_bytes
                );
                return Err((broken_body_kind(&error), what));
            }
        }
    }
}

/// A body that ends before its length is short; a connection that breaks is unavailable.
fn broken_body_kind(error: &(dyn std::error::Error + 'static)) -> OriginErrorKind {
    let reset = chain(error)
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() != std::io::ErrorKind::UnexpectedEof);
    if reset {
        OriginErrorKind::Unavailable
    } else {
        OriginErrorKind::ShortBody
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(parse_content_range("bytes 0-9/10"), Some((0, 9, 10)));
        assert_eq!(
            parse_content_range("bytes 5-5/18446744073709551615"),
            Some((5, 5, u64::MAX))
        );
        for text in [
            "",
            "bytes",
            "bytes */10",
            "bytes 0-9/*",
            "bytes 0-/9",
            "0-9/10",
            "bytes -1-9/10",
        ] {
            assert_eq!(parse_content_range(text), None, "{text}");
        }
    }
}
