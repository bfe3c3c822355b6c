//! From what gossip tells to the serving members: a pure step, apart from the clock that it is given.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use forebay_engine::placement::PeerId;

use crate::gossip::MemberStatus;
use crate::liveness::{Life, Liveness};
use crate::record::{Listed, Record, Usage};

/// What gossip tells of one life.
#[derive(Clone, Debug)]
pub struct Told {
    /// Whose.
    pub life: Life,
    /// Grows while it lives.
    pub heartbeat: u64,
    /// Grows with each change of the rest.
    pub version: u64,
    /// Its record, as text.
    pub record: Option<String>,
    /// It said farewell.
    pub left: bool,
    /// How full it is, as text.
    pub usage: Option<String>,
}

/// Follows who serves.
#[derive(Debug)]
pub struct Census {
    group: String,
    own: Life,
    liveness: Liveness,
    /// What was read of their texts, so that each is read once for each change.
    read: BTreeMap<Life, Read>,
}

#[derive(Clone, Debug)]
struct Read {
    version: u64,
    record: Option<Record>,
    usage: Option<Usage>,
}

/// Who serves now.
#[derive(Debug, Default)]
pub struct Counted {
    /// The members, sorted by id, this one included.
    pub members: Vec<MemberStatus>,
    /// Who said farewell.
    pub left: BTreeSet<PeerId>,
    /// Another process has this member's id and is alive.
    pub double: bool,
}

impl Census {
    /// Of `group`, taken by the life `own`.
    pub fn new(group: String, own: Life) -> Self {
        Self {
            group,
            own,
            liveness: Liveness::default(),
            read: BTreeMap::new(),
        }
    }

    /// Counts. A restarted member replaces its old self at once; who said farewell is out at once; who is silent is
    /// out after [`crate::liveness::SILENCE_MAX`].
    pub fn take(&mut self, now: Instant, told: &[Told]) -> Counted {
        self.liveness
            .look(now, told.iter().map(|one| (one.life, one.heartbeat)));
        self.read_records(told);
        let mut newest: BTreeMap<PeerId, (&Told, Duration)> = BTreeMap::new();
        let mut double = false;
        for one in told {
            let own = one.life == self.own;
            let silence = match own {
                true => Duration::ZERO,
                false if !self.liveness.is_alive(one.life, now) => continue,
                false => self.liveness.since(one.life, now).unwrap_or_default(),
            };
            // What this member says of itself goes before what its namesake says.
            let (id, start) = one.life;
            let replaced = newest
                .get(&id)
                .is_some_and(|(other, _)| other.life == self.own || other.life.1 > start);
            double |= id == self.own.0 && !own && !one.left && start > self.own.1;
            if own || !replaced {
                newest.insert(id, (one, silence));
            }
        }
        let left = newest.iter().filter(|(_, (one, _))| one.left);
        let left = left.map(|(id, _)| *id).collect();
        let serving = newest.into_iter().filter(|(_, (one, _))| !one.left);
        let members = serving.filter_map(|(id, (one, silence))| {
            let read = self.read.get(&one.life)?;
            Some(MemberStatus {
                listed: Listed {
                    id,
                    record: read.record.clone()?,
                },
                silence,
                usage: read.usage,
            })
        });
        Counted {
            members: members.collect(),
            left,
            double,
        }
    }

    fn read_records(&mut self, told: &[Told]) {
        let mut before = std::mem::take(&mut self.read);
        for one in told {
            let known = before.remove(&one.life);
            let known = known.filter(|read| read.version == one.version);
            let read = known.unwrap_or_else(|| self.read_one(one));
            self.read.insert(one.life, read);
        }
    }

