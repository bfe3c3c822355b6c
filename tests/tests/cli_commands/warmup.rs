//! `forebay warmup`, `check` and `evict`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_tests::s3::{Class, Fault, Rule, When};
use rustix::process::Signal;
use serde_json::Value;

use super::support::{COMMAND_TIMEOUT, Place, Running, eventually, have_fuse, json, pattern};

const MIB: usize = 1 << 20;

/// A mount with a cache on disk of `size`.
fn mount(place: &Place, size: &str) -> PathBuf {
    mount_with(place, size, &[])
}

fn mount_with(place: &Place, size: &str, more: &[&str]) -> PathBuf {
    let (path, cache) = (place.dir("m"), place.dir("c"));
    let (path_text, cache) = (path.to_str().unwrap(), cache.to_str().unwrap());
    let args = [
        "mount",
        "s3://bucket",
        path_text,
        "--cache-dir",
        cache,
        "--cache-size",
        size,
    ];
    place
        .run(&[&args[..], &["--free-space-ratio", "0"], more].concat())
        .ok();
    path
}

fn get_bytes(place: &Place) -> u64 {
    place.server.counters().body_bytes
}

fn warmed(place: &Place, path: &str) -> Value {
    json(&place.run(&["warmup", path, "--json"]).ok().text())
}

fn check(place: &Place, path: &str) -> Value {
    let ended = place.run(&["check", path, "--json"]);
    let checked = json(&ended.text());
    let all = checked["summary"]["full"] == checked["summary"]["files"]
        && checked["summary"]["failed"] == 0;
    assert_eq!(ended.code, Some(if all { 0 } else { 1 }), "{checked}");
    checked
}

#[test]
fn files_and_directories_are_warmed_checked_and_evicted() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let large = pattern(36 * MIB + 5, 1);
    place.server.put("bucket", "large", large.clone());
    place.server.put("bucket", "empty", "");
    place.server.put("bucket", "d/", "");
    place.server.put("bucket", "d/x", pattern(3 * MIB, 2));
    place
        .server
        .put("bucket", "d/e/with blank\nand line", pattern(100, 3));
    place
        .server
        .put("bucket", "d/e", "shadowed by the directory");
    place.server.put("bucket", "other", pattern(5 * MIB, 4));
    let path = mount(&place, "256MiB");

    let before = place
        .run(&["check", "m"])
        .failed(&["4 files are not cached"])
        .text();
    for line in [
        "2 ",
        "/m/large\n",
        "0 ",
        "/m/empty\n",
        "/m/d/e/with blank\\nand line\n",
        "1 full, 0 partial, 4 none",
    ] {
        assert!(before.contains(line), "{line:?} in {before}");
    }
    let warmed = place
        .run(&["warmup", "m/large", "m/d", "m/empty"])
        .ok()
        .text();
    assert!(
        warmed.contains("39 MiB of 39 MiB cached (100.0 %) in 4 of 4 files"),
        "{warmed}"
    );
    let unique = (39 * MIB + 105) as u64;
    assert_eq!(get_bytes(&place), unique, "each byte once");

    let after = check(&place, "m");
    assert_eq!(after["summary"]["full"], 4, "{after}");
    assert_eq!(after["summary"]["none"], 1);
    assert_eq!(after["summary"]["cached_bytes"], unique);
    assert_eq!(after["summary"]["left_out"], 1, "{after}");
    place
        .run(&["check", "m/d/", path.join("large").to_str().unwrap()])
        .ok();

    assert!(fs::read(path.join("large")).unwrap() == large);
    assert_eq!(get_bytes(&place), unique, "reads come from the cache");
    let evicted = place.run(&["evict", "m/large", "--json"]).ok().text();
    assert!(
        json(&evicted)["dropped_bytes"].as_u64().unwrap() >= large.len() as u64,
        "{evicted}"
    );
    assert_eq!(check(&place, "m/large")["files"][0]["state"], 2);
    assert!(fs::read(path.join("large")).unwrap() == large);
    assert_eq!(
        get_bytes(&place),
        unique + large.len() as u64,
        "nor did the kernel keep it"
    );
}

