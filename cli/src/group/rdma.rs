//! This node's RDMA in its group: which rails it has, and how cores are introduced over TCP.

use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use forebay_membership::local::{addresses, published};
use forebay_transport_rdma::endpoint::{Endpoint as Rdma, EndpointConfig, NoOffer, Told};
use forebay_transport_rdma::introduce::{
    Ends, HEAD_BYTES, Offer, Refused, Session, answer, offer_bytes,
};
use forebay_transport_rdma::inventory::{GroupAddress, Inventory, NoRail, Rail, Wanted, rail};
use forebay_transport_rdma::{Verbs, VerbsError};
use forebay_transport_tcp::limits::CREDIT_BYTES_DEFAULT;
use forebay_transport_tcp::{
    DialError, Endpoint as Tcp, Introduction, Introductions, Key, Refusal,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::plan::{GroupPlan, Role};
use super::rails::with_interfaces;
use crate::args::WhichTransport;
use crate::doctor::machine::Files;
use crate::host::MonotonicClock;
use crate::host::peers::{RdmaWay, WeakWay};

/// An offer must come, or go, within this.
const OFFER_TIMEOUT: Duration = Duration::from_secs(2);

/// While an address has no rail, it is looked for one again after so long.
const LOOK_AGAIN: Duration = Duration::from_secs(20);

/// What `status` tells of this node's RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaReport {
    /// The device, port, GID and address of each rail.
    pub rails: Vec<String>,
    /// Addresses where peers reach it by RDMA now.
    pub listening: Vec<IpAddr>,
    /// Devices whose port reaches no peer now, and why.
    #[serde(default)]
    pub down: Vec<String>,
    /// Why addresses of this node have no rail; they are looked for again and again.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Devices of which the kernel takes another GID than it should, and what to do.
    #[serde(default)]
    pub wrong_gids: Vec<String>,
    /// Why it has none; null when it has.
    pub off: Option<String>,
}

/// This node's way to peers by RDMA, or why it has none.
pub type Found = Result<RdmaWay, String>;

/// Looks for rails, and lets peers ask for connections over them. Rails whose port is down, or that there are none of yet,
/// are taken when they are there.
///
/// # Errors
/// With `--transport rdma`: why this node has none that is up. With a flag that names a device or port which is not there: always.
pub fn open(plan: &GroupPlan, cores: u16, tcp: &Tcp, runtime: &Handle) -> Result<Found> {
    let must = plan.transport == WhichTransport::Rdma;
    let found = match (plan.transport, &plan.secret) {
        (WhichTransport::Tcp, _) => return Ok(Err("--transport tcp".into())),
        (_, None) => Err("the group has no secret: give --group-secret-file".to_owned()),
        (_, Some(secret)) => look(plan).and_then(|looked| {
            looked.enough(must, names_a_device(plan))?;
            let key = Key::new(secret.bytes());
            let way = start(plan, looked.all(), cores, tcp, &key, runtime)?;
            looked.tell(&way);
            way.set_missing(looked.missing());
            runtime.spawn(look_again(plan.clone(), way.weak()));
            Ok(way)
        }),
    };
    match found {
        Ok(way) => Ok(Ok(way)),
        Err(why) if must => {
            bail!(
                "--transport rdma: {why}; `forebay doctor` says more. Without that flag this node speaks TCP"
            )
        }
        Err(why) if names_a_device(plan) => {
            bail!(
                "{why}; `forebay doctor` says more. Without --rdma-* and with --transport tcp it is not looked for"
            )
        }
        Err(why) => {
            tracing::info!("no RDMA: {why}");
            Ok(Err(why))
        }
    }
}

/// Whoever names a device wants it.
fn names_a_device(plan: &GroupPlan) -> bool {
    let wanted = &plan.rdma;
    !wanted.devices.is_empty() || wanted.port.is_some() || wanted.gid_index.is_some()
}

/// What of RDMA a node's addresses have.
#[derive(Debug, Default)]
struct Looked {
    /// Whether all of its addresses are to have a rail; else whichever have one.
    is_exact: bool,
    /// Whether this machine has any device.
    has_devices: bool,
    /// Ports that are up.
    up: Vec<Rail>,
    /// Ports that are not, yet.
    down: Vec<Rail>,
    /// Why other addresses have none.
    none: Vec<NoRail>,
}

