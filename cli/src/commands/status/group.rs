//! The cache group in `forebay status`.

use crate::group::draining::DrainState;
use crate::group::report::{GroupReport, LinkReport, MemberReport};
use crate::output::table;
use crate::units::Bytes;

/// What is said of the group in one line each.
pub fn rows(group: &GroupReport) -> Vec<(&'static str, String)> {
    let secret = if group.secret {
        "with a secret"
    } else {
        "this machine only, no secret"
    };
    let view = match &group.view {
        Some(view) => format!("{view}, {} members", group.members.len()),
        None => "none yet".into(),
    };
    let mut rows = vec![
        ("group", format!("{} ({secret})", group.name)),
        (
            "this node",
            format!("{} ({}, id {})", group.node, group.role, group.id),
        ),
        ("view", view),
    ];
    if !group.addresses.is_empty() {
        let addresses: Vec<String> = group.addresses.iter().map(ToString::to_string).collect();
        rows.push(("addresses", addresses.join(", ")));
    }
    if !group.rdma.rails.is_empty() {
        rows.push(("rdma", group.rdma.rails.join(", ")));
    }
    for down in &group.rdma.down {
        rows.push(("rdma", format!("down: {down}")));
    }
    for wrong in &group.rdma.wrong_gids {
        rows.push(("rdma", format!("wrong GID: {wrong}")));
    }
    for missing in &group.rdma.missing {
        rows.push(("rdma", format!("not yet: {missing}")));
    }
    if let Some(why) = &group.rdma.off {
        rows.push(("rdma", format!("none: {why}")));
    }
    if let Some(member) = group.asking {
        rows.push(("views from", member.to_string()));
    }
    let warnings = warnings(group).into_iter();
    rows.extend(warnings.map(|warning| ("warning", warning)));
    if let Some(drain) = &group.drain {
        let state = match drain.state {
            DrainState::None => "none",
            DrainState::Running => "running",
            DrainState::Done => "done",
            DrainState::Stopped => "stopped",
            DrainState::Ended => "ended",
        };
        let left = match drain.state {
            DrainState::Running => format!(", {} left", Bytes(drain.left_bytes)),
            _ => String::new(),
        };
        let text = format!(
            "{state}{left}, {} handed over, {} without room",
            Bytes(drain.given_bytes),
            Bytes(drain.refused_bytes)
        );
        rows.push(("drain", text));
    }
    for seed in &group.seeds {
        let addresses = match seed.addresses {
            1 => "1 address".into(),
            n => format!("{n} addresses"),
        };
        let found = match (&seed.error, seed.addresses) {
            (Some(error), 0) => error.clone(),
            (Some(error), _) => format!("{addresses}; {error}"),
            (None, _) => addresses,
        };
        rows.push(("peers", format!("{}: {found}", seed.seed)));
    }
    for (what, counts) in [
        ("gossip dropped", &group.gossip_dropped),
        ("refused", &group.connections_refused),
    ] {
        let counts: Vec<String> = counts
            .iter()
            .map(|(why, count)| format!("{count} {}", why.replace('_', " ")))
            .collect();
        if !counts.is_empty() {
            rows.push((what, counts.join("; ")));
        }
    }
    rows
}

/// What is not as it should be.
fn warnings(group: &GroupReport) -> Vec<String> {
    let mut warnings: Vec<String> = group.unled().into_iter().chain(group.elsewhere()).collect();
    if group.asked_elsewhere > 0 {
        warnings.push(format!(
            "{} questions of other nodes were for another S3 endpoint than {}: the log names them",
            group.asked_elsewhere, group.endpoint
        ));
    }
    warnings.extend(group.alone.as_ref().map(ToString::to_string));
    warnings.extend(group.disks_out.as_ref().map(ToString::to_string));
    warnings
}

