//! How much memory this process may still have locked for a device behind an IOMMU: the kernel counts it with what is locked
//! already, and a refusal reaches nobody (see `trial`).

use rustix::process::{Resource, getrlimit};

/// Number of CAP_IPC_LOCK, which lifts the limit.
const IPC_LOCK: u32 = 14;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locked {
    /// Of this process.
    pub(crate) limit_bytes: u64,
    /// Locked by it already: SPDK's own memory, and other buffers.
    pub(crate) locked_bytes: u64,
}

/// None where there is no limit. VFIO counts for each process, whatever container it is in.
pub(crate) fn locked() -> Option<Locked> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    read(&status, getrlimit(Resource::Memlock).current)
}

fn read(status: &str, limit_bytes: Option<u64>) -> Option<Locked> {
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()
    };
    let capabilities = value("CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    if capabilities.is_some_and(|bits| bits >> IPC_LOCK & 1 == 1) {
        return None;
    }
    let locked_kib: u64 = value("VmLck:").and_then(|text| text.parse().ok())?;
    Some(Locked {
        limit_bytes: limit_bytes?,
        locked_bytes: locked_kib << 10,
    })
}

impl Locked {
    /// Whether so much more may be locked.
    pub(crate) fn has_room_for(&self, len_bytes: usize) -> bool {
        self.locked_bytes.saturating_add(len_bytes as u64) <= self.limit_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_locked_already_counts_and_a_capability_lifts_the_limit() {
        let status = |bits: &str| format!("Name:\tx\nVmLck:\t    2048 kB\nCapEff:\t{bits}\n");
        let plain = status("0000000000003fff");
        assert_eq!(read(&plain, None), None);
        let locked = read(&plain, Some(8 << 20)).unwrap();
        assert_eq!(locked.locked_bytes, 2 << 20);
        assert!(locked.has_room_for(6 << 20) && !locked.has_room_for((6 << 20) + 1));
        assert!(!locked.has_room_for(usize::MAX));
        assert_eq!(read(&status("0000000000004000"), Some(0)), None);
        assert!(
            std::fs::read_to_string("/proc/self/status").is_ok_and(|own| {
                let own = read(&own.replace("CapEff", "x"), Some(1));
                own.is_some()
            })
        );
    }
}
