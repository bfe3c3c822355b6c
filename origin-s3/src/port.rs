//! One core's instance of the port. Tasks on the runtime do the work; whatever happens to a
//! task, the job that it owns sends the final event when it is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use forebay_engine::limits::{GETS_PER_CORE_MAX, METADATA_PER_CORE_MAX};
use forebay_engine::ports::{Full, Origin, OriginEvent, OriginOp, OriginTag};
use forebay_engine::ring::Doorbell;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::runtime::Shared;
use crate::{get, metadata};

/// Where tasks put a core's events. Bounded by the operations under way: each has at most its
/// leases and one final event in here.
#[derive(Debug)]
pub(crate) struct Mailbox {
    events: SegQueue<OriginEvent>,
    doorbell: Arc<Doorbell>,
}

impl Mailbox {
    pub(crate) fn send(&self, event: OriginEvent) {
        self.events.push(event);
        self.doorbell.ring();
    }
}

/// The Origin port of one core.
pub struct S3Origin {
    shared: Arc<Shared>,
    runtime: Handle,
    mailbox: Arc<Mailbox>,
    running: HashMap<OriginTag, AbortHandle>,
    gets: usize,
    metadata: usize,
}

impl std::fmt::Debug for S3Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Origin")
            .field("gets", &self.gets)
            .field("metadata", &self.metadata)
            .finish()
    }
}

impl S3Origin {
    pub(crate) fn new(shared: Arc<Shared>, runtime: Handle, doorbell: Arc<Doorbell>) -> Self {
        let mailbox = Arc::new(Mailbox {
            events: SegQueue::new(),
            doorbell,
        });
        Self {
            shared,
            runtime,
            mailbox,
            running: HashMap::new(),
            gets: 0,
            metadata: 0,
        }
    }
}

impl Origin for S3Origin {
    fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>> {
        let (under_way, limit) = match op {
            OriginOp::Get(_) => (&mut self.gets, GETS_PER_CORE_MAX),
            OriginOp::Head(_) | OriginOp::List(_) => (&mut self.metadata, METADATA_PER_CORE_MAX),
        };
        if *under_way == limit {
            return Err(Full(op));
        }
        *under_way += 1;
        let (shared, mailbox) = (self.shared.clone(), self.mailbox.clone());
        // On a runtime that has shut down `spawn` drops the task at once, and with it the job.
        let (tag, task) = match op {
            OriginOp::Get(op) => (op.tag, self.runtime.spawn(get::run(op, shared, mailbox))),
            OriginOp::Head(op) => (
                op.tag,
                self.runtime.spawn(metadata::head(op, shared, mailbox)),
            ),
            OriginOp::List(op) => (
                op.tag,
                self.runtime.spawn(metadata::list(op, shared, mailbox)),
            ),
        };
        self.running.insert(tag, task.abort_handle());
        Ok(())
    }

    fn poll(&mut self) -> Option<OriginEvent> {
        let event = self.mailbox.events.pop()?;
        match &event {
            OriginEvent::Filled { .. } | OriginEvent::Progress { .. } => {}
            OriginEvent::GetDone { tag, .. } => {
                self.running.remove(tag);
                self.gets -= 1;
            }
            OriginEvent::Head { tag, .. } | OriginEvent::List { tag, .. } => {
                self.running.remove(tag);
                self.metadata -= 1;
            }
        }
        Some(event)
    }

    fn cancel(&mut self, tag: OriginTag) {
        if let Some(task) = self.running.get(&tag) {
            task.abort();
        }
    }
}

impl Drop for S3Origin {
    fn drop(&mut self) {
        self.running.values().for_each(AbortHandle::abort);
    }
}
