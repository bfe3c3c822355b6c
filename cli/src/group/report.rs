//! What `status` tells of the group; the keys below `group` in `status --json`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use forebay_engine::identity::Slot;
use forebay_engine::limits::SLOTS;
use forebay_engine::placement::{PeerId, Placement};
use forebay_engine::ports::PeerCore;
use forebay_membership::follow::FollowerStatus;
use forebay_membership::gossip::GroupStatus;
use forebay_membership::record::Usage;
use forebay_membership::seeds::SeedStatus;
use forebay_membership::views::GroupView;
use forebay_transport_rdma::links::{LinkState as LinkStateRdma, LinkStatus as LinkStatusRdma};
use forebay_transport_tcp::{LinkState, LinkStatus, Refusal};
use serde::{Deserialize, Serialize};

use super::alone::AloneReport;
use super::draining::DrainReport;
use super::plan::GroupPlan;
use super::rdma::{self, Found, RdmaReport};
use super::weight::DisksOutReport;

/// This node's group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// The group's name.
    pub name: String,
    /// This node's name.
    pub node: String,
    /// This node's id, 16 hexadecimal digits.
    pub id: String,
    /// `member`, or `client`, which only takes.
    pub role: String,
    /// Where this node reads from, as identities spell it.
    #[serde(default)]
    pub endpoint: String,
    /// Questions of other nodes for another endpoint, which were declined.
    #[serde(default)]
    pub asked_elsewhere: u64,
    /// Whether the group has a secret.
    pub secret: bool,
    /// Where others reach this node; none for a client.
    pub addresses: Vec<SocketAddr>,
    /// Digest of the view, 16 hexadecimal digits; null before the first view.
    pub view: Option<String>,
    /// All serving members, sorted by id.
    pub members: Vec<MemberReport>,
    /// Connections between this node's cores and others'.
    pub links: Vec<LinkReport>,
    /// Where members are looked for.
    pub seeds: Vec<SeedReport>,
    /// A client: the member that tells it views.
    pub asking: Option<SocketAddr>,
    /// A client: what was wrong with asking last.
    pub asking_error: Option<String>,
    /// A member: that it is alone, and why; null when it is not, or was told of no others.
    #[serde(default)]
    pub alone: Option<AloneReport>,
    /// This node's RDMA.
    #[serde(default)]
    pub rdma: RdmaReport,
    /// A member of whose disks some take nothing new: which, and what became of its weight; null when all do.
    #[serde(default)]
    pub disks_out: Option<DisksOutReport>,
    /// Gossip datagrams dropped, by reason.
    pub gossip_dropped: BTreeMap<String, u64>,
    /// Connections refused, by reason.
    pub connections_refused: BTreeMap<String, u64>,
    /// How far this member is with handing over what it holds; null when that was not asked for.
    #[serde(default)]
    pub drain: Option<DrainReport>,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its name.
    pub node: String,
    /// Its id.
    pub id: String,
    /// Whether it is this node.
    pub this: bool,
    /// Its weight.
    pub weight: u32,
    /// Slots that it owns, of 65,536.
    pub slots: u32,
    /// The same as a share of the ring, 0 to 1.
    pub ring_share: f64,
    /// Its engine cores.
    pub cores: u16,
    /// Where it is reached, one for each rail.
    pub addresses: Vec<SocketAddr>,
    /// Version of its software.
    pub version: String,
    /// Where it reads from; empty when it has not told.
    #[serde(default)]
    pub endpoint: String,
    /// Bytes that it holds, and can hold: on its disks, or without any in memory. Null when it has not told, or
    /// this node does not gossip.
    pub cached_bytes: Option<u64>,
    /// See `cached_bytes`.
    pub capacity_bytes: Option<u64>,
    /// Bytes that it still has to hand over, when it is draining and has told.
    #[serde(default)]
    pub left_bytes: Option<u64>,
    /// Seconds since it was heard of; null when this node does not gossip.
    pub silent_seconds: Option<f64>,
}

impl MemberReport {
    fn set_usage(&mut self, usage: &Usage) {
        self.cached_bytes = Some(usage.cached_bytes);
        self.capacity_bytes = Some(usage.capacity_bytes);
        // Weight and usage travel apart: who has its weight again hands over nothing.
        self.left_bytes = usage.left_bytes.filter(|_| self.weight == 0);
    }
}

