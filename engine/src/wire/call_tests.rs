use super::*;

fn a_bucket() -> Arc<Bucket> {
    Arc::new(Bucket {
        endpoint: "http://127.0.0.1:9000".into(),
        name: "data".into(),
    })
}

fn an_object(validator: Validator) -> Arc<ObjectVersion> {
    Arc::new(ObjectVersion::new(
        a_bucket(),
        "a/b.bin".into(),
        validator,
        40 << 20,
    ))
}

fn a_meta() -> ObjectMeta {
    ObjectMeta {
        key: "a/b.bin".into(),
        size_bytes: 7,
        validator: Validator::Modified(-9),
        modified_ns: 1_700_000_000_000_000_001,
    }
}

fn calls() -> Vec<Call> {
    let object = an_object(Validator::ETag("\"01\"".into()));
    let list = |continuation: Option<&str>, delimited| Call::List {
        request: ListRequest {
            bucket: a_bucket(),
            prefix: "a/".into(),
            delimited,
            continuation: continuation.map(Into::into),
            entries_max: 1_000,
        },
        max_age_ms: 1_000,
    };
    vec![
        Call::Describe(object.clone()),
        Call::Describe(an_object(Validator::Modified(5))),
        Call::Head {
            bucket: a_bucket(),
            key: "k".into(),
            max_age_ms: 0,
        },
        list(None, true),
        list(Some("next"), false),
        Call::Range {
            work: RangeWork::Warm,
            object: object.clone(),
            offset: 16 << 20,
            len_bytes: 16 << 20,
        },
        Call::Range {
            work: RangeWork::Check,
            object: object.clone(),
            offset: 4_096,
            len_bytes: 1,
        },
        Call::Range {
            work: RangeWork::Kept,
            object: object.clone(),
            offset: 0,
            len_bytes: 4_096,
        },
        Call::Range {
            work: RangeWork::Evict,
            object,
            offset: 32 << 20,
            len_bytes: 8 << 20,
        },
    ]
}

fn answers() -> Vec<CallAnswer> {
    let failure = (OriginErrorKind::NotFound, "no such key: k".into());
    let head = |result, age_ms| CallAnswer::Head { result, age_ms };
    let list = |result, age_ms| CallAnswer::List { result, age_ms };
    let page = ListPage {
        entries: vec![
            ListEntry::Prefix("a/".into()),
            ListEntry::Object(a_meta()),
            ListEntry::Object(ObjectMeta {
                validator: Validator::ETag("\"e\"".into()),
                ..a_meta()
            }),
        ],
        next: Some("n".into()),
        left_out: 3,
    };
    vec![
        CallAnswer::Done,
        head(Ok(a_meta()), 0),
        head(Err(failure.clone()), u32::MAX),
        list(Ok(page), 17),
        list(Ok(ListPage::default()), 0),
        list(Err(failure), 3),
        CallAnswer::Cached { bytes: 1 << 33 },
    ]
}

#[test]
fn calls_and_answers_arrive_as_they_were() {
    for call in calls() {
        assert_eq!(Call::decode(&call.encode()).unwrap(), call);
    }
    for answer in answers() {
        let bytes = answer.encode(CHUNK).unwrap();
        assert_eq!(CallAnswer::decode(&bytes).unwrap(), answer);
        assert!(answer.encode(bytes.len()).is_ok());
        let needed_bytes = bytes.len();
        let room_bytes = needed_bytes - 1;
        assert_eq!(
            answer.encode(room_bytes),
            Err(WireError::Room {
                needed_bytes,
                room_bytes
            })
        );
    }
}

const CHUNK: usize = crate::limits::CHUNK_BYTES;

/// What is cut off or appended to is an error; what is flipped an error or another value of one form.
fn stays_whole(bytes: &[u8], again: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    for len in 0..bytes.len() {
        assert!(again(&bytes[..len]).is_none());
    }
    assert!(again(&[bytes, &[0]].concat()).is_none());
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Some(again) = again(&bytes) {
            assert_eq!(again, bytes);
        }
    }
}

#[test]
fn broken_messages_are_refused() {
    for call in calls() {
        stays_whole(&call.encode(), |bytes| {
            Some(Call::decode(bytes).ok()?.encode().into_vec())
        });
    }
    for answer in answers() {
        stays_whole(&answer.encode(CHUNK).unwrap(), |bytes| {
            let answer = CallAnswer::decode(bytes).ok()?;
            Some(answer.encode(CHUNK).unwrap())
        });
    }
}

#[test]
fn limits_are_kept() {
    let long = |len_bytes: usize| -> Arc<str> { "x".repeat(len_bytes).into() };
    let head = |len_bytes| {
        Call::Head {
            bucket: a_bucket(),
            key: long(len_bytes),
            max_age_ms: 0,
        }
        .encode()
    };
    assert!(Call::decode(&head(KEY_BYTES_MAX)).is_ok());
    assert_eq!(
        Call::decode(&head(KEY_BYTES_MAX + 1)),
        Err(WireError::Limit("key"))
    );
    let object = an_object(Validator::Modified(5));
    for (offset, len_bytes) in [
        (16 << 20, (16 << 20) + 1),
        ((16 << 20) - 1, 2),
        (40 << 20, 1),
        (u64::MAX, 1),
    ] {
        let call = Call::Range {
            work: RangeWork::Warm,
            object: object.clone(),
            offset,
            len_bytes,
        };
        assert_eq!(
            Call::decode(&call.encode()),
            Err(WireError::Limit("range")),
            "{offset} + {len_bytes}"
        );
    }
    let failed = CallAnswer::Head {
        result: Err((OriginErrorKind::Denied, "é".repeat(1_000).into())),
        age_ms: 0,
    };
    let bytes = failed.encode(CHUNK).unwrap();
    let CallAnswer::Head {
        result: Err((_, detail)),
        ..
    } = CallAnswer::decode(&bytes).unwrap()
    else {
        panic!("another answer");
    };
    assert_eq!(detail.len(), DETAIL_BYTES_MAX);
    // A count without entries behind it allocates at most a page.
    let empty = CallAnswer::List {
        result: Ok(ListPage::default()),
        age_ms: 0,
    };
    let mut bytes = empty.encode(CHUNK).unwrap();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&1_001u32.to_le_bytes());
    assert_eq!(
        CallAnswer::decode(&bytes),
        Err(WireError::Limit("number of entries"))
    );
}
