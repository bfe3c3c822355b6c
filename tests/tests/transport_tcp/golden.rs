//! The wire, byte by byte: members of one protocol version must agree on it. A change here is a new version.

use std::sync::Arc;

use forebay_engine::client::RangeWork;
use forebay_engine::errors::OriginErrorKind;
use forebay_engine::identity::{BlockId, Bucket, ObjectId, ObjectVersion, Validator};
use forebay_engine::ports::{
    Class, FetchStatus, ListEntry, ListPage, ListRequest, ObjectMeta, PeerFailure, PeerFetch,
    PeerId,
};
use forebay_engine::wire::PROTOCOL_VERSION;
use forebay_engine::wire::call::{Call, CallAnswer};
use forebay_engine::wire::header::{Answer, Ask, Request};
use forebay_engine::wire::hello::{Hello, Key, Purpose, Refusal, Role, Welcome};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every message of the protocol with its bytes.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = headers();
    all.extend(hellos());
    all.extend(calls());
    all.extend(answers());
    all
}

fn headers() -> Vec<(&'static str, Vec<u8>)> {
    let request = |ask| Request {
        tag: 0x0102_0304_0506_0708,
        remaining_us: 30_000_000,
        ask,
    };
    let fetch = Ask::Fetch(PeerFetch {
        object: ObjectId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        size_bytes: 1 << 33,
        offset: 0x0012_3000,
        len_bytes: 1 << 20,
        want_bytes: 8 << 20,
        class: Class::Prefetch,
        view: 0xfeed_f00d,
        cached_only: true,
        forwarded: false,
        verify: true,
    });
    let call = Ask::Call {
        class: Class::WarmUp,
        body_bytes: 77,
        room_bytes: 4_096,
    };
    let answer = |status, len_bytes, checksums| Answer {
        tag: 9,
        status,
        len_bytes,
        checksums,
    };
    let origin = PeerFailure::Origin(OriginErrorKind::VersionChanged);
    vec![
        ("fetch", request(fetch).encode().to_vec()),
        ("call", request(call).encode().to_vec()),
        ("cancel", request(Ask::Cancel).encode().to_vec()),
        (
            "bytes",
            answer(FetchStatus::Bytes, 1 << 20, 256).encode().to_vec(),
        ),
        (
            "not-cached",
            answer(
                FetchStatus::NotCached {
                    here: 0,
                    before: None,
                },
                0,
                0,
            )
            .encode()
            .to_vec(),
        ),
        (
            "cached-in-part",
            answer(
                FetchStatus::NotCached {
                    here: 0x8006,
                    before: Some(PeerId(5)),
                },
                0,
                0,
            )
            .encode()
            .to_vec(),
        ),
        (
            "not-owner",
            answer(FetchStatus::NotOwner { owner: PeerId(5) }, 0, 0)
                .encode()
                .to_vec(),
        ),
        (
            "failed",
            answer(FetchStatus::Failed(origin), 0, 0).encode().to_vec(),
        ),
    ]
}

fn hellos() -> Vec<(&'static str, Vec<u8>)> {
    let hello = Hello {
        purpose: Purpose::Core {
            from_core: 1,
            to_core: 2,
        },
        from: PeerId(3),
        to: Some(PeerId(4)),
        has_secret: true,
        group: "g".into(),
        nonce: [0xaa; 32],
    };
    let control = Hello {
        purpose: Purpose::Control,
        to: None,
        ..hello.clone()
    };
    let rdma = Hello {
        purpose: Purpose::Rdma {
            from_core: 1,
            to_core: 2,
        },
        ..hello.clone()
    };
    let welcome = Welcome {
        from: PeerId(4),
        credit_bytes: 16 << 20,
        nonce: [0xbb; 32],
    };
    let (hello, welcome) = (hello.encode(), welcome.encode());
    let proof = Key::new(b"secret").proof(Role::Dialer, &hello, &welcome);
    vec![
        ("hello", hello),
        ("hello-control", control.encode()),
        ("hello-rdma", rdma.encode()),
        ("welcome", welcome),
        ("refusal", Welcome::refuse(Refusal::Secret)),
        ("proof", proof.to_vec()),
    ]
}

fn bucket() -> Arc<Bucket> {
    Arc::new(Bucket {
        endpoint: "http://o".into(),
        name: "b".into(),
    })
}

fn calls() -> Vec<(&'static str, Vec<u8>)> {
    let etag = Validator::ETag("\"e\"".into());
    let object = Arc::new(ObjectVersion::new(bucket(), "k".into(), etag, 1 << 25));
    let (offset, len_bytes) = (1 << 24, 4_096);
    let all = [
        ("describe", Call::Describe(object.clone())),
        (
            "head",
            Call::Head {
                bucket: bucket(),
                key: "k".into(),
                max_age_ms: 1_000,
            },
        ),
        (
            "list",
            Call::List {
                request: ListRequest {
                    bucket: bucket(),
                    prefix: "p/".into(),
                    delimited: true,
                    continuation: Some("c".into()),
                    entries_max: 1_000,
                },
                max_age_ms: 1_000,
            },
        ),
        (
            "warm",
            Call::Range {
                work: RangeWork::Warm,
                object: object.clone(),
                offset,
                len_bytes,
            },
        ),
        (
            "check",
            Call::Range {
                work: RangeWork::Check,
                object: object.clone(),
                offset,
                len_bytes,
            },
        ),
        (
            "evict",
            Call::Range {
                work: RangeWork::Evict,
                object: object.clone(),
                offset,
                len_bytes,
            },
        ),
        (
            "kept",
            Call::Range {
                work: RangeWork::Kept,
                object,
                offset,
                len_bytes,
            },
        ),
        (
            "take",
            Call::Take {
                block: BlockId {
                    object: ObjectId(0x0102_0304),
                    index: 5,
                },
                size_bytes: 21 << 20,
                subs: 0b101,
            },
        ),
    ];
    all.into_iter()
        .map(|(name, call)| (name, call.encode().into_vec()))
        .collect()
}

fn answers() -> Vec<(&'static str, Vec<u8>)> {
    let meta = ObjectMeta {
        key: "k".into(),
        size_bytes: 7,
        validator: Validator::Modified(5),
        modified_ns: 6,
    };
    let page = ListPage {
        entries: vec![
            ListEntry::Object(meta.clone()),
            ListEntry::Prefix("p/".into()),
        ],
        next: Some("n".into()),
        left_out: 1,
    };
    let failure = (OriginErrorKind::Denied, "no".into());
    let age_ms = 17;
    let head = |result| CallAnswer::Head { result, age_ms };
    let list = |result| CallAnswer::List { result, age_ms };
    let all = [
        ("done", CallAnswer::Done),
        ("head-ok", head(Ok(meta))),
        ("list-ok", list(Ok(page))),
        ("list-failed", list(Err(failure))),
        ("cached", CallAnswer::Cached { bytes: 4_096 }),
        (
            "taken",
            CallAnswer::Taken {
                subs: 0b100,
                took_bytes: 65_536,
                room: false,
            },
        ),
    ];
    all.into_iter()
        .map(|(name, answer)| (name, answer.encode(1 << 20).unwrap()))
        .collect()
}

#[test]
fn every_message_has_its_golden_bytes() {
    let golden = include_str!("golden.txt");
    let now: String = messages()
        .iter()
        .map(|(name, bytes)| format!("{name} {}\n", hex(bytes)))
        .collect();
    assert_eq!(PROTOCOL_VERSION, 1);
    assert!(
        now == golden,
        "the wire has changed; if that is meant, it is a new protocol version:\n{now}"
    );
}
