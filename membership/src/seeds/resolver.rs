//! Seeds' addresses, kept up to date by a task.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Host, Seed, nodelist};
use crate::local::Network;

/// Names are asked again so often once all resolve.
const AGAIN: Duration = Duration::from_secs(30);
/// And so often while one does not.
const AGAIN_SOON: Duration = Duration::from_secs(2);
/// A file is read so often.
const FILE_AGAIN: Duration = Duration::from_secs(1);

/// How a seed fares, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedStatus {
    /// As it was given.
    pub seed: String,
    /// Its addresses as of the last time.
    pub addresses: Vec<SocketAddr>,
    /// What was wrong with it the last time.
    pub error: Option<String>,
}

/// The seeds' addresses as they are known now. The task ends when this is dropped.
#[derive(Debug)]
pub struct Seeds {
    addresses: watch::Receiver<BTreeSet<SocketAddr>>,
    status: Arc<Mutex<Vec<SeedStatus>>>,
    task: JoinHandle<()>,
}

impl Drop for Seeds {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seeds {
    /// Resolves `seeds` from now on. `networks` choose among the addresses of a Slurm node.
    pub fn follow(seeds: Vec<Seed>, port_default: u16, networks: Vec<Network>) -> Self {
        let (sender, addresses) = watch::channel(BTreeSet::new());
        let unknown = |seed: &Seed| SeedStatus {
            seed: seed.to_string(),
            addresses: Vec::new(),
            error: Some("not looked at yet".to_owned()),
        };
        let status = Arc::new(Mutex::new(seeds.iter().map(unknown).collect::<Vec<_>>()));
        let resolver = Resolver {
            seeds,
            port_default,
            networks,
            status: status.clone(),
            sender,
        };
        Self {
            addresses,
            status,
            task: tokio::spawn(resolver.run()),
        }
    }

    /// All addresses known now.
    pub fn addresses(&self) -> BTreeSet<SocketAddr> {
        self.addresses.borrow().clone()
    }

    /// Whether all seeds have been looked at and found.
    pub fn all_known(&self) -> bool {
        self.status.lock().iter().all(|seed| seed.error.is_none())
    }

    /// How each fares.
    pub fn status(&self) -> Vec<SeedStatus> {
        self.status.lock().clone()
    }
}

struct Resolver {
    seeds: Vec<Seed>,
    port_default: u16,
    networks: Vec<Network>,
    status: Arc<Mutex<Vec<SeedStatus>>>,
    sender: watch::Sender<BTreeSet<SocketAddr>>,
}

impl Resolver {
    async fn run(self) {
        let mut due = vec![Instant::now(); self.seeds.len()];
        loop {
            for (place, seed) in self.seeds.iter().enumerate() {
                if due[place] <= Instant::now() {
                    let (addresses, error) = self.look(seed).await;
                    due[place] = Instant::now()
                        + match (seed, &error) {
                            (Seed::File(_), _) => FILE_AGAIN,
                            (_, Some(_)) => AGAIN_SOON,
                            (_, None) => AGAIN,
                        };
                    self.tell(place, addresses, error);
                }
            }
            let Some(next) = due.iter().min() else {
                return;
            };
            tokio::time::sleep_until(*next).await;
        }
    }

    async fn look(&self, seed: &Seed) -> (Vec<SocketAddr>, Option<String>) {
        match seed {
            Seed::Host(host) | Seed::Dns(host) => {
                self.resolve(std::slice::from_ref(host), false).await
            }
            Seed::File(path) => match hosts_in_file(path) {
                Ok((hosts, bad_line)) => {
                    let (addresses, error) = self.resolve(&hosts, false).await;
                    (addresses, bad_line.or(error))
                }
                Err(error) => (Vec::new(), Some(error)),
            },
            Seed::Slurm => match slurm_hosts() {
                Ok(hosts) => self.resolve(&hosts, true).await,
                Err(error) => (Vec::new(), Some(error)),
            },
        }
    }

