//! What is special to `S3Origin`: mount-time checks in words, shutting down, limits, validators
//! and keys that only S3 knows.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use forebay_engine::arena::{Arena, Share};
use forebay_engine::errors::OriginErrorKind;
use forebay_engine::identity::{ObjectVersion, Validator};
use forebay_engine::ports::{
    Clock, GetOp, HeadOp, ListEntry, ListRequest, Origin, OriginEvent, OriginOp, OriginTag,
};
use forebay_engine::ring::Doorbell;
use forebay_origin_s3::{CheckError, OriginConfig, OriginS3Runtime, StaticCredentials};
use forebay_tests::conformance::origin::{Harness, MonotonicClock, OriginWorld, S3World};
use forebay_tests::s3::{Class, EmbeddedS3, Fault, Options, Rule, When};

const QUICK: Duration = Duration::from_secs(10);

fn config(server: &EmbeddedS3) -> OriginConfig {
    let keys = server.options();
    OriginConfig {
        endpoint: Some(server.endpoint()),
        credentials: Some(StaticCredentials {
            access_key: keys.access_key.clone(),
            secret_key: keys.secret_key.clone(),
        }),
        ..OriginConfig::default()
    }
}

fn start(config: OriginConfig) -> OriginS3Runtime {
    OriginS3Runtime::start(config, MonotonicClock::start()).expect("a usable endpoint")
}

/// The check's outcome; it must be quick whatever is wrong.
fn check(config: OriginConfig, bucket: &str) -> Result<(), CheckError> {
    let started = Instant::now();
    let result = start(config).check(bucket, "");
    assert!(
        started.elapsed() < QUICK,
        "a check took {:?}",
        started.elapsed()
    );
    if let Err(error) = &result {
        println!("{error}");
    }
    result
}

fn server() -> EmbeddedS3 {
    EmbeddedS3::start(Options::default()).expect("a free port")
}

#[test]
fn check_accepts_what_works() {
    let server = server();
    assert_eq!(check(config(&server), "bucket"), Ok(()));
}

#[test]
fn check_names_a_missing_bucket() {
    let server = server();
    assert!(matches!(
        check(config(&server), "other"),
        Err(CheckError::NoSuchBucket { .. })
    ));
}

#[test]
fn check_names_wrong_keys() {
    let server = server();
    for (access, secret) in [("test-access", "wrong"), ("wrong", "test-secret")] {
        let keys = StaticCredentials {
            access_key: access.into(),
            secret_key: secret.into(),
        };
        let result = check(
            OriginConfig {
                credentials: Some(keys),
                ..config(&server)
            },
            "bucket",
        );
        assert!(
            matches!(result, Err(CheckError::WrongCredentials { .. })),
            "{result:?}"
        );
    }
}

#[test]
fn check_names_what_is_not_allowed() {
    let server = server();
    server
        .faults()
        .add(Rule::always(Class::List, Fault::Status(403)));
    assert!(matches!(
        check(config(&server), "bucket"),
        Err(CheckError::Denied { .. })
    ));
}

#[test]
fn check_names_the_right_region() {
    let options = Options {
        region: Some("eu-north-1".into()),
        ..Options::default()
    };
    let server = EmbeddedS3::start(options).expect("a free port");
    let right = OriginConfig {
        region: Some("eu-north-1".into()),
        ..config(&server)
    };
    assert_eq!(check(right.clone(), "bucket"), Ok(()));
    let wrong = OriginConfig {
        region: Some("us-west-2".into()),
        ..right
    };
    let result = check(wrong, "bucket");
    let told = CheckError::WrongRegion {
        bucket: "bucket".into(),
        used: "us-west-2".into(),
        actual: Some("eu-north-1".into()),
    };
    assert_eq!(result, Err(told));
}

#[test]
fn check_names_an_endpoint_that_nothing_listens_on() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let config = OriginConfig {
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        ..config(&server())
    };
    assert!(matches!(
        check(config, "bucket"),
        Err(CheckError::Unreachable { .. })
    ));
}

#[test]
fn check_names_an_endpoint_that_hangs() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let result = check(
        OriginConfig {
            endpoint: Some(endpoint),
            ..config(&server())
        },
        "bucket",
    );
    assert!(
        matches!(result, Err(CheckError::Unreachable { .. })),
        "{result:?}"
    );
}

/// Answers every request with `answer`.
fn impostor(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    endpoint
}

