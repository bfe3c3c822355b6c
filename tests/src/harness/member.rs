//! `forebay serve` as its users run it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_cli::control::sockets::{remove_stale, runtime_dir, socket_path};

use super::Credentials;
use super::program::{ask, daemon_command, forebay_binary, has_ended, kill};
use super::report::{Report, Stats};

/// A killed process is gone by then.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Who serves what, and how.
#[derive(Clone, Debug)]
pub struct MemberOptions<'a> {
    /// `--cache-group`.
    pub group: &'a str,
    /// `--node-id`.
    pub node: &'a str,
    /// `s3://bucket`.
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

/// A member without a mount. It is killed when dropped.
#[derive(Debug)]
pub struct Member {
    binary: PathBuf,
    /// `GROUP/NODE`.
    name: String,
    pid: u32,
    runs: bool,
}

impl Member {
    /// Runs `forebay serve --background` and returns when it has, which is when the member serves.
    ///
    /// # Errors
    /// What `forebay serve` said.
    pub fn start(options: &MemberOptions<'_>) -> Result<Self> {
        let binary = forebay_binary()?;
        let mut command = daemon_command(&binary, "serve", options.credentials);
        command.arg(&options.source).arg("--background");
        command.args(["--cache-group", options.group, "--node-id", options.node]);
        command.args(["--endpoint", options.endpoint, "--memory", options.memory]);
        command.args(&options.flags);
        let status = command
            .status()
            .with_context(|| format!("cannot run {}", binary.display()))?;
        ensure!(status.success(), "forebay serve {}: {status}", options.node);
        let mut member = Self {
            binary,
            name: format!("{}/{}", options.group, options.node),
            pid: 0,
            runs: true,
        };
        member.pid = u32::try_from(member.ask("status")?.number(&["/pid", "/0/pid"])?)?;
        Ok(member)
    }

    /// The daemon.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn serve_name(&self) -> String {
        format!("serve:{}", self.name)
    }

    /// What a command says of this member with `--json`.
    ///
    /// # Errors
    /// When it fails, or prints no JSON.
    pub fn ask(&self, command: &str) -> Result<Report> {
        ask(&self.binary, command, self.serve_name().as_ref())
    }

    /// What `forebay stats` says, for programs.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn stats(&self) -> Result<Stats> {
        Stats::of(&self.ask("stats")?)
    }

    /// Runs `forebay stop`, which returns when the daemon is gone.
    ///
    /// # Errors
    /// What `forebay stop` said.
    pub fn stop(mut self) -> Result<()> {
        let status = Command::new(&self.binary)
            .args(["stop", &self.name])
            .status()?;
        self.runs = !status.success();
        ensure!(status.success(), "forebay stop {}: {status}", self.name);
        Ok(())
    }

    /// SIGKILL: no farewell, nothing flushed. Returns when the process is gone.
    ///
    /// # Errors
    /// When it stays.
    pub fn kill(mut self) -> Result<()> {
        self.runs = false;
        self.kill_and_wait()
    }

    fn kill_and_wait(&self) -> Result<()> {
        kill(self.pid, &self.binary);
        let start = Instant::now();
        while !has_ended(self.pid) {
            ensure!(
                start.elapsed() < KILL_TIMEOUT,
                "the daemon {} of {} survives SIGKILL",
                self.pid,
                self.name
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        // Nobody else removes what a killed daemon leaves. Its last threads may hold the socket a little longer.
        let socket = socket_path(&runtime_dir(), Path::new(&self.serve_name()));
        while matches!(remove_stale(&socket), Ok(false)) && socket.exists() {
            ensure!(
                start.elapsed() < KILL_TIMEOUT,
                "somebody else listens at {}",
                socket.display()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if !self.runs {
            return;
        }
        if self.pid == 0 {
            // It came up and did not say who it is.
            let _ = Command::new(&self.binary)
                .args(["stop", &self.name])
                .status();
        }
        let _ = self.kill_and_wait();
    }
}
