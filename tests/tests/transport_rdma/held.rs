//! What a process and its device hold, and a device that cannot be reached.

use std::fs;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::process::Command;

use rustix::fs::{Mode, OFlags};

/// What is in use.
#[derive(Debug)]
pub struct Holds {
    pub descriptors: usize,
    /// Memory of this process.
    pub resident_bytes: usize,
    /// Queue pairs, completion queues, regions and so on of the device, as its driver counts them.
    pub of_device: String,
}

impl Holds {
    pub fn now(device: &str) -> Holds {
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        Holds {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            resident_bytes: pages * 4_096,
            of_device: resources(device),
        }
    }
}

impl Holds {
    /// Counts of what lets a peer in.
    pub fn queue_pairs_and_regions(&self) -> Vec<&str> {
        let words: Vec<_> = self.of_device.split_whitespace().collect();
        let pairs = words.windows(2);
        let counts = pairs.filter(|pair| ["qp", "mr", "pd", "cq"].contains(&pair[0]));
        counts.map(|pair| pair[1]).collect()
    }
}

fn resources(device: &str) -> String {
    let told = Command::new("rdma").args(["resource", "show"]).output();
    let told = told.expect("rdma, of iproute2");
    let told = String::from_utf8(told.stdout).unwrap();
    let mark = format!(" {device}: ");
    let of_device = told.lines().find(|line| line.contains(&mark));
    let of_device = of_device.unwrap_or_else(|| panic!("no {device} in {told}"));
    assert!(of_device.contains(" qp ") && of_device.contains(" mr "));
    of_device.to_owned()
}

/// The descriptors by which this process reaches RDMA devices.
pub fn uverbs_descriptors() -> Vec<RawFd> {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let ours = all.filter_map(|entry| {
        let path = entry.unwrap().path();
        let to = fs::read_link(&path).ok()?;
        let is_uverbs =
            to.starts_with("/dev/infiniband") && to.to_string_lossy().contains("uverbs");
        let name = path.file_name()?.to_str()?;
        is_uverbs.then(|| name.parse().unwrap())
    });
    ours.collect()
}

/// A descriptor of the library's, by which no call reaches the kernel until it is mended.
pub struct Severed {
    descriptor: ManuallyDrop<OwnedFd>,
    device: OwnedFd,
}

impl Severed {
    #[allow(unsafe_code)]
    pub fn new(descriptor: RawFd) -> Severed {
        // SAFETY: it is open, and stays the library's: it is never closed here, only made to stand for another file
        // and back.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let mut descriptor = ManuallyDrop::new(descriptor);
        let device = rustix::io::dup(&*descriptor).unwrap();
        // Neither ioctl nor write works on one that only stands for a path.
        let nothing = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap();
        rustix::io::dup2(&nothing, &mut descriptor).unwrap();
        Severed { descriptor, device }
    }

    pub fn mend(mut self) {
        rustix::io::dup2(&self.device, &mut self.descriptor).unwrap();
    }
}
