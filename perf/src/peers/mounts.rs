//! Mounts of the same bucket by others: rclone, s3fs, mount-s3, each with its cache on the same disk and names that live as
//! long as Forebay's.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::Peer;
use crate::bucket::Bucket;
use crate::counters::Watched;
use crate::interrupt;
use crate::network::Killed;
use crate::patterns::Target;
use crate::plan::Plan;
use crate::scenario::Scenario;

/// What a mount may take to be there.
const START_MAX: Duration = Duration::from_secs(60);
/// And to be gone.
const END_MAX: Duration = Duration::from_secs(30);
/// As `LONG_LIVED_NAMES` of Forebay's mounts.
const NAMES_LIVE_S: &str = "3600";

/// A mount of a bucket of its own.
pub struct PeerMount {
    peer: Peer,
    scenario: Scenario,
    plan: Plan,
    // In the order of dropping: the daemon goes before what it needs.
    mounted: Option<Mounted>,
    bucket: Option<Bucket>,
    dir: Option<TempDir>,
}

struct Mounted {
    daemon: Killed,
    point: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Before it is killed: what its death leaves is a mount that answers nobody.
        let quiet = |command: &mut Command| {
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        };
        quiet(
            Command::new("fusermount3")
                .args(["-u", "-z", "-q"])
                .arg(&self.point),
        );
    }
}

impl PeerMount {
    /// Not started yet.
    pub fn new(peer: Peer, scenario: &Scenario, plan: &Plan) -> PeerMount {
        PeerMount {
            peer,
            scenario: scenario.clone(),
            plan: plan.clone(),
            mounted: None,
            bucket: None,
            dir: None,
        }
    }

    fn bucket(&self) -> Result<&Bucket> {
        self.bucket
            .as_ref()
            .with_context(|| format!("{} was not started", self.peer.name()))
    }

    fn mounted(&self) -> Result<&Mounted> {
        self.mounted
            .as_ref()
            .with_context(|| format!("{} was not started", self.peer.name()))
    }

    fn command(&self, dir: &Path, bucket: &Bucket, point: &Path) -> Result<Command> {
        let cache = dir.join("cache");
        fs::create_dir(&cache)?;
        match self.peer {
            Peer::Rclone => rclone(dir, bucket, &cache, point),
            Peer::S3fs => s3fs(dir, bucket, &cache, point),
            Peer::MountS3 => Ok(mount_s3(bucket, &cache, point)),
            other => bail!("{} mounts nothing", other.name()),
        }
    }
}

/// A file that only its owner reads.
fn secret(path: &Path, text: &str) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(path);
    opened?.write_all(text.as_bytes())?;
    Ok(())
}

fn rclone(dir: &Path, bucket: &Bucket, cache: &Path, point: &Path) -> Result<Command> {
    let config = dir.join("rclone.conf");
    let keys = bucket.credentials();
    secret(
        &config,
        &format!(
            "[r]\ntype = s3\nprovider = Other\naccess_key_id = {}\nsecret_access_key = {}\nendpoint = {}\nregion = {}\n\
             list_version = 2\nforce_path_style = true\n",
            keys.access_key,
            keys.secret_key,
            bucket.server().endpoint(),
            keys.region
        ),
    )?;
    let lives = format!("{NAMES_LIVE_S}s");
    let mut command = Command::new("rclone");
    command
        .arg("mount")
        .arg(format!("r:{}", bucket.name()))
        .arg(point);
    command
        .arg("--config")
        .arg(config)
        .arg("--cache-dir")
        .arg(cache);
    command.args([
        "--read-only",
        "--vfs-cache-mode",
        "full",
        "--vfs-cache-max-age",
        "24h",
    ]);
    command.args([
        "--dir-cache-time",
        &lives,
        "--attr-timeout",
        &lives,
        "--poll-interval",
        "0",
        // The times of the listing, as Forebay's: else each attribute is a request of its own.
        "--use-server-modtime",
    ]);
    let version = Peer::Rclone.version();
    if has_chunk_streams(&version) {
        command.args([
            "--vfs-read-chunk-streams",
            "4",
            "--vfs-read-chunk-size",
            "4M",
        ]);
    }
    Ok(command)
}

/// Since 1.68 rclone reads a file by several streams.
fn has_chunk_streams(version: &str) -> bool {
    let number = version
        .split_whitespace()
        .find_map(|word| word.strip_prefix('v'));
    let mut parts = number
        .unwrap_or_default()
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    (major, minor) >= (1, 68)
}

fn s3fs(dir: &Path, bucket: &Bucket, cache: &Path, point: &Path) -> Result<Command> {
    let passwords = dir.join("passwd-s3fs");
    let keys = bucket.credentials();
    secret(
        &passwords,
        &format!("{}:{}\n", keys.access_key, keys.secret_key),
    )?;
    let mut command = Command::new("s3fs");
    command.arg(bucket.name()).arg(point).arg("-f");
    for option in [
        format!("url={}", bucket.server().endpoint()),
        "use_path_request_style".to_owned(),
        "sigv4".to_owned(),
        "ro".to_owned(),
        format!("use_cache={}", cache.display()),
        format!("passwd_file={}", passwords.display()),
        format!("stat_cache_expire={NAMES_LIVE_S}"),
        // Without these the kernel asks again after a second, whatever s3fs itself still knows.
        format!("entry_timeout={NAMES_LIVE_S}"),
        format!("attr_timeout={NAMES_LIVE_S}"),
        // Objects do not change: what the page cache has stays when a file is opened again, as with Forebay.
        "kernel_cache".to_owned(),
        "max_stat_cache_size=1000000".to_owned(),
        "multireq_max=20".to_owned(),
        "parallel_count=5".to_owned(),
    ] {
        command.args(["-o", &option]);
    }
    Ok(command)
}

