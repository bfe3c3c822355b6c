//! How a reader is answered: the engine's [`Reply`] over fuser's, and which errno says what.

use std::sync::Arc;

use forebay_engine::client::Reply;
use forebay_engine::errors::{OriginError, OriginErrorKind, ReadError};
use fuser::Errno;

use crate::access::Watch;
use crate::namespace::FileVersion;
use crate::read_ahead::Timed;

/// An engine reply that a file system can also refuse, and that tells a file when its version is
/// gone.
pub trait ReadReply: Reply {
    /// Answers with an errno of the file system's own.
    fn errno(self, errno: Errno);
    /// Names the version that is read, before the request goes to the engine: a reply that gets
    /// `ReadError::VersionChanged` must call [`FileVersion::supersede`], so that the next open
    /// looks the name up again.
    fn bind(&mut self, file: &Arc<FileVersion>);
    /// Has the time taken until the bytes are there: [`Timed::end`]. Who does not tell gets the read-ahead of near data.
    fn time(&mut self, timed: Timed) {
        drop(timed);
    }
}

/// Answers a FUSE READ, on whatever thread has the bytes.
#[derive(Debug)]
pub struct FuseReply {
    reply: fuser::ReplyData,
    file: Option<Arc<FileVersion>>,
    /// Where somebody records accesses; boxed, since every waiting read has one.
    watch: Option<Box<Watch>>,
    timed: Option<Timed>,
}

impl From<fuser::ReplyData> for FuseReply {
    fn from(reply: fuser::ReplyData) -> Self {
        Self {
            reply,
            file: None,
            watch: None,
            timed: None,
        }
    }
}

impl FuseReply {
    /// Tells `watch` when it is answered.
    pub(crate) fn watched(mut self, watch: Option<Box<Watch>>) -> Self {
        self.watch = watch;
        self
    }

    /// Answers, then tells whoever records: no reader waits for that.
    fn answer(self, done: bool, give: impl FnOnce(fuser::ReplyData)) {
        let Some(mut watch) = self.watch else {
            return give(self.reply);
        };
        watch.answering();
        give(self.reply);
        if let Some(file) = self.file {
            watch.read(file, done);
        }
    }
}

impl Reply for FuseReply {
    fn data(mut self, bytes: &[u8]) {
        // Before the answer: a reader that is quicker than this thread shall find it noted.
        if let Some(timed) = self.timed.take() {
            timed.end();
        }
        self.answer(true, |reply| reply.data(bytes));
    }

    fn error(self, error: ReadError) {
        if error == ReadError::VersionChanged
            && let Some(file) = &self.file
        {
            file.supersede();
        }
        self.answer(false, |reply| reply.error(read_errno(&error)));
    }
}

impl ReadReply for FuseReply {
    fn errno(self, errno: Errno) {
        self.answer(false, |reply| reply.error(errno));
    }

    fn bind(&mut self, file: &Arc<FileVersion>) {
        self.file = Some(file.clone());
    }

    fn time(&mut self, timed: Timed) {
        self.timed = Some(timed);
    }
}

/// The errno of a failed read: ESTALE when the version is gone, EACCES when the origin refuses,
/// EIO for everything else (a mapped file's reader gets SIGBUS for any of them).
pub fn read_errno(error: &ReadError) -> Errno {
    match error {
        ReadError::VersionChanged => Errno::ESTALE,
        ReadError::Origin(error) => match error.kind {
            OriginErrorKind::VersionChanged | OriginErrorKind::NotFound => Errno::ESTALE,
            _ => origin_errno(error),
        },
        ReadError::Invalid => Errno::EINVAL,
        ReadError::Deadline | ReadError::Checksum | ReadError::Shutdown => Errno::EIO,
    }
}

/// The errno of a failed HEAD or LIST. "Not found" has a meaning of its own wherever it can
/// happen and is decided there.
pub fn origin_errno(error: &OriginError) -> Errno {
    match error.kind {
        OriginErrorKind::Denied => Errno::EACCES,
        OriginErrorKind::NotFound => Errno::ENOENT,
        _ => Errno::EIO,
    }
}
