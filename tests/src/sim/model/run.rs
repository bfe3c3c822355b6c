//! The loop of a model: whoever has a reason turns, then time moves.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::core::Budget;
use forebay_engine::identity::ObjectVersion;
use forebay_engine::ports::{Clock, Full, PeerCore, Time};

use super::super::board::{Asked, Board, Outcome, Question};
use super::super::bucket::SimBucket;
use super::super::clock::SimClock;
use super::super::network::{NetProfile, SimNetwork};
use super::super::nodes::Life;
use super::super::roster::{DEATH_NOTICED_AFTER, Roster, peer_of};
use super::super::scenario::{Scenario, Weather};
use super::super::schedule::Schedule;
use super::super::seat::Process;
use super::super::store::{OriginProfile, OriginStore};
use super::super::trace::Trace;
use super::readers::Reader;
use super::{Plan, Situation};

/// As `--io-timeout`.
const IO_TIMEOUT: Duration = Duration::from_secs(30);
/// A read whose ring was full is asked again after this.
const FULL_PAUSE: Duration = Duration::from_micros(100);
/// Turns that the cores may take together before time must move.
const TURNS_AT_ONE_TIME_MAX: u64 = 20_000_000;
/// Between calls of who watches, in turns of cores.
const TELL_EVERY: u64 = 20_000;

/// What one phase came to.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// From its start to the last answer.
    pub elapsed: Duration,
    /// Reads that were answered with bytes.
    pub reads: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Reads that failed.
    pub failed: u64,
    /// How long each took.
    pub latencies: Vec<Duration>,
    /// Bytes that left the origin.
    pub origin_bytes: u64,
    /// GETs that began a body.
    pub origin_gets: u64,
    /// Bytes that each node sent to others; gone ones included.
    pub sent: Vec<u64>,
    /// Bytes that each node received from others.
    pub received: Vec<u64>,
}

enum Event {
    Wake(usize),
    Join,
    Kill,
    /// All hear that the killed one is gone.
    Missed,
}

/// A model under way.
pub struct Run {
    plan: Plan,
    scenario: Scenario,
    clock: SimClock,
    trace: Trace,
    store: Rc<RefCell<OriginStore>>,
    network: SimNetwork,
    board: Arc<Board>,
    objects: Vec<Arc<ObjectVersion>>,
    lives: Vec<Option<Life>>,
    roster: Roster,
    readers: Vec<Reader>,
    events: Schedule<Event>,
    /// Nodes that have a reason to turn now.
    due: BTreeSet<usize>,
    /// When each node wants to turn next, both ways round.
    wakes: BTreeSet<(Time, usize)>,
    wake_of: BTreeMap<usize, Time>,
    phase: Phase,
    turns: u64,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

fn scenario(plan: &Plan) -> Scenario {
    let costs = &plan.costs;
    let mut scenario = Scenario::plain_group(plan.seed, Weather::Calm, plan.members, plan.clients);
    // One more, which joins.
    scenario.nodes.push(scenario.nodes[0].clone());
    for node in &mut scenario.nodes {
        (node.cores, node.arena_bytes) = (1, plan.memory_bytes);
    }
    scenario.io_timeout = IO_TIMEOUT;
    scenario.roles.clear();
    scenario.origin = OriginProfile {
        latency: (costs.origin_latency, costs.origin_latency),
        bytes_per_s: (costs.origin_bytes_per_s, costs.origin_bytes_per_s),
        // As many as the adapter has connections for one core.
        ops_max: 32,
        ..OriginProfile::default()
    };
    scenario
}

impl Run {
    /// Turns of cores up to now.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Starts the nodes.
    ///
    /// # Errors
    /// When their memory cannot be mapped.
    pub fn start(plan: Plan) -> io::Result<Self> {
        let (scenario, clock, trace) = (scenario(&plan), SimClock::default(), Trace::default());
        let mut bucket = SimBucket::new();
        let objects = (0..plan.objects)
            .map(|n| bucket.put(&format!("data/{n:06}"), plan.object_bytes, Time(0)));
        let objects = objects.collect();
        let profile = NetProfile {
            delay: (plan.costs.delay, plan.costs.delay),
            link_bytes_per_s: Some(plan.costs.link_bytes_per_s),
            ..NetProfile::default()
        };
        let network = SimNetwork::new(profile, clock.clone(), plan.seed);
        let mut roster = Roster::default();
        roster
            .0
            .extend((0..plan.members).map(|node| (node, (1, 1))));
        let nodes = plan.members + plan.clients + 1;
        let mut run = Self {
            board: Board::new(clock.clone(), trace.clone()),
            store: OriginStore::new(bucket),
            lives: (0..nodes).map(|_| None).collect(),
            scenario,
            clock,
            trace,
            network,
            objects,
            roster,
            readers: Vec::new(),
            events: Schedule::default(),
            due: BTreeSet::new(),
            wakes: BTreeSet::new(),
            wake_of: BTreeMap::new(),
            phase: Phase::default(),
            turns: 0,
            plan,
        };
        let placement = run.roster.placement();
        for node in 0..nodes - 1 {
            run.start_node(node)?.tell(&placement);
        }
        Ok(run)
    }

