//! FUSE itself: the same reads of a server that answers each at once with zeros.

use anyhow::Result;
use tempfile::TempDir;

use super::{Ceiling, MEASURE, Unit};
use crate::null_server::NullMount;
use crate::pace::Load;
use crate::patterns::blocks::{BlockReader, Reader};

/// A null server and who reads from it.
#[derive(Debug)]
pub struct NullFuse {
    // The mount goes first.
    mount: NullMount,
    _dir: TempDir,
    reader: Reader,
    block_bytes: u64,
    load: Load,
    warm: bool,
}

impl NullFuse {
    /// Mounts a file of as many bytes as `load` reads at `dir`.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn start(dir: TempDir, reader: Reader, block_bytes: u64, load: Load) -> Result<NullFuse> {
        let mount = NullMount::start(dir.path(), load.blocks * block_bytes)?;
        Ok(NullFuse {
            mount,
            _dir: dir,
            reader,
            block_bytes,
            load,
            warm: false,
        })
    }

    fn read(&self, seed: u64) -> Result<f64> {
        let load = Load {
            span: MEASURE,
            rate: None,
            seed,
            ..self.load
        };
        let file = self.mount.file();
        let paced = crate::pace::threads(&load, |_| {
            let mut reader = BlockReader::open(&file, self.reader, self.block_bytes, &load)?;
            Ok(move |place| reader.read(place))
        })?;
        Ok((paced.operations * self.block_bytes) as f64 / paced.elapsed.as_secs_f64())
    }
}

impl Ceiling for NullFuse {
    fn name(&self) -> &str {
        "FUSE (null server)"
    }

    fn unit(&self) -> Unit {
        Unit::Bytes
    }

    fn measure(&mut self, seed: u64) -> Result<f64> {
        if !self.warm {
            // The first reads of a server are slower, and Forebay has a warm-up.
            self.read(seed)?;
            self.warm = true;
        }
        self.read(seed)
    }
}
