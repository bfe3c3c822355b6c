//! The mount's side of the control API.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::UnixListener;

use super::report::{StatsReport, StatusReport};
use super::sockets::make_runtime_dir;
use crate::group::stats::GroupStats;

/// What a mount tells about itself. Called on a thread that may wait.
pub trait Reports: Send + Sync + 'static {
    /// What it is.
    fn status(&self) -> StatusReport;
    /// What it did.
    fn stats(&self) -> StatsReport;
    /// What its group did; none for a node on its own.
    fn group_stats(&self) -> Option<GroupStats> {
        None
    }
}

/// A socket that is listened on.
#[derive(Debug)]
pub struct ControlSocket {
    listener: std::os::unix::net::UnixListener,
    guard: SocketGuard,
}

/// Removes the socket at the end, unless another daemon has taken its place.
#[derive(Debug)]
pub struct SocketGuard {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl ControlSocket {
    /// Listens at `path`, for this user alone. Whatever lies there is replaced: the socket of a
    /// killed daemon, or of one whose mount was taken away lazily and that ends with its last
    /// user. The caller makes sure that nothing is mounted.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn bind(path: &Path) -> Result<Self> {
        if let Some(dir) = path.parent() {
            make_runtime_dir(dir)?;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace {}", path.display()));
            }
            _ => {}
        }
        let listener = std::os::unix::net::UnixListener::bind(path)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        let inode = fs::symlink_metadata(path).map(|meta| meta.ino());
        let inode = inode.with_context(|| format!("cannot look at {}", path.display()))?;
        let guard = SocketGuard {
            path: path.to_owned(),
            inode,
        };
        fs::set_permissions(path, Permissions::from_mode(0o600))
            .with_context(|| format!("cannot make {} private", path.display()))?;
        listener
            .set_nonblocking(true)
            .context("cannot use the control socket")?;
        Ok(Self { listener, guard })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.guard.path
    }

    /// Answers `/status`, `/stats` and `/group-stats` on the present tokio runtime until the task is dropped.
    /// The socket is removed with the guard.
    ///
    /// # Errors
    /// When tokio cannot watch the socket.
    pub fn serve(
        self,
        reports: Arc<dyn Reports>,
    ) -> Result<(SocketGuard, tokio::task::JoinHandle<()>)> {
        self.serve_also(reports, Router::new())
    }

    /// Like [`ControlSocket::serve`], with further routes.
    ///
    /// # Errors
    /// When tokio cannot watch the socket.
    pub fn serve_also(
        self,
        reports: Arc<dyn Reports>,
        more: Router,
    ) -> Result<(SocketGuard, tokio::task::JoinHandle<()>)> {
        let guard = self.guard;
        let listener =
            UnixListener::from_std(self.listener).context("cannot watch the control socket")?;
        let router = Router::new()
            .route("/status", get(status))
            .route("/stats", get(stats))
            .route("/group-stats", get(group_stats))
            .with_state(reports)
            .merge(more);
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!("the control socket ended: {error}");
            }
        });
        Ok((guard, task))
    }
}

async fn status(State(reports): State<Arc<dyn Reports>>) -> Result<Json<StatusReport>, StatusCode> {
    off_thread(move || reports.status()).await
}

async fn stats(State(reports): State<Arc<dyn Reports>>) -> Result<Json<StatsReport>, StatusCode> {
    off_thread(move || reports.stats()).await
}

async fn group_stats(
    State(reports): State<Arc<dyn Reports>>,
) -> Result<Json<Option<GroupStats>>, StatusCode> {
    off_thread(move || reports.group_stats()).await
}

/// Reports wait for the cores' answers: not on the control runtime's own thread.
async fn off_thread<T: Send + 'static>(
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<Json<T>, StatusCode> {
    tokio::task::spawn_blocking(ask)
        .await
        .map(Json)
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}
