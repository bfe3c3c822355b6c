//! A running membership: the endpoint that peers reach, the gossip or its substitute, and the views.

use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_membership::PORT_DEFAULT;
use forebay_membership::follow::{Connect, Follower, answer};
use forebay_membership::gossip;
use forebay_membership::record::{Record, Usage};
use forebay_membership::seeds::Seeds;
use forebay_membership::views::Views;
use forebay_transport_tcp::{ControlIncoming, Endpoint, EndpointConfig, Key};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::alone::Found;
use super::draining::{DrainState, Draining};
use super::plan::{GroupPlan, Role};
use super::rdma;
use super::report::{GroupReport, unled};
use super::stats::{GroupCounts, GroupStats, MemberStats, TellCounts, ask_all};
use super::weight::{Room, Seen, Weight};
use crate::host::Peers;

/// Free ports that are tried when the port is 0: one may be free for TCP and taken for UDP.
const PORTS_TRIED: usize = 16;
/// Members look so often how full they are, and tell the others when that has changed enough to be seen,
const USAGE_LOOK: Duration = Duration::from_secs(2);
/// or at all, but not more often than this.
const USAGE_INTERVAL: Duration = Duration::from_secs(10);
/// One part in so many of what a member can hold is seen.
const USAGE_PARTS: u64 = 256;
/// A client waits so long for its first view before it reads from the origin by itself.
pub const VIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// This node's part in its group, until it is dropped or [leaves](Group::leave).
pub struct Group {
    plan: GroupPlan,
    endpoint: Endpoint,
    rdma: rdma::Found,
    views: Views,
    runtime: Handle,
    socket: parking_lot::Mutex<Option<UdpSocket>>,
    addresses: Vec<SocketAddr>,
    joined: OnceLock<Joined>,
    /// Where this node reads from, as identities spell it.
    origin: OnceLock<String>,
    pub(super) weight: Weight,
    pub(super) draining: Draining,
    pub(super) drain_begins: Arc<Notify>,
    pub(super) alone: Found,
    /// The others are told at once how full this member is.
    pub(super) usage_due: Arc<Notify>,
    /// What others are told of this node's counters, once it is known.
    counts: Arc<OnceLock<TellCounts>>,
}

/// How views come.
enum Joined {
    Member(Box<gossip::Group>),
    Client(Follower, Arc<Seeds>),
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// Takes the ports, before the engine starts. Nobody is told of this node yet.
    ///
    /// # Errors
    /// A port that cannot be had.
    pub fn open(plan: GroupPlan, cores: usize, runtime: &Handle) -> Result<Arc<Self>> {
        let (endpoint, control, socket) = open_ports(&plan, cores, runtime)?;
        let views = Views::default();
        let rdma = rdma::open(&plan, cores_of_group(cores)?, &endpoint, runtime)?;
        let (known, way) = (endpoint.clone(), rdma.clone().ok());
        views.before_change(move |view| {
            let view = view.placement.view();
            known.set_members(view);
            if let Some(way) = &way {
                way.retain(|peer| view.member(peer).is_some());
            }
        });
        let counts = Arc::new(OnceLock::new());
        if plan.is_member() {
            runtime.spawn(answer_all(control, views.clone(), counts.clone()));
        }
        let addresses = match (&plan.role, endpoint.addresses().first()) {
            (Role::Member { addresses, .. }, Some(bound)) => addresses
                .iter()
                .map(|ip| SocketAddr::new(*ip, bound.port()))
                .collect(),
            _ => Vec::new(),
        };
        Ok(Arc::new(Self {
            plan,
            endpoint,
            rdma,
            views,
            runtime: runtime.clone(),
            socket: parking_lot::Mutex::new(socket),
            addresses,
            joined: OnceLock::new(),
            origin: OnceLock::new(),
            weight: Weight::default(),
            draining: Draining::default(),
            drain_begins: Arc::default(),
            alone: Found::default(),
            usage_due: Arc::default(),
            counts,
        }))
    }

    /// What the engine's cores are made with.
    pub fn peers(&self) -> Peers {
        Peers {
            me: self.plan.me,
            keep_copies: self.plan.keep_copies,
            endpoint: self.endpoint.clone(),
            rdma: self.rdma.clone().ok(),
            views: self.views.clone(),
        }
    }

