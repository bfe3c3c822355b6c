//! Questions to a peer other than for bytes, and their answers.

use std::sync::Arc;

use super::bytes::{Put, Reader};
use super::{WireError, codes};
use crate::client::RangeWork;
use crate::errors::OriginErrorKind;
use crate::identity::{BlockId, Bucket, ObjectId, ObjectVersion, Validator};
use crate::limits::{
    BUCKET_BYTES_MAX, CALL_BYTES_MAX, CONTINUATION_BYTES_MAX, DETAIL_BYTES_MAX, ENDPOINT_BYTES_MAX,
    ETAG_BYTES_MAX, KEY_BYTES_MAX, LIST_PAGE_ENTRIES, OBJECT_BYTES_MAX, STRIPE_BYTES,
    SUB_BLOCK_BYTES, SUB_BLOCKS_PER_BLOCK,
};
use crate::ports::{ListEntry, ListPage, ListRequest, ObjectMeta};

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// No question: what the name of a version is. The answer is empty.
    Describe(Arc<ObjectVersion>),
    /// Attributes of a key.
    Head {
        /// Where.
        bucket: Arc<Bucket>,
        /// The whole key.
        key: Arc<str>,
        /// How old what is remembered may be when the question comes, in milliseconds; 0: ask the origin.
        max_age_ms: u32,
    },
    /// One page of a listing.
    List {
        /// Which.
        request: ListRequest,
        /// As for `Head`.
        max_age_ms: u32,
    },
    /// Do this with a range of one stripe. Answered by `CallAnswer::Cached`.
    Range {
        /// What.
        work: RangeWork,
        /// Which version.
        object: Arc<ObjectVersion>,
        /// First byte.
        offset: u64,
        /// How many, within one stripe.
        len_bytes: u32,
    },
    /// The asker leaves and has these sub-blocks: take them over, as their owner, by fetching them from it. Answered by
    /// `CallAnswer::Taken`. No name is needed.
    Take {
        /// Which block.
        block: BlockId,
        /// Length of its object where one of the sub-blocks shows it, by ending within itself. Else the end of the block:
        /// the object may end before it, with one of the sub-blocks or behind them.
        size_bytes: u64,
        /// Sub-blocks of the block, one bit each; at least one, all within the object.
        subs: u64,
    },
}

/// The answer to a call that succeeded; a failure is a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallAnswer {
    /// Done.
    Done,
    /// Attributes.
    Head {
        /// They, or why there are none.
        result: Result<ObjectMeta, (OriginErrorKind, Box<str>)>,
        /// How old that was when the question came, in milliseconds, rounded up; 0: the origin was asked after it.
        age_ms: u32,
    },
    /// A listing page.
    List {
        /// It, or why there is none.
        result: Result<ListPage, (OriginErrorKind, Box<str>)>,
        /// As for `Head`.
        age_ms: u32,
    },
    /// Bytes of the range that are cached, kept, or were dropped.
    Cached {
        /// How many.
        bytes: u64,
    },
    /// What there is now of what was to be taken over.
    Taken {
        /// Sub-blocks of the block that are kept here now, of those asked for.
        subs: u64,
        /// Bytes that came for this question; the rest had been there.
        took_bytes: u64,
        /// Whether there was room; without, what was not there was not fetched.
        room: bool,
    },
}

const DESCRIBE: u8 = 1;
const HEAD: u8 = 2;
const LIST: u8 = 3;
const WARM: u8 = 4;
const CHECK: u8 = 5;
const EVICT: u8 = 6;
const KEPT: u8 = 7;
const TAKE: u8 = 8;

fn work_code(work: RangeWork) -> u8 {
    match work {
        RangeWork::Warm => WARM,
        RangeWork::Check => CHECK,
        RangeWork::Evict => EVICT,
        RangeWork::Kept => KEPT,
    }
}

fn work_of(code: u8) -> Option<RangeWork> {
    match code {
        WARM => Some(RangeWork::Warm),
        CHECK => Some(RangeWork::Check),
        EVICT => Some(RangeWork::Evict),
        KEPT => Some(RangeWork::Kept),
        _ => None,
    }
}

