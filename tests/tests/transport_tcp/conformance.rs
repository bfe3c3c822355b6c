//! The suite that every transport must pass.

use forebay_engine::ports::{Clock, PeerId, Time};
use forebay_engine::wire::hello::Key;
use forebay_tests::conformance::transport::{TransportRig, every_operation_ends, suite};
use forebay_transport_tcp::TcpTransport;

use crate::node::{Node, clock, introduce, rest};

struct Rig([Node; 2]);

impl Rig {
    fn new() -> Self {
        let nodes = [1, 2].map(|id| {
            Node::with(id, |config| {
                config.secret = Some(Key::new(b"secret"));
                config.credit_bytes = 2 << 20;
            })
        });
        introduce(&[&nodes[0], &nodes[1]]);
        Self(nodes)
    }
}

impl TransportRig for Rig {
    type Transport = TcpTransport;
    fn end(&mut self, end: usize) -> &mut TcpTransport {
        &mut self.0[end].transport
    }
    fn peer(&self, end: usize) -> PeerId {
        self.0[end].me
    }
    fn now(&self) -> Time {
        clock().now()
    }
    fn pump(&mut self) {
        rest();
    }
}

#[test]
fn tcp_conforms() {
    suite(Rig::new).unwrap();
}

#[test]
fn operations_end() {
    for seed in 0..3 {
        every_operation_ends(Rig::new(), seed).unwrap();
    }
}
