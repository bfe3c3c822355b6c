//! `forebay device` on a real NVMe controller behind an IOMMU: `ci/softroce` runs this in its guest, which has one to spare.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// The serial number that `FOREBAY_SPARE_NVME` names: of a controller whose contents are lost.
fn serial() -> Option<String> {
    let serial = std::env::var("FOREBAY_SPARE_NVME").ok();
    if serial.is_none() {
        println!(
            "SKIPPED: FOREBAY_SPARE_NVME names no NVMe controller to take from the kernel: none was bound here (ci/softroce does, in a guest)"
        );
    }
    serial
}

fn forebay(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay-under-test"))
        .args(args)
        .output()
        .unwrap()
}

#[track_caller]
fn done(args: &[&str]) -> String {
    let output = forebay(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(args: &[&str], part: &str) {
    let output = forebay(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    assert!(said.contains(part), "{args:?}: no {part:?} in {said}");
}

fn tool(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().unwrap();
    assert!(status.success(), "{program} {args:?}: {status}");
}

/// Its row in what `forebay device list` says.
fn row(which: impl Fn(&Value) -> bool) -> Value {
    let all: Value = serde_json::from_str(&done(&["device", "list", "--json"])).unwrap();
    let row = all.as_array().unwrap().iter().find(|row| which(row));
    row.unwrap_or_else(|| panic!("not in {all}")).clone()
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let last = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < last, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Until the kernel lets go of a device, and shows its partitions.
fn settled(disk: &Path, partitions: bool) {
    let name = disk.file_name().unwrap().to_str().unwrap();
    let first = PathBuf::from(format!("/sys/class/block/{name}/{name}p1"));
    eventually("its partitions are as they should be", || {
        first.exists() == partitions
    });
}

#[test]
fn a_controller_goes_to_vfio_and_back_and_nothing_in_use_does() {
    let Some(serial) = serial() else { return };
    let own = |row: &Value| row["serial"] == serial.as_str();
    let before = row(own);
    let address = before["address"].as_str().unwrap();
    assert_eq!(
        (&before["driver"], &before["uses"]),
        (&"nvme".into(), &Value::Array(vec![]))
    );
    assert!(before["iommu_group"].is_string(), "{before}");
    let name = before["namespaces"][0]["name"].as_str().unwrap();
    let disk = Path::new("/dev").join(name);
    let bind = ["device", "bind", address];
    let unbind = ["device", "unbind", address];

    // Mounted.
    let point = tempfile::tempdir().unwrap();
    let (disk_name, at) = (disk.to_str().unwrap(), point.path().to_str().unwrap());
    tool("mkfs.ext2", &["-q", "-F", disk_name]);
    tool("mount", &[disk_name, at]);
    refused(&bind, &format!("is mounted at {at}"));
    assert!(row(own)["uses"][0].as_str().unwrap().contains("mounted"));
    tool("umount", &[at]);
    // What could be mounted again.
    refused(&bind, "holds an ext2, ext3 or ext4 file system");
    assert_eq!(
        row(own)["uses"],
        Value::Array(vec![]),
        "a list reads nothing"
    );
    // Swap.
    tool("mkswap", &[disk_name]);
    tool("swapon", &[disk_name]);
    refused(&bind, "is swap");
    tool("swapoff", &[disk_name]);
    refused(&bind, "holds a swap area");
    // Members of a RAID that is not active, and of a volume group.
    let write = |bytes: &[u8], offset: u64| {
        let file = File::options().write(true).open(&disk).unwrap();
        file.write_all_at(bytes, offset).unwrap();
        file.sync_all().unwrap();
    };
    let end = File::open(&disk).unwrap().seek(SeekFrom::End(0)).unwrap();
    write(&[0; 4096], 0);
    for (offset, magic, what) in [
        (end - 8192, b"\xfc\x4e\x2b\xa9".as_slice(), "MD RAID"),
        (4096, b"\xfc\x4e\x2b\xa9", "MD RAID"),
        (512, b"LABELONE", "an LVM physical volume"),
        (0, b"LUKS\xba\xbe", "a LUKS volume"),
    ] {
        write(magic, offset);
        refused(&bind, what);
        write(&[0; 8][..magic.len()], offset);
    }
    // Partitioned: one entry of a master boot record.
    let file = File::options().read(true).write(true).open(&disk).unwrap();
    let mut record = [0; 512];
    file.read_exact_at(&mut record, 0).unwrap();
    let mut partitioned = [0u8; 512];
    (partitioned[450], partitioned[455], partitioned[459]) = (0x83, 8, 8);
    (partitioned[510], partitioned[511]) = (0x55, 0xaa);
    file.write_all_at(&partitioned, 0).unwrap();
    file.sync_all().unwrap();
    tool("blockdev", &["--rereadpt", disk_name]);
    settled(&disk, true);
    refused(&bind, "has partitions");
    file.write_all_at(&[7; 512], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    tool("blockdev", &["--rereadpt", disk_name]);
    settled(&disk, false);
    // Had by somebody alone, as a member has it.
    let mut alone = fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        alone.read(true),
        rustix::fs::OFlags::EXCL.bits() as i32,
    );
    let had = alone.open(&disk).unwrap();
    refused(&bind, "is in use by");
    drop(had);
    // Open without that, as a virtual machine has it.
    let mut other = Command::new("sleep")
        .arg("600")
        .stdin(File::open(&disk).unwrap())
        .spawn()
        .unwrap();
    refused(&bind, &format!("is open in process {}", other.id()));
    other.kill().unwrap();
    other.wait().unwrap();

    // To programs, and back.
    let text = done(&bind);
    assert!(
        text.contains(&format!("--cache-dir pci:{address}")),
        "{text}"
    );
    let at_address = |row: &Value| row["address"] == address;
    let bound = row(at_address);
    assert_eq!(bound["driver"], "vfio-pci");
    assert_eq!(bound["namespaces"], Value::Array(vec![]));
    assert!(
        !disk.exists() || File::open(&disk).is_err(),
        "the kernel has it still"
    );
    assert!(done(&bind).contains("already"));
    let group = format!("/dev/vfio/{}", bound["iommu_group"].as_str().unwrap());
    let driven = File::options().read(true).write(true).open(&group).unwrap();
    refused(&unbind, "is driven by process");
    assert!(
        row(at_address)["uses"][0]
            .as_str()
            .unwrap()
            .contains("driven by")
    );
    drop(driven);
    assert!(done(&["device", "list"]).contains("vfio-pci"));
    done(&unbind);
    eventually("the kernel has it again", || {
        let now = row(at_address);
        now["driver"] == "nvme" && now["namespaces"][0]["name"].is_string()
    });
    assert!(done(&unbind).contains("already"));
    let name = row(own)["namespaces"][0]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut kept = [0; 512];
    eventually("its device is there", || {
        let disk = File::open(Path::new("/dev").join(&name));
        disk.is_ok_and(|disk| disk.read_exact_at(&mut kept, 0).is_ok())
    });
    assert_eq!(kept, [7; 512], "what was on it stayed on it");
}

#[test]
fn none_is_moved_when_one_of_them_is_in_use() {
    let Some(serial) = serial() else { return };
    let Ok(node) = std::env::var("FOREBAY_NVME_DEVICE") else {
        println!("SKIPPED: FOREBAY_NVME_DEVICE names no second NVMe device: two were not bound");
        return;
    };
    let name = node.replace("/dev/ng", "nvme");
    let own = |row: &Value| row["serial"] == serial.as_str();
    let used = row(|row| row["namespaces"][0]["name"] == name.as_str());
    let free = row(own);
    let address = |row: &Value| row["address"].as_str().unwrap().to_owned();
    let (free, used) = (address(&free), address(&used));
    // By a name of its own, as containers make them.
    let block = std::fs::metadata(Path::new("/dev").join(&name)).unwrap();
    let number = std::os::unix::fs::MetadataExt::rdev(&block);
    let dir = tempfile::tempdir_in("/dev").unwrap();
    let elsewhere = dir.path().join("disk");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::BlockDevice;
    rustix::fs::mknodat(rustix::fs::CWD, &elsewhere, kind, mode, number).unwrap();
    let mut other = Command::new("sleep")
        .arg("600")
        .stdin(File::open(&elsewhere).unwrap())
        .spawn()
        .unwrap();
    let why = format!("is open in process {}", other.id());
    refused(&["device", "bind", &free, &used], &why);
    other.kill().unwrap();
    other.wait().unwrap();
    for one in [&free, &used] {
        let now = row(|row| row["address"] == one.as_str());
        assert_eq!(now["driver"], "nvme", "{now}");
    }
    assert!(row(own)["namespaces"][0]["name"].is_string());
}
