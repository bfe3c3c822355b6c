//! What cannot be mounted is refused in words, and nothing of it stays behind.

use std::fs;
use std::net::TcpListener;
use std::time::Instant;

use forebay_tests::s3::Options;

use super::support::{COMMAND_TIMEOUT, Place, Running, have_fuse};

#[test]
fn mount_points_that_are_none() {
    let place = Place::new();
    place
        .run(&["mount", "s3://bucket", "missing"])
        .failed(&["missing does not exist", "mkdir"]);
    fs::write(place.dir("a").join("file"), "").unwrap();
    place
        .run(&["mount", "s3://bucket", "a/file"])
        .failed(&["a/file is not a directory"]);
    place
        .run(&["mount", "s3://bucket", "no/parent"])
        .failed(&["no does not exist"]);
    place
        .run(&["mount", "s3://bucket", "/proc"])
        .failed(&["/proc is busy", "proc"]);
}

#[test]
fn a_busy_mount_point() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let path = place.mount("m");
    place
        .run(&["mount", "s3://bucket", "m"])
        .failed(&["m is busy", "s3://bucket"]);
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn origins_that_cannot_be_used() {
    if !have_fuse() {
        return;
    }
    let place = Place::with(Options {
        region: Some("eu-test-1".into()),
        ..Options::default()
    });
    let path = place.dir("m");
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let closed = format!("http://127.0.0.1:{port}");
    let mount = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = place.command(&[&["mount", "s3://bucket", "m"], args].concat());
        command.envs(env.iter().copied());
        let start = Instant::now();
        let ended = Running::start(&mut command).wait(COMMAND_TIMEOUT);
        assert!(
            start.elapsed() < COMMAND_TIMEOUT / 2,
            "the error took {:?}",
            start.elapsed()
        );
        place.assert_clean(&path);
        ended
    };
    let good = ["--region", "eu-test-1"];
    mount(&["--endpoint", &closed], &[]).failed(&[
        &format!("{closed} is not reachable: Connection refused (os error 111); check"),
        "--endpoint",
    ]);
    let with_password = closed.replace("://", "://user:secret@");
    let refused = mount(&["--endpoint", &with_password], &[]).failed(&["***@127.0.0.1"]);
    assert!(!refused.stderr.contains("secret"), "{}", refused.stderr);
    assert!(!place.log().contains("secret"), "{}", place.log());
    mount(&["--endpoint", "nonsense"], &[]).failed(&["nonsense", "http://HOST"]);
    mount(&["--region", "us-test-9"], &[]).failed(&["region", "us-test-9", "--region"]);
    mount(&good, &[("AWS_SECRET_ACCESS_KEY", "wrong")])
        .failed(&["does not accept the credentials"]);
    let mut command = place.command(&["mount", "s3://nowhere", "m", "--region", "eu-test-1"]);
    Running::start(&mut command)
        .wait(COMMAND_TIMEOUT)
        .failed(&["bucket nowhere does not exist"]);
    let mut command = place.command(&["mount", "s3://bucket", "m", "--region", "eu-test-1"]);
    command
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY")
        .env("HOME", place.dir("home"));
    Running::start(&mut command)
        .wait(COMMAND_TIMEOUT)
        .failed(&["no credentials", "AWS_ACCESS_KEY_ID"]);
    place.assert_clean(&path);
    // The same place works once the words have been followed.
    place
        .run(&["mount", "s3://bucket", "m", "--region", "eu-test-1"])
        .ok();
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn a_prefix_without_any_object_is_mounted_with_a_warning() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "datasets/a", "bytes");
    let path = place.dir("m");
    for (source, warned) in [
        ("s3://bucket/datsets", true),
        ("s3://bucket/datasets", false),
    ] {
        let mounted = place.run(&["mount", source, "m"]).ok();
        let said = mounted
            .stderr
            .contains(&format!("no object is below {source}"));
        assert_eq!(said, warned, "{}", mounted.stderr);
        place.run(&["umount", "m"]).ok();
        place.assert_clean(&path);
    }
}

#[test]
fn a_cache_that_one_may_not_look_at_is_not_called_missing() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let place = Place::new();
    let cache = place.dir("cache");
    let closed = place.dir("cache/g");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let args = [
        "cache",
        "inspect",
        cache.to_str().unwrap(),
        "--cache-group",
        "g",
    ];
    let mut command = place.command(&args);
    if rustix::process::geteuid().is_root() {
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(cache.parent().unwrap(), open).unwrap();
        command.uid(65_534).gid(65_534);
    }
    let ended = Running::start(&mut command).wait(COMMAND_TIMEOUT);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let ended = ended.failed(&["Permission denied"]);
    assert!(
        !ended.stderr.contains("there is no cache"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_first_key_that_xml_cannot_hold() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "a\u{1}b", "bytes");
    let path = place.mount("m");
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn machines_that_lack_what_is_asked_for() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let path = place.dir("m");
    place
        .run(&["mount", "s3://bucket", "m", "--memory", "10"])
        .failed(&["10 MiB", "--memory at least"]);
    place
        .run(&["mount", "s3://bucket", "m", "--cores", "9999,"])
        .failed(&["CPU 9999", "not available"]);
    place
        .run(&["mount", "s3://bucket", "m", "--log-file", "no/dir/log"])
        .failed(&["no/dir/log", "--log-file"]);
    place.assert_clean(&path);
}

#[test]
fn variables_are_read_as_people_write_them() {
    let place = Place::new();
    let mut command = place.command(&["mount", "s3://bucket", "missing"]);
    command
        .env("FOREBAY_LOG_FILE", "")
        .env("FOREBAY_MEMORY", "")
        .env("FOREBAY_PATH_STYLE", "on")
        .env("FOREBAY_ALLOW_OTHER", "1")
        .env("FOREBAY_NO_SIGN_REQUEST", "no")
        .env("FOREBAY_FOREGROUND", "yes");
    Running::start(&mut command)
        .wait(COMMAND_TIMEOUT)
        .failed(&["missing does not exist"]);
}

#[test]
fn a_runtime_directory_that_others_may_write_is_not_trusted() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.dir("m");
    let dir = place.dir("run");
    assert_eq!(dir, place.runtime_dir());
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    for args in [
        &["status"][..],
        &["stats", "m"],
        &["umount", "m"],
        &["mount", "s3://bucket", "m"],
    ] {
        place
            .run(args)
            .failed(&["may write to", "/run", "FOREBAY_RUNTIME_DIR"]);
    }
}

#[test]
fn asking_for_mounts_that_are_not_there() {
    let place = Place::new();
    place.dir("m");
    place
        .run(&["umount", "m"])
        .failed(&["nothing is mounted at", "/m"]);
    place
        .run(&["umount", "/proc"])
        .failed(&["/proc", "not of Forebay"]);
    place.run(&["status", "m"]).failed(&["no Forebay mount at"]);
    place
        .run(&["stats"])
        .failed(&["no Forebay mount", "forebay mount"]);
    place.run(&["stats", "m"]).failed(&["no Forebay mount at"]);
}
