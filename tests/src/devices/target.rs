//! SPDK's NVMe/TCP target as a child of a test, on loopback.
//!
//! The program is what `FOREBAY_SPDK_TGT` names, or `nvmf_tgt` on the path. It needs neither huge pages nor a device: its
//! namespaces are memory of its own. It spins on one CPU for as long as it lives.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Names the program.
pub const PROGRAM_VARIABLE: &str = "FOREBAY_SPDK_TGT";
/// What it is called where it is installed.
const PROGRAM: &str = "nvmf_tgt";
/// Memory for it, in MiB: what its namespaces may take in all, and some for itself.
const MEMORY_MIB: u32 = 512;
/// How long anything of it may take.
const PATIENCE: Duration = Duration::from_secs(30);
const ADDRESS: &str = "127.0.0.1";
/// Of a second portal.
const SECOND_ADDRESS: &str = "127.0.0.2";
/// Of one that took another's number.
const STRANGER: &str = "FEDCBA9876543210FEDCBA9876543210";

/// What makes a test that needs it impossible here; none when it can run.
pub fn obstacle() -> Option<String> {
    program().is_none().then(|| {
        format!("SPDK's target is not found: give its path in {PROGRAM_VARIABLE}, or have {PROGRAM} on the path")
    })
}

fn program() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(PROGRAM_VARIABLE) {
        return Some(path.into());
    }
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .map(|folder| folder.join(PROGRAM))
        .find(|path| path.is_file())
}

/// A target that runs until this is dropped.
#[derive(Debug)]
pub struct SpdkTarget {
    child: Child,
    socket: PathBuf,
    port: u16,
    folder: tempfile::TempDir,
}

/// What happens to the next operations of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// They fail.
    Failure,
    /// They never end.
    Hang,
}

impl SpdkTarget {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// When there is none, or it does not start; what it said.
    pub fn start() -> Result<Self> {
        Self::start_with(MEMORY_MIB)
    }

    /// The same with so much memory for it and its namespaces.
    ///
    /// # Errors
    /// When there is none, or it does not start; what it said.
    pub fn start_with(memory_mib: u32) -> Result<Self> {
        let program = program().context("no target program")?;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("rpc");
        let log = std::fs::File::create(folder.path().join("log"))?;
        let child = Command::new(&program)
            .args(["--no-pci", "--no-huge", "-s"])
            .arg(memory_mib.to_string())
            .args(["-m", "0x1", "-r"])
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        // Free now; nothing else on a test machine takes it within the next second.
        let port = TcpListener::bind((ADDRESS, 0))?.local_addr()?.port();
        let mut target = Self {
            child,
            socket,
            port,
            folder,
        };
        target.wait_until_up()?;
        target.ask("nvmf_create_transport", json!({"trtype": "TCP"}))?;
        Ok(target)
    }

    fn wait_until_up(&mut self) -> Result<()> {
        let last = Instant::now() + PATIENCE;
        while self.ask("rpc_get_methods", json!({})).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("the target ended with {status}: {}", self.log());
            }
            if Instant::now() > last {
                bail!("the target does not answer: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn ask(&self, method: &str, params: Value) -> Result<Value> {
        ask(&self.socket, method, params).with_context(|| format!("the target did not do {method}"))
    }

    /// Adds a subsystem with one namespace of so many zeros. Its transport id.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn add(&self, name: &str, len_bytes: u64, sector_bytes: u32) -> Result<String> {
        let nqn = nqn(name);
        self.ask(
            "nvmf_create_subsystem",
            json!({"nqn": nqn, "allow_any_host": true}),
        )?;
        self.give_namespace(name, name, len_bytes, sector_bytes)?;
        let listen = json!({
            "trtype": "TCP", "adrfam": "IPv4", "traddr": ADDRESS, "trsvcid": self.port.to_string(),
        });
        self.ask(
            "nvmf_subsystem_add_listener",
            json!({"nqn": nqn, "listen_address": listen}),
        )?;
        Ok(self.transport_id(name))
    }

    /// Where the subsystem `name` is, or would be.
    pub fn transport_id(&self, name: &str) -> String {
        format!(
            "trtype:TCP adrfam:IPv4 traddr:{ADDRESS} trsvcid:{} subnqn:{}",
            self.port,
            nqn(name)
        )
    }

