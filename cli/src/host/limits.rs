//! Limits that this process may change by itself.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit on open files as far as this user may: login sessions have 1,024, and each core of a member holds
/// connections to each other member. Where it stays is `forebay doctor`'s to tell.
pub fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("the limit on open files stays where it is: {error}");
    }
}