impl Looked {
    fn at(inventory: &Inventory, wanted: &Wanted, addresses: &[GroupAddress]) -> Self {
        let mut looked = Self {
            has_devices: !inventory.devices.is_empty(),
            ..Self::default()
        };
        for address in addresses {
            match rail(inventory, wanted, address) {
                Ok(rail) => looked.up.push(rail),
                Err(NoRail::Down(rail)) => looked.down.push(*rail),
                Err(no) => looked.none.push(no),
            }
        }
        looked
    }

    /// Whether a node may start with that: who asks for RDMA alone wants to hear of it now, not of a slow job later.
    fn enough(&self, must: bool, names_a_device: bool) -> Result<(), String> {
        let is_wrong =
            |no: &&NoRail| matches!(no, NoRail::NotThere { .. } | NoRail::OtherGid { .. });
        let why = self.none.iter().find(is_wrong).or(self.none.first());
        let why = why.map_or("this machine has no address but loopback".into(), |no| {
            no.to_string()
        });
        match (self.up.is_empty(), self.down.is_empty()) {
            // What a flag names wrong is wrong beside other rails, too.
            _ if self.none.iter().any(|no| is_wrong(&no)) => Err(why),
            (false, _) => Ok(()),
            (true, false) if must => {
                let down = self
                    .down
                    .iter()
                    .map(|rail| NoRail::Down(Box::new(rail.clone())));
                let down: Vec<String> = down.map(|no| no.to_string()).collect();
                Err(format!(
                    "at least one port must be up ({}); with --transport auto this node starts, and takes a port when it comes up",
                    down.join("; ")
                ))
            }
            (true, false) => Ok(()),
            // There may be one some day, by the same devices; without any device there is nothing to look at.
            (true, true) if self.has_devices && !must && !names_a_device => Ok(()),
            (true, true) => Err(why),
        }
    }

    /// Those that are up first: they are looked at first.
    fn all(&self) -> Vec<Rail> {
        [&self.up[..], &self.down].concat()
    }

    fn missing(&self) -> Vec<String> {
        let none = self.none.iter().filter(|_| self.is_exact);
        none.map(ToString::to_string).collect()
    }

    fn tell(&self, way: &RdmaWay) {
        for rail in &self.up {
            tracing::info!("RDMA by {rail}");
        }
        // That they are down is told, too, as a warning, when cores have opened them.
        for rail in &self.down {
            tracing::info!("RDMA by {rail}, once that port is up");
        }
        match (way.endpoint.rails().len(), self.none.first()) {
            (0, why) => {
                let why = why.map_or("this node has no address yet".into(), NoRail::to_string);
                let every_s = LOOK_AGAIN.as_secs();
                tracing::info!("no RDMA yet: {why}; it is looked for every {every_s} s");
            }
            (count, Some(no)) if self.is_exact => {
                tracing::warn!("RDMA by {count} of this node's addresses only: {no}");
            }
            _ => {}
        }
    }
}

/// One for each of the node's addresses that a port has.
fn look(plan: &GroupPlan) -> Result<Looked, String> {
    let text = |error: &dyn Display| error.to_string();
    let verbs = Verbs::load().map_err(|error| text(&error))?;
    let inventory = Inventory::take(&verbs).map_err(|error| text(&error))?;
    let ips = match &plan.role {
        // Also those that the machine did not have when it started.
        Role::Member { addresses, .. } => match plan.networks.is_empty() {
            true => addresses.clone(),
            false => published(&plan.networks, true).unwrap_or_else(|_| addresses.clone()),
        },
        Role::Client if !plan.networks.is_empty() => {
            published(&plan.networks, true).map_err(|error| text(&error))?
        }
        // Whichever of its addresses a port has.
        Role::Client => {
            let local = addresses().map_err(|error| text(&error))?;
            local.into_iter().map(|local| local.address).collect()
        }
    };
    let files = Files::of_this_machine();
    let ips = with_interfaces(&files, &ips).map_err(|error| text(&error))?;
    Ok(Looked {
        is_exact: is_exact(plan),
        ..Looked::at(&inventory, &plan.rdma, &ips)
    })
}

/// Whether all of a node's addresses are to have a rail: a client without `--group-ip` takes whichever have one.
fn is_exact(plan: &GroupPlan) -> bool {
    plan.is_member() || !plan.networks.is_empty()
}

