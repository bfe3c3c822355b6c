//! What a namespace says it is, to be compared while it is in use.

use crate::error::Change;

/// A namespace's shape, and its names that are unique in the world: zeros where it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) sector_bytes: u32,
    pub(crate) metadata_bytes: u32,
    pub(crate) capacity_bytes: u64,
    pub(crate) nguid: [u8; 16],
    pub(crate) eui64: [u8; 8],
    pub(crate) uuid: [u8; 16],
}

impl Fingerprint {
    /// Its names that are unique in the world, with its number in its controller; none where it has no such name.
    pub(crate) fn world_name(&self, number: u32) -> Option<String> {
        let names: [(&str, &[u8]); 3] = [
            ("nguid", &self.nguid),
            ("eui64", &self.eui64),
            ("uuid", &self.uuid),
        ];
        let given = names
            .iter()
            .filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        let words: Vec<String> = given
            .map(|(kind, bytes)| {
                let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{kind}.{digits}")
            })
            .collect();
        (!words.is_empty()).then(|| format!("{} ns:{number}", words.join(" ")))
    }

    /// What has become of the namespace, of which `used_bytes` are used; none while it is the same. It may grow.
    pub(crate) fn change(&self, now: &Fingerprint, used_bytes: u64) -> Option<Change> {
        let names = |one: &Fingerprint| (one.nguid, one.eui64, one.uuid);
        let nameless = names(self) == names(&Fingerprint::default());
        if (self.sector_bytes, self.metadata_bytes) != (now.sector_bytes, now.metadata_bytes) {
            Some(Change::Sectors)
        } else if names(self) != names(now) {
            Some(Change::Replaced)
        } else if now.capacity_bytes < used_bytes {
            Some(Change::Smaller)
        } else if nameless && now.capacity_bytes != self.capacity_bytes {
            // It has no name that would show that it is the same one.
            Some(Change::Replaced)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_same_any_more_is_told_from_what_has_grown() {
        let opened = Fingerprint {
            sector_bytes: 512,
            metadata_bytes: 0,
            capacity_bytes: 1 << 20,
            nguid: [1; 16],
            eui64: [2; 8],
            uuid: [3; 16],
        };
        let used = 1 << 19;
        let with = |change: fn(&mut Fingerprint)| {
            let mut now = opened.clone();
            change(&mut now);
            opened.change(&now, used)
        };
        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|now| now.capacity_bytes = 1 << 19), None);
        assert_eq!(with(|now| now.capacity_bytes *= 2), None);
        assert_eq!(with(|now| now.sector_bytes = 4096), Some(Change::Sectors));
        assert_eq!(with(|now| now.metadata_bytes = 8), Some(Change::Sectors));
        assert_eq!(with(|now| now.nguid[3] = 0), Some(Change::Replaced));
        assert_eq!(with(|now| now.eui64[3] = 0), Some(Change::Replaced));
        assert_eq!(with(|now| now.uuid[3] = 0), Some(Change::Replaced));
        assert_eq!(with(|now| now.capacity_bytes = 4096), Some(Change::Smaller));
        let name = format!(
            "nguid.{} eui64.{} uuid.{} ns:5",
            "01".repeat(16),
            "02".repeat(8),
            "03".repeat(16)
        );
        assert_eq!(opened.world_name(5), Some(name));
        assert_eq!(Fingerprint::default().world_name(5), None);
        let nameless = Fingerprint {
            capacity_bytes: 1 << 20,
            ..Fingerprint::default()
        };
        let larger = Fingerprint {
            capacity_bytes: 1 << 21,
            ..Fingerprint::default()
        };
        assert_eq!(nameless.change(&nameless, used), None);
        assert_eq!(nameless.change(&larger, used), Some(Change::Replaced));
    }
}
