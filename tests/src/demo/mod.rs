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
//! | `warm` | `forebay warmup` and `forebay check` |
//! | `verify` | workers that read the mount and compare |
//! | `overwrite` | objects overwritten under an open handle |
//! | `steps` | what is done, one step after the other |
//! | `table` | what it came to |

mod group;
mod overwrite;
mod preflight;
mod server;
mod sources;
mod steps;
mod table;
mod verify;
mod warm;

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

/// Runs the demo against the server that `s3` names (`S3=` of `make demo`; none for the embedded
/// one). All that it made is gone when this returns, also after an error.
///
/// # Errors
/// What the machine lacks, a byte that differs, other origin bytes than claimed, or whatever did not work.
pub fn run(s3: Option<&str>, stop: &Stop) -> Result<()> {
    let start = Instant::now();
    preflight::check()?;
    let dir = tempfile::Builder::new().prefix("forebay-demo-").tempdir()?;
    let server = Server::start(s3, dir.path(), stop)?;
    let sources = Sources::collect()?;
    let client = server.client()?;
    client.create()?;
    let demo = steps::Demo {
        server: &server,
        client: &client,
        sources: &sources,
        dir: dir.path(),
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
