//! The S3 server that the demo reads from.

use std::env;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::Stop;
use crate::harness::{BucketClient, Credentials, Weed};
use crate::s3::{EmbeddedS3, Options};

/// A server, and what is known of it.
#[derive(Debug)]
pub(super) enum Server {
    /// In this process, in memory.
    Embedded {
        server: Box<EmbeddedS3>,
        credentials: Credentials,
    },
    /// A child process.
    Weed(Weed),
    /// Somebody's; credentials come from the environment.
    External(String),
}

impl Server {
    pub(super) fn start(s3: Option<&str>, dir: &Path, stop: &Stop) -> Result<Self> {
        match s3 {
            None | Some("" | "embedded") => {
                let server = EmbeddedS3::start(Options {
                    buckets: Vec::new(),
                    ..Options::default()
                })?;
                let credentials = Credentials {
                    access_key: server.options().access_key.clone(),
                    secret_key: server.options().secret_key.clone(),
                    region: "us-east-1".to_owned(),
                };
                Ok(Server::Embedded {
                    server: Box::new(server),
                    credentials,
                })
            }
            Some("seaweedfs") => {
                let weed = env::var_os("FOREBAY_WEED")
                    .context("FOREBAY_WEED must name SeaweedFS's program; `make demo` sets it")?;
                println!("demo: starting SeaweedFS (takes 12 to 19 s)");
                let data = dir.join("seaweedfs");
                Ok(Server::Weed(Weed::start(weed.as_ref(), &data, || {
                    !stop.requested()
                })?))
            }
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                Ok(Server::External(url.trim_end_matches('/').to_owned()))
            }
            Some(other) => bail!("S3={other}: use embedded, seaweedfs or a URL"),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Server::Embedded { .. } => "embedded (s3s, in memory)",
            Server::Weed(_) => "SeaweedFS",
            Server::External(_) => "external",
        }
    }

    pub(super) fn endpoint(&self) -> String {
        match self {
            Server::Embedded { server, .. } => server.endpoint(),
            Server::Weed(weed) => weed.endpoint().to_owned(),
            Server::External(url) => url.clone(),
        }
    }

    pub(super) fn credentials(&self) -> Option<&Credentials> {
        match self {
            Server::Embedded { credentials, .. } => Some(credentials),
            Server::Weed(weed) => Some(weed.credentials()),
            Server::External(_) => None,
        }
    }

    /// A client of a bucket that no one else has.
    pub(super) fn client(&self) -> Result<BucketClient> {
        let bucket = match self {
            Server::External(_) => format!("forebay-demo-{}", unique_number()),
            _ => "forebay-demo".to_owned(),
        };
        BucketClient::new(&self.endpoint(), &bucket, self.credentials())
    }

    /// Removes the bucket from a server that goes on without us.
    pub(super) fn clear(&self, client: &BucketClient) -> Result<()> {
        match self {
            Server::External(_) => client.delete_with_objects(),
            _ => Ok(()),
        }
    }

    /// Bytes of object bodies that the server itself says it sent; none from a server that does not tell.
    pub(super) fn body_bytes(&self) -> Option<u64> {
        match self {
            Server::Embedded { server, .. } => Some(server.counters().body_bytes),
            _ => None,
        }
    }
}

fn unique_number() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_millis() * 100_000 + u128::from(std::process::id() % 100_000)
}
