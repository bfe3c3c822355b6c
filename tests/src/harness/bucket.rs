//! A plain S3 client, apart from the one that is tested.

use anyhow::{Context, Result};
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
        let puts = stream::iter(objects).map(|(key, bytes)| async move {
            let request = self.client.put_object().bucket(&self.bucket).key(&key);
            let sent = request.body(ByteStream::from(bytes)).send().await;
            sent.map(drop)
                .map_err(in_full)
                .with_context(|| format!("cannot put {key}"))
        });
        self.runtime
            .block_on(puts.buffer_unordered(PUTS_AT_ONCE).try_collect())
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
