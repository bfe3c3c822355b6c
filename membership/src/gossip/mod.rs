//! A member of the group: joins, follows the others, leaves.

mod census;
mod watcher;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use chitchat::{ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, spawn_chitchat};
use forebay_engine::placement::PeerId;
use parking_lot::Mutex;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use crate::identity::{hex, peer_id};
use crate::local::{self, Network};
use crate::record::{Listed, Record, Usage};
use crate::seal::{DropCounts, Sealer, is_loopback, unix_ms};
use crate::secret::Secret;
use crate::seeds::{Seed, SeedStatus, Seeds};
use crate::socket::SealedTransport;
use crate::views::Views;
use watcher::Watcher;

/// Each member exchanges news with three others so often.
const GOSSIP_INTERVAL: Duration = Duration::from_millis(500);
/// A life that ended is remembered for so long, so that hearsay does not revive it.
const DEAD_REMEMBERED: Duration = Duration::from_secs(600);
/// At most so many are told of a farewell by the leaver itself.
const FAREWELLS_MAX: usize = 32;
/// Time for a farewell to be asked for and delivered, twice.
const FAREWELL_PAUSE: Duration = Duration::from_millis(200);

/// chitchat's keys: a member's record, its farewell, and how full it is.
const KEY_RECORD: &str = "member";
const KEY_LEFT: &str = "left";
const KEY_USAGE: &str = "usage";

/// How a member joins.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The group's name.
    pub group: String,
    /// Proves membership; without it only loopback is trusted.
    pub secret: Option<Secret>,
    /// What the others are told. Its addresses are those of data (TCP).
    pub record: Record,
    /// Where to look for members.
    pub seeds: Vec<Seed>,
    /// Port of seeds that name none.
    pub port_default: u16,
    /// `--group-ip`: chooses among the addresses of a Slurm node.
    pub networks: Vec<Network>,
}

/// A membership, until [`Group::leave`]. Dropping it stops the gossip without a farewell.
pub struct Group {
    id: PeerId,
    config: GroupConfig,
    own: OwnAddresses,
    handle: Arc<ChitchatHandle>,
    views: Views,
    census: Arc<Mutex<Vec<MemberStatus>>>,
    seeds: Arc<Seeds>,
    drops: Arc<DropCounts>,
    watcher: JoinHandle<()>,
}

/// A member, as this one sees it.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Who, and what it told.
    pub listed: Listed,
    /// Time since it was heard of last; zero for this member.
    pub silence: Duration,
    /// How full it is, as it told last.
    pub usage: Option<Usage>,
}

/// What a member knows of its group.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// This member.
    pub id: PeerId,
    /// The group's name.
    pub group: String,
    /// Whether there is a secret.
    pub has_secret: bool,
    /// The serving members, this one included, sorted by id.
    pub members: Vec<MemberStatus>,
    /// Where members were looked for.
    pub seeds: Vec<SeedStatus>,
    /// Datagrams dropped, by reason.
    pub dropped: Vec<(&'static str, u64)>,
}

