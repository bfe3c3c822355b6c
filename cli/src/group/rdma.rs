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
use forebay_transport_rdma::inventory::{Inventory, Rail, rail};
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
use crate::host::peers::RdmaWay;

/// An offer must come, or go, within this.
const OFFER_TIMEOUT: Duration = Duration::from_secs(2);

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
    /// Why it has none; null when it has.
    pub off: Option<String>,
}

/// This node's way to peers by RDMA, or why it has none.
pub type Found = Result<RdmaWay, String>;

/// Looks for rails, and lets peers ask for connections over them.
///
/// # Errors
/// With `--transport rdma`: why this node has none. With a flag that names a device or port which is not there: always.
pub fn open(plan: &GroupPlan, cores: u16, tcp: &Tcp, runtime: &Handle) -> Result<Found> {
    let must = plan.transport == WhichTransport::Rdma;
    let found = match (plan.transport, &plan.secret) {
        (WhichTransport::Tcp, _) => return Ok(Err("--transport tcp".into())),
        (_, None) => Err("the group has no secret: give --group-secret-file".to_owned()),
        (_, Some(secret)) => rails(plan).and_then(|rails| {
            let key = Key::new(secret.bytes());
            start(plan, rails, cores, tcp, &key, runtime)
        }),
    };
    match found {
        Ok(way) => {
            for rail in way.endpoint.rails() {
                tracing::info!("RDMA by {rail}");
            }
            Ok(Ok(way))
        }
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

/// One for each of the node's addresses that a port has.
fn rails(plan: &GroupPlan) -> Result<Vec<Rail>, String> {
    let text = |error: &dyn Display| error.to_string();
    let verbs = Verbs::load().map_err(|error| text(&error))?;
    let inventory = Inventory::take(&verbs).map_err(|error| text(&error))?;
    let ips = match &plan.role {
        Role::Member { addresses, .. } => addresses.clone(),
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
    let (mut rails, mut why) = (Vec::new(), None);
    for address in &ips {
        match rail(&inventory, &plan.rdma, address) {
            Ok(rail) => rails.push(rail),
            Err(no) => why = why.or(Some(no)),
        }
    }
    match (rails.is_empty(), why) {
        (false, why) => {
            if let Some(no) = why {
                tracing::warn!(
                    "RDMA by {} of this node's addresses only: {no}",
                    rails.len()
                );
            }
            Ok(rails)
        }
        (true, Some(no)) => Err(no.to_string()),
        (true, None) => Err("this machine has no address but loopback".into()),
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
        why: error.to_string(),
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
            off: way.failed(),
        },
        Err(why) => RdmaReport {
            off: Some(why.clone()),
            ..RdmaReport::default()
        },
    }
}
