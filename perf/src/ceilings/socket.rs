//! The loopback interface: one thread writes, one reads, nothing else.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};

use super::{Ceiling, MEASURE, Unit};

/// A stream of bytes over a socket.
#[derive(Debug)]
pub struct Loopback {
    /// Bytes of one write, and of one read.
    pub block_bytes: usize,
}

impl Ceiling for Loopback {
    fn name(&self) -> &str {
        "loopback"
    }

    fn unit(&self) -> Unit {
        Unit::Bytes
    }

    fn measure(&mut self, _: u64) -> Result<f64> {
        // Small writes would measure system calls, which our transport gathers.
        let block = self.block_bytes.max(64 << 10);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let to = TcpStream::connect(listener.local_addr()?)?;
        let (mut from, _) = listener.accept()?;
        thread::scope(|scope| {
            let writer = scope.spawn(move || {
                let (bytes, mut to) = (vec![0x5a; block], to);
                // Until its reader is gone.
                while to.write_all(&bytes).is_ok() {}
            });
            let mut bytes = vec![0; block];
            // The window grows first.
            let mut start = Instant::now();
            let (mut warm, mut read) = (false, 0u64);
            let rate = loop {
                let got = from.read(&mut bytes)?;
                ensure!(got > 0, "the loopback connection was closed");
                read += got as u64;
                let elapsed = start.elapsed();
                if !warm && elapsed >= MEASURE / 4 {
                    (warm, read, start) = (true, 0, Instant::now());
                } else if elapsed >= MEASURE {
                    break read as f64 / elapsed.as_secs_f64();
                }
            };
            drop(from);
            writer.join().map_err(|_| anyhow!("the writer panicked"))?;
            Ok(rate)
        })
    }
}
