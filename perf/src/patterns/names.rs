//! Names of a tree as `ls -R` asks for them, with attributes as `ls -lR`.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Ran;
use crate::pace::{self, Tally};

/// Bytes of an object whose name is all that counts.
pub(super) const OBJECT_BYTES: u64 = 1;

/// Objects, spread over directories.
pub(super) fn objects(objects: u64, directories: u64) -> Vec<(String, u64)> {
    let key = |n: u64| format!("{:06}/{n:08}", n % directories);
    (0..objects).map(|n| (key(n), OBJECT_BYTES)).collect()
}

/// One thread reads the tree's directories one after the other, and may ask for the attributes of all that is in them; an operation is a
/// directory.
pub(super) fn list(dir: &Path, attributes: bool) -> Result<Ran> {
    let (paced, bytes) = pace::shared(1, 1, |_| {
        Ok(move |_, tally: &mut Tally| {
            let mut found = 0;
            let mut waiting = vec![dir.to_owned()];
            while let Some(dir) = waiting.pop() {
                crate::interrupt::check()?;
                let said = || format!("listing {}", dir.display());
                for entry in std::fs::read_dir(&dir).with_context(said)? {
                    let entry = entry.with_context(said)?;
                    // The kind is told with the name, and costs no question.
                    let is_dir = match attributes {
                        true => entry.metadata().with_context(said)?.is_dir(),
                        false => entry.file_type().with_context(said)?.is_dir(),
                    };
                    if is_dir {
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
