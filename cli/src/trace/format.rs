//! The format of traces. `docs/trace-format.md` describes it.
//!
//! A header, then frames, each with a checksum over records; the last record is the end. All integers in records are LEB128.

use std::fmt;

/// What a trace begins with.
pub const MAGIC: &[u8; 12] = b"FOREBAYTRACE";
/// Counted up when a reader of the one before would misread this one.
pub const VERSION: u16 = 1;
/// Flag: files are told with their names.
const NAMES: u16 = 1;
/// Magic, version, flags.
pub const HEADER_BYTES: usize = 16;
/// Length and checksum before each frame's records.
const FRAME_HEADER_BYTES: usize = 8;
/// The longest frame.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// The longest record: a name and some numbers.
const RECORD_BYTES_MAX: usize = 2_048;
const NAME_BYTES_MAX: u64 = 1_024;
/// The longest read: a kernel asks a mount for far less at once.
const READ_BYTES_MAX: u64 = 16 << 20;
/// Files, handles and readers of one trace: more is no trace that could be replayed.
pub const NUMBERS_MAX: u32 = 16_000_000;

mod tag {
    pub const FILE: u8 = 1;
    pub const HANDLE: u8 = 2;
    pub const OPEN: u8 = 3;
    pub const READ: u8 = 4;
    pub const FAILED: u8 = 5;
    pub const CLOSE: u8 = 6;
    pub const LOST: u8 = 7;
    pub const END: u8 = 8;
}

/// One record. Files, handles and readers have numbers, in the order in which they are met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The next file.
    File {
        /// Its length.
        size_bytes: u64,
        /// Its key, where the trace has names.
        name: Option<String>,
    },
    /// The next handle: what it is open on.
    Handle {
        /// The file's number.
        file: u32,
    },
    /// A handle was opened.
    Open(Timed),
    /// Bytes were read, or could not be.
    Read {
        /// Who, when, on which handle.
        timed: Timed,
        /// From here.
        offset: u64,
        /// So many, within the file.
        len_bytes: u32,
        /// Whether they came.
        done: bool,
    },
    /// A handle was closed.
    Close(Timed),
    /// So many accesses were dropped here, because nobody took them in time.
    Lost(u64),
    /// The last record.
    End {
        /// How long was recorded.
        elapsed_ns: u64,
        /// Accesses before it: opens, reads, closes.
        accesses: u64,
    },
}

/// Who did it, when, on which handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// When it began, from the start of the recording.
    pub at_ns: u64,
    /// How long it took.
    pub took_ns: u64,
    /// The reader's number; a new one is the next.
    pub reader: u32,
    /// The handle's number.
    pub handle: u32,
}

/// What is wrong with a trace, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Bytes from its start.
    pub at: u64,
    /// What.
    pub what: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.at, self.what)
    }
}

impl std::error::Error for Wrong {}

/// The header of a trace.
pub fn header(names: bool) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..12].copy_from_slice(MAGIC);
    header[12..14].copy_from_slice(&VERSION.to_le_bytes());
    header[14..].copy_from_slice(&u16::from(names).to_le_bytes());
    header
}

/// As much of a key as a trace takes.
fn cut_name(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES_MAX as usize);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

