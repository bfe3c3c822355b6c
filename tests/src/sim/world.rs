//! One run: nodes, clock, origin and actors, and the loop that moves time when nothing else can.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::core::Budget;
use forebay_engine::identity::ObjectVersion;
use forebay_engine::placement::Placement;
use forebay_engine::ports::{Clock, Time};
use forebay_engine::stats::CoreStats;
use parking_lot::Mutex;

use super::actor::Actor;
use super::audit::Facts;
use super::board::Board;
use super::bucket::SimBucket;
use super::clock::SimClock;
use super::network::{NetProfile, SimNetwork};
use super::nodes::{Life, Node};
use super::rng::SimRng;
use super::roster::Roster;
use super::scenario::{Change, Defect, NodePlan, Scenario, Weather};
use super::schedule::Schedule;
use super::seat::Seat;
use super::store::OriginStore;
use super::trace::Trace;

/// Turns that the cores may take together before time must move.
const TURNS_AT_ONE_TIME_MAX: u64 = 400_000;
/// Virtual time that a run may last.
const RUN_TIME_MAX: Duration = Duration::from_secs(3_600);
/// Bytes that each run reads again at its end, per object.
const FINAL_READ_BYTES: u32 = 32 << 10;
/// Reads under way at the end at a time.
const FINAL_READS: usize = 8;

/// What a run that went well came to.
#[derive(Clone, Debug)]
pub struct Passed {
    /// Its seed.
    pub seed: u64,
    /// The event hash.
    pub hash: u64,
    /// Events folded into it.
    pub events: u64,
    /// Virtual time at the end.
    pub ended_at: Time,
    /// All cores' counters.
    pub stats: CoreStats,
    /// Bytes that the origin sent.
    pub origin_bytes: u64,
    /// Sub-blocks that it sent once more.
    pub sent_again: usize,
}

/// What a run that went wrong tells.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Its seed.
    pub seed: u64,
    /// What is wrong.
    pub what: String,
    /// When.
    pub at: Time,
    /// The last events.
    pub tail: Vec<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.tail {
            writeln!(f, "  {line}")?;
        }
        writeln!(
            f,
            "seed {} FAILED at {:?}: {}",
            self.seed, self.at, self.what
        )?;
        write!(
            f,
            "replay: cargo run -p forebay-tests --bin forebay-sim -- --seed {} --verbose",
            self.seed
        )
    }
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Wake(usize),
    Change(Change),
    /// A node hears of a view; in a process of this number.
    View(usize, u64, Arc<Placement>),
    /// A node was not heard of for long, since its process of this number.
    Missed(usize, u64),
    Resume(usize),
    Heal,
}

/// One run.
pub struct World {
    pub(super) scenario: Scenario,
    pub(super) clock: SimClock,
    pub(super) trace: Trace,
    pub(super) rng: SimRng,
    pub(super) store: Rc<RefCell<OriginStore>>,
    pub(super) board: Arc<Board>,
    pub(super) network: SimNetwork,
    pub(super) nodes: Vec<Node>,
    pub(super) roster: Roster,
    /// Every view that ever was.
    pub(super) views: Vec<Arc<Placement>>,
    pub(super) actors: Vec<Actor>,
    pub(super) plan: Schedule<Event>,
    pub(super) facts: Facts,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("scenario", &self.scenario)
            .finish_non_exhaustive()
    }
}

