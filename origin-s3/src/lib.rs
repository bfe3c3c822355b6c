//! The engine's Origin port over `aws-sdk-s3`.
//!
//! One [`OriginS3Runtime`] per endpoint owns a small tokio runtime and the S3 client, shared by
//! all cores; each core gets an [`S3Origin`] of its own. Operations run as tasks; their events
//! come back through one queue per core, and the core's doorbell is rung.
//!
//! | module | holds |
//! |---|---|
//! | `config` | what the user may set; the credential chain, region and endpoint it resolves to |
//! | `endpoint` | how an endpoint is spelled in a block's identity |
//! | `runtime` | threads, client, connection limits |
//! | `port` | [`S3Origin`]: submit, poll, cancel |
//! | `get` | a ranged GET into leases, and what its answer must be |
//! | `metadata` | HEAD and listing pages |
//! | `listing` | keys as listings spell them |
//! | `check` | what is wrong with endpoint, bucket, credentials or region, in words |
//! | `errors` | the SDK's errors as the engine's |

#![forbid(unsafe_code)]

mod check;
mod config;
mod endpoint;
mod errors;
mod get;
mod listing;
mod metadata;
mod port;
mod runtime;

pub use check::CheckError;
pub use config::{OriginConfig, StaticCredentials};
pub use endpoint::endpoint_identity;
pub use port::S3Origin;
pub use runtime::{OriginCounters, OriginS3Runtime};
