//! The S3 operations over the store. Faults that change an answer's meaning act here; those of
//! the connection act in [`super::serve`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use s3s::dto::*;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3, S3Request, S3Response, S3Result, StdError, s3_error};

use super::counters::Served;
use super::faults::Fault;
use super::listing::{self, Page, Query};
use super::store::{Content, Store, Stored};

/// Bytes in one piece of a body.
const PIECE_BYTES: usize = 256 << 10;

/// The operations.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) store: Arc<Store>,
}

/// A part of an object as a body.
struct ContentStream {
    object: Arc<Stored>,
    at: u64,
    end: u64,
}

impl Stream for ContentStream {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let len = (self.end - self.at).min(PIECE_BYTES as u64);
        if len == 0 {
            return Poll::Ready(None);
        }
        let piece = self.object.content.slice(self.at, len as usize);
        self.at += len;
        Poll::Ready(Some(Ok(piece)))
    }
}

impl ByteStream for ContentStream {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact((self.end - self.at) as usize)
    }
}

fn fault_of<T>(req: &S3Request<T>) -> Option<Fault> {
    req.extensions.get::<Fault>().cloned()
}

/// The ETag as an answer tells it under `fault`.
fn told_etag(stored: &Stored, fault: Option<&Fault>) -> Option<ETag> {
    match fault {
        Some(Fault::NoETag) => None,
        Some(Fault::WrongETag) => Some(ETag::Strong(format!("{}-wrong", stored.etag))),
        _ => Some(ETag::Strong(stored.etag.clone())),
    }
}

impl Backend {
    fn need_bucket(&self, bucket: &str) -> S3Result<()> {
        if self.store.has_bucket(bucket) {
            return Ok(());
        }
        Err(s3_error!(
            NoSuchBucket,
            "The specified bucket does not exist"
        ))
    }

    fn object(&self, bucket: &str, key: &str) -> S3Result<Arc<Stored>> {
        self.need_bucket(bucket)?;
        self.store
            .get(bucket, key.as_bytes())
            .ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist."))
    }

    fn list(&self, bucket: &str, query: &Query<'_>) -> S3Result<Page> {
        self.need_bucket(bucket)?;
        Ok(listing::list(&self.store, bucket, query))
    }
}

fn matches(condition: &ETagCondition, stored: &Stored) -> bool {
    condition.is_any()
        || condition
            .as_etag()
            .is_some_and(|etag| etag.value() == stored.etag)
}

/// A key or prefix as a listing tells it. As AWS encodes: space is `+`, `/` stays.
fn told_name(name: &[u8], encoded: bool) -> String {
    if !encoded {
        return String::from_utf8_lossy(name).into_owned();
    }
    let mut told = String::with_capacity(name.len());
    for byte in name {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' | b'/' => {
                told.push(char::from(*byte));
            }
            b' ' => told.push('+'),
            other => told.push_str(&format!("%{other:02X}")),
        }
    }
    told
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

fn told_objects(page: &Page, encoded: bool, fault: Option<&Fault>) -> Vec<Object> {
    let told = |(key, stored): &(Vec<u8>, Arc<Stored>)| Object {
        key: Some(told_name(key, encoded)),
        size: Some(stored.content.len_bytes() as i64),
        e_tag: told_etag(stored, fault),
        last_modified: Some(stored.modified.into()),
        storage_class: Some(ObjectStorageClass::from_static(
            ObjectStorageClass::STANDARD,
        )),
        ..Default::default()
    };
    page.objects.iter().map(told).collect()
}

fn told_prefixes(page: &Page, encoded: bool) -> Vec<CommonPrefix> {
    page.prefixes
        .iter()
        .map(|prefix| CommonPrefix {
            prefix: Some(told_name(prefix, encoded)),
        })
        .collect()
}

fn entries_max(asked: Option<i32>) -> S3Result<usize> {
    match asked {
        None => Ok(1000),
        Some(asked) if asked < 0 => Err(s3_error!(InvalidArgument, "max-keys is negative")),
        Some(asked) => Ok(asked.min(1000) as usize),
    }
}

