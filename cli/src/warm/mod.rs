//! `warmup`, `check` and `evict`: jobs of a mount's daemon, and how commands ask for them.
//!
//! | module | holds |
//! |---|---|
//! | [`report`] | what travels through the control socket |
//! | [`engine`] | the engine's calls as futures, tried again where that helps |
//! | [`silence`] | whether S3 answers a job |
//! | [`once`] | paths that are asked for more than once |
//! | [`found`], [`listing`] | from paths to objects: by listings, with bounded memory |
//! | [`names`] | what is listed renews what the mount and the owners know |
//! | [`attributes`] | `--metadata-only` |
//! | [`pass`] | one pass over all objects: stripes in parallel, files put together again |
//! | [`tally`] | what came out of it so far |
//! | [`jobs`] | the jobs of a daemon: started, asked for, stopped, forgotten |
//! | [`routes`] | the daemon's side of the control socket |
//! | [`asking`], [`places`] | the commands' side: requests, and which mount holds a path |
//! | [`following`], [`progress`] | what someone waits for: a job, and how far it is; a drain too |

pub mod asking;
pub mod attributes;
pub mod engine;
pub mod following;
pub mod found;
pub mod jobs;
pub mod listing;
pub mod names;
pub mod once;
pub mod pass;
pub mod places;
pub mod progress;
pub mod report;
pub mod routes;
pub mod silence;
pub mod tally;
