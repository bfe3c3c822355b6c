//! The same files on the local file system of the disk under test.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::counters::Watched;
use crate::load::Rng;
use crate::machine::Machine;
use crate::patterns::Target;
use crate::plan::Plan;

/// Files of noise.
pub struct LocalFiles {
    plan: Plan,
    dir: Option<TempDir>,
}

impl LocalFiles {
    /// In a directory of their own below `--dir`.
    pub fn new(plan: &Plan) -> LocalFiles {
        LocalFiles {
            plan: plan.clone(),
            dir: None,
        }
    }
}

impl Target for LocalFiles {
    fn name(&self) -> &str {
        "local"
    }

    fn version(&self) -> String {
        Machine::here(&self.plan.run.dir).disk.file_system
    }

    fn start(&mut self, objects: &[(String, u64)], _: u64) -> Result<()> {
        let dir = self.plan.run.scratch()?;
        let mut rng = Rng(1);
        let words = (0..(1 << 20) / 8).flat_map(|_| rng.next().to_le_bytes());
        let noise: Vec<u8> = words.collect();
        let mut made = PathBuf::new();
        for (key, bytes) in objects {
            crate::interrupt::check()?;
            let path = dir.path().join(key);
            let parent = path.parent().unwrap_or(dir.path());
            if made != parent {
                fs::create_dir_all(parent)?;
                made = parent.to_owned();
            }
            let said = || format!("cannot write {bytes} bytes to {}", path.display());
            let mut file = fs::File::create(&path).with_context(said)?;
            let mut left = *bytes;
            while left > 0 {
                let part = left.min(noise.len() as u64);
                file.write_all(&noise[..part as usize]).with_context(said)?;
                left -= part;
            }
        }
        rustix::fs::sync();
        self.dir = Some(dir);
        Ok(())
    }

    fn root(&self) -> Result<&Path> {
        let dir = self.dir.as_ref().context("the files were not made")?;
        Ok(dir.path())
    }

    fn watched(&self) -> Result<Vec<Watched>> {
        Ok(Vec::new())
    }

    fn origin_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    fn end(&mut self) -> Result<()> {
        self.dir = None;
        Ok(())
    }
}

impl std::fmt::Debug for LocalFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalFiles").finish_non_exhaustive()
    }
}
