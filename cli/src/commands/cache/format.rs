//! `forebay cache format`: makes empty caches.

use std::path::PathBuf;

use anyhow::Result;

use super::is_node_dir;
use crate::args::FormatArgs;
use crate::cache::CacheDir;
use crate::cache::opening::{CacheConfig, Named, OpenLog, Overwrite, open_places};
use crate::cache::place::Place;
use crate::host::{CorePlan, Machine, Poll};
use crate::output::print;
use crate::units::Bytes;

/// Runs the command.
///
/// # Errors
/// When a cache cannot be made, what is there is not ours, or somebody uses it.
pub fn run(args: &FormatArgs) -> Result<()> {
    let cores = CorePlan::new(args.cores.as_ref(), Poll::Auto, &Machine::read()?)?.cores();
    let owner = args.node.owner();
    let places = args.dirs.iter().map(|dir| {
        let place = match dir {
            CacheDir::Path(path) => {
                let path = std::path::absolute(path)?;
                match is_node_dir(&path) {
                    true => Place::Directory(path),
                    false => Place::of(&CacheDir::Path(path), &owner)?,
                }
            }
            CacheDir::Nvme(_) => Place::of(dir, &owner)?,
        };
        Ok(Named {
            name: dir.to_string(),
            place,
        })
    });
    let places = places.collect::<Result<Vec<_>>>()?;
    let overwrite = match args.force {
        true => Overwrite::Anything,
        false => Overwrite::Ours,
    };
    let config = CacheConfig {
        size: args.cache_size,
        free_space_ratio: args.free_space_ratio,
        overwrite,
        owner,
        cores,
        purpose: "cache format".into(),
    };
    let logs = open_places(places, &config)?;
    let text: String = logs.iter().map(line).collect();
    print(&text).map(drop)
}

fn line(log: &OpenLog) -> String {
    let (path, geometry): (PathBuf, _) = (log.place.log_path(), log.shared.geometry);
    format!(
        "{}: an empty cache of {} with {} regions of {}\n",
        path.display(),
        Bytes(log.medium.geometry().capacity_bytes),
        geometry.regions,
        Bytes(u64::from(geometry.region_bytes))
    )
}