    /// The addresses of all hosts that have some; the first error of those that have none.
    async fn resolve(&self, hosts: &[Host], choose: bool) -> (Vec<SocketAddr>, Option<String>) {
        let mut all = Vec::new();
        let mut first_error = None;
        for host in hosts {
            match host.resolve(self.port_default).await {
                Ok(found) if choose => all.extend(on_networks(&self.networks, found)),
                Ok(found) => all.extend(found),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        (all, first_error)
    }

    /// Keeps what was known when nothing is found now: a name server's failure does not make members unknown.
    fn tell(&self, place: usize, addresses: Vec<SocketAddr>, error: Option<String>) {
        let mut status = self.status.lock();
        let one = &mut status[place];
        if error.is_some() && error != one.error {
            tracing::warn!(
                "--peers {}: {}",
                one.seed,
                error.as_deref().unwrap_or_default()
            );
        }
        if error.is_none() || !addresses.is_empty() {
            one.addresses = addresses;
        }
        one.error = error;
        let all = status
            .iter()
            .flat_map(|seed| seed.addresses.iter().copied())
            .collect();
        self.sender.send_if_modified(|known| {
            let changed = *known != all;
            *known = all;
            changed
        });
    }
}

/// Those of a node's addresses that lie in the networks; all of them when none does.
fn on_networks(networks: &[Network], addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let inside = |address: &SocketAddr| {
        networks
            .iter()
            .any(|network| network.contains(address.ip()))
    };
    let chosen: Vec<SocketAddr> = addresses.iter().copied().filter(inside).collect();
    match chosen.is_empty() {
        true => addresses,
        false => chosen,
    }
}

/// The nodes of the job that this process is part of.
pub(super) fn slurm_hosts() -> Result<Vec<Host>, String> {
    let list = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|list| !list.is_empty()))
        .ok_or("SLURM_JOB_NODELIST is not set: start this inside the job (srun), or name peers otherwise")?;
    let names = nodelist::expand(&list).map_err(|error| format!("SLURM_JOB_NODELIST: {error}"))?;
    Ok(names.iter().map(|name| Host::named(name)).collect())
}

/// The hosts of a file, and what is wrong with the first line that names none.
fn hosts_in_file(path: &Path) -> Result<(Vec<Host>, Option<String>), String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let (mut hosts, mut bad_line) = (Vec::new(), None);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.parse() {
            _ if line.is_empty() => {}
            Ok(host) => hosts.push(host),
            Err(error) if bad_line.is_none() => {
                let path = path.display();
                bad_line = Some(format!("{path} line {number}, which is left out: {error}"));
            }
            Err(_) => {}
        }
    }
    Ok((hosts, bad_line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_file_has_comments_and_names_its_bad_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers");
        std::fs::write(&path, "# ours\n\n gpu1 # first\ngpu2:7000\n[fd00::1]:1\n").unwrap();
        let found = || {
            let (hosts, bad_line) = hosts_in_file(&path).unwrap();
            let hosts: Vec<String> = hosts.iter().map(Host::to_string).collect();
            (hosts, bad_line)
        };
        let ours = ["gpu1", "gpu2:7000", "[fd00::1]:1"].map(str::to_owned);
        assert_eq!(found(), (ours.to_vec(), None));
        std::fs::write(&path, "gpu1\nno host\ngpu3:0\ngpu2\n").unwrap();
        let (hosts, bad_line) = found();
        assert_eq!(hosts, ["gpu1", "gpu2"]);
        let bad_line = bad_line.unwrap();
        assert!(bad_line.contains("line 2"), "{bad_line}");
    }

    #[test]
    fn a_nodes_address_is_the_one_in_the_groups_network() {
        let networks = ["172.16.0.0/16".parse().unwrap()];
        let node = addresses(&["10.0.0.1:7440", "172.16.0.1:7440"]);
        assert_eq!(
            on_networks(&networks, node.clone()),
            addresses(&["172.16.0.1:7440"])
        );
        assert_eq!(on_networks(&[], node.clone()), node);
        assert_eq!(
            on_networks(&["192.168.0.0/16".parse().unwrap()], node.clone()),
            node
        );
    }

    #[tokio::test]
    async fn a_file_is_read_again_and_what_fails_leaves_what_was_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers");
        std::fs::write(&path, "127.0.0.1\n").unwrap();
        let list = vec![Seed::File(path.clone()), "127.0.0.9:9".parse().unwrap()];
        let seeds = Seeds::follow(list, 7440, Vec::new());
        let later = || tokio::time::sleep(FILE_AGAIN + Duration::from_millis(200));
        later().await;
        let known = |texts: &[&str]| addresses(texts).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(seeds.addresses(), known(&["127.0.0.1:7440", "127.0.0.9:9"]));
        assert!(seeds.all_known());
        std::fs::write(&path, "127.0.0.2:1\n").unwrap();
        later().await;
        assert_eq!(seeds.addresses(), known(&["127.0.0.2:1", "127.0.0.9:9"]));
        std::fs::remove_file(&path).unwrap();
        later().await;
        assert_eq!(seeds.addresses(), known(&["127.0.0.2:1", "127.0.0.9:9"]));
        assert!(!seeds.all_known());
        assert!(
            seeds.status()[0]
                .error
                .as_ref()
                .unwrap()
                .contains("cannot read")
        );
    }
}
