//! The cache on disk, as far as it is this machine's business: where it is, whose it is, how large.
//! What lies in it is the engine's (`forebay_engine::disk`).
//!
//! A cache directory may be named by many nodes. Each has its own part, `DIR/<group>/<node>`:
//!
//! | file | holds |
//! |---|---|
//! | `lock` | held by the daemon that uses the part; process id and mount point, for people |
//! | `blocks` | the region log, sparse |
//! | `blocks.new` | the same while it is being made |
//!
//! | module | holds |
//! |---|---|
//! | [`dirs`], [`names`] | `--cache-dir`, group and node names as people write them |
//! | [`place`] | a node's part of a directory, a block device, or an NVMe namespace |
//! | [`lock`] | one daemon at a time |
//! | [`nvme`], `world_lock` | namespaces that SPDK drives, and one user for each |
//! | [`opening`] | opens what is ours, refuses what is not, makes what is not there |
//! | [`running`] | a cache in use, from the flags |
//! | [`room`] | a file system's free space, and the default size |
//! | [`gauge`], [`monitor`] | `--free-space-ratio` while a cache is used: the logic, and its thread |
//! | [`presence`] | whether its files are still where the next start looks for them |
//! | [`blocking`], [`scan`] | for tools: a device for one thread that waits, a log region by region |

pub mod blocking;
pub mod dirs;
pub mod gauge;
pub mod lock;
pub mod monitor;
pub mod names;
pub mod nvme;
pub mod opening;
pub mod place;
pub mod presence;
pub mod room;
pub mod running;
pub mod scan;
mod world_lock;

pub use dirs::{CacheDir, CacheDirs};
pub use monitor::SpaceMonitor;
pub use names::Name;
pub use opening::{CacheConfig, OpenLog, Overwrite, open};
pub use running::{Cache, WatchedCache};