impl Call {
    /// The question as it travels. Longer than `CALL_BYTES_MAX` only when a field is longer than the limits
    /// allow; such a question is refused.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = Vec::with_capacity(512);
        match self {
            Call::Describe(object) => {
                out.u8(DESCRIBE);
                put_object(&mut out, object);
            }
            Call::Head {
                bucket,
                key,
                max_age_ms,
            } => {
                out.u8(HEAD);
                out.u32(*max_age_ms);
                put_bucket(&mut out, bucket);
                out.text(key);
            }
            Call::List {
                request,
                max_age_ms,
            } => {
                out.u8(LIST);
                out.u32(*max_age_ms);
                put_request(&mut out, request);
            }
            Call::Range {
                work,
                object,
                offset,
                len_bytes,
            } => {
                out.u8(work_code(*work));
                put_object(&mut out, object);
                out.u64(*offset);
                out.u32(*len_bytes);
            }
            Call::Take {
                block,
                size_bytes,
                subs,
            } => {
                out.u8(TAKE);
                out.bytes(&block.object.0.to_le_bytes());
                out.u32(block.index);
                out.u64(*size_bytes);
                out.u64(*subs);
            }
        }
        out.into_boxed_slice()
    }

    /// Reads a question.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Call, WireError> {
        if bytes.len() > CALL_BYTES_MAX {
            return Err(WireError::Limit("question"));
        }
        let mut reader = Reader::new(bytes);
        let call = match reader.u8("question")? {
            DESCRIBE => Call::Describe(object(&mut reader)?),
            HEAD => Call::Head {
                max_age_ms: reader.u32("age")?,
                bucket: bucket(&mut reader)?,
                key: reader.text(KEY_BYTES_MAX, "key")?.into(),
            },
            LIST => Call::List {
                max_age_ms: reader.u32("age")?,
                request: request(&mut reader)?,
            },
            TAKE => take(&mut reader)?,
            code => {
                let work = work_of(code).ok_or(WireError::Unknown("question"))?;
                ranged(&mut reader, work)?
            }
        };
        reader.finish()?;
        Ok(call)
    }
}

fn ranged(reader: &mut Reader<'_>, work: RangeWork) -> Result<Call, WireError> {
    let object = object(reader)?;
    let offset = reader.u64("offset")?;
    let len_bytes = reader.u32("length")?;
    let within = offset
        .checked_add(u64::from(len_bytes))
        .is_some_and(|end| end <= object.size_bytes);
    let (stripe, last) = (
        offset / STRIPE_BYTES as u64,
        offset.saturating_add(u64::from(len_bytes).saturating_sub(1)) / STRIPE_BYTES as u64,
    );
    if !within || stripe != last {
        return Err(WireError::Limit("range"));
    }
    Ok(Call::Range {
        work,
        object,
        offset,
        len_bytes,
    })
}

fn take(reader: &mut Reader<'_>) -> Result<Call, WireError> {
    let block = BlockId {
        object: ObjectId(u128::from_le_bytes(reader.array("object")?)),
        index: reader.u32("block")?,
    };
    let (size_bytes, subs) = (reader.u64("size")?, reader.u64("sub-blocks")?);
    let len_bytes = size_bytes.saturating_sub(block.offset());
    let count = len_bytes.div_ceil(SUB_BLOCK_BYTES as u64);
    let beyond = |subs: u64| count < SUB_BLOCKS_PER_BLOCK as u64 && subs >> count != 0;
    if size_bytes > OBJECT_BYTES_MAX || subs == 0 || beyond(subs) {
        return Err(WireError::Limit("sub-blocks"));
    }
    Ok(Call::Take {
        block,
        size_bytes,
        subs,
    })
}

const DONE: u8 = 1;
const HEAD_OK: u8 = 2;
const HEAD_FAILED: u8 = 3;
const LIST_OK: u8 = 4;
const LIST_FAILED: u8 = 5;
const CACHED: u8 = 6;
const TAKEN: u8 = 7;