impl Group {
    /// Joins through a bound socket, whose port the others will send to. Returns at once; [`Group::ready`] waits for
    /// the first view. Needs a Tokio runtime, which its tasks run on.
    ///
    /// # Errors
    /// When the record cannot be published: no address, or one that others would not be let in from.
    pub async fn join(
        config: GroupConfig,
        socket: std::net::UdpSocket,
        views: Views,
    ) -> Result<Self> {
        check(&config)?;
        socket
            .set_nonblocking(true)
            .context("cannot prepare the gossip socket")?;
        let socket = UdpSocket::from_std(socket).context("cannot prepare the gossip socket")?;
        let bound = socket
            .local_addr()
            .context("the gossip socket has no address")?;
        let first = config.record.addresses[0];
        let id = peer_id(&config.group, &config.record.node);
        let own = OwnAddresses::of(&config.record, bound);
        let drops = Arc::new(DropCounts::default());
        let sealer = Sealer::new(&config.group, config.secret.as_ref());
        let transport = SealedTransport::new(socket, sealer, drops.clone());
        let life = ChitchatId::new(
            hex(id.0),
            unix_ms(),
            SocketAddr::new(first.ip(), bound.port()),
        );
        let record = serde_json::to_string(&config.record).context("cannot encode the record")?;
        let keys = vec![(KEY_RECORD.to_owned(), record)];
        let gossip = gossip_config(&config.group, &life, bound);
        let handle = spawn_chitchat(gossip, keys, &transport)
            .await
            .context("cannot start gossip")?;
        let handle = Arc::new(handle);
        let seeds = Arc::new(Seeds::follow(
            config.seeds.clone(),
            config.port_default,
            config.networks.clone(),
        ));
        let census = Arc::new(Mutex::new(Vec::new()));
        let watcher = Watcher::new(
            config.group.clone(),
            handle.clone(),
            own.clone(),
            seeds.clone(),
            views.clone(),
            census.clone(),
        );
        tracing::info!(
            group = config.group,
            node = config.record.node,
            id = hex(id.0),
            "gossip on {bound}"
        );
        Ok(Self {
            id,
            config,
            own,
            handle,
            views,
            census,
            seeds,
            drops,
            watcher: tokio::spawn(watcher.run()),
        })
    }

    /// This member.
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// Where its views are published.
    pub fn views(&self) -> &Views {
        &self.views
    }

    /// Waits until there is a view: others were found, or looked for long enough (3 s).
    pub async fn ready(&self) {
        let mut newest = self.views.watch();
        // An error would mean that the sender is gone, and `self.views` holds it.
        let _ = newest.wait_for(Option::is_some).await;
    }

    /// Addresses of seeds that are not this member's own.
    pub fn other_seeds(&self) -> Vec<SocketAddr> {
        self.own.others(self.seeds.addresses())
    }

    /// What is known now.
    pub fn status(&self) -> GroupStatus {
        GroupStatus {
            id: self.id,
            group: self.config.group.clone(),
            has_secret: self.config.secret.is_some(),
            members: self.census.lock().clone(),
            seeds: self.seeds.status(),
            dropped: self.drops.read().into(),
        }
    }

    /// Tells the others another weight.
    ///
    /// # Errors
    /// When the record cannot be encoded.
    pub async fn set_weight(&self, weight: u32) -> Result<()> {
        let record = Record {
            weight,
            ..self.config.record.clone()
        };
        let record = serde_json::to_string(&record).context("cannot encode the record")?;
        let set =
            |chitchat: &mut chitchat::Chitchat| chitchat.self_node_state().set(KEY_RECORD, &record);
        self.handle.with_chitchat(set).await;
        Ok(())
    }

    /// Tells the others how full this member is.
    ///
    /// # Errors
    /// When the usage cannot be encoded.
    pub async fn set_usage(&self, usage: Usage) -> Result<()> {
        let usage = serde_json::to_string(&usage).context("cannot encode the usage")?;
        let set = |chitchat: &mut chitchat::Chitchat| {
            chitchat.self_node_state().set(KEY_USAGE, &usage);
        };
        self.handle.with_chitchat(set).await;
        Ok(())
    }

