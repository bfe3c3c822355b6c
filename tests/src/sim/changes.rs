//! What happens to nodes and to the group in the middle of a run, and how they hear of it.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::errors::OriginErrorKind;
use forebay_engine::identity::ObjectVersion;
use forebay_engine::limits::READ_BYTES_MAX;
use forebay_engine::placement::Placement;
use forebay_engine::ports::{Clock, Time};

use super::roster::{DEATH_NOTICED_AFTER, Roster, peer_of};
use super::scenario::Change;
use super::store::Fate;
use super::world::{Event, World};

impl World {
    /// The members that are there from the beginning.
    pub(super) fn found_group(&mut self) {
        if self.scenario.group.is_none() {
            return;
        }
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(weight) = node.plan.weight.filter(|_| node.plan.is_up) {
                let cores = node.plan.cores as u16;
                self.roster.0.insert(number, (weight, cores));
            }
        }
        self.views.push(self.roster.placement());
    }

    /// A process that starts is told of the view, and is made known as a member.
    pub(super) fn enter_group(&mut self, number: usize) {
        if self.scenario.group.is_none() {
            return;
        }
        let node = &self.nodes[number];
        let Some(life) = &node.life else {
            return;
        };
        let Some(weight) = node.plan.weight else {
            return life.tell(&self.roster.placement());
        };
        let before = self.roster.without(number);
        let mut with = before.clone();
        let cores = life.seats.len() as u16;
        with.0.insert(number, (weight, cores));
        // Who founds the group knows of no view before.
        if !before.0.is_empty() && self.clock.now() > Time(0) {
            for seat in &life.seats {
                seat.membership.tell_before(before.placement());
            }
        }
        life.tell(&with.placement());
        self.set_roster(with);
    }

    /// A new view, of which each node hears after a while.
    fn set_roster(&mut self, roster: Roster) {
        if self.roster.0 == roster.0 {
            return;
        }
        self.roster = roster;
        let view = self.roster.placement();
        let members = &self.roster.0;
        let now = self.clock.now();
        self.trace.event(now, format_args!("view {members:?}"));
        self.views.push(view.clone());
        for number in 0..self.nodes.len() {
            self.send_view(number, &view);
        }
        let nodes = self.nodes.iter();
        let last = nodes.map(|node| node.told_until).max().unwrap_or(now);
        self.facts.views_differed(now, last);
    }

    fn send_view(&mut self, number: usize, view: &Arc<Placement>) {
        let Some(group) = &self.scenario.group else {
            return;
        };
        let (shortest, longest) = group.view_delay;
        let nanos = self
            .rng
            .between(shortest.as_nanos() as u64, longest.as_nanos() as u64);
        let now = self.clock.now();
        let node = &mut self.nodes[number];
        if node.life.is_some() {
            let at = (now + Duration::from_nanos(nanos)).max(node.told_until);
            node.told_until = at;
            self.plan
                .push(at, Event::View(number, node.lives, view.clone()));
        }
    }

    /// A node hears of a view.
    pub(super) fn hear(&mut self, number: usize, life: u64, view: &Arc<Placement>) {
        let node = &self.nodes[number];
        if let Some(process) = node.life.as_ref().filter(|_| node.lives == life) {
            let digest = view.view().digest();
            let now = self.clock.now();
            self.trace.event(
                now,
                format_args!("node {number} hears of view {digest:016x}"),
            );
            process.tell(view);
        }
    }

    /// A member that was not heard of for long is taken out of the view.
    pub(super) fn miss(&mut self, number: usize, life: u64) {
        let node = &self.nodes[number];
        let gone = node.life.is_none() || node.paused_until.is_some();
        if gone && node.lives == life {
            self.set_roster(self.roster.without(number));
        }
    }

    pub(super) fn resume(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if node
            .paused_until
            .is_some_and(|until| until <= self.clock.now())
        {
            node.paused_until = None;
            let now = self.clock.now();
            self.trace.event(now, format_args!("node {number} goes on"));
            self.rejoin(number);
        }
    }

    /// A member is heard of again.
    fn rejoin(&mut self, number: usize) {
        let node = &self.nodes[number];
        if let (Some(life), Some(weight)) = (&node.life, node.plan.weight)
            && self.scenario.group.is_some()
        {
            let mut with = self.roster.clone();
            with.0.insert(number, (weight, life.seats.len() as u16));
            self.set_roster(with);
        }
    }

    pub(super) fn change(&mut self, change: Change) -> Result<(), String> {
        let now = self.clock.now();
        self.trace.event(now, format_args!("{change:?}"));
        match change {
            Change::Overwrite(object) => self.overwrite(object),
            Change::Restart(node, end, cores) => return self.end(node, end, cores),
            Change::Kill { node, silent } => {
                if self.nodes[node].life.is_some() {
                    self.network.set_silent(peer_of(node), silent);
                    self.kill(node);
                    self.facts.ended(node);
                    let life = self.nodes[node].lives;
                    self.plan
                        .push(now + DEATH_NOTICED_AFTER, Event::Missed(node, life));
                    let back = self.scenario.changes.iter().any(|(after, change)| {
                        matches!(change, Change::Start(other, _) if *other == node)
                            && Time(0) + *after >= now
                    });
                    self.nodes[node].is_lost = !back;
                }
            }
            Change::Start(node, cores) => {
                if self.nodes[node].life.is_none() {
                    let returns = self.nodes[node].lives > 0;
                    self.start(node, cores)?;
                    if returns {
                        self.has_restarted(node, cores);
                    }
                }
            }
            Change::Pause(node, span) => {
                self.pause(node, now + span);
                if span >= DEATH_NOTICED_AFTER {
                    let life = self.nodes[node].lives;
                    self.plan
                        .push(now + DEATH_NOTICED_AFTER, Event::Missed(node, life));
                }
            }
            Change::Cut(from, to, cut) => {
                self.network.partition(peer_of(from), peer_of(to), cut);
            }
            Change::Isolate(node, span) => self.isolate(node, span),
            Change::Refuse(node) => self.network.set_refused(peer_of(node), true),
            Change::SlowDown(node, times) => self.network.slow_down(peer_of(node), times),
            Change::Weigh(node, weight) => {
                self.nodes[node].plan.weight = Some(weight);
                if let Some(member) = self.roster.0.get(&node) {
                    let mut with = self.roster.clone();
                    with.0.insert(node, (weight, member.1));
                    self.set_roster(with);
                }
            }
            Change::Leave(node) => {
                self.set_roster(self.roster.without(node));
                self.kill(node);
                self.facts.ended(node);
                self.nodes[node].is_lost = true;
            }
            Change::ReadAll(node) => self.read_all(node),
            Change::CutFromOrigin(node) => {
                self.store.borrow_mut().cut_off.insert(node);
            }
            Change::OriginDown(down) => {
                let fate = Fate::Fail(OriginErrorKind::Unavailable, 0);
                self.store.borrow_mut().forced = down.then_some((fate, true));
            }
        }
        Ok(())
    }

    /// Nothing travels between a node and the others for `span`; each side takes the other for gone
    /// after a while.
    fn isolate(&mut self, number: usize, span: Duration) {
        let now = self.clock.now();
        let others = (0..self.nodes.len()).filter(|other| *other != number);
        for other in others {
            for (from, to) in [(number, other), (other, number)] {
                self.network.partition(peer_of(from), peer_of(to), true);
                let mended = Event::Change(Change::Cut(from, to, false));
                self.plan.push(now + span, mended);
            }
        }
        if span < DEATH_NOTICED_AFTER {
            return;
        }
        let mut alone = Roster::default();
        if let Some(member) = self.roster.0.get(&number) {
            alone.0.insert(number, *member);
        }
        let rest = self.roster.without(number);
        let noticed = now + DEATH_NOTICED_AFTER;
        let (alone, rest) = (alone.placement(), rest.placement());
        self.views.extend([alone.clone(), rest.clone()]);
        for other in 0..self.nodes.len() {
            let view = if other == number { &alone } else { &rest };
            let life = self.nodes[other].lives;
            self.plan
                .push(noticed, Event::View(other, life, view.clone()));
            let whole = self.roster.placement();
            self.plan.push(now + span, Event::View(other, life, whole));
        }
        self.facts.views_differed(now, now + span);
    }

    fn read_all(&mut self, node: usize) {
        let versions: Vec<Arc<ObjectVersion>> = {
            let store = self.store.borrow();
            let keys = store.bucket.keys();
            let current = keys.filter_map(|key| store.bucket.current(key));
            current.map(|now| now.version.clone()).collect()
        };
        for object in &versions {
            for offset in (0..object.size_bytes).step_by(READ_BYTES_MAX) {
                self.read(usize::MAX, node, object, offset, READ_BYTES_MAX as u32, 0);
            }
        }
    }

    fn overwrite(&mut self, object: usize) {
        let (key, size) = &self.scenario.objects[object];
        let size = if self.rng.chance(500) {
            *size
        } else {
            self.rng.between(1, *size)
        };
        let now = self.clock.now();
        let version = self.store.borrow_mut().bucket.put(key, size, now);
        self.trace.event(
            now,
            format_args!("overwrite {key} {} size {size}", version.validator),
        );
    }
}