/// Runs `scenario` from its beginning to its shutdown.
///
/// # Errors
/// The first thing that went wrong.
pub fn run(scenario: Scenario, print: bool) -> Result<Passed, Box<Failed>> {
    let trace = Trace::new(print);
    let clock = SimClock::default();
    let seed = scenario.seed;
    let failed = |what: String| {
        Box::new(Failed {
            seed,
            what,
            at: clock.now(),
            tail: trace.tail(),
        })
    };
    let mut world = World::new(scenario, clock.clone(), trace.clone())
        .map_err(|error| failed(format!("the world could not be built: {error}")))?;
    // After a panic nothing of the world is looked at any more, but for the trace.
    let stats = catch_unwind(AssertUnwindSafe(|| world.live()))
        .map(|result| result.map_err(|what| format!("{what}\n{}", world.describe())))
        .unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))))
        .map_err(failed)?;
    Ok(Passed {
        seed,
        hash: trace.hash(),
        events: trace.events(),
        ended_at: clock.now(),
        stats,
        origin_bytes: world.store.borrow().sent_bytes,
        sent_again: world.store.borrow().sent_again.len(),
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("of an unknown kind")
}

impl World {
    fn new(scenario: Scenario, clock: SimClock, trace: Trace) -> io::Result<Self> {
        let seed = scenario.seed;
        let mut bucket = SimBucket::new();
        let objects: Vec<Arc<ObjectVersion>> = scenario
            .objects
            .iter()
            .map(|(key, size)| bucket.put(key, *size, Time(0)))
            .collect();
        let store = OriginStore::new(bucket);
        let board = Board::new(clock.clone(), trace.clone());
        plant(&scenario, &board, &store);
        store.borrow_mut().faults_on = matches!(scenario.weather, Weather::Storm | Weather::Flood);
        let network = network(&scenario, &clock, &trace);
        let nodes = (0..scenario.nodes.len()).map(|number| Node::new(&scenario, number));
        let nodes = nodes.collect();
        let mut plan = Schedule::default();
        plan.push(Time(0) + scenario.heal_after, Event::Heal);
        for (after, change) in &scenario.changes {
            plan.push(Time(0) + *after, Event::Change(*change));
        }
        let actors = scenario.roles.iter().enumerate().map(|(number, role)| {
            plan.push(Time(0), Event::Wake(number));
            let rng = SimRng::component(seed, "actor", number as u64);
            Actor::new(role.habit, rng, objects[role.object].clone(), role.rounds)
        });
        let actors = actors.collect();
        let rng = SimRng::component(seed, "world", 0);
        let facts = Facts::new(scenario.nodes.len());
        let mut world = Self {
            scenario,
            clock,
            trace,
            rng,
            store,
            board,
            network,
            nodes,
            roster: Roster::default(),
            views: Vec::new(),
            actors,
            plan,
            facts,
        };
        world.found_group();
        for number in 0..world.nodes.len() {
            let NodePlan { is_up, cores, .. } = world.nodes[number].plan;
            if is_up {
                world.start(number, cores).map_err(io::Error::other)?;
            }
        }
        Ok(world)
    }

    /// Faults, healing, a last look at every object, shutdown, audit.
    fn live(&mut self) -> Result<CoreStats, String> {
        if self.scenario.stop_early {
            let some = self.rng.below(1_500_000);
            self.pass_until(|world| world.clock.now() > Time(0) + Duration::from_micros(some))?;
        } else {
            self.pass_until(|world| world.is_quiet() && world.facts.healed_at.is_some())?;
            if matches!(self.scenario.weather, Weather::Storm | Weather::Flood) {
                // What was asked during the faults is over by now; nothing may fail from here on.
                let calm_at =
                    self.clock.now() + self.scenario.io_timeout + Duration::from_millis(1);
                self.plan.push(calm_at, Event::Wake(usize::MAX));
                self.pass_until(|world| world.clock.now() >= calm_at)?;
            }
            self.look_at_everything()?;
        }
        self.shut_down()?;
        let stats = self.ask_stats()?;
        let strays = self.network.stray_writes();
        if strays > 0 {
            return Err(format!(
                "{strays} answers landed in leases that had gone back"
            ));
        }
        self.facts
            .judge_run(&self.scenario, &self.store.borrow(), &stats)?;
        let mut all = self.facts.past.clone();
        stats.iter().for_each(|core| all.add(core));
        Ok(all)
    }

    fn is_quiet(&self) -> bool {
        let changes = self.scenario.changes.iter();
        let readings = changes.filter(|(_, change)| matches!(change, Change::ReadAll(_)));
        let last = readings.map(|(after, _)| *after).max().unwrap_or_default();
        self.board.open() == 0
            && self.actors.iter().all(Actor::is_done)
            && self.clock.now() >= Time(0) + last
    }

    /// Lets things happen until `goal`, or until nothing can happen any more.
    fn pass_until(&mut self, goal: impl Fn(&World) -> bool) -> Result<(), String> {
        loop {
            self.settle()?;
            if self.handle_answers()? || self.follow_endings()? || self.handle_plan()? {
                continue;
            }
            if let Some(violation) = self.board.violation() {
                return Err(violation);
            }
            if goal(self) {
                return Ok(());
            }
            let seats = self.nodes.iter().flat_map(Node::seats);
            let seats = seats.filter_map(Seat::next_at);
            let others = self
                .plan
                .next_at()
                .into_iter()
                .chain(self.network.next_at());
            let Some(next) = seats.chain(others).min() else {
                let open = self.board.open();
                return if open == 0 {
                    Ok(())
                } else {
                    Err(format!("everything sleeps with {open} operations open"))
                };
            };
            if next > Time(0) + RUN_TIME_MAX {
                return Err(format!(
                    "the run does not end: {} operations open",
                    self.board.open()
                ));
            }
            self.clock.advance_to(next);
        }
    }

    /// Turns every core that has a reason to, until none has.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        let mut turns = 0;
        loop {
            self.network.advance();
            let mut due: Vec<(usize, usize)> = Vec::new();
            for (number, node) in self.nodes.iter().enumerate() {
                let seats = node.seats().iter().enumerate();
                let its = seats.filter(|(_, seat)| seat.is_due(now));
                due.extend(its.map(|(core, _)| (number, core)));
            }
            if due.is_empty() {
                return Ok(());
            }
            self.rng.shuffle(&mut due);
            for (node, core) in due {
                turns += 1;
                if turns > TURNS_AT_ONE_TIME_MAX {
                    return Err(format!(
                        "core {core} of node {node} turns without end at one time"
                    ));
                }
                self.turn(node, core);
            }
        }
    }

    fn turn(&mut self, node: usize, core: usize) {
        let budget = if self.scenario.small_turns {
            let (requests, completions) = (
                self.rng.between(1, 4) as usize,
                self.rng.between(1, 4) as usize,
            );
            Budget {
                requests,
                completions,
            }
        } else {
            Budget::default()
        };
        if let Some(life) = &mut self.nodes[node].life {
            life.seats[core].turn(budget);
        }
    }

    fn handle_answers(&mut self) -> Result<bool, String> {
        let answers = self.board.take_answers();
        let some = !answers.is_empty();
        for answered in answers {
            self.facts
                .judge(&self.scenario, &self.store.borrow(), &answered)?;
            let number = answered.asked.actor;
            let Some(actor) = self.actors.get_mut(number) else {
                continue;
            };
            let (think, listing) = actor.on_answer(&answered);
            if let Some((prefix, names)) = listing {
                self.check_listing(&prefix, &names)?;
            }
            self.plan
                .push(self.clock.now() + think, Event::Wake(number));
        }
        Ok(some)
    }

    /// Keys are never made or removed while a run lasts, so a walk must find each exactly once.
    fn check_listing(&self, prefix: &str, names: &[String]) -> Result<(), String> {
        let store = self.store.borrow();
        let all: Vec<&str> = store
            .bucket
            .keys()
            .map(|key| &**key)
            .filter(|key| key.starts_with(prefix))
            .collect();
        if all == names {
            Ok(())
        } else {
            Err(format!(
                "the listing of {prefix:?} is {names:?}, not {all:?}"
            ))
        }
    }

    fn handle_plan(&mut self) -> Result<bool, String> {
        let now = self.clock.now();
        let mut some = false;
        while let Some((_, event)) = self.plan.pop_due(now) {
            match event {
                Event::Wake(number) => some |= self.wake(number),
                Event::Change(change) => {
                    self.change(change)?;
                    some = true;
                }
                Event::View(node, life, placement) => {
                    self.hear(node, life, &placement);
                    some = true;
                }
                Event::Missed(node, life) => self.miss(node, life),
                Event::Resume(node) => {
                    self.resume(node);
                    some = true;
                }
                Event::Heal => {
                    self.trace.event(now, format_args!("heal"));
                    for bay in self.nodes.iter().flat_map(|node| &node.bays) {
                        bay.media.borrow_mut().heal();
                    }
                    self.network.heal();
                    let mut store = self.store.borrow_mut();
                    store.faults_on = false;
                    store.forced = None;
                    store.cut_off.clear();
                    drop(store);
                    self.facts.healed_at = Some(now);
                }
            }
        }
        Ok(some)
    }

    /// After everything healed, every object must be readable.
    fn look_at_everything(&mut self) -> Result<(), String> {
        let versions: Vec<Arc<ObjectVersion>> = {
            let store = self.store.borrow();
            let keys = store.bucket.keys();
            keys.filter_map(|key| Some(store.bucket.current(key)?.version.clone()))
                .collect()
        };
        for node in 0..self.nodes.len() {
            if self.nodes[node].life.is_none() {
                continue;
            }
            for some in versions.chunks(FINAL_READS) {
                for object in some {
                    let offset = self.rng.below(object.size_bytes);
                    self.read(usize::MAX, node, object, offset, FINAL_READ_BYTES, 0);
                }
                self.pass_until(|world| world.board.open() == 0)?;
            }
        }
        Ok(())
    }

    fn shut_down(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        self.trace.event(
            now,
            format_args!("shutdown with {} open", self.board.open()),
        );
        self.facts.stopped_at = Some(now);
        let seats = self
            .nodes
            .iter()
            .flat_map(|node| &node.life)
            .flat_map(|life| &life.seats);
        self.facts.cut_short |= seats.map(|seat| seat.origin.under_way()).sum::<usize>() > 0;
        self.actors.iter_mut().for_each(Actor::retire);
        let (key, _) = self.scenario.objects[0].clone();
        let object = self
            .store
            .borrow()
            .bucket
            .current(&key)
            .map(|now| now.version.clone());
        for number in 0..self.nodes.len() {
            let Some(life) = &self.nodes[number].life else {
                continue;
            };
            life.client.shutdown();
            // What comes after the shutdown is answered too.
            if let Some(object) = &object {
                self.read(usize::MAX, number, object, 0, 4_096, 0);
            }
        }
        let quiet = |node: &Node| node.life.as_ref().is_none_or(Life::is_quiet);
        self.pass_until(|world| world.board.open() == 0 && world.nodes.iter().all(quiet))?;
        match self.nodes.iter().position(|node| !quiet(node)) {
            Some(node) => Err(format!("node {node} sleeps and is not quiet")),
            None => Ok(()),
        }
    }

    fn ask_stats(&mut self) -> Result<Vec<CoreStats>, String> {
        let answers: Arc<Mutex<Vec<CoreStats>>> = Arc::default();
        let sink = answers.clone();
        let mut cores = 0;
        for life in self.nodes.iter().filter_map(|node| node.life.as_ref()) {
            let sink = sink.clone();
            cores += life.client.cores();
            life.client.stats(move |stats| sink.lock().push(*stats));
        }
        self.settle()?;
        let answers = std::mem::take(&mut *answers.lock());
        match answers.len() == cores {
            true => Ok(answers),
            false => Err(format!(
                "cores that answered with their counters: {} of {cores}",
                answers.len()
            )),
        }
    }
}

fn network(scenario: &Scenario, clock: &SimClock, trace: &Trace) -> SimNetwork {
    let profile = match &scenario.group {
        Some(group) => group.network.clone(),
        None => NetProfile::default(),
    };
    SimNetwork::new(profile, clock.clone(), scenario.seed).traced(trace.clone())
}

fn plant(scenario: &Scenario, board: &Arc<Board>, store: &Rc<RefCell<OriginStore>>) {
    match scenario.defect {
        Some(Defect::Reply(defect)) => board.plant(defect),
        Some(Defect::Origin(defect)) => store.borrow_mut().defect = Some(defect),
        None => {}
    }
}