    /// Gives the subsystem `name` a namespace 1, of so many zeros. Any that it has had before was called otherwise; but each has the
    /// same identity.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn give_namespace(
        &self,
        name: &str,
        namespace: &str,
        len_bytes: u64,
        sector_bytes: u32,
    ) -> Result<()> {
        let identity = self.identity(name);
        self.give(name, namespace, len_bytes, sector_bytes, &identity)
    }

    /// The NGUID of the subsystem's namespaces: no other in the world has it.
    fn identity(&self, name: &str) -> String {
        let sum = name.bytes().fold(0_u64, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        format!("{sum:016X}{:08X}89ABCDEF", self.child.id())
    }

    /// A second way to the subsystem `name`: its transport id.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn add_portal(&self, name: &str) -> Result<String> {
        let listen = json!({
            "trtype": "TCP", "adrfam": "IPv4", "traddr": SECOND_ADDRESS, "trsvcid": self.port.to_string(),
        });
        self.ask(
            "nvmf_subsystem_add_listener",
            json!({"nqn": nqn(name), "listen_address": listen}),
        )?;
        Ok(self.transport_id(name).replace(ADDRESS, SECOND_ADDRESS))
    }

    /// The same, with an identity of its own.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn give_stranger(
        &self,
        name: &str,
        namespace: &str,
        len_bytes: u64,
        sector_bytes: u32,
    ) -> Result<()> {
        self.give(name, namespace, len_bytes, sector_bytes, STRANGER)
    }

    fn give(
        &self,
        name: &str,
        namespace: &str,
        len_bytes: u64,
        sector_bytes: u32,
        identity: &str,
    ) -> Result<()> {
        let sectors = len_bytes / u64::from(sector_bytes);
        let malloc = json!({"num_blocks": sectors, "block_size": sector_bytes, "name": namespace});
        self.ask("bdev_malloc_create", malloc)?;
        self.ask("bdev_error_create", json!({"base_name": namespace}))?;
        // A UUID is the same digits with dashes between them.
        let (a, b, c, d, e) = (
            &identity[..8],
            &identity[8..12],
            &identity[12..16],
            &identity[16..20],
            &identity[20..],
        );
        let uuid = format!("{a}-{b}-{c}-{d}-{e}");
        let given = json!({
            "bdev_name": faulty(namespace), "nsid": 1, "nguid": identity, "uuid": uuid,
        });
        self.ask(
            "nvmf_subsystem_add_ns",
            json!({"nqn": nqn(name), "namespace": given}),
        )?;
        Ok(())
    }

    /// Connections of hosts to the subsystem `name`.
    ///
    /// # Errors
    /// When the target does not tell.
    pub fn controllers(&self, name: &str) -> Result<usize> {
        let all = self.ask("nvmf_subsystem_get_controllers", json!({"nqn": nqn(name)}))?;
        Ok(all.as_array().map_or(0, Vec::len))
    }

    /// Takes the namespace away, and leaves its subsystem.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn take_namespace(&self, name: &str) -> Result<()> {
        self.ask(
            "nvmf_subsystem_remove_ns",
            json!({"nqn": nqn(name), "nsid": 1}),
        )?;
        Ok(())
    }

    /// Ends a subsystem and all connections to it, and forgets its bytes.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.ask("nvmf_delete_subsystem", json!({"nqn": nqn(name)}))?;
        self.ask("bdev_error_delete", json!({"name": faulty(name)}))?;
        self.ask("bdev_malloc_delete", json!({"name": name}))?;
        Ok(())
    }

    /// What shall become of the next `count` operations of a kind: `read`, `write`, `flush`, `unmap` or `all`.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn inject(&self, name: &str, kind: &str, mishap: Mishap, count: u32) -> Result<()> {
        let mishap = match mishap {
            Mishap::Failure => "failure",
            Mishap::Hang => "pending",
        };
        let params =
            json!({"name": faulty(name), "io_type": kind, "error_type": mishap, "num": count});
        self.ask("bdev_error_inject_error", params)?;
        Ok(())
    }

    /// Ends what `inject` began, and what hangs since.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn heal(&self, name: &str) -> Result<()> {
        let params = json!({"name": faulty(name), "io_type": "clear", "error_type": "failure"});
        self.ask("bdev_error_inject_error", params)?;
        Ok(())
    }

    /// SIGKILL: its connections end.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for SpdkTarget {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn nqn(name: &str) -> String {
    format!("nqn.2026-11.example.forebay:{name}")
}

/// The device over a namespace's memory that can fail.
fn faulty(name: &str) -> String {
    format!("EE_{name}")
}

/// One request, one answer.
fn ask(socket: &Path, method: &str, params: Value) -> Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = json!({"jsonrpc": "2.0", "id": 1, "method": method});
    if params.as_object().is_some_and(|params| !params.is_empty()) {
        request["params"] = params;
    }
    stream.write_all(request.to_string().as_bytes())?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            bail!("it closed the connection");
        }
        answer.extend_from_slice(&piece[..count]);
        // Nothing but the end tells that it is whole.
        let Ok(mut answer) = serde_json::from_slice::<Value>(&answer) else {
            continue;
        };
        if let Some(error) = answer.get("error") {
            bail!("{error}");
        }
        return Ok(answer["result"].take());
    }
}
