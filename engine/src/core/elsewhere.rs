//! Peers that ask for what lies at another endpoint than this node's origin. A bucket of one name may hold anything
//! there, so they are told to ask others, and it is said who they are.

use std::collections::BTreeSet;

use super::Core;
use crate::identity::Bucket;
use crate::ports::{FetchStatus, PeerFailure, PeerId, Platform, RequestHandle};

/// So many peers and endpoints are remembered, so that each is named once.
const NAMED_MAX: usize = 64;

/// Who asked for what is elsewhere.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    named: BTreeSet<(PeerId, String)>,
}

impl<P: Platform> Core<P> {
    /// Whether a bucket is at this node's origin.
    pub(super) fn is_origin_of(&self, bucket: &Bucket) -> bool {
        let own = self.config.endpoint.as_deref();
        own.is_none_or(|own| own == bucket.endpoint)
    }

    /// Tells a peer that what it asks for is at another endpoint.
    pub(super) fn decline_elsewhere(
        &mut self,
        peer: PeerId,
        handle: RequestHandle,
        bucket: &Bucket,
    ) {
        self.note_elsewhere(peer, bucket);
        self.stats.serves_declined += 1;
        let status = FetchStatus::Failed(PeerFailure::Elsewhere);
        self.answer_peer(handle, status, None);
    }

    /// A peer asks for what is at another endpoint.
    pub(super) fn note_elsewhere(&mut self, peer: PeerId, bucket: &Bucket) {
        self.stats.elsewhere += 1;
        let named = &mut self.elsewhere.named;
        if named.len() < NAMED_MAX && named.insert((peer, bucket.endpoint.clone())) {
            tracing::warn!(
                peer = format_args!("{:016x}", peer.0),
                its_endpoint = %bucket.endpoint,
                endpoint = self.config.endpoint.as_deref().unwrap_or_default(),
                "a node of the group reads from another S3 endpoint: nothing is shared with it; give all the same --endpoint"
            );
        }
    }
}
