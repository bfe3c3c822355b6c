//! Flags of the cache group, and the commands of members without a mount.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use forebay_membership::local::Network;
use forebay_membership::seeds::Seed;
use forebay_transport_rdma::inventory::{Marking, Wanted};

use super::ServingArgs;
use crate::source::Source;
use crate::units::{Bytes, whole, yes_or_no};

/// Whether this node is part of a group, and how: with `--peers` or `--listen` it is.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cache group")]
pub struct GroupArgs {
    /// Where members are looked for, separated by commas; any one that is alive is enough. HOST[:PORT];
    /// dns:NAME[:PORT], all addresses of a name; slurm, the nodes of this job; file:PATH, a host a line.
    #[arg(
        long,
        env = "FOREBAY_PEERS",
        value_name = "LIST",
        value_delimiter = ','
    )]
    pub peers: Vec<Seed>,
    /// Where members reach this one: UDP for gossip, TCP for the rest. Without it 0.0.0.0:7440, or
    /// 127.0.0.1:7440 when there is no secret.
    #[arg(long, env = "FOREBAY_LISTEN", value_name = "ADDR:PORT", value_parser = parse_listen)]
    pub listen: Option<SocketAddr>,
    /// Which of this machine's addresses, and so which network, members use; several are several rails.
    #[arg(
        long,
        env = "FOREBAY_GROUP_IP",
        value_name = "IP|CIDR",
        value_delimiter = ','
    )]
    pub group_ip: Vec<Network>,
    /// Share of the group's data that is this member's, relative to the others' weights; 0: none, and it
    /// hands over what it has. Without it the cache's size in GiB, at least 1.
    #[arg(long, env = "FOREBAY_GROUP_WEIGHT", value_name = "N", value_parser = whole::<u32>(0..=u32::MAX as u64))]
    pub group_weight: Option<u32>,
    /// File with the group's secret, the same for all its members, which other users may not read.
    /// FOREBAY_GROUP_SECRET may hold it instead. Without a secret only this machine is trusted.
    #[arg(long, env = "FOREBAY_GROUP_SECRET_FILE", value_name = "FILE")]
    pub group_secret_file: Option<PathBuf>,
    /// Read through the group without being a member: owns nothing, serves nobody.
    #[arg(long, env = "FOREBAY_NO_SHARING", value_parser = yes_or_no)]
    pub no_sharing: bool,
    /// Keep on this node's disks also what other members own and this one read. A node with --no-sharing
    /// always does.
    #[arg(long, env = "FOREBAY_KEEP_COPIES", value_parser = yes_or_no)]
    pub keep_copies: bool,
    /// How blocks travel between members. auto: over RDMA between nodes that both have it, else over TCP. rdma: the same, but
    /// this node does not start without RDMA, and warns of each link that takes TCP. tcp: over TCP alone.
    #[arg(
        long,
        env = "FOREBAY_TRANSPORT",
        value_name = "WHICH",
        value_enum,
        default_value_t
    )]
    pub transport: WhichTransport,
    /// Which devices.
    #[command(flatten)]
    pub rdma: RdmaArgs,
}

/// `--transport`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum WhichTransport {
    /// RDMA where both ends have it, else TCP.
    #[default]
    Auto,
    /// The same, but this node must have RDMA.
    Rdma,
    /// TCP alone.
    Tcp,
}

/// Which RDMA devices are used, and how they are addressed.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "RDMA")]
pub struct RdmaArgs {
    /// Use only these devices, such as `mlx5_0,mlx5_1`. Without it those whose ports have the addresses of --group-ip.
    #[arg(
        long,
        env = "FOREBAY_RDMA_DEVICE",
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub rdma_device: Vec<String>,
    /// Use only this port of a device; the first is 1.
    #[arg(long, env = "FOREBAY_RDMA_PORT", value_name = "N", value_parser = whole::<u8>(1..=u8::MAX as u64))]
    pub rdma_port: Option<u8>,
    /// Use this entry of the port's table of GIDs. Without it the RoCE v2 one of the address.
    #[arg(long, env = "FOREBAY_RDMA_GID_INDEX", value_name = "N", value_parser = whole::<u8>(0..=u8::MAX as u64))]
    pub rdma_gid_index: Option<u8>,
    /// The traffic class of this node's packets (RoCE v2: four times the DSCP), where the network's lossless class is not
    /// the default. 106 is DSCP 26 with ECN, as many networks have it.
    #[arg(long, env = "FOREBAY_RDMA_TRAFFIC_CLASS", value_name = "N", value_parser = whole::<u8>(0..=u8::MAX as u64))]
    pub rdma_traffic_class: Option<u8>,
    /// The service level of this node's packets. Without it what the subnet manager says.
    #[arg(long, env = "FOREBAY_RDMA_SERVICE_LEVEL", value_name = "N", value_parser = whole::<u8>(0..=15))]
    pub rdma_service_level: Option<u8>,
}

impl RdmaArgs {
    /// The same for the choice of rails.
    pub fn wanted(&self) -> Wanted {
        Wanted {
            devices: self.rdma_device.clone(),
            port: self.rdma_port,
            gid_index: self.rdma_gid_index,
            marking: Marking {
                traffic_class: self.rdma_traffic_class,
                service_level: self.rdma_service_level,
            },
        }
    }
}

