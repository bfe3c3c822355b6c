#![no_main]
//! Whatever a peer sends: headers, hellos, questions and answers. What is accepted encodes to the same bytes.

use std::sync::Arc;

use forebay_engine::identity::{Bucket, ObjectVersion, Validator};
use forebay_engine::limits::CHUNK_BYTES;
use forebay_engine::ports::{FetchStatus, ListEntry, ListPage, ListRequest, ObjectMeta, PeerId};
use forebay_engine::wire::call::{Call, CallAnswer};
use forebay_engine::wire::header::{ANSWER_BYTES, Answer, Ask, REQUEST_BYTES, Request};
use forebay_engine::wire::hello::{Hello, PREFIX_BYTES, Prefix, Purpose, Welcome};
use forebay_engine::wire::listing;
use forebay_fuzz::seed_as_is;
use libfuzzer_sys::fuzz_target;

fn bucket() -> Arc<Bucket> {
    Arc::new(Bucket {
        endpoint: "http://o".into(),
        name: "b".into(),
    })
}

fn meta() -> ObjectMeta {
    ObjectMeta {
        key: "k".into(),
        size_bytes: 7,
        validator: Validator::ETag("\"e\"".into()),
        modified_ns: 6,
    }
}

/// One input of each kind.
fn seeds() {
    let list = ListRequest {
        bucket: bucket(),
        prefix: "p/".into(),
        delimited: true,
        continuation: Some("\u{1}1:kc".into()),
        entries_max: 1_000,
    };
    let object = ObjectVersion::new(bucket(), "k".into(), meta().validator, 1 << 25);
    let page = ListPage {
        entries: vec![ListEntry::Object(meta()), ListEntry::Prefix("p/".into())],
        next: Some("n".into()),
        left_out: 1,
    };
    let cancel = Request {
        tag: 5,
        remaining_us: 1,
        ask: Ask::Cancel,
    };
    let in_part = Answer {
        tag: 5,
        status: FetchStatus::NotCached {
            here: 0x8006,
            before: Some(PeerId(5)),
        },
        len_bytes: 0,
        checksums: 0,
    };
    let hello = Hello {
        purpose: Purpose::Control,
        from: PeerId(3),
        to: None,
        has_secret: true,
        group: "g".into(),
        nonce: [0xaa; 32],
    };
    let encode = |answer: CallAnswer| answer.encode(CHUNK_BYTES).expect("it fits");
    seed_as_is(&[
        &Call::List {
            request: list,
            max_age_ms: 1_000,
        }
        .encode(),
        &Call::Describe(Arc::new(object)).encode(),
        &encode(CallAnswer::List {
            result: Ok(page),
            age_ms: 0,
        }),
        &encode(CallAnswer::Head {
            result: Ok(meta()),
            age_ms: 17,
        }),
        &cancel.encode(),
        &in_part.encode(),
        &hello.encode(),
    ]);
}

fn check_headers(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<REQUEST_BYTES>()
        && let Ok(request) = Request::decode(bytes)
    {
        assert_eq!(request.encode(), *bytes);
    }
    if let Some(bytes) = data.first_chunk::<ANSWER_BYTES>()
        && let Ok(answer) = Answer::decode(bytes)
    {
        assert_eq!(answer.encode(), *bytes);
    }
}

fn check_hellos(data: &[u8]) {
    if let Some(bytes) = data.first_chunk() {
        let _ = Prefix::decode(bytes);
    }
    let body = data.get(PREFIX_BYTES..).unwrap_or_default();
    if let Ok(hello) = Hello::decode(body) {
        assert_eq!(hello.encode()[PREFIX_BYTES..], *body);
    }
    if let Ok(Ok(welcome)) = Welcome::decode(body) {
        assert_eq!(welcome.encode()[PREFIX_BYTES..], *body);
    }
}

fn check_calls(data: &[u8]) {
    if let Ok(call) = Call::decode(data) {
        assert_eq!(*call.encode(), *data);
        if let Call::List { request, .. } = call {
            let page = ListPage {
                entries: vec![ListEntry::Object(meta()); 100],
                ..ListPage::default()
            };
            for room_bytes in [CHUNK_BYTES, 5_000] {
                if let Ok(part) = listing::part(&page, &request, room_bytes) {
                    let answer = CallAnswer::List {
                        result: Ok(part),
                        age_ms: 0,
                    };
                    let part = answer.encode(room_bytes);
                    assert!(part.is_ok());
                }
            }
            let _ = listing::source(&request);
        }
    }
    if let Ok(answer) = CallAnswer::decode(data) {
        assert_eq!(answer.encode(data.len()).expect("it fits"), data);
    }
}

fuzz_target!(
    init: seeds(),
    |data: &[u8]| {
        check_headers(data);
        check_hellos(data);
        check_calls(data);
    }
);
