//! Views for take-only clients, which do not gossip: they ask a member over its control connection, and it answers when
//! its view differs from theirs, or after a while. Members answer clients and each other for their counters there, too.

mod client;
mod messages;
mod server;

pub use client::{Connect, Follower, FollowerStatus, ask_stats};
pub use messages::{MESSAGE_BYTES_MAX, Question};
pub use server::answer;
