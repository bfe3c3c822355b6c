//! Accesses become frames: what the mount numbers in its way is numbered in the trace's.

use std::collections::HashMap;

use forebay_engine::identity::ObjectId;
use forebay_fuse::access::{Access, Deed};

use super::format::{Encoder, NUMBERS_MAX, Record, Timed};

/// Files of a recording, some 100 bytes each in the daemon; accesses of more are lost.
const FILES_MAX: usize = 1_000_000;

/// A handle's numbers in the trace.
#[derive(Clone, Copy, Debug)]
struct Handle {
    number: u32,
    /// Its own reader, where the kernel does not tell who reads.
    reader: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Writer {
    names: bool,
    encoder: Encoder,
    files: HashMap<ObjectId, u32>,
    files_max: usize,
    handles: HashMap<u64, Handle>,
    handles_met: u32,
    tasks: HashMap<u32, u32>,
    readers_met: u32,
    lost: u64,
}

impl Writer {
    pub(super) fn new(names: bool) -> Self {
        Self {
            names,
            encoder: Encoder::default(),
            files: HashMap::new(),
            files_max: FILES_MAX,
            handles: HashMap::new(),
            handles_met: 0,
            tasks: HashMap::new(),
            readers_met: 0,
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
            Some(handle) => handle.number,
            None => self.handle(access)?,
        };
        let reader = self.reader(access)?;
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

    /// Who it is. To a daemon in a container all tasks outside have number 0: each of their handles counts as a reader then. The
    /// kernel's own closing has that number everywhere.
    fn reader(&mut self, access: &Access) -> Option<u32> {
        let next = self.readers_met;
        let reader = match (access.task, access.deed) {
            (0, Deed::Open | Deed::Read { .. }) => {
                let handle = self.handles.get_mut(&access.handle)?;
                handle.reader.get_or_insert(next)
            }
            (task, _) => self.tasks.entry(task).or_insert(next),
        };
        if *reader >= NUMBERS_MAX {
            return None;
        }
        self.readers_met = next.max(*reader + 1);
        Some(*reader)
    }

    fn handle(&mut self, access: &Access) -> Option<u32> {
        let object = &access.file.object;
        let next = self.files.len() as u32;
        if self.handles_met >= NUMBERS_MAX {
            return None;
        }
        if self.files.len() >= self.files_max && !self.files.contains_key(&object.id) {
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
        let number = self.handles_met;
        self.handles_met += 1;
        let reader = None;
        self.handles
            .insert(access.handle, Handle { number, reader });
        Some(number)
    }

    /// Handles that were closed are met no more, unless another thread tells of them late.
    pub(super) fn forget(&mut self, closed: &[u64]) {
        for handle in closed {
            self.handles.remove(handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_engine::identity::{Bucket, ObjectVersion, Validator};
    use forebay_fuse::namespace::FileVersion;

    use super::super::format::{Decoder, header};
    use super::*;

    fn access(task: u32, handle: u64, key: &str, deed: Deed) -> Access {
        let bucket = Arc::new(Bucket {
            endpoint: "e".into(),
            name: "b".into(),
        });
        let etag = Validator::ETag("t".into());
        Access {
            at_ns: 1,
            took_ns: 1,
            task,
            handle,
            file: FileVersion::new(ObjectVersion::new(bucket, key.into(), etag, 7)),
            deed,
        }
    }

    fn read(task: u32, handle: u64) -> Access {
        let deed = Deed::Read {
            offset: 0,
            len_bytes: 7,
            done: true,
        };
        access(task, handle, "a", deed)
    }

    fn records(writer: &mut Writer, accesses: &[Access]) -> Vec<Record> {
        let bytes = [&header(false)[..], &writer.write(accesses, 0)].concat();
        let (mut decoder, mut found) = (Decoder::default(), Vec::new());
        let understood = decoder.push(&bytes, |record| found.push(record));
        understood.expect("it is a trace");
        found
    }

    /// Readers, by the order of their accesses.
    fn readers(accesses: &[Access]) -> Vec<u32> {
        let records = records(&mut Writer::new(false), accesses).into_iter();
        let timed = records.filter_map(|record| match record {
            Record::Read { timed, .. } | Record::Open(timed) | Record::Close(timed) => Some(timed),
            _ => None,
        });
        timed.map(|timed| timed.reader).collect()
    }

    #[test]
    fn tasks_that_are_not_told_are_told_apart_by_their_handles() {
        let open = access(0, 5, "a", Deed::Open);
        let close = |handle| access(0, handle, "a", Deed::Close);
        let all = [open, read(0, 5), read(0, 6), read(0, 5), close(5), close(6)];
        assert_eq!(readers(&all), [0, 0, 1, 0, 2, 2]);
        assert_eq!(readers(&[read(8, 5), read(8, 6), read(9, 6)]), [0, 0, 1]);
    }

    #[test]
    fn files_are_as_many_as_the_daemon_has_memory_for() {
        let mut writer = Writer::new(false);
        writer.files_max = 2;
        let keys = ["a", "b", "c", "b"].iter().enumerate();
        let opens = keys.map(|(handle, key)| access(1, handle as u64, key, Deed::Open));
        let found = records(&mut writer, &opens.collect::<Vec<_>>());
        let count = |wanted: fn(&Record) -> bool| found.iter().filter(|one| wanted(one)).count();
        assert_eq!(count(|one| matches!(one, Record::File { .. })), 2);
        assert_eq!(count(|one| matches!(one, Record::Open(_))), 3);
        assert_eq!(found.last(), Some(&Record::Lost(1)));
    }
}