    fn read_one(&self, one: &Told) -> Read {
        let text = one.record.as_deref();
        let record = text.and_then(|text| Record::read(text, &self.group, one.life.0));
        if text.is_some() && record.is_none() {
            tracing::warn!(
                "member {:016x} published what cannot be read; does it run the same version?",
                one.life.0.0
            );
        }
        let usage = one.usage.as_deref();
        Read {
            version: one.version,
            record,
            usage: usage.and_then(|text| serde_json::from_str(text).ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::peer_id;
    use crate::record::listed;

    fn told(node: &str, start: u64, heartbeat: u64) -> Told {
        Told {
            life: (peer_id("g", node), start),
            heartbeat,
            version: 1,
            record: Some(serde_json::to_string(&listed("g", node, start as u16).record).unwrap()),
            left: false,
            usage: None,
        }
    }

    /// Node names and ports (which stand for starts) of who serves.
    fn serving(counted: &Counted) -> Vec<(String, u16)> {
        let mut all: Vec<_> = counted
            .members
            .iter()
            .map(|member| {
                (
                    member.listed.record.node.clone(),
                    member.listed.record.addresses[0].port(),
                )
            })
            .collect();
        all.sort();
        all
    }

    fn named(names: &[(&str, u16)]) -> Vec<(String, u16)> {
        names
            .iter()
            .map(|(name, start)| (name.to_string(), *start))
            .collect()
    }

    struct Run {
        census: Census,
        start: Instant,
    }

    impl Run {
        fn new() -> Self {
            Self {
                census: Census::new("g".into(), (peer_id("g", "me"), 1)),
                start: Instant::now(),
            }
        }

        fn at(&mut self, second: u64, told: &[Told]) -> Counted {
            self.census
                .take(self.start + Duration::from_secs(second), told)
        }
    }

    #[test]
    fn a_restarted_member_replaces_its_old_self_at_once() {
        let mut run = Run::new();
        let me = told("me", 1, 1);
        run.at(0, &[me.clone(), told("a", 5, 1)]);
        let counted = run.at(1, &[me.clone(), told("a", 5, 2)]);
        assert_eq!(serving(&counted), named(&[("a", 5), ("me", 1)]));
        run.at(2, &[me.clone(), told("a", 5, 2), told("a", 6, 1)]);
        for lives in [
            [told("a", 5, 2), told("a", 6, 2)],
            [told("a", 6, 3), told("a", 5, 2)],
        ] {
            let counted = run.at(3, &[me.clone(), lives[0].clone(), lives[1].clone()]);
            assert_eq!(serving(&counted), named(&[("a", 6), ("me", 1)]));
        }
    }

    #[test]
    fn a_farewell_counts_at_once_and_for_all_earlier_lives() {
        let mut run = Run::new();
        let me = told("me", 1, 1);
        run.at(0, &[me.clone(), told("a", 5, 1), told("a", 6, 1)]);
        let gone = Told {
            left: true,
            version: 2,
            ..told("a", 6, 2)
        };
        let counted = run.at(1, &[me.clone(), told("a", 5, 2), gone]);
        assert_eq!(serving(&counted), named(&[("me", 1)]));
    }

    #[test]
    fn a_namesake_is_noticed_and_does_not_displace_this_member() {
        let mut run = Run::new();
        run.at(0, &[told("me", 1, 1), told("me", 9, 1)]);
        let counted = run.at(1, &[told("me", 1, 1), told("me", 9, 2)]);
        assert!(counted.double);
        assert_eq!(serving(&counted), named(&[("me", 1)]));
        let counted = run.at(1, &[told("me", 1, 1), told("me", 0, 2)]);
        assert!(!counted.double, "an earlier life of this member");
    }

    #[test]
    fn records_change_with_their_version_and_unreadable_ones_do_not_serve() {
        let mut run = Run::new();
        let me = told("me", 1, 1);
        run.at(0, &[me.clone(), told("a", 5, 1)]);
        let heavier = Told {
            version: 2,
            record: told("a", 5, 1)
                .record
                .map(|text| text.replace("\"weight\":1", "\"weight\":7")),
            ..told("a", 5, 2)
        };
        let counted = run.at(1, &[me.clone(), heavier]);
        assert_eq!(
            counted
                .members
                .iter()
                .map(|member| member.listed.record.weight)
                .max(),
            Some(7)
        );
        let nonsense = Told {
            version: 3,
            record: Some("?".into()),
            ..told("a", 5, 3)
        };
        assert_eq!(serving(&run.at(2, &[me, nonsense])), named(&[("me", 1)]));
    }
}
