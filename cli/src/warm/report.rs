//! What travels through the control socket, and what `--json` prints.

use serde::{Deserialize, Serialize};

/// Stripes under way at once, unless `-p` says otherwise.
pub const PARALLEL_DEFAULT: u32 = 32;
/// Most stripes under way at once: half of what one core takes.
pub const PARALLEL_MAX: u32 = 512;
/// Failures that are named; the others are counted.
pub const NAMED_MAX: usize = 1_000;
/// Longest request: about a million paths.
pub const REQUEST_BYTES_MAX: usize = 256 << 20;

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Brings every byte to where it belongs, and looks at the end whether all of it is there.
    Warmup,
    /// Asks for names and attributes alone.
    Metadata,
    /// Counts what is cached.
    Check,
    /// Drops what is cached.
    Evict,
}

/// Asks for a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRequest {
    /// What to do.
    pub work: Work,
    /// With what: paths below the mount point, without a slash in front; the empty one is all. One that ends
    /// in a slash is a directory.
    pub paths: Vec<String>,
    /// Stripes under way at once.
    pub parallel: u32,
    /// Someone waits: the job ends when nobody asks for it any more.
    pub attended: bool,
}

/// The name of a job: `PID-N`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStarted {
    /// Its name.
    pub id: String,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Under way.
    #[default]
    Running,
    /// A warm-up that has been through everything and looks whether it is still there.
    Checking,
    /// It went through everything; `failed` says how well.
    Done,
    /// It was stopped.
    Stopped,
}

impl JobState {
    /// Whether it is over.
    pub fn is_over(self) -> bool {
        matches!(self, JobState::Done | JobState::Stopped)
    }
}

/// A path and why it failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Below the mount point, or as it was given.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// What a job did so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// Its name.
    pub id: String,
    /// Where its paths are.
    pub mount_point: String,
    /// What it does.
    pub work: Option<Work>,
    /// How far it is.
    pub state: JobState,
    /// Since its start, until its end.
    pub seconds: f64,
    /// Whether all of it is known: `files` and `bytes` grow no more.
    pub listed: bool,
    /// Files known.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files gone through.
    pub files_done: u64,
    /// Bytes gone through.
    pub bytes_done: u64,
    /// Of those, cached (`warmup`, `check`).
    pub cached_bytes: u64,
    /// Bytes dropped, on all members together (`evict`).
    pub dropped_bytes: u64,
    /// Files of which all is cached.
    pub full: u64,
    /// Files of which some is.
    pub partial: u64,
    /// Files of which nothing is.
    pub none: u64,
    /// Objects that the mount does not show, passed over.
    pub left_out: u64,
    /// What S3 is like while it does not answer.
    #[serde(default)]
    pub origin: Option<String>,
    /// Paths and files that failed.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<Failure>,
}

/// One line of the answer to a check: a file, or at the end what it came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckLine {
    /// A file.
    File(CheckedFile),
    /// All of it.
    Summary(Box<JobReport>),
}

/// What is cached of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedFile {
    /// Below the mount point.
    pub path: String,
    /// 0 = full, 1 = partial, 2 = none.
    pub state: u8,
    /// Its length.
    pub bytes: u64,
    /// Cached of it.
    pub cached_bytes: u64,
}

/// How much of a file is cached, as `check` says it.
pub fn state_of(cached_bytes: u64, bytes: u64) -> u8 {
    match cached_bytes {
        cached if cached >= bytes => 0,
        0 => 2,
        _ => 1,
    }
}