fn checksum(records: &[u8]) -> [u8; 4] {
    let hash = blake3::hash(records);
    let bytes = hash.as_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

/// What a record's numbers are told against.
#[derive(Clone, Debug, Default)]
struct Context {
    at_ns: u64,
    offset: u64,
}

/// Makes frames of records.
#[derive(Debug, Default)]
pub struct Encoder {
    context: Context,
    records: Vec<u8>,
    out: Vec<u8>,
}

impl Encoder {
    /// Adds a record.
    pub fn push(&mut self, record: &Record) {
        if self.records.len() + RECORD_BYTES_MAX > FRAME_BYTES_MAX {
            self.close_frame();
        }
        match record {
            Record::File { size_bytes, name } => {
                self.records.push(tag::FILE);
                self.number(*size_bytes);
                if let Some(name) = name {
                    let name = cut_name(name);
                    self.number(name.len() as u64);
                    self.records.extend_from_slice(name.as_bytes());
                }
            }
            Record::Handle { file } => {
                self.records.push(tag::HANDLE);
                self.number(u64::from(*file));
            }
            Record::Open(timed) => self.timed(tag::OPEN, timed),
            Record::Close(timed) => self.timed(tag::CLOSE, timed),
            Record::Read {
                timed,
                offset,
                len_bytes,
                done,
            } => {
                self.timed(if *done { tag::READ } else { tag::FAILED }, timed);
                self.signed(offset.wrapping_sub(self.context.offset) as i64);
                self.number(u64::from(*len_bytes));
                self.context.offset = offset.wrapping_add(u64::from(*len_bytes));
            }
            Record::Lost(count) => {
                self.records.push(tag::LOST);
                self.number(*count);
            }
            Record::End {
                elapsed_ns,
                accesses,
            } => {
                self.records.push(tag::END);
                self.number(*elapsed_ns);
                self.number(*accesses);
            }
        }
    }

    /// What was made up to now.
    pub fn take(&mut self) -> Vec<u8> {
        self.close_frame();
        std::mem::take(&mut self.out)
    }

    fn close_frame(&mut self) {
        if !self.records.is_empty() {
            let len = self.records.len() as u32;
            self.out.extend_from_slice(&len.to_le_bytes());
            self.out.extend_from_slice(&checksum(&self.records));
            self.out.append(&mut self.records);
        }
    }

    fn timed(&mut self, tag: u8, timed: &Timed) {
        self.records.push(tag);
        self.signed(timed.at_ns.wrapping_sub(self.context.at_ns) as i64);
        self.context.at_ns = timed.at_ns;
        self.number(timed.took_ns);
        self.number(u64::from(timed.reader));
        self.number(u64::from(timed.handle));
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.records.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.records.push(number as u8);
    }

    /// Small whatever its sign.
    fn signed(&mut self, number: i64) {
        self.number((number << 1 ^ number >> 63) as u64);
    }
}

/// Takes a trace apart, as its bytes come.
#[derive(Debug, Default)]
pub struct Decoder {
    /// Bytes that are no whole frame yet, and where the first of them lies.
    waiting: Vec<u8>,
    at: u64,
    begun: bool,
    names: bool,
    context: Context,
    /// Sizes of the files.
    files: Vec<u64>,
    /// The file of each handle.
    handles: Vec<u32>,
    readers: u32,
    accesses: u64,
    /// Those of whole frames.
    whole_accesses: u64,
    ended: bool,
}

impl Decoder {
    /// Whether files have names.
    pub fn has_names(&self) -> bool {
        self.names
    }

    /// Accesses up to now.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Takes the next bytes; whole frames become records.
    ///
    /// # Errors
    /// When this is no trace, or a broken one.
    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(Record)) -> Result<(), Wrong> {
        self.waiting.extend_from_slice(bytes);
        let waiting = std::mem::take(&mut self.waiting);
        let mut rest = &waiting[..];
        loop {
            let used = self.step(rest, &mut take)?;
            if used == 0 {
                break;
            }
            rest = &rest[used..];
            self.at += used as u64;
            self.whole_accesses = self.accesses;
        }
        self.waiting = rest.to_vec();
        Ok(())
    }

    /// Bytes without what is no whole frame, or not understood; and the accesses in them.
    pub fn whole(&self) -> (u64, u64) {
        (self.at, self.whole_accesses)
    }

    /// There are no more bytes.
    ///
    /// # Errors
    /// When the trace is cut off.
    pub fn finish(&self) -> Result<(), Wrong> {
        match (self.begun, self.ended && self.waiting.is_empty()) {
            (_, true) => Ok(()),
            (false, _) if !MAGIC.starts_with(&self.waiting[..self.waiting.len().min(12)]) => {
                Err(self.wrong(0, "this is no trace of Forebay's"))
            }
            _ => {
                let text = "the trace is cut off here: its end is missing. Record it again; `forebay-perf trace record` must end by itself or by a signal that it can see";
                Err(self.wrong(self.waiting.len(), text))
            }
        }
    }

    fn wrong(&self, beyond: usize, what: impl Into<String>) -> Wrong {
        Wrong {
            at: self.at + beyond as u64,
            what: what.into(),
        }
    }

    /// The header or one frame, where all of it is there; how many bytes it took.
    fn step(&mut self, bytes: &[u8], take: &mut impl FnMut(Record)) -> Result<usize, Wrong> {
        if !self.begun {
            return self.header(bytes);
        }
        let Some((head, rest)) = bytes.split_at_checked(FRAME_HEADER_BYTES) else {
            return match self.ended && !bytes.is_empty() {
                true => Err(self.wrong(0, "bytes after the trace's end")),
                false => Ok(0),
            };
        };
        if self.ended {
            return Err(self.wrong(0, "bytes after the trace's end"));
        }
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if len == 0 || len > FRAME_BYTES_MAX {
            return Err(self.wrong(0, format!("a frame of {len} bytes: there is none")));
        }
        let Some(records) = rest.get(..len) else {
            return Ok(0);
        };
        if checksum(records) != head[4..] {
            return Err(self.wrong(0, "a frame's checksum is wrong: the file was damaged"));
        }
        let mut cursor = Cursor {
            bytes: records,
            used: 0,
        };
        while cursor.used < len {
            let began = FRAME_HEADER_BYTES + cursor.used;
            let record = self.record(&mut cursor);
            take(record.map_err(|what| self.wrong(began, what))?);
        }
        Ok(FRAME_HEADER_BYTES + len)
    }

    fn header(&mut self, bytes: &[u8]) -> Result<usize, Wrong> {
        let Some(header) = bytes.get(..HEADER_BYTES) else {
            return Ok(0);
        };
        if &header[..12] != MAGIC {
            return Err(self.wrong(0, "this is no trace of Forebay's"));
        }
        let version = u16::from_le_bytes([header[12], header[13]]);
        let flags = u16::from_le_bytes([header[14], header[15]]);
        if version != VERSION || flags & !NAMES != 0 {
            let text = format!(
                "a trace of version {version} with flags {flags}: this program reads version {VERSION}"
            );
            return Err(self.wrong(12, text));
        }
        (self.begun, self.names) = (true, flags & NAMES != 0);
        Ok(HEADER_BYTES)
    }

    fn record(&mut self, cursor: &mut Cursor<'_>) -> Result<Record, String> {
        if self.ended {
            return Err("a record after the trace's end".into());
        }
        match cursor.byte()? {
            tag::FILE => self.file(cursor),
            tag::HANDLE => {
                let file = cursor.index(self.files.len(), "file")?;
                grow(&mut self.handles, file, "handles")?;
                Ok(Record::Handle { file })
            }
            tag::OPEN => Ok(Record::Open(self.timed(cursor)?)),
            tag::CLOSE => Ok(Record::Close(self.timed(cursor)?)),
            tag::READ => self.read(cursor, true),
            tag::FAILED => self.read(cursor, false),
            tag::LOST => Ok(Record::Lost(cursor.number()?)),
            tag::END => {
                let (elapsed_ns, accesses) = (cursor.number()?, cursor.number()?);
                if accesses != self.accesses {
                    let there = self.accesses;
                    return Err(format!(
                        "the end tells of {accesses} accesses, {there} are there: the file was damaged"
                    ));
                }
                self.ended = true;
                Ok(Record::End {
                    elapsed_ns,
                    accesses,
                })
            }
            other => Err(format!("no record begins with {other}")),
        }
    }

    fn file(&mut self, cursor: &mut Cursor<'_>) -> Result<Record, String> {
        let size_bytes = cursor.number()?;
        if i64::try_from(size_bytes).is_err() {
            return Err(format!("a file of {size_bytes} bytes"));
        }
        let name = self.names.then(|| cursor.name()).transpose()?;
        grow(&mut self.files, size_bytes, "files")?;
        Ok(Record::File { size_bytes, name })
    }

    fn timed(&mut self, cursor: &mut Cursor<'_>) -> Result<Timed, String> {
        let at_ns = self.context.at_ns.checked_add_signed(cursor.signed()?);
        let at_ns = at_ns.filter(|at| i64::try_from(*at).is_ok());
        let at_ns = at_ns.ok_or("a time before the recording, or far behind it")?;
        let took_ns = cursor.number()?;
        if i64::try_from(took_ns).is_err() {
            return Err(format!("an access of {took_ns} ns"));
        }
        let reader = cursor.index(self.readers as usize + 1, "reader")?;
        if reader == self.readers {
            if reader == NUMBERS_MAX {
                return Err("too many readers".into());
            }
            self.readers += 1;
        }
        let handle = cursor.index(self.handles.len(), "handle")?;
        self.context.at_ns = at_ns;
        self.accesses += 1;
        Ok(Timed {
            at_ns,
            took_ns,
            reader,
            handle,
        })
    }

    fn read(&mut self, cursor: &mut Cursor<'_>, done: bool) -> Result<Record, String> {
        let timed = self.timed(cursor)?;
        let offset = self.context.offset.checked_add_signed(cursor.signed()?);
        let offset = offset.ok_or("an offset before the file's start")?;
        let len = cursor.number()?;
        let file = self.handles[timed.handle as usize];
        let size = self.files[file as usize];
        let end = offset.checked_add(len).filter(|end| *end <= size);
        let (Some(end), Ok(len_bytes)) = (end, u32::try_from(len)) else {
            return Err(format!(
                "{len} bytes at {offset} of a file of {size}: the file was damaged"
            ));
        };
        if len > READ_BYTES_MAX {
            return Err(format!(
                "a read of {len} bytes: none is longer than {READ_BYTES_MAX}"
            ));
        }
        self.context.offset = end;
        Ok(Record::Read {
            timed,
            offset,
            len_bytes,
            done,
        })
    }
}

