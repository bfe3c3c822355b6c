//! `forebay mount` as its users run it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Credentials;

/// The program `forebay`: `FOREBAY_BIN`, or the one beside the running program (tests and
/// examples run one directory further down).
///
/// # Errors
/// When it has not been built.
pub fn forebay_binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("FOREBAY_BIN") {
        return Ok(path.into());
    }
    let own = env::current_exe()?;
    let beside = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("forebay"));
    beside
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "no program `forebay` beside {}: cargo build --bins",
                own.display()
            )
        })
}

/// What to mount and how.
#[derive(Clone, Debug)]
pub struct MountOptions<'a> {
    /// The program; with none, [`forebay_binary`] finds it.
    pub binary: Option<PathBuf>,
    /// `s3://bucket/prefix`.
    pub source: String,
    /// The S3 server's URL.
    pub endpoint: &'a str,
    /// Given through the environment; with none, what the environment already says.
    pub credentials: Option<&'a Credentials>,
    /// `--memory`.
    pub memory: &'a str,
    /// Other flags.
    pub flags: Vec<OsString>,
}

/// A mount of the real daemon. It is unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    binary: PathBuf,
    dir: PathBuf,
    pid: u32,
    mounted: bool,
}

impl Mount {
    /// Runs `forebay mount` and returns when it has, which is when the mount answers.
    ///
    /// # Errors
    /// What `forebay mount` said.
    pub fn new(dir: &Path, options: &MountOptions<'_>) -> Result<Self> {
        let binary = match &options.binary {
            Some(path) => path.clone(),
            None => forebay_binary()?,
        };
        let mut command = Command::new(&binary);
        command.arg("mount").arg(&options.source).arg(dir);
        command.args(["--endpoint", options.endpoint, "--memory", options.memory]);
        command.args(&options.flags).stdin(Stdio::null());
        without_settings(&mut command, env::vars_os().map(|(name, _)| name));
        if let Some(known) = options.credentials {
            command
                .env("AWS_ACCESS_KEY_ID", &known.access_key)
                .env("AWS_SECRET_ACCESS_KEY", &known.secret_key)
                .env("AWS_REGION", &known.region)
                .env_remove("AWS_SESSION_TOKEN")
                .env_remove("AWS_PROFILE");
        }
        // A terminal's Ctrl-C goes to its whole process group. It must not kill `forebay mount`
        // halfway: the daemon would come up with nobody to unmount it.
        command.process_group(0);
        let status = command
            .status()
            .with_context(|| format!("cannot run {}", binary.display()))?;
        let mut mount = Self {
            binary,
            dir: dir.to_owned(),
            pid: 0,
            // After an error of its own it has left nothing; the place may be somebody else's.
            mounted: status.code().is_none_or(|code| code == 0),
        };
        ensure!(status.success(), "forebay mount: {status}");
        mount.pid = u32::try_from(mount.ask("status")?.number(&["/pid", "/0/pid"])?)?;
        Ok(mount)
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The daemon.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What `forebay stats` says, for programs.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn stats(&self) -> Result<Stats> {
        let report = self.ask("stats")?;
        let number = |pointer| report.number(&[pointer]);
        Ok(Stats {
            memory_hits: number("/tiers/memory/hits")?,
            memory_hit_bytes: number("/tiers/memory/bytes")?,
            disk_hits: number("/tiers/disk/hits")?,
            disk_hit_bytes: number("/tiers/disk/bytes")?,
            disk_dropped_bytes: report.sum("/disk/devices", "dropped_bytes")?,
            misses: number("/tiers/origin/hits")?,
            miss_bytes: number("/tiers/origin/bytes")?,
            read_errors: number("/reads/errors")?,
            origin_bytes: number("/origin/bytes")?,
        })
    }

    fn ask(&self, command: &str) -> Result<Report> {
        let output = Command::new(&self.binary)
            .arg(command)
            .arg(&self.dir)
            .arg("--json")
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(
            output.status.success(),
            "forebay {command}: {}",
            output.status
        );
        let json = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("forebay {command} --json printed no JSON"))?;
        Ok(Report {
            command: command.to_owned(),
            json,
        })
    }

    /// Runs a `forebay` command on this mount with its output shown.
    ///
    /// # Errors
    /// When it fails.
    pub fn show(&self, command: &str) -> Result<()> {
        let status = Command::new(&self.binary)
            .arg(command)
            .arg(&self.dir)
            .status()?;
        ensure!(status.success(), "forebay {command}: {status}");
        Ok(())
    }

