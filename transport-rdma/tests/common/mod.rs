#![allow(dead_code, reason = "each test binary uses a part")]
//! A device to test on, and two connected queue pairs on it.

use std::time::{Duration, Instant};

use forebay_transport_rdma::{
    Access, Completion, CompletionQueue, Device, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairSize, Verbs,
};

pub const MIB: usize = 1 << 20;
pub const RECEIVES: u32 = 32;

/// Longest wait for one completion; the tests' runner ends what takes longer as a whole.
pub const WAIT_MAX: Duration = Duration::from_secs(40);

pub struct TestDevice {
    pub verbs: Verbs,
    pub open: Device,
    pub port: u8,
    pub gid_index: u8,
    domain: ProtectionDomain,
}

/// The device that `FOREBAY_RDMA_DEVICE` names, which must be there. Without that name the test is left out:
/// `ci/softroce` gives one, in its guest or of this machine.
pub fn open_device() -> Option<TestDevice> {
    let Ok(name) = std::env::var("FOREBAY_RDMA_DEVICE") else {
        println!(
            "SKIPPED: FOREBAY_RDMA_DEVICE names no RDMA device: verbs were not tried here (ci/softroce does, in a guest)"
        );
        return None;
    };
    Some(open_device_of(&name))
}

/// A device that must be there.
pub fn open_device_of(name: &str) -> TestDevice {
    let number = |variable: &str, default: u8| match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number up to 255")),
        Err(_) => default,
    };
    let verbs = Verbs::load().expect("libibverbs");
    let open = verbs
        .open(name)
        .expect("the device that FOREBAY_RDMA_DEVICE names");
    assert!(
        verbs
            .devices()
            .expect("the list of devices")
            .iter()
            .any(|device| device.name == name)
    );
    let domain = ProtectionDomain::new(&open).expect("a protection domain");
    TestDevice {
        verbs,
        open,
        port: number("FOREBAY_RDMA_PORT", 1),
        gid_index: number("FOREBAY_RDMA_GID_INDEX", 1),
        domain,
    }
}

impl TestDevice {
    pub fn region(&self, len_bytes: usize, access: Access) -> MemoryRegion {
        MemoryRegion::new(&self.domain, len_bytes, access).expect("a memory region")
    }

    pub fn end(&self, len_bytes: usize, region: Access) -> End {
        let queue = CompletionQueue::new(&self.open, 4 * RECEIVES).expect("a completion queue");
        let size = QueuePairSize {
            sends: 16,
            receives: RECEIVES,
            elements: 2,
            inline_bytes: 128,
        };
        let pair = QueuePair::new(&self.domain, &queue, &queue, size).expect("a queue pair");
        End {
            pair,
            queue,
            region: self.region(len_bytes, region),
        }
    }
}

/// One end of a connection, with memory.
pub struct End {
    pub pair: QueuePair,
    pub queue: CompletionQueue,
    pub region: MemoryRegion,
}

impl End {
    pub fn bytes(&self, offset_bytes: usize, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        self.region
            .read_at(offset_bytes, &mut bytes)
            .expect("within the region");
        bytes
    }
}

/// Both ends of a connection, on one device.
pub struct Ends {
    pub left: End,
    pub right: End,
}

impl Ends {
    /// Both with `len_bytes` of memory, which lets peers do what `access` says.
    pub fn connected(device: &TestDevice, len_bytes: usize, access: Access) -> Ends {
        Ends::connected_with(device, len_bytes, access, access)
    }

    /// The same, with queue pairs that let peers do something else.
    pub fn connected_with(
        device: &TestDevice,
        len_bytes: usize,
        region: Access,
        pair: Access,
    ) -> Ends {
        let ends = Ends {
            left: device.end(len_bytes, region),
            right: device.end(len_bytes, region),
        };
        let at = device
            .open
            .port_address(device.port, device.gid_index)
            .expect("an address");
        let (left_first, right_first) = (0x00_1234, 0xff_fff0);
        for end in [&ends.left, &ends.right] {
            end.pair
                .prepare(&at, pair)
                .expect("a port for the queue pair");
        }
        let (left, right) = (
            ends.left.pair.address(&at, left_first),
            ends.right.pair.address(&at, right_first),
        );
        ends.left
            .pair
            .connect(&at, left_first, &right)
            .expect("the left end to connect");
        ends.right
            .pair
            .connect(&at, right_first, &left)
            .expect("the right end to connect");
        ends
    }
}

/// What has completed at this end.
pub fn take(end: &End) -> Vec<Completion> {
    let mut taken = Vec::new();
    end.queue
        .poll(|completion| taken.push(completion))
        .expect("the queue to be polled");
    taken
}

/// Waits for the next completion, which must be the only one.
pub fn wait_for_any(end: &End) -> Completion {
    let begun = Instant::now();
    loop {
        let mut next = None;
        // One at a time, so that none is lost.
        end.queue
            .poll_up_to(1, |completion| next = Some(completion))
            .expect("the queue to be polled");
        if let Some(completion) = next {
            return completion;
        }
        assert!(
            begun.elapsed() < WAIT_MAX,
            "no completion within {WAIT_MAX:?}"
        );
        std::thread::yield_now();
    }
}

/// Waits for the next completion, which must be that of this work.
pub fn wait_for(end: &End, work: u64) -> Completion {
    let completion = wait_for_any(end);
    assert_eq!(completion.work, work, "{completion:?}");
    completion
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(len_bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}
