//! A device that is pulled out. Tests run in the order of their names: nothing comes after this.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_engine::ports::DeviceError;
use forebay_nvme_spdk::{
    Address, Environment, EnvironmentOptions, Loss, Namespace, OpenError, OpenOptions,
};

use crate::bench::{Bench, MIB, PATIENCE};
use crate::device::Taken;

#[test]
fn a_device_pulled_under_load_ends_every_operation() {
    let Some(taken) = Taken::new() else { return };
    let Ok(monitor) = std::env::var("FOREBAY_GUEST_MONITOR") else {
        println!(
            "SKIPPED: FOREBAY_GUEST_MONITOR names no monitor of the machine: nothing was pulled"
        );
        return;
    };
    let other = Taken::other("forebay", "vfio-pci");
    let both = [&taken, &other].map(|one| one.nvme());
    let pci = both.iter().filter_map(Address::pci).collect();
    let environment = Environment::start(&EnvironmentOptions { pci }).unwrap();
    let namespace = taken.open_part();
    let mut bench = Bench::new(&namespace);
    bench.write(0, 7, MIB as usize).unwrap();
    let mut line = File::options().write(true).open(monitor).unwrap();
    line.write_all(b"\ndevice_del nvme1\n").unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut reads = 0_u64;
    loop {
        assert!(Instant::now() < deadline, "reads go on after {reads}");
        for n in 0..8 {
            bench.begin_read(n * MIB / 2, 64 << 10);
        }
        let ends: Vec<_> = (0..8).map(|_| bench.wait()).collect();
        reads += 8;
        if ends.contains(&Err(DeviceError::Gone)) {
            break;
        }
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    }
    assert_eq!(namespace.loss(), Some(Loss::Removed));
    assert_eq!(bench.write(0, 1, 4096), Err(DeviceError::Gone));
    // Reads that are under way would end by SPDK's word for it.
    let refused = Namespace::open(&environment, &both[1], &OpenOptions::default());
    let error = refused.unwrap_err();
    let said = error.to_string();
    assert!(
        matches!(error, OpenError::Unplugged { .. }) && said.contains(&taken.address),
        "{said}"
    );
    bench.assert_nothing_lent();
    drop(bench);
    drop(namespace);
    // The kernel's own removal waits for the program to let go.
    let dir = Path::new("/sys/bus/pci/devices").join(&taken.address);
    while dir.exists() {
        assert!(Instant::now() < deadline, "it is not let go");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Then the other one is attached like any.
    drop(Namespace::open(&environment, &both[1], &OpenOptions::default()).unwrap());
    other.give_to("nvme");
}
