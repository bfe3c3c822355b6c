//! A file mapped for reading.

use std::fs::File;
use std::io;

use memmap2::{Advice, Mmap};

/// A mapping of a whole file. Only files that this harness made, or a mount of objects that nobody changes, are mapped.
#[derive(Debug)]
pub struct Mapping(Mmap);

impl Mapping {
    /// Maps `file`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(file: &File) -> io::Result<Mapping> {
        // SAFETY: a mapping is only memory as long as nobody truncates or writes the file. What is mapped lies in a
        // directory of this run's own, or in a read-only mount of a bucket of this process's own; neither is changed
        // while it is measured. Its bytes are only copied out of it, and nothing relies on what they are.
        let mapped = unsafe { Mmap::map(file) };
        mapped.map(Mapping)
    }

    /// Nothing is read ahead of what is touched.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn random(&self) -> io::Result<()> {
        self.0.advise(Advice::Random)
    }

    /// The file's bytes. A page that cannot be read kills the process (SIGBUS), as it would kill any user of a mapping.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
