//! The real programs as children: `forebay mount`, `forebay serve`, SeaweedFS, and a plain S3 client to fill
//! buckets with; and network namespaces as hosts for them. For the demo, the performance harness and end-to-end tests.

mod bucket;
mod held;
mod member;
mod mount;
mod namespaces;
mod program;
mod report;
mod weed;

pub use bucket::{BucketClient, Credentials};
pub use held::{Held, held};
pub use member::{Member, MemberOptions};
pub use mount::{Mount, MountOptions};
pub use namespaces::{HERE, Namespaces};
pub use program::forebay_binary;
pub use report::{Report, Stats};
pub use weed::{Weed, install_weed};
