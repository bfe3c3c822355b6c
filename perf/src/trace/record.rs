//! `trace record`: a mount's accesses, from its daemon into a file.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_cli::control::sockets::{checked_runtime_dir, is_alive, socket_path};
use forebay_cli::mounts;
use forebay_cli::trace::follower::Follower;
use forebay_cli::trace::format::{Decoder, Encoder, HEADER_BYTES, Record};

use super::ACCESSES_MAX;

/// Between looks at the signals and the clock.
const LOOK: Duration = Duration::from_millis(50);
/// What was done up to the end is told by the mount within this.
const REST: Duration = Duration::from_millis(150);
/// What is recorded can be replayed: what comes at once when this is reached is far less than what is left then.
const ENOUGH: u64 = ACCESSES_MAX - 1_000_000;
/// Where the end can be written when the disk is full: over the last frames, so many at most.
const MARKS_MAX: usize = 64;

/// What is recorded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the mount is.
    pub mount_point: PathBuf,
    /// The file to be made.
    pub output: PathBuf,
    /// With the keys of files.
    pub names: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Opens, reads, closes.
    pub accesses: u64,
    /// Those that the mount could not tell in time.
    pub lost: u64,
    /// How long.
    pub elapsed: Duration,
    /// The file's length.
    pub bytes: u64,
    /// Why it ended before it was to.
    pub broken: Option<String>,
}

/// Records until `is_over`, which is told for how long already. The file is whole also when the mount ends before, or the disk is full.
/// `begun` is called when accesses are recorded.
///
/// # Errors
/// When there is no mount, it does not record, the file exists or cannot be written: then there is none, unless accesses are in it.
pub fn record(
    options: &Options,
    begun: impl FnOnce(),
    mut is_over: impl FnMut(Duration) -> bool,
) -> Result<Recorded> {
    let point = &options.mount_point;
    let place = mounts::spelled(point)?;
    let socket = socket_path(&checked_runtime_dir()?, &place);
    ensure!(
        is_alive(&socket),
        "no Forebay mount of this user answers at {}: `forebay status` shows those that do",
        point.display()
    );
    let file = create(&options.output, options.names)?;
    let mut out = Output::new(&options.output, file, ENOUGH);
    let following = follow(&socket, options.names, &mut out, begun, &mut is_over);
    if following.is_err() && !out.has_frames() {
        // Nothing was recorded: what is left would be no trace.
        let _ = std::fs::remove_file(&options.output);
    }
    following
}

fn create(path: &Path, names: bool) -> Result<File> {
    // Keys are for nobody else.
    let mode = if names { 0o600 } else { 0o666 };
    let mut file = OpenOptions::new();
    let file = file.write(true).create_new(true).mode(mode).open(path);
    file.with_context(|| {
        format!(
            "cannot make {}: give a name that is not there yet",
            path.display()
        )
    })
}

fn follow(
    socket: &Path,
    names: bool,
    out: &mut Output<File>,
    begun: impl FnOnce(),
    is_over: &mut impl FnMut(Duration) -> bool,
) -> Result<Recorded> {
    let mut follower = Follower::start(socket, names)?;
    let start = Instant::now();
    begun();
    let mut recorded = Recorded::default();
    let mut over: Option<Instant> = None;
    loop {
        let elapsed = start.elapsed();
        if over.is_none() && is_over(elapsed) {
            recorded.elapsed = elapsed;
            over = Some(Instant::now());
        }
        if over.is_some_and(|over| over.elapsed() >= REST) {
            break;
        }
        let taken = match follower.next(LOOK) {
            Ok(Some(bytes)) => out.take(&bytes, &mut recorded),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = taken {
            recorded.broken = Some(format!("{error:#}"));
            break;
        }
    }
    if over.is_none() {
        recorded.elapsed = start.elapsed();
    }
    // Before the end is written: the mount goes on without it.
    drop(follower);
    out.end(&mut recorded)?;
    Ok(recorded)
}

/// Where a trace is written.
trait Store {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()>;
    fn cut(&mut self, len: u64) -> io::Result<()>;
}

impl Store for File {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }
}