fn mount_s3(bucket: &Bucket, cache: &Path, point: &Path) -> Command {
    let keys = bucket.credentials();
    let mut command = Command::new("mount-s3");
    command.arg(bucket.name()).arg(point).arg("--foreground");
    command.args([
        "--read-only",
        "--force-path-style",
        "--region",
        &keys.region,
    ]);
    command.args(["--endpoint-url", &bucket.server().endpoint()]);
    command
        .args(["--metadata-ttl", NAMES_LIVE_S])
        .arg("--cache")
        .arg(cache);
    command.env("AWS_ACCESS_KEY_ID", &keys.access_key);
    command.env("AWS_SECRET_ACCESS_KEY", &keys.secret_key);
    command
}

impl Target for PeerMount {
    fn name(&self) -> &str {
        self.peer.name()
    }

    fn version(&self) -> String {
        format!(
            "{} (cache on the same disk, names live for an hour)",
            self.peer.version()
        )
    }

    fn start(&mut self, objects: &[(String, u64)], _: u64) -> Result<()> {
        let name = self.peer.name();
        let bucket = Bucket::start(objects)?;
        bucket.shape(&self.scenario);
        let dir = self.plan.run.scratch()?;
        let point = dir.path().join("mnt");
        fs::create_dir(&point)?;
        let log = fs::File::create(dir.path().join("log"))?;
        let mut command = self.command(dir.path(), &bucket, &point)?;
        // What the caller's environment sets for AWS is not for this bucket: rclone does not start with some of it.
        let given: Vec<_> = command
            .get_envs()
            .map(|(name, _)| name.to_owned())
            .collect();
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AWS_") && !given.contains(&name) {
                command.env_remove(name);
            }
        }
        let daemon = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        let mut mounted = Mounted {
            daemon: Killed(daemon),
            point: point.clone(),
        };
        let above = fs::metadata(dir.path())?;
        interrupt::until(&format!("{name} mounts its bucket"), START_MAX, || {
            use std::os::unix::fs::MetadataExt;
            if let Some(status) = mounted.daemon.0.try_wait()? {
                let said = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
                bail!("{name} ended ({status}): {}", said.trim());
            }
            // Another file system is there, and answers.
            let there = fs::metadata(&point).is_ok_and(|point| point.dev() != above.dev());
            Ok((there && fs::read_dir(&point).is_ok()).then_some(()))
        })?;
        (self.mounted, self.bucket, self.dir) = (Some(mounted), Some(bucket), Some(dir));
        Ok(())
    }

    fn root(&self) -> Result<&Path> {
        Ok(&self.mounted()?.point)
    }

    fn watched(&self) -> Result<Vec<Watched>> {
        let pid = self.mounted()?.daemon.0.id();
        Ok(vec![Watched::Other(self.peer.name().to_owned(), pid)])
    }

    fn origin_bytes(&self) -> Result<Option<u64>> {
        Ok(Some(self.bucket()?.server().counters().body_bytes))
    }

    fn end(&mut self) -> Result<()> {
        if let Some(mut mounted) = self.mounted.take() {
            let status = Command::new("fusermount3")
                .arg("-u")
                .arg(&mounted.point)
                .status();
            let unmounted = status.is_ok_and(|status| status.success());
            let name = self.peer.name();
            if unmounted {
                interrupt::until(&format!("{name} ends"), END_MAX, || {
                    Ok(mounted.daemon.0.try_wait()?.map(drop))
                })?;
            }
        }
        (self.bucket, self.dir) = (None, None);
        Ok(())
    }
}

impl std::fmt::Debug for PeerMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerMount")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_follow_the_version() {
        let captured = include_str!("captured/rclone.txt").lines().next();
        assert!(!has_chunk_streams(captured.expect("a line")));
        for version in ["rclone v1.68.0", "rclone v1.75", "rclone v2.0"] {
            assert!(has_chunk_streams(version), "{version}");
        }
        for version in ["rclone v1.67.9", "rclone", ""] {
            assert!(!has_chunk_streams(version), "{version}");
        }
    }

    #[test]
    fn names_live_as_long_for_all_and_cost_no_requests() -> Result<()> {
        let bucket = Bucket::start(&[("a".to_owned(), 1)])?;
        let dir = tempfile::tempdir()?;
        let words = |command: &Command| -> Vec<String> {
            let words = command.get_args();
            words.map(|word| word.to_string_lossy().into()).collect()
        };
        let (cache, point) = (dir.path().join("cache"), dir.path().join("mnt"));
        let s3fs = words(&s3fs(dir.path(), &bucket, &cache, &point)?);
        for option in [
            "stat_cache_expire=3600",
            "entry_timeout=3600",
            "attr_timeout=3600",
            "kernel_cache",
        ] {
            let given = s3fs.windows(2).any(|pair| pair == ["-o", option]);
            assert!(given, "{option}: {s3fs:?}");
        }
        let rclone = words(&rclone(dir.path(), &bucket, &cache, &point)?);
        for (name, value) in [("--dir-cache-time", "3600s"), ("--attr-timeout", "3600s")] {
            let given = rclone.windows(2).any(|pair| pair == [name, value]);
            assert!(given, "{name}: {rclone:?}");
        }
        assert!(rclone.iter().any(|word| word == "--use-server-modtime"));
        Ok(())
    }

    #[test]
    fn secrets_are_read_by_their_owner_alone() -> Result<()> {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("s");
        secret(&path, "a:b")?;
        assert_eq!(fs::metadata(&path)?.mode() & 0o077, 0);
        assert!(secret(&path, "again").is_err());
        Ok(())
    }
}
