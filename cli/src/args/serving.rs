//! Flags of every node, with a mount or without.

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::{CacheArgs, EngineArgs, GroupArgs, OriginArgs};
use crate::assembly::engine_config;
use crate::host::EngineConfig;
use crate::units::parse_duration;

/// What every node is told: `mount` and `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServingArgs {
    /// Where the objects are: the same for all members of a group.
    #[command(flatten)]
    pub origin: OriginArgs,
    /// How the engine runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The cache on disk.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// The cache group.
    #[command(flatten)]
    pub group: GroupArgs,
    /// How long names are believed.
    #[command(flatten)]
    pub names: NameArgs,
}

/// How long a node believes what the origin said of names; in a group, what it said of those that this member owns,
/// and so the same for all members.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Files")]
pub struct NameArgs {
    /// How long attributes and listings are believed without asking the origin again.
    #[arg(long, env = "FOREBAY_ATTR_TTL", value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    pub attr_ttl: Duration,
    /// How long a name that does not exist is believed not to.
    #[arg(long, env = "FOREBAY_NEGATIVE_TTL", value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    pub negative_ttl: Duration,
    /// How old what is known of a name may be that is told while the origin does not answer; 0s: then names are errors.
    /// Without it whatever is remembered is told.
    #[arg(long, env = "FOREBAY_STALE_MAX", value_name = "DURATION", value_parser = parse_duration)]
    pub stale_max: Option<Duration>,
}

impl NameArgs {
    /// [`NameArgs::stale_max`] as a span.
    pub fn stale_span(&self) -> Duration {
        self.stale_max.unwrap_or(Duration::MAX)
    }
}

impl ServingArgs {
    /// The same flags with absolute paths.
    ///
    /// # Errors
    /// When the present directory is gone.
    pub fn absolute(mut self) -> Result<Self> {
        self.cache = self.cache.absolute()?;
        self.group = self.group.absolute()?;
        Ok(self)
    }

    /// The engine's configuration.
    ///
    /// # Errors
    /// When the machine lacks what is asked for.
    pub fn engine_config(&self) -> Result<EngineConfig> {
        let config = engine_config(&self.engine, self.cache.cache_dir.is_some())?;
        Ok(EngineConfig {
            attr_ttl: self.names.attr_ttl,
            negative_ttl: self.names.negative_ttl,
            stale_max: self.names.stale_span(),
            ..config
        })
    }
}
