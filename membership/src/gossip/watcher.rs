//! The task that turns gossip into views, and asks seeds.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chitchat::{ChitchatHandle, NodeState};
use forebay_engine::placement::PeerId;
use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;

use super::census::{Census, Told};
use super::{KEY_LEFT, KEY_RECORD, KEY_USAGE, MemberStatus, OwnAddresses};
use crate::identity::from_hex;
use crate::record::Roster;
use crate::seeds::Seeds;
use crate::views::{GroupView, Views};

/// How often members are counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The first view waits for others to be found, at most so long ...
const FIRST_VIEW_MAX: Duration = Duration::from_secs(3);
/// ... and until no more come for so long: each view that is used moves ownership.
const FIRST_VIEW_QUIET: Duration = Duration::from_millis(500);
/// Seeds are asked so often while nobody else is known,
const LONELY_INTERVAL: Duration = Duration::from_millis(500);
/// so many at a time,
const LONELY_SEEDS: usize = 8;
/// and one of them so often ever after: two halves of a group find each other again.
const SEED_INTERVAL: Duration = Duration::from_secs(5);
/// Who was silent for so long at the address that gossip uses, its first,
const RAIL_SILENCE: Duration = Duration::from_secs(3);
/// is tried at its others, so often
const RAIL_INTERVAL: Duration = Duration::from_secs(1);
/// and so many members at a time: in a large group news travels for seconds.
const RAIL_MEMBERS_MAX: usize = 8;
/// A namesake is complained of so often.
const DOUBLE_INTERVAL: Duration = Duration::from_secs(60);

pub struct Watcher {
    handle: Arc<ChitchatHandle>,
    me: PeerId,
    own: OwnAddresses,
    seeds: Arc<Seeds>,
    views: Views,
    members: Arc<Mutex<Vec<MemberStatus>>>,
    census: Census,
    started: Instant,
    /// Who serves, and since when just those do.
    roster: Arc<Roster>,
    changed: Instant,
    published: bool,
    seeds_asked: Option<Instant>,
    next_seed: usize,
    rails_tried: Option<Instant>,
    complained: Option<Instant>,
}

impl Watcher {
    pub fn new(
        group: String,
        handle: Arc<ChitchatHandle>,
        own: OwnAddresses,
        seeds: Arc<Seeds>,
        views: Views,
        members: Arc<Mutex<Vec<MemberStatus>>>,
    ) -> Self {
        let life = handle.chitchat_id();
        let id = PeerId(from_hex(&life.node_id).unwrap_or_default());
        let now = Instant::now();
        Self {
            census: Census::new(group, (id, life.generation_id)),
            handle,
            me: id,
            own,
            seeds,
            views,
            members,
            started: now,
            roster: Arc::default(),
            changed: now,
            published: false,
            seeds_asked: None,
            next_seed: 0,
            rails_tried: None,
            complained: None,
        }
    }

    pub async fn run(mut self) {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let now = Instant::now();
        let told = self
            .handle
            .with_chitchat(|chitchat| {
                chitchat
                    .node_states()
                    .values()
                    .filter_map(told)
                    .collect::<Vec<_>>()
            })
            .await;
        let counted = self.census.take(now, &told);
        if counted.double {
            self.complain(now);
        }
        let listed = counted.members.iter().map(|member| member.listed.clone());
        let roster = Roster::new(listed.collect());
        *self.members.lock() = counted.members;
        if *self.roster != roster {
            tell_changes(&self.roster, &roster, &counted.left);
            self.roster = Arc::new(roster);
            self.changed = now;
            self.publish_if(self.published).await;
        }
        if !self.published {
            self.publish_if(self.is_settled(now)).await;
        }
        self.ask_seeds(now);
        self.try_other_rails(now);
    }

    /// Whether it is time for the first view.
    fn is_settled(&self, now: Instant) -> bool {
        let others = self.roster.members().len() > 1;
        let alone = self.seeds.all_known() && self.own.others(self.seeds.addresses()).is_empty();
        alone
            || now - self.started >= FIRST_VIEW_MAX
            || (others && now - self.changed >= FIRST_VIEW_QUIET)
    }

    async fn publish_if(&mut self, due: bool) {
        if !due {
            return;
        }
        let (roster, me, published) = (self.roster.clone(), self.me, self.published);
        let made = tokio::task::spawn_blocking(move || match published {
            true => GroupView::new(roster),
            false => GroupView::first(roster, me),
        });
        match made.await {
            Ok(view) => {
                tracing::info!(
                    members = view.roster.members().len(),
                    view = format!("{:016x}", view.placement.view().digest()),
                    "the group's view"
                );
                self.views.publish(view);
                self.published = true;
            }
            Err(error) => tracing::error!("cannot make the placement: {error}"),
        }
    }

