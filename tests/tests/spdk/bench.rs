//! A target, a namespace, and one operation at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::arena::{Arena, Frozen, Share};
use forebay_engine::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceOp, DeviceTag, Full};
use forebay_nvme_spdk::{Environment, Namespace, OpenError, OpenOptions, QueueOptions, SpdkDevice};
use forebay_tests::devices::target::{SpdkTarget, obstacle};

pub const MIB: u64 = 1 << 20;
/// What buffers hold before they are read into.
const UNREAD: u8 = 0xe7;
pub const CAPACITY_BYTES: u64 = 8 * MIB;
/// Real time that anything may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A target, or none, loudly.
pub fn target(test: &str) -> Option<SpdkTarget> {
    if let Some(why) = obstacle() {
        println!("SKIPPED: {test} on SPDK: {why}");
        return None;
    }
    Some(SpdkTarget::start().expect("the target starts"))
}

/// The same with so much memory.
pub fn target_with(test: &str, memory_mib: u32) -> Option<SpdkTarget> {
    if let Some(why) = obstacle() {
        println!("SKIPPED: {test} on SPDK: {why}");
        return None;
    }
    Some(SpdkTarget::start_with(memory_mib).expect("the target starts"))
}

pub fn open_with(transport_id: &str, options: &OpenOptions) -> Result<Arc<Namespace>, OpenError> {
    let environment = Environment::start(&Default::default())?;
    let address = transport_id.parse().expect("an address");
    Namespace::open(&environment, &address, options)
}

pub fn open(transport_id: &str) -> Arc<Namespace> {
    open_with(transport_id, &OpenOptions::default()).expect("the namespace opens")
}

/// A queue pair with its buffers.
pub struct Bench {
    pub arena: Arena,
    pub device: SpdkDevice,
    tags: u64,
}

impl Bench {
    pub fn new(namespace: &Arc<Namespace>) -> Self {
        Self::on(namespace, Arena::new(16 << 20).unwrap())
    }

    pub fn on(namespace: &Arc<Namespace>, arena: Arena) -> Self {
        let device = namespace.queue_pair(&arena.mapping(), &QueueOptions::default());
        Self {
            device: device.expect("a queue pair"),
            arena,
            tags: 0,
        }
    }

    fn tag(&mut self) -> DeviceTag {
        self.tags += 1;
        DeviceTag(self.tags)
    }

    fn frozen(&mut self, byte: u8, len_bytes: usize) -> Frozen {
        let mut lease = self.arena.lease(len_bytes, Share::Demand).unwrap();
        lease.bytes_mut().fill(byte);
        self.arena.freeze(lease)
    }

    /// Hands something over that nobody waits for yet.
    pub fn begin_write(&mut self, offset_bytes: u64, byte: u8, len_bytes: usize) {
        let op = DeviceOp::Write {
            tag: self.tag(),
            offset_bytes,
            bytes: self.frozen(byte, len_bytes),
        };
        self.begin(op);
    }

    /// Its number.
    pub fn begin_read(&mut self, offset_bytes: u64, len_bytes: usize) -> u64 {
        let mut lease = self.arena.lease(len_bytes, Share::Demand).unwrap();
        // What is there from before must not pass for what was read.
        lease.bytes_mut().fill(UNREAD);
        let op = DeviceOp::Read {
            tag: self.tag(),
            offset_bytes,
            lease,
        };
        self.begin(op);
        self.tags
    }

    fn begin(&mut self, op: DeviceOp) {
        if let Err(Full(op)) = self.device.submit(op) {
            panic!("one operation is too many: {op:?}");
        }
        self.device.commit();
    }

    /// How the next operation ended.
    pub fn wait(&mut self) -> Result<Vec<u8>, DeviceError> {
        self.wait_tagged().1
    }

    /// The same, with the operation's number.
    pub fn wait_tagged(&mut self) -> (u64, Result<Vec<u8>, DeviceError>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.device.poll() {
                return match event {
                    DeviceEvent::Read { tag, lease, result } => {
                        (tag.0, result.map(|()| lease.bytes().to_vec()))
                    }
                    DeviceEvent::Write { tag, result, .. }
                    | DeviceEvent::Flush { tag, result }
                    | DeviceEvent::Discard { tag, result } => (tag.0, result.map(|()| Vec::new())),
                };
            }
            assert!(Instant::now() < deadline, "nothing ends");
            // What the device itself asks for: without it this would spin on a CPU that the target wants.
            std::thread::sleep(self.device.nap().expect("something is under way"));
        }
    }

    pub fn write(
        &mut self,
        offset_bytes: u64,
        byte: u8,
        len_bytes: usize,
    ) -> Result<(), DeviceError> {
        self.begin_write(offset_bytes, byte, len_bytes);
        self.wait().map(drop)
    }

    pub fn read(&mut self, offset_bytes: u64, len_bytes: usize) -> Result<Vec<u8>, DeviceError> {
        self.begin_read(offset_bytes, len_bytes);
        self.wait()
    }

    pub fn flush(&mut self) -> Result<(), DeviceError> {
        let op = DeviceOp::Flush { tag: self.tag() };
        self.begin(op);
        self.wait().map(drop)
    }

    pub fn discard(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let op = DeviceOp::Discard {
            tag: self.tag(),
            offset_bytes,
            len_bytes,
        };
        self.begin(op);
        self.wait().map(drop)
    }

    /// Every buffer is back.
    pub fn assert_nothing_lent(&mut self) {
        self.arena.reclaim();
        assert_eq!(self.arena.free_bytes(), self.arena.capacity_bytes());
    }
}
