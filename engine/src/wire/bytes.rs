//! Cursors over the bytes of a message.

use super::WireError;

/// Writes fields one after the other.
pub(super) trait Put {
    fn bytes(&mut self, bytes: &[u8]);

    fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// A text with its length before it.
    fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.bytes(text.as_bytes());
    }
}

impl Put for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A message of fixed size, filled from its start.
pub(super) struct Fixed<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Fixed<N> {
    pub fn new() -> Self {
        Self {
            bytes: [0; N],
            at: 0,
        }
    }

    /// The message. What was not written is zero.
    pub fn finish(self) -> [u8; N] {
        self.bytes
    }
}

impl<const N: usize> Put for Fixed<N> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Reads fields one after the other.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let (first, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(WireError::Short(what))?;
        self.rest = rest;
        Ok(*first)
    }

    pub fn bytes(&mut self, len_bytes: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let (first, rest) = self
            .rest
            .split_at_checked(len_bytes)
            .ok_or(WireError::Short(what))?;
        self.rest = rest;
        Ok(first)
    }

    pub fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }

    pub fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Zero or one.
    pub fn flag(&mut self, what: &'static str) -> Result<bool, WireError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Unknown(what)),
        }
    }

    /// A text of at most `max_bytes`.
    pub fn text(&mut self, max_bytes: usize, what: &'static str) -> Result<&'a str, WireError> {
        let len_bytes = self.u32(what)? as usize;
        if len_bytes > max_bytes {
            return Err(WireError::Limit(what));
        }
        let bytes = self.bytes(len_bytes, what)?;
        std::str::from_utf8(bytes).map_err(|_| WireError::Text(what))
    }

    /// Zeros that pad a message.
    pub fn zeros<const N: usize>(&mut self, what: &'static str) -> Result<(), WireError> {
        match self.array::<N>(what)? == [0; N] {
            true => Ok(()),
            false => Err(WireError::Unknown(what)),
        }
    }

    /// Nothing may follow.
    pub fn finish(self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(WireError::Trailing(more)),
        }
    }
}