#[test]
fn check_names_what_is_no_s3_server() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 13\r\nConnection: close\r\n\r\n<html></html>",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\nConnection: close\r\n\r\nnot found",
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    ] {
        let result = check(
            OriginConfig {
                endpoint: Some(impostor(answer)),
                ..config(&server())
            },
            "bucket",
        );
        assert!(
            matches!(result, Err(CheckError::NotS3 { .. })),
            "{answer}: {result:?}"
        );
    }
}

#[test]
fn unsigned_requests_are_served_where_allowed() {
    let anonymous = |server: &EmbeddedS3| OriginConfig {
        anonymous: true,
        credentials: None,
        ..config(server)
    };
    let open = EmbeddedS3::start(Options {
        anonymous: true,
        ..Options::default()
    })
    .expect("a free port");
    assert_eq!(check(anonymous(&open), "bucket"), Ok(()));
    let closed = server();
    assert!(matches!(
        check(anonymous(&closed), "bucket"),
        Err(CheckError::Denied { .. })
    ));
}

/// Run by the test below, in a process whose environment it controls.
#[test]
#[ignore = "run by credentials_come_from_the_chain, in a process of its own"]
fn helper_check_with_the_environments_credentials() {
    let Ok(endpoint) = std::env::var("FOREBAY_TEST_ENDPOINT") else {
        return;
    };
    let from_chain = OriginConfig {
        endpoint: Some(endpoint),
        ..OriginConfig::default()
    };
    match check(from_chain, "bucket") {
        Ok(()) => println!("helper: ok"),
        Err(CheckError::NoCredentials { .. }) => println!("helper: no credentials"),
        Err(other) => println!("helper: {other:?}"),
    }
}

