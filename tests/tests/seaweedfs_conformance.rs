//! The Origin port's conformance suite, but for faults, against an S3 server that others wrote.
//!
//! One SeaweedFS serves the whole suite, each test on a bucket of its own: it takes many seconds to
//! start. `ci/seaweedfs` installs it (a pinned wheel, into a venv under the target directory).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use forebay_origin_s3::{CheckError, OriginConfig, OriginS3Runtime, StaticCredentials};
use forebay_tests::conformance::origin::{MonotonicClock, S3World, data, metadata};
use forebay_tests::harness::{Weed, install_weed};

fn config(weed: &Weed, secret_key: &str) -> OriginConfig {
    OriginConfig {
        endpoint: Some(weed.endpoint().to_owned()),
        credentials: Some(StaticCredentials {
            access_key: weed.credentials().access_key.clone(),
            secret_key: secret_key.to_owned(),
        }),
        ..OriginConfig::default()
    }
}

fn check(config: OriginConfig, bucket: &str) -> Result<(), CheckError> {
    OriginS3Runtime::start(config, MonotonicClock::start())?.check(bucket, "")
}

/// Waits until it knows what buckets it has: the port answers earlier.
fn wait_until_ready(weed: &Weed) {
    let started = Instant::now();
    loop {
        let result = check(
            config(weed, &weed.credentials().secret_key),
            "no-such-bucket",
        );
        if matches!(result, Err(CheckError::NoSuchBucket { .. })) {
            return;
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "SeaweedFS is not ready: {result:?}"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn world(weed: &Weed, bucket: &str) -> S3World {
    let keys = weed.credentials();
    S3World::other(weed.endpoint(), &keys.access_key, &keys.secret_key, bucket)
}

fn checks_speak_plainly(weed: &Weed) {
    let secret = &weed.credentials().secret_key;
    let _bucket = world(weed, "checked");
    assert_eq!(check(config(weed, secret), "checked"), Ok(()));
    let missing = check(config(weed, secret), "not-there");
    assert!(
        matches!(missing, Err(CheckError::NoSuchBucket { .. })),
        "{missing:?}"
    );
    let wrong = check(config(weed, "wrong"), "checked");
    assert!(
        matches!(wrong, Err(CheckError::WrongCredentials { .. })),
        "{wrong:?}"
    );
}

#[test]
fn the_suite_without_faults() {
    let weed = match install_weed().expect("SeaweedFS installs") {
        Ok(weed) => weed,
        Err(reason) => {
            println!("SKIPPED: conformance against SeaweedFS: {reason}");
            return;
        }
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let weed = Weed::start(&weed, directory.path(), || true).expect("SeaweedFS starts");
    wait_until_ready(&weed);
    let mut failed = Vec::new();
    let mut run = |name: &'static str, test: &dyn Fn()| {
        let started = Instant::now();
        if catch_unwind(AssertUnwindSafe(test)).is_err() {
            failed.push(name);
        }
        println!("{name}: {:?}", started.elapsed());
    };
    macro_rules! suite {
        ($($module:ident::$name:ident),+ $(,)?) => {$(
            let bucket = stringify!($name).replace('_', "-");
            run(stringify!($name), &|| $module::$name(world(&weed, &bucket)));
        )+};
    }
    run("checks_speak_plainly", &|| checks_speak_plainly(&weed));
    suite!(
        data::right_bytes_at_all_part_sizes,
        data::many_gets_at_once,
        data::an_overwritten_object_is_another_version,
        data::a_deleted_object_is_another_version,
        data::a_range_beyond_a_shrunken_object_is_another_version,
        metadata::head_tells_attributes,
        metadata::head_of_no_key_is_not_found,
        metadata::head_and_list_name_the_same_version,
        metadata::pages_tell_each_key_once,
        metadata::delimited_pages_roll_up,
        metadata::a_prefix_without_keys_is_an_empty_page,
        metadata::a_bucket_that_is_missing_is_named_so,
        metadata::odd_keys_are_listed_and_read,
    );
    assert!(failed.is_empty(), "failed against SeaweedFS: {failed:?}");
}
