//! Accesses become frames: what the mount numbers in its way is numbered in the trace's.

use std::collections::HashMap;

use forebay_engine::identity::ObjectId;
use forebay_fuse::access::{Access, Deed};

use super::format::{Encoder, NUMBERS_MAX, Record, Timed};

#[derive(Debug)]
pub(super) struct Writer {
    names: bool,
    encoder: Encoder,
    files: HashMap<ObjectId, u32>,
    handles: HashMap<u64, u32>,
    handles_met: u32,
    tasks: HashMap<u32, u32>,
    lost: u64,
}

impl Writer {
    pub(super) fn new(names: bool) -> Self {
        Self {
            names,
            encoder: Encoder::default(),
            files: HashMap::new(),
            handles: HashMap::new(),
            handles_met: 0,
            tasks: HashMap::new(),
            lost: 0,
        }
    }

    /// Takes accesses in order of their time, so that a handle's close comes last, and how many were dropped since the
    /// start; gives the frames.
    pub(super) fn write(&mut self, accesses: &[Access], dropped: u64) -> Vec<u8> {
        let mut lost = dropped.saturating_sub(self.lost);
        self.lost = dropped;
        for access in accesses {
            if self.add(access).is_none() {
                lost += 1;
            }
        }
        if lost > 0 {
            self.encoder.push(&Record::Lost(lost));
        }
        self.encoder.take()
    }

    /// None when there are more files, handles or readers than a trace has numbers for.
    fn add(&mut self, access: &Access) -> Option<()> {
        let object = &access.file.object;
        let handle = match self.handles.get(&access.handle) {
            Some(handle) => *handle,
            None => self.handle(access)?,
        };
        let next = self.tasks.len() as u32;
        let reader = *self.tasks.entry(access.task).or_insert(next);
        if reader >= NUMBERS_MAX {
            return None;
        }
        let timed = Timed {
            at_ns: access.at_ns,
            took_ns: access.took_ns,
            reader,
            handle,
        };
        self.encoder.push(&match access.deed {
            Deed::Open => Record::Open(timed),
            Deed::Close => Record::Close(timed),
            Deed::Read {
                offset,
                len_bytes,
                done,
            } => {
                // The kernel asks for whole pages; what lies beyond the end is nothing.
                let offset = offset.min(object.size_bytes);
                let left = object.size_bytes - offset;
                Record::Read {
                    timed,
                    offset,
                    len_bytes: u64::from(len_bytes).min(left) as u32,
                    done,
                }
            }
        });
        Some(())
    }

    fn handle(&mut self, access: &Access) -> Option<u32> {
        let object = &access.file.object;
        let next = self.files.len() as u32;
        if next >= NUMBERS_MAX || self.handles_met >= NUMBERS_MAX {
            return None;
        }
        let file = *self.files.entry(object.id).or_insert(next);
        if file == next {
            self.encoder.push(&Record::File {
                size_bytes: object.size_bytes,
                name: self.names.then(|| object.key.to_string()),
            });
        }
        self.encoder.push(&Record::Handle { file });
        let handle = self.handles_met;
        self.handles_met += 1;
        self.handles.insert(access.handle, handle);
        Some(handle)
    }

    /// Handles that were closed are met no more, unless another thread tells of them late.
    pub(super) fn forget(&mut self, closed: &[u64]) {
        for handle in closed {
            self.handles.remove(handle);
        }
    }
}
