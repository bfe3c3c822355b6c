//! What the flags of the cache group ask for.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Result, anyhow, bail};
use forebay_engine::placement::PeerId;
use forebay_membership::PORT_DEFAULT;
use forebay_membership::identity::peer_id;
use forebay_membership::local::{Network, published};
use forebay_membership::secret::Secret;
use forebay_membership::seeds::Seed;
use forebay_transport_rdma::inventory::Wanted;

use crate::args::{GroupArgs, NodeArgs, WhichTransport};

/// May hold the group's secret instead of a file.
const SECRET_VARIABLE: &str = "FOREBAY_GROUP_SECRET";

/// How this node takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Owns a share, and serves others.
    Member {
        /// Where it listens, by UDP and TCP.
        listen: SocketAddr,
        /// The addresses that it tells others, one for each rail; the port is what it gets.
        addresses: Vec<IpAddr>,
    },
    /// Only takes.
    Client,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    /// The group's name.
    pub group: String,
    /// This node's name.
    pub node: String,
    /// This node for others.
    pub me: PeerId,
    /// How it takes part.
    pub role: Role,
    /// The group's secret.
    pub secret: Option<Secret>,
    /// `--group-weight`.
    pub weight: Option<u32>,
    /// Where members are looked for.
    pub seeds: Vec<Seed>,
    /// `--group-ip`.
    pub networks: Vec<Network>,
    /// Disks keep what others own, too.
    pub keep_copies: bool,
    /// `--transport`.
    pub transport: WhichTransport,
    /// `--rdma-device` and its like.
    pub rdma: Wanted,
}

impl GroupPlan {
    /// The plan; none when neither `--peers` nor `--listen` asks for a group, unless there `must` be one.
    ///
    /// # Errors
    /// Flags that do not go together, a secret that cannot be had, an address that is not this machine's.
    pub fn new(args: &GroupArgs, node: &NodeArgs, must: bool) -> Result<Option<Self>> {
        let variable = std::env::var(SECRET_VARIABLE).ok();
        Self::with_variable(args, node, must, variable.as_deref())
    }

    fn with_variable(
        args: &GroupArgs,
        node: &NodeArgs,
        must: bool,
        variable: Option<&str>,
    ) -> Result<Option<Self>> {
        if args.no_sharing && args.listen.is_some() {
            bail!(
                "--no-sharing and --listen do not go together: a node that serves nobody does not listen"
            );
        }
        if args.no_sharing && args.group_weight.is_some_and(|weight| weight > 0) {
            bail!(
                "--no-sharing and --group-weight do not go together: a node that only takes has no share"
            );
        }
        if args.no_sharing && args.peers.is_empty() {
            bail!("--no-sharing needs --peers: members to take from");
        }
        for (flag, why) in ignored(args, must) {
            tracing::warn!("{flag} has no effect: {why}");
        }
        if is_alone(args, must) {
            return Ok(None);
        }
        for seed in &args.peers {
            seed.check()
                .map_err(|error| anyhow!("--peers {seed}: {error}"))?;
        }
        let secret = secret(args, variable)?;
        let owner = node.owner();
        let (group, node) = (
            owner.group.as_str().to_owned(),
            owner.node.as_str().to_owned(),
        );
        let (role, me) = match args.no_sharing {
            true => (Role::Client, client_id(&group, &node)),
            false => (member(args, secret.is_some())?, peer_id(&group, &node)),
        };
        Ok(Some(Self {
            me,
            role,
            secret,
            weight: args.group_weight,
            seeds: args.peers.clone(),
            networks: args.group_ip.clone(),
            keep_copies: args.keep_copies || args.no_sharing,
            transport: args.transport,
            rdma: args.rdma.wanted(),
            group,
            node,
        }))
    }

    /// Whether this node is a member, not only a client.
    pub fn is_member(&self) -> bool {
        matches!(self.role, Role::Member { .. })
    }
}

/// Whether nothing asks for a group.
fn is_alone(args: &GroupArgs, must: bool) -> bool {
    args.peers.is_empty() && args.listen.is_none() && !must
}

