//! Where log lines go.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Logs to standard error (a daemon's is its log file). `FOREBAY_LOG` chooses what; without it
/// `default` and up, from Forebay's own crates.
pub fn start(default: &str) {
    let ours = [
        "forebay_cli",
        "forebay_engine",
        "forebay_fuse",
        "forebay_membership",
        "forebay_origin_s3",
        "forebay_transport_tcp",
    ];
    let directives: Vec<String> = ours
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
