//! How far a job is, on one line.

use super::report::{JobReport, JobState, Work};
use crate::output::percent;
use crate::progress::rest;
use crate::units::Bytes;

/// What was done, of how much, how fast, and how long the rest takes at that rate; what S3 is like, if it is silent.
pub fn line(report: &JobReport, rate: f64) -> String {
    match &report.origin {
        Some(origin) => format!("{}; S3 {origin}", done(report, rate)),
        None => done(report, rate),
    }
}

fn done(report: &JobReport, rate: f64) -> String {
    let files = match report.listed {
        true => format!("{} of {} files", report.files_done, report.files),
        false => format!("{} of {} files so far", report.files_done, report.files),
    };
    if report.state == JobState::Checking {
        return format!(
            "{files}, {} failed; looking whether all of it is cached",
            report.failed
        );
    }
    if report.work == Some(Work::Metadata) {
        return format!(
            "attributes of {} files, {} failed",
            report.files, report.failed
        );
    }
    let left = report.bytes.saturating_sub(report.bytes_done);
    let rest = match report.listed {
        true => rest(left, rate),
        false => "?".into(),
    };
    let share = match report.listed {
        true => format!(" ({})", percent(report.bytes_done, report.bytes)),
        false => " known so far".into(),
    };
    format!(
        "{} of {}{share}, {}/s, still {rest}, {files}, {} failed",
        Bytes(report.bytes_done),
        Bytes(report.bytes),
        Bytes(rate as u64),
        report.failed,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn report() -> JobReport {
        JobReport {
            work: Some(Work::Warmup),
            listed: true,
            files: 20,
            files_done: 5,
            bytes: 100 * MIB,
            bytes_done: 25 * MIB,
            failed: 1,
            ..JobReport::default()
        }
    }

    #[test]
    fn share_and_rest_are_told_once_all_is_known() {
        let rate = (5 * MIB) as f64;
        assert_eq!(
            line(&report(), rate),
            "25 MiB of 100 MiB (25.0 %), 5 MiB/s, still 15.0 s, 5 of 20 files, 1 failed"
        );
        let listing = JobReport {
            listed: false,
            origin: Some("has not answered for 12 s".into()),
            ..report()
        };
        assert_eq!(
            line(&listing, rate),
            "25 MiB of 100 MiB known so far, 5 MiB/s, still ?, 5 of 20 files so far, 1 failed; S3 has not answered for 12 s"
        );
    }
}