/// One connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The other side's name, or its id when it is no member (a client).
    pub peer: String,
    /// This node's core.
    pub core: u16,
    /// The other side's core.
    pub peer_core: u16,
    /// Whether this node asks on it; else the other side does.
    pub asks: bool,
    /// `tcp` or `rdma`.
    pub transport: String,
    /// `connecting`, `up` or `down`.
    pub state: String,
    /// Of `rdma`: queue pairs that are up, one for each rail that is used.
    #[serde(default)]
    pub connections: usize,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Why it was down the last time.
    pub last_error: Option<String>,
    /// Over TCP, of one that this node asks on: why requests do not go over RDMA; null when they do, when this node has no
    /// RDMA, or when nothing was asked yet.
    #[serde(default)]
    pub why_tcp: Option<String>,
}

/// One place where members are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedReport {
    /// As it was given.
    pub seed: String,
    /// How many addresses it has.
    pub addresses: usize,
    /// What is wrong with it.
    pub error: Option<String>,
}

/// What a client is told that no member answers.
pub(super) fn unled(why: Option<&str>) -> String {
    let why = why.unwrap_or("no address of one is known");
    format!(
        "no member of the group answers ({why}): this node reads from S3 by itself until one does"
    )
}

fn hex(id: u64) -> String {
    format!("{id:016x}")
}

impl GroupReport {
    /// What follows from the flags and the newest view.
    pub fn new(plan: &GroupPlan, addresses: &[SocketAddr], view: Option<&GroupView>) -> Self {
        let slots = view
            .map(|view| slots_owned(&view.placement))
            .unwrap_or_default();
        let listed = view.iter().flat_map(|view| view.roster.members());
        let member = |(listed, slots): (&forebay_membership::record::Listed, u32)| MemberReport {
            node: listed.record.node.clone(),
            id: hex(listed.id.0),
            this: listed.id == plan.me,
            weight: listed.record.weight,
            slots,
            ring_share: f64::from(slots) / f64::from(SLOTS),
            cores: listed.record.cores,
            addresses: listed.record.addresses.clone(),
            version: listed.record.version.clone(),
            endpoint: listed.record.endpoint.clone(),
            ..MemberReport::default()
        };
        Self {
            name: plan.group.clone(),
            node: plan.node.clone(),
            id: hex(plan.me.0),
            role: if plan.is_member() { "member" } else { "client" }.to_owned(),
            secret: plan.secret.is_some(),
            addresses: addresses.to_vec(),
            view: view.map(|view| hex(view.placement.view().digest())),
            members: listed.zip(slots).map(member).collect(),
            ..Self::default()
        }
    }

    /// Adds what gossip knows.
    pub fn add_gossip(&mut self, status: &GroupStatus) {
        for heard in &status.members {
            let id = hex(heard.listed.id.0);
            for member in self.members.iter_mut().filter(|member| member.id == id) {
                member.silent_seconds = Some(heard.silence.as_secs_f64());
                if let Some(usage) = &heard.usage {
                    member.set_usage(usage);
                }
            }
        }
        self.add_seeds(&status.seeds);
        let counted = status.dropped.iter().filter(|(_, count)| *count > 0);
        self.gossip_dropped = counted
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect();
    }

    /// How full this node is, which is a member.
    pub fn set_own_usage(&mut self, usage: &Usage) {
        let own = self.members.iter_mut().filter(|member| member.this);
        own.for_each(|member| member.set_usage(usage));
    }

    /// Adds how a client gets its views.
    pub fn add_following(&mut self, status: &FollowerStatus, seeds: &[SeedStatus]) {
        self.asking = status.asking;
        self.asking_error = status.error.clone();
        self.add_seeds(seeds);
    }

    /// Of a client that no member answers: so, and why.
    pub fn unled(&self) -> Option<String> {
        let is_unled = self.role == "client" && self.asking.is_none();
        let is_news = self.view.is_none() || self.asking_error.is_some();
        (is_unled && is_news).then(|| unled(self.asking_error.as_deref()))
    }

    fn add_seeds(&mut self, seeds: &[SeedStatus]) {
        let seed = |seed: &SeedStatus| SeedReport {
            seed: seed.seed.clone(),
            addresses: seed.addresses.len(),
            error: seed.error.clone(),
        };
        self.seeds = seeds.iter().map(seed).collect();
    }

    fn name_of(&self, peer: PeerId) -> String {
        let id = hex(peer.0);
        let member = self.members.iter().find(|member| member.id == id);
        member.map_or(id, |member| member.node.clone())
    }