    /// The plan that it follows.
    pub fn plan(&self) -> &GroupPlan {
        &self.plan
    }

    /// Others are told, and `status` tells, that this node reads from there. Before it joins.
    pub fn set_origin(&self, endpoint: &str) {
        let _ = self.origin.set(endpoint.to_owned());
    }

    /// Joins, once the engine answers peers, and waits for the first view. `room` gives the weight when there is no
    /// `--group-weight`.
    ///
    /// # Errors
    /// When gossip cannot start. That nobody answers is none.
    pub fn join(&self, cores: usize, room: Room) -> Result<()> {
        let socket = self.socket.lock().take();
        self.runtime.clone().block_on(async {
            match socket {
                Some(socket) => {
                    let group = self.gossip(socket, cores, room).await?;
                    group.ready().await;
                    let _ = self.joined.set(Joined::Member(Box::new(group)));
                }
                None => {
                    let seeds = Seeds::follow(
                        self.plan.seeds.clone(),
                        PORT_DEFAULT,
                        self.plan.networks.clone(),
                    );
                    let seeds = Arc::new(seeds);
                    let connect = ControlDialer(self.endpoint.clone());
                    let follower = Follower::start(connect, seeds.clone(), self.views.clone());
                    if tokio::time::timeout(VIEW_TIMEOUT, follower.ready())
                        .await
                        .is_err()
                    {
                        tracing::warn!("{}", unled(follower.status().error.as_deref()));
                    }
                    let _ = self.joined.set(Joined::Client(follower, seeds));
                }
            }
            Ok(())
        })
    }

    async fn gossip(&self, socket: UdpSocket, cores: usize, room: Room) -> Result<gossip::Group> {
        let plan = &self.plan;
        let weight = self.weight.begin(plan.weight, room);
        let config = gossip::GroupConfig {
            group: plan.group.clone(),
            secret: plan.secret.clone(),
            record: Record {
                node: plan.node.clone(),
                weight,
                cores: cores_of_group(cores)?,
                addresses: self.addresses.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                endpoint: self.origin.get().cloned().unwrap_or_default(),
            },
            seeds: plan.seeds.clone(),
            port_default: self
                .addresses
                .first()
                .map_or(PORT_DEFAULT, SocketAddr::port),
            networks: plan.networks.clone(),
        };
        gossip::Group::join(config, socket, self.views.clone()).await
    }

    /// Tells the others now and then how full this member is, and a smaller weight when its disks fail. `look` may wait.
    pub fn publish_usage(self: &Arc<Self>, look: impl Fn() -> Seen + Send + Sync + 'static) {
        if !self.plan.is_member() {
            return;
        }
        let (group, look) = (Arc::downgrade(self), Arc::new(look));
        let at_once = self.usage_due.clone();
        self.runtime.spawn(async move {
            let mut due = tokio::time::interval(USAGE_LOOK);
            let mut told: Option<(Usage, Instant)> = None;
            loop {
                let must = tokio::select! {
                    _ = due.tick() => false,
                    () = at_once.notified() => true,
                };
                let look = look.clone();
                let Ok(Seen { usage, out }) = tokio::task::spawn_blocking(move || look()).await
                else {
                    return;
                };
                let Some(group) = group.upgrade() else { return };
                if let Some(out) = out {
                    group.follow_disks(out).await;
                }
                let is_news =
                    |(before, at): (Usage, Instant)| is_news(&before, &usage, at.elapsed());
                if !must && !told.is_none_or(is_news) {
                    continue;
                }
                if let Some(Joined::Member(member)) = group.joined.get() {
                    match member.set_usage(usage).await {
                        Ok(()) => told = Some((usage, Instant::now())),
                        Err(error) => tracing::debug!("{error:#}"),
                    }
                }
            }
        });
    }

    /// Tells the others another weight.
    pub(super) async fn set_weight(&self, weight: u32) -> Result<()> {
        match self.joined.get() {
            Some(Joined::Member(group)) => group.set_weight(weight).await,
            _ => bail!("this node has not joined its group yet"),
        }
    }

    /// Whether another member has a weight.
    pub(super) fn has_heir(&self) -> bool {
        let view = self.views.newest();
        view.is_some_and(|view| {
            let mut members = view.roster.members().iter();
            members.any(|member| member.id != self.plan.me && member.record.weight > 0)
        })
    }

