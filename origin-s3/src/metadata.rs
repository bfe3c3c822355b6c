//! HEAD and listing pages.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;
use aws_sdk_s3::primitives::DateTime;
use aws_sdk_s3::types::{EncodingType, Object};
use forebay_engine::errors::{OriginError, OriginErrorKind};
use forebay_engine::identity::Validator;
use forebay_engine::ports::{
    HeadOp, ListEntry, ListOp, ListPage, ListRequest, ObjectMeta, OriginEvent,
};
use tokio::time::timeout;

use crate::errors::Attempt;
use crate::listing::{PROBE, Plus, decode};
use crate::port::Mailbox;
use crate::runtime::Shared;

/// Makes the final event out of a result; sends it in any case, with `Cancelled` when dropped.
struct Job<T, F: FnOnce(Result<T, OriginError>) -> OriginEvent> {
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
    event: Option<F>,
    value: std::marker::PhantomData<T>,
}

impl<T, F: FnOnce(Result<T, OriginError>) -> OriginEvent> Job<T, F> {
    fn new(mailbox: Arc<Mailbox>, shared: Arc<Shared>, event: F) -> Self {
        Self {
            mailbox,
            shared,
            event: Some(event),
            value: std::marker::PhantomData,
        }
    }

    fn finish(&mut self, result: Result<T, OriginError>) {
        if let Some(event) = self.event.take() {
            if result.is_err() {
                self.shared.counting.errors.fetch_add(1, Relaxed);
            }
            self.mailbox.send(event(result));
        }
    }
}

impl<T, F: FnOnce(Result<T, OriginError>) -> OriginEvent> Drop for Job<T, F> {
    fn drop(&mut self) {
        self.finish(Err(OriginError::new(
            OriginErrorKind::Cancelled,
            "the request was cancelled",
        )));
    }
}

/// Runs `work` with a permit for metadata, until the deadline at most.
async fn within<T>(
    left: Duration,
    attempt: &Attempt<'_>,
    shared: &Shared,
    work: impl Future<Output = Result<T, OriginError>>,
) -> Result<T, OriginError> {
    let limited = async {
        let Ok(_permit) = shared.metadata.acquire().await else {
            return Err(attempt.error(OriginErrorKind::Cancelled, "shutting down"));
        };
        work.await
    };
    match timeout(left, limited).await {
        Ok(result) => result,
        Err(_) => Err(attempt.error(OriginErrorKind::Timeout, "no answer by the deadline")),
    }
}

/// The task of one HEAD; like [`crate::get::run`], its job exists before the first poll.
pub(crate) fn head(
    op: HeadOp,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
) -> impl Future<Output = ()> + Send + 'static {
    let tag = op.tag;
    let mut job = Job::new(mailbox, shared.clone(), move |result| OriginEvent::Head {
        tag,
        result,
    });
    async move {
        shared.counting.heads.fetch_add(1, Relaxed);
        let attempt = Attempt {
            verb: "HEAD",
            bucket: &op.bucket.name,
            key: &op.key,
            endpoint: &shared.endpoint,
        };
        let work = head_once(&op, &attempt, &shared);
        job.finish(within(shared.left(op.deadline), &attempt, &shared, work).await);
    }
}

async fn head_once(
    op: &HeadOp,
    attempt: &Attempt<'_>,
    shared: &Shared,
) -> Result<ObjectMeta, OriginError> {
    let request = shared
        .client
        .head_object()
        .bucket(&op.bucket.name)
        .key(&*op.key);
    let answer = request
        .send()
        .await
        .map_err(|error| attempt.sdk_error(&error))?;
    let size_bytes = answer
        .content_length()
        .and_then(|len| u64::try_from(len).ok());
    let Some(size_bytes) = size_bytes else {
        return Err(attempt.error(
            OriginErrorKind::BadAnswer,
            "the answer has no Content-Length",
        ));
    };
    meta(
        op.key.clone(),
        size_bytes,
        answer.e_tag(),
        answer.last_modified(),
    )
    .map_err(|what| attempt.error(OriginErrorKind::BadAnswer, what))
}

/// The task of one listing page.
pub(crate) fn list(
    op: ListOp,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
) -> impl Future<Output = ()> + Send + 'static {
    let tag = op.tag;
    let mut job = Job::new(mailbox, shared.clone(), move |result| OriginEvent::List {
        tag,
        result,
    });
    async move {
        shared.counting.lists.fetch_add(1, Relaxed);
        let (bucket, key) = (&op.request.bucket.name, &op.request.prefix);
        let attempt = Attempt {
            verb: "LIST",
            bucket,
            key,
            endpoint: &shared.endpoint,
        };
        let work = list_once(&op.request, &attempt, &shared);
        let result = within(shared.left(op.deadline), &attempt, &shared, work).await;
        if let Ok(page) = &result {
            shared
                .counting
                .list_entries
                .fetch_add(page.entries.len() as u64, Relaxed);
        }
        job.finish(result);
    }
}

async fn list_once(
    request: &ListRequest,
    attempt: &Attempt<'_>,
    shared: &Shared,
) -> Result<ListPage, OriginError> {
    let entries_max = i32::try_from(request.entries_max.clamp(1, 1000)).unwrap_or(1000);
    let answer = shared
        .client
        .list_objects_v2()
        .bucket(&request.bucket.name)
        .prefix(&*request.prefix)
        .set_delimiter(request.delimited.then(|| "/".to_owned()))
        .set_continuation_token(request.continuation.as_deref().map(str::to_owned))
        .max_keys(entries_max)
        .encoding_type(EncodingType::Url)
        .send()
        .await
        .map_err(|error| {
            let mut error = attempt.sdk_error(&error);
            // There is no key that could be missing.
            if error.kind == OriginErrorKind::NotFound {
                error.kind = OriginErrorKind::NoSuchBucket;
            }
            error
        })?;
    let plus = plus_sign(request, &answer, attempt, shared).await?;
    page(request, &answer, plus).map_err(|what| attempt.error(OriginErrorKind::BadAnswer, what))
}

