//! A plain S3 client, apart from the one that is tested.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Region};
use aws_sdk_s3::error::DisplayErrorContext;
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::runtime::{Builder, Runtime};

/// Requests under way at a time.
const PUTS_AT_ONCE: usize = 8;

/// Keys for a server.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The access key.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// The region that requests are signed for.
    pub region: String,
}

/// A client of one bucket, with calls that wait.
#[derive(Debug)]
pub struct BucketClient {
    runtime: Runtime,
    client: Client,
    bucket: String,
}

impl BucketClient {
    /// A client of `bucket` at `endpoint`; with no `credentials`, the normal AWS chain finds them.
    ///
    /// # Errors
    /// When no runtime can be made.
    pub fn new(endpoint: &str, bucket: &str, credentials: Option<&Credentials>) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let mut loader = aws_config::defaults(BehaviorVersion::latest()).endpoint_url(endpoint);
        if let Some(known) = credentials {
            loader = loader
                .region(Region::new(known.region.clone()))
                .credentials_provider(aws_sdk_s3::config::Credentials::new(
                    known.access_key.clone(),
                    known.secret_key.clone(),
                    None,
                    None,
                    "given",
                ));
        }
        let shared = runtime.block_on(loader.load());
        let region = shared
            .region()
            .cloned()
            .unwrap_or_else(|| Region::new("us-east-1"));
        let config = aws_sdk_s3::config::Builder::from(&shared)
            .region(region)
            .force_path_style(true)
            .build();
        Ok(Self {
            runtime,
            client: Client::from_conf(config),
            bucket: bucket.to_owned(),
        })
    }

    /// The bucket's name.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Makes the bucket.
    ///
    /// # Errors
    /// What the server says.
    pub fn create(&self) -> Result<()> {
        let request = self.client.create_bucket().bucket(&self.bucket).send();
        self.runtime
            .block_on(request)
            .map(drop)
            .map_err(in_full)
            .with_context(|| format!("cannot make bucket {}", self.bucket))
    }

    /// Puts objects, several at a time.
    ///
    /// # Errors
    /// The first that fails.
    pub fn put_all(&self, objects: impl IntoIterator<Item = (String, Bytes)>) -> Result<()> {
        self.put_all_while(objects, || true)
    }

    /// Puts objects, several at a time, while `go_on` says yes; it is asked every 100 ms.
    ///
    /// # Errors
    /// The first that fails, or that `go_on` said no.
    pub fn put_all_while(
        &self,
        objects: impl IntoIterator<Item = (String, Bytes)>,
        go_on: impl Fn() -> bool,
    ) -> Result<()> {
        let puts = stream::iter(objects).map(|(key, bytes)| async move {
            let request = self.client.put_object().bucket(&self.bucket).key(&key);
            let sent = request.body(ByteStream::from(bytes)).send().await;
            sent.map(drop)
                .map_err(in_full)
                .with_context(|| format!("cannot put {key}"))
        });
        let stopped = async {
            while go_on() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        self.runtime.block_on(async {
            tokio::select! {
                done = puts.buffer_unordered(PUTS_AT_ONCE).try_collect() => done,
                () = stopped => bail!("interrupted"),
            }
        })
    }

    /// Deletes one object.
    ///
    /// # Errors
    /// What the server says.
    pub fn delete(&self, key: &str) -> Result<()> {
        let request = self
            .client
            .delete_object()
            .bucket(&self.bucket)
            .key(key)
            .send();
        self.runtime
            .block_on(request)
            .map(drop)
            .map_err(in_full)
            .with_context(|| format!("cannot delete {key}"))
    }

    /// Deletes the bucket with all that is in it.
    ///
    /// # Errors
    /// What the server says.
    pub fn delete_with_objects(&self) -> Result<()> {
        self.runtime
            .block_on(async {
                let mut pages = self
                    .client
                    .list_objects_v2()
                    .bucket(&self.bucket)
                    .into_paginator()
                    .send();
                while let Some(page) = pages.next().await {
                    let keys = page.map_err(in_full)?;
                    stream::iter(keys.contents().iter().filter_map(|object| object.key()))
                        .map(|key| {
                            self.client
                                .delete_object()
                                .bucket(&self.bucket)
                                .key(key)
                                .send()
                        })
                        .buffer_unordered(PUTS_AT_ONCE)
                        .map(|deleted| deleted.map(drop).map_err(in_full))
                        .try_collect::<()>()
                        .await?;
                }
                let deleted = self
                    .client
                    .delete_bucket()
                    .bucket(&self.bucket)
                    .send()
                    .await;
                deleted.map(drop).map_err(in_full)
            })
            .with_context(|| format!("cannot delete bucket {}", self.bucket))
    }
}

fn in_full(error: impl std::error::Error) -> anyhow::Error {
    anyhow::anyhow!("{}", DisplayErrorContext(error))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::s3::{Class, EmbeddedS3, Fault, Options, Rule};

    #[test]
    fn puts_that_hang_can_be_interrupted() -> Result<()> {
        let server = EmbeddedS3::start(Options::default())?;
        server.faults().add(Rule {
            class: None,
            ..Rule::always(Class::Get, Fault::Hang)
        });
        let keys = Credentials {
            access_key: server.options().access_key.clone(),
            secret_key: server.options().secret_key.clone(),
            region: "us-east-1".to_owned(),
        };
        let client = BucketClient::new(&server.endpoint(), "bucket", Some(&keys))?;
        let start = Instant::now();
        let object = ("key".to_owned(), Bytes::from_static(b"bytes"));
        let result =
            client.put_all_while([object], || start.elapsed() < Duration::from_millis(300));
        assert!(result.is_err_and(|error| error.to_string() == "interrupted"));
        assert!(start.elapsed() < Duration::from_secs(10));
        Ok(())
    }
}
