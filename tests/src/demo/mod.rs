//! `make demo`: a real bucket behind a group of three members and a client. Everything is warmed, checked, read in
//! random order and compared; then all daemons restart, a member is killed, objects are overwritten. At each step
//! it is known before what S3 has to be asked for, and the demo fails when it was asked for anything else.
//!
//! | module | holds |
//! |---|---|
//! | `preflight` | what the machine lacks |
//! | `server` | the S3 server: embedded, SeaweedFS, or somebody's |
//! | `sources` | the files that the bucket is filled with |
//! | `group` | the members and the client |
//! | `links` | their links over RDMA, where it is asked for |
//! | `warm` | `forebay warmup` and `forebay check` |
//! | `verify` | workers that read the mount and compare |
//! | `overwrite` | objects overwritten under an open handle |
//! | `steps` | what is done, one step after the other |
//! | `table` | what it came to |

mod group;
mod links;
mod overwrite;
mod preflight;
mod server;
mod sources;
mod steps;
mod table;
mod verify;
mod warm;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Result, ensure};

use server::Server;
use sources::Sources;

/// Set by a signal; everything that takes long looks at it.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Asks for an early end with all cleaning up done.
    pub fn request(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether an early end was asked for.
    pub fn requested(&self) -> bool {
        self.0.load(Relaxed)
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.requested(), "interrupted");
        Ok(())
    }
}

/// Which demo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// The S3 server (`S3=` of `make demo`); none for the embedded one.
    pub s3: Option<String>,
    /// With a bucket of some megabytes without the data set; nothing restarts, nothing is overwritten.
    pub small: bool,
    /// Members and client speak RDMA, and the demo fails when they do not.
    pub rdma: Option<Rdma>,
}

/// By which RDMA port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rdma {
    /// An address of the port, and of all members.
    pub group_ip: IpAddr,
    /// `--rdma-device`.
    pub device: Option<String>,
}

/// Runs the demo. All that it made is gone when this returns, also after an error.
///
/// # Errors
/// What the machine lacks, a byte that differs, other origin bytes than claimed, or whatever did not work.
pub fn run(form: &Form, stop: &Stop) -> Result<()> {
    let start = Instant::now();
    preflight::check(form.small)?;
    let dir = tempfile::Builder::new().prefix("forebay-demo-").tempdir()?;
    let server = Server::start(form.s3.as_deref(), dir.path(), stop)?;
    let sources = Sources::collect(form.small)?;
    let client = server.client()?;
    client.create()?;
    let demo = steps::Demo {
        server: &server,
        client: &client,
        sources: &sources,
        dir: dir.path(),
        form,
        start,
        stop,
    };
    let result = demo.run();
    let cleared = server.clear(&client);
    if let Err(error) = &cleared {
        eprintln!(
            "demo: the bucket {} could not be removed: {error:#}",
            client.bucket()
        );
    }
    result?;
    demo.say(match cleared {
        Ok(()) => "unmounted, all daemons stopped, everything cleaned up",
        Err(_) => "unmounted, all daemons stopped, everything but the bucket cleaned up",
    });
    Ok(())
}
