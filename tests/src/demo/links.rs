//! The group's links over RDMA, where the demo is asked to show them.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::Rdma;

/// Names that are asked for, so that every member is.
const NAMES: usize = 24;

impl Rdma {
    /// What members and the client are started with.
    pub(super) fn flags(&self) -> Vec<String> {
        let ip = self.group_ip.to_string();
        let mut flags: Vec<String> = ["--transport", "rdma", "--group-ip", &ip]
            .map(str::to_owned)
            .into();
        if let Some(device) = &self.device {
            flags.extend(["--rdma-device".to_owned(), device.clone()]);
        }
        flags
    }
}

/// A secret of this run: a group without one has no RDMA.
pub(super) fn write_secret(path: &Path) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    Ok(writeln!(file, "of the demo {}", std::process::id())?)
}

/// Asks for names that are not there: each question goes to the member that owns the name.
pub(super) fn ask_all(point: &Path) -> Result<()> {
    for n in 0..NAMES {
        let missing = point.join(format!("missing-{n}-{}", unique()));
        ensure!(!missing.try_exists()?, "{} is there", missing.display());
    }
    Ok(())
}

/// Another one each time: an answer is believed for a while.
fn unique() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// What a daemon says of the links over RDMA that it asks on.
#[derive(Debug, Default)]
pub(super) struct OverRdma {
    /// Links that are there now.
    pub(super) up: usize,
    /// Bytes received.
    pub(super) bytes: u64,
    /// Why others take TCP.
    pub(super) why_not: Vec<String>,
}

impl OverRdma {
    /// Of a `group` in `forebay status --json`.
    pub(super) fn of(group: &Value) -> Self {
        let mut over = Self::default();
        let links = group["links"].as_array();
        for link in links.into_iter().flatten() {
            if link["asks"] != true {
                continue;
            }
            if link["transport"] == "rdma" {
                over.up += usize::from(link["state"] == "up");
                over.bytes += link["received_bytes"].as_u64().unwrap_or(0);
            }
            over.why_not
                .extend(link["why_tcp"].as_str().map(str::to_owned));
        }
        over
    }
}
