//! `forebay stats --group`: a row for each member, and all of them added up.

use super::{cells, hits};
use crate::control::report::Tiers;
use crate::group::stats::{DiskUse, GroupCounts, GroupStats, MemberStats};
use crate::output::{percent, table};
use crate::units::Bytes;

/// All of it, for people.
pub fn all(stats: &GroupStats) -> String {
    let answered = stats.members.iter().filter(|row| row.counts.is_some());
    let mut sections = vec![
        format!(
            "group {}: {} of {} answered\n",
            stats.group,
            answered.count(),
            stats.members.len()
        ),
        rows(stats),
        reasons(&stats.total),
    ];
    let silent = stats.members.iter().filter_map(|row| {
        let why = row.error.as_ref()?;
        Some(format!("{} did not answer: {why}\n", row.node))
    });
    let silent: String = silent.collect();
    if !silent.is_empty() {
        sections.push(silent);
    }
    sections.join("\n")
}

fn rows(stats: &GroupStats) -> String {
    let mut rows = vec![cells([
        "NODE",
        "reads",
        "memory",
        "disk",
        "group",
        "origin",
        "from S3",
        "from peers",
        "to peers",
        "disk used",
        "of",
        "written",
        "ampl.",
    ])];
    for member in &stats.members {
        match &member.counts {
            Some(counts) => rows.push(row(&name(member), counts)),
            None => rows.push(vec![name(member), "-".into()]),
        }
    }
    rows.push(row("all", &stats.total));
    table(&rows, &(1..rows[0].len()).collect::<Vec<_>>())
}

fn name(member: &MemberStats) -> String {
    let role = match &*member.role {
        "client" => " (client)",
        _ => "",
    };
    let this = if member.this { " *" } else { "" };
    format!("{}{role}{this}", member.node)
}

fn row(name: &str, counts: &GroupCounts) -> Vec<String> {
    let Tiers {
        memory,
        disk,
        group,
        origin,
        ..
    } = &counts.tiers;
    let all = hits(&counts.tiers);
    let bytes = |bytes| Bytes(bytes).to_string();
    let DiskUse {
        filled_bytes,
        reinserted_bytes,
        overhead_bytes,
        ..
    } = &counts.disk;
    let amplification = match filled_bytes {
        0 => "-".into(),
        _ => format!("{:.2}", counts.disk.write_amplification),
    };
    vec![
        name.to_owned(),
        counts.reads.answered.to_string(),
        percent(memory.hits, all),
        percent(disk.hits, all),
        percent(group.hits, all),
        percent(origin.hits, all),
        bytes(counts.origin.bytes),
        bytes(counts.peers.received_bytes),
        bytes(counts.peers.served_bytes),
        bytes(counts.disk.cached_bytes),
        bytes(counts.disk.capacity_bytes),
        bytes(filled_bytes + reinserted_bytes + overhead_bytes),
        amplification,
    ]
}

/// Why bytes came from the origin, over the whole group.
fn reasons(total: &GroupCounts) -> String {
    let origin = &total.origin;
    let told = origin.bytes_by_reason.iter().filter(|(_, n)| **n > 0);
    let told: Vec<String> = told
        .map(|(reason, bytes)| format!("{reason} {}", Bytes(*bytes)))
        .collect();
    let why = match told.is_empty() {
        true => "nothing".into(),
        false => told.join(", "),
    };
    format!(
        "from S3: {why}; GETs {}, HEADs {}, LISTs {}, failed attempts {}, retries {}, names answered as last known {}\n",
        origin.gets,
        origin.heads,
        origin.lists,
        origin.errors,
        origin.retries,
        origin.stale_answers
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_rows_and_who_is_silent_is_named() {
        let mut counts = GroupCounts::default();
        counts.reads.answered = 4;
        (counts.tiers.group.hits, counts.tiers.memory.hits) = (3, 1);
        counts.origin.bytes_by_reason.insert("cold".into(), 5 << 20);
        let member = |node: &str, role: &str, counts: Option<GroupCounts>| MemberStats {
            node: node.into(),
            role: role.into(),
            error: counts.is_none().then(|| "1.2.3.4:7: refused".into()),
            this: role == "client",
            counts,
        };
        let rows = vec![
            member("a", "member", Some(counts.clone())),
            member("b", "member", None),
            member("c", "client", Some(counts)),
        ];
        let text = all(&GroupStats::new("g", rows));
        for part in [
            "group g: 2 of 3 answered",
            "b did not answer: 1.2.3.4:7: refused",
            "c (client) *",
            "75.0 %",
            "cold 10 MiB",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let total = text.lines().find(|line| line.starts_with("all")).unwrap();
        assert_eq!(total.split_whitespace().nth(1), Some("8"), "{text}");
    }
}
