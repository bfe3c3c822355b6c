//! What goes wrong with links over RDMA, as members and their users meet it.

use std::process::Command;

use rustix::process::Signal;

use super::cluster::{Cluster, put_objects, read_objects, write_secret};
use super::links::{asked_by, device, received_bytes};
use super::reading::{ask_all, reading, run, until_rdma, with};
use super::support::{COMMAND_TIMEOUT, Running, eventually, send, stop};

/// Less than in `reading`, where every length is tried: 5 MiB.
const LENGTHS: [usize; 14] = {
    let mut lengths = [96 << 10; 14];
    lengths[0] = 4097;
    lengths[1] = 1 << 20;
    lengths[2] = (3 << 20) - 1;
    lengths
};

/// The interface at the other end of the device's: without it the device's port is down.
struct Link(String);

impl Link {
    fn set(&self, state: &str) {
        run("ip", &["link", "set", &self.0, state]);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut up = Command::new("ip");
        let _ = up.args(["link", "set", &self.0, "up"]).status();
    }
}

/// What a mount says of ports that are down.
fn ports_down(cluster: &Cluster, mount: &str) -> Vec<String> {
    let json = cluster.json(mount);
    let down = json
        .pointer("/group/rdma/down")
        .and_then(|down| down.as_array());
    let text = |one: &serde_json::Value| one.as_str().unwrap_or_default().to_owned();
    down.expect("ports that are down")
        .iter()
        .map(text)
        .collect()
}