fn grow<T>(all: &mut Vec<T>, one: T, what: &str) -> Result<(), String> {
    if all.len() >= NUMBERS_MAX as usize {
        return Err(format!("more than {NUMBERS_MAX} {what}"));
    }
    all.push(one);
    Ok(())
}

struct Cursor<'a> {
    bytes: &'a [u8],
    used: usize,
}

impl Cursor<'_> {
    fn byte(&mut self) -> Result<u8, String> {
        let byte = self.bytes.get(self.used).copied();
        self.used += 1;
        byte.ok_or_else(|| "a record reaches beyond its frame".to_owned())
    }

    fn number(&mut self) -> Result<u64, String> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("a number of more than 64 bits".to_owned())
    }

    fn signed(&mut self) -> Result<i64, String> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn index(&mut self, count: usize, what: &str) -> Result<u32, String> {
        let number = self.number()?;
        match u32::try_from(number) {
            Ok(index) if number < count as u64 => Ok(index),
            _ => Err(format!(
                "{what} {number}, which was not told of: the file was damaged"
            )),
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let len = self.number()?;
        let end = self.used.saturating_add(len as usize);
        let bytes = self.bytes.get(self.used..end);
        let bytes = bytes.filter(|_| len <= NAME_BYTES_MAX);
        let text = bytes.map(|bytes| String::from_utf8(bytes.to_vec()));
        let Some(Ok(name)) = text else {
            return Err(format!("a name of {len} bytes that is none"));
        };
        self.used = end;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(at_ns: u64, reader: u32, handle: u32) -> Timed {
        Timed {
            at_ns,
            took_ns: 700,
            reader,
            handle,
        }
    }

    fn records(names: bool) -> Vec<Record> {
        let file = |size_bytes, name: &str| Record::File {
            size_bytes,
            name: names.then(|| name.to_owned()),
        };
        let read = |at, reader, handle, offset, len_bytes| Record::Read {
            timed: timed(at, reader, handle),
            offset,
            len_bytes,
            done: len_bytes != 7,
        };
        vec![
            file(1 << 40, "a/b"),
            Record::Handle { file: 0 },
            Record::Open(timed(1_000_000, 0, 0)),
            file(0, "empty"),
            Record::Handle { file: 1 },
            // Out of order, as several threads tell.
            read(900_000, 1, 0, (1 << 40) - 4096, 4096),
            read(950_000, 0, 0, 0, 1 << 20),
            read(990_000, 0, 1, 0, 0),
            Record::Lost(3),
            read(u64::MAX >> 1, 0, 0, 5, 7),
            Record::Close(timed(0, 2, 0)),
            Record::End {
                elapsed_ns: 5_000_000,
                accesses: 6,
            },
        ]
    }

    fn encoded(names: bool) -> Vec<u8> {
        let mut bytes = header(names).to_vec();
        let mut encoder = Encoder::default();
        for (number, record) in records(names).iter().enumerate() {
            encoder.push(record);
            if number % 4 == 3 {
                bytes.extend(encoder.take());
            }
        }
        bytes.extend(encoder.take());
        bytes
    }

    fn decoded(bytes: &[u8], step: usize) -> Result<Vec<Record>, Wrong> {
        let (mut decoder, mut found) = (Decoder::default(), Vec::new());
        for part in bytes.chunks(step) {
            decoder.push(part, |record| found.push(record))?;
        }
        decoder.finish()?;
        Ok(found)
    }

    #[test]
    fn what_is_written_is_read() {
        for names in [false, true] {
            let bytes = encoded(names);
            for step in [1, 7, bytes.len()] {
                assert_eq!(decoded(&bytes, step), Ok(records(names)));
            }
        }
        // Many frames.
        let mut encoder = Encoder::default();
        encoder.push(&Record::File {
            size_bytes: 0,
            name: None,
        });
        encoder.push(&Record::Handle { file: 0 });
        for n in 0..400_000 {
            encoder.push(&Record::Open(timed(n * 1_000, 0, 0)));
        }
        encoder.push(&Record::End {
            elapsed_ns: 1,
            accesses: 400_000,
        });
        let bytes = [header(false).to_vec(), encoder.take()].concat();
        assert!(bytes.len() > 2 * FRAME_BYTES_MAX);
        assert_eq!(decoded(&bytes, 1 << 16).map(|all| all.len()), Ok(400_003));
    }

    #[test]
    fn a_long_key_is_cut_where_a_character_ends() {
        for (name, kept) in [
            ("x".repeat(2_000), 1_024),
            ("\u{e4}".repeat(600), 1_024),
            (format!("x{}", "\u{e4}".repeat(600)), 1_023),
            ("short".to_owned(), 5),
        ] {
            let mut encoder = Encoder::default();
            let file = Record::File {
                size_bytes: 1,
                name: Some(name.clone()),
            };
            encoder.push(&file);
            let (elapsed_ns, accesses) = (0, 0);
            encoder.push(&Record::End {
                elapsed_ns,
                accesses,
            });
            let bytes = [&header(true)[..], &encoder.take()].concat();
            let found = decoded(&bytes, 64).expect("it is a trace");
            let wanted = Record::File {
                size_bytes: 1,
                name: Some(name[..kept].to_owned()),
            };
            assert_eq!(found[0], wanted);
        }
    }

    #[test]
    fn no_read_is_longer_than_a_kernel_asks_for() {
        for (len_bytes, fine) in [(16 << 20, true), ((16 << 20) + 1, false), (u32::MAX, false)] {
            let mut encoder = Encoder::default();
            encoder.push(&Record::File {
                size_bytes: 1 << 40,
                name: None,
            });
            encoder.push(&Record::Handle { file: 0 });
            encoder.push(&Record::Read {
                timed: timed(1, 0, 0),
                offset: 0,
                len_bytes,
                done: true,
            });
            let (elapsed_ns, accesses) = (2, 1);
            encoder.push(&Record::End {
                elapsed_ns,
                accesses,
            });
            let bytes = [&header(false)[..], &encoder.take()].concat();
            let found = decoded(&bytes, 64);
            assert_eq!(found.is_ok(), fine, "{found:?}");
        }
    }

    #[test]
    fn a_cut_trace_says_where() {
        let bytes = encoded(true);
        for len in 0..bytes.len() {
            let wrong = decoded(&bytes[..len], 64).expect_err("it is cut");
            let said = wrong.to_string();
            assert!(said.contains("cut off"), "{len}: {said}");
            assert_eq!(wrong.at, len as u64);
        }
        let more = [&bytes[..], &[1]].concat();
        let said = decoded(&more, 64).expect_err("it goes on").to_string();
        assert!(said.contains("after the trace's end"), "{said}");
    }

    #[test]
    fn what_is_no_trace_is_told() {
        for (bytes, wanted) in [
            (&b"PK\x03\x04"[..], "no trace"),
            (b"FOREBAYTRACX\x01\0\0\0more", "no trace"),
            (b"FOREBAYTRACE\x02\0\0\0", "version 2"),
            (b"FOREBAYTRACE\x01\0\x02\0", "flags 2"),
            (
                b"FOREBAYTRACE\x01\0\0\0\xff\xff\xff\xff\0\0\0\0",
                "a frame of 4294967295",
            ),
        ] {
            let said = decoded(bytes, 5).expect_err("it is none").to_string();
            assert!(said.contains(wanted), "{said}");
        }
    }

    /// A flipped bit is seen by the checksum; records that lie are seen by what they say.
    #[test]
    fn no_bytes_make_it_panic() {
        let bytes = encoded(true);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let flag = at == 14 && bit == 0;
                assert!(flag || decoded(&damaged, 64).is_err(), "{at} {bit}");
            }
        }
        let mut x = 1u64;
        for _ in 0..20_000 {
            let mut noise = Vec::new();
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            for n in 0..(x >> 40) % 40 {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n);
                // Mostly tags and small numbers, so that records are met.
                let wild = (x >> 33).is_multiple_of(5);
                noise.push(if wild {
                    (x >> 40) as u8
                } else {
                    (x >> 40) as u8 % 9
                });
            }
            let head = [&(noise.len() as u32).to_le_bytes()[..], &checksum(&noise)].concat();
            let whole = [&header(false)[..], &head, &noise].concat();
            let _ = decoded(&whole, 64);
        }
    }
}