    fn start_node(&mut self, node: usize) -> io::Result<&Life> {
        let process = Process {
            scenario: &self.scenario,
            plan: &self.scenario.nodes[node],
            clock: &self.clock,
            trace: &self.trace,
            store: &self.store,
            network: &self.network,
            bays: &[],
            shared: &[],
            cores: 1,
            node,
            life: 0,
        };
        let life = Life::start(&process)?;
        self.due.insert(node);
        Ok(self.lives[node].insert(life))
    }

    /// Everything that the situation is: what is measured of it. `told` hears now and then how many turns there were, and the virtual time;
    /// when it says false the run ends.
    ///
    /// # Errors
    /// What went wrong, or that it was to end.
    pub fn live(&mut self, told: &mut dyn FnMut(u64, Duration) -> bool) -> Result<Phase, String> {
        if self.plan.situation != Situation::Cold {
            self.warm();
            self.pass(told)?;
        }
        self.measured();
        match self.plan.situation {
            Situation::Cold | Situation::Steady => {}
            Situation::Join | Situation::Loss => {
                let half = self.half();
                let event = match self.plan.situation {
                    Situation::Join => Event::Join,
                    _ => Event::Kill,
                };
                self.events.push(self.clock.now() + half, event);
            }
        }
        self.pass(told)
    }

    /// After about half of what readers read, at the speed of links.
    fn half(&self) -> Duration {
        let costs = &self.plan.costs;
        let block = f64::from(self.plan.block_bytes);
        let each = block / costs.link_bytes_per_s as f64 + block / costs.read_bytes_per_s as f64;
        let each = Duration::from_secs_f64(each) + 2 * costs.delay + costs.read;
        each * (self.plan.reads / 2).min(u64::from(u32::MAX)) as u32
    }

    /// Each member reads some of the objects, so that all are in the group.
    fn warm(&mut self) {
        let memory = self.plan.memory_bytes as u64;
        let warmers = self.plan.members.min(self.plan.objects);
        self.readers = (0..self.plan.objects)
            .map(|object| {
                Reader::sequential(object % warmers, object, self.plan.object_bytes, memory)
            })
            .collect();
    }

    /// Who is measured.
    fn measured(&mut self) {
        let (members, clients) = (self.plan.members, self.plan.clients);
        let nodes = match clients {
            0 => 0..members,
            _ => members..members + clients,
        };
        let first = nodes.start;
        let reader = |node: usize| match self.plan.situation {
            Situation::Cold => {
                let object = (node - first) % self.plan.objects;
                let memory = self.plan.memory_bytes as u64;
                Reader::sequential(node, object, self.plan.object_bytes, memory)
            }
            _ => Reader::random(node, self.plan.reads, self.plan.seed),
        };
        self.readers = nodes.map(reader).collect();
    }

