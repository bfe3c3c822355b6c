//! From FUSE requests to the namespace, and the life of a mount.
//!
//! Most writing never arrives: the mount is read-only and the kernel answers EROFS itself.
//! Requests whose absence the kernel understands (extended attributes, `flush`, `lseek`, `poll`)
//! are answered ENOSYS once and do not come again; `lseek` with SEEK_DATA and SEEK_HOLE then
//! works as for a file without holes.

mod filesystem;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::client::Client;
use forebay_engine::identity::{Bucket, ObjectId};
use fuser::{Config, INodeNo, Notifier, Session, SessionACL};
use parking_lot::{Condvar, Mutex};

use crate::access::AccessLog;
use crate::mount_point::{self, DeviceNumber};
use crate::namespace::{Namespace, file_number};
use crate::options::MountOptions;
use crate::reply::{FuseReply, ReadReply};
use filesystem::Shim;

/// Between looks for listings that the kernel keeps for too long: the time to live, within these.
const OUTLIVED_EVERY_MIN: Duration = Duration::from_millis(500);
const OUTLIVED_EVERY_MAX: Duration = Duration::from_secs(60);

/// Mounts `prefix` of `bucket` (empty: all of it) at `mount_point`. When this returns, the mount
/// answers. `R` is the platform's reply type: [`FuseReply`], or one that can be made from it.
///
/// # Errors
/// The mount point is missing, no directory, or busy (`ResourceBusy`); `/dev/fuse` or
/// `fusermount3` is missing; `--allow-other` is not allowed (`PermissionDenied`).
pub fn mount<R: ReadReply + From<FuseReply>>(
    client: Client<R>,
    bucket: Arc<Bucket>,
    prefix: &str,
    mount_point: &Path,
    options: &MountOptions,
) -> io::Result<MountHandle<R>> {
    let source = format!("{bucket}/{prefix}");
    let namespace = Namespace::new(client, bucket, prefix, options);
    let mounted = mount_point::mount(mount_point, &source, options.allow_other)?;
    let path = mounted.path;
    let number = mount_point::find(&path)?.ok_or_else(|| {
        io::Error::other(format!(
            "{} was unmounted while it was mounted",
            path.display()
        ))
    })?;
    let mut config = Config::default();
    config.n_threads = Some(options.threads.max(2));
    config.clone_fd = true;
    let acl = if options.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    config.acl = acl;
    let accesses = Arc::new(AccessLog::default());
    let shim = Shim::new(namespace.clone(), accesses.clone(), options);
    let unmount = |error: io::Error| {
        let _ = mount_point::unmount(&path, number, true);
        error
    };
    let session = Session::from_fd(shim, mounted.device, acl, config).map_err(unmount)?;
    let pages = KernelPages(session.notifier());
    let ended = Arc::new(Ended::default());
    let note = ended.clone();
    std::thread::Builder::new()
        .name("forebay-fuse".into())
        .spawn(move || note.set(session.run()))
        .map_err(unmount)?;
    drop_outlived_listings(&namespace, &pages, &ended, options.attr_ttl);
    mount_point::set_read_ahead(number, options.kernel_read_ahead_kib);
    Ok(MountHandle {
        path,
        number,
        namespace,
        accesses,
        pages,
        ended,
    })
}

