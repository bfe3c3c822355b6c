//! `forebay mount` as its users run it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Credentials;
use super::program::{ask, daemon_command, forebay_binary, has_ended, kill};
use super::report::{Report, Stats};

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
        let mut command = daemon_command(&binary, "mount", options.credentials);
        command.arg(&options.source).arg(dir);
        command.args(["--endpoint", options.endpoint, "--memory", options.memory]);
        command.args(&options.flags);
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
        Stats::of(&self.ask("stats")?)
    }

    /// What a command says of this mount with `--json`.
    ///
    /// # Errors
    /// When it fails, or prints no JSON.
    pub fn ask(&self, command: &str) -> Result<Report> {
        ask(&self.binary, command, self.dir.as_ref())
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
        kill(self.pid, &self.binary);
        let _ = Command::new("fusermount3")
            .args(["-u", "-z", "-q"])
            .arg(&self.dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            self.force();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

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