/// Flags that change nothing beside the others, and why.
fn ignored(args: &GroupArgs, must: bool) -> Vec<(&'static str, &'static str)> {
    let rdma = &args.rdma;
    let of_rdma = [
        (!rdma.rdma_device.is_empty(), "--rdma-device"),
        (rdma.rdma_port.is_some(), "--rdma-port"),
        (rdma.rdma_gid_index.is_some(), "--rdma-gid-index"),
        (rdma.rdma_traffic_class.is_some(), "--rdma-traffic-class"),
        (rdma.rdma_service_level.is_some(), "--rdma-service-level"),
    ];
    let of_groups = [
        (!args.group_ip.is_empty(), "--group-ip"),
        (args.group_weight.is_some(), "--group-weight"),
        (args.group_secret_file.is_some(), "--group-secret-file"),
        (args.transport != WhichTransport::default(), "--transport"),
    ];
    let (flags, why): (Vec<_>, _) = match (is_alone(args, must), args.transport) {
        (true, _) => (
            of_groups.into_iter().chain(of_rdma).collect(),
            "without --peers or --listen this node is on its own",
        ),
        (false, WhichTransport::Tcp) => (of_rdma.into(), "--transport tcp uses no RDMA device"),
        (false, _) => (Vec::new(), ""),
    };
    let given = flags.into_iter().filter(|(given, _)| *given);
    given.map(|(_, flag)| (flag, why)).collect()
}

/// A client is nobody's namesake: several may run beside a member of this machine. Node names have no spaces.
fn client_id(group: &str, node: &str) -> PeerId {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = now.unwrap_or_default().as_nanos();
    peer_id(
        group,
        &format!("{node} client {} {since}", std::process::id()),
    )
}

fn secret(args: &GroupArgs, variable: Option<&str>) -> Result<Option<Secret>> {
    let variable = variable.filter(|text| !text.is_empty());
    match (&args.group_secret_file, variable) {
        (Some(_), Some(_)) => {
            bail!("both --group-secret-file and {SECRET_VARIABLE} are given: leave one out")
        }
        (Some(path), None) => Ok(Some(Secret::read(path)?)),
        (None, Some(text)) => Ok(Some(Secret::new(text.as_bytes(), SECRET_VARIABLE)?)),
        (None, None) => Ok(None),
    }
}

