//! A place for one test: an S3 server, a runtime directory, mount points; cleaned up whatever
//! happens, and no command runs unbounded.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_cli::control::client::living;
use forebay_cli::mounts::{self, Detach};
use forebay_tests::s3::{EmbeddedS3, Options};
use rustix::process::{Pid, Signal, kill_process};

/// Longest a command may take; those that wait for a daemon end well within it.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(40);

/// How many times longer everything may take: `FOREBAY_TEST_PATIENCE`, for an emulated processor.
fn patience() -> u32 {
    let given = std::env::var("FOREBAY_TEST_PATIENCE").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Whether mounts are possible here; says so when they are not.
pub fn have_fuse() -> bool {
    let have = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .is_ok();
    if !have {
        eprintln!(
            "SKIPPED: no /dev/fuse here (or no right to open it): mounts by the command line did not run"
        );
    }
    have
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ended {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails the test unless the command succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "stderr: {}", self.stderr);
        self
    }

    /// Fails the test unless the command failed with all of `parts` in its message.
    #[track_caller]
    pub fn failed(self, parts: &[&str]) -> Self {
        assert_eq!(
            self.code,
            Some(1),
            "stdout: {} stderr: {}",
            self.text(),
            self.stderr
        );
        for part in parts {
            assert!(
                self.stderr.contains(part),
                "no {part:?} in: {}",
                self.stderr
            );
        }
        self
    }
}

/// A command under way.
pub struct Running {
    child: Child,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
}

fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stdout = drain(child.stdout.take().unwrap());
        let stderr = drain(child.stderr.take().unwrap());
        Self {
            child,
            stdout,
            stderr,
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end; kills the command and fails the test after `timeout`.
    #[track_caller]
    pub fn wait(mut self, timeout: Duration) -> Ended {
        let timeout = timeout * patience();
        let status = wait_child(&mut self.child, timeout);
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let stderr = String::from_utf8_lossy(&self.stderr.join().unwrap()).into_owned();
        let Some(status) = status else {
            panic!("no end within {timeout:?}; stderr: {stderr}")
        };
        Ended {
            code: status.code(),
            signal: status.signal(),
            stdout: self.stdout.join().unwrap(),
            stderr,
        }
    }
}

fn wait_child(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Fails the test when `condition` does not come true in time.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + COMMAND_TIMEOUT * patience();
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One test's place.
pub struct Place {
    pub server: EmbeddedS3,
    dir: tempfile::TempDir,
    root: PathBuf,
}

impl Place {
    /// A place with a server of `options` and no mounts.
    pub fn with(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::write(root.join("empty"), "").unwrap();
        Self {
            server: EmbeddedS3::start(options).unwrap(),
            dir,
            root,
        }
    }

    /// A place with a server that has an empty bucket `bucket`.
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    /// A directory of this place, made if it is not there.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.root.join(name);
        // A mount point whose daemon is dead is there, too.
        let _ = fs::create_dir(&path);
        path
    }

    /// Where the control sockets are.
    pub fn runtime_dir(&self) -> PathBuf {
        self.root.join("run")
    }

    /// `forebay` with this place's server, credentials and directories.
    pub fn command<A: AsRef<std::ffi::OsStr>>(&self, args: &[A]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-under-test"));
        command.args(args);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AWS_")
                || name.to_string_lossy().starts_with("FOREBAY_")
            {
                command.env_remove(name);
            }
        }
        command
            .env("AWS_ACCESS_KEY_ID", &self.server.options().access_key)
            .env("AWS_SECRET_ACCESS_KEY", &self.server.options().secret_key)
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("AWS_CONFIG_FILE", self.root.join("empty"))
            .env("AWS_SHARED_CREDENTIALS_FILE", self.root.join("empty"))
            .env("FOREBAY_ENDPOINT", self.server.endpoint())
            .env("FOREBAY_RUNTIME_DIR", self.runtime_dir())
            .env("FOREBAY_LOG_FILE", self.root.join("log"))
            .env("FOREBAY_MEMORY", "128MiB")
            .env("FOREBAY_CORES", "1")
            .env("FOREBAY_IO_TIMEOUT", "20s")
            .current_dir(&self.root);
        command
    }

    /// Runs `forebay` to its end.
    #[track_caller]
    pub fn run<A: AsRef<std::ffi::OsStr>>(&self, args: &[A]) -> Ended {
        Running::start(&mut self.command(args)).wait(COMMAND_TIMEOUT)
    }

    /// Mounts the bucket at directory `name`.
    #[track_caller]
    pub fn mount(&self, name: &str) -> PathBuf {
        let path = self.dir(name);
        self.run(&["mount", "s3://bucket", path.to_str().unwrap()])
            .ok();
        path
    }

    /// Starts a mount in the foreground and waits until it answers.
    #[track_caller]
    pub fn mount_in_foreground(&self, name: &str) -> (Running, PathBuf) {
        let path = self.dir(name);
        let mut command = self.command(&[
            "mount",
            "--foreground",
            "s3://bucket",
            path.to_str().unwrap(),
        ]);
        let mut running = Running::start(&mut command);
        eventually("the mount answers", || {
            assert!(
                running.child.try_wait().unwrap().is_none(),
                "the foreground mount ended at once"
            );
            self.pid_of(&path).is_some()
        });
        (running, path)
    }

    /// The daemon's process id, when it answers.
    pub fn pid_of(&self, path: &Path) -> Option<u32> {
        living(&self.runtime_dir())
            .into_iter()
            .find(|(_, status)| status.mount_point == path)
            .map(|(_, status)| status.pid)
    }

    /// Kills the daemon of `path` without a chance to clean up, and waits for its end.
    pub fn kill(&self, path: &Path) {
        let pid = self.pid_of(path).expect("the daemon answers");
        send(pid, Signal::KILL);
        eventually("the killed daemon is gone", || !is_running(pid));
    }

    /// The daemons' log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.root.join("log")).unwrap_or_default()
    }

    /// Fails the test if anything of a mount at `path` is left.
    #[track_caller]
    pub fn assert_clean(&self, path: &Path) {
        assert_eq!(mounts::mount_at(path).unwrap(), None);
        let left = fs::read_dir(self.runtime_dir()).map(|entries| entries.flatten().collect());
        let left: Vec<fs::DirEntry> = left.unwrap_or_default();
        assert!(left.is_empty(), "{left:?}");
        assert!(
            fs::read_dir(path).unwrap().next().is_none(),
            "the directory is an empty one again"
        );
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let pids: Vec<u32> = living(&self.runtime_dir())
            .into_iter()
            .map(|(_, status)| status.pid)
            .collect();
        for entry in mounts::mount_table().unwrap_or_default() {
            if entry.mount_point.starts_with(&self.root) {
                let _ = mounts::unmount(&entry.mount_point, Detach::Lazily);
            }
        }
        pids.into_iter()
            .filter(|pid| *pid != std::process::id())
            .for_each(|pid| send(pid, Signal::KILL));
        if std::thread::panicking() {
            eprintln!(
                "the daemons' log in {}:\n{}",
                self.dir.path().display(),
                self.log()
            );
        }
    }
}

pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Stops a process, and waits until all of its threads are: the signal reaches them one by one, on a busy machine over
/// hundreds of milliseconds, and those that it has not reached yet still answer.
pub fn stop(pid: u32) {
    send(pid, Signal::STOP);
    eventually("every thread is stopped", || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads.flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')')
                .is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
        })
    });
}

/// Whether the process is there and no zombie (a container's first process may not reap).
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// What a command printed with `--json`.
#[track_caller]
pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// Bytes that differ everywhere.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|n| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ seed)
        .collect()
}