/// `forebay doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// The --memory that the mount or member will have; a bare number is MiB. Without it the default of this machine.
    #[arg(long, env = "FOREBAY_MEMORY", value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// The --group-ip that it will have: which RDMA ports that comes to.
    #[arg(
        long,
        env = "FOREBAY_GROUP_IP",
        value_name = "IP|CIDR",
        value_delimiter = ','
    )]
    pub group_ip: Vec<Network>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Which devices.
    #[command(flatten)]
    pub rdma: RdmaArgs,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.trim().parse().map_err(|_| {
        format!("`{text}` is no address with a port: write ADDR:PORT, such as `0.0.0.0:7440` or `[::]:7440`")
    })
}

impl GroupArgs {
    /// The same flags with absolute paths.
    ///
    /// # Errors
    /// When the present directory is gone.
    pub fn absolute(mut self) -> Result<Self> {
        let absolute =
            |path: &Path| std::path::absolute(path).context("cannot make a path absolute");
        self.group_secret_file = self
            .group_secret_file
            .as_deref()
            .map(absolute)
            .transpose()?;
        for seed in &mut self.peers {
            if let Seed::File(path) = seed {
                *path = absolute(path)?;
            }
        }
        Ok(self)
    }
}

/// `forebay serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// s3://BUCKET or s3://BUCKET/PREFIX: what members will ask for; looked at once, at the start, to find wrong
    /// credentials early. May be left out.
    #[arg(value_name = "SOURCE")]
    pub sources: Vec<Source>,
    /// What every node is told.
    #[command(flatten)]
    pub serving: ServingArgs,
    /// Go to the background once it serves; without it, log to standard error until Ctrl-C.
    #[arg(short, long, env = "FOREBAY_BACKGROUND", value_parser = yes_or_no)]
    pub background: bool,
    /// Log in the background. Without it: /var/log/forebay/ for root, else $XDG_STATE_HOME/forebay/
    /// or ~/.local/state/forebay/, in a file named after group and node.
    #[arg(long, env = "FOREBAY_LOG_FILE", value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Set by `serve` for the daemon that it starts.
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// `forebay stop`.
#[derive(Clone, Debug, Args)]
pub struct StopArgs {
    /// GROUP or GROUP/NODE; may be left out when there is just one.
    #[arg(value_name = "GROUP[/NODE]", value_parser = NonEmptyStringValueParser::new())]
    pub name: Option<String>,
}

/// `forebay drain`.
#[derive(Clone, Debug, Args)]
pub struct DrainArgs {
    /// The member: a mount point, GROUP or GROUP/NODE of one that `serve` runs, or a control socket; may be left out
    /// when there is just one.
    #[arg(value_name = "MOUNT|GROUP[/NODE]|SOCKET", value_parser = NonEmptyStringValueParser::new())]
    pub name: Option<String>,
    /// Begin and return; the member goes on.
    #[arg(long)]
    pub background: bool,
    /// Tell how far it is.
    #[arg(long, conflicts_with = "background")]
    pub status: bool,
    /// Stop: the member gets its weight back. What was handed over stays with the others, too.
    #[arg(long, conflicts_with_all = ["background", "status"])]
    pub stop: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};

    fn serve(args: &[&str]) -> Result<Box<ServeArgs>, String> {
        let line = ["forebay", "serve"].iter().chain(args);
        match Cli::parsed(line)
            .map_err(|error| error.to_string())?
            .command
        {
            Command::Serve(args) => Ok(args),
            _ => Err("another command".into()),
        }
    }

    #[test]
    fn lists_may_be_split_and_repeated() {
        let args = serve(&[
            "--peers",
            "a,dns:b:1",
            "--peers",
            "slurm",
            "--group-ip",
            "10.0.0.0/8,172.16.0.1",
        ])
        .unwrap();
        let peers: Vec<String> = args
            .serving
            .group
            .peers
            .iter()
            .map(Seed::to_string)
            .collect();
        assert_eq!(peers, ["a", "dns:b:1", "slurm"]);
        assert_eq!(args.serving.group.group_ip.len(), 2);
        assert!(serve(&["s3://a", "s3://b/p"]).unwrap().sources.len() == 2);
        for (flag, value) in [
            ("--peers", "a b"),
            ("--group-ip", "10.0.0.0/99"),
            ("--listen", "7440"),
            ("--group-weight", "-1"),
        ] {
            let error = serve(&[&format!("{flag}={value}")]).unwrap_err();
            assert!(error.contains(flag), "{error}");
            assert_eq!(serve(&[flag, value]).unwrap_err(), error);
        }
    }

    #[test]
    fn paths_outlive_a_change_of_directory() {
        let args = serve(&["--peers", "file:peers", "--group-secret-file", "secret"]).unwrap();
        let group = args.serving.group.clone().absolute().unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(group.peers, [Seed::File(here.join("peers"))]);
        assert_eq!(group.group_secret_file, Some(here.join("secret")));
    }
}