/// Members and links, a line each.
pub fn tables(group: &GroupReport) -> String {
    let mut text = String::new();
    if !group.members.is_empty() {
        let header = [
            "MEMBER",
            "WEIGHT",
            "RING SHARE",
            "CACHED",
            "CORES",
            "HEARD",
            "VERSION",
            "ADDRESSES",
        ];
        let rows = std::iter::once(header.map(str::to_owned).to_vec());
        let rows: Vec<_> = rows.chain(group.members.iter().map(member)).collect();
        text.push_str(&format!("\n{}", table(&rows, &[1, 2, 3, 4, 5])));
    }
    if !group.links.is_empty() {
        let header = [
            "LINK",
            "CORES",
            "TRANSPORT",
            "STATE",
            "SENT",
            "RECEIVED",
            "",
        ];
        let rows = std::iter::once(header.map(str::to_owned).to_vec());
        let rows: Vec<_> = rows.chain(group.links.iter().map(link)).collect();
        text.push_str(&format!("\n{}", table(&rows, &[4, 5])));
    }
    text
}

fn member(member: &MemberReport) -> Vec<String> {
    let heard = match (member.this, member.silent_seconds) {
        (true, _) => "this node".into(),
        (false, Some(seconds)) => format!("{seconds:.1} s ago"),
        (false, None) => "-".into(),
    };
    let addresses: Vec<String> = member.addresses.iter().map(ToString::to_string).collect();
    let cached = match (member.cached_bytes, member.capacity_bytes) {
        (Some(cached), Some(capacity)) => format!("{} of {}", Bytes(cached), Bytes(capacity)),
        _ => "-".into(),
    };
    vec![
        member.node.clone(),
        match member.left_bytes {
            Some(left) => format!("{}, {} left", member.weight, Bytes(left)),
            None => member.weight.to_string(),
        },
        format!("{:.1} %", member.ring_share * 100.0),
        cached,
        member.cores.to_string(),
        heard,
        member.version.clone(),
        addresses.join(", "),
    ]
}

fn link(link: &LinkReport) -> Vec<String> {
    let way = if link.asks { "to" } else { "from" };
    vec![
        format!("{way} {}", link.peer),
        format!("{} - {}", link.core, link.peer_core),
        match link.connections {
            0 | 1 => link.transport.clone(),
            rails => format!("{} by {rails} rails", link.transport),
        },
        link.state.clone(),
        Bytes(link.sent_bytes).to_string(),
        Bytes(link.received_bytes).to_string(),
        match (link.state.as_str(), &link.last_error, &link.why_tcp) {
            // What ended it once says nothing of one that is up; the JSON has it.
            ("up", _, Some(why)) => format!("not over RDMA: {why}"),
            ("up", _, None) | (_, None, _) => String::new(),
            (_, Some(error), _) => error.clone(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_matters_is_said() {
        let mut group = GroupReport {
            name: "train".into(),
            view: Some("00000000000000aa".into()),
            members: vec![MemberReport {
                node: "gpu1".into(),
                weight: 7,
                ring_share: 0.25,
                silent_seconds: Some(0.5),
                cached_bytes: Some(3 << 30),
                capacity_bytes: Some(7 << 40),
                ..MemberReport::default()
            }],
            links: vec![LinkReport {
                peer: "gpu1".into(),
                asks: true,
                transport: "tcp".into(),
                state: "down".into(),
                last_error: Some("connection refused".into()),
                ..LinkReport::default()
            }],
            ..GroupReport::default()
        };
        group.gossip_dropped.insert("other_group".into(), 3);
        let lines: Vec<String> = rows(&group)
            .into_iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        let text = lines.join("\n") + &tables(&group);
        for part in [
            "no secret",
            "00000000000000aa, 1 members",
            "3 other group",
            "gpu1",
            "25.0 %",
            "3 GiB of 7 TiB",
            "0.5 s ago",
            "to gpu1",
            "connection refused",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        group.links[0].state = "up".into();
        assert!(!tables(&group).contains("connection refused"));
    }
}
