//! Which member owns what: the placement that the members made, made again here.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::identity::{Bucket, ObjectVersion, Slot, Validator};
use forebay_engine::limits::STRIPE_BYTES;
use forebay_engine::placement::{Member, PeerId, Placement, View};

use super::cluster::Cluster;

/// An object as the origin names it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub key: String,
    /// With quotes.
    pub etag: String,
    pub len_bytes: u64,
}

/// Bytes of `objects` that each member owns, as `teller` sees the group.
#[track_caller]
pub fn owned_bytes(cluster: &Cluster, teller: &str, objects: &[Stored]) -> BTreeMap<String, u64> {
    let status = cluster.status(teller).expect("the member answers");
    let group = status.group.expect("it is a member");
    let id = |hex: &str| PeerId(u64::from_str_radix(hex, 16).expect("an id"));
    let members = group.members.iter().map(|member| Member {
        id: id(&member.id),
        weight: member.weight,
        cores: member.cores,
        addresses: member.addresses.clone().into(),
    });
    let placement = Placement::new(View::new(members.collect()));
    let digest = format!("{:016x}", placement.view().digest());
    assert_eq!(Some(digest), group.view, "the same view as the member's");
    let names: BTreeMap<PeerId, &str> = group
        .members
        .iter()
        .map(|member| (id(&member.id), member.node.as_str()))
        .collect();
    let bucket = Arc::new(Bucket {
        endpoint: status.endpoint,
        name: "bucket".into(),
    });
    let mut owned: BTreeMap<String, u64> = BTreeMap::new();
    for object in objects {
        let etag = Validator::ETag(object.etag.as_str().into());
        let key = object.key.as_str().into();
        let version = ObjectVersion::new(bucket.clone(), key, etag, object.len_bytes);
        for at in (0..object.len_bytes).step_by(STRIPE_BYTES) {
            let owner = placement.owner(Slot::of_stripe(version.id, at));
            let name = names[&owner.expect("somebody owns it").id];
            *owned.entry(name.to_owned()).or_default() +=
                (object.len_bytes - at).min(STRIPE_BYTES as u64);
        }
    }
    owned
}