    fn ask_seeds(&mut self, now: Instant) {
        let lonely = self.roster.members().len() < 2;
        let (interval, count) = match lonely {
            true => (LONELY_INTERVAL, LONELY_SEEDS),
            false => (SEED_INTERVAL, 1),
        };
        if self.seeds_asked.is_some_and(|asked| now - asked < interval) {
            return;
        }
        let addresses = self.own.others(self.seeds.addresses());
        if addresses.is_empty() {
            return;
        }
        self.seeds_asked = Some(now);
        for _ in 0..count.min(addresses.len()) {
            // Fails only when gossip has stopped.
            let _ = self
                .handle
                .gossip(addresses[self.next_seed % addresses.len()]);
            self.next_seed = self.next_seed.wrapping_add(1);
        }
    }

    /// A rail may have failed that a member's first address is on.
    fn try_other_rails(&mut self, now: Instant) {
        if self
            .rails_tried
            .is_some_and(|tried| now - tried < RAIL_INTERVAL)
        {
            return;
        }
        self.rails_tried = Some(now);
        for address in other_rails(&self.members.lock()) {
            // Fails only when gossip has stopped.
            let _ = self.handle.gossip(address);
        }
    }

    fn complain(&mut self, now: Instant) {
        if self
            .complained
            .is_none_or(|last| now - last >= DOUBLE_INTERVAL)
        {
            self.complained = Some(now);
            tracing::error!(
                "another process with this member's node id has joined the group: give each member its own --node-id, \
                 or end one of the two"
            );
        }
    }
}

/// The further addresses of those members that were silent the longest.
fn other_rails(members: &[MemberStatus]) -> Vec<SocketAddr> {
    let silent = members.iter().filter(|member| {
        member.silence >= RAIL_SILENCE && member.listed.record.addresses.len() > 1
    });
    let mut silent: Vec<&MemberStatus> = silent.collect();
    silent.sort_by_key(|member| std::cmp::Reverse(member.silence));
    silent.truncate(RAIL_MEMBERS_MAX);
    let further = silent
        .iter()
        .flat_map(|member| &member.listed.record.addresses[1..]);
    further.copied().collect()
}

fn told(state: &NodeState) -> Option<Told> {
    let life = state.chitchat_id();
    Some(Told {
        life: (PeerId(from_hex(&life.node_id)?), life.generation_id),
        heartbeat: state.heartbeat().into(),
        version: state.max_version(),
        record: state.get(KEY_RECORD).map(str::to_owned),
        left: state.get(KEY_LEFT).is_some(),
        usage: state.get(KEY_USAGE).map(str::to_owned),
    })
}

fn tell_changes(before: &Roster, after: &Roster, left: &BTreeSet<PeerId>) {
    let has = |roster: &Roster, id: PeerId| roster.members().iter().any(|member| member.id == id);
    for member in after
        .members()
        .iter()
        .filter(|member| !has(before, member.id))
    {
        let record = &member.record;
        tracing::info!(
            node = record.node,
            weight = record.weight,
            "member at {}",
            record.addresses[0]
        );
    }
    for member in before
        .members()
        .iter()
        .filter(|member| !has(after, member.id))
    {
        let why = match left.contains(&member.id) {
            true => "it said farewell",
            false => "it was not heard of",
        };
        tracing::info!(node = member.record.node, "no longer a member: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::listed;

    fn member(node: &str, silence_s: u64, rails: &[&str]) -> MemberStatus {
        let mut listed = listed("g", node, 1);
        listed.record.addresses = rails.iter().map(|rail| rail.parse().unwrap()).collect();
        MemberStatus {
            listed,
            silence: Duration::from_secs(silence_s),
            usage: None,
        }
    }

    #[test]
    fn the_most_silent_are_tried_at_their_other_addresses() {
        let two = ["192.0.2.1:1", "198.51.100.1:1"];
        let mut members = vec![
            member("heard", 2, &two),
            member("one rail", 9, &two[..1]),
            member(
                "silent",
                4,
                &["192.0.2.2:1", "198.51.100.2:1", "203.0.113.2:1"],
            ),
        ];
        let rails = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| text.parse().unwrap())
                .collect::<Vec<SocketAddr>>()
        };
        assert_eq!(
            other_rails(&members),
            rails(&["198.51.100.2:1", "203.0.113.2:1"])
        );
        members.extend((0..RAIL_MEMBERS_MAX).map(|n| member(&format!("lost {n}"), 8, &two)));
        assert_eq!(other_rails(&members), [rails(&two)[1]; RAIL_MEMBERS_MAX]);
    }
}