fn member(args: &GroupArgs, has_secret: bool) -> Result<Role> {
    let everywhere = match has_secret {
        true => Ipv4Addr::UNSPECIFIED,
        false => Ipv4Addr::LOCALHOST,
    };
    let listen = args.listen.unwrap_or((everywhere, PORT_DEFAULT).into());
    let addresses = match args.group_ip.is_empty() && !listen.ip().is_unspecified() {
        true => vec![listen.ip()],
        false => published(&args.group_ip, has_secret)?,
    };
    if !has_secret && let Some(address) = addresses.iter().find(|address| !address.is_loopback()) {
        bail!(
            "without a secret only this machine is trusted, and others would be told {address}: give \
             --group-secret-file (the same secret to every member), or --group-ip 127.0.0.1"
        );
    }
    let reached = |address: &&IpAddr| match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.is_ipv4(),
        IpAddr::V6(ip) if ip.is_unspecified() => true,
        ip => **address == ip,
    };
    if let Some(address) = addresses.iter().find(|address| !reached(address)) {
        let all = if address.is_ipv4() { "0.0.0.0" } else { "[::]" };
        bail!(
            "others would be told {address}, where --listen {listen} does not listen: give --listen {all}:{}",
            listen.port()
        );
    }
    Ok(Role::Member { listen, addresses })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn plan(args: GroupArgs, must: bool, variable: Option<&str>) -> Result<Option<GroupPlan>> {
        let node = NodeArgs {
            node_id: Some("n1".parse().unwrap()),
            cache_group: "train".parse().unwrap(),
        };
        GroupPlan::with_variable(&args, &node, must, variable)
    }

    fn peers() -> Vec<Seed> {
        vec!["127.0.0.1:7000".parse().unwrap()]
    }

    fn listen(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn without_peers_and_listen_a_node_is_on_its_own() {
        assert!(
            plan(GroupArgs::default(), false, Some("s"))
                .unwrap()
                .is_none()
        );
        let alone = plan(GroupArgs::default(), true, None).unwrap().unwrap();
        let Role::Member { listen, addresses } = alone.role else {
            panic!("a member")
        };
        assert_eq!(
            (listen, addresses),
            (
                "127.0.0.1:7440".parse().unwrap(),
                vec![Ipv4Addr::LOCALHOST.into()]
            )
        );
        assert_eq!(alone.me, peer_id("train", "n1"));
    }

    #[test]
    fn flags_that_change_nothing_are_named() {
        use crate::args::RdmaArgs;
        let args = |peers, transport| GroupArgs {
            peers,
            transport,
            rdma: RdmaArgs {
                rdma_device: vec!["mlx5_0".into()],
                rdma_gid_index: Some(3),
                ..RdmaArgs::default()
            },
            ..GroupArgs::default()
        };
        let named = |args: &GroupArgs, must| -> Vec<&str> {
            ignored(args, must)
                .into_iter()
                .map(|(flag, _)| flag)
                .collect()
        };
        let alone = args(Vec::new(), WhichTransport::Auto);
        assert_eq!(named(&alone, false), ["--rdma-device", "--rdma-gid-index"]);
        assert!(named(&alone, true).is_empty());
        let tcp = args(peers(), WhichTransport::Tcp);
        assert_eq!(named(&tcp, false), ["--rdma-device", "--rdma-gid-index"]);
        let told = ignored(&tcp, false)[0].1;
        assert!(told.contains("--transport tcp"), "{told}");
        assert!(named(&args(peers(), WhichTransport::Rdma), false).is_empty());
    }

    #[test]
    fn who_listens_somewhere_is_told_to_be_there() {
        let args = GroupArgs {
            listen: listen("127.0.0.7:7001"),
            ..GroupArgs::default()
        };
        let Role::Member { addresses, .. } = plan(args, false, None).unwrap().unwrap().role else {
            panic!("a member")
        };
        assert_eq!(addresses, [IpAddr::from([127, 0, 0, 7])]);
        let args = GroupArgs {
            listen: listen("127.0.0.7:7001"),
            group_ip: vec!["127.0.0.1".parse().unwrap()],
            ..GroupArgs::default()
        };
        let error = plan(args, false, Some("s")).unwrap_err().to_string();
        assert!(error.contains("--listen 0.0.0.0:7001"), "{error}");
    }

    #[test]
    fn without_a_secret_nothing_but_loopback() {
        let args = || GroupArgs {
            listen: listen("192.0.2.1:7001"),
            ..GroupArgs::default()
        };
        let error = plan(args(), false, None).unwrap_err().to_string();
        assert!(error.contains("--group-secret-file"), "{error}");
        assert!(
            plan(args(), false, Some("s"))
                .unwrap()
                .unwrap()
                .secret
                .is_some()
        );
    }

    #[test]
    fn a_client_takes_only_and_is_nobodys_namesake() {
        let args = || GroupArgs {
            no_sharing: true,
            peers: peers(),
            ..GroupArgs::default()
        };
        let client = plan(args(), false, None).unwrap().unwrap();
        assert_eq!(client.role, Role::Client);
        assert!(client.keep_copies && client.me != peer_id("train", "n1"));
        for args in [
            GroupArgs {
                peers: Vec::new(),
                ..args()
            },
            GroupArgs {
                listen: listen("127.0.0.1:1"),
                ..args()
            },
            GroupArgs {
                group_weight: Some(1),
                ..args()
            },
        ] {
            let error = plan(args, false, None).unwrap_err().to_string();
            assert!(error.contains("--no-sharing"), "{error}");
        }
    }

    #[test]
    fn a_secret_comes_from_one_place_that_others_cannot_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "s\n").unwrap();
        let args = || GroupArgs {
            peers: peers(),
            group_secret_file: Some(path.clone()),
            ..GroupArgs::default()
        };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = plan(args(), false, None).unwrap_err().to_string();
        assert!(error.contains("chmod"), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let secret = plan(args(), false, Some("")).unwrap().unwrap().secret;
        assert_eq!(secret.unwrap().bytes(), b"s");
        assert!(plan(args(), false, Some("t")).is_err());
    }
}
