//! `forebay status`: the mounts and members of this machine, or more of one.

mod group;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

use super::choose_named;
use crate::args::StatusArgs;
use crate::control::client::living;
use crate::control::disk_report::DiskStatus;
use crate::control::report::{MemoryStatus, RefusalStatus, StatusReport};
use crate::control::sockets::{checked_runtime_dir, dirs_of_others, socket_path};
use crate::mounts::{Life, MountEntry, life, mount_table};
use crate::output::{json, print, table};
use crate::units::{Bytes, show_duration};

/// One element of `status --json`: a mount that answers, or one that does not.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum Listed {
    /// The daemon answers; its report's keys follow.
    Mounted(Box<StatusReport>),
    /// A member without a mount answers.
    Serving(Box<StatusReport>),
    /// In the mount table, but no daemon of this user answers for it.
    NoAnswer {
        mount_point: PathBuf,
        source: String,
        /// What the mount itself is like.
        life: Life,
    },
}

impl Listed {
    fn answering(status: StatusReport) -> Self {
        match status.serve {
            None => Self::Mounted(Box::new(status)),
            Some(_) => Self::Serving(Box::new(status)),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When the named mount is not there or does not answer.
pub fn run(args: &StatusArgs) -> Result<()> {
    if let Some(path) = &args.mount_point {
        let (_, status) = choose_named(Some(path))?;
        let text = match args.json {
            true => json(&Listed::answering(status), true)?,
            false => details(&status),
        };
        return print(&text).map(drop);
    }
    let mounts = list()?;
    let text = match (args.json, mounts.as_slice()) {
        (true, _) => json(&mounts, true)?,
        (false, []) => "no Forebay mounts or members\n".into(),
        (false, [Listed::Mounted(status) | Listed::Serving(status)]) => details(status),
        (false, _) => overview(&mounts),
    };
    print(&text)?;
    note_others(&mounts);
    let dir = checked_runtime_dir()?;
    let is_broken = |mount: &&Listed| match mount {
        // What a daemon left here: of those of other directories it is not sure.
        Listed::NoAnswer {
            life: Life::Killed | Life::Hangs,
            mount_point,
            ..
        } => socket_path(&dir, mount_point).exists(),
        _ => false,
    };
    match mounts.iter().filter(is_broken).count() {
        0 => Ok(()),
        1 => bail!("one of the mounts does not work: see STATE"),
        n => bail!("{n} of the mounts do not work: see STATE"),
    }
}

/// Daemons of other users are asked by those: where they are.
fn note_others(mounts: &[Listed]) {
    let is_unknown = |mount: &Listed| {
        matches!(
            mount,
            Listed::NoAnswer {
                life: Life::Alive | Life::Unknown,
                ..
            }
        )
    };
    if !mounts.is_empty() && !mounts.iter().any(is_unknown) {
        return;
    }
    for dir in dirs_of_others() {
        eprintln!(
            "forebay: another user has daemons at {}: ask as that user, with FOREBAY_RUNTIME_DIR={}",
            dir.display(),
            dir.display()
        );
    }
}

fn list() -> Result<Vec<Listed>> {
    let daemons = living(&checked_runtime_dir()?);
    let answering: BTreeSet<PathBuf> = daemons
        .iter()
        .map(|(_, status)| status.mount_point.clone())
        .collect();
    let silent = |entry: &MountEntry| entry.is_forebay() && !answering.contains(&entry.mount_point);
    let mut mounts: Vec<Listed> = daemons
        .into_iter()
        .map(|(_, status)| Listed::answering(status))
        .collect();
    mounts.extend(
        mount_table()?
            .into_iter()
            .filter(silent)
            .map(|entry| Listed::NoAnswer {
                life: life(&entry.mount_point),
                mount_point: entry.mount_point,
                source: entry.source,
            }),
    );
    Ok(mounts)
}

fn uptime(status: &StatusReport) -> String {
    show_duration(Duration::try_from_secs_f64(status.uptime_seconds).unwrap_or_default())
}

fn overview(mounts: &[Listed]) -> String {
    let header = [
        "MOUNT POINT",
        "SOURCE",
        "STATE",
        "UP",
        "CORES",
        "MEMORY",
        "CACHED",
        "DISK",
        "PID",
        "VERSION",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(mounts.iter().map(|mount| match mount {
        Listed::Mounted(status) | Listed::Serving(status) => vec![
            status.name(),
            status.source.clone(),
            match status.serve {
                None => "mounted".into(),
                Some(_) => "serving".into(),
            },
            uptime(status),
            status.core_cpus.len().to_string(),
            Bytes(status.memory.limit_bytes).to_string(),
            Bytes(status.memory.cached_bytes).to_string(),
            disk_summary(&status.disks),
            status.pid.to_string(),
            status.version.clone(),
        ],
        Listed::NoAnswer {
            mount_point,
            source,
            life,
        } => {
            vec![
                mount_point.display().to_string(),
                source.clone(),
                silence(*life).0.into(),
            ]
        }
    }));
    let mut text = table(&rows, &[3, 4, 5, 6, 7, 8]);
    let lives = [Life::Killed, Life::Hangs, Life::Alive, Life::Unknown];
    for kind in lives {
        let has = |mount: &Listed| matches!(mount, Listed::NoAnswer { life, .. } if *life == kind);
        if mounts.iter().any(has) {
            let (name, meaning) = silence(kind);
            text.push_str(&format!("{name}: {meaning}\n"));
        }
    }
    text
}

/// What is cached on disk, or that not all of it works.
fn disk_summary(disks: &[DiskStatus]) -> String {
    let works = |disk: &&DiskStatus| matches!(disk.state.as_str(), "serving" | "recovering");
    let cached = Bytes(disks.iter().map(|disk| disk.cached_bytes).sum());
    match (disks.len(), disks.iter().filter(works).count()) {
        (0, _) => "-".into(),
        (all, working) if all == working => cached.to_string(),
        (all, working) => format!("{cached} ({working} of {all} disks work)"),
    }
}

fn outage_line(status: &StatusReport) -> String {
    let span = Duration::try_from_secs_f64(status.s3_silent_seconds).unwrap_or_default();
    let why = status.s3_error.as_ref().map(|error| format!(" ({error})"));
    format!(
        "has not answered for {}{}: what is cached is served, names as last known",
        show_duration(span),
        why.unwrap_or_default()
    )
}

/// What is wrong with S3.
fn s3_lines(status: &StatusReport) -> impl Iterator<Item = String> + '_ {
    let outage = (status.s3_silent_seconds > 0.0).then(|| outage_line(status));
    let refusal = status.s3_refusal.as_ref().map(refusal_line);
    outage.into_iter().chain(refusal)
}

fn refusal_line(refusal: &RefusalStatus) -> String {
    let span = |seconds| show_duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    format!(
        "refuses this node for {}, last {} ago: {}",
        span(refusal.since_seconds),
        span(refusal.last_seconds),
        refusal.error
    )
}

/// One line for a directory or device.
fn disk_line(disk: &DiskStatus) -> String {
    let mut text = format!("{} {}", disk.name, disk.state.replace('_', "-"));
    if !disk.why.is_empty() {
        text.push_str(&format!(" ({})", disk.why));
    }
    text.push_str(&format!(
        "; size {}, cached {} in {} entries, occupies {}",
        Bytes(disk.size_bytes),
        Bytes(disk.cached_bytes),
        disk.entries,
        Bytes(disk.occupied_bytes)
    ));
    if disk.allowed_bytes < disk.size_bytes {
        text.push_str(&format!(
            " (may occupy {} now: --free-space-ratio)",
            Bytes(disk.allowed_bytes)
        ));
    }
    if disk.batches_damaged > 0 {
        text.push_str(&format!(
            "; {} damaged batches found at start",
            disk.batches_damaged
        ));
    }
    if !disk.device.is_empty() {
        text.push_str(&format!("; {}", disk.device));
    }
    if let Some(health) = &disk.health {
        text.push_str(&format!("; {}", health.in_words()));
    }
    if disk.buffered {
        text.push_str("; through the page cache, there is no O_DIRECT");
    }
    text
}

/// How the table names a mount that does not answer, and what that means.
fn silence(life: Life) -> (&'static str, &'static str) {
    match life {
        Life::Killed => ("killed", "the daemon is gone, `forebay umount` cleans up"),
        Life::Hangs => (
            "hangs",
            "the daemon is stopped or hangs, `forebay umount --lazy` takes the mount away",
        ),
        Life::Alive => (
            "no socket",
            "the mount works; its control socket is gone or in another runtime directory",
        ),
        Life::Unknown => (
            "no answer",
            "the mount is another user's, or cannot be looked at",
        ),
    }
}

fn memory_in_words(memory: &MemoryStatus) -> String {
    let reserved = match memory.reserved_bytes {
        0 => String::new(),
        bytes => format!(" ({} in reserved huge pages)", Bytes(bytes)),
    };
    format!(
        "limit {}, buffers {}{reserved}, cached {}, in flight {}",
        Bytes(memory.limit_bytes),
        Bytes(memory.arena_bytes),
        Bytes(memory.cached_bytes),
        Bytes(memory.in_flight_bytes)
    )
}

fn details(status: &StatusReport) -> String {
    let cpus: Vec<String> = status
        .core_cpus
        .iter()
        .map(|cpu| cpu.map_or("any".into(), |cpu| cpu.to_string()))
        .collect();
    let memory = &status.memory;
    let rows: [(&str, String); 11] = [
        (
            if status.serve.is_some() {
                "member"
            } else {
                "mount point"
            },
            status.name(),
        ),
        ("source", status.source.clone()),
        (
            "endpoint",
            format!("{} (region {})", status.endpoint, status.region),
        ),
        ("up", uptime(status)),
        ("version", status.version.clone()),
        ("pid", status.pid.to_string()),
        (
            "engine cores",
            format!(
                "{} (CPU {}; spin {})",
                cpus.len(),
                cpus.join(", "),
                status.spin
            ),
        ),
        ("memory", memory_in_words(memory)),
        ("resident", Bytes(memory.resident_bytes).to_string()),
        (
            "io timeout",
            show_duration(Duration::from_millis(status.io_timeout_ms)),
        ),
        (
            "log",
            status
                .log_file
                .as_ref()
                .map_or("standard error".into(), |path| path.display().to_string()),
        ),
    ];
    let disks = status.disks.iter().map(|disk| ("disk", disk_line(disk)));
    let misplaced = status.disks.iter().map(|disk| disk.misplaced.clone());
    let misplaced = misplaced.filter(|trouble| !trouble.is_empty());
    let disks = disks.chain(misplaced.map(|trouble| ("warning", trouble)));
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .chain(s3_lines(status).map(|line| ("S3", line)))
        .chain(disks)
        .chain(status.group.iter().flat_map(group::rows))
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    let tables = status.group.iter().map(group::tables);
    table(&rows, &[]) + &tables.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> StatusReport {
        StatusReport {
            mount_point: "/data".into(),
            source: "s3://b/p/".into(),
            core_cpus: vec![Some(3), None],
            ..StatusReport::default()
        }
    }

    #[test]
    fn a_mount_that_answers_and_one_that_does_not() {
        let mounts = [
            Listed::Mounted(Box::new(status())),
            Listed::NoAnswer {
                mount_point: "/dead".into(),
                source: "s3://x/".into(),
                life: Life::Killed,
            },
            Listed::NoAnswer {
                mount_point: "/alone".into(),
                source: "s3://y/".into(),
                life: Life::Alive,
            },
        ];
        let text = overview(&mounts);
        for part in ["/data", "/dead", "umount", "/alone", "no socket: the mount"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("hangs"), "{text}");
        let value: serde_json::Value = serde_json::from_str(&json(&mounts, true).unwrap()).unwrap();
        assert_eq!(value[0]["state"], "mounted");
        assert_eq!(value[0]["mount_point"], "/data");
        assert_eq!(value[1]["state"], "no_answer");
        assert_eq!(value[1]["life"], "killed");
    }

    #[test]
    fn every_disk_has_its_state_and_why() {
        let disk = |name: &str, state: &str, why: &str| DiskStatus {
            name: name.into(),
            state: state.into(),
            why: why.into(),
            size_bytes: 4 << 30,
            allowed_bytes: 3 << 30,
            cached_bytes: 1 << 30,
            ..DiskStatus::default()
        };
        let mut status = status();
        assert_eq!(disk_summary(&status.disks), "-");
        status.disks = vec![
            disk("/a", "serving", ""),
            disk("/b", "retired", "65 faults"),
        ];
        status.disks[0].misplaced = "/a/blocks was removed".into();
        assert_eq!(disk_summary(&status.disks), "2 GiB (1 of 2 disks work)");
        let text = details(&status);
        for part in [
            "/a serving; size 4 GiB",
            "may occupy 3 GiB",
            "/b retired (65 faults)",
            "/a/blocks was removed",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn details_say_that_s3_does_not_answer() {
        assert!(!details(&status()).contains("S3 "));
        let silent = StatusReport {
            s3_silent_seconds: 12.0,
            ..status()
        };
        let text = details(&silent);
        assert!(text.contains("has not answered for 12.0 s"), "{text}");
        let refused = StatusReport {
            s3_refusal: Some(RefusalStatus {
                since_seconds: 12.0,
                last_seconds: 1.0,
                error: "HTTP 403".into(),
            }),
            ..status()
        };
        let text = details(&refused);
        assert!(text.contains("refuses this node for 12.0 s"), "{text}");
        assert!(text.contains("HTTP 403"), "{text}");
    }

    #[test]
    fn details_name_every_core() {
        let text = details(&status());
        assert!(text.contains("CPU 3, any"), "{text}");
    }
}