#[test]
fn a_link_that_goes_down_is_on_tcp_at_once_and_comes_back() {
    let Some((ip, flags)) = device() else { return };
    let Ok(interface) = std::env::var("FOREBAY_RDMA_SPARE_INTERFACE") else {
        println!(
            "SKIPPED: FOREBAY_RDMA_SPARE_INTERFACE names no interface by which a port goes down: that was not tried here (ci/softroce does, in a guest)"
        );
        return;
    };
    let link = Link(interface);
    let cluster = Cluster::at(ip, 2);
    put_objects(&cluster.place, "o", &LENGTHS);
    let flags = with(&flags, &[]);
    cluster.serve_all_with(|_| &flags);
    let slow = [&flags[..], &["--peer-limit", "1MiB"]].concat();
    let path = cluster.mount_client(&slow);
    until_rdma(&cluster, "m", &path, 2);
    assert!(ports_down(&cluster, "m").is_empty());
    let before = received_bytes(&cluster, "m", "rdma");
    let reader = reading(&path, &LENGTHS);
    eventually("bytes come", || {
        reader.is_finished() || received_bytes(&cluster, "m", "rdma") > before
    });
    assert!(!reader.is_finished(), "nothing is under way");
    link.set("down");
    // SoftRoCE would go on from one end of it to the other, had its members not been told.
    let mut round = 0;
    eventually("links take TCP, and status says why", || {
        ask_all(&path, &mut round);
        let up = asked_by(&cluster, "m", "rdma");
        let up = up.iter().filter(|link| link.state == "up").count();
        let tcp = asked_by(&cluster, "m", "tcp");
        let why = tcp.iter().filter_map(|link| link.why_tcp.as_ref());
        up == 0 && why.filter(|why| why.contains("is down")).count() == 2
    });
    let down = ports_down(&cluster, "m");
    assert!(
        down.iter().any(|why| why.contains("port 1 is down")),
        "{down:?}"
    );
    link.set("up");
    until_rdma(&cluster, "m", &path, 2);
    reader.join().expect("every byte is right");
    assert!(ports_down(&cluster, "m").is_empty());
    // Of each daemon once, whatever the number of its cores and links.
    let log = cluster.place.log();
    assert_eq!(log.matches("links by it take TCP").count(), 3, "{log}");
    cluster.assert_members(&["a", "b"]);
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_port_that_is_down_at_the_start_is_taken_when_it_comes_up() {
    let Some((ip, flags)) = device() else { return };
    let Ok(interface) = std::env::var("FOREBAY_RDMA_SPARE_INTERFACE") else {
        println!(
            "SKIPPED: FOREBAY_RDMA_SPARE_INTERFACE names no interface by which a port goes down: that was not tried here (ci/softroce does, in a guest)"
        );
        return;
    };
    let link = Link(interface);
    link.set("down");
    let cluster = Cluster::at(ip, 2);
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    let flags = with(&flags, &[]);
    // Who insists is told; who only names the device begins without it.
    let must = [&flags[..], &["--transport", "rdma"]].concat();
    let command = &mut cluster.command("a", &cluster.serve_args("a", &must));
    let told = Running::start(command).wait(COMMAND_TIMEOUT);
    told.failed(&["at least one port must be up", "is down: set its link up"]);
    cluster.serve_all_with(|_| &flags);
    let path = cluster.mount_client(&flags);
    read_objects(&path, "o", &LENGTHS[..2]);
    for name in ["m", "serve:g/a"] {
        let down = ports_down(&cluster, name);
        assert!(down.len() == 1 && down[0].contains("is down"), "{down:?}");
    }
    assert_eq!(received_bytes(&cluster, "m", "rdma"), 0);
    link.set("up");
    until_rdma(&cluster, "m", &path, 2);
    read_objects(&path, "o", &LENGTHS);
    assert!(received_bytes(&cluster, "m", "rdma") > 0);
    let bytes = cluster.place.server.counters().body_bytes;
    assert!(bytes as f64 <= 1.01 * total as f64, "{bytes} of {total}");
    assert!(ports_down(&cluster, "m").is_empty());
    cluster.place.run(&["umount", "m"]).ok();
}

/// Its address is there, and no device has it: the driver comes later, or was replaced.
#[test]
fn a_device_that_comes_after_the_start_is_found() {
    if device().is_none() {
        return;
    }
    let Ok(interface) = std::env::var("FOREBAY_RDMA_SPARE_INTERFACE") else {
        println!(
            "SKIPPED: FOREBAY_RDMA_SPARE_INTERFACE names no interface to make a device on: one that comes later was not tried here (ci/softroce does, in a guest)"
        );
        return;
    };
    run("ip", &["addr", "add", "10.9.7.1/24", "dev", &interface]);
    let cluster = Cluster::at("10.9.7.1".parse().unwrap(), 2);
    put_objects(&cluster.place, "o", &LENGTHS);
    let flags = ["--group-ip".to_owned(), "10.9.7.1".to_owned()];
    let flags = with(&flags, &[]);
    cluster.serve_all_with(|_| &flags);
    let path = cluster.mount_client(&flags);
    read_objects(&path, "o", &LENGTHS[..2]);
    let text = cluster.place.run(&["status", "m"]).ok().text();
    assert!(
        text.contains("not yet: no RDMA port has 10.9.7.1"),
        "{text}"
    );
    let link = ["link", "add", "rxe7", "type", "rxe", "netdev", &interface];
    run("rdma", &link);
    until_rdma(&cluster, "m", &path, 2);
    read_objects(&path, "o", &LENGTHS);
    assert!(received_bytes(&cluster, "m", "rdma") > 0);
    let text = cluster.place.run(&["status", "m"]).ok().text();
    assert!(
        text.contains("rxe7 port 1") && !text.contains("not yet"),
        "{text}"
    );
    cluster.place.run(&["umount", "m"]).ok();
    drop(cluster);
    eventually("nobody has the device open", || {
        let delete = Command::new("timeout")
            .args(["2", "rdma", "link", "delete", "rxe7"])
            .status();
        delete.is_ok_and(|status| status.success())
    });
    run("ip", &["addr", "del", "10.9.7.1/24", "dev", &interface]);
}

/// `command` as a user whose processes may lock so much memory, and no more.
fn with_locked_memory(command: &Command, limit_bytes: u64) -> Command {
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--memlock={limit_bytes}:{limit_bytes}"));
    limited.args([
        "setpriv",
        "--bounding-set",
        "-ipc_lock",
        "--inh-caps",
        "-ipc_lock",
    ]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        limited.current_dir(dir);
    }
    limited
}

#[test]
fn a_member_that_may_not_lock_its_memory_speaks_tcp_and_says_why() {
    let Some((ip, flags)) = device() else { return };
    let cluster = Cluster::at(ip, 2);
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    let of_members = with(&flags, &[]);
    let limited = |more: &[&str]| {
        let command = cluster.command("b", &cluster.serve_args("b", more));
        Running::start(&mut with_locked_memory(&command, 1 << 20)).wait(COMMAND_TIMEOUT)
    };
    // Who insists is told what to do.
    limited(&with(&flags, &["--transport", "rdma"])).failed(&["--transport rdma", "ulimit -l"]);
    cluster.serve("a", &of_members);
    limited(&of_members).ok();
    cluster.until_members(&["a", "b"]);
    let path = cluster.mount_client(&of_members);
    until_rdma(&cluster, "m", &path, 1);
    read_objects(&path, "o", &LENGTHS);
    let bytes = cluster.place.server.counters().body_bytes;
    assert!(bytes as f64 <= 1.01 * total as f64, "{bytes} of {total}");
    let report = cluster.status("b").and_then(|status| status.group);
    let off = report.and_then(|group| group.rdma.off).unwrap_or_default();
    assert!(off.contains("core 0") && off.contains("ulimit -l"), "{off}");
    let links = asked_by(&cluster, "m", "tcp");
    let to_b = links.iter().find(|link| link.peer == "b");
    let why = to_b.and_then(|link| link.why_tcp.clone());
    let why = why.unwrap_or_default();
    assert!(why.contains("its core takes no connection"), "{links:?}");
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_member_with_another_secret_gets_no_rdma() {
    let Some((ip, flags)) = device() else { return };
    let cluster = Cluster::at(ip, 2);
    put_objects(&cluster.place, "o", &LENGTHS);
    let flags = with(&flags, &[]);
    cluster.serve("a", &flags);
    let wrong = write_secret(&cluster.place, "wrong", "another");
    let mut args = cluster.serve_args("b", &flags);
    let secret = args
        .iter_mut()
        .skip_while(|arg| *arg != "--group-secret-file")
        .nth(1);
    *secret.expect("a secret's file") = wrong;
    Running::start(&mut cluster.command("b", &args))
        .wait(COMMAND_TIMEOUT)
        .ok();
    // Both have met by the time that one says so.
    eventually("the strangers have met", || {
        cluster.place.log().contains("another group secret")
    });
    let path = cluster.mount_client(&flags);
    until_rdma(&cluster, "m", &path, 1);
    read_objects(&path, "o", &LENGTHS);
    for (name, members) in [("a", "a"), ("b", "b")] {
        cluster.until_members_of(&[name], &[members]);
        let group = cluster.status(name).and_then(|status| status.group);
        let group = group.expect("a group");
        let others = group.links.iter().filter(|link| link.transport == "rdma");
        let with_stranger = others.filter(|link| {
            let stranger = if name == "a" { "b" } else { "a" };
            name == "b" || link.peer == stranger
        });
        assert_eq!(with_stranger.count(), 0, "{name}: {:?}", group.links);
        assert!(group.rdma.off.is_none(), "it could: {:?}", group.rdma);
    }
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_member_that_stands_still_costs_no_error_and_is_asked_by_verbs_again() {
    let Some((ip, flags)) = device() else { return };
    let cluster = Cluster::at(ip, 2);
    put_objects(&cluster.place, "o", &LENGTHS);
    let flags = with(&flags, &[]);
    cluster.serve_all_with(|_| &flags);
    let slow = [&flags[..], &["--peer-limit", "1MiB"]].concat();
    let path = cluster.mount_client(&slow);
    until_rdma(&cluster, "m", &path, 2);
    let before = received_bytes(&cluster, "m", "rdma");
    let reader = reading(&path, &LENGTHS);
    eventually("bytes come", || {
        reader.is_finished() || received_bytes(&cluster, "m", "rdma") > before
    });
    assert!(!reader.is_finished(), "nothing is under way");
    // Its device goes on acknowledging; nobody answers. Who asks puts the queue pair into error.
    let pid = cluster.status("b").expect("the member answers").pid;
    stop(pid);
    eventually("its queue pair is ended", || {
        let links = asked_by(&cluster, "m", "rdma");
        let to_b = links.iter().find(|link| link.peer == "b");
        to_b.is_none_or(|link| link.state != "up")
    });
    send(pid, Signal::CONT);
    reader.join().expect("every byte is right");
    cluster.until_members(&["a", "b"]);
    until_rdma(&cluster, "m", &path, 2);
    cluster.place.run(&["umount", "m"]).ok();
}

/// Where members listen by rdma_cm, as anybody may see.
fn listeners(ip: &str) -> Vec<std::net::SocketAddr> {
    let told = Command::new("rdma")
        .args(["resource", "show", "cm_id"])
        .output();
    let told = String::from_utf8(told.expect("rdma, of iproute2").stdout).unwrap();
    let of_one = |line: &str| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == "src-addr")?;
        let at: std::net::SocketAddr = words.next()?.parse().ok()?;
        (at.ip().to_string() == ip).then_some(at)
    };
    let listen = told.lines().filter(|line| line.contains("state LISTEN"));
    listen.filter_map(of_one).collect()
}

#[test]
fn strangers_with_rdma_are_refused_and_members_go_on() {
    use forebay_transport_rdma::{Cm, CmEvent};
    let Some((ip, flags)) = device() else { return };
    let cluster = Cluster::at(ip, 2);
    put_objects(&cluster.place, "o", &LENGTHS);
    let flags = with(&flags, &[]);
    cluster.serve_all_with(|_| &flags);
    let path = cluster.mount_client(&flags);
    until_rdma(&cluster, "m", &path, 2);
    let at = listeners(&ip.to_string());
    assert!(at.len() >= 2, "{at:?}");
    let mut cm = Cm::new().expect("librdmacm");
    let limit = std::time::Duration::from_secs(20);
    let next = |cm: &mut Cm| {
        let mut event = None;
        eventually("rdma_cm tells something", || {
            event = cm.next_event().expect("events");
            event.is_some()
        });
        event.expect("an event")
    };
    let mut refused = 0;
    for at in at {
        // Nothing, too little, a ticket and a proof of nothing, and as much as there is room for.
        for len in [0, 1, 47, 48, 56] {
            let id = cm.resolve_address(None, at, limit).expect("to look");
            assert_eq!(next(&mut cm), CmEvent::AddressResolved(id));
            cm.resolve_route(id, limit).expect("to look");
            assert_eq!(next(&mut cm), CmEvent::RouteResolved(id));
            // No queue pair of ours stands behind that number.
            cm.connect(id, 0x00ff_ff00, &vec![0xa5; len])
                .expect("to ask");
            let CmEvent::Rejected { id, private, .. } = next(&mut cm) else {
                panic!("a stranger is let in with {len} bytes");
            };
            let why = forebay_transport_rdma::introduce::Refused::of(&private);
            assert!(why.is_some(), "{private:?}");
            refused += 1;
            cm.close(id);
        }
    }
    assert!(refused >= 10);
    read_objects(&path, "o", &LENGTHS);
    until_rdma(&cluster, "m", &path, 2);
    cluster.assert_members(&["a", "b"]);
    cluster.place.run(&["umount", "m"]).ok();
}
