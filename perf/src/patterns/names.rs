//! Names and attributes of a tree, as `ls -lR` asks for them.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Ran;
use crate::pace::{self, Tally};

/// Bytes of an object whose name is all that counts.
const OBJECT_BYTES: u64 = 1;

/// Objects, spread over directories.
pub(super) fn objects(objects: u64, directories: u64) -> Vec<(String, u64)> {
    let key = |n: u64| format!("{:06}/{n:08}", n % directories);
    (0..objects).map(|n| (key(n), OBJECT_BYTES)).collect()
}

/// One thread reads the tree's directories one after the other and asks for the attributes of all that is in them; an operation is a directory.
pub(super) fn list(dir: &Path) -> Result<Ran> {
    let (paced, bytes) = pace::shared(1, 1, |_| {
        Ok(move |_, tally: &mut Tally| {
            let mut found = 0;
            let mut waiting = vec![dir.to_owned()];
            while let Some(dir) = waiting.pop() {
                crate::interrupt::check()?;
                let said = || format!("listing {}", dir.display());
                for entry in std::fs::read_dir(&dir).with_context(said)? {
                    let entry = entry.with_context(said)?;
                    let about = entry.metadata().with_context(said)?;
                    if about.is_dir() {
                        waiting.push(entry.path());
                    } else {
                        found += 1;
                    }
                }
                tally.ended(0);
            }
            ensure!(found > 0, "{} is empty", dir.display());
            Ok(())
        })
    })?;
    Ok(Ran {
        paced,
        bytes,
        ..Ran::default()
    })
}
