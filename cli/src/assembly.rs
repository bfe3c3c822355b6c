//! Engine and origin put together: what `mount` and `cat` run on.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use forebay_engine::client::Reply;
use forebay_engine::identity::Bucket;
use forebay_origin_s3::{OriginConfig, OriginS3Runtime};

use crate::args::{EngineArgs, OriginArgs};
use crate::cache::Cache;
use crate::group::Group;
use crate::group::weight::Room;
use crate::host::limits::raise_open_files;
use crate::host::{Engine, EngineConfig};

/// A running engine and its origin.
#[derive(Debug)]
pub struct Assembly<R: Reply> {
    /// The cores. Dropped before the origin, whose events end what they have under way.
    pub engine: Engine<R>,
    /// The S3 client and its threads.
    pub origin: Arc<OriginS3Runtime>,
    /// This node's part in a cache group. Dropped after the cores, which hold on to it.
    pub group: Option<Arc<Group>>,
    /// The cache on disk. Dropped, and so unlocked, after the cores.
    pub cache: Option<Cache>,
}

/// The engine's configuration from its flags; `disks` tells whether there will be a cache on disk.
///
/// # Errors
/// When the machine lacks what is asked for.
pub fn engine_config(args: &EngineArgs, disks: bool) -> Result<EngineConfig> {
    let memory_bytes = args.memory.map(|bytes| bytes.0);
    let config = EngineConfig::choose(
        args.cores.as_ref(),
        memory_bytes,
        args.poll,
        args.io_timeout,
        disks,
    )?;
    Ok(EngineConfig {
        origin_limit: args.origin_limit.map(|bytes| bytes.0),
        peer_limit: args.peer_limit.map(|bytes| bytes.0),
        ..config
    })
}

impl<R: Reply> Assembly<R> {
    /// Starts the origin's threads and the cores. Sends no request yet: see
    /// [`OriginS3Runtime::check`].
    ///
    /// # Errors
    /// An endpoint that is no URL, or what this machine lacks.
    pub fn start(
        mut config: EngineConfig,
        origin: &OriginArgs,
        cache: Option<Cache>,
        group: Option<Arc<Group>>,
    ) -> Result<Self> {
        raise_open_files();
        config.peers = group.as_ref().map(|group| group.peers());
        let gets_max = config.memory.gets_max();
        let origin =
            OriginS3Runtime::start(origin_config(origin, gets_max), Arc::new(config.clock))?;
        let origin = Arc::new(origin);
        let endpoint = origin.bucket("").endpoint.clone();
        if let Some(group) = &group {
            group.set_origin(&endpoint);
        }
        config.endpoint = Some(endpoint.into());
        let for_cores = origin.clone();
        let disks = cache.as_ref().map(Cache::sources).unwrap_or_default();
        let engine = Engine::start(config, disks, move |seat| {
            Ok(for_cores.handle_for_core(seat.doorbell))
        })
        .context("cannot start the engine")?;
        if let Some(cache) = &cache {
            // Any request does.
            let client = engine.client();
            cache.wake_with(move || client.stats(|_| {}));
        }
        Ok(Self {
            engine,
            origin,
            group,
            cache,
        })
    }

    /// A bucket, as identities name it.
    pub fn bucket(&self, name: &str) -> Arc<Bucket> {
        self.origin.bucket(name)
    }

    /// What tells others of this node, and waits for the first view; nothing for a node on its own. It may take
    /// some seconds, on any thread.
    pub fn joining(&self) -> impl FnOnce() -> Result<()> + Send + 'static {
        let config = self.engine.config();
        let cores = config.cores.cores();
        let memory_bytes = (config.memory.arena_bytes_per_core * cores) as u64;
        let room = Room {
            disk_bytes: self.cache.as_ref().map_or(0, Cache::size_bytes),
            memory_bytes,
        };
        let group = self.group.clone();
        move || match group {
            Some(group) => group.join(cores, room).context("cannot join the group"),
            None => Ok(()),
        }
    }

    /// Leaves the group, then stops cores and origin, within about `within`.
    ///
    /// # Errors
    /// When a core does not end in time.
    pub fn stop(self, within: Duration) -> Result<()> {
        if let Some(group) = &self.group {
            group.leave();
        }
        self.engine.stop(within)
    }
}

fn origin_config(args: &OriginArgs, gets_max: usize) -> OriginConfig {
    OriginConfig {
        endpoint: args.endpoint.clone(),
        region: args.region.clone(),
        path_style: args.path_style,
        anonymous: args.no_sign_request,
        gets_max,
        ..OriginConfig::default()
    }
}
