//! How actors' questions reach the nodes.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::client::Client;
use forebay_engine::identity::ObjectVersion;
use forebay_engine::limits::READ_BYTES_MAX;
use forebay_engine::ports::{Clock, Full};

use super::actor::Ask;
use super::audit::{ATTR_TTL, parts, sub_blocks};
use super::board::{Asked, Question, Ticket};
use super::nodes::Node;
use super::scenario::Weather;
use super::world::{Event, World};

/// An actor on a node that is off looks again after this.
const OFF_PAUSE: Duration = Duration::from_millis(20);

impl World {
    pub(super) fn wake(&mut self, number: usize) -> bool {
        let Some(actor) = self.actors.get_mut(number) else {
            return false;
        };
        let node = self.scenario.roles[number].node;
        if self.nodes[node].is_lost {
            actor.retire();
            return false;
        }
        if !self.nodes[node].takes_questions() {
            if !actor.is_done() {
                let later = self.clock.now() + OFF_PAUSE;
                self.plan.push(later, Event::Wake(number));
            }
            return false;
        }
        let asks = actor.next_asks();
        let some = !asks.is_empty();
        for ask in asks {
            self.ask(number, node, ask);
        }
        some
    }

    fn ask(&mut self, actor: usize, node: usize, ask: Ask) {
        let Some(client) = self.client(node) else {
            return;
        };
        let full = match &ask {
            Ask::Read {
                object,
                offset,
                len_bytes,
                want_bytes,
            } => !self.read(actor, node, object, *offset, *len_bytes, *want_bytes),
            Ask::Prefetch {
                object,
                offset,
                len_bytes,
            } => {
                self.facts
                    .wanted
                    .extend(sub_blocks(object, *offset, *len_bytes));
                client.prefetch(object, *offset, *len_bytes);
                false
            }
            Ask::Head(key) => {
                let bucket = self.store.borrow().bucket.bucket.clone();
                let ticket = self.ticket(actor, node, Question::Head(key.clone()));
                client
                    .head(&bucket, key.clone(), ATTR_TTL, ticket.into_head())
                    .is_err()
            }
            Ask::List(request) => {
                let ticket = self.ticket(actor, node, Question::List(request.clone()));
                client
                    .list(request.clone(), ATTR_TTL, ticket.into_list())
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

    fn client(&self, node: usize) -> Option<Client<Ticket>> {
        let life = self.nodes[node].life.as_ref();
        life.map(|life| life.client.clone())
    }

    fn ticket(&self, actor: usize, node: usize, question: Question) -> Ticket {
        let submitted = self.clock.now();
        let deadline = submitted + self.scenario.io_timeout;
        let Node {
            lives,
            paused_until,
            ..
        } = &self.nodes[node];
        self.board.ask(Asked {
            actor,
            node,
            life: *lives,
            question,
            submitted,
            deadline,
            due_by: paused_until.unwrap_or(deadline).max(deadline),
        })
    }

    /// Submits a read; false when the ring was full.
    pub(super) fn read(
        &mut self,
        actor: usize,
        node: usize,
        object: &Arc<ObjectVersion>,
        offset: u64,
        len_bytes: u32,
        want_bytes: u32,
    ) -> bool {
        let Some(client) = self.client(node) else {
            return true;
        };
        let valid = len_bytes as usize <= READ_BYTES_MAX;
        let there = object
            .size_bytes
            .saturating_sub(offset)
            .min(u64::from(len_bytes));
        let due_bytes = if valid { there } else { 0 };
        let delivered = &self.facts.delivered[node];
        let in_memory =
            sub_blocks(object, offset, due_bytes).all(|sub_block| delivered.contains(&sub_block));
        // Small reads go straight to a disk that has the bytes, past the memory.
        let its = &self.nodes[node];
        let resident = (its.bays.is_empty() || its.lives == 0) && its.paused_until.is_none();
        let instant = self.scenario.weather == Weather::Calm && valid && in_memory && resident;
        let wanted = if due_bytes == 0 {
            0
        } else {
            u64::from(want_bytes).max(due_bytes)
        };
        self.facts.wanted.extend(sub_blocks(object, offset, wanted));
        let parts = parts(object, client.cores(), offset, due_bytes);
        let question = Question::Read {
            object: object.clone(),
            offset,
            len_bytes,
            due_bytes: due_bytes as usize,
            parts,
            instant,
        };
        let ticket = self.ticket(actor, node, question);
        match client.read(object, offset, len_bytes, want_bytes, ticket) {
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
}
