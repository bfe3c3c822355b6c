//! Where log lines go.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Forebay's own crates that log.
const OURS: [&str; 9] = [
    "forebay_cli",
    "forebay_engine",
    "forebay_fuse",
    "forebay_membership",
    "forebay_nvme_spdk",
    "forebay_nvme_uring",
    "forebay_origin_s3",
    "forebay_transport_rdma",
    "forebay_transport_tcp",
];

/// Logs to standard error (a daemon's is its log file). `FOREBAY_LOG` chooses what; without it
/// `default` and up, from Forebay's own crates.
pub fn start(default: &str) {
    let directives: Vec<String> = OURS
        .iter()
        .map(|name| format!("{name}={default}"))
        .collect();
    let fallback = || EnvFilter::new(format!("warn,{}", directives.join(",")));
    let (filter, wrong) = match std::env::var("FOREBAY_LOG") {
        Ok(text) if !text.is_empty() => match EnvFilter::try_new(&text) {
            Ok(filter) => (filter, None),
            Err(error) => (
                fallback(),
                Some(format!("FOREBAY_LOG={text} is not understood: {error}")),
            ),
        },
        _ => (fallback(), None),
    };
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
    if let Some(wrong) = wrong {
        tracing::warn!("{wrong}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one of them says at `info` would not be seen by anybody.
    #[test]
    fn no_crate_is_left_out() {
        let lines = include_str!("../Cargo.toml").lines();
        let names = lines.filter_map(|line| line.split([' ', '.', '=']).next());
        let names = names.filter(|name| name.starts_with("forebay-"));
        let names: Vec<String> = names.map(|name| name.replace('-', "_")).collect();
        assert!(names.len() >= OURS.len() - 1, "{names:?}");
        for name in names {
            assert!(OURS.contains(&&*name), "{name}");
        }
    }
}