/// Looks for rails that were not there at first, as long as the node has its way.
async fn look_again(plan: GroupPlan, way: WeakWay) {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        let Some(missing) = way.upgrade().map(|way| way.is_missing_some()) else {
            return;
        };
        if !missing && is_exact(&plan) {
            continue;
        }
        let plan = plan.clone();
        let Ok(looked) = tokio::task::spawn_blocking(move || look(&plan)).await else {
            return;
        };
        match (looked, way.upgrade()) {
            (_, None) => return,
            (Err(why), _) => tracing::debug!("no more RDMA: {why}"),
            (Ok(looked), Some(way)) => {
                for rail in way.endpoint.add_rails(&looked.all()) {
                    tracing::info!("RDMA by {rail} from now on");
                }
                way.set_missing(looked.missing());
            }
        }
    }
}

fn start(
    plan: &GroupPlan,
    rails: Vec<Rail>,
    cores: u16,
    tcp: &Tcp,
    key: &Key,
    runtime: &Handle,
) -> Result<RdmaWay, String> {
    let config = EndpointConfig {
        me: plan.me,
        rails,
        serves: plan.is_member(),
        cores,
        credit_bytes: CREDIT_BYTES_DEFAULT,
    };
    let endpoint = introduced(config, tcp, key, runtime).map_err(|error| error.to_string())?;
    Ok(RdmaWay::new(
        endpoint,
        plan.transport == WhichTransport::Rdma,
    ))
}

/// An endpoint whose cores are introduced to peers, and peers to them if it serves, by the node's TCP endpoint.
///
/// # Errors
/// What of RDMA this machine lacks.
pub fn introduced(
    config: EndpointConfig,
    tcp: &Tcp,
    key: &Key,
    runtime: &Handle,
) -> Result<Rdma, VerbsError> {
    let (by, at, own) = (tcp.clone(), runtime.clone(), key.clone());
    let invite = move |ends: Ends, told: Told| {
        let (tcp, key) = (by.clone(), own.clone());
        at.spawn(async move { told.tell(ask(&tcp, &key, ends).await) });
    };
    let serves = config.serves;
    let endpoint = Rdma::start(config, Box::new(invite), MonotonicClock::start())?;
    if serves && let Some(introductions) = tcp.introductions() {
        runtime.spawn(let_in(introductions, endpoint.clone(), key.clone()));
    }
    Ok(endpoint)
}

fn session(key: &Key, introduction: &Introduction) -> Session {
    Session::new(key, &introduction.hello, &introduction.welcome)
}

/// Asks a peer how its core is reached.
async fn ask(tcp: &Tcp, key: &Key, ends: Ends) -> Result<(Session, Offer), NoOffer> {
    let introduced = tcp.introduce(ends.asker.core, ends.acceptor).await;
    let mut introduction = introduced.map_err(|error| NoOffer {
        lacks: matches!(
            error,
            DialError::Refused {
                reason: Refusal::NoRdma,
                ..
            }
        ),
        ..NoOffer::from(error.to_string())
    })?;
    let session = session(key, &introduction);
    let stream = &mut introduction.stream;
    let offer = timeout(OFFER_TIMEOUT, async {
        let mut head = [0; HEAD_BYTES];
        stream.read_exact(&mut head).await?;
        let len = match offer_bytes(head) {
            Ok(len) => len,
            Err(refused) => return Ok(Err(refused)),
        };
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).await?;
        std::io::Result::Ok(Offer::decode(&bytes))
    });
    match offer.await {
        Ok(Ok(Ok(offer))) => Ok((session, offer)),
        Ok(Ok(Err(refused))) => Err(format!("it refuses: {refused}").into()),
        Ok(Err(error)) => Err(format!("it does not say how it is reached: {error}").into()),
        Err(_) => Err(format!(
            "it does not say within {} s how it is reached",
            OFFER_TIMEOUT.as_secs()
        )
        .into()),
    }
}

/// Tells proven peers how this node's cores are reached.
async fn let_in(mut introductions: Introductions, endpoint: Rdma, key: Key) {
    while let Some(mut introduction) = introductions.next().await {
        let session = session(&key, &introduction);
        let offer: Result<Offer, Refused> =
            endpoint.offer(session, introduction.peer, introduction.core);
        tokio::spawn(async move {
            let told = answer(&offer);
            let stream = &mut introduction.stream;
            // Whether it arrives is the other side's affair: it asks again.
            let _ = timeout(OFFER_TIMEOUT, async {
                stream.write_all(&told).await?;
                stream.shutdown().await
            })
            .await;
        });
    }
}

