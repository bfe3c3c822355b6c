//! One controller that is taken from the kernel, used, and given back.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_cli::host::arena_for_devices;
use forebay_engine::arena::{Arena, Share};
use forebay_engine::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceOp, DeviceTag};
use forebay_nvme_spdk::{
    Environment, EnvironmentOptions, Loss, MemoryError, Namespace, OpenError, OpenOptions,
    QueueError, QueueOptions,
};
use forebay_tests::conformance::block_device::{every_operation_ends, suite};
use serde_json::Value;

use crate::bench::{Bench, CAPACITY_BYTES, MIB, PATIENCE};
use crate::rig::SpdkRig;

/// Huge pages of 2 MiB for SPDK's own memory.
const HUGE_PAGES: u32 = 96;

/// A controller that `vfio-pci` has, for a test.
pub struct Taken {
    pub address: String,
}

fn forebay(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_forebay-under-test"))
        .args(args)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

impl Taken {
    /// The one whose serial number `FOREBAY_SPARE_NVME` names; or none, loudly.
    pub fn new() -> Option<Self> {
        Self::with(HUGE_PAGES)
    }

    /// The same with so many huge pages in all.
    pub fn with(pages: u32) -> Option<Self> {
        let serial = serial("FOREBAY_SPARE_NVME")?;
        huge_pages(pages);
        let all: Value = serde_json::from_str(&forebay(&["device", "list", "--json"])).unwrap();
        let all = all.as_array().unwrap();
        // A test before this one may have died with it.
        let mine = |row: &&Value| row["serial"] == serial.as_str() || row["driver"] == "vfio-pci";
        let row = all.iter().find(mine).expect("the controller");
        let address = row["address"].as_str().unwrap().to_owned();
        if row["driver"] != "vfio-pci" {
            wipe(
                row["namespaces"][0]["name"]
                    .as_str()
                    .expect("its namespace"),
            );
        }
        forebay(&["device", "bind", &address]);
        Some(Self { address })
    }

    /// The one that no IOMMU stands before, given to `uio_pci_generic` as docs/operations.md says; or none, loudly.
    pub fn bare() -> Option<Self> {
        let serial = serial("FOREBAY_BARE_NVME")?;
        huge_pages(2 * HUGE_PAGES);
        let all: Value = serde_json::from_str(&forebay(&["device", "list", "--json"])).unwrap();
        let all = all.as_array().unwrap();
        // A test before this one may have died with it.
        let mine =
            |row: &&Value| row["serial"] == serial.as_str() || row["driver"] == "uio_pci_generic";
        let row = all.iter().find(mine).expect("the controller");
        assert!(row["iommu_group"].is_null(), "{row}");
        let taken = Self {
            address: row["address"].as_str().unwrap().to_owned(),
        };
        if row["driver"] != "uio_pci_generic" {
            taken.give_to("uio_pci_generic");
        }
        Some(taken)
    }

    /// The one whose serial number is this, which the kernel has, for a driver.
    pub fn other(serial: &str, driver: &str) -> Self {
        let all: Value = serde_json::from_str(&forebay(&["device", "list", "--json"])).unwrap();
        let all = all.as_array().unwrap();
        let row = all.iter().find(|row| row["serial"] == serial).unwrap();
        let address = row["address"].as_str().unwrap().to_owned();
        wipe(
            row["namespaces"][0]["name"]
                .as_str()
                .expect("its namespace"),
        );
        let other = Self { address };
        other.give_to(driver);
        other
    }

    /// Has a driver take it from the one that has it.
    pub fn give_to(&self, driver: &str) {
        let dir = Path::new("/sys/bus/pci/devices").join(&self.address);
        fs::write(dir.join("driver_override"), driver).unwrap();
        fs::write(dir.join("driver/unbind"), &self.address).unwrap();
        fs::write("/sys/bus/pci/drivers_probe", &self.address).unwrap();
        let now = fs::read_link(dir.join("driver")).unwrap();
        assert!(now.ends_with(driver), "{now:?}");
        fs::write(dir.join("driver_override"), "\n").unwrap();
    }

    /// What its PCI command register says.
    pub fn may_reach_memory(&self) -> bool {
        let path = format!("/sys/bus/pci/devices/{}/config", self.address);
        let mut command = [0; 2];
        let config = fs::File::open(path).unwrap();
        config.read_exact_at(&mut command, 4).unwrap();
        u16::from_le_bytes(command) & (1 << 2) != 0
    }

    pub fn nvme(&self) -> forebay_nvme_spdk::Address {
        format!("pci:{}", self.address).parse().unwrap()
    }

    pub fn open(&self, options: &OpenOptions) -> Arc<Namespace> {
        let address = self.nvme();
        let pci = vec![address.pci().unwrap()];
        let environment = Environment::start(&EnvironmentOptions { pci }).unwrap();
        Namespace::open(&environment, &address, options).unwrap()
    }

    pub fn open_part(&self) -> Arc<Namespace> {
        self.open(&OpenOptions {
            capacity_bytes: Some(CAPACITY_BYTES),
            ..OpenOptions::default()
        })
    }
}

/// What the emulated device behind the controller lets through.
pub struct Throttle(fs::File);

impl Throttle {
    /// Without a bound; or none, loudly.
    pub fn new() -> Option<Self> {
        let Ok(monitor) = std::env::var("FOREBAY_GUEST_MONITOR") else {
            println!(
                "SKIPPED: FOREBAY_GUEST_MONITOR names no monitor of the machine: no device was made to hang"
            );
            return None;
        };
        let mut throttle = Self(fs::File::options().write(true).open(monitor).unwrap());
        throttle.to(0);
        Some(throttle)
    }

    /// So many bytes a second; 0 is no bound.
    pub fn to(&mut self, rate: u32) {
        let command = format!("\nblock_set_io_throttle spare {rate} 0 0 0 0 0\n");
        self.0.write_all(command.as_bytes()).unwrap();
    }
}

/// The serial number that a variable names, of a controller whose contents are lost; or none, loudly.
fn serial(variable: &str) -> Option<String> {
    let serial = std::env::var(variable).ok();
    if serial.is_none() {
        println!(
            "SKIPPED: {variable} names no NVMe controller to take from the kernel (ci/softroce does, in a guest)"
        );
    }
    serial
}

/// What the test before has left at a device's beginning: what is known is not bound.
fn wipe(name: &str) {
    let disk = fs::File::options()
        .write(true)
        .open(Path::new("/dev").join(name));
    disk.and_then(|disk| disk.write_all_at(&[0; 1 << 20], 0))
        .unwrap();
}

/// SPDK's own memory, as operators give it, and buffers.
fn huge_pages(pages: u32) {
    fs::write("/proc/sys/vm/nr_hugepages", pages.to_string()).unwrap();
    let at = "/dev/hugepages";
    let _ = fs::create_dir(at);
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    if !mounts.lines().any(|line| line.contains("hugetlbfs")) {
        let args = ["-t", "hugetlbfs", "none", at];
        assert!(Command::new("mount").args(args).status().unwrap().success());
    }
}

#[test]
fn a_pci_namespace_conforms() {
    let Some(taken) = Taken::new() else { return };
    let namespace = taken.open_part();
    assert_eq!(namespace.geometry().sector_bytes, 512);
    for depth in [1, 32] {
        if let Err(broken) = suite(|| SpdkRig::new(&namespace, depth, |device| device)) {
            panic!("depth {depth}: {broken}");
        }
    }
    every_operation_ends(SpdkRig::new(&namespace, 32, |device| device), 3).unwrap();
}

/// The device reaches every byte of an arena whose length is no multiple of a huge page's.
#[test]
fn the_last_buffer_of_an_arena_is_reached() {
    let Some(taken) = Taken::new() else { return };
    let namespace = taken.open_part();
    let mut arena = Arena::new(5 << 20).unwrap();
    let device = namespace.queue_pair(&arena.mapping(), &QueueOptions::default());
    let mut device = device.unwrap();
    let mut leases: Vec<_> = (0..5)
        .map(|_| {
            // No share may have all of it.
            let len = MIB as usize;
            let mut lease = arena.lease(len, Share::Demand);
            for share in [Share::Serve, Share::Prefetch] {
                lease = lease.or_else(|_| arena.lease(len, share));
            }
            lease.expect("a buffer of the arena")
        })
        .collect();
    leases.sort_by_key(|lease| lease.bytes().as_ptr().addr());
    let mut last = leases.pop().unwrap();
    last.bytes_mut().fill(0x5a);
    let written = arena.freeze(last);
    let mut wait = |op| {
        device.submit(op).expect("room");
        device.commit();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = device.poll() {
                return event;
            }
            assert!(Instant::now() < deadline, "nothing ends");
        }
    };
    let (tag, offset_bytes) = (DeviceTag(1), 0);
    let event = wait(DeviceOp::Write {
        tag,
        offset_bytes,
        bytes: written,
    });
    assert!(
        matches!(event, DeviceEvent::Write { result: Ok(()), .. }),
        "{event:?}"
    );
    let lease = leases.pop().unwrap();
    let event = wait(DeviceOp::Read {
        tag,
        offset_bytes,
        lease,
    });
    let DeviceEvent::Read { lease, result, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!(result, Ok(()));
    let wrong = lease.bytes().iter().position(|byte| *byte != 0x5a);
    assert_eq!(wrong.map(|at| (at, lease.bytes()[at])), None);
}

#[test]
fn a_controller_tells_of_its_health() {
    let Some(taken) = Taken::new() else { return };
    let namespace = taken.open_part();
    let deadline = Instant::now() + PATIENCE;
    let page = loop {
        if let Some(page) = namespace.health() {
            break page;
        }
        assert!(Instant::now() < deadline, "it tells nothing");
        std::thread::sleep(Duration::from_millis(20));
    };
    let health = forebay_cli::device::health::Health::of(&page);
    // What QEMU makes up: 323 K.
    assert_eq!(health.temperature_c, 50, "{health:?}");
    assert_eq!(health.media_errors, 0);
}

/// SPDK takes a mapping that the kernel has refused for done: a read would end well and bring nothing. Here the kernel gives no more than
/// so many mappings.
#[test]
fn memory_that_the_iommu_refused_is_found_out() {
    let Some(taken) = Taken::new() else { return };
    let parameter = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit";
    let before = fs::read_to_string(parameter).unwrap();
    // It holds for who opens VFIO from now on: this process, when SPDK starts.
    fs::write(parameter, "150").unwrap();
    let namespace = taken.open_part();
    fs::write(parameter, before.trim()).unwrap();
    let options = QueueOptions::default();
    let tried = |arena: &mut Arena| {
        let mut device = namespace.queue_pair(&arena.mapping(), &options).unwrap();
        device
            .check_memory(arena.probes())
            .map(|probes| probes.len())
    };
    let mut small = Arena::new(16 << 20).unwrap();
    assert_eq!(
        tried(&mut small).unwrap(),
        9,
        "what there is room for is reached"
    );
    let mut large = Arena::new(512 << 20).unwrap();
    let error = tried(&mut large).unwrap_err();
    let QueueError::Memory {
        why: MemoryError::Unreached { buffers },
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!((100..257).contains(buffers), "{error}");
    assert!(error.to_string().contains("dma_entry_limit"), "{error}");
    large.reclaim();
    assert_eq!(large.free_bytes(), large.capacity_bytes());
}

/// What another driver has is not touched.
#[test]
fn a_controller_that_the_kernel_drives_is_refused() {
    let Some(_taken) = Taken::new() else { return };
    let all: Value = serde_json::from_str(&forebay(&["device", "list", "--json"])).unwrap();
    let all = all.as_array().unwrap();
    let row = all.iter().find(|row| row["driver"] == "nvme").unwrap();
    let pci = row["address"].as_str().unwrap();
    let address: forebay_nvme_spdk::Address = format!("pci:{pci}").parse().unwrap();
    let options = EnvironmentOptions {
        pci: vec![address.pci().unwrap()],
    };
    let environment = Environment::start(&options).unwrap();
    let error = Namespace::open(&environment, &address, &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, OpenError::Driver { .. }), "{error}");
    let said = error.to_string();
    assert!(
        said.contains("is driven by `nvme`") && said.contains("forebay device bind"),
        "{said}"
    );
}

/// A device that hangs may write into its buffers whenever it comes to itself: they come back only when it was seen to reach nothing.
#[test]
fn a_controller_that_hangs_gives_its_buffers_back_and_reaches_them_no_more() {
    let Some(taken) = Taken::new() else { return };
    let Some(mut throttle) = Throttle::new() else {
        return;
    };
    let options = OpenOptions {
        capacity_bytes: Some(CAPACITY_BYTES),
        timeout: Duration::from_secs(3),
        ..OpenOptions::default()
    };
    let namespace = taken.open(&options);
    let mut bench = Bench::new(&namespace);
    bench.write(0, 3, MIB as usize).unwrap();
    throttle.to(1);
    // Some still come through.
    let mut ends = Vec::new();
    while !ends.contains(&Err(DeviceError::Gone)) {
        assert!(ends.len() < 1_000, "nothing hangs");
        for n in 0..4 {
            bench.begin_read(n * MIB / 4, 256 << 10);
        }
        ends.extend((0..4).map(|_| bench.wait().map(drop)));
    }
    assert_eq!(namespace.loss(), Some(Loss::TimedOut(options.timeout)));
    bench.assert_nothing_lent();
    assert!(!taken.may_reach_memory(), "and not only its word for it");
    // What it reads when it goes on would be somewhere in these.
    let mut mine = Vec::new();
    while let Ok(mut lease) = bench.arena.lease(MIB as usize, Share::Demand) {
        lease.bytes_mut().fill(0x77);
        mine.push(lease);
    }
    throttle.to(0);
    let Bench { device, .. } = bench;
    drop(device);
    // Waits until the controller is shut down: what it had is done.
    drop(namespace);
    assert!(mine.len() > 4);
    for lease in &mine {
        assert!(
            lease.bytes().iter().all(|byte| *byte == 0x77),
            "it wrote late"
        );
    }
    // Opened anew it works.
    let again = taken.open(&options);
    assert_eq!(Bench::new(&again).read(0, 4096).unwrap(), [3; 4096]);
}

/// Where no IOMMU stands before a device, buffers must be in reserved huge pages; then it works as any.
#[test]
fn a_device_without_an_iommu_reaches_reserved_huge_pages_alone() {
    let Some(taken) = Taken::bare() else { return };
    let namespace = taken.open_part();
    let options = QueueOptions::default();
    let ordinary = Arena::new(16 << 20).unwrap();
    let error = namespace
        .queue_pair(&ordinary.mapping(), &options)
        .unwrap_err();
    assert!(
        matches!(
            error,
            QueueError::Memory {
                why: MemoryError::NoIommu,
                ..
            }
        ),
        "{error}"
    );
    let mut reserved = arena_for_devices(16 << 20).unwrap();
    assert!(reserved.mapping().is_reserved());
    let mut device = namespace.queue_pair(&reserved.mapping(), &options).unwrap();
    assert_eq!(device.check_memory(reserved.probes()).unwrap().len(), 9);
    drop(device);
    if let Err(broken) = suite(|| SpdkRig::new(&namespace, 32, |device| device).in_reserved_pages())
    {
        panic!("{broken}");
    }
    drop(namespace);
    taken.give_to("nvme");
}

/// What the kernel says of the memory at an address.
fn memory_flags(address: usize) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let begins = format!("{address:x}-");
    let lines = maps.lines().skip_while(|line| !line.starts_with(&begins));
    let flags = lines
        .filter_map(|line| line.strip_prefix("VmFlags:"))
        .next();
    flags
        .expect("it is mapped")
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// With an IOMMU, too, buffers are there where there is room for them.
#[test]
fn buffers_are_in_reserved_huge_pages_where_enough_are_free() {
    let Some(taken) = Taken::with(2 * HUGE_PAGES) else {
        return;
    };
    let namespace = taken.open_part();
    let mut arena = arena_for_devices(16 << 20).unwrap();
    assert!(arena.mapping().is_reserved());
    let flags = memory_flags(arena.mapping().as_ptr().addr());
    assert!(
        flags.contains(&"ht".into()) && flags.contains(&"dc".into()),
        "a fork would move them: {flags:?}"
    );
    let mut device = namespace
        .queue_pair(&arena.mapping(), &QueueOptions::default())
        .unwrap();
    assert_eq!(device.check_memory(arena.probes()).unwrap().len(), 9);
    let far = arena_for_devices(1 << 30).unwrap();
    assert!(!far.mapping().is_reserved(), "there are not so many");
}