fn run_helper(server: &EmbeddedS3, variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "helper_check_with_the_environments_credentials",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("FOREBAY_TEST_ENDPOINT", server.endpoint())
        .envs(variables.iter().copied())
        .output()
        .expect("this test binary runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .find_map(|line| line.split_once("helper: "))
        .map(|(_, told)| told.to_owned())
        .expect(&text)
}

#[test]
fn credentials_come_from_the_chain() {
    let server = server();
    let keys = [
        ("AWS_ACCESS_KEY_ID", "test-access"),
        ("AWS_SECRET_ACCESS_KEY", "test-secret"),
    ];
    assert_eq!(run_helper(&server, &keys), "ok");
    // An instance metadata service that is not there; never the one of the machine under us.
    let metadata = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9/");
    assert_eq!(run_helper(&server, &[metadata]), "no credentials");
    assert_eq!(
        run_helper(&server, &[metadata, ("AWS_EC2_METADATA_DISABLED", "true")]),
        "no credentials"
    );
}

#[test]
fn shutting_down_ends_every_operation_and_returns_every_lease() {
    let server = server();
    server.put_synthetic("bucket", "o", 1 << 20, 1);
    server.faults().add(Rule {
        class: None,
        ..Rule::always(Class::Get, Fault::Hang)
    });
    let clock = MonotonicClock::start();
    let runtime = OriginS3Runtime::start(config(&server), clock.clone()).unwrap();
    let bucket = runtime.bucket("bucket");
    let mut origin = runtime.handle_for_core(Doorbell::new(Waker::noop().clone()));
    let mut arena = Arena::new(64 << 20).unwrap();
    let deadline = clock.now() + Duration::from_secs(60);
    let object = Arc::new(ObjectVersion::new(
        bucket.clone(),
        "o".into(),
        Validator::ETag("\"x\"".into()),
        1 << 20,
    ));
    let mut ops = |tag| {
        let leases = vec![
            arena.lease(4096, Share::Demand).unwrap(),
            arena.lease(100, Share::Demand).unwrap(),
        ];
        let get = GetOp {
            tag: OriginTag(tag),
            object: object.clone(),
            offset: 0,
            leases,
            deadline,
        };
        let head = HeadOp {
            tag: OriginTag(tag + 1),
            bucket: bucket.clone(),
            key: "o".into(),
            deadline,
        };
        [OriginOp::Get(get), OriginOp::Head(head)]
    };
    let before = ops(1);
    for op in before {
        origin.submit(op).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    drop(runtime);
    for op in ops(3) {
        origin.submit(op).expect("also after the end");
    }
    let mut ended = HashSet::new();
    let started = Instant::now();
    while ended.len() < 4 && started.elapsed() < QUICK {
        let Some(event) = origin.poll() else { continue };
        let (tag, kind, leases) = match event {
            OriginEvent::GetDone {
                tag,
                result,
                unfilled,
                ..
            } => (tag, result.unwrap_err().kind, Some(unfilled.len())),
            OriginEvent::Head { tag, result } => (tag, result.unwrap_err().kind, None),
            other => panic!("unexpected {other:?}"),
        };
        assert_eq!(kind, OriginErrorKind::Cancelled);
        assert!(leases.is_none_or(|count| count == 2));
        assert!(ended.insert(tag), "{tag:?} ended twice");
    }
    assert_eq!(ended.len(), 4);
    arena.reclaim();
    assert_eq!(arena.in_flight_bytes(), 0);
}

#[test]
fn heads_do_not_wait_behind_hanging_gets() {
    let mut harness = Harness::new(S3World::embedded());
    harness.world.put("o", 1 << 20, 1);
    let object = harness.version("o");
    harness
        .world
        .server()
        .faults()
        .add(Rule::always(Class::Get, Fault::Hang));
    let span = Duration::from_secs(30);
    let gets: Vec<_> = (0..64)
        .filter_map(|_| harness.try_get(&object, 0, &[4096], span))
        .collect();
    let started = Instant::now();
    assert!(harness.head("o").is_ok());
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "a HEAD took {:?}",
        started.elapsed()
    );
    for tag in gets {
        harness.world.origin().cancel(tag);
        assert_eq!(
            harness.finish_get(tag, Duration::ZERO).kind(),
            Some(OriginErrorKind::Cancelled)
        );
    }
    harness.finish();
}

#[test]
fn connections_stay_within_their_bound() {
    let server = server();
    server.put_synthetic("bucket", "o", 1 << 20, 1);
    server
        .faults()
        .set_delay(Class::Get, Duration::from_millis(50));
    let clock = MonotonicClock::start();
    let limited = OriginConfig {
        gets_max: 3,
        ..config(&server)
    };
    let runtime = OriginS3Runtime::start(limited, clock.clone()).unwrap();
    let bucket = runtime.bucket("bucket");
    let mut origin = runtime.handle_for_core(Doorbell::new(Waker::noop().clone()));
    let mut arena = Arena::new(16 << 20).unwrap();
    let deadline = clock.now() + Duration::from_secs(20);
    let head = HeadOp {
        tag: OriginTag(0),
        bucket: bucket.clone(),
        key: "o".into(),
        deadline,
    };
    origin.submit(OriginOp::Head(head)).unwrap();
    let started = Instant::now();
    let meta = loop {
        if let Some(OriginEvent::Head { result, .. }) = origin.poll() {
            break result.unwrap();
        }
        assert!(started.elapsed() < 3 * QUICK, "the HEAD does not end");
        std::thread::yield_now();
    };
    let object = Arc::new(meta.version(&bucket));
    for tag in 1..=20 {
        let leases = vec![arena.lease(4096, Share::Demand).unwrap()];
        let get = GetOp {
            tag: OriginTag(tag),
            object: object.clone(),
            offset: 0,
            leases,
            deadline,
        };
        origin.submit(OriginOp::Get(get)).unwrap();
    }
    let mut ended = 0;
    while ended < 20 {
        if let Some(OriginEvent::GetDone { result, .. }) = origin.poll() {
            assert_eq!(result, Ok(()));
            ended += 1;
        }
        assert!(started.elapsed() < 3 * QUICK, "{ended} of 20 GETs ended");
        std::thread::yield_now();
    }
    assert!(server.counters().bodies_open_max <= 3);
    assert!(
        server.counters().connections <= 4,
        "{} connections",
        server.counters().connections
    );
}

#[test]
fn both_sides_count_the_same_bytes() {
    let mut harness = Harness::new(S3World::embedded());
    harness.world.put("o", 3 << 20, 1);
    let object = harness.version("o");
    for offset in [0, 1 << 20, 0] {
        let outcome = harness.get(&object, offset, &[1 << 20]);
        assert_eq!(outcome.result, Ok(()));
    }
    let (ours, theirs) = (
        harness.world.runtime().counters(),
        harness.world.server().counters(),
    );
    assert_eq!(
        (ours.gets, ours.get_bytes, ours.wasted_bytes),
        (3, 3 << 20, 0)
    );
    assert_eq!(
        (theirs.requests(Class::Get), theirs.body_bytes),
        (3, 3 << 20)
    );
    assert_eq!(theirs.bytes_by_key.get("bucket/o"), Some(&(3 << 20)));
    harness.finish();
}

#[test]
fn without_an_etag_the_time_of_change_is_the_validator() {
    let mut harness = Harness::new(S3World::embedded());
    harness.world.put("o", 1 << 20, 1);
    harness.world.server().faults().add(Rule {
        class: None,
        ..Rule::always(Class::Get, Fault::NoETag)
    });
    let by_head = harness.version("o");
    assert!(matches!(by_head.validator, Validator::Modified(_)));
    let request = ListRequest {
        bucket: harness.world.bucket(),
        prefix: "".into(),
        delimited: true,
        continuation: None,
        entries_max: 10,
    };
    let page = harness.list(request).unwrap();
    let Some(ListEntry::Object(meta)) = page.entries.first() else {
        panic!("no object in {page:?}")
    };
    assert_eq!(
        meta.version(&harness.world.bucket()).id,
        by_head.id,
        "listing and HEAD agree"
    );
    let outcome = harness.get(&by_head, 0, &[4096]);
    assert_eq!(outcome.result, Ok(()));
    drop(outcome);
    let older = Validator::Modified(0);
    let other = Arc::new(ObjectVersion::new(
        harness.world.bucket(),
        "o".into(),
        older,
        1 << 20,
    ));
    assert_eq!(
        harness.get(&other, 0, &[4096]).kind(),
        Some(OriginErrorKind::VersionChanged)
    );
    harness.finish();
}

#[test]
fn keys_that_are_no_utf8_are_left_out_and_counted() {
    let mut harness = Harness::new(S3World::embedded());
    harness.world.server().put("bucket", b"bad\xff", &b"x"[..]);
    harness
        .world
        .server()
        .put("bucket", b"bad\xfedir/x", &b"x"[..]);
    harness.world.put("good", 1, 1);
    let request = ListRequest {
        bucket: harness.world.bucket(),
        prefix: "".into(),
        delimited: true,
        continuation: None,
        entries_max: 10,
    };
    let page = harness.list(request).unwrap();
    assert_eq!((page.entries.len(), page.left_out), (1, 2));
    harness.finish();
}

/// The page is an error, to be repeated: a guess would name an object that is not there.
#[test]
fn a_page_whose_plus_signs_cannot_be_read_is_an_error() {
    let mut harness = Harness::new(S3World::embedded());
    harness.world.put("dir/a b", 1, 1);
    let request = || ListRequest {
        bucket: harness.world.bucket(),
        prefix: "dir/".into(),
        delimited: true,
        continuation: None,
        entries_max: 10,
    };
    let (first, again) = (request(), request());
    // A space is told as `+`. The second LIST is the one that asks what a plus sign stands for.
    harness.world.server().faults().add(Rule {
        when: When::EveryNth(2),
        ..Rule::always(Class::List, Fault::Status(503))
    });
    let failed = harness.list(first).expect_err("the probe failed");
    assert_eq!(failed.kind, OriginErrorKind::Throttled);
    assert_eq!(harness.world.server().counters().requests(Class::List), 2);
    harness.world.server().faults().clear();
    let page = harness.list(again).expect("the page again");
    let Some(ListEntry::Object(meta)) = page.entries.first() else {
        panic!("no object in {page:?}")
    };
    assert_eq!(&*meta.key, "dir/a b");
    harness.finish();
}

#[test]
fn a_range_that_is_not_within_the_object_is_refused() {
    let mut harness = Harness::new(S3World::embedded());
    harness.world.put("o", 100, 1);
    let object = harness.version("o");
    assert_eq!(
        harness.get(&object, 50, &[51]).kind(),
        Some(OriginErrorKind::BadAnswer)
    );
    assert_eq!(
        harness.get(&object, u64::MAX, &[51]).kind(),
        Some(OriginErrorKind::BadAnswer)
    );
    assert_eq!(harness.world.server().counters().requests(Class::Get), 0);
    harness.finish();
}

#[test]
fn shaping_limits_a_connection() {
    let mut harness = Harness::new(S3World::embedded());
    harness.world.put("o", 4 << 20, 1);
    let object = harness.version("o");
    harness.world.server().faults().set_bandwidth(8 << 20);
    let started = Instant::now();
    let outcome = harness.get(&object, 0, &[1 << 20; 4]);
    assert_eq!(outcome.result, Ok(()));
    harness.check_bytes("o", 4 << 20, 1, 0, &outcome.filled);
    let took = started.elapsed();
    assert!(
        // The lower bound is the test; a busy machine may take any time within the deadline.
        (400..10_000).contains(&took.as_millis()),
        "4 MiB at 8 MiB/s took {took:?}"
    );
    drop(outcome);
    harness.finish();
}
