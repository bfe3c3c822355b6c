//! Members that read from another S3 endpoint than this node are named. Nothing is shared with them: a bucket of one
//! name may hold anything there.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Group;
use super::report::GroupReport;

impl GroupReport {
    /// The members that read from another endpoint, a line each.
    pub fn elsewhere(&self) -> Vec<String> {
        let told = |endpoint: &str| !endpoint.is_empty() && !self.endpoint.is_empty();
        let members = self.members.iter().filter(|member| !member.this);
        members
            .filter(|member| told(&member.endpoint) && member.endpoint != self.endpoint)
            .map(|member| {
                format!(
                    "{} reads from another S3 endpoint ({}, this node from {}): nothing is shared with it, though it has \
                     its part of the ring; give all nodes of a group the same --endpoint, spelled the same",
                    member.node, member.endpoint, self.endpoint
                )
            })
            .collect()
    }
}

impl Group {
    /// The members that read from another endpoint than this node; those that come later are logged.
    pub fn watch_elsewhere(self: &Arc<Self>) -> Vec<String> {
        let first = self.report().elsewhere();
        let mut named = BTreeSet::new();
        let mut note = move |lines: Vec<String>| {
            for line in lines {
                if named.insert(line.clone()) {
                    tracing::warn!("{line}");
                }
            }
        };
        note(first.clone());
        let (group, mut newest) = (Arc::downgrade(self), self.views().watch());
        self.runtime().spawn(async move {
            while newest.changed().await.is_ok() {
                let Some(group) = group.upgrade() else { return };
                note(group.report().elsewhere());
            }
        });
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::report::MemberReport;

    #[test]
    fn members_of_another_endpoint_are_named_with_both() {
        let member = |node: &str, endpoint: &str| MemberReport {
            node: node.into(),
            endpoint: endpoint.into(),
            ..MemberReport::default()
        };
        let report = GroupReport {
            endpoint: "http://prod".into(),
            members: vec![
                member("same", "http://prod"),
                member("other", "http://staging"),
                // Of an earlier release, which does not tell.
                member("old", ""),
            ],
            ..GroupReport::default()
        };
        let lines = report.elsewhere();
        assert_eq!(lines.len(), 1, "{lines:?}");
        for part in ["other reads", "http://staging", "http://prod"] {
            assert!(lines[0].contains(part), "{lines:?}");
        }
    }
}