#[test]
fn many_small_files_by_directory_and_by_list() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes: Vec<Vec<u8>> = (0..2_000).map(|n| pattern(1_000 + n, n as u8)).collect();
    for (n, bytes) in bytes.iter().enumerate() {
        place
            .server
            .put("bucket", format!("s/{}/f{n}", n % 7), bytes.clone());
    }
    let path = mount(&place, "256MiB");
    let list: Vec<String> = (0..100).map(|n| format!("m/s/{}/f{n}\n", n % 7)).collect();
    let list_path = path.with_file_name("list");
    fs::write(
        &list_path,
        list.concat() + "\n\nm/s/none\n# m/s\n/proc/self\n",
    )
    .unwrap();
    let ended = place.run(&["warmup", "--listfile", "list", "--json"]);
    let ended = ended.failed(&[
        "m/s/none: no such file",
        "# m/s: no such file",
        "not in a Forebay mount",
        "3 paths failed",
    ]);
    let told = json(&ended.text());
    assert_eq!(told["jobs"][0]["full"], 100, "{told}");
    assert_eq!(told["failures"].as_array().unwrap().len(), 3);

    place.server.reset_counters();
    let told = warmed(&place, "m/s");
    let unique: usize = bytes.iter().map(Vec::len).sum();
    let named: usize = bytes[..100].iter().map(Vec::len).sum();
    let counters = place.server.counters();
    assert_eq!(counters.body_bytes as usize, unique - named);
    assert_eq!(counters.requests(Class::Get), 1_900);
    assert!(
        counters.requests(Class::Head) <= 2,
        "sizes come from the listing"
    );
    assert_eq!(told["jobs"][0]["full"], 2_000, "{told}");
    assert_eq!(told["jobs"][0]["bytes"], unique);
    assert_eq!(check(&place, "m")["files"].as_array().unwrap().len(), 2_000);
    for n in [0, 7, 1_999] {
        assert!(fs::read(path.join(format!("s/{}/f{n}", n % 7))).unwrap() == bytes[n]);
    }
    assert_eq!(place.server.counters().body_bytes as usize, unique - named);
}

#[test]
fn what_is_given_twice_or_below_what_is_given_is_done_once() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    for name in ["d/a", "d/b", "d/e/c", "d-x", "f", "g"] {
        place.server.put("bucket", name, pattern(1_000, 7));
    }
    let path = mount(&place, "128MiB");
    // All but `g`, in five files; and a wrong name where all is done already.
    let list = "m/f\nm/d/a\nm/d/\nm/d\nm/d/none\nm/d/none\nm/d/e\nm/f\n";
    fs::write(path.with_file_name("list"), list).unwrap();
    let asked = ["--listfile", "list", "m/f", "m/d-x", "m/d-x", "--json"];
    let run = |command: &[&str]| {
        let ended = place.run(&[command, &asked[..]].concat());
        json(&ended.failed(&["1 paths failed"]).text())
    };
    let checked = run(&["check"]);
    assert_eq!(checked["summary"]["files"], 5, "{checked}");
    assert_eq!(checked["files"].as_array().unwrap().len(), 5, "{checked}");
    let failures = checked["summary"]["failures"].as_array().unwrap();
    let wrong = path.join("d/none");
    assert_eq!(failures[0]["path"], wrong.to_str().unwrap(), "{checked}");
    for command in [&["warmup"][..], &["warmup", "--metadata-only"]] {
        let told = run(command);
        assert_eq!(told["jobs"][0]["files"], 5, "{told}");
    }
    assert_eq!(get_bytes(&place), 5_000, "each byte once");
    assert_eq!(run(&["evict"])["files"], 5);
}

#[test]
fn objects_that_change_or_fail_are_listed_and_the_others_are_warmed() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    for name in ["changed", "denied", "good", "late"] {
        place.server.put("bucket", name, pattern(2 * MIB, 5));
    }
    mount(&place, "128MiB");
    let faults = place.server.faults();
    let on = |part: &str, when: When, fault: Fault| Rule {
        class: Some(Class::Get),
        path_part: part.into(),
        when,
        fault,
    };
    faults.add(on("changed", When::Times(1), Fault::Overwrite));
    faults.add(on("denied", When::Always, Fault::Status(403)));
    faults.add(on("late", When::Times(4), Fault::Status(500)));
    let ended = place.run(&["warmup", "m", "--json"]).failed(&[
        "/m/changed: ",
        "changed",
        "/m/denied: ",
        "denied",
        "2 paths failed",
    ]);
    let told = json(&ended.text());
    assert_eq!(told["failed"], 2, "{told}");
    assert_eq!(told["jobs"][0]["full"], 2, "{told}");
    faults.clear();
    assert_eq!(warmed(&place, "m")["jobs"][0]["full"], 4);
}

