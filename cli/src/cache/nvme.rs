//! NVMe namespaces without the kernel, as places of a cache: SPDK is started once for all of them, and one process at a time
//! has each.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_nvme_spdk::Address;

use super::lock::{Held, PATIENCE};
use super::world_lock::{self, WorldLock};
use crate::host::Medium;

/// What is said where SPDK is not part of the program.
pub const NO_SPDK: &str = "this build of forebay has no SPDK: build it with `cargo build --release --features forebay-cli/spdk` where SPDK is \
                           installed (docs/operations.md, \"NVMe devices without the kernel\"), or give the kernel's device, such as /dev/nvme0n1 or /dev/ng0n1";

/// Whether SPDK is part of the program.
pub const HAS_SPDK: bool = cfg!(feature = "spdk");

/// Starts SPDK for all of these; nothing to do for none. A process starts it once, with every PCI device that it will use.
///
/// # Errors
/// When it does not start, or runs already without one of them.
pub fn start<'a>(addresses: impl Iterator<Item = &'a Address>) -> Result<()> {
    let addresses: Vec<&Address> = addresses.collect();
    match addresses.is_empty() {
        true => Ok(()),
        false => start_for(&addresses),
    }
}

#[cfg(feature = "spdk")]
fn start_for(addresses: &[&Address]) -> Result<()> {
    use forebay_nvme_spdk::{Environment, EnvironmentOptions};
    let pci = addresses.iter().filter_map(|address| address.pci());
    Environment::start(&EnvironmentOptions { pci: pci.collect() })?;
    Ok(())
}

#[cfg(not(feature = "spdk"))]
fn start_for(_: &[&Address]) -> Result<()> {
    bail!(NO_SPDK)
}

/// Opens a namespace, or so many bytes of it. SPDK has been [started](start) for it.
///
/// # Errors
/// What is wrong with it, by its address.
#[cfg(feature = "spdk")]
pub fn open(address: &Address, capacity_bytes: Option<u64>, read_only: bool) -> Result<Medium> {
    use forebay_nvme_spdk::{Environment, Namespace, OpenOptions};
    let environment = Environment::start(&Default::default())?;
    let options = OpenOptions {
        capacity_bytes,
        read_only,
        ..OpenOptions::default()
    };
    Ok(Medium::Spdk(Namespace::open(
        &environment,
        address,
        &options,
    )?))
}

/// See the other one.
///
/// # Errors
/// Always.
#[cfg(not(feature = "spdk"))]
pub fn open(_: &Address, _: Option<u64>, _: bool) -> Result<Medium> {
    bail!(NO_SPDK)
}

/// Which namespace an open one is, whatever way leads to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceId {
    /// Its number in its controller; 0 for what is none.
    pub number: u32,
    /// What its vendor or target calls it, and nothing else in the world; some have no such name.
    pub world: Option<String>,
}

impl NamespaceId {
    /// Of an open one.
    pub fn of(medium: &Medium) -> Self {
        match medium {
            #[cfg(feature = "spdk")]
            Medium::Spdk(namespace) => Self {
                number: namespace.number(),
                world: namespace.world_name(),
            },
            Medium::Kernel(_) => Self::default(),
        }
    }
}

/// The right to use a namespace, among the processes of this machine. The kernel keeps a PCI device for one process anyhow; a
/// target takes any number of hosts. By two names: its address, among those who share a network namespace; and, whatever its
/// address, what it is called in the world, among those who share a directory for locks.
#[derive(Debug)]
pub struct NvmeLock {
    _listener: UnixListener,
    _world: Option<WorldLock>,
}

impl NvmeLock {
    /// Takes that of a namespace. `purpose` says what for, to whoever finds it taken.
    ///
    /// # Errors
    /// [`Held`], or why there can be no lock.
    pub fn take(address: &Address, id: &NamespaceId, purpose: &str) -> Result<Self> {
        let name = name(address, id.number);
        let at = SocketAddr::from_abstract_name(&name).context("no name for a lock")?;
        let deadline = Instant::now() + PATIENCE;
        let listener = loop {
            match UnixListener::bind_addr(&at) {
                Ok(listener) => break listener,
                Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
                    return Err(error).with_context(|| format!("cannot lock {address}"));
                }
                // What ended just now may not be gone yet.
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(_) => bail!(Held {
                    what: address.to_string().into(),
                    holder: format!(
                        "another process, or another part of this command (`ss -xlp` shows it as @{name})"
                    ),
                    advice: "give another namespace",
                }),
            }
        };
        let world = id.world.as_deref();
        Ok(Self {
            _listener: listener,
            _world: world
                .map(|world| WorldLock::take(world, address, purpose))
                .transpose()?
                .flatten(),
        })
    }
}

/// Who has a namespace, when somebody has.
pub fn holder_of(address: &Address, id: &NamespaceId) -> Option<String> {
    let name = name(address, id.number);
    let at = SocketAddr::from_abstract_name(&name).ok()?;
    if UnixListener::bind_addr(&at).is_err() {
        return Some(format!("another process (`ss -xlp` shows it as @{name})"));
    }
    world_lock::holder_of(id.world.as_deref()?)
}

fn name(address: &Address, number: u32) -> String {
    let hash = blake3::hash(address.transport_id().as_bytes()).to_hex();
    format!("forebay-nvme-{}-{number}", &hash[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_one_user_whatever_its_address_is_written_like() {
        let pid = std::process::id();
        let parsed = |text: &str| -> Address { text.parse().unwrap() };
        let one = parsed(&format!(
            "trtype:TCP traddr:192.0.2.1 trsvcid:4420 subnqn:nqn.x:{pid}"
        ));
        let same = parsed(&format!(
            "trtype:tcp adrfam:IPv4 subnqn:nqn.x:{pid} trsvcid:4420 traddr:192.0.2.1 ns:1"
        ));
        let number = |number| NamespaceId {
            number,
            world: None,
        };
        let take = |address: &Address, n| NvmeLock::take(address, &number(n), "test");
        let first = take(&one, 1).unwrap();
        take(&one, 2).unwrap();
        let error = take(&same, 1).unwrap_err();
        assert!(super::super::lock::is_held(&error), "{error}");
        let holder = |address, n| holder_of(address, &number(n));
        assert!(holder(&same, 1).is_some() && holder(&one, 2).is_none());
        drop(first);
        take(&same, 1).unwrap();
    }

    #[test]
    fn one_namespace_by_two_ways_is_one() {
        let pid = std::process::id();
        let by = |ip: &str| -> Address {
            format!("trtype:TCP traddr:{ip} trsvcid:4420 subnqn:nqn.y:{pid}")
                .parse()
                .unwrap()
        };
        let id = |name: &str| NamespaceId {
            number: 1,
            world: Some(format!("uuid.{name}.{pid} ns:1")),
        };
        let first = NvmeLock::take(&by("192.0.2.1"), &id("a"), "mount /m").unwrap();
        let error = NvmeLock::take(&by("192.0.2.2"), &id("a"), "test").unwrap_err();
        let said = format!("{error:#}");
        assert!(
            said.contains("192.0.2.1") && said.contains("are the same namespace"),
            "{said}"
        );
        assert!(holder_of(&by("192.0.2.2"), &id("a")).is_some());
        NvmeLock::take(&by("192.0.2.2"), &id("b"), "test").unwrap();
        drop(first);
        assert_eq!(holder_of(&by("192.0.2.2"), &id("a")), None);
        NvmeLock::take(&by("192.0.2.2"), &id("a"), "test").unwrap();
    }
}
