//! A device to test on, and two transports on it that are connected both ways.

use std::sync::OnceLock;
use std::time::Duration;

use forebay_cli::host::MonotonicClock;
use forebay_engine::arena::Arena;
use forebay_engine::ports::{PeerCore, PeerId};
use forebay_transport_rdma::{ConnectionId, RailConfig, RdmaTransport, Verbs};

pub const PEERS: [PeerId; 2] = [PeerId(1), PeerId(2)];
const CREDIT_BYTES: u32 = 2 << 20;

/// One clock, so that both ends compare deadlines.
pub fn clock() -> MonotonicClock {
    static CLOCK: OnceLock<MonotonicClock> = OnceLock::new();
    *CLOCK.get_or_init(MonotonicClock::start)
}

/// The device that `FOREBAY_RDMA_DEVICE` names. Without that name the test is left out.
pub fn device() -> Option<(Verbs, RailConfig)> {
    let Ok(name) = std::env::var("FOREBAY_RDMA_DEVICE") else {
        println!(
            "SKIPPED: FOREBAY_RDMA_DEVICE names no RDMA device: the transport was not tried here (ci/softroce does, in a guest)"
        );
        return None;
    };
    let number = |variable: &str| match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number up to 255")),
        Err(_) => 1,
    };
    let (port, gid_index) = (
        number("FOREBAY_RDMA_PORT"),
        number("FOREBAY_RDMA_GID_INDEX"),
    );
    let verbs = Verbs::load().expect("libibverbs");
    Some((verbs, RailConfig::new(name, port, gid_index)))
}

/// A transport of one core over `arena`.
pub fn transport((verbs, config): &(Verbs, RailConfig), arena: &Arena) -> RdmaTransport {
    RdmaTransport::new(verbs, config, arena, CREDIT_BYTES, Box::new(clock()))
        .expect("a transport on the device")
}

/// Lets `asker` ask `acceptor`, which is `to` and calls it `from`. The connection at either end.
pub fn introduce(
    asker: &mut RdmaTransport,
    from: PeerId,
    acceptor: &mut RdmaTransport,
    to: PeerId,
) -> [ConnectionId; 2] {
    let (first, other_first) = (0x12_3456, 0xff_fff0);
    let (id, address) = asker.offer(first).expect("an offer");
    let (other, other_address, grant) = acceptor
        .accept(from, &address, other_first)
        .expect("to be accepted");
    let to = PeerCore { peer: to, core: 0 };
    asker
        .begin(id, to, &other_address, first, grant)
        .expect("to begin");
    [id, other]
}

pub fn rest() {
    std::thread::sleep(Duration::from_micros(20));
}
