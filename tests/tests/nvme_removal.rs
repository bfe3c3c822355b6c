//! An NVMe device that is pulled out while the kernel drives it and Forebay's commands are under way: `ci/softroce` runs this in
//! its guest, which has one for it.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_cli::cache::blocking::Blocking;
use forebay_engine::ports::DeviceError;
use forebay_nvme_uring::{OpenOptions, UringFile};

const CAPACITY_BYTES: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(100);

/// The character device of the namespace of the controller with this serial number.
fn namespace_of(serial: &str) -> Option<PathBuf> {
    let controllers = fs::read_dir("/sys/class/nvme").ok()?.flatten();
    let mut found = controllers.filter(|controller| {
        fs::read_to_string(controller.path().join("serial")).is_ok_and(|text| text.trim() == serial)
    });
    let name = found.next()?.file_name().into_string().ok()?;
    Some(PathBuf::from(format!(
        "/dev/ng{}n1",
        name.strip_prefix("nvme")?
    )))
}

#[test]
fn a_namespace_pulled_under_load_is_gone_by_passthrough() {
    let variable = |name: &str| std::env::var(name).ok();
    let (Some(serial), Some(monitor)) = (
        variable("FOREBAY_PULLED_NVME"),
        variable("FOREBAY_GUEST_MONITOR"),
    ) else {
        println!(
            "SKIPPED: FOREBAY_PULLED_NVME and FOREBAY_GUEST_MONITOR name no device that may be pulled out (ci/softroce does, in a guest)"
        );
        return;
    };
    let path = namespace_of(&serial).expect("the device");
    let options = OpenOptions {
        capacity_bytes: Some(CAPACITY_BYTES as u64),
        ..OpenOptions::default()
    };
    let file = UringFile::open(&path, &options).unwrap();
    assert!(file.is_passthrough());
    let mut device = Blocking::new(|arena| Ok(file.queue_pair(arena.addresses(), 8)?)).unwrap();
    device.write(0, &vec![7; CAPACITY_BYTES]).unwrap();
    let mut bytes = vec![0; CAPACITY_BYTES];
    device.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    let mut line = File::options().write(true).open(monitor).unwrap();
    line.write_all(b"\ndevice_del nvme2\n").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while device.read(0, &mut bytes) != Err(DeviceError::Gone) {
        assert!(Instant::now() < deadline, "reads go on");
    }
    assert_eq!(device.write(0, &bytes[..4096]), Err(DeviceError::Gone));
}
