//! What a member publishes, and all members' records together.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_engine::placement::{Member, PeerId, View};
use serde::{Deserialize, Serialize};

use crate::identity::{first_u64, from_hex, hex, peer_id};

/// What a member tells the others of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its node id, for people; with the group's name it makes the member's id.
    pub node: String,
    /// Share of the ring.
    pub weight: u32,
    /// Engine cores.
    pub cores: u16,
    /// Where peers connect to, one for each rail; not empty.
    pub addresses: Vec<SocketAddr>,
    /// Version of its software, for people.
    pub version: String,
    /// Where it reads from, as identities spell it; empty when it is not told.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
}

impl Record {
    /// Reads what a member published, and checks that it may say so.
    pub(crate) fn read(text: &str, group: &str, claimed: PeerId) -> Option<Self> {
        let record: Self = serde_json::from_str(text).ok()?;
        let good = !record.addresses.is_empty()
            && record.cores > 0
            && peer_id(group, &record.node) == claimed;
        good.then_some(record)
    }
}

/// How full a member's cache is. Beside the record, since it changes all the time and moves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes that it holds: on its disks, or without any in memory.
    pub cached_bytes: u64,
    /// Bytes that it can hold there.
    pub capacity_bytes: u64,
    /// Bytes that it still has to hand over, while it is leaving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_bytes: Option<u64>,
}

/// A member and its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its id.
    #[serde(with = "hex_id")]
    pub id: PeerId,
    /// What it told.
    #[serde(flatten)]
    pub record: Record,
}

/// The serving members at one moment, sorted by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster(Vec<Listed>);

impl Roster {
    /// A roster of `members`, in any order; of two with one id the first counts.
    pub fn new(mut members: Vec<Listed>) -> Self {
        members.sort_by_key(|member| member.id);
        members.dedup_by_key(|member| member.id);
        Self(members)
    }

    /// Sorted by id.
    pub fn members(&self) -> &[Listed] {
        &self.0
    }

    /// The engine's view.
    pub fn view(&self) -> View {
        let member = |listed: &Listed| Member {
            id: listed.id,
            weight: listed.record.weight,
            cores: listed.record.cores,
            addresses: Arc::from(listed.record.addresses.as_slice()),
        };
        View::new(self.0.iter().map(member).collect())
    }

    /// Identifies all of it, addresses too; a view's digest leaves those out.
    pub fn fingerprint(&self) -> u64 {
        let text = serde_json::to_vec(&self.0).unwrap_or_default();
        first_u64(&blake3::derive_key("forebay roster v1", &text))
    }
}

mod hex_id {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{PeerId, from_hex, hex};

    pub fn serialize<S: Serializer>(id: &PeerId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(id.0))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PeerId, D::Error> {
        let text = String::deserialize(deserializer)?;
        let id =
            from_hex(&text).ok_or_else(|| D::Error::custom("an id is 16 hexadecimal digits"))?;
        Ok(PeerId(id))
    }
}

#[cfg(test)]
pub(crate) fn listed(group: &str, node: &str, port: u16) -> Listed {
    Listed {
        id: peer_id(group, node),
        record: Record {
            node: node.to_owned(),
            weight: 1,
            cores: 1,
            addresses: vec![([127, 0, 0, 1], port).into()],
            version: "0.1.0".to_owned(),
            endpoint: String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_must_belong_to_who_tells_it() {
        let told = listed("g", "a", 1);
        let text = serde_json::to_string(&told.record).unwrap();
        assert_eq!(Record::read(&text, "g", told.id), Some(told.record));
        assert_eq!(Record::read(&text, "g", PeerId(7)), None);
        assert_eq!(Record::read(&text, "h", told.id), None);
        let bare = text.replace("\"127.0.0.1:1\"", "");
        for text in [bare.as_str(), "", "{}", "null", "[1"] {
            assert_eq!(Record::read(text, "g", told.id), None, "{text}");
        }
    }

    #[test]
    fn a_roster_tells_addresses_apart_where_a_view_does_not() {
        let roster = |port| Roster::new(vec![listed("g", "b", 2), listed("g", "a", port)]);
        assert_eq!(roster(1).view().digest(), roster(9).view().digest());
        assert_ne!(roster(1).fingerprint(), roster(9).fingerprint());
        let turned = Roster::new(vec![listed("g", "a", 1), listed("g", "b", 2)]);
        assert_eq!(roster(1), turned);
        let text = serde_json::to_string(turned.members()).unwrap();
        let back: Vec<Listed> = serde_json::from_str(&text).unwrap();
        assert_eq!(Roster::new(back), turned);
    }
}
