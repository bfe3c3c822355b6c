//! The embedded S3 server as a process, for the demo and benchmarks.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use forebay_tests::s3::{Class, EmbeddedS3, Options};

/// An S3 server that keeps its objects in memory.
///
/// Prints its endpoint on the first line. Counters: GET ENDPOINT/_forebay/counters.
#[derive(Debug, Parser)]
struct Flags {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Buckets to make.
    #[arg(long, default_value = "bucket")]
    bucket: Vec<String>,
    /// Access key.
    #[arg(long, default_value = "test-access")]
    access_key: String,
    /// Secret key.
    #[arg(long, default_value = "test-secret")]
    secret_key: String,
    /// Serve unsigned requests too.
    #[arg(long)]
    anonymous: bool,
    /// Refuse requests signed for another region.
    #[arg(long)]
    region: Option<String>,
    /// Time to the first byte of each GET, milliseconds.
    #[arg(long, default_value_t = 0)]
    delay_ms: u64,
    /// Bytes per second for one connection; a unit may follow (90MB, 64MiB). 0 for no limit.
    #[arg(long, default_value = "0", value_parser = bytes)]
    bandwidth: u64,
    /// N:SIZE puts N synthetic objects of SIZE into the first bucket as synthetic/000000 and on;
    /// object n has seed n.
    #[arg(long, value_parser = fill)]
    fill: Vec<(u64, u64)>,
    /// Threads that serve.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn bytes(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let factor: u64 = match &text[digits..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        unit => {
            return Err(format!(
                "unknown unit {unit}: use KiB, MiB, GiB, TiB, KB, MB or GB"
            ));
        }
    };
    let number: u64 = text[..digits]
        .parse()
        .map_err(|_| format!("{text} begins with no number"))?;
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("{text} is too large"))
}

fn fill(text: &str) -> Result<(u64, u64), String> {
    let (count, size) = text
        .split_once(':')
        .ok_or("write N:SIZE, for example 8:1GiB")?;
    Ok((
        count.parse().map_err(|_| format!("{count} is no number"))?,
        bytes(size)?,
    ))
}

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let server = EmbeddedS3::start(Options {
        listen: flags.listen,
        access_key: flags.access_key,
        secret_key: flags.secret_key,
        anonymous: flags.anonymous,
        buckets: flags.bucket.clone(),
        region: flags.region,
        threads: flags.threads,
    })?;
    server
        .faults()
        .set_delay(Class::Get, Duration::from_millis(flags.delay_ms));
    server.faults().set_bandwidth(flags.bandwidth);
    let mut n = 0;
    for (count, size_bytes) in flags.fill {
        for _ in 0..count {
            if let Some(bucket) = flags.bucket.first() {
                server.put_synthetic(bucket, format!("synthetic/{n:06}"), size_bytes, n);
            }
            n += 1;
        }
    }
    println!("{}", server.endpoint());
    loop {
        std::thread::park();
    }
}
