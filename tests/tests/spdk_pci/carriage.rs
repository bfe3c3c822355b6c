//! From the device to a peer: the same bytes of memory, touched by nobody between.

use forebay_cli::host::arena_for_devices;
use forebay_engine::arena::{Arena, Lease, Mapping, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::ports::{
    BlockDevice, Class, Clock, DeviceEvent, DeviceOp, DeviceTag, FetchStatus, FetchTag, Payload,
    PeerAsk, PeerCore, PeerFetch, RequestHandle, Transport, TransportEvent, TransportOp,
};
use forebay_nvme_spdk::{QueueOptions, SpdkDevice};
use forebay_transport_rdma::RdmaTransport;
use rustix::mm::MprotectFlags;

use super::pair::{Meeting, PEERS, WAIT_MAX, clock, device, rest, transport};
use crate::bench::{Bench, MIB};
use crate::device::Taken;

const BLOCK_BYTES: usize = MIB as usize;

/// An arena that this program can neither read nor write: a copy of any byte of it would end the test with a signal. Devices, which have
/// its pages by registration, are not held back.
struct Sealed(Mapping);

impl Sealed {
    fn new(arena: &Arena) -> Self {
        let sealed = Self(arena.mapping());
        sealed.protect(MprotectFlags::empty());
        sealed
    }

    #[allow(unsafe_code)]
    fn protect(&self, flags: MprotectFlags) {
        let (start, len) = (self.0.as_ptr().cast(), self.0.whole_bytes());
        // SAFETY: a whole mapping of this program's, which stays mapped. Whoever reads or writes it while it is sealed ends the program,
        // which is what the test is for.
        unsafe { rustix::mm::mprotect(start, len, flags) }.unwrap();
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        self.protect(MprotectFlags::READ | MprotectFlags::WRITE);
    }
}

/// Until something has happened.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < WAIT_MAX, "nothing happens");
        rest();
    }
}

fn read(device: &mut SpdkDevice, lease: Lease) -> Lease {
    let op = DeviceOp::Read {
        tag: DeviceTag(1),
        offset_bytes: 0,
        lease,
    };
    device.submit(op).expect("room");
    device.commit();
    match until(|| device.poll()) {
        DeviceEvent::Read {
            lease,
            result: Ok(()),
            ..
        } => lease,
        event => panic!("{event:?}"),
    }
}

fn fetch(lease: Lease) -> TransportOp {
    let request = PeerFetch {
        object: ObjectId(5),
        size_bytes: 1 << 40,
        offset: 0,
        len_bytes: lease.len() as u32,
        want_bytes: lease.len() as u32,
        class: Class::Demand,
        view: 1,
        cached_only: false,
        forwarded: false,
        verify: false,
    };
    let to = PeerCore {
        peer: PEERS[1],
        core: 0,
    };
    TransportOp::Fetch {
        tag: FetchTag(1),
        to,
        request,
        lease,
        deadline: clock().now() + std::time::Duration::from_secs(600),
    }
}

/// The request that the peer's fetch is, at the server.
fn asked(server: &mut RdmaTransport, asker: &mut RdmaTransport) -> RequestHandle {
    until(|| {
        assert!(asker.poll().is_none(), "it is not answered yet");
        match server.poll()? {
            TransportEvent::Request {
                handle,
                ask: PeerAsk::Fetch(_),
                ..
            } => Some(handle),
            event => panic!("{event:?}"),
        }
    })
}

fn a_block_crosses(
    mut stock: Arena,
    rails: &(
        forebay_transport_rdma::Verbs,
        forebay_transport_rdma::RailConfig,
    ),
    taken: &Taken,
) {
    let namespace = taken.open_part();
    let mut writer = Bench::new(&namespace);
    for n in 0..16 {
        writer
            .write(n * MIB / 16, n as u8 + 1, BLOCK_BYTES / 16)
            .unwrap();
    }
    writer.flush().unwrap();
    let mut disk = namespace
        .queue_pair(&stock.mapping(), &QueueOptions::default())
        .unwrap();
    disk.check_memory(stock.probes()).unwrap();
    let mut wants = Arena::new(8 << 20).unwrap();
    let mut server = transport(rails, &stock);
    let mut asker = transport(rails, &wants);
    let mut meeting = Meeting::new(rails);
    meeting.introduce(&mut asker, PEERS[0], &mut server, PEERS[1]);
    let buffer = stock.lease(BLOCK_BYTES, Share::Serve).unwrap();
    let lease = wants.lease(BLOCK_BYTES, Share::Demand).unwrap();

    let sealed = Sealed::new(&stock);
    let buffer = read(&mut disk, buffer);
    asker.submit(fetch(lease)).unwrap();
    let handle = asked(&mut server, &mut asker);
    let payload = Payload {
        parts: vec![stock.freeze(buffer)],
        checksums: vec![0; BLOCK_BYTES / 4096],
    };
    let answer = TransportOp::Answer {
        handle,
        status: FetchStatus::Bytes,
        payload: Some(payload),
    };
    server.submit(answer).unwrap();
    let (mut answered, mut fetched) = (None, None);
    until(|| {
        answered = answered.take().or_else(|| server.poll());
        fetched = fetched.take().or_else(|| asker.poll());
        (answered.is_some() && fetched.is_some()).then_some(())
    });
    drop(sealed);

    let Some(TransportEvent::Fetched { lease, result, .. }) = fetched else {
        panic!("{fetched:?}");
    };
    assert_eq!(result, Ok(FetchStatus::Bytes));
    for (n, part) in lease.bytes().chunks(BLOCK_BYTES / 16).enumerate() {
        assert!(part.iter().all(|byte| *byte == n as u8 + 1), "part {n}");
    }
    let Some(TransportEvent::Answered {
        payload: Some(payload),
        ..
    }) = answered
    else {
        panic!("{answered:?}");
    };
    assert!(
        payload.parts[0][..] == *lease.bytes(),
        "the same bytes, in their place"
    );
    println!("{BLOCK_BYTES} bytes went from the device to the peer; copies of this program: 0");
}

#[test]
fn a_block_goes_from_the_device_to_a_peer_without_a_copy() {
    let Some(rails) = device() else { return };
    let Some(taken) = Taken::with(2 * 96) else {
        return;
    };
    let ordinary = Arena::new(16 << 20).unwrap();
    assert!(!ordinary.mapping().is_reserved());
    a_block_crosses(ordinary, &rails, &taken);
    let reserved = arena_for_devices(16 << 20).unwrap();
    assert!(reserved.mapping().is_reserved());
    a_block_crosses(reserved, &rails, &taken);
}