/// What `+` stands for on this page; asks the server once, the first time that it matters.
///
/// An error when it does not answer: a guess would name objects that are not there, or worse, that
/// are other ones. The engine asks for the page again.
async fn plus_sign(
    request: &ListRequest,
    answer: &ListObjectsV2Output,
    attempt: &Attempt<'_>,
    shared: &Shared,
) -> Result<Option<Plus>, OriginError> {
    // Servers that do not know the encoding tell keys as they are.
    if answer.encoding_type().is_none() {
        return Ok(None);
    }
    if let Some(plus) = shared.plus_sign.known() {
        return Ok(Some(plus));
    }
    let keys = answer.contents().iter().filter_map(Object::key);
    let prefixes = answer
        .common_prefixes()
        .iter()
        .filter_map(|prefix| prefix.prefix());
    if !keys.chain(prefixes).any(|told| told.contains('+')) {
        return Ok(Some(Plus::Space));
    }
    // Below the page's own prefix: keys may have the right to list there only.
    let probe = shared
        .client
        .list_objects_v2()
        .bucket(&request.bucket.name)
        .prefix(format!("{}{PROBE}", request.prefix))
        .max_keys(1);
    match probe.encoding_type(EncodingType::Url).send().await {
        Ok(echo) => Ok(Some(shared.plus_sign.learn(echo.prefix()))),
        Err(error) => match attempt.sdk_error(&error) {
            // It would never answer; who has such policies encodes as AWS does.
            refused if refused.kind == OriginErrorKind::Denied => Ok(Some(Plus::Space)),
            error => Err(error),
        },
    }
}

fn page(
    request: &ListRequest,
    answer: &ListObjectsV2Output,
    plus: Option<Plus>,
) -> Result<ListPage, String> {
    let mut page = ListPage::default();
    let decoded = |told: &str| match plus {
        Some(plus) => decode(told, plus),
        None => Some(told.to_owned()),
    };
    for object in answer.contents() {
        let Some(told) = object.key() else {
            return Err("an entry has no key".to_owned());
        };
        let Some(key) = decoded(told) else {
            page.left_out += 1;
            continue;
        };
        let size = object.size().and_then(|size| u64::try_from(size).ok());
        let Some(size) = size else {
            return Err(format!("key {told} has no size"));
        };
        page.entries.push(ListEntry::Object(meta(
            key.into(),
            size,
            object.e_tag(),
            object.last_modified(),
        )?));
    }
    for prefix in answer.common_prefixes() {
        match prefix.prefix().map(decoded) {
            Some(Some(prefix)) => page.entries.push(ListEntry::Prefix(prefix.into())),
            Some(None) => page.left_out += 1,
            None => return Err("a common prefix has no name".to_owned()),
        }
    }
    page.entries
        .sort_by(|a, b| name(a).as_bytes().cmp(name(b).as_bytes()));
    if answer.is_truncated() == Some(true) {
        let next = answer.next_continuation_token();
        // A token that repeats would list for ever.
        let next = next.filter(|next| request.continuation.as_deref() != Some(next));
        let next = next.ok_or("the page is truncated but does not say where the next begins")?;
        page.next = Some(next.into());
    }
    Ok(page)
}

fn name(entry: &ListEntry) -> &str {
    match entry {
        ListEntry::Object(meta) => &meta.key,
        ListEntry::Prefix(prefix) => prefix,
    }
}

fn meta(
    key: Arc<str>,
    size_bytes: u64,
    etag: Option<&str>,
    modified: Option<&DateTime>,
) -> Result<ObjectMeta, String> {
    let validator = match (etag.and_then(usable_etag), modified) {
        (Some(etag), _) => Validator::ETag(etag.into()),
        (None, Some(modified)) => Validator::Modified(whole_seconds_ns(modified)),
        (None, None) => {
            return Err(format!(
                "{} has neither ETag nor Last-Modified",
                key.escape_debug()
            ));
        }
    };
    let modified_ns = modified.map_or(0, DateTime::as_nanos);
    Ok(ObjectMeta {
        key,
        size_bytes,
        validator,
        modified_ns,
    })
}

/// An ETag as identities spell it: with its quotes, which some servers leave out in listings.
/// None for an empty one and for a weak one, which does not promise the same bytes.
pub(crate) fn usable_etag(told: &str) -> Option<Cow<'_, str>> {
    let bare = told.trim().trim_matches('"');
    if bare.is_empty() || told.trim_start().starts_with("W/") {
        return None;
    }
    if told.len() == bare.len() + 2 {
        return Some(told.into());
    }
    Some(format!("\"{bare}\"").into())
}

/// A time in nanoseconds, down to the whole second: HEAD's Last-Modified has no fractions, a
/// listing's has, and both must name the same version.
pub(crate) fn whole_seconds_ns(time: &DateTime) -> i128 {
    i128::from(time.secs()) * 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_have_one_spelling() {
        assert_eq!(usable_etag("\"abc\"").as_deref(), Some("\"abc\""));
        assert_eq!(usable_etag("abc").as_deref(), Some("\"abc\""));
        assert_eq!(usable_etag(" \"abc\" ").as_deref(), Some("\"abc\""));
        for useless in ["", "\"\"", "W/\"abc\""] {
            assert_eq!(usable_etag(useless), None, "{useless}");
        }
    }
}
