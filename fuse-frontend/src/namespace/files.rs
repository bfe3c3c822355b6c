//! Open files: one version each, with the read-ahead of its reader.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_engine::ports::Full;
use fuser::Errno;
use parking_lot::Mutex;

use super::inodes::{FileVersion, Node};
use super::{Namespace, count};
use crate::read_ahead::{ReadAhead, Timed, Waits};
use crate::reply::ReadReply;

/// A full ring is tried again this often right away ...
const PUSH_YIELDS_MAX: u32 = 64;
/// ... then this often after [`PUSH_PAUSE`]; then the read is EIO. The ring holds 16,384
/// requests, so a ring that stays full means a core that is far behind.
const PUSH_PAUSES_MAX: u32 = 20;
const PUSH_PAUSE: Duration = Duration::from_micros(50);

/// The part of a handle that is its place in the table.
const PLACE: u64 = u32::MAX as u64;

fn place_of(handle: u64) -> usize {
    (handle & PLACE) as usize
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    number: u64,
    version: Arc<FileVersion>,
    read_ahead: Mutex<ReadAhead>,
    waits: Arc<Waits>,
}

impl<R: ReadReply> Namespace<R> {
    /// Opens a file for reading; [`Namespace::release`] closes the handle.
    ///
    /// # Errors
    /// To `reply`: ESTALE when the inode is unknown, or its object changed or is gone (the
    /// kernel then looks the name up again); EISDIR, EACCES, EIO.
    pub fn open(
        self: &Arc<Self>,
        number: u64,
        reply: impl FnOnce(Result<u64, Errno>) + Send + 'static,
    ) {
        let node = self.inodes.lock().get(number);
        let file = match node {
            Some(Node::File(file)) => file,
            Some(Node::Directory(_)) => return reply(Err(Errno::EISDIR)),
            None => return reply(Err(Errno::ESTALE)),
        };
        let this = self.clone();
        self.revalidate(number, file, move |result| {
            reply(result.and_then(|_| this.opened(number)));
        });
    }

    fn opened(&self, number: u64) -> Result<u64, Errno> {
        let version = self.inodes.lock().opened_file(number, &self.bucket);
        let version = version.ok_or(Errno::ESTALE)?;
        let read_ahead = ReadAhead::new(version.object.size_bytes, self.budget.clone());
        let file = OpenFile {
            number,
            version,
            waits: read_ahead.waits(),
            read_ahead: Mutex::new(read_ahead),
        };
        let place = self.files.write().insert(Arc::new(file)) as u64;
        // Places are used again; handles are not, so that whoever records them can tell them apart.
        let serial = self.opens.fetch_add(1, Ordering::Relaxed) & u64::from(u32::MAX);
        Ok(serial << 32 | place & PLACE)
    }

    /// Reads from an open file: the engine answers `reply`.
    ///
    /// When the core's ring stays full for about a millisecond the read fails with EIO: the
    /// caller's thread must take the kernel's next request.
    pub fn read(&self, handle: u64, offset: u64, len_bytes: u32, mut reply: R) {
        let file = self.files.read().get(place_of(handle)).cloned();
        let Some(file) = file else {
            return reply.errno(Errno::EBADF);
        };
        let object = &file.version.object;
        reply.bind(&file.version);
        let plan = file
            .read_ahead
            .lock()
            .on_read(offset, len_bytes, self.client.now());
        if let Some(width_bytes) = plan.timed_width {
            reply.time(Timed::begin(&file.waits, width_bytes));
        }
        let mut attempt = 0;
        while let Err(Full(refused)) =
            self.client
                .read(object, offset, len_bytes, plan.want_bytes, reply)
        {
            reply = refused;
            attempt += 1;
            if attempt <= PUSH_YIELDS_MAX {
                std::thread::yield_now();
            } else if attempt <= PUSH_YIELDS_MAX + PUSH_PAUSES_MAX {
                std::thread::sleep(PUSH_PAUSE);
            } else {
                count(&self.counters.reads_refused);
                return reply.errno(Errno::EIO);
            }
        }
        if let Some(range) = plan.prefetch {
            self.client
                .prefetch(object, range.start, range.end - range.start);
        }
    }

    /// What a handle reads; none when it is not open.
    pub fn version_of(&self, handle: u64) -> Option<Arc<FileVersion>> {
        let files = self.files.read();
        Some(files.get(place_of(handle))?.version.clone())
    }

    /// Closes a file.
    pub fn release(&self, handle: u64) {
        let file = self.files.write().try_remove(place_of(handle));
        if let Some(file) = file {
            self.inodes.lock().closed_file(file.number, &file.version);
        }
    }
}