#[async_trait::async_trait]
impl S3 for Backend {
    async fn get_object(
        &self,
        req: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let fault = fault_of(&req);
        let input = &req.input;
        if fault == Some(Fault::Overwrite) {
            let old = self.object(&input.bucket, &input.key)?;
            self.store
                .put(&input.bucket, input.key.as_bytes(), old.content.altered());
        }
        let stored = self.object(&input.bucket, &input.key)?;
        if input
            .if_match
            .as_ref()
            .is_some_and(|condition| !matches(condition, &stored))
        {
            return Err(s3_error!(PreconditionFailed, "If-Match does not hold"));
        }
        if input
            .if_none_match
            .as_ref()
            .is_some_and(|condition| matches(condition, &stored))
        {
            return Err(s3_error!(NotModified));
        }
        let size = stored.content.len_bytes();
        let asked = input.range.filter(|_| fault != Some(Fault::Whole));
        let mut range = asked.map_or(Ok(0..size), |range| range.check(size))?;
        if let Some(Fault::ShortRange(by)) = fault {
            range.end = range
                .end
                .saturating_sub(by)
                .max(range.start + 1)
                .min(range.end);
        }
        let content_range =
            asked.map(|_| format!("bytes {}-{}/{size}", range.start, range.end - 1));
        let served = Served {
            name: format!("{}/{}", input.bucket, input.key),
            etag: stored.etag.clone(),
            start: range.start,
        };
        let output = GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some((range.end - range.start) as i64),
            content_range,
            e_tag: told_etag(&stored, fault.as_ref()),
            last_modified: Some(stored.modified.into()),
            body: Some(StreamingBlob::new(ContentStream {
                object: stored,
                at: range.start,
                end: range.end,
            })),
            ..Default::default()
        };
        let mut response = S3Response::new(output);
        response.extensions.insert(served);
        Ok(response)
    }

    async fn head_object(
        &self,
        req: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let fault = fault_of(&req);
        let stored = self.object(&req.input.bucket, &req.input.key)?;
        Ok(S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(stored.content.len_bytes() as i64),
            e_tag: told_etag(&stored, fault.as_ref()),
            last_modified: Some(stored.modified.into()),
            ..Default::default()
        }))
    }

    async fn put_object(
        &self,
        req: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let input = req.input;
        self.need_bucket(&input.bucket)?;
        let mut bytes =
            BytesMut::with_capacity(input.content_length.unwrap_or_default().max(0) as usize);
        if let Some(mut body) = input.body {
            while let Some(piece) = body.next().await {
                bytes.extend_from_slice(&piece.map_err(|_| s3_error!(IncompleteBody))?);
            }
        }
        let content = Content::Bytes(bytes.freeze());
        let etag = self.store.put(&input.bucket, input.key.as_bytes(), content);
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(ETag::Strong(etag)),
            ..Default::default()
        }))
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.need_bucket(&req.input.bucket)?;
        self.store
            .delete(&req.input.bucket, req.input.key.as_bytes());
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn create_bucket(
        &self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        if self.store.has_bucket(&req.input.bucket) {
            return Err(s3_error!(BucketAlreadyOwnedByYou));
        }
        self.store.create_bucket(&req.input.bucket);
        let location = Some(format!("/{}", req.input.bucket));
        Ok(S3Response::new(CreateBucketOutput { location }))
    }

    async fn head_bucket(
        &self,
        req: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.need_bucket(&req.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.need_bucket(&req.input.bucket)?;
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn list_buckets(
        &self,
        _: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let buckets = self.store.buckets().into_iter();
        let told = buckets
            .map(|name| Bucket {
                name: Some(name),
                ..Default::default()
            })
            .collect();
        Ok(S3Response::new(ListBucketsOutput {
            buckets: Some(told),
            ..Default::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let fault = fault_of(&req);
        let input = req.input;
        let after = match &input.continuation_token {
            Some(token) => {
                unhex(token).ok_or_else(|| s3_error!(InvalidArgument, "continuation-token"))?
            }
            None => input.start_after.clone().unwrap_or_default().into_bytes(),
        };
        let query = Query {
            prefix: input.prefix.as_deref().unwrap_or_default().as_bytes(),
            delimiter: input.delimiter.as_deref().unwrap_or_default().as_bytes(),
            after: &after,
            entries_max: entries_max(input.max_keys)?,
        };
        let page = self.list(&input.bucket, &query)?;
        let encoded = input.encoding_type.is_some();
        let echo = |name: Option<String>| name.map(|name| told_name(name.as_bytes(), encoded));
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            max_keys: Some(query.entries_max as i32),
            key_count: Some((page.objects.len() + page.prefixes.len()) as i32),
            is_truncated: Some(page.truncated),
            next_continuation_token: page.truncated.then(|| hex(&page.last)),
            contents: Some(told_objects(&page, encoded, fault.as_ref())),
            common_prefixes: Some(told_prefixes(&page, encoded)),
            prefix: echo(input.prefix),
            delimiter: echo(input.delimiter),
            start_after: echo(input.start_after),
            continuation_token: input.continuation_token,
            encoding_type: input.encoding_type,
            ..Default::default()
        }))
    }

    async fn list_objects(
        &self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let fault = fault_of(&req);
        let input = req.input;
        let query = Query {
            prefix: input.prefix.as_deref().unwrap_or_default().as_bytes(),
            delimiter: input.delimiter.as_deref().unwrap_or_default().as_bytes(),
            after: input.marker.as_deref().unwrap_or_default().as_bytes(),
            entries_max: entries_max(input.max_keys)?,
        };
        let page = self.list(&input.bucket, &query)?;
        let encoded = input.encoding_type.is_some();
        let echo = |name: Option<String>| name.map(|name| told_name(name.as_bytes(), encoded));
        Ok(S3Response::new(ListObjectsOutput {
            max_keys: Some(query.entries_max as i32),
            is_truncated: Some(page.truncated),
            next_marker: page.truncated.then(|| told_name(&page.last, encoded)),
            contents: Some(told_objects(&page, encoded, fault.as_ref())),
            common_prefixes: Some(told_prefixes(&page, encoded)),
            name: Some(input.bucket),
            prefix: echo(input.prefix),
            delimiter: echo(input.delimiter),
            marker: echo(input.marker),
            encoding_type: input.encoding_type,
            ..Default::default()
        }))
    }
}