    /// Until all readers are over.
    fn pass(&mut self, told: &mut dyn FnMut(u64, Duration) -> bool) -> Result<Phase, String> {
        let began = self.clock.now();
        let before = self.counted();
        self.phase = Phase::default();
        for reader in 0..self.readers.len() {
            self.events.push(began, Event::Wake(reader));
        }
        let mut told_at = self.turns;
        while self.board.open() > 0 || self.readers.iter().any(|reader| !reader.is_over) {
            let some = self.turn_those_due()?;
            let some = self.take_answers(began) || some;
            let some = self.take_events().map_err(|error| error.to_string())? || some;
            if self.turns - told_at >= TELL_EVERY {
                told_at = self.turns;
                if !told(self.turns, self.clock.now().since(Time(0))) {
                    return Err("it was ended".to_owned());
                }
            }
            if !some {
                self.go_on()?;
            }
        }
        if let Some(violation) = self.board.violation() {
            return Err(violation);
        }
        self.events.clear();
        let mut phase = std::mem::take(&mut self.phase);
        let now = self.counted();
        phase.origin_bytes = now.0 - before.0;
        phase.origin_gets = now.1 - before.1;
        let grown = |now: &[u64], before: &[u64]| {
            let both = now.iter().zip(before);
            both.map(|(now, before)| now - before).collect()
        };
        phase.sent = grown(&now.2, &before.2);
        phase.received = grown(&now.3, &before.3);
        Ok(phase)
    }

    /// Moves time to the next moment at which something happens.
    fn go_on(&self) -> Result<(), String> {
        let next = [
            self.wakes.first().map(|(at, _)| *at),
            self.events.next_at(),
            self.network.next_at(),
        ];
        let next = next.into_iter().flatten().min();
        let next = next.ok_or_else(|| {
            let open = self.board.open();
            format!("everything sleeps with {open} reads open")
        })?;
        self.clock.advance_to(next.max(self.clock.now()));
        Ok(())
    }

    /// What the origin sent and began, and what each node sent and received, up to now.
    fn counted(&self) -> (u64, u64, Vec<u64>, Vec<u64>) {
        let store = self.store.borrow();
        let nodes = 0..self.lives.len();
        let loads = nodes.map(|node| self.network.load(peer_of(node)));
        let (sent, received) = loads.unzip();
        (store.sent_bytes, store.bodies, sent, received)
    }

    /// Turns every core that has a reason to, until none has.
    fn turn_those_due(&mut self) -> Result<bool, String> {
        let now = self.clock.now();
        let began = self.turns;
        loop {
            self.network.advance();
            for peer in self.network.take_touched() {
                self.due.insert((peer.0 - 1) as usize);
            }
            while let Some((at, node)) = self.wakes.first().copied()
                && at <= now
            {
                self.arm(node, None);
                self.due.insert(node);
            }
            let due = std::mem::take(&mut self.due);
            if due.is_empty() {
                return Ok(self.turns > began);
            }
            for node in due {
                self.turn(node, now);
            }
            if self.turns - began > TURNS_AT_ONE_TIME_MAX {
                return Err("cores turn without end at one time".to_owned());
            }
        }
    }

    fn turn(&mut self, node: usize, now: Time) {
        let Some(life) = &mut self.lives[node] else {
            return self.arm(node, None);
        };
        let seat = &mut life.seats[0];
        seat.turn(Budget::default());
        self.turns += 1;
        let next = seat.next_at();
        if seat.is_due(now) {
            self.due.insert(node);
        }
        self.arm(node, next);
    }

    fn arm(&mut self, node: usize, at: Option<Time>) {
        if let Some(before) = self.wake_of.remove(&node) {
            self.wakes.remove(&(before, node));
        }
        if let Some(at) = at {
            self.wakes.insert((at, node));
            self.wake_of.insert(node, at);
        }
    }

