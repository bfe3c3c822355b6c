//! `serve`, `stop`, `status`: what members say of themselves, and what is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::cluster::{Cluster, GROUP};
use super::support::{COMMAND_TIMEOUT, Place, Running, eventually};

#[test]
fn members_show_each_other_and_leave_at_once() {
    let cluster = Cluster::new(3);
    cluster.serve_all();
    let name = format!("serve:{GROUP}/a");
    let status = cluster.json(&name);
    assert_eq!(
        (&status["state"], &status["serve"]),
        (&"serving".into(), &name.as_str().into())
    );
    let group = &status["group"];
    let members = group["members"].as_array().unwrap();
    let slots: u64 = members
        .iter()
        .map(|member| member["slots"].as_u64().unwrap())
        .sum();
    assert_eq!((members.len(), slots), (3, 65_536));
    for other in ["b", "c"] {
        assert_eq!(
            cluster.json(&format!("serve:{GROUP}/{other}"))["group"]["view"],
            group["view"]
        );
    }
    let text = cluster.place.run(&["status", &name]).ok().text();
    for part in [
        "RING SHARE",
        "this node",
        "no secret",
        &cluster.address("c"),
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let text = cluster.place.run(&["status"]).ok().text();
    assert!(
        text.contains("serving") && text.contains(&format!("serve:{GROUP}/c")),
        "{text}"
    );
    for bare in [name.as_str(), "g/a"] {
        cluster.place.run(&["stats", bare, "--json"]).ok();
        cluster.place.run(&["status", bare]).ok();
    }
    cluster
        .place
        .run(&["stop", GROUP])
        .failed(&["3 members match", "serve:g/a"]);

    cluster.place.run(&["stop", "g/b"]).ok();
    cluster.until_members(&["a", "c"]);
    eventually("a farewell is heard, not waited out in silence", || {
        let log = cluster.place.log();
        let mut lines = log.lines();
        lines.any(|line| line.contains("it said farewell") && line.contains("node=\"b\""))
    });
    cluster.place.run(&["stop", "serve:g/c"]).ok();
    cluster.place.run(&["stop"]).ok();
    cluster
        .place
        .run(&["stop"])
        .failed(&["no member runs here"]);
    assert!(forebay_cli::control::sockets::sockets(&cluster.place.runtime_dir()).is_empty());
}

#[test]
fn a_weight_of_zero_leaves_and_a_wrong_secret_stays_out() {
    let cluster = Cluster::new(3);
    let (right, wrong) = secrets(&cluster);
    cluster.serve("a", &["--group-secret-file", &right]);
    cluster.serve("c", &["--group-secret-file", &wrong]);
    // It has nothing to hand over, and leaves.
    let mut args = cluster.serve_args("b", &["--group-secret-file", &right, "--group-weight", "0"]);
    args.retain(|arg| arg != "--background");
    cluster.place.run(&args).ok();
    cluster.until_members(&["a"]);
    eventually("the stranger is counted", || {
        let group = &cluster.json("serve:g/a")["group"];
        group["gossip_dropped"]["unproven"].as_u64().unwrap_or(0) > 0
    });
    cluster.until_members(&["c"]);
}

/// The files of a group's secret and of another one.
fn secrets(cluster: &Cluster) -> (String, String) {
    let secret = |name: &str, text: &str| {
        let path = cluster.place.dir(".").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    (secret("right", "s3cret\n"), secret("wrong", "other\n"))
}

/// It would read the whole data set by itself, and nobody would know.
#[test]
fn a_member_that_is_alone_says_so_and_why() {
    let cluster = Cluster::new(3);
    let (right, wrong) = secrets(&cluster);
    let serve = |name: &str, secret: &str| {
        let args = cluster.serve_args(name, &["--group-secret-file", secret]);
        cluster.place.run(&args).ok().stderr
    };
    let none =
        "alone: no member of this group was found at any of the 2 other addresses of --peers";
    let told = serve("a", &right);
    for part in [none, "as the first member of a group does"] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let told = serve("c", &wrong);
    for part in [none, "another group secret", "until that is mended"] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let status = cluster.json("serve:g/c");
    let alone = &status["group"]["alone"];
    assert_eq!(
        (&alone["addresses"], &alone["refused"]),
        (&2.into(), &true.into()),
        "{status}"
    );
    let log = fs::read_to_string(status["log_file"].as_str().unwrap()).unwrap();
    assert!(log.contains("WARN") && log.contains(none), "{log}");
    let text = cluster.place.run(&["status", "serve:g/c"]).ok().text();
    assert!(text.contains(none), "{text}");

    let told = serve("b", &right);
    assert!(!told.contains("alone"), "{told}");
    cluster.until_members(&["a", "b"]);
    let status = cluster.json("serve:g/a");
    assert!(status["group"]["alone"].is_null(), "{status}");
}

/// Whichever of many refuses, and whatever the member's own weight is.
#[test]
fn a_member_that_is_alone_asks_everybody_and_says_what_it_owns() {
    let cluster = Cluster::new(12);
    let (right, wrong) = secrets(&cluster);
    let serve = |name: &str, more: &[&str]| {
        let args = cluster.serve_args(name, more);
        cluster.place.run(&args).ok().stderr
    };
    // The last of the twelve.
    serve("l", &["--group-secret-file", &wrong]);
    let told = serve("a", &["--group-secret-file", &right]);
    for part in [
        "any of the 11 other addresses",
        "another group secret",
        "owns the whole ring",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let alone = &cluster.json("serve:g/a")["group"]["alone"];
    assert_eq!(
        (&alone["asked"], &alone["refused"]),
        (&11.into(), &true.into()),
        "{alone}"
    );
    // It has nothing to hand over, and leaves; what it says is said before.
    let mut args = cluster.serve_args("b", &["--group-weight", "0"]);
    args.retain(|arg| arg != "--background");
    let told = cluster.place.run(&args).ok().stderr;
    for part in [
        "any of the 11 other addresses",
        "nobody owns a share of the ring",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    assert!(!told.contains("whole ring"), "{told}");
}

/// Members that are looked for where there is nobody: the user hears of it, and they are found once they are there.
#[test]
fn a_list_of_peers_that_is_not_there_is_told_and_found_when_it_comes() {
    let cluster = Cluster::new(2);
    let serve = |name: &str, peers: &str| {
        let mut args = cluster.serve_args(name, &[]);
        let place = args.iter().position(|arg| arg == "--peers").unwrap();
        args[place + 1] = peers.to_owned();
        cluster.place.run(&args).ok().stderr
    };
    let file = cluster.place.dir("lists").join("later");
    serve("a", &cluster.address("a"));
    let peers = format!("file:{},dns:no-such-name.invalid", file.display());
    let told = serve("b", &peers);
    for part in [
        &format!("warning: --peers file:{}: cannot read", file.display()),
        "warning: --peers dns:no-such-name.invalid: ",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    cluster.until_members(&["b"]);
    fs::write(&file, format!("{}\n", cluster.address("a"))).unwrap();
    cluster.until_members(&["a", "b"]);
}

#[test]
fn members_are_found_in_every_way() {
    let cluster = Cluster::new(4);
    let [first, second] = [cluster.address("a"), cluster.address("b")];
    let file = cluster.place.dir(".").join("peers");
    fs::write(&file, format!("# the first\nno host\n{first}:7440\n")).unwrap();
    let with = |name: &str, peers: &str| {
        let mut args = cluster.serve_args(name, &[]);
        let place = args.iter().position(|arg| arg == "--peers").unwrap();
        args[place + 1] = peers.into();
        args
    };
    cluster.place.run(&with("a", "no-such-host.invalid")).ok();
    cluster
        .place
        .run(&with("b", &format!("file:{}", file.display())))
        .ok();
    // The last number of this net's addresses, as Slurm would write them: b alone.
    let net = second.strip_suffix('2').unwrap();
    let mut command = cluster.place.command(&with("c", "slurm"));
    command.env("SLURM_JOB_NODELIST", format!("{net}[2-2]"));
    Running::start(&mut command).wait(COMMAND_TIMEOUT).ok();
    cluster.place.run(&with("d", &format!("dns:{first}"))).ok();
    cluster.until_members(&["a", "b", "c", "d"]);
    let text = cluster.place.run(&["status", "serve:g/a"]).ok().text();
    assert!(
        text.contains("cannot resolve no-such-host.invalid"),
        "{text}"
    );
    let text = cluster.place.run(&["status", "serve:g/b"]).ok().text();
    assert!(
        text.contains("1 address; ") && text.contains("line 2"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let place = Place::new();
    let dir = place.dir("x");
    let secret = dir.join("secret");
    fs::write(&secret, "s\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let secret = secret.to_str().unwrap();
    let serve =
        |args: &[&str]| place.run(&[&["serve", "--listen", "127.99.0.1:7440"], args].concat());
    serve(&["--group-secret-file", secret]).failed(&["other users may read", "chmod"]);
    serve(&["--group-secret-file", "/none"]).failed(&["/none", "--group-secret-file"]);
    serve(&["--group-ip", "198.51.100.0/24"]).failed(&["198.51.100.0/24", "127.0.0.1 (lo)"]);
    serve(&["--peers", "slurm"]).failed(&["--peers slurm", "SLURM_JOB_NODELIST is not set"]);
    serve(&["--no-sharing", "--peers", "a"]).failed(&["--no-sharing"]);
    place
        .run(&["serve", "--listen", "198.51.100.1:7440"])
        .failed(&["--group-secret-file", "198.51.100.1"]);
    let mount = |args: &[&str]| {
        place.dir("m");
        place.run(&[&["mount", "s3://bucket", "m"], args].concat())
    };
    mount(&["--no-sharing"]).failed(&["--no-sharing needs --peers"]);
    mount(&["--no-sharing", "--peers", "a", "--listen", "127.0.0.1:1"])
        .failed(&["do not go together"]);
}

#[test]
fn one_node_is_served_once() {
    let cluster = Cluster::new(1);
    cluster.serve("a", &[]);
    let again = cluster.place.run(&cluster.serve_args("a", &[]));
    again.failed(&["serve:g/a runs already", "--node-id"]);
    let mut args = cluster.serve_args("a", &[]);
    let place = args.iter().position(|arg| arg == "--node-id").unwrap();
    args[place + 1] = "other".into();
    cluster
        .place
        .run(&args)
        .failed(&["cannot listen on", ":7440"]);
    cluster.place.run(&["stop", "g"]).ok();
}
