//! The suite that every transport must pass.

use forebay_engine::arena::Arena;
use forebay_engine::ports::{Clock, PeerId, Time};
use forebay_tests::conformance::transport::{TransportRig, every_operation_ends, suite};
use forebay_transport_rdma::{RailConfig, RdmaTransport, Verbs};

use crate::pair::{Meeting, PEERS, clock, device, rest, transport};

struct Rig {
    device: (Verbs, RailConfig),
    meeting: Meeting,
    ends: Vec<RdmaTransport>,
}

impl Rig {
    fn new(device: &(Verbs, RailConfig)) -> Rig {
        Rig {
            device: device.clone(),
            meeting: Meeting::new(device),
            ends: Vec::new(),
        }
    }
}

impl TransportRig for Rig {
    type Transport = RdmaTransport;

    fn use_arena(&mut self, arena: &Arena) {
        // The bench has one arena for both ends: each registers it for itself.
        let mut ends = [0, 1].map(|_| transport(&self.device, arena));
        let [left, right] = &mut ends;
        self.meeting.introduce(left, PEERS[0], right, PEERS[1]);
        self.meeting.introduce(right, PEERS[1], left, PEERS[0]);
        self.ends = ends.into();
    }

    fn end(&mut self, end: usize) -> &mut RdmaTransport {
        &mut self.ends[end]
    }

    fn peer(&self, end: usize) -> PeerId {
        PEERS[end]
    }

    fn now(&self) -> Time {
        clock().now()
    }

    fn refuses_wrong_answers(&self) -> bool {
        true
    }

    fn pump(&mut self) {
        rest();
    }
}

#[test]
fn rdma_conforms() {
    let Some(device) = device() else { return };
    suite(|| Rig::new(&device)).unwrap();
}

#[test]
fn operations_end_over_rdma() {
    let Some(device) = device() else { return };
    for seed in 0..3 {
        every_operation_ends(Rig::new(&device), seed).unwrap();
    }
}
