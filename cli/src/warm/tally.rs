//! What came out of a job so far.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::units::show_duration;

use super::report::{Failure, JobReport, JobState, NAMED_MAX, Work, state_of};

/// Counts of one job, shared by all that work for it.
#[derive(Debug)]
pub struct Tally {
    started: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    report: JobReport,
    took: Option<Duration>,
    /// The paths of `report.failures`.
    named: HashSet<Arc<str>>,
    /// Those of them of which no listing told anything.
    unlisted: HashSet<Arc<str>>,
    /// How long S3 has not answered, as of when that was seen.
    silent: Option<Duration>,
}

impl Tally {
    /// Of a job that begins now.
    pub fn new(id: String, mount_point: String, work: Work) -> Self {
        let report = JobReport {
            id,
            mount_point,
            work: Some(work),
            ..JobReport::default()
        };
        let inner = Mutex::new(Inner {
            report,
            ..Inner::default()
        });
        Self {
            started: Instant::now(),
            inner,
        }
    }

    /// As users see it.
    pub fn report(&self) -> JobReport {
        let inner = self.inner.lock();
        let took = inner.took.unwrap_or_else(|| self.started.elapsed());
        let silent = inner.silent.filter(|_| !inner.report.state.is_over());
        let origin = silent.map(|span| format!("has not answered for {}", show_duration(span)));
        JobReport {
            seconds: took.as_secs_f64(),
            origin,
            ..inner.report.clone()
        }
    }

    /// How far the job is.
    pub fn state(&self) -> JobState {
        self.inner.lock().report.state
    }

    /// The job is in another state now. One that is over stays so.
    pub fn enter(&self, state: JobState) {
        let mut inner = self.inner.lock();
        if inner.report.state.is_over() {
            return;
        }
        inner.report.state = state;
        if state.is_over() {
            inner.took = Some(self.started.elapsed());
        }
    }

    /// A file was found.
    pub fn found(&self, bytes: u64) {
        let report = &mut self.inner.lock().report;
        report.files += 1;
        report.bytes += bytes;
    }

    /// Objects that are no files.
    pub fn left_out(&self, objects: u64) {
        self.inner.lock().report.left_out += objects;
    }

    /// Everything has been found.
    pub fn listed(&self) {
        self.inner.lock().report.listed = true;
    }

    /// A part of a file was gone through.
    pub fn gone_through(&self, bytes: u64) {
        self.inner.lock().report.bytes_done += bytes;
    }

    /// A file was gone through.
    pub fn file_done(&self) {
        self.inner.lock().report.files_done += 1;
    }

    /// What is cached of a file.
    pub fn cached(&self, cached_bytes: u64, bytes: u64) {
        let report = &mut self.inner.lock().report;
        report.cached_bytes += cached_bytes;
        match state_of(cached_bytes, bytes) {
            0 => report.full += 1,
            1 => report.partial += 1,
            _ => report.none += 1,
        }
    }

    /// What was dropped.
    pub fn dropped(&self, bytes: u64) {
        self.inner.lock().report.dropped_bytes += bytes;
    }

    /// How long S3 has not answered; none: it does, or has not been asked.
    pub fn silent(&self, span: Option<Duration>) {
        self.inner.lock().silent = span;
    }

    /// Nothing is known of what a path is, or what is in it.
    pub fn not_listed(&self, path: &str, reason: String) {
        self.failed(path, reason);
        let inner = &mut *self.inner.lock();
        if let Some(path) = inner.named.get(path) {
            inner.unlisted.insert(path.clone());
        }
    }

    /// Whether a path was listed, or may have been: more fail than are named.
    pub fn was_listed(&self, path: &str) -> bool {
        !self.inner.lock().unlisted.contains(path)
    }

    /// A path or file failed. Of one that is named already nothing is added.
    pub fn failed(&self, path: &str, reason: String) {
        let inner = &mut *self.inner.lock();
        if inner.named.contains(path) {
            return;
        }
        inner.report.failed += 1;
        if inner.named.len() < NAMED_MAX {
            inner.named.insert(path.into());
            let path = path.to_owned();
            inner.report.failures.push(Failure { path, reason });
        }
    }

    /// Whether every failure is named, so that one that is met again is known.
    pub fn names_all(&self) -> bool {
        let inner = self.inner.lock();
        inner.report.failed == inner.named.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_once_and_named_up_to_a_bound() {
        let tally = Tally::new("1-1".into(), "/m".into(), Work::Warmup);
        tally.failed("a", "x".into());
        tally.failed("a", "y".into());
        assert_eq!(tally.report().failed, 1);
        assert!(tally.names_all());
        for n in 0..NAMED_MAX {
            tally.failed(&n.to_string(), "z".into());
        }
        let report = tally.report();
        assert_eq!(
            (report.failed, report.failures.len()),
            (1 + NAMED_MAX as u64, NAMED_MAX)
        );
        assert_eq!(report.failures[0].reason, "x");
        assert!(!tally.names_all());
    }

    #[test]
    fn what_was_not_listed_is_known_by_name() {
        let tally = Tally::new("1-1".into(), "/m".into(), Work::Warmup);
        tally.not_listed("a", "x".into());
        tally.failed("b", "y".into());
        assert_eq!(tally.report().failed, 2);
        assert!(!tally.was_listed("a") && tally.was_listed("b"));
    }

    #[test]
    fn the_origin_is_told_of_only_while_it_is_silent_and_the_job_runs() {
        let tally = Tally::new("1-1".into(), "/m".into(), Work::Warmup);
        assert_eq!(tally.report().origin, None);
        tally.silent(Some(Duration::from_millis(12_345)));
        let origin = tally.report().origin.unwrap();
        assert_eq!(origin, "has not answered for 12.3 s");
        tally.silent(None);
        assert_eq!(tally.report().origin, None);
        tally.silent(Some(Duration::from_secs(2)));
        tally.enter(JobState::Done);
        assert_eq!(tally.report().origin, None);
    }

    #[test]
    fn what_is_over_stays_so() {
        let tally = Tally::new("1-1".into(), "/m".into(), Work::Check);
        tally.enter(JobState::Stopped);
        tally.enter(JobState::Done);
        assert_eq!(tally.state(), JobState::Stopped);
        let seconds = tally.report().seconds;
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(tally.report().seconds, seconds);
    }

    #[test]
    fn files_are_full_partial_or_not_there() {
        let tally = Tally::new("1-1".into(), "/m".into(), Work::Check);
        for (cached, bytes) in [(0, 0), (5, 5), (4, 5), (0, 5)] {
            tally.cached(cached, bytes);
        }
        let report = tally.report();
        assert_eq!((report.full, report.partial, report.none), (2, 1, 1));
        assert_eq!(report.cached_bytes, 9);
    }
}