/// The file, and what its trace is up to now.
struct Output<S> {
    path: PathBuf,
    store: S,
    decoder: Decoder,
    /// Bytes that were given to be written.
    given: u64,
    /// Where whole frames end that were written, the last first; and the accesses before.
    marks: VecDeque<(u64, u64)>,
    /// No more accesses than about this.
    enough: u64,
}

impl<S: Store> Output<S> {
    fn new(path: &Path, store: S, enough: u64) -> Self {
        Self {
            path: path.to_owned(),
            store,
            decoder: Decoder::default(),
            given: 0,
            marks: VecDeque::new(),
            enough,
        }
    }

    fn has_frames(&self) -> bool {
        let last = self.marks.front();
        last.is_some_and(|(at, _)| *at > HEADER_BYTES as u64)
    }

    /// Takes the next bytes of the mount.
    ///
    /// # Errors
    /// Why nothing more can be recorded; what there was before stays.
    fn take(&mut self, bytes: &[u8], recorded: &mut Recorded) -> Result<()> {
        // Written first: what the decoder has seen is in the file.
        let written = self.store.write_at(bytes, self.given);
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        self.given += bytes.len() as u64;
        let lost = &mut recorded.lost;
        let understood = self.decoder.push(bytes, |record| {
            if let Record::Lost(count) = record {
                *lost = lost.saturating_add(count);
            }
        });
        let (at, accesses) = self.decoder.whole();
        if at > self.marks.front().map_or(0, |(at, _)| *at) {
            self.marks.push_front((at, accesses));
            self.marks.truncate(MARKS_MAX);
        }
        understood
            .context("the mount tells its accesses in another way: is it of another version?")?;
        ensure!(
            accesses < self.enough,
            "{accesses} accesses are recorded: of more than {ACCESSES_MAX} no trace is replayed"
        );
        Ok(())
    }

    /// Writes the end behind the last whole frame; over frames before it where there is no room.
    fn end(&mut self, recorded: &mut Recorded) -> Result<()> {
        let why = recorded.broken.as_deref().unwrap_or("it told nothing");
        ensure!(!self.marks.is_empty(), "nothing was recorded: {why}");
        let mut failed = None;
        for (at, accesses) in &self.marks {
            let mut encoder = Encoder::default();
            encoder.push(&Record::End {
                elapsed_ns: recorded.elapsed.as_nanos() as u64,
                accesses: *accesses,
            });
            let end = encoder.take();
            let whole = at + end.len() as u64;
            let written = self.store.write_at(&end, *at);
            match written.and_then(|()| self.store.cut(whole)) {
                Ok(()) => {
                    (recorded.accesses, recorded.bytes) = (*accesses, whole);
                    if let Some(error) = failed {
                        let said = format!("cannot write {}: {error}", self.path.display());
                        recorded.broken.get_or_insert(said);
                    }
                    return Ok(());
                }
                Err(error) => failed = Some(error),
            }
        }
        let failed = failed.map_or_else(|| "no room".to_owned(), |error| error.to_string());
        let path = self.path.display();
        bail!("cannot write the end of {path}, so that it cannot be replayed: {failed}")
    }
}

#[cfg(test)]
mod tests {
    use forebay_cli::trace::format::header;

    use super::super::tests::{read, timed};
    use super::*;

    /// A disk with so much room.
    struct Small {
        bytes: Vec<u8>,
        room: usize,
    }