/// What `status` tells.
pub fn report(found: &Found) -> RdmaReport {
    match found {
        Ok(way) => RdmaReport {
            rails: way
                .endpoint
                .rails()
                .iter()
                .map(ToString::to_string)
                .collect(),
            listening: way
                .endpoint
                .listening()
                .into_iter()
                .map(|at| at.ip())
                .collect(),
            down: way.endpoint.down(),
            missing: way.missing(),
            wrong_gids: way.endpoint.wrong_gids(),
            off: way.failed(),
        },
        Err(why) => RdmaReport {
            off: Some(why.clone()),
            ..RdmaReport::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use forebay_transport_rdma::inventory::{DeviceSeen, PortSeen};
    use forebay_transport_rdma::{Gid, GidEntry, GidKind, LinkLayer, Mtu, PortInfo};

    use super::*;

    /// Devices with a port each: its address, and whether it is up.
    fn machine(ports: &[([u8; 4], bool)]) -> Inventory {
        let port = |(ip, active): &([u8; 4], bool)| PortSeen {
            info: PortInfo {
                port: 1,
                active: *active,
                active_mtu: Mtu::from_code(5),
                lid: 0,
                link_layer: LinkLayer::Ethernet,
                gids: 8,
            },
            gids: vec![GidEntry {
                index: 3,
                gid: Gid(Ipv4Addr::from(*ip).to_ipv6_mapped().octets()),
                kind: GidKind::RoceV2,
                interface_index: 2,
            }],
        };
        let devices = ports.iter().enumerate().map(|(n, one)| DeviceSeen {
            name: format!("mlx5_{n}"),
            ports: Ok(vec![port(one)]),
        });
        Inventory {
            devices: devices.collect(),
        }
    }

    const ONE: [u8; 4] = [10, 0, 0, 1];
    const TWO: [u8; 4] = [10, 0, 1, 1];

    fn looked(ports: &[([u8; 4], bool)], wanted: &Wanted) -> Looked {
        let address = |ip: [u8; 4]| GroupAddress {
            ip: ip.into(),
            infiniband: None,
        };
        Looked::at(&machine(ports), wanted, &[address(ONE), address(TWO)])
    }

    #[test]
    fn ports_that_are_down_are_rails_that_begin_down() {
        let any = Wanted::default();
        let both = looked(&[(ONE, false), (TWO, true)], &any);
        let rails: Vec<String> = both.all().iter().map(|rail| rail.device.clone()).collect();
        assert_eq!(rails, ["mlx5_1", "mlx5_0"], "those that are up first");
        for (must, named) in [(true, true), (false, false)] {
            assert_eq!(both.enough(must, named), Ok(()));
        }
        // None is up: who must have RDMA is told which is down, the others begin.
        let down = looked(&[(ONE, false), (TWO, false)], &any);
        assert_eq!(down.all().len(), 2);
        assert_eq!(
            [down.enough(false, true), down.enough(false, false)],
            [Ok(()), Ok(())]
        );
        let why = down.enough(true, false).unwrap_err();
        for part in [
            "at least one port must be up",
            "mlx5_0 port 1",
            "mlx5_1 port 1",
            "--transport auto",
        ] {
            assert!(why.contains(part), "{part} in {why}");
        }
    }

    #[test]
    fn who_names_nothing_begins_without_a_rail_where_there_are_devices() {
        let any = Wanted::default();
        let elsewhere = looked(&[([10, 9, 9, 9], true)], &any);
        assert_eq!(elsewhere.enough(false, false), Ok(()));
        for (must, named) in [(true, false), (false, true)] {
            let why = elsewhere.enough(must, named).unwrap_err();
            assert!(why.contains("no RDMA port has 10.0.0.1"), "{why}");
        }
        let nothing = looked(&[], &any).enough(false, false).unwrap_err();
        assert!(nothing.contains("no RDMA device"), "{nothing}");
    }

    #[test]
    fn what_a_flag_names_wrong_is_wrong_beside_other_rails_too() {
        let index = Wanted {
            gid_index: Some(7),
            ..Wanted::default()
        };
        let both = looked(&[(ONE, true), (TWO, true)], &index);
        let why = both.enough(false, true).unwrap_err();
        assert!(why.contains("--rdma-gid-index 7"), "{why}");
    }
}
