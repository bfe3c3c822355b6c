//! An S3 server in this process, for tests, the demo and benchmarks: crate `s3s` over objects in
//! memory, with faults, delays and counts.
//!
//! | module | holds |
//! |---|---|
//! | `store` | buckets and objects |
//! | `synthetic` | content that is a function of (seed, offset) |
//! | `listing` | one page of a listing |
//! | `backend` | the S3 operations |
//! | `serve` | connections, shaping, faults that act on them |
//! | `faults`, `counters` | what goes wrong; what is counted |
//! | `admin` | counters and faults for other processes |

mod admin;
mod backend;
mod counters;
mod faults;
mod listing;
mod serve;
mod store;
mod synthetic;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use bytes::Bytes;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

pub use counters::{Class, Counters};
pub use faults::{Fault, Faults, Rule, When};
pub use synthetic::synthetic_bytes;

use counters::Counting;
use store::{Content, Store};

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens; port 0 for any free one.
    pub listen: SocketAddr,
    /// The access key that it knows.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// Whether unsigned requests are served too.
    pub anonymous: bool,
    /// Buckets that exist from the start.
    pub buckets: Vec<String>,
    /// When set, requests signed for another region are refused as AWS does.
    pub region: Option<String>,
    /// Threads that serve.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            access_key: "test-access".to_owned(),
            secret_key: "test-secret".to_owned(),
            anonymous: false,
            buckets: vec!["bucket".to_owned()],
            region: None,
            threads: 2,
        }
    }
}

/// Lets everyone in; signatures that are there are still checked.
struct Everyone;

#[async_trait::async_trait]
impl S3Access for Everyone {
    async fn check(&self, _: &mut S3AccessContext<'_>) -> s3s::S3Result<()> {
        Ok(())
    }
}

/// A running server. It stops when dropped.
#[derive(Debug)]
pub struct EmbeddedS3 {
    address: SocketAddr,
    options: Options,
    store: Arc<Store>,
    counting: Arc<Counting>,
    faults: Arc<Faults>,
    runtime: parking_lot::Mutex<Option<tokio::runtime::Runtime>>,
}

impl EmbeddedS3 {
    /// Starts a server on threads of its own. It answers as soon as this returns.
    ///
    /// # Errors
    /// When the address cannot be listened on, or threads cannot be made.
    pub fn start(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let store = Arc::new(Store::default());
        options
            .buckets
            .iter()
            .for_each(|bucket| store.create_bucket(bucket));
        let (counting, faults) = (Arc::<Counting>::default(), Arc::<Faults>::default());

        let mut builder = S3ServiceBuilder::new(backend::Backend {
            store: store.clone(),
        });
        builder.set_auth(SimpleAuth::from_single(
            options.access_key.clone(),
            options.secret_key.clone(),
        ));
        if options.anonymous {
            builder.set_access(Everyone);
        }
        let shared = Arc::new(serve::Shared {
            service: builder.build(),
            counting: counting.clone(),
            faults: faults.clone(),
            region: options.region.clone(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.threads.max(1))
            .thread_name("test-s3")
            .enable_all()
            .build()?;
        runtime.spawn(serve::accept(listener, shared));
        Ok(Self {
            address,
            options,
            store,
            counting,
            faults,
            runtime: parking_lot::Mutex::new(Some(runtime)),
        })
    }

    /// Ends the server: its port is closed, connections break. What it counted can still be read.
    pub fn stop(&self) {
        // Hanging requests would keep an orderly shutdown waiting for ever.
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_background();
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The endpoint's URL, for example `http://127.0.0.1:41234`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What the server was started with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Makes a bucket, if there is none of that name.
    pub fn create_bucket(&self, bucket: &str) {
        self.store.create_bucket(bucket);
    }

    /// Puts or overwrites an object directly, without a request. Returns its ETag with quotes.
    /// Keys are bytes: `"name"` or any others.
    pub fn put(&self, bucket: &str, key: impl AsRef<[u8]>, bytes: impl Into<Bytes>) -> String {
        format!(
            "\"{}\"",
            self.store
                .put(bucket, key.as_ref(), Content::Bytes(bytes.into()))
        )
    }

    /// Puts an object of any size whose bytes are [`synthetic_bytes`] of `seed`; it takes no
    /// memory. Returns its ETag with quotes.
    pub fn put_synthetic(
        &self,
        bucket: &str,
        key: impl AsRef<[u8]>,
        size_bytes: u64,
        seed: u64,
    ) -> String {
        format!(
            "\"{}\"",
            self.store.put(
                bucket,
                key.as_ref(),
                Content::Synthetic { seed, size_bytes }
            )
        )
    }

    /// Deletes an object directly; tells whether there was one.
    pub fn delete(&self, bucket: &str, key: impl AsRef<[u8]>) -> bool {
        self.store.delete(bucket, key.as_ref())
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.counting.snapshot()
    }

    /// Starts the counters anew.
    pub fn reset_counters(&self) {
        self.counting.reset();
    }

    /// Faults and delays.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

impl Drop for EmbeddedS3 {
    fn drop(&mut self) {
        self.stop();
    }
}
