//! The world of an [`S3Origin`]: the embedded server, or another S3 server without faults.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use forebay_engine::identity::Bucket;
use forebay_engine::ports::{Clock, Time};
use forebay_engine::ring::Doorbell;
use forebay_origin_s3::{OriginConfig, OriginS3Runtime, S3Origin, StaticCredentials};

use super::world::{OriginFault, OriginWorld};
use crate::s3::{Class, EmbeddedS3, Fault, Options, Rule, synthetic_bytes};

/// The process's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock(Instant);

impl MonotonicClock {
    /// A clock that starts now.
    pub fn start() -> Arc<Self> {
        Arc::new(Self(Instant::now()))
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Time {
        Time::default() + self.0.elapsed()
    }
}

/// Where a world's objects live.
enum Backing {
    Embedded(EmbeddedS3),
    /// A client of another server, and a runtime to call it on.
    Other(aws_sdk_s3::Client, tokio::runtime::Runtime),
}

/// An [`S3Origin`] with the server behind it.
pub struct S3World {
    // Declared, and so dropped, before its runtime and the server.
    origin: S3Origin,
    runtime: OriginS3Runtime,
    backing: Backing,
    bucket: String,
    clock: Arc<MonotonicClock>,
}

impl std::fmt::Debug for S3World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3World")
            .field("bucket", &self.bucket)
            .finish_non_exhaustive()
    }
}

impl S3World {
    /// On an embedded server of its own.
    pub fn embedded() -> Self {
        let server = EmbeddedS3::start(Options::default()).expect("a free port on loopback");
        let config = config(
            &server.endpoint(),
            &server.options().access_key,
            &server.options().secret_key,
        );
        let bucket = server.options().buckets[0].clone();
        Self::new(config, Backing::Embedded(server), bucket)
    }

    /// On a bucket of another server, which is made here and deleted, with what it holds, on drop.
    pub fn other(endpoint: &str, access_key: &str, secret_key: &str, bucket: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let keys =
            aws_sdk_s3::config::Credentials::new(access_key, secret_key, None, None, "tests");
        let client = aws_sdk_s3::Client::from_conf(
            aws_sdk_s3::Config::builder()
                .behavior_version_latest()
                .endpoint_url(endpoint)
                .force_path_style(true)
                .region(aws_sdk_s3::config::Region::new("us-east-1"))
                .credentials_provider(keys)
                .build(),
        );
        runtime
            .block_on(client.create_bucket().bucket(bucket).send())
            .expect("the bucket can be made");
        let backing = Backing::Other(client, runtime);
        Self::new(
            config(endpoint, access_key, secret_key),
            backing,
            bucket.to_owned(),
        )
    }

    fn new(config: OriginConfig, backing: Backing, bucket: String) -> Self {
        let clock = MonotonicClock::start();
        let runtime = OriginS3Runtime::start(config, clock.clone()).expect("a usable endpoint");
        let origin = runtime.handle_for_core(Doorbell::new(Waker::noop().clone()));
        Self {
            origin,
            runtime,
            backing,
            bucket,
            clock,
        }
    }

    /// The embedded server.
    pub fn server(&self) -> &EmbeddedS3 {
        match &self.backing {
            Backing::Embedded(server) => server,
            Backing::Other(..) => panic!("this world is on another server"),
        }
    }

    /// The runtime of the origin.
    pub fn runtime(&self) -> &OriginS3Runtime {
        &self.runtime
    }
}

impl Drop for S3World {
    fn drop(&mut self) {
        // SeaweedFS gives each bucket volumes of its own, of which it has few.
        if let Backing::Other(client, runtime) = &self.backing {
            let delete = client.delete_bucket().bucket(&self.bucket);
            if let Err(error) = runtime.block_on(delete.send()) {
                eprintln!("bucket {} stays: {error}", self.bucket);
            }
        }
    }
}

fn config(endpoint: &str, access_key: &str, secret_key: &str) -> OriginConfig {
    OriginConfig {
        endpoint: Some(endpoint.to_owned()),
        credentials: Some(StaticCredentials {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
        }),
        ..OriginConfig::default()
    }
}

/// The seed of a key's generation.
fn seed(key: &str, generation: u64) -> u64 {
    let key = key.bytes().fold(0u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    key.wrapping_mul(1_000_003).wrapping_add(generation)
}

impl OriginWorld for S3World {
    type Origin = S3Origin;

    fn origin(&mut self) -> &mut S3Origin {
        &mut self.origin
    }

    fn step(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn bucket(&self) -> Arc<Bucket> {
        self.runtime.bucket(&self.bucket)
    }

    fn put(&mut self, key: &str, size_bytes: u64, generation: u64) {
        match &self.backing {
            Backing::Embedded(server) => {
                server.put_synthetic(&self.bucket, key, size_bytes, seed(key, generation));
            }
            Backing::Other(client, runtime) => {
                let mut content = vec![0; size_bytes as usize];
                synthetic_bytes(seed(key, generation), 0, &mut content);
                let put = client
                    .put_object()
                    .bucket(&self.bucket)
                    .key(key)
                    .body(content.into());
                runtime.block_on(put.send()).expect("an object can be put");
            }
        }
    }

    fn delete(&mut self, key: &str) {
        match &self.backing {
            Backing::Embedded(server) => assert!(server.delete(&self.bucket, key)),
            Backing::Other(client, runtime) => {
                let delete = client.delete_object().bucket(&self.bucket).key(key);
                runtime
                    .block_on(delete.send())
                    .expect("an object can be deleted");
            }
        }
    }

    fn expected(&self, key: &str, _: u64, generation: u64, offset: u64, buf: &mut [u8]) {
        synthetic_bytes(seed(key, generation), offset, buf);
    }

    fn arm(&mut self, fault: OriginFault) {
        let all = |fault| Rule {
            class: None,
            ..Rule::always(Class::Get, fault)
        };
        let gets = |fault| Rule::always(Class::Get, fault);
        let rule = match fault {
            OriginFault::Throttle => all(Fault::Status(503)),
            OriginFault::ServerError => all(Fault::Status(500)),
            OriginFault::Hang => all(Fault::Hang),
            OriginFault::Reset => gets(Fault::Reset),
            OriginFault::ResetBody(after) => gets(Fault::ResetBody(after)),
            OriginFault::ShortBody(after) => gets(Fault::ShortBody(after)),
            OriginFault::HangBody(after) => gets(Fault::HangBody(after)),
            OriginFault::Whole => gets(Fault::Whole),
            OriginFault::ShortRange => gets(Fault::ShortRange(1)),
            OriginFault::WrongETag => gets(Fault::WrongETag),
            OriginFault::Overwrite => gets(Fault::Overwrite),
        };
        self.server().faults().add(rule);
    }

    fn calm(&mut self) {
        self.server().faults().clear();
    }
}