    /// Whether this member has no share of the ring in the newest view.
    pub(super) fn is_weightless(&self) -> bool {
        let view = self.views.newest();
        view.is_some_and(|view| {
            let mut members = view.roster.members().iter();
            members.any(|member| member.id == self.plan.me && member.record.weight == 0)
        })
    }

    /// Where others should be, of a member that is alone in its view; else nothing.
    pub(super) fn missed(&self) -> Vec<SocketAddr> {
        let Some(Joined::Member(group)) = self.joined.get() else {
            return Vec::new();
        };
        let is_alone = self.views.newest().is_some_and(|view| {
            let mut members = view.roster.members().iter();
            members.all(|member| member.id == self.plan.me)
        });
        match is_alone {
            true => group.other_seeds(),
            false => Vec::new(),
        }
    }

    pub(super) fn views(&self) -> &Views {
        &self.views
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Answers members that ask for this node's counters from now on.
    pub fn tell_counts(&self, counts: TellCounts) {
        let _ = self.counts.set(counts);
    }

    /// What all members did: asks each of them, and waits for at most some seconds. `own` is what this node did.
    /// Not for the runtime's own threads.
    pub fn stats(&self, own: GroupCounts) -> GroupStats {
        let newest = self.views.newest();
        let members = newest.iter().flat_map(|view| view.roster.members());
        let others = members.filter(|member| member.id != self.plan.me).cloned();
        let mut rows = self
            .runtime
            .block_on(ask_all(&self.endpoint, others.collect()));
        let role = if self.plan.is_member() {
            "member"
        } else {
            "client"
        };
        rows.push(MemberStats {
            node: self.plan.node.clone(),
            role: role.to_owned(),
            this: true,
            counts: Some(own),
            error: None,
        });
        GroupStats::new(&self.plan.group, rows)
    }

    /// Says farewell, so that the others stop asking. Takes half a second.
    pub fn leave(&self) {
        if let Some(Joined::Member(group)) = self.joined.get() {
            self.runtime.block_on(group.leave());
        }
    }

    /// What is known of the group.
    pub fn report(&self) -> GroupReport {
        let mut report =
            GroupReport::new(&self.plan, &self.addresses, self.views.newest().as_deref());
        report.endpoint = self.origin.get().cloned().unwrap_or_default();
        let (links, refusals) = (self.endpoint.links(), self.endpoint.refusals());
        let why_tcp = |core, to| self.rdma.as_ref().ok()?.why_tcp(core, to);
        report.add_links(&links, &refusals, why_tcp);
        report.add_rdma(&self.rdma);
        match self.joined.get() {
            Some(Joined::Member(group)) => report.add_gossip(&group.status()),
            Some(Joined::Client(follower, seeds)) => {
                report.add_following(&follower.status(), &seeds.status())
            }
            None => {}
        }
        report.alone = self.alone_report();
        report.disks_out = self.weight.report();
        let drain = self.drain_report();
        report.drain = (drain.state != DrainState::None).then_some(drain);
        report
    }
}

/// Whether the others are to hear of it now, so long after they were told `before`.
fn is_news(before: &Usage, now: &Usage, since: Duration) -> bool {
    let more = now.cached_bytes.abs_diff(before.cached_bytes);
    let rest = |usage: &Usage| (usage.capacity_bytes, usage.left_bytes);
    more > 0 && more >= now.capacity_bytes / USAGE_PARTS
        || rest(before) != rest(now)
        || before != now && since >= USAGE_INTERVAL
}

fn cores_of_group(cores: usize) -> Result<u16> {
    u16::try_from(cores).context("too many cores for a group")
}

/// TCP and UDP of one port; for a client no port at all.
fn open_ports(
    plan: &GroupPlan,
    cores: usize,
    runtime: &Handle,
) -> Result<(Endpoint, ControlIncoming, Option<UdpSocket>)> {
    let Role::Member { listen, .. } = &plan.role else {
        let (endpoint, control) = open_endpoint(plan, None, cores, runtime)?;
        return Ok((endpoint, control, None));
    };
    for _ in 0..PORTS_TRIED {
        let (endpoint, control) = open_endpoint(plan, Some(*listen), cores, runtime)?;
        let bound = *endpoint
            .addresses()
            .first()
            .context("the endpoint does not listen")?;
        match UdpSocket::bind(bound) {
            Ok(socket) => return Ok((endpoint, control, Some(socket))),
            Err(error) if listen.port() == 0 && error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("cannot listen at {bound} (UDP, for gossip): is another Forebay using it? See --listen")
                });
            }
        }
    }
    bail!("no port is free for both TCP and UDP: name one with --listen")
}