    fn take_answers(&mut self, began: Time) -> bool {
        let answers = self.board.take_answers();
        let some = !answers.is_empty();
        for answered in answers {
            let Asked {
                actor,
                question,
                submitted,
                ..
            } = answered.asked;
            let Question::Read { due_bytes, .. } = question else {
                continue;
            };
            let cost = self.cost(due_bytes as u64);
            let over = answered.at + cost;
            match answered.outcome {
                Outcome::Bytes => {
                    self.phase.reads += 1;
                    self.phase.bytes += due_bytes as u64;
                    self.phase.latencies.push(over.since(submitted));
                }
                Outcome::Died => {
                    self.readers[actor].is_over = true;
                    continue;
                }
                _ => self.phase.failed += 1,
            }
            self.phase.elapsed = self.phase.elapsed.max(over.since(began));
            self.events.push(over, Event::Wake(actor));
        }
        some
    }

    /// Of a read beside its bytes' way here.
    fn cost(&self, bytes: u64) -> Duration {
        let costs = &self.plan.costs;
        costs.read + Duration::from_secs_f64(bytes as f64 / costs.read_bytes_per_s as f64)
    }

    fn take_events(&mut self) -> io::Result<bool> {
        let now = self.clock.now();
        let mut some = false;
        while let Some((_, event)) = self.events.pop_due(now) {
            some = true;
            match event {
                Event::Wake(reader) => self.ask(reader),
                Event::Join => self.join()?,
                Event::Kill => self.kill(0),
                Event::Missed => self.tell_all(),
            }
        }
        Ok(some)
    }

    /// Reader `number` asks for what comes next.
    fn ask(&mut self, number: usize) {
        let now = self.clock.now();
        let reader = &mut self.readers[number];
        let node = reader.node;
        let next = match reader.pending.take() {
            Some(wanted) => Some(wanted),
            None => reader.next(&self.objects, self.plan.block_bytes, now),
        };
        let (Some(wanted), Some(life)) = (next, &self.lives[node]) else {
            reader.is_over = true;
            return;
        };
        let object = &self.objects[wanted.object];
        let deadline = now + IO_TIMEOUT;
        let ticket = self.board.ask(Asked {
            actor: number,
            node,
            life: 0,
            question: Question::Read {
                object: object.clone(),
                offset: wanted.offset,
                len_bytes: wanted.len_bytes,
                due_bytes: wanted.len_bytes as usize,
                parts: 1,
                instant: false,
            },
            submitted: now,
            deadline,
            due_by: deadline,
        });
        let (offset, len, want) = (wanted.offset, wanted.len_bytes, wanted.want_bytes);
        self.due.insert(node);
        match life.client.read(object, offset, len, want, ticket) {
            Ok(()) => {
                if let Some(range) = wanted.prefetch {
                    let len = range.end - range.start;
                    life.client.prefetch(object, range.start, len);
                }
            }
            Err(Full(ticket)) => {
                ticket.withdraw();
                reader.pending = Some(wanted);
                self.events.push(now + FULL_PAUSE, Event::Wake(number));
            }
        }
    }

    /// One more member, which has nothing.
    fn join(&mut self) -> io::Result<()> {
        let node = self.lives.len() - 1;
        let before = self.roster.placement();
        self.roster.0.insert(node, (1, 1));
        let life = self.start_node(node)?;
        for seat in &life.seats {
            seat.membership.tell_before(before.clone());
        }
        self.tell_all();
        Ok(())
    }

    /// A member's host goes off: its connections do not even break.
    fn kill(&mut self, node: usize) {
        let peer = peer_of(node);
        self.network.set_silent(peer, true);
        self.network.leave(PeerCore { peer, core: 0 });
        // Its rings included.
        self.board.set_dying(true);
        drop(self.lives[node].take());
        self.board.set_dying(false);
        self.arm(node, None);
        self.roster.0.remove(&node);
        let noticed = self.clock.now() + DEATH_NOTICED_AFTER;
        self.events.push(noticed, Event::Missed);
    }

    fn tell_all(&mut self) {
        let placement = self.roster.placement();
        for (node, life) in self.lives.iter().enumerate() {
            if let Some(life) = life {
                life.tell(&placement);
                self.due.insert(node);
            }
        }
    }
}
