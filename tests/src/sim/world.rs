//! One run: cores, clock, origin and actors, and the loop that moves time when nothing else can.

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
use forebay_engine::limits::READ_BYTES_MAX;
use forebay_engine::ports::{Clock, Full, Time};
use forebay_engine::stats::CoreStats;
use parking_lot::Mutex;

use super::actor::{Actor, Ask};
use super::audit::{Facts, parts, sub_blocks};
use super::bay::Bay;
use super::board::{Asked, Board, Question, Ticket};
use super::bucket::SimBucket;
use super::clock::SimClock;
use super::lives::Life;
use super::rng::SimRng;
use super::scenario::{Defect, Scenario, Weather};
use super::schedule::Schedule;
use super::seat::{Process, Seat};
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

#[derive(Clone, Copy, Debug)]
enum Event {
    Wake(usize),
    Overwrite(usize),
    Restart(usize),
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
    pub(super) bays: Vec<Bay>,
    pub(super) life: Life,
    /// Processes that have ended.
    pub(super) lives: u64,
    actors: Vec<Actor>,
    plan: Schedule<Event>,
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
        let bays: Vec<Bay> = (0..)
            .zip(&scenario.disks.sizes)
            .map(|(number, (capacity, region, sector))| {
                Bay::new(seed * 8 + number, *capacity, *region, *sector)
            })
            .collect();
        let shared: Vec<_> = (0..)
            .zip(&bays)
            .map(|(number, bay)| bay.shared(number))
            .collect();
        let life = Life::start(&Process {
            scenario: &scenario,
            clock: &clock,
            trace: &trace,
            store: &store,
            bays: &bays,
            shared: &shared,
            cores: scenario.cores,
            life: 0,
        })?;
        let mut plan = Schedule::default();
        plan.push(Time(0) + scenario.heal_after, Event::Heal);
        for (after, object) in &scenario.overwrites {
            plan.push(Time(0) + *after, Event::Overwrite(*object));
        }
        for (number, (after, ..)) in scenario.restarts.iter().enumerate() {
            plan.push(Time(0) + *after, Event::Restart(number));
        }
        let actors = scenario.roles.iter().enumerate().map(|(number, role)| {
            plan.push(Time(0), Event::Wake(number));
            let rng = SimRng::component(seed, "actor", number as u64);
            Actor::new(role.habit, rng, objects[role.object].clone(), role.rounds)
        });
        let actors = actors.collect();
        let rng = SimRng::component(seed, "world", 0);
        Ok(Self {
            scenario,
            clock,
            trace,
            rng,
            store,
            board,
            bays,
            life,
            lives: 0,
            actors,
            plan,
            facts: Facts::default(),
        })
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
        self.facts
            .judge_run(&self.scenario, &self.store.borrow(), &stats)?;
        let mut all = self.facts.past.clone();
        stats.iter().for_each(|core| all.add(core));
        Ok(all)
    }

    fn is_quiet(&self) -> bool {
        self.board.open() == 0 && self.actors.iter().all(Actor::is_done)
    }

    /// Lets things happen until `goal`, or until nothing can happen any more.
    fn pass_until(&mut self, goal: impl Fn(&World) -> bool) -> Result<(), String> {
        loop {
            self.settle()?;
            if self.handle_answers()? || self.handle_plan()? {
                continue;
            }
            if let Some(violation) = self.board.violation() {
                return Err(violation);
            }
            if goal(self) {
                return Ok(());
            }
            let seats = self.life.seats.iter().filter_map(Seat::next_at);
            let Some(next) = seats.chain(self.plan.next_at()).min() else {
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
            let mut due: Vec<usize> = (0..self.life.seats.len())
                .filter(|seat| self.life.seats[*seat].is_due(now))
                .collect();
            if due.is_empty() {
                return Ok(());
            }
            self.rng.shuffle(&mut due);
            for number in due {
                turns += 1;
                if turns > TURNS_AT_ONE_TIME_MAX {
                    return Err(format!("core {number} turns without end at one time"));
                }
                self.turn(number);
            }
        }
    }

    fn turn(&mut self, number: usize) {
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
        self.life.seats[number].turn(budget);
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
                Event::Overwrite(object) => self.overwrite(object),
                Event::Restart(number) => {
                    let (_, end, cores) = self.scenario.restarts[number];
                    self.restart(end, cores)?;
                    some = true;
                }
                Event::Heal => {
                    self.trace.event(now, format_args!("heal"));
                    for bay in &self.bays {
                        bay.media.borrow_mut().heal();
                    }
                    self.store.borrow_mut().faults_on = false;
                    self.facts.healed_at = Some(now);
                }
            }
        }
        Ok(some)
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

    fn wake(&mut self, number: usize) -> bool {
        let Some(actor) = self.actors.get_mut(number) else {
            return false;
        };
        let asks = actor.next_asks();
        let some = !asks.is_empty();
        for ask in asks {
            self.ask(number, ask);
        }
        some
    }

    fn ask(&mut self, actor: usize, ask: Ask) {
        let full = match &ask {
            Ask::Read {
                object,
                offset,
                len_bytes,
                want_bytes,
            } => !self.read(actor, object, *offset, *len_bytes, *want_bytes),
            Ask::Prefetch {
                object,
                offset,
                len_bytes,
            } => {
                self.facts
                    .wanted
                    .extend(sub_blocks(object, *offset, *len_bytes));
                self.life.client.prefetch(object, *offset, *len_bytes);
                false
            }
            Ask::Head(key) => {
                let bucket = self.store.borrow().bucket.bucket.clone();
                let ticket = self.ticket(actor, Question::Head(key.clone()));
                self.life
                    .client
                    .head(&bucket, key.clone(), ticket.into_head())
                    .is_err()
            }
            Ask::List(request) => {
                let ticket = self.ticket(actor, Question::List(request.clone()));
                self.life
                    .client
                    .list(request.clone(), ticket.into_list())
                    .is_err()
            }
        };
        if full && let Some(asker) = self.actors.get_mut(actor) {
            asker.on_full(ask);
            self.plan.push(
                self.clock.now() + Duration::from_millis(1),
                Event::Wake(actor),
            );
        }
    }

    fn ticket(&self, actor: usize, question: Question) -> Ticket {
        let submitted = self.clock.now();
        self.board.ask(Asked {
            actor,
            life: self.lives,
            question,
            submitted,
            deadline: submitted + self.scenario.io_timeout,
        })
    }

    /// Submits a read; false when the ring was full.
    fn read(
        &mut self,
        actor: usize,
        object: &Arc<ObjectVersion>,
        offset: u64,
        len_bytes: u32,
        want_bytes: u32,
    ) -> bool {
        let valid = len_bytes as usize <= READ_BYTES_MAX;
        let there = object
            .size_bytes
            .saturating_sub(offset)
            .min(u64::from(len_bytes));
        let due_bytes = if valid { there } else { 0 };
        let delivered = &self.facts.delivered;
        let in_memory =
            sub_blocks(object, offset, due_bytes).all(|sub_block| delivered.contains(&sub_block));
        // Small reads go straight to a disk that has the bytes, past the memory.
        let resident = self.bays.is_empty() || self.lives == 0;
        let instant = self.scenario.weather == Weather::Calm && valid && in_memory && resident;
        let wanted = if due_bytes == 0 {
            0
        } else {
            u64::from(want_bytes).max(due_bytes)
        };
        self.facts.wanted.extend(sub_blocks(object, offset, wanted));
        let parts = parts(object, self.life.client.cores(), offset, due_bytes);
        let question = Question::Read {
            object: object.clone(),
            offset,
            len_bytes,
            due_bytes: due_bytes as usize,
            parts,
            instant,
        };
        let ticket = self.ticket(actor, question);
        match self
            .life
            .client
            .read(object, offset, len_bytes, want_bytes, ticket)
        {
            Ok(()) => {
                self.facts.parts += parts;
                true
            }
            Err(Full(ticket)) => {
                ticket.withdraw();
                false
            }
        }
    }

    /// After everything healed, every object must be readable.
    fn look_at_everything(&mut self) -> Result<(), String> {
        let versions: Vec<Arc<ObjectVersion>> = {
            let store = self.store.borrow();
            let keys = store.bucket.keys();
            keys.filter_map(|key| Some(store.bucket.current(key)?.version.clone()))
                .collect()
        };
        for some in versions.chunks(FINAL_READS) {
            for object in some {
                let offset = self.rng.below(object.size_bytes);
                self.read(usize::MAX, object, offset, FINAL_READ_BYTES, 0);
            }
            self.pass_until(|world| world.board.open() == 0)?;
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
        self.facts.cut_short |= self
            .life
            .seats
            .iter()
            .any(|seat| seat.origin.under_way() > 0);
        self.life.client.shutdown();
        self.actors.iter_mut().for_each(Actor::retire);
        // What comes after the shutdown is answered too.
        let (key, _) = &self.scenario.objects[0];
        let object = self
            .store
            .borrow()
            .bucket
            .current(key)
            .map(|generation| generation.version.clone());
        if let Some(object) = object {
            self.read(usize::MAX, &object, 0, 4_096, 0);
        }
        self.pass_until(|world| {
            world.board.open() == 0 && world.life.seats.iter().all(Seat::is_quiet)
        })?;
        match self.life.seats.iter().position(|seat| !seat.is_quiet()) {
            Some(core) => Err(format!("core {core} sleeps and is not quiet")),
            None => Ok(()),
        }
    }

    fn ask_stats(&mut self) -> Result<Vec<CoreStats>, String> {
        let answers: Arc<Mutex<Vec<CoreStats>>> = Arc::default();
        let sink = answers.clone();
        self.life
            .client
            .stats(move |stats| sink.lock().push(*stats));
        self.settle()?;
        Ok(std::mem::take(&mut *answers.lock()))
    }
}

fn plant(scenario: &Scenario, board: &Arc<Board>, store: &Rc<RefCell<OriginStore>>) {
    match scenario.defect {
        Some(Defect::Reply(defect)) => board.plant(defect),
        Some(Defect::Origin(defect)) => store.borrow_mut().defect = Some(defect),
        None => {}
    }
}