fn open_endpoint(
    plan: &GroupPlan,
    listen: Option<SocketAddr>,
    cores: usize,
    runtime: &Handle,
) -> Result<(Endpoint, ControlIncoming)> {
    let config = EndpointConfig {
        secret: plan.secret.as_ref().map(|secret| Key::new(secret.bytes())),
        listen: listen.into_iter().collect(),
        cores: cores_of_group(cores)?,
        ..EndpointConfig::new(plan.me, &plan.group, runtime.clone())
    };
    Endpoint::start(config).context(
        "cannot take part in the group (a second one on this machine takes --no-sharing, or its own --listen and --node-id)",
    )
}

/// Answers what clients and members ask over their control connections.
async fn answer_all(mut control: ControlIncoming, views: Views, counts: Arc<OnceLock<TellCounts>>) {
    while let Some((peer, mut stream)) = control.next().await {
        let (views, counts) = (views.clone(), counts.clone());
        tokio::spawn(async move {
            let stats = || tell(counts.get().cloned());
            if let Err(error) = answer(&mut stream, &views, stats).await {
                tracing::debug!("control connection of {:016x}: {error}", peer.0);
            }
        });
    }
}

/// This node's counters, as they travel.
async fn tell(counts: Option<TellCounts>) -> Result<serde_json::Value, String> {
    let counts = counts.ok_or("it is starting")?;
    let told = tokio::task::spawn_blocking(move || counts()).await;
    match told {
        Ok(Some(counts)) => serde_json::to_value(counts).map_err(|error| error.to_string()),
        _ => Err("it is ending".into()),
    }
}

/// Proven control connections to members.
struct ControlDialer(Endpoint);

impl Connect for ControlDialer {
    type Stream = TcpStream;

    async fn connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let connected = self.0.connect_control(to).await;
        connected.map(|(_, stream)| stream).map_err(Error::other)
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::placement::PeerId;
    use forebay_membership::record::Listed;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_member_that_says_nothing_at_one_address_is_asked_at_the_next() {
        let open = |id, listen: &[SocketAddr]| {
            let config = EndpointConfig {
                listen: listen.to_vec(),
                ..EndpointConfig::new(PeerId(id), "g", Handle::current())
            };
            Endpoint::start(config).unwrap()
        };
        let any = "127.0.0.1:0".parse().unwrap();
        // Nobody takes the connections of the first one from it.
        let (silent, _untaken) = open(1, &[any]);
        let (member, control) = open(1, &[any]);
        let counts: TellCounts = Arc::new(|| Some(GroupCounts::default()));
        let counts = Arc::new(OnceLock::from(counts));
        tokio::spawn(answer_all(control, Views::default(), counts));
        let (client, _control) = open(2, &[]);
        let member = Listed {
            id: PeerId(1),
            record: Record {
                node: "a".to_owned(),
                weight: 1,
                cores: 1,
                addresses: vec![silent.addresses()[0], member.addresses()[0]],
                version: String::new(),
                endpoint: String::new(),
            },
        };
        let rows = ask_all(&client, vec![member]).await;
        assert!(rows[0].counts.is_some(), "{rows:?}");
    }

    #[test]
    fn others_hear_soon_of_what_they_can_see() {
        let usage = |cached_bytes| Usage {
            cached_bytes,
            capacity_bytes: 256 << 20,
            left_bytes: None,
        };
        let (before, soon) = (usage(1 << 20), Duration::from_secs(2));
        assert!(!is_news(&before, &before, USAGE_INTERVAL));
        assert!(!is_news(&before, &usage((2 << 20) - 1), soon));
        assert!(is_news(&before, &usage((2 << 20) - 1), USAGE_INTERVAL));
        assert!(is_news(&before, &usage(2 << 20), soon));
        assert!(is_news(&before, &usage(0), soon));
        let drains = Usage {
            left_bytes: Some(7),
            ..before
        };
        assert!(is_news(&before, &drains, soon));
    }
}
