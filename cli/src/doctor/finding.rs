//! What is told of one thing.

use std::fmt;

use serde::Serialize;

/// How it stands with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Not there, and nothing needs it.
    Absent,
    /// Works, but slower or in part.
    Warning,
    /// Something will not work.
    Problem,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Ok => "ok",
            Verdict::Absent => "-",
            Verdict::Warning => "WARNING",
            Verdict::Problem => "PROBLEM",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `fuse`, `io_uring`, `limits`, `memory`, `network` or `rdma`.
    pub area: &'static str,
    /// Which thing.
    pub object: String,
    /// How it stands with it.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to change; none when there is nothing to.
    pub advice: Option<String>,
}

impl Finding {
    fn new(area: &'static str, object: &str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self {
            area,
            object: object.into(),
            verdict,
            found: found.into(),
            advice: None,
        }
    }

    /// As it should be.
    pub fn ok(area: &'static str, object: &str, found: impl Into<String>) -> Self {
        Self::new(area, object, Verdict::Ok, found)
    }

    /// Not there, and nothing needs it.
    pub fn absent(area: &'static str, object: &str, found: impl Into<String>) -> Self {
        Self::new(area, object, Verdict::Absent, found)
    }

    /// Works, but slower or in part.
    pub fn warning(
        area: &'static str,
        object: &str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            advice: Some(advice.into()),
            ..Self::new(area, object, Verdict::Warning, found)
        }
    }

    /// Something will not work.
    pub fn problem(
        area: &'static str,
        object: &str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            advice: Some(advice.into()),
            ..Self::new(area, object, Verdict::Problem, found)
        }
    }
}