#[test]
fn an_origin_that_fails_for_a_while_is_waited_for() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "d/x", pattern(4 * MIB, 6));
    mount(&place, "128MiB");
    for class in [Class::Get, Class::List] {
        place
            .server
            .faults()
            .add(Rule::always(class, Fault::Status(503)));
    }
    let warmup = Running::start(&mut place.command(&["warmup", "m/d"]));
    std::thread::sleep(Duration::from_secs(3));
    place.server.faults().clear();
    warmup.wait(COMMAND_TIMEOUT).ok();
    check(&place, "m/d");
}

#[test]
fn an_origin_that_is_gone_is_told_and_waited_for_once() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let paths: Vec<String> = (0..300).map(|n| format!("d/{n}")).collect();
    for path in &paths {
        place.server.put("bucket", path.clone(), "x");
    }
    let path = mount_with(&place, "128MiB", &["--io-timeout", "1s"]);
    for class in [Class::Head, Class::List] {
        place.server.faults().add(Rule::always(class, Fault::Reset));
    }
    let list: Vec<String> = paths.iter().map(|path| format!("m/{path}\n")).collect();
    fs::write(path.with_file_name("list"), list.concat()).unwrap();
    let args = ["warmup", "--listfile", "list", "--background"];
    let id = place.run(&args).ok().text().trim().to_owned();
    let report = || {
        let ended = place.run(&["warmup", "--status", &id, "--json"]);
        json(&ended.text())
    };
    eventually("it is told that S3 does not answer", || {
        let origin = report()["origin"].as_str().map(str::to_owned);
        origin.is_some_and(|origin| origin.starts_with("has not answered for "))
    });
    // Each path for itself would take minutes.
    eventually("all of it has failed", || report()["failed"] == 300);
    place.server.faults().clear();
    eventually("it is done", || report()["state"] == "done");
    let report = report();
    assert_eq!(report["origin"], Value::Null, "{report}");
    for state in ["full", "partial", "none"] {
        assert_eq!(report[state], 0, "it looked again: {report}");
    }
    warmed(&place, "m/d");
    check(&place, "m/d");
}

#[test]
fn a_stopped_warm_up_goes_on_where_it_was() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    for n in 0..40 {
        place
            .server
            .put("bucket", format!("d/{n}"), pattern(2 * MIB, n));
    }
    mount(&place, "256MiB");
    place
        .server
        .faults()
        .set_delay(Class::Get, Duration::from_millis(400));
    let warmup = Running::start(&mut place.command(&["warmup", "m", "-p", "1"]));
    eventually("some of it is there", || {
        get_bytes(&place) > 10 * MIB as u64
    });
    warmup.signal(Signal::INT);
    warmup
        .wait(COMMAND_TIMEOUT)
        .failed(&["stopped", "run the same command again"]);
    let cached = check(&place, "m")["summary"]["cached_bytes"]
        .as_u64()
        .unwrap();
    assert!(cached > 0 && cached < 80 * MIB as u64, "{cached}");
    place.server.faults().set_delay(Class::Get, Duration::ZERO);
    warmed(&place, "m");
    assert_eq!(get_bytes(&place), 80 * MIB as u64, "no byte twice");
}

#[test]
fn a_cache_that_is_too_small_is_told() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    for n in 0..50 {
        place
            .server
            .put("bucket", format!("d/{n}"), pattern(16 * MIB, n));
    }
    mount(&place, "128MiB");
    let ended = place
        .run(&["warmup", "m", "--json"])
        .failed(&["not kept", "not all of it is cached"]);
    let told = json(&ended.text());
    assert!(told["failed"].as_u64().unwrap() >= 20, "{told}");
}

#[test]
fn jobs_in_the_background_are_told_and_stopped() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    for n in 0..20 {
        place
            .server
            .put("bucket", format!("d/{n}"), pattern(MIB, n));
    }
    mount(&place, "128MiB");
    place
        .server
        .faults()
        .set_delay(Class::Get, Duration::from_millis(1_500));
    let id = |ended: &str| ended.trim().to_owned();
    let first = id(&place
        .run(&["warmup", "m", "--background", "-p", "1"])
        .ok()
        .text());
    let second = id(&place.run(&["warmup", "m/d/3", "--background"]).ok().text());
    let list = json(&place.run(&["warmup", "--status", "--json"]).ok().text());
    assert_eq!(list.as_array().unwrap().len(), 2, "{list}");
    let stopped = place.run(&["warmup", "--stop", &first]).ok().text();
    assert!(stopped.contains("stopped"), "{stopped}");
    place
        .run(&["warmup", "--status", &first])
        .failed(&["was stopped"]);
    eventually("the other one is done", || {
        let report = json(
            &place
                .run(&["warmup", "--status", &second, "--json"])
                .ok()
                .text(),
        );
        report["state"] == "done" && report["full"] == 1
    });
    place
        .run(&["warmup", "--status", "1-1"])
        .failed(&["no mount of this user has a job"]);
    let table = place.run(&["warmup", "--status"]).ok().text();
    assert!(
        table.contains("stopped") && table.contains("done"),
        "{table}"
    );
}

