//! The board: what was asked and not yet answered, and every answer. It checks what can be checked
//! the moment an answer comes: that it is the first, in time, and has the right bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::client::{Callback, Reply, Told};
use forebay_engine::errors::{OriginError, ReadError};
use forebay_engine::identity::ObjectVersion;
use forebay_engine::ports::{Clock, ListPage, ListRequest, ObjectMeta, Time};
use parking_lot::Mutex;

use super::bucket;
use super::clock::SimClock;
use super::trace::Trace;

/// Virtual time that an answer may come after its deadline.
pub const DEADLINE_SLACK: Duration = Duration::from_millis(5);

/// What was asked.
#[derive(Clone, Debug)]
pub enum Question {
    /// A read; `len_bytes` as asked, `due_bytes` as it must be answered.
    Read {
        /// Of which version.
        object: Arc<ObjectVersion>,
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        len_bytes: u32,
        /// Bytes that there are.
        due_bytes: usize,
        /// In how many parts it travels.
        parts: u64,
        /// All of it was in memory when it was asked for, so it must not wait.
        instant: bool,
    },
    /// Attributes of a key.
    Head(Arc<str>),
    /// A page of a listing.
    List(ListRequest),
}

/// One operation on its way.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Which actor asked.
    pub actor: usize,
    /// On which node.
    pub node: usize,
    /// Which process was asked.
    pub life: u64,
    /// What.
    pub question: Question,
    /// When.
    pub submitted: Time,
    /// When it must be answered.
    pub deadline: Time,
    /// When it must be answered at the latest: a process that stands still answers when it goes on.
    pub due_by: Time,
}

/// How an operation ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// A read got its bytes, which were right.
    Bytes,
    /// A read failed.
    ReadFailed(ReadError),
    /// A HEAD.
    Head(Result<ObjectMeta, OriginError>),
    /// A listing page.
    List(Result<Arc<ListPage>, OriginError>),
    /// The process died with it.
    Died,
}

/// An answer, for the actor that asked and for the audit.
#[derive(Clone, Debug)]
pub struct Answered {
    /// What was asked.
    pub asked: Asked,
    /// How it ended.
    pub outcome: Outcome,
    /// When.
    pub at: Time,
}

/// Deliberate defects, to prove that the checkers see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyDefect {
    /// One answer comes twice.
    Double,
    /// One answer gets lost without a trace.
    Lost,
    /// One request is dropped unanswered.
    Dropped,
}

/// Shared by the world and by all replies under way.
#[derive(Debug)]
pub struct Board {
    clock: SimClock,
    trace: Trace,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    asked: u64,
    open: BTreeMap<u64, Asked>,
    answers: VecDeque<Answered>,
    violation: Option<String>,
    defect: Option<ReplyDefect>,
    /// The process is being killed: what is dropped dies with it.
    dying: bool,
}

impl Board {
    /// An empty board.
    pub fn new(clock: SimClock, trace: Trace) -> Arc<Self> {
        Arc::new(Self {
            clock,
            trace,
            state: Mutex::default(),
        })
    }

    /// Writes a question down; the ticket answers it.
    pub fn ask(self: &Arc<Self>, asked: Asked) -> Ticket {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let id = state.asked;
        state.asked += 1;
        match &asked.question {
            Question::Read {
                object,
                offset,
                len_bytes,
                ..
            } => self.trace.event(
                now,
                format_args!(
                    "ask {id} read {} at {offset} len {len_bytes} of {}",
                    object.key, object.validator
                ),
            ),
            Question::Head(key) => self.trace.event(now, format_args!("ask {id} head {key}")),
            Question::List(request) => self.trace.event(
                now,
                format_args!(
                    "ask {id} list {:?} after {:?}",
                    request.prefix, request.continuation
                ),
            ),
        }
        state.open.insert(id, asked);
        Ticket {
            id,
            board: self.clone(),
            live: true,
        }
    }

    /// Answers since the last call, oldest first.
    pub fn take_answers(&self) -> VecDeque<Answered> {
        std::mem::take(&mut self.state.lock().answers)
    }

    /// Operations without an answer.
    pub fn open(&self) -> usize {
        self.state.lock().open.len()
    }

    /// The first thing that went wrong.
    pub fn violation(&self) -> Option<String> {
        let mut state = self.state.lock();
        let late = self.clock.now();
        // Every operation has the same time to live, so the first asked have the first deadlines.
        let mut past = state
            .open
            .iter()
            .take_while(|(_, asked)| asked.deadline + DEADLINE_SLACK < late);
        if let Some((id, asked)) = past.find(|(_, asked)| asked.due_by + DEADLINE_SLACK < late) {
            let text = format!("operation {id} is overdue: {asked:?}");
            state.violation.get_or_insert(text);
        }
        state.violation.clone()
    }