/// Until the session ends: what the kernel keeps of a directory that stays open for longer than its listing is believed
/// is dropped, so that who goes back to its start sees it as it is.
fn drop_outlived_listings<R: ReadReply>(
    namespace: &Arc<Namespace<R>>,
    pages: &KernelPages,
    ended: &Arc<Ended>,
    attr_ttl: Duration,
) {
    if attr_ttl.is_zero() {
        return;
    }
    let every = attr_ttl.clamp(OUTLIVED_EVERY_MIN, OUTLIVED_EVERY_MAX);
    let (namespace, pages, ended) = (Arc::downgrade(namespace), pages.clone(), ended.clone());
    let thread = std::thread::Builder::new().name("forebay-expiry".into());
    let started = thread.spawn(move || {
        while ended.wait(Some(Instant::now() + every)).is_none() {
            let Some(namespace) = namespace.upgrade() else {
                return;
            };
            for number in namespace.outlived_listings() {
                let _ = pages.0.inval_inode(INodeNo(number), 0, 0);
            }
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread for it: a directory that stays open shows the listing that it began with");
    }
}

/// How the session ended, once it has.
#[derive(Debug, Default)]
struct Ended {
    result: Mutex<Option<Result<(), (io::ErrorKind, String)>>>,
    changed: Condvar,
}

impl Ended {
    fn set(&self, result: io::Result<()>) {
        *self.result.lock() = Some(result.map_err(|error| (error.kind(), error.to_string())));
        self.changed.notify_all();
    }

    fn wait(&self, until: Option<Instant>) -> Option<io::Result<()>> {
        let mut result = self.result.lock();
        while result.is_none() {
            match until {
                None => self.changed.wait(&mut result),
                Some(until) => {
                    if self.changed.wait_until(&mut result, until).timed_out() {
                        break;
                    }
                }
            }
        }
        result
            .clone()
            .map(|result| result.map_err(|(kind, text)| io::Error::new(kind, text)))
    }
}

/// The kernel's page cache of a mount.
#[derive(Clone, Debug)]
pub struct KernelPages(Notifier);

impl KernelPages {
    /// Drops what the kernel keeps of an object's bytes. Waits for reads of them that are under way, so never call
    /// it from a thread that answers them.
    pub fn forget(&self, object: ObjectId) {
        // An error says that the kernel does not know the file, and so keeps nothing of it.
        let _ = self.0.inval_inode(INodeNo(file_number(object)), 0, 0);
    }
}

/// A mount that is being served. Dropping it detaches the mount lazily.
///
/// An orderly end: [`MountHandle::unmount`] (lazily when files are open), then
/// `Client::shutdown`, then [`MountHandle::wait_timeout`] while the cores still turn, for they
/// answer what the kernel still asks; then the process may exit, which ends what is left.
#[allow(missing_debug_implementations)]
pub struct MountHandle<R> {
    path: PathBuf,
    number: DeviceNumber,
    namespace: Arc<Namespace<R>>,
    accesses: Arc<AccessLog>,
    pages: KernelPages,
    ended: Arc<Ended>,
}

impl<R> MountHandle<R> {
    /// Where it is mounted, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tree behind the mount, for its counters.
    pub fn namespace(&self) -> &Arc<Namespace<R>> {
        &self.namespace
    }

    /// Its accesses, for who records them.
    pub fn accesses(&self) -> &Arc<AccessLog> {
        &self.accesses
    }

    /// What the kernel keeps of the mount's files.
    pub fn pages(&self) -> KernelPages {
        self.pages.clone()
    }

    /// Waits until the session has ended: unmounted from here or from outside.
    ///
    /// # Errors
    /// The session broke.
    pub fn wait(&self) -> io::Result<()> {
        self.ended.wait(None).unwrap_or(Ok(()))
    }

    /// Like [`MountHandle::wait`], for at most `timeout`; `None` when the mount is still served.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<io::Result<()>> {
        self.ended.wait(Some(Instant::now() + timeout))
    }

    /// Unmounts. With `lazy` the mount leaves the tree at once, and the session ends when the
    /// last open file is closed; without it open files make it fail. Already unmounted is fine.
    /// Does not wait for the session's end. Never call it from a thread that serves the mount.
    ///
    /// # Errors
    /// `ResourceBusy` when files are open and not `lazy`.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        mount_point::unmount(&self.path, self.number, lazy)
    }
}

impl<R> Drop for MountHandle<R> {
    fn drop(&mut self) {
        if self.ended.wait(Some(Instant::now())).is_none()
            && let Err(error) = self.unmount(true)
        {
            tracing::warn!(%error, "the mount stays behind; run `forebay umount`");
        }
    }
}
