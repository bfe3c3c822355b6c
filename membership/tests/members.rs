//! Members over loopback UDP: they find each other, die, stand still, restart, leave; and strangers stay out.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_membership::follow::{Connect, Follower, answer, ask_stats};
use forebay_membership::gossip::{Group, GroupConfig};
use forebay_membership::identity::peer_id;
use forebay_membership::record::{Record, Usage};
use forebay_membership::secret::Secret;
use forebay_membership::seeds::Seeds;
use forebay_membership::views::Views;
use tokio::net::{TcpListener, TcpStream};

const SECRET: &str = "s3cret";

fn record(node: &str, port: u16) -> Record {
    Record {
        node: node.to_owned(),
        weight: 1,
        cores: 1,
        addresses: vec![(Ipv4Addr::LOCALHOST, port).into()],
        version: "test".to_owned(),
        endpoint: String::new(),
    }
}

struct Member {
    group: Group,
    address: SocketAddr,
}

impl Member {
    async fn join(group: &str, node: &str, secret: Option<&str>, seeds: &[SocketAddr]) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let config = GroupConfig {
            group: group.to_owned(),
            secret: secret.map(|text| Secret::new(text.as_bytes(), "test").unwrap()),
            record: record(node, address.port()),
            seeds: seeds
                .iter()
                .map(|seed| seed.to_string().parse().unwrap())
                .collect(),
            port_default: 7440,
            networks: Vec::new(),
        };
        let group = Group::join(config, socket, Views::default()).await.unwrap();
        Self { group, address }
    }

    fn view(&self) -> BTreeSet<String> {
        nodes_of(self.group.views())
    }

    fn dropped(&self, why: &str) -> u64 {
        let dropped = self.group.status().dropped;
        dropped.iter().find(|(name, _)| *name == why).unwrap().1
    }
}

fn nodes_of(views: &Views) -> BTreeSet<String> {
    let newest = views.newest();
    let members = newest.iter().flat_map(|view| view.roster.members());
    members.map(|member| member.record.node.clone()).collect()
}

fn set(nodes: &str) -> BTreeSet<String> {
    nodes.split_whitespace().map(str::to_owned).collect()
}