impl CallAnswer {
    /// The answer as it travels. A page that may be too long is cut before by [`super::listing::part`].
    ///
    /// # Errors
    /// [`WireError::Room`] when it takes more than `room_bytes`.
    pub fn encode(&self, room_bytes: usize) -> Result<Vec<u8>, WireError> {
        let mut out = Vec::new();
        match self {
            CallAnswer::Done => out.u8(DONE),
            CallAnswer::Head { result, age_ms } => {
                out.u8(if result.is_ok() { HEAD_OK } else { HEAD_FAILED });
                out.u32(*age_ms);
                match result {
                    Ok(meta) => put_meta(&mut out, meta),
                    Err(failure) => put_failure(&mut out, failure),
                }
            }
            CallAnswer::List { result, age_ms } => {
                out.u8(if result.is_ok() { LIST_OK } else { LIST_FAILED });
                out.u32(*age_ms);
                match result {
                    Ok(page) => {
                        out.reserve(page_len_bytes(page));
                        put_page(&mut out, page);
                    }
                    Err(failure) => put_failure(&mut out, failure),
                }
            }
            CallAnswer::Cached { bytes } => {
                out.u8(CACHED);
                out.u64(*bytes);
            }
            CallAnswer::Taken {
                subs,
                took_bytes,
                room,
            } => {
                out.u8(TAKEN);
                out.u64(*subs);
                out.u64(*took_bytes);
                out.u8(u8::from(*room));
            }
        }
        match out.len() <= room_bytes {
            true => Ok(out),
            false => Err(WireError::Room {
                needed_bytes: out.len(),
                room_bytes,
            }),
        }
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<CallAnswer, WireError> {
        let mut reader = Reader::new(bytes);
        let answer = match reader.u8("answer")? {
            DONE => CallAnswer::Done,
            kind @ (HEAD_OK | HEAD_FAILED) => CallAnswer::Head {
                age_ms: reader.u32("age")?,
                result: match kind {
                    HEAD_OK => Ok(meta(&mut reader)?),
                    _ => Err(failure(&mut reader)?),
                },
            },
            kind @ (LIST_OK | LIST_FAILED) => CallAnswer::List {
                age_ms: reader.u32("age")?,
                result: match kind {
                    LIST_OK => Ok(page(&mut reader)?),
                    _ => Err(failure(&mut reader)?),
                },
            },
            CACHED => CallAnswer::Cached {
                bytes: reader.u64("bytes")?,
            },
            TAKEN => CallAnswer::Taken {
                subs: reader.u64("sub-blocks")?,
                took_bytes: reader.u64("bytes")?,
                room: reader.flag("room")?,
            },
            _ => return Err(WireError::Unknown("answer")),
        };
        reader.finish()?;
        Ok(answer)
    }
}

fn put_bucket(out: &mut Vec<u8>, bucket: &Bucket) {
    out.text(&bucket.endpoint);
    out.text(&bucket.name);
}

fn bucket(reader: &mut Reader<'_>) -> Result<Arc<Bucket>, WireError> {
    Ok(Arc::new(Bucket {
        endpoint: reader.text(ENDPOINT_BYTES_MAX, "endpoint")?.into(),
        name: reader.text(BUCKET_BYTES_MAX, "bucket")?.into(),
    }))
}

fn put_validator(out: &mut Vec<u8>, validator: &Validator) {
    match validator {
        Validator::ETag(etag) => {
            out.u8(1);
            out.text(etag);
        }
        Validator::Modified(ns) => {
            out.u8(2);
            out.bytes(&ns.to_le_bytes());
        }
    }
}

fn validator(reader: &mut Reader<'_>) -> Result<Validator, WireError> {
    match reader.u8("validator")? {
        1 => Ok(Validator::ETag(reader.text(ETAG_BYTES_MAX, "ETag")?.into())),
        2 => Ok(Validator::Modified(i128::from_le_bytes(
            reader.array("time of change")?,
        ))),
        _ => Err(WireError::Unknown("validator")),
    }
}

/// Without the id: it follows from the rest, so nobody can give an object another's id.
fn put_object(out: &mut Vec<u8>, object: &ObjectVersion) {
    put_bucket(out, &object.bucket);
    out.text(&object.key);
    put_validator(out, &object.validator);
    out.u64(object.size_bytes);
}

fn object(reader: &mut Reader<'_>) -> Result<Arc<ObjectVersion>, WireError> {
    let bucket = bucket(reader)?;
    let key = reader.text(KEY_BYTES_MAX, "key")?.into();
    let validator = validator(reader)?;
    let size_bytes = reader.u64("size")?;
    if size_bytes > OBJECT_BYTES_MAX {
        return Err(WireError::Limit("size"));
    }
    Ok(Arc::new(ObjectVersion::new(
        bucket, key, validator, size_bytes,
    )))
}

fn put_optional(out: &mut Vec<u8>, text: Option<&str>) {
    out.u8(u8::from(text.is_some()));
    if let Some(text) = text {
        out.text(text);
    }
}

fn continuation(reader: &mut Reader<'_>) -> Result<Option<Arc<str>>, WireError> {
    Ok(match reader.flag("continuation")? {
        true => Some(reader.text(CONTINUATION_BYTES_MAX, "continuation")?.into()),
        false => None,
    })
}

fn put_request(out: &mut Vec<u8>, request: &ListRequest) {
    put_bucket(out, &request.bucket);
    out.text(&request.prefix);
    out.u8(u8::from(request.delimited));
    put_optional(out, request.continuation.as_deref());
    out.u32(request.entries_max);
}

fn request(reader: &mut Reader<'_>) -> Result<ListRequest, WireError> {
    let request = ListRequest {
        bucket: bucket(reader)?,
        prefix: reader.text(KEY_BYTES_MAX, "prefix")?.into(),
        delimited: reader.flag("delimiter")?,
        continuation: continuation(reader)?,
        entries_max: reader.u32("number of entries")?,
    };
    match (1..=LIST_PAGE_ENTRIES).contains(&request.entries_max) {
        true => Ok(request),
        false => Err(WireError::Limit("number of entries")),
    }
}

fn put_meta(out: &mut Vec<u8>, meta: &ObjectMeta) {
    out.text(&meta.key);
    out.u64(meta.size_bytes);
    put_validator(out, &meta.validator);
    out.bytes(&meta.modified_ns.to_le_bytes());
}

fn meta(reader: &mut Reader<'_>) -> Result<ObjectMeta, WireError> {
    Ok(ObjectMeta {
        key: reader.text(KEY_BYTES_MAX, "key")?.into(),
        size_bytes: reader.u64("size")?,
        validator: validator(reader)?,
        modified_ns: i128::from_le_bytes(reader.array("time of change")?),
    })
}

fn put_failure(out: &mut Vec<u8>, failure: &(OriginErrorKind, Box<str>)) {
    let (kind, detail) = failure;
    out.u8(codes::origin_kind_code(*kind));
    out.text(&detail[..detail.floor_char_boundary(DETAIL_BYTES_MAX)]);
}

fn failure(reader: &mut Reader<'_>) -> Result<(OriginErrorKind, Box<str>), WireError> {
    let kind = codes::origin_kind(reader.u8("kind of origin failure")?)?;
    Ok((kind, reader.text(DETAIL_BYTES_MAX, "detail")?.into()))
}

/// Bytes of an answer with a page of no entries.
pub(super) fn page_base_bytes(page: &ListPage) -> usize {
    let next = page.next.as_ref().map_or(0, |next| 4 + next.len());
    1 + 4 + 4 + 1 + next + 4
}

/// Bytes of one entry of a page.
pub(super) fn entry_len_bytes(entry: &ListEntry) -> usize {
    match entry {
        ListEntry::Prefix(prefix) => 1 + 4 + prefix.len(),
        ListEntry::Object(meta) => {
            let validator = match &meta.validator {
                Validator::ETag(etag) => 4 + etag.len(),
                Validator::Modified(_) => 16,
            };
            1 + 4 + meta.key.len() + 8 + 1 + validator + 16
        }
    }
}

pub(crate) fn page_len_bytes(page: &ListPage) -> usize {
    page_base_bytes(page) + page.entries.iter().map(entry_len_bytes).sum::<usize>()
}

fn put_page(out: &mut Vec<u8>, page: &ListPage) {
    out.u32(page.left_out);
    put_optional(out, page.next.as_deref());
    out.u32(page.entries.len() as u32);
    for entry in &page.entries {
        match entry {
            ListEntry::Object(meta) => {
                out.u8(1);
                put_meta(out, meta);
            }
            ListEntry::Prefix(prefix) => {
                out.u8(2);
                out.text(prefix);
            }
        }
    }
}

fn page(reader: &mut Reader<'_>) -> Result<ListPage, WireError> {
    let left_out = reader.u32("number left out")?;
    let next = continuation(reader)?;
    let count = reader.u32("number of entries")?;
    if count > LIST_PAGE_ENTRIES {
        return Err(WireError::Limit("number of entries"));
    }
    let mut entries = Vec::with_capacity(count as usize);
    for _ in 0..count {
        entries.push(match reader.u8("entry")? {
            1 => ListEntry::Object(meta(reader)?),
            2 => ListEntry::Prefix(reader.text(KEY_BYTES_MAX, "prefix")?.into()),
            _ => return Err(WireError::Unknown("entry")),
        });
    }
    Ok(ListPage {
        entries,
        next,
        left_out,
    })
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
