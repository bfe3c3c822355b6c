//! `forebay cat`: one object through the engine to standard output, without a mount.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use forebay_engine::client::{Callback, Client, Reply, Told};
use forebay_engine::errors::{OriginErrorKind, ReadError};
use forebay_engine::identity::ObjectVersion;
use forebay_engine::limits::{READ_BYTES_MAX, STRIPE_BYTES};
use forebay_engine::ports::{Full, ObjectMeta};

use crate::args::CatArgs;
use crate::assembly::{Assembly, engine_config};
use crate::cache::Cache;
use crate::cache::lock::is_held;
use crate::host::run::STOP_TIMEOUT;
use crate::source::ObjectUrl;
use crate::units::Bytes;

/// `--memory` of `cat` when it is not given: enough to keep the origin busy.
const MEMORY_DEFAULT: Bytes = Bytes(256 << 20);
/// Reads under way, or answered and not yet written, at a time.
const READS_AHEAD_MAX: u64 = 16;

/// Runs the command.
///
/// # Errors
/// What failed, on which object.
pub fn run(args: &CatArgs) -> Result<()> {
    let mut engine_args = args.engine.clone();
    engine_args.memory.get_or_insert(MEMORY_DEFAULT);
    let config = engine_config(&engine_args, args.cache.cache_dir.is_some())?;
    let cache = open_cache(args, config.cores.cores())?;
    let assembly = Assembly::<PieceReply>::start(config, &args.origin, cache, None)?;
    let outcome = write_object(&assembly, args);
    let stopped = assembly.stop(STOP_TIMEOUT);
    outcome.and(stopped)
}

/// The cache, unless a mount has it: an object can be had without.
fn open_cache(args: &CatArgs, cores: usize) -> Result<Option<Cache>> {
    let opened = Cache::open(&args.cache, cores, &format!("cat {}", args.object));
    opened.or_else(|error| match is_held(&error) {
        true => {
            eprintln!("forebay: reading without the cache on disk: {error:#}");
            Ok(None)
        }
        false => Err(error),
    })
}

fn write_object(assembly: &Assembly<PieceReply>, args: &CatArgs) -> Result<()> {
    let object = Arc::new(find(assembly, &args.object)?);
    if args.offset > object.size_bytes {
        bail!(
            "--offset {} lies beyond the end of {}, which has {} bytes",
            args.offset,
            args.object,
            object.size_bytes
        );
    }
    let rest = object.size_bytes - args.offset;
    let end = args.offset + args.length.unwrap_or(rest).min(rest);
    let client = assembly.engine.client();
    match copy(&client, &object, args.offset..end, &mut io::stdout().lock()) {
        Err(Failure::Read(at, error)) => {
            Err(anyhow!(error)).with_context(|| format!("cannot read {} at byte {at}", args.object))
        }
        Err(Failure::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(Failure::Write(error)) => Err(error).context("cannot write to standard output"),
        Ok(()) => Ok(()),
    }
}

/// The object's present version.
fn find(assembly: &Assembly<PieceReply>, url: &ObjectUrl) -> Result<ObjectVersion> {
    let (client, bucket) = (assembly.engine.client(), assembly.bucket(&url.bucket));
    let (sender, receiver) = mpsc::channel();
    let mut callback: Callback<Told<ObjectMeta>> = Box::new(move |told| {
        let _ = sender.send(told.result);
    });
    let key: Arc<str> = url.key.as_str().into();
    while let Err(Full(back)) = client.head(&bucket, key.clone(), Duration::ZERO, callback) {
        callback = back;
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = match receiver.recv().context("the engine gave no answer")? {
        Ok(meta) => return Ok(meta.version(&bucket)),
        Err(error) => error,
    };
    // A failed HEAD has no body that says why: a listing tells bucket, credentials and region.
    assembly.origin.check(&url.bucket, &url.key)?;
    match error.kind {
        OriginErrorKind::NotFound => {
            bail!("{url} does not exist: check the key (`forebay mount` shows what there is)")
        }
        _ => Err(anyhow!(error)).with_context(|| format!("cannot look at {url}")),
    }
}

/// Answers one piece.
#[derive(Debug)]
struct PieceReply {
    offset: u64,
    sender: mpsc::Sender<(u64, Result<Vec<u8>, ReadError>)>,
}

impl Reply for PieceReply {
    fn data(self, bytes: &[u8]) {
        let _ = self.sender.send((self.offset, Ok(bytes.to_vec())));
    }

    fn error(self, error: ReadError) {
        let _ = self.sender.send((self.offset, Err(error)));
    }
}

#[derive(Debug)]
enum Failure {
    Read(u64, ReadError),
    Write(io::Error),
}

/// Copies a range in order, with several reads under way.
fn copy(
    client: &Client<PieceReply>,
    object: &Arc<ObjectVersion>,
    range: std::ops::Range<u64>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel();
    let mut answered = BTreeMap::new();
    let (mut asked, mut written, mut ahead) = (range.start, range.start, 0);
    while written < range.end {
        while asked < range.end && ahead < READS_AHEAD_MAX {
            // Pieces end at multiples of their size, so that none crosses a stripe.
            let piece = READ_BYTES_MAX as u64;
            let len = (piece - asked % piece).min(range.end - asked);
            let want = (range.end - asked).min(STRIPE_BYTES as u64) as u32;
            let reply = PieceReply {
                offset: asked,
                sender: sender.clone(),
            };
            if client.read(object, asked, len as u32, want, reply).is_err() {
                break;
            }
            prefetch(client, object, asked, range.end);
            asked += len;
            ahead += 1;
        }
        if ahead == 0 {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        // Cannot fail: a sender lives here.
        let Ok((offset, result)) = receiver.recv() else {
            break;
        };
        answered.insert(
            offset,
            result.map_err(|error| Failure::Read(offset, error))?,
        );
        while let Some(bytes) = answered.remove(&written) {
            out.write_all(&bytes).map_err(Failure::Write)?;
            written += bytes.len() as u64;
            ahead -= 1;
        }
    }
    out.flush().map_err(Failure::Write)
}

/// At each stripe's start the next one is asked for, so that its GET begins early.
fn prefetch(client: &Client<PieceReply>, object: &Arc<ObjectVersion>, offset: u64, end: u64) {
    let stripe = STRIPE_BYTES as u64;
    let next = offset - offset % stripe + stripe;
    if offset.is_multiple_of(stripe) && next < end {
        client.prefetch(object, next, stripe.min(end - next));
    }
}