    impl Store for &mut Small {
        fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
            let fit = bytes.len().min(self.room.saturating_sub(at as usize));
            let end = at as usize + fit;
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
            }
            self.bytes[at as usize..end].copy_from_slice(&bytes[..fit]);
            match fit == bytes.len() {
                true => Ok(()),
                false => Err(io::ErrorKind::StorageFull.into()),
            }
        }

        fn cut(&mut self, len: u64) -> io::Result<()> {
            self.bytes.truncate(len as usize);
            Ok(())
        }
    }

    /// What a mount tells, a frame at a time: the header, then two accesses in each.
    fn told() -> Vec<Vec<u8>> {
        let mut all = vec![header(false).to_vec()];
        let mut encoder = Encoder::default();
        encoder.push(&Record::File {
            size_bytes: 1 << 20,
            name: None,
        });
        encoder.push(&Record::Handle { file: 0 });
        for n in 0..20 {
            for half in 0..2 {
                encoder.push(&read(timed(n * 100 + half, 10, 0, 0), n * 4_096, 4_096));
            }
            all.push(encoder.take());
        }
        all
    }

    /// What is left when `told` comes: what the recording says, and what is in the trace.
    fn left(disk: &mut Small, told: &[Vec<u8>], enough: u64) -> Result<(Recorded, u64)> {
        let mut recorded = Recorded::default();
        let mut out = Output::new(Path::new("a.trace"), &mut *disk, enough);
        for bytes in told {
            if let Err(error) = out.take(bytes, &mut recorded) {
                recorded.broken = Some(format!("{error:#}"));
                break;
            }
        }
        out.end(&mut recorded)?;
        let mut decoder = Decoder::default();
        decoder.push(&disk.bytes, |_| {})?;
        decoder.finish()?;
        assert_eq!(recorded.bytes, disk.bytes.len() as u64);
        assert_eq!(decoder.accesses(), recorded.accesses);
        Ok((recorded, decoder.accesses()))
    }

    #[test]
    fn a_full_disk_keeps_what_was_recorded_before() -> Result<()> {
        let told = told();
        let all: usize = told.iter().map(Vec::len).sum();
        let mut most = 0;
        for room in 80..all + 40 {
            let bytes = Vec::new();
            let (recorded, accesses) = left(&mut Small { bytes, room }, &told, u64::MAX)?;
            assert!(accesses >= most, "{room}: {accesses}");
            most = accesses;
            let full = recorded.broken.is_some_and(|why| why.contains("a.trace"));
            assert_eq!(full, accesses < 40, "{room}: {accesses}");
        }
        assert_eq!(most, 40);
        let (bytes, room) = (Vec::new(), 10);
        let said = left(&mut Small { bytes, room }, &told, u64::MAX).expect_err("no room at all");
        assert!(format!("{said:#}").contains("nothing was recorded"));
        Ok(())
    }

    #[test]
    fn what_is_not_understood_keeps_what_was_before() -> Result<()> {
        let mut told = told();
        // A frame whose second record is none, with a checksum that is right.
        let mut encoder = Encoder::default();
        encoder.push(&read(timed(1, 10, 0, 0), 0, 4_096));
        encoder.push(&Record::Handle { file: 7 });
        told[11] = encoder.take();
        let mut disk = Small {
            bytes: Vec::new(),
            room: usize::MAX,
        };
        let (recorded, accesses) = left(&mut disk, &told, u64::MAX)?;
        assert_eq!(accesses, 20);
        let why = recorded.broken.expect("it says why");
        assert!(why.contains("another version"), "{why}");
        Ok(())
    }

    #[test]
    fn no_more_is_recorded_than_can_be_replayed() -> Result<()> {
        let mut disk = Small {
            bytes: Vec::new(),
            room: usize::MAX,
        };
        let (recorded, accesses) = left(&mut disk, &told(), 30)?;
        assert_eq!(accesses, 30);
        let why = recorded.broken.expect("it says why");
        assert!(why.contains("replayed"), "{why}");
        Ok(())
    }

    #[test]
    fn keys_are_for_their_owner() -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir()?;
        let mode = |names| -> Result<u32> {
            let file = create(&dir.path().join(format!("{names}")), names)?;
            Ok(file.metadata()?.permissions().mode() & 0o077)
        };
        assert_eq!(mode(true)?, 0);
        assert_ne!(mode(false)?, 0, "the umask decides");
        Ok(())
    }
}
