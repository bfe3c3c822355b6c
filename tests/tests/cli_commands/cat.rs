//! `forebay cat`.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use forebay_tests::s3::{Class, Fault, Rule};

use super::support::{COMMAND_TIMEOUT, Place, Running, pattern};

#[test]
fn an_object_comes_whole_and_in_order() {
    let place = Place::new();
    // Not a multiple of anything, over three stripes.
    let bytes = pattern((35 << 20) + 12_345, 1);
    place.server.put("bucket", "dir/big", bytes.clone());
    place.server.put("bucket", "empty", Vec::new());
    let ended = place.run(&["cat", "s3://bucket/dir/big"]).ok();
    assert_eq!(ended.stdout.len(), bytes.len());
    assert!(ended.stdout == bytes, "wrong bytes");
    let counters = place.server.counters();
    assert_eq!(
        counters.body_bytes,
        bytes.len() as u64,
        "every byte left the origin once"
    );
    assert!(
        place
            .run(&["cat", "s3://bucket/empty"])
            .ok()
            .stdout
            .is_empty()
    );
}

#[test]
fn a_range() {
    let place = Place::new();
    let bytes = pattern(3 << 20, 2);
    place.server.put("bucket", "x", bytes.clone());
    let range = |args: &[&str]| place.run(&[&["cat", "s3://bucket/x"], args].concat());
    assert!(
        range(&["--offset", "1048575", "--length", "3"]).ok().stdout == bytes[1_048_575..1_048_578]
    );
    assert!(range(&["--offset", "3000000"]).ok().stdout == bytes[3_000_000..]);
    assert!(range(&["--offset", "3145728"]).ok().stdout.is_empty());
    assert!(range(&["--length", "0"]).ok().stdout.is_empty());
    assert!(
        range(&["--offset", "3145000", "--length", "99999"])
            .ok()
            .stdout
            == bytes[3_145_000..]
    );
    range(&["--offset", "3145729"]).failed(&["beyond the end", "3145728"]);
}

#[test]
fn what_is_not_there_is_said() {
    let place = Place::new();
    place
        .run(&["cat", "s3://bucket/nothing"])
        .failed(&["s3://bucket/nothing", "does not exist"]);
    place
        .run(&["cat", "s3://no-such-bucket/x"])
        .failed(&["no-such-bucket", "does not exist"]);
    let mut command = place.command(&["cat", "s3://bucket/x"]);
    command.env("AWS_SECRET_ACCESS_KEY", "wrong");
    Running::start(&mut command)
        .wait(COMMAND_TIMEOUT)
        .failed(&["does not accept the credentials"]);
}

#[test]
fn a_failing_origin_ends_it_with_the_objects_name() {
    let place = Place::new();
    place.server.put("bucket", "x", pattern(2 << 20, 3));
    place
        .server
        .faults()
        .add(Rule::always(Class::Get, Fault::Hang));
    let ended = place.run(&["cat", "s3://bucket/x", "--io-timeout", "2s"]);
    ended.failed(&["s3://bucket/x", "byte 0"]);
    place.server.faults().clear();
    place
        .server
        .faults()
        .add(Rule::times(Class::Get, 2, Fault::Status(503)));
    place.run(&["cat", "s3://bucket/x"]).ok();
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    place.server.put("bucket", "x", pattern(16 << 20, 4));
    let mut command = place.command(&["cat", "s3://bucket/x"]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0u8; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let deadline = std::time::Instant::now() + COMMAND_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if std::time::Instant::now() > deadline {
            child.kill().unwrap();
            panic!("cat did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    assert!(status.success() && text.is_empty(), "{status} {text}");
}