    /// Adds this node's RDMA, its connections, and why links over TCP do without; after [`GroupReport::add_links`].
    pub fn add_rdma(&mut self, found: &Found) {
        self.rdma = rdma::report(found);
        let Ok(way) = found else { return };
        let link = |link: LinkStatusRdma| LinkReport {
            peer: self.name_of(link.peer.peer),
            core: link.core,
            peer_core: link.peer.core,
            asks: link.asks,
            transport: "rdma".to_owned(),
            state: match link.state {
                LinkStateRdma::Connecting => "connecting",
                LinkStateRdma::Up => "up",
                LinkStateRdma::Down => "down",
            }
            .to_owned(),
            connections: link.connections,
            sent_bytes: link.sent_bytes,
            received_bytes: link.received_bytes,
            last_error: link.last_error,
            why_tcp: None,
        };
        let links: Vec<LinkReport> = way.endpoint.links().into_iter().map(link).collect();
        self.links.extend(links);
    }

    /// Adds TCP's connections; `why_tcp` says why requests to a peer's core do not go over RDMA.
    pub fn add_links(
        &mut self,
        links: &[LinkStatus],
        refusals: &[(Refusal, u64)],
        why_tcp: impl Fn(u16, PeerCore) -> Option<String>,
    ) {
        let why_tcp = |link: &LinkStatus| {
            let to = PeerCore {
                peer: link.peer,
                core: link.peer_core,
            };
            link.asks.then(|| why_tcp(link.core, to)).flatten()
        };
        let link = |link: &LinkStatus| LinkReport {
            peer: self.name_of(link.peer),
            core: link.core,
            peer_core: link.peer_core,
            asks: link.asks,
            transport: link.transport.to_owned(),
            state: match link.state {
                LinkState::Connecting => "connecting",
                LinkState::Up => "up",
                LinkState::Down => "down",
            }
            .to_owned(),
            connections: 0,
            sent_bytes: link.sent_bytes,
            received_bytes: link.received_bytes,
            last_error: link.last_error.clone(),
            why_tcp: why_tcp(link),
        };
        let links: Vec<LinkReport> = links.iter().map(link).collect();
        self.links = links;
        let refused = refusals.iter().filter(|(_, count)| *count > 0);
        self.connections_refused = refused
            .map(|(why, count)| (why.to_string(), *count))
            .collect();
    }
}

/// Slots that each member owns, in the view's order.
fn slots_owned(placement: &Placement) -> Vec<u32> {
    let members = placement.view().members();
    let mut owned: BTreeMap<_, u32> = members.iter().map(|member| (member.id, 0)).collect();
    for owner in (0..SLOTS).filter_map(|slot| placement.owner(Slot(slot))) {
        *owned.entry(owner.id).or_default() += 1;
    }
    members
        .iter()
        .map(|member| owned.get(&member.id).copied().unwrap_or(0))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_membership::identity::peer_id;
    use forebay_membership::record::{Listed, Record, Roster};

    use super::*;
    use crate::args::{GroupArgs, NodeArgs};

    fn listed(node: &str, weight: u32) -> Listed {
        Listed {
            id: peer_id("g", node),
            record: Record {
                node: node.to_owned(),
                weight,
                cores: 1,
                addresses: vec!["127.0.0.1:1".parse().unwrap()],
                version: "0".to_owned(),
                endpoint: String::new(),
            },
        }
    }

    #[test]
    fn shares_add_up_and_follow_weights() {
        let node = NodeArgs {
            node_id: Some("a".parse().unwrap()),
            cache_group: "g".parse().unwrap(),
        };
        let plan = GroupPlan::new(&GroupArgs::default(), &node, true)
            .unwrap()
            .unwrap();
        let roster = Roster::new(vec![listed("a", 1), listed("b", 1), listed("c", 0)]);
        let view = GroupView::new(Arc::new(roster));
        let report = GroupReport::new(&plan, &[], Some(&view));
        let share = |name: &str| {
            report
                .members
                .iter()
                .find(|member| member.node == name)
                .unwrap()
                .ring_share
        };
        let total: u32 = report.members.iter().map(|member| member.slots).sum();
        assert_eq!(total, SLOTS);
        assert!((0.4..0.6).contains(&share("a")) && share("c") == 0.0);
        assert_eq!(
            report.members.iter().filter(|member| member.this).count(),
            1
        );
    }
}
