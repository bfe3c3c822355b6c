//! What is said of a drain: how far it is, how it ended, what that means.

use std::time::Duration;

use crate::group::draining::{DrainReport, DrainState};
use crate::output::percent;
use crate::progress::rest;
use crate::units::{Bytes, show_duration};

/// What becomes of the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Goes {
    /// It ends when it has handed over what it holds.
    Leaves,
    /// It has ended.
    Left,
    /// It is a mount, and goes on.
    Stays,
}

/// Of what a running drain has to do, how much it has gone through.
pub fn done_bytes(report: &DrainReport) -> u64 {
    report.bytes.saturating_sub(report.left_bytes)
}

/// What was gone through, of how much, at how many bytes a second, and how long the rest takes at that rate.
pub fn line(report: &DrainReport, rate: f64) -> String {
    if report.without_heir {
        return "waiting: no other member has a weight".into();
    }
    if !report.counted {
        return "looking at what there is".into();
    }
    let mut text = format!(
        "{} of {} ({}), {}/s, still {}, {} handed over",
        Bytes(done_bytes(report)),
        Bytes(report.bytes),
        percent(done_bytes(report), report.bytes),
        Bytes(rate as u64),
        rest(report.left_bytes, rate),
        Bytes(report.given_bytes),
    );
    if report.refused_blocks > 0 {
        text.push_str(&format!(", {} without room", Bytes(report.refused_bytes)));
    }
    text
}

/// One line of how far it is, or came.
pub fn summary(report: &DrainReport, goes: Goes) -> String {
    let name = &report.name;
    let took = show_duration(Duration::try_from_secs_f64(report.seconds).unwrap_or_default());
    let given = Bytes(report.given_bytes);
    match report.state {
        DrainState::None => format!("{name}: no drain was asked for\n"),
        DrainState::Running if report.without_heir => {
            format!("{name}: waits, for no other member has a weight\n")
        }
        DrainState::Running => format!("{name}: {}\n", line(report, 0.0)),
        DrainState::Stopped => format!(
            "{name}: stopped after {took}, {given} handed over; it has its weight again, and what it had\n"
        ),
        DrainState::Ended => format!(
            "{name}: was ended after {took}, {given} handed over, before {} were\n",
            left(report)
        ),
        DrainState::Done => {
            let refused = match report.refused_blocks {
                0 => String::new(),
                blocks => format!(
                    ", {} in {blocks} blocks found no room",
                    Bytes(report.refused_bytes)
                ),
            };
            let what = match goes {
                Goes::Leaves => "it leaves the group",
                Goes::Left => "it has left the group",
                Goes::Stays => "the mount goes on, and takes only",
            };
            format!("{name}: {given} handed over in {took}{refused}; {what}\n")
        }
    }
}

/// What is not handed over yet, as far as it is known.
fn left(report: &DrainReport) -> String {
    match report.counted {
        true => format!(
            "{} in {} blocks",
            Bytes(report.left_bytes),
            report.left_blocks
        ),
        false => "all that it holds".into(),
    }
}

/// What it means when a member ends now, where not all of it is with others.
pub(in crate::commands) fn unfinished(report: &DrainReport, goes: Goes) -> Option<String> {
    match report.state {
        DrainState::Running | DrainState::Ended => Some(format!(
            "ended before it had handed over what it holds: {} are left in its cache directory, if it has one; start it \
             again to go on",
            left(report)
        )),
        DrainState::Done if report.refused_blocks > 0 => Some(lost(report, goes)),
        DrainState::Done | DrainState::None | DrainState::Stopped => None,
    }
}

/// What it means that others had no room.
pub(in crate::commands) fn lost(report: &DrainReport, goes: Goes) -> String {
    let stays = match goes {
        Goes::Leaves | Goes::Left => "it stays in this member's cache directory, if it has one",
        Goes::Stays => "the mount still has it",
    };
    format!(
        "{} in {} blocks found no room at the members that own them now; the group reads it from S3 again when it is \
         needed ({stays}: give the others more room, or start this one again with a weight)",
        Bytes(report.refused_bytes),
        report.refused_blocks
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn share_rate_and_rest_are_told_once_all_is_counted() {
        let mut report = DrainReport {
            bytes: 100 * MIB,
            left_bytes: 75 * MIB,
            given_bytes: 20 * MIB,
            ..DrainReport::default()
        };
        assert_eq!(line(&report, 1.0), "looking at what there is");
        report.counted = true;
        let rate = (5 * MIB) as f64;
        assert_eq!(
            line(&report, rate),
            "25 MiB of 100 MiB (25.0 %), 5 MiB/s, still 15.0 s, 20 MiB handed over"
        );
        report.refused_blocks = 1;
        report.refused_bytes = MIB;
        assert!(line(&report, 0.0).ends_with("still ?, 20 MiB handed over, 1 MiB without room"));
    }

    #[test]
    fn a_drain_is_told_on_one_line() {
        let mut report = DrainReport {
            name: "serve:g/a".into(),
            state: DrainState::Done,
            seconds: 2.0,
            given_bytes: 8 * MIB,
            ..DrainReport::default()
        };
        assert_eq!(
            summary(&report, Goes::Leaves),
            "serve:g/a: 8 MiB handed over in 2.0 s; it leaves the group\n"
        );
        (report.refused_blocks, report.refused_bytes) = (2, 5 * MIB);
        let text = summary(&report, Goes::Stays);
        assert!(
            text.contains("5 MiB in 2 blocks found no room; the mount"),
            "{text}"
        );
        report.state = DrainState::Stopped;
        assert!(summary(&report, Goes::Leaves).contains("weight again"));
    }

    #[test]
    fn what_an_end_leaves_behind_is_said_whatever_the_drain_was_at() {
        let mut report = DrainReport::default();
        assert_eq!(unfinished(&report, Goes::Leaves), None);
        report.state = DrainState::Running;
        let text = unfinished(&report, Goes::Leaves).unwrap();
        assert!(text.contains("all that it holds"), "{text}");
        (report.counted, report.left_bytes, report.left_blocks) = (true, 3 * MIB, 2);
        let text = unfinished(&report, Goes::Leaves).unwrap();
        assert!(text.contains("3 MiB in 2 blocks are left"), "{text}");
        report.state = DrainState::Done;
        assert_eq!(unfinished(&report, Goes::Leaves), None);
        report.refused_blocks = 1;
        let text = unfinished(&report, Goes::Leaves).unwrap();
        assert!(text.contains("from S3 again"), "{text}");
        report.state = DrainState::Stopped;
        assert_eq!(unfinished(&report, Goes::Leaves), None);
    }
}