    /// Says farewell, so that the others need not wait for the silence, and stops. Takes half a second.
    pub async fn leave(&self) {
        self.watcher.abort();
        let others = self
            .handle
            .with_chitchat(|chitchat| {
                chitchat.self_node_state().set(KEY_LEFT, "yes");
                // A member that just joined takes nobody for alive yet, but has been told of them.
                let own = chitchat.self_chitchat_id();
                let live = chitchat.live_nodes();
                let all = live.chain(chitchat.node_states().keys());
                let mut others = Vec::new();
                for life in all.filter(|life| *life != own) {
                    if !others.contains(&life.gossip_advertise_addr) {
                        others.push(life.gossip_advertise_addr);
                    }
                }
                others.truncate(FAREWELLS_MAX);
                others
            })
            .await;
        for _ in 0..2 {
            for address in &others {
                let _ = self.handle.gossip(*address);
            }
            if !others.is_empty() {
                tokio::time::sleep(FAREWELL_PAUSE).await;
            }
        }
        let ended = self.handle.termination_watcher();
        if self.handle.initiate_shutdown().is_ok() {
            let _ = ended.await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.watcher.abort();
        self.handle.abort();
    }
}

fn check(config: &GroupConfig) -> Result<()> {
    let addresses = &config.record.addresses;
    if addresses.is_empty() || config.record.cores == 0 {
        bail!("a member needs at least one address and one core");
    }
    let far = addresses.iter().find(|address| !is_loopback(address.ip()));
    if let (None, Some(address)) = (&config.secret, far) {
        bail!(
            "a group without a secret cannot reach beyond this machine, and this member would publish {address}: \
             give --group-secret-file (the same secret to every member), or --group-ip 127.0.0.1"
        );
    }
    Ok(())
}

fn gossip_config(group: &str, life: &ChitchatId, bound: SocketAddr) -> ChitchatConfig {
    ChitchatConfig {
        chitchat_id: life.clone(),
        cluster_id: group.to_owned(),
        gossip_interval: GOSSIP_INTERVAL,
        listen_addr: bound,
        // Seeds change while we run; the watcher asks them.
        seed_nodes: Vec::new(),
        // It only decides whom chitchat talks to more often; who is in the view is the census's matter.
        failure_detector_config: FailureDetectorConfig {
            initial_interval: Duration::from_secs(1),
            sampling_window_size: 100,
            dead_node_grace_period: DEAD_REMEMBERED,
            ..FailureDetectorConfig::default()
        },
        marked_for_deletion_grace_period: DEAD_REMEMBERED,
        catchup_callback: None,
        extra_liveness_predicate: None,
    }
}

/// Addresses at which this member is its own seed.
#[derive(Clone, Debug)]
struct OwnAddresses {
    known: BTreeSet<SocketAddr>,
    /// Whoever listens everywhere is at each loopback address, such as the 127.0.1.1 that Debian gives a machine's name.
    loopback_port: Option<u16>,
}

impl OwnAddresses {
    fn of(record: &Record, bound: SocketAddr) -> Self {
        let mut ips: BTreeSet<IpAddr> = record.addresses.iter().map(SocketAddr::ip).collect();
        let everywhere = bound.ip().is_unspecified();
        match everywhere {
            true => ips.extend(
                local::addresses()
                    .unwrap_or_default()
                    .into_iter()
                    .map(|local| local.address),
            ),
            false => {
                ips.insert(bound.ip());
            }
        }
        let port = bound.port();
        Self {
            known: ips
                .into_iter()
                .map(|ip| SocketAddr::new(ip, port))
                .collect(),
            loopback_port: everywhere.then_some(port),
        }
    }

    fn has(&self, address: &SocketAddr) -> bool {
        let is_loopback = self.loopback_port == Some(address.port()) && is_loopback(address.ip());
        is_loopback || self.known.contains(address)
    }

    /// Those that are not this member's.
    fn others(&self, mut addresses: BTreeSet<SocketAddr>) -> Vec<SocketAddr> {
        addresses.retain(|address| !self.has(address));
        addresses.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::listed;

    #[test]
    fn who_listens_everywhere_is_at_every_loopback_address() {
        let mut record = listed("g", "a", 7440).record;
        record.addresses = vec!["203.0.113.1:7440".parse().unwrap()];
        let seeds = [
            "127.0.1.1:7440",
            "127.0.1.1:7441",
            "203.0.113.1:7440",
            "203.0.113.2:7440",
        ];
        let seeds: BTreeSet<SocketAddr> = seeds.map(|seed| seed.parse().unwrap()).into();
        let others = |bound: &str| -> Vec<String> {
            let own = OwnAddresses::of(&record, bound.parse().unwrap());
            let others = own.others(seeds.clone());
            others.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            others("0.0.0.0:7440"),
            ["127.0.1.1:7441", "203.0.113.2:7440"]
        );
        // Another member of this machine may be there.
        let elsewhere = ["127.0.1.1:7440", "127.0.1.1:7441", "203.0.113.2:7440"];
        assert_eq!(others("203.0.113.1:7440"), elsewhere);
    }
}