    /// A node's process stands still until `until`.
    pub fn excuse(&self, node: usize, until: Time) {
        let mut state = self.state.lock();
        for asked in state.open.values_mut().filter(|asked| asked.node == node) {
            asked.due_by = asked.due_by.max(until);
        }
    }

    /// While this is set, operations that are dropped have died with their process.
    pub fn set_dying(&self, dying: bool) {
        self.state.lock().dying = dying;
    }

    /// Shows `defect` at the next answer.
    pub fn plant(&self, defect: ReplyDefect) {
        self.state.lock().defect = Some(defect);
    }

    fn take_defect(&self, defect: ReplyDefect) -> bool {
        let mut state = self.state.lock();
        let shown = state.defect == Some(defect);
        if shown {
            state.defect = None;
        }
        shown
    }

    fn blame(&self, text: String) {
        self.state.lock().violation.get_or_insert(text);
    }

    fn answer(&self, id: u64, outcome: Outcome) {
        let at = self.clock.now();
        match &outcome {
            Outcome::Bytes => self.trace.event(at, format_args!("answer {id} bytes")),
            Outcome::Died => self.trace.event(at, format_args!("answer {id} died")),
            Outcome::ReadFailed(error) => self
                .trace
                .event(at, format_args!("answer {id} error {error}")),
            Outcome::Head(result) => {
                let result = result.as_ref().map(|meta| &meta.validator);
                self.trace
                    .event(at, format_args!("answer {id} head {result:?}"));
            }
            Outcome::List(result) => {
                let result = result.as_ref().map(|page| page.entries.len());
                self.trace
                    .event(at, format_args!("answer {id} list {result:?}"));
            }
        }
        let mut state = self.state.lock();
        let Some(asked) = state.open.remove(&id) else {
            state
                .violation
                .get_or_insert(format!("operation {id} was answered twice"));
            return;
        };
        if at > asked.due_by + DEADLINE_SLACK {
            let text =
                format!("operation {id} was answered at {at:?}, after its deadline: {asked:?}");
            state.violation.get_or_insert(text);
        }
        state.answers.push_back(Answered { asked, outcome, at });
    }

    fn check_bytes(&self, id: u64, bytes: &[u8]) {
        let state = self.state.lock();
        let Some(Asked {
            question:
                Question::Read {
                    object,
                    offset,
                    due_bytes,
                    ..
                },
            ..
        }) = state.open.get(&id)
        else {
            return;
        };
        let (object, offset, due_bytes) = (object.clone(), *offset, *due_bytes);
        drop(state);
        if bytes.len() != due_bytes {
            self.blame(format!(
                "operation {id} got {} bytes instead of {due_bytes}",
                bytes.len()
            ));
        } else if let Some(at) = bucket::first_wrong(&object, offset, bytes) {
            let (key, validator) = (&object.key, &object.validator);
            self.blame(format!(
                "operation {id} got a wrong byte at {at} of {key} ({validator}), read from {offset}"
            ));
        }
    }
}

/// The right, and the duty, to answer one operation. Used as the engine's reply, and inside its
/// callbacks.
#[derive(Debug)]
pub struct Ticket {
    id: u64,
    board: Arc<Board>,
    live: bool,
}

impl Ticket {
    /// Takes the question back: the engine had no room for it.
    pub fn withdraw(mut self) {
        self.live = false;
        self.board
            .trace
            .event(self.board.clock.now(), format_args!("withdraw {}", self.id));
        self.board.state.lock().open.remove(&self.id);
    }

    fn answer(mut self, outcome: Outcome) {
        if self.board.take_defect(ReplyDefect::Dropped) {
            return;
        }
        self.live = false;
        if self.board.take_defect(ReplyDefect::Lost) {
            return;
        }
        if self.board.take_defect(ReplyDefect::Double) {
            self.board.answer(self.id, outcome.clone());
        }
        self.board.answer(self.id, outcome);
    }

    /// A callback that answers a HEAD.
    pub fn into_head(self) -> Callback<Told<ObjectMeta>> {
        Box::new(move |told| self.answer(Outcome::Head(told.result)))
    }

    /// A callback that answers a listing page.
    pub fn into_list(self) -> Callback<Told<Arc<ListPage>>> {
        Box::new(move |told| self.answer(Outcome::List(told.result)))
    }
}

impl Reply for Ticket {
    fn data(self, bytes: &[u8]) {
        self.board.check_bytes(self.id, bytes);
        self.answer(Outcome::Bytes);
    }

    fn error(self, error: ReadError) {
        self.answer(Outcome::ReadFailed(error));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.live && self.board.state.lock().dying {
            self.board.answer(self.id, Outcome::Died);
        } else if self.live {
            self.board.blame(format!(
                "operation {} was dropped without an answer",
                self.id
            ));
        }
    }
}
