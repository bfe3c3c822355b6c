//! Reads by a bare ring: what a device gives to a program that does nothing else.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use crate::direct::AlignedBuf;

/// A ring with a buffer for each read under way.
pub struct Ring {
    // Before the buffers: dropped first, which ends what is under way.
    ring: IoUring,
    file: File,
    buffers: Vec<AlignedBuf>,
    under_way: Vec<bool>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("file", &self.file).finish()
    }
}

impl Ring {
    /// For `depth` reads of `block_bytes` at a time.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(file: File, depth: usize, block_bytes: usize) -> io::Result<Ring> {
        let entries = depth.next_power_of_two() as u32;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            // Before Linux 6.1.
            .or_else(|_| IoUring::new(entries))?;
        Ok(Ring {
            ring,
            file,
            buffers: (0..depth).map(|_| AlignedBuf::new(block_bytes)).collect(),
            under_way: vec![false; depth],
        })
    }

    /// Begins to read at `offset_bytes`.
    ///
    /// # Errors
    /// When this slot's read has not ended, or the ring is full.
    pub fn begin(&mut self, slot: usize, offset_bytes: u64) -> io::Result<()> {
        if self.under_way[slot] {
            return Err(io::Error::other("this slot's read has not ended"));
        }
        let buffer = self.buffers[slot].bytes();
        let read = opcode::Read::new(
            types::Fd(self.file.as_raw_fd()),
            buffer.as_mut_ptr(),
            buffer.len() as u32,
        );
        let entry = read.offset(offset_bytes).build().user_data(slot as u64);
        // SAFETY: the descriptor is open as long as `self.file`. The buffer belongs to this slot alone, is never moved or
        // freed while `self` lives (`AlignedBuf` never grows), nobody looks into it while `under_way` is set, and
        // `Drop` waits for the ends of all reads before it goes, or where it cannot, forgets the buffers.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| io::Error::other("the ring is full"))?;
        self.under_way[slot] = true;
        Ok(())
    }

    /// Submits what was begun, waits for at least one end, and pushes the slots of all that ended.
    ///
    /// # Errors
    /// What the kernel says; a read that failed or was short.
    pub fn go_on(&mut self, ended: &mut Vec<usize>) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let mut fault = None;
        for entry in self.ring.completion() {
            let slot = entry.user_data() as usize;
            self.under_way[slot] = false;
            ended.push(slot);
            let whole = self.buffers[slot].bytes().len();
            match entry.result() {
                got if got < 0 => fault = Some(io::Error::from_raw_os_error(-got)),
                got if got as usize != whole => {
                    fault = Some(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        format!("a read of {whole} bytes brought {got}"),
                    ));
                }
                _ => {}
            }
        }
        fault.map_or(Ok(()), Err)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut ended = Vec::new();
        while self.under_way.contains(&true) {
            let before = ended.len();
            if self.go_on(&mut ended).is_err() && ended.len() == before {
                // The kernel may still write into them.
                std::mem::forget(std::mem::take(&mut self.buffers));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn reads_what_is_there_and_says_when_it_is_not() -> io::Result<()> {
        let mut file = tempfile::tempfile()?;
        for n in 0..16u8 {
            file.write_all(&[n; 4096])?;
        }
        let mut ring = match Ring::new(file, 4, 4096) {
            Ok(ring) => ring,
            Err(error) => {
                println!("SKIPPED: no io_uring here: {error}");
                return Ok(());
            }
        };
        for slot in 0..4 {
            ring.begin(slot, slot as u64 * 4 * 4096)?;
        }
        assert!(ring.begin(0, 0).is_err(), "it is under way");
        let mut ended = Vec::new();
        while ended.len() < 4 {
            ring.go_on(&mut ended)?;
        }
        for slot in 0..4 {
            assert!(
                ring.buffers[slot]
                    .bytes()
                    .iter()
                    .all(|byte| *byte == 4 * slot as u8)
            );
        }
        ring.begin(0, 1 << 20)?;
        let beyond = ring.go_on(&mut Vec::new());
        assert!(beyond.is_err_and(|error| error.kind() == io::ErrorKind::UnexpectedEof));
        ring.begin(1, 0)?;
        drop(ring);
        Ok(())
    }
}
