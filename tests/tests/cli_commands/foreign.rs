//! Devices that hold something of others where a beginning alone does not show it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use forebay_tests::devices::places::{LoopDevice, obstacle};

use super::support::Place;

const MIB: u64 = 1 << 20;

#[test]
fn what_lies_at_a_devices_end_is_never_overwritten_unasked() {
    if let Some(why) = obstacle() {
        println!("SKIPPED: {why}: what lies at a device's end was not tried");
        return;
    }
    let place = Place::new();
    for sector_bytes in [512, 4096] {
        let image = place.dir("images").join(sector_bytes.to_string());
        let device = LoopDevice::new(&image, 300 * MIB, sector_bytes).unwrap();
        let name = device.path().to_str().unwrap();
        let file = File::options().read(true).write(true).open(&image).unwrap();
        // A RAID of version 1.0 has nothing but this.
        let at = 300 * MIB - 8192;
        file.write_all_at(b"\xfc\x4e\x2b\xa9", at).unwrap();
        file.sync_all().unwrap();
        let format = |more: &[&str]| {
            let args = [&["cache", "format", name, "--node-id", "n"], more].concat();
            place.run(&args)
        };
        format(&[]).failed(&["MD RAID", "left as it is", name]);
        format(&["--force"]).ok();
        let mut magic = [0; 4];
        file.read_exact_at(&mut magic, at).unwrap();
        assert_eq!(magic, [0; 4], "it would be found again");
        place.run(&["cache", "inspect", name]).ok();
        format(&[]).ok();
    }
}
