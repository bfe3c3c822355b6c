//! What an NVMe controller says of its own health, and who asks it.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result};
use forebay_nvme_uring::UringFile;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::host::Medium;

/// Between two questions.
const PERIOD: Duration = Duration::from_secs(10);
/// Bytes of the log page "SMART / Health Information".
const PAGE_BYTES: usize = 512;
/// Temperatures are told in kelvin.
const ZERO_CELSIUS: i32 = 273;
/// What the bits of a critical warning mean, from the lowest.
const WARNINGS: [&str; 6] = [
    "spare blocks run out",
    "too hot or too cold",
    "unreliable",
    "read-only",
    "its backup of volatile memory failed",
    "its persistent memory is read-only or unreliable",
];

/// A controller's health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Temperature in degrees Celsius.
    pub temperature_c: i32,
    /// Spare blocks that are left, in percent.
    pub spare_percent: u8,
    /// Below this the controller warns.
    pub spare_threshold_percent: u8,
    /// Of its life, as its vendor reckons; may exceed 100.
    pub used_percent: u8,
    /// Errors of the media that it could not correct.
    pub media_errors: u64,
    /// What it warns of, in words.
    pub warnings: Vec<String>,
}

impl Health {
    /// Reads a log page.
    pub fn of(page: &[u8; PAGE_BYTES]) -> Self {
        let kelvin = i32::from(u16::from_le_bytes([page[1], page[2]]));
        let number = |at: usize| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&page[at..at + 16]);
            u64::try_from(u128::from_le_bytes(bytes)).unwrap_or(u64::MAX)
        };
        let warned = |bit: &usize| page[0] & 1 << bit != 0;
        let bits = (0..8).filter(warned);
        let in_words = |bit: usize| match WARNINGS.get(bit) {
            Some(words) => (*words).to_owned(),
            None => format!("warning {bit}"),
        };
        Self {
            temperature_c: kelvin - ZERO_CELSIUS,
            spare_percent: page[3],
            spare_threshold_percent: page[4],
            used_percent: page[5],
            media_errors: number(160),
            warnings: bits.map(in_words).collect(),
        }
    }

    /// For people.
    pub fn in_words(&self) -> String {
        let mut text = format!(
            "{} °C, {} media errors, {} % spare, {} % of its life used",
            self.temperature_c, self.media_errors, self.spare_percent, self.used_percent
        );
        if !self.warnings.is_empty() {
            text.push_str(&format!("; IT WARNS: {}", self.warnings.join(", ")));
        }
        text
    }
}

/// What was answered last; none before, and where nothing is told.
type Last = Arc<Mutex<Option<Health>>>;

/// The last word of a disk's controller.
#[derive(Clone, Debug)]
pub enum LastHealth {
    /// Asked by a thread of ours.
    Asked(Last),
    /// SPDK's driver asks.
    Driver(Medium),
}

impl LastHealth {
    /// None where it tells nothing, or nothing yet.
    pub fn get(&self) -> Option<Health> {
        match self {
            LastHealth::Asked(last) => last.lock().clone(),
            LastHealth::Driver(medium) => medium.health_page().map(|page| Health::of(&page)),
        }
    }
}

/// Asks the kernel's NVMe devices, until it is dropped.
#[derive(Debug)]
pub struct HealthMonitor {
    last: Vec<LastHealth>,
    _stop: mpsc::Sender<()>,
}

impl HealthMonitor {
    /// For these disks.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start<'a>(media: impl Iterator<Item = &'a Medium>) -> Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let mut asked: Vec<(Arc<UringFile>, Last)> = Vec::new();
        let last = media.map(|medium| match medium.file() {
            None => LastHealth::Driver(medium.clone()),
            Some(file) => {
                let last = Last::default();
                if file.is_block_device() {
                    asked.push((file.clone(), last.clone()));
                }
                LastHealth::Asked(last)
            }
        });
        let last = last.collect();
        if !asked.is_empty() {
            // Never joined: a controller that hangs must not hold up the process's end.
            std::thread::Builder::new()
                .name("disk-health".into())
                .spawn(move || watch(&mut asked, &stopped))
                .context("cannot start a thread")?;
        }
        Ok(Self { last, _stop: stop })
    }

    /// In the order of the disks.
    pub fn last(&self) -> &[LastHealth] {
        &self.last
    }
}

/// Asks each of them, as long as they answer and anybody wants to know.
fn watch(asked: &mut Vec<(Arc<UringFile>, Last)>, stopped: &mpsc::Receiver<()>) {
    loop {
        asked.retain(|(file, last)| match file.health() {
            Ok(Some(page)) => {
                *last.lock() = Some(Health::of(&page));
                true
            }
            // No NVMe device.
            Ok(None) => false,
            Err(error) => {
                tracing::debug!(
                    "{} tells nothing of its health: {error}",
                    file.path().display()
                );
                *last.lock() = None;
                error.kind() != std::io::ErrorKind::PermissionDenied
            }
        });
        if asked.is_empty() {
            return;
        }
        match stopped.recv_timeout(PERIOD) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_page_is_read_as_the_specification_has_it() {
        let mut page = [0; PAGE_BYTES];
        page[0] = 0b1000_0101;
        page[1..3].copy_from_slice(&300_u16.to_le_bytes());
        (page[3], page[4], page[5]) = (97, 10, 3);
        page[160..176].copy_from_slice(&7_u128.to_le_bytes());
        let health = Health::of(&page);
        assert_eq!(
            health,
            Health {
                temperature_c: 27,
                spare_percent: 97,
                spare_threshold_percent: 10,
                used_percent: 3,
                media_errors: 7,
                warnings: ["spare blocks run out", "unreliable", "warning 7"]
                    .map(str::to_owned)
                    .to_vec(),
            }
        );
        let text = health.in_words();
        assert!(
            text.starts_with("27 °C, 7 media errors, 97 % spare") && text.contains("WARNS: spare"),
            "{text}"
        );
        page[160..176].fill(0xff);
        assert_eq!(Health::of(&page).media_errors, u64::MAX);
    }
}