#[test]
fn names_alone() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    for n in 0..30 {
        place
            .server
            .put("bucket", format!("d/{}/{n}", n % 3), pattern(1_000, n));
    }
    let path = place.dir("m");
    let args = [
        "mount",
        "s3://bucket",
        path.to_str().unwrap(),
        "--attr-ttl",
        "1h",
        "--entry-ttl",
        "1h",
    ];
    place.run(&args).ok();
    let told = place.run(&["warmup", "m", "--metadata-only"]).ok().text();
    assert!(told.contains("attributes of 30 files"), "{told}");
    let before = place.server.counters();
    for n in 0..30 {
        assert_eq!(
            fs::metadata(path.join(format!("d/{}/{n}", n % 3)))
                .unwrap()
                .len(),
            1_000
        );
    }
    let after = place.server.counters();
    let asked = |class| after.requests(class) - before.requests(class);
    assert_eq!(
        (asked(Class::Head), asked(Class::List), asked(Class::Get)),
        (0, 0, 0)
    );
}

#[test]
fn paths_that_cannot_be_are_refused_clearly() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", "1");
    place.run(&["warmup", "m"]).failed(&["no Forebay mount"]);
    let path = mount(&place, "128MiB");
    let name = std::os::unix::ffi::OsStrExt::from_bytes(&b"m/\xff"[..]);
    place
        .run::<&std::ffi::OsStr>(&["warmup".as_ref(), name])
        .failed(&["not UTF-8", "1 paths"]);
    for (given, part) in [
        ("m/x/", "not a directory"),
        ("m/none", "no such file"),
        ("/proc", "not in a Forebay mount"),
    ] {
        for command in ["warmup", "check", "evict"] {
            place.run(&[command, given]).failed(&[part]);
        }
    }
    std::os::unix::fs::symlink(&path, path.with_file_name("link")).unwrap();
    place.run(&["warmup", "link/x", "m/../m/x", "m/./x"]).ok();
    let ended = place.run(&["warmup"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    place
        .run(&["warmup", "--listfile", "empty"])
        .failed(&["names no paths"]);
}

fn slow_warm_up(place: &Place) -> (Running, PathBuf) {
    for n in 0..20 {
        place
            .server
            .put("bucket", format!("d/{n}"), pattern(2 * MIB, n));
    }
    let path = mount(place, "128MiB");
    place
        .server
        .faults()
        .set_delay(Class::Get, Duration::from_millis(1_000));
    let warmup = Running::start(&mut place.command(&["warmup", "m", "-p", "1"]));
    eventually("some of it is there", || get_bytes(place) > 2 * MIB as u64);
    (warmup, path)
}

fn end_of(warmup: Running) {
    warmup
        .wait(COMMAND_TIMEOUT)
        .failed(&["the daemon at", "has ended or does not answer"]);
}

#[test]
fn a_daemon_killed_in_the_midst_ends_the_command() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let (warmup, path) = slow_warm_up(&place);
    place.kill(&path);
    end_of(warmup);
    place.run(&["umount", "m"]).ok();
    place.server.faults().set_delay(Class::Get, Duration::ZERO);
    mount(&place, "128MiB");
    warmed(&place, "m");
    assert!(
        get_bytes(&place) <= 60 * MIB as u64,
        "most of it was found again"
    );
}

#[test]
fn an_unmount_in_the_midst_ends_the_command() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let (warmup, path) = slow_warm_up(&place);
    place.run(&["umount", "m"]).ok();
    end_of(warmup);
    place.assert_clean(Path::new(&path));
}

#[test]
fn two_warm_ups_of_the_same_files_fetch_them_once() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    for n in 0..20 {
        place
            .server
            .put("bucket", format!("d/{n}"), pattern(2 * MIB, n));
    }
    mount(&place, "128MiB");
    place
        .server
        .faults()
        .set_delay(Class::Get, Duration::from_millis(50));
    let both = [(); 2].map(|()| Running::start(&mut place.command(&["warmup", "m"])));
    for warmup in both {
        warmup.wait(COMMAND_TIMEOUT).ok();
    }
    assert_eq!(get_bytes(&place), 40 * MIB as u64);
}