/// Waits until `look` shows `nodes`; returns how long that took.
async fn until(look: impl Fn() -> BTreeSet<String>, nodes: &str, within_secs: u64) -> Duration {
    let start = Instant::now();
    while look() != set(nodes) {
        let took = start.elapsed();
        assert!(
            took < Duration::from_secs(within_secs),
            "{nodes} wanted, {:?} seen",
            look()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    start.elapsed()
}

/// A member in a process of its own, which can be killed and stopped.
struct Process {
    child: Child,
    address: SocketAddr,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Process {
    fn start(node: &str, seed: SocketAddr) -> Self {
        let exe = std::env::current_exe().unwrap();
        let mut child = Command::new(exe)
            .args(["--exact", "a_member_process", "--ignored", "--nocapture"])
            .env("MEMBER_NODE", node)
            .env("MEMBER_SEED", seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let wait = Duration::from_secs(20);
        let port = loop {
            let line = lines
                .recv_timeout(wait)
                .expect("the member process tells its port");
            if let Some((_, port)) = line.split_once("port ") {
                break port.parse().unwrap();
            }
        };
        Self {
            child,
            address: (Ipv4Addr::LOCALHOST, port).into(),
            lines,
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let done = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(done.success());
    }

    /// Views that it told since the last call.
    fn views(&self) -> Vec<BTreeSet<String>> {
        let views = self.lines.try_iter();
        views
            .filter_map(|line| line.strip_prefix("view ").map(set))
            .collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "started by the other tests, as a process of its own"]
fn a_member_process() {
    let node = std::env::var("MEMBER_NODE").expect("MEMBER_NODE");
    let seed: SocketAddr = std::env::var("MEMBER_SEED").unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let member = Member::join("g", &node, Some(SECRET), &[seed]).await;
        println!("\nport {}", member.address.port());
        let mut views = member.group.views().watch();
        while views.changed().await.is_ok() {
            println!(
                "view {}",
                member.view().into_iter().collect::<Vec<_>>().join(" ")
            );
        }
    });
}

#[tokio::test]
async fn members_find_each_other_leave_and_restart() {
    let dead: SocketAddr = {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.local_addr().unwrap()
    };
    let start = Instant::now();
    let a = Member::join("g", "a", Some(SECRET), &[]).await;
    a.group.ready().await;
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "who has no seeds does not wait"
    );
    assert_eq!(a.group.id(), peer_id("g", "a"));
    let b = Member::join("g", "b", Some(SECRET), &[dead, a.address]).await;
    let c = Member::join("g", "c", Some(SECRET), &[a.address, dead]).await;
    for member in [&a, &b, &c] {
        until(|| member.view(), "a b c", 8).await;
    }
    let digest = |member: &Member| {
        member
            .group
            .views()
            .newest()
            .unwrap()
            .placement
            .view()
            .digest()
    };
    assert_eq!(digest(&a), digest(&c));

    c.group.leave().await;
    for member in [&a, &b] {
        let took = until(|| member.view(), "a b", 5).await;
        assert!(
            took < Duration::from_secs(5),
            "a farewell is not waited out: {took:?}"
        );
    }

    let c = Member::join("g", "c", Some(SECRET), &[b.address]).await;
    until(|| a.view(), "a b c", 8).await;
    // Killed and started again elsewhere: its new self replaces the old one well before that would be silent.
    drop(c);
    let c = Member::join("g", "c", Some(SECRET), &[b.address]).await;
    let start = Instant::now();
    let known = |member: &Member| {
        let newest = member.group.views().newest().unwrap();
        newest
            .placement
            .view()
            .member(peer_id("g", "c"))
            .map(|member| member.addresses[0])
    };
    while known(&a) != Some(c.address) || known(&b) != Some(c.address) {
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", known(&a));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    c.group.ready().await;
    weights_and_usage_are_told(&a, &c).await;
}

async fn weights_and_usage_are_told(a: &Member, c: &Member) {
    let full = Usage {
        cached_bytes: 7,
        capacity_bytes: 9,
        left_bytes: Some(3),
    };
    a.group.set_usage(full).await.unwrap();
    a.group.set_weight(0).await.unwrap();
    let start = Instant::now();
    let weight = |member: &Member| {
        let newest = member.group.views().newest().unwrap();
        newest
            .placement
            .view()
            .member(peer_id("g", "a"))
            .map(|member| member.weight)
    };
    let usage = |member: &Member| {
        let members = member.group.status().members;
        members
            .iter()
            .find(|member| member.listed.record.node == "a")
            .and_then(|member| member.usage)
    };
    while (weight(c), usage(c)) != (Some(0), Some(full)) {
        assert!(start.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_group_whose_news_need_several_datagrams_comes_together() {
    const MEMBERS: usize = 26;
    let first = Member::join("g", "n0", Some(SECRET), &[]).await;
    let mut members = vec![];
    for n in 1..MEMBERS {
        members.push(Member::join("g", &format!("n{n}"), Some(SECRET), &[first.address]).await);
    }
    members.push(first);
    let all = (0..MEMBERS)
        .map(|n| format!("n{n}"))
        .collect::<Vec<_>>()
        .join(" ");
    for member in &members {
        until(|| member.view(), &all, 30).await;
        let dropped = member.group.status().dropped;
        assert!(dropped.iter().all(|(_, count)| *count == 0), "{dropped:?}");
    }
}

#[tokio::test]
async fn a_killed_member_leaves_after_ten_seconds() {
    let a = Member::join("g", "a", Some(SECRET), &[]).await;
    let b = Process::start("b", a.address);
    let c = Member::join("g", "c", Some(SECRET), &[b.address]).await;
    until(|| a.view(), "a b c", 8).await;
    until(|| c.view(), "a b c", 8).await;
    drop(b);
    let took = until(|| a.view(), "a c", 16).await;
    assert!(
        took > Duration::from_secs(8),
        "it was given up after {took:?}"
    );
    until(|| c.view(), "a c", 4).await;
}

#[tokio::test]
async fn a_paused_member_leaves_and_comes_back_and_a_hiccup_moves_nothing() {
    let a = Member::join("g", "a", Some(SECRET), &[]).await;
    let c = Member::join("g", "c", Some(SECRET), &[a.address]).await;
    let b = Process::start("b", a.address);
    until(|| a.view(), "a b c", 8).await;
    until(|| c.view(), "a b c", 8).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    b.views();

    b.signal("-STOP");
    let mut views = a.group.views().watch();
    views.mark_unchanged();
    tokio::time::sleep(Duration::from_secs(5)).await;
    b.signal("-CONT");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(
        !views.has_changed().unwrap(),
        "five seconds of silence change nothing"
    );
    assert_eq!(b.views(), Vec::<BTreeSet<String>>::new());

    b.signal("-STOP");
    until(|| a.view(), "a c", 16).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    b.signal("-CONT");
    until(|| a.view(), "a b c", 8).await;
    until(|| c.view(), "a b c", 8).await;
    // It was itself that stood still: it never took the others for gone.
    assert_eq!(b.views(), Vec::<BTreeSet<String>>::new());
}

#[tokio::test]
async fn strangers_stay_out_and_are_counted() {
    let a = Member::join("g", "a", Some(SECRET), &[]).await;
    let wrong = Member::join("g", "w", Some("other"), &[a.address]).await;
    let none = Member::join("g", "n", None, &[a.address]).await;
    let other = Member::join("h", "o", Some(SECRET), &[a.address]).await;
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    stranger.send_to(b"hello?", a.address).unwrap();
    stranger.send_to(&[0; 1400], a.address).unwrap();
    for member in [&wrong, &none, &other] {
        member.group.ready().await;
    }
    let b = Member::join("g", "b", Some(SECRET), &[a.address]).await;
    until(|| a.view(), "a b", 8).await;
    until(|| b.view(), "a b", 8).await;
    assert!(
        a.dropped("unproven") >= 2 && a.dropped("other_group") >= 1,
        "{:?}",
        a.group.status().dropped
    );
    assert_eq!(a.dropped("foreign"), 2);
    assert_eq!(
        (wrong.view(), none.view(), other.view()),
        (set("w"), set("n"), set("o"))
    );
}

#[tokio::test]
async fn without_a_secret_nothing_but_loopback_is_published() {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let mut record = record("a", 1);
    record.addresses.push("192.0.2.1:1".parse().unwrap());
    let config = GroupConfig {
        group: "g".into(),
        secret: None,
        record,
        seeds: Vec::new(),
        port_default: 7440,
        networks: Vec::new(),
    };
    let joined = Group::join(config, socket, Views::default()).await;
    let error = joined.err().unwrap().to_string();
    assert!(
        error.contains("--group-secret-file") && error.contains("192.0.2.1"),
        "{error}"
    );
}

/// Control connections as they are, without any proof.
struct Plain;

impl Connect for Plain {
    type Stream = TcpStream;

    async fn connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        TcpStream::connect(to).await
    }
}

/// Answers clients at a member's own address, as its control port does.
async fn serve(member: &Member) -> tokio::task::JoinHandle<()> {
    let listener = TcpListener::bind(member.address).await.unwrap();
    let views = member.group.views().clone();
    tokio::spawn(async move {
        let mut all = tokio::task::JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let views = views.clone();
            all.spawn(async move { answer(&mut stream, &views, no_stats).await });
        }
    })
}

#[tokio::test]
async fn a_client_follows_views_and_goes_on_at_another_member() {
    let a = Member::join("g", "a", Some(SECRET), &[]).await;
    let b = Member::join("g", "b", Some(SECRET), &[a.address]).await;
    let (serving_a, _serving_b) = (serve(&a).await, serve(&b).await);
    until(|| a.view(), "a b", 8).await;
    until(|| b.view(), "a b", 8).await;
    let seeds = [
        "127.0.0.1:9".parse().unwrap(),
        a.address.to_string().parse().unwrap(),
    ];
    let seeds = Arc::new(Seeds::follow(seeds.into(), 7440, Vec::new()));
    let views = Views::default();
    let follower = Follower::start(Plain, seeds, views.clone());
    follower.ready().await;
    assert_eq!(nodes_of(&views), set("a b"));

    serving_a.abort();
    let _ = serving_a.await;
    let c = Member::join("g", "c", Some(SECRET), &[b.address]).await;
    until(|| nodes_of(&views), "a b c", 12).await;
    let status = follower.status();
    assert_eq!(status.asking, Some(b.address), "{status:?}");
    c.group.leave().await;
    until(|| nodes_of(&views), "a b", 5).await;
}

async fn no_stats() -> Result<serde_json::Value, String> {
    Err("it is starting".into())
}

#[tokio::test]
async fn a_member_tells_its_counters_or_why_not() {
    let (mut near, mut far) = tokio::io::duplex(64);
    let told = std::sync::atomic::AtomicU64::new(0);
    let stats = || async {
        match told.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => no_stats().await,
            n => Ok(serde_json::json!({"reads": n})),
        }
    };
    let views = Views::default();
    let asked = async {
        let error = ask_stats(&mut near).await.unwrap_err().to_string();
        assert_eq!(error, "it is starting");
        let told = ask_stats(&mut near).await.unwrap();
        assert_eq!(told["reads"], 1, "the connection goes on");
        drop(near);
    };
    let (answered, ()) = tokio::join!(answer(&mut far, &views, stats), asked);
    answered.unwrap();
}
