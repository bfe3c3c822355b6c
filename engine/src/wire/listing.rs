//! Parts of a listing page: a thousand keys of 1,024 bytes do not fit into one answer.
//!
//! A page that is cut gets a continuation of this module's own: the last key of the part, and the continuation
//! that the whole page began with. Whoever answers lists that page again, from its cache as a rule, and takes
//! what follows the key. Origins never see such a continuation: it begins with a character that XML cannot hold.

use std::sync::Arc;

use super::WireError;
use super::call::{entry_len_bytes, page_base_bytes};
use crate::limits::CONTINUATION_BYTES_MAX;
use crate::ports::{ListEntry, ListPage, ListRequest};

const MARK: char = '\u{1}';

/// What to list at the origin, or to find in the cache, for a peer's request.
///
/// # Errors
/// When the continuation is one of a cut page, and garbled.
pub fn source(request: &ListRequest) -> Result<ListRequest, WireError> {
    let mut source = request.clone();
    if let Some((_, began)) = resumed(request)? {
        source.continuation = (!began.is_empty()).then(|| began.into());
    }
    Ok(source)
}

/// Whether a request is for the rest of a page that was cut.
pub fn is_rest(request: &ListRequest) -> bool {
    let next = request.continuation.as_deref();
    next.is_some_and(|next| next.starts_with(MARK))
}

/// The part of `page` (the answer to `source(request)`) that answers `request` within `room_bytes`, the whole
/// encoded answer counted.
///
/// # Errors
/// When not even one entry fits, or the continuation is garbled.
pub fn part(
    page: &ListPage,
    request: &ListRequest,
    room_bytes: usize,
) -> Result<ListPage, WireError> {
    let resumed = resumed(request)?;
    let after = resumed.map(|(after, _)| after);
    let first = page
        .entries
        .partition_point(|entry| after.is_some_and(|after| name(entry) <= after));
    let entries = &page.entries[first..];
    let mut part = ListPage {
        entries: Vec::new(),
        next: page.next.clone(),
        // Told once: with the part that begins the page.
        left_out: after.map_or(page.left_out, |_| 0),
    };
    let whole_bytes: usize = entries.iter().map(entry_len_bytes).sum();
    if page_base_bytes(&part) + whole_bytes <= room_bytes {
        part.entries = entries.to_vec();
        return Ok(part);
    }
    let longest_base_bytes = page_base_bytes(&ListPage::default()) + 4 + CONTINUATION_BYTES_MAX;
    let mut room = room_bytes.saturating_sub(longest_base_bytes);
    for entry in entries {
        let Some(left) = room.checked_sub(entry_len_bytes(entry)) else {
            break;
        };
        room = left;
        part.entries.push(entry.clone());
    }
    let Some(last) = part.entries.last() else {
        return Err(WireError::Room {
            needed_bytes: longest_base_bytes + entries.first().map_or(0, entry_len_bytes),
            room_bytes,
        });
    };
    let began = match resumed {
        Some((_, began)) => began,
        None => request.continuation.as_deref().unwrap_or_default(),
    };
    let next: Arc<str> = format!("{MARK}{}:{}{began}", name(last).len(), name(last)).into();
    if next.len() > CONTINUATION_BYTES_MAX {
        return Err(WireError::Limit("continuation"));
    }
    part.next = Some(next);
    Ok(part)
}

fn name(entry: &ListEntry) -> &str {
    match entry {
        ListEntry::Object(meta) => &meta.key,
        ListEntry::Prefix(prefix) => prefix,
    }
}

/// The key behind which a cut page goes on, and the continuation that the page began with.
fn resumed(request: &ListRequest) -> Result<Option<(&str, &str)>, WireError> {
    let Some(rest) = request
        .continuation
        .as_deref()
        .and_then(|next| next.strip_prefix(MARK))
    else {
        return Ok(None);
    };
    let garbled = WireError::Unknown("continuation");
    let (len_bytes, rest) = rest.split_once(':').ok_or(garbled)?;
    let len_bytes: usize = len_bytes.parse().map_err(|_| garbled)?;
    rest.split_at_checked(len_bytes).ok_or(garbled).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Bucket, Validator};
    use crate::limits::CHUNK_BYTES;
    use crate::ports::ObjectMeta;
    use crate::wire::call::CallAnswer;

    fn request(continuation: Option<&str>) -> ListRequest {
        ListRequest {
            bucket: Arc::new(Bucket {
                endpoint: "http://o".into(),
                name: "data".into(),
            }),
            prefix: "".into(),
            delimited: true,
            continuation: continuation.map(Into::into),
            entries_max: 1_000,
        }
    }

    fn page(next: Option<&str>) -> ListPage {
        let entries = (0..1_000).map(|n| match n % 10 {
            3 => ListEntry::Prefix(format!("{n:04}é:{}/", "x".repeat(1_010)).into()),
            _ => ListEntry::Object(ObjectMeta {
                key: format!("{n:04}é:{}", "x".repeat(1_017)).into(),
                size_bytes: n,
                validator: Validator::ETag("\"0123456789abcdef0123456789abcdef\"".into()),
                modified_ns: 5,
            }),
        });
        ListPage {
            entries: entries.collect(),
            next: next.map(Into::into),
            left_out: 2,
        }
    }

    /// A thousand entries with the longest keys arrive in parts, none twice and none missing.
    #[test]
    fn a_page_that_is_too_long_arrives_in_parts() {
        for (began, next) in [
            (None, None),
            (None, Some("token-2")),
            (Some("token-1"), Some("t")),
        ] {
            for room_bytes in [CHUNK_BYTES, 64 << 10, 8 << 10] {
                let whole = page(next);
                let mut ask = request(began);
                let (mut entries, mut left_out, mut parts) = (Vec::new(), 0, 0);
                loop {
                    assert_eq!(source(&ask).unwrap(), request(began));
                    let part = part(&whole, &ask, room_bytes).unwrap();
                    let answer = CallAnswer::List {
                        result: Ok(part),
                        age_ms: 0,
                    };
                    let bytes = answer.encode(room_bytes).unwrap();
                    let CallAnswer::List {
                        result: Ok(part), ..
                    } = CallAnswer::decode(&bytes).unwrap()
                    else {
                        panic!("another answer");
                    };
                    parts += 1;
                    left_out += part.left_out;
                    entries.extend(part.entries);
                    if part.next.as_deref() == next {
                        break;
                    }
                    ask.continuation = part.next;
                }
                assert_eq!((entries, left_out), (whole.entries, whole.left_out));
                assert!(
                    parts >= 1_080_000 / room_bytes,
                    "{parts} parts of {room_bytes}"
                );
            }
        }
    }

    #[test]
    fn a_page_that_fits_stays_whole() {
        let mut short = page(Some("token"));
        short.entries.truncate(10);
        assert_eq!(part(&short, &request(None), CHUNK_BYTES).unwrap(), short);
    }

    #[test]
    fn what_cannot_be_cut_is_said() {
        let whole = page(None);
        assert!(matches!(
            part(&whole, &request(None), 4_096),
            Err(WireError::Room { .. })
        ));
        for garbled in ["\u{1}", "\u{1}x:", "\u{1}9:abc", "\u{1}2:é", "\u{1}1:é"] {
            let ask = request(Some(garbled));
            let fine = garbled == "\u{1}2:é";
            assert_eq!(source(&ask).is_ok(), fine, "{garbled:?}");
            assert_eq!(part(&whole, &ask, CHUNK_BYTES).is_ok(), fine, "{garbled:?}");
        }
    }
}
