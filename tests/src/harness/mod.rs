//! The real programs as children: `forebay mount`, SeaweedFS, and a plain S3 client to fill
//! buckets with. For the demo, the performance harness and end-to-end tests.

mod bucket;
mod mount;
mod weed;

pub use bucket::{BucketClient, Credentials};
pub use mount::{Mount, MountOptions, Stats, forebay_binary};
pub use weed::{Weed, install_weed};