    /// Runs `forebay umount` and waits until the daemon is gone.
    ///
    /// # Errors
    /// What `forebay umount` said, or that the daemon stayed.
    pub fn unmount(mut self) -> Result<()> {
        self.mounted = false;
        let status = Command::new(&self.binary)
            .arg("umount")
            .arg(&self.dir)
            .status()?;
        if !status.success() {
            self.force();
            bail!("forebay umount: {status}");
        }
        for _ in 0..100 {
            if has_ended(self.pid) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.force();
        bail!(
            "the daemon {} was still there 5 s after the unmount",
            self.pid
        )
    }

    /// Ends the mount whatever its state, by the daemon's own pid.
    fn force(&self) {
        let _ = Command::new(&self.binary)
            .arg("umount")
            .arg(&self.dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let raw = i32::try_from(self.pid).ok();
        // Only if the pid is still a forebay: it may have been reused.
        if let Some(pid) = raw.and_then(rustix::process::Pid::from_raw)
            && fs::read_link(format!("/proc/{}/exe", self.pid)).is_ok_and(|exe| exe == self.binary)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = Command::new("fusermount3")
            .args(["-u", "-z", "-q"])
            .arg(&self.dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// Takes what the caller's environment sets of Forebay's flags away (`FOREBAY_FOREGROUND` would
/// hang us, others change what is measured). Where the control sockets are stays.
fn without_settings(command: &mut Command, variables: impl Iterator<Item = OsString>) {
    let settings = variables.filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("FOREBAY_") && name != "FOREBAY_RUNTIME_DIR"
    });
    for name in settings {
        command.env_remove(name);
    }
}

/// Whether the process is gone, or a zombie that nobody has reaped (as in some containers).
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with('Z'))
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            self.force();
        }
    }
}

/// What the daemon counted, as far as the demo and the figures need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads answered from memory without waiting.
    pub memory_hits: u64,
    /// Bytes of those.
    pub memory_hit_bytes: u64,
    /// Reads that waited for the cache on disk, and for nothing farther away.
    pub disk_hits: u64,
    /// Bytes of those.
    pub disk_hit_bytes: u64,
    /// Bytes that the cache on disk could not keep up with.
    pub disk_dropped_bytes: u64,
    /// Reads that waited for the origin.
    pub misses: u64,
    /// Bytes of those.
    pub miss_bytes: u64,
    /// Reads answered with an error.
    pub read_errors: u64,
    /// Bytes that came from the origin, whatever the reason.
    pub origin_bytes: u64,
}

/// The JSON that a command printed.
struct Report {
    command: String,
    json: Value,
}

impl Report {
    /// What number `key` adds up to over the objects of the array at `pointer`.
    fn sum(&self, pointer: &str, key: &str) -> Result<u64> {
        let missing = || format!("forebay {} --json has no {pointer}", self.command);
        let all = self.json.pointer(pointer).and_then(Value::as_array);
        let numbers = all
            .with_context(missing)?
            .iter()
            .map(|one| one[key].as_u64());
        let sum: Option<u64> = numbers.sum();
        sum.with_context(|| format!("forebay {} --json: no {key} in {pointer}", self.command))
    }

    /// The number at the first of `pointers` that leads to one.
    fn number(&self, pointers: &[&str]) -> Result<u64> {
        let found = pointers
            .iter()
            .find_map(|pointer| self.json.pointer(pointer)?.as_u64());
        found.with_context(|| {
            format!(
                "forebay {} --json has no {}: {}",
                self.command, pointers[0], self.json
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn settings_of_the_environment_do_not_reach_a_mount() {
        let mut command = Command::new("forebay");
        let there = ["FOREBAY_FOREGROUND", "FOREBAY_RUNTIME_DIR", "HOME"];
        without_settings(&mut command, there.map(OsString::from).into_iter());
        let removed: Vec<_> = command.get_envs().collect();
        assert_eq!(removed, [("FOREBAY_FOREGROUND".as_ref(), None)]);
    }

    /// A stand-in for `forebay` that writes what it was called with, and its process group.
    fn stand_in(dir: &Path, end: &str) -> Result<PathBuf> {
        let path = dir.join("forebay");
        let called = dir.join("called").display().to_string();
        let script = format!(
            "#!/bin/sh\nread -r _ _ _ _ group _ </proc/self/stat\necho \"$1 $$ $group\" >>'{called}'\n{end}\n"
        );
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    fn called(dir: &Path, end: &str) -> Result<String> {
        let options = MountOptions {
            binary: Some(stand_in(dir, end)?),
            source: "s3://bucket".to_owned(),
            endpoint: "http://127.0.0.1:9",
            credentials: None,
            memory: "64MiB",
            flags: Vec::new(),
        };
        assert!(Mount::new(&dir.join("none"), &options).is_err());
        Ok(fs::read_to_string(dir.join("called"))?)
    }

    #[test]
    fn an_interrupted_mount_is_unmounted_and_a_refused_one_is_let_be() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let refused = called(dir.path(), "exit 1")?;
        let words: Vec<&str> = refused.split_whitespace().collect();
        assert_eq!(words.len(), 3, "called once: {refused}");
        assert_eq!(words[1], words[2], "leads a process group of its own");
        let interrupted = called(dir.path(), "test $1 = umount || kill -9 $$")?;
        assert!(interrupted.contains("umount"), "{interrupted}");
        Ok(())
    }
}
