//! What the kernel must let us do: mounts by FUSE, disks by io_uring.

use std::fs::File;
use std::io;

use super::finding::Finding;
use super::machine::Files;

/// The Linux that has all of io_uring that disks use.
const NEWEST: &str = "6.1";

/// FUSE and io_uring.
pub fn look(files: &Files) -> Vec<Finding> {
    vec![fuse(files), io_uring(forebay_nvme_uring::try_ring())]
}

fn fuse(files: &Files) -> Finding {
    let device = files.path("/dev/fuse");
    let opened = File::options().read(true).write(true).open(&device);
    let advice = match &opened {
        Ok(_) => return Finding::ok("fuse", "/dev/fuse", "can be opened"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            "`modprobe fuse`; in a container give it the device /dev/fuse"
        }
        Err(_) => {
            "give this user the right to open it (chmod 666 /dev/fuse, or the container's device rules)"
        }
    };
    let found = opened
        .err()
        .map_or_else(String::new, |error| error.to_string());
    Finding::problem(
        "fuse",
        "/dev/fuse",
        format!("{found}: no mounts here; `forebay serve` and `forebay cat` need none"),
        advice,
    )
}

fn io_uring(ring: io::Result<&str>) -> Finding {
    match ring {
        Ok(NEWEST) => Finding::ok("io_uring", "rings", "can be made"),
        Ok(kernel) => Finding::warning(
            "io_uring",
            "rings",
            format!("as of Linux {kernel}: each read of a disk costs more"),
            format!("run Linux {NEWEST} or later"),
        ),
        Err(error) => Finding::warning(
            "io_uring",
            "rings",
            format!("{error}: --cache-dir cannot be used here"),
            "set kernel.io_uring_disabled=0 (sysctl), and let the container's seccomp profile pass io_uring_setup, \
             io_uring_enter and io_uring_register",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn what_is_refused_is_told_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::below(dir.path());
        let missing = fuse(&files);
        assert_eq!(missing.verdict, Verdict::Problem);
        assert!(missing.advice.unwrap().contains("modprobe fuse"));
        std::fs::create_dir(files.path("/dev")).unwrap();
        std::fs::write(files.path("/dev/fuse"), "").unwrap();
        assert_eq!(fuse(&files).verdict, Verdict::Ok);
        let refused = io_uring(Err(io::Error::from_raw_os_error(1)));
        assert!(refused.advice.unwrap().contains("io_uring_disabled=0"));
        assert_eq!(io_uring(Ok("5.19")).verdict, Verdict::Warning);
        assert_eq!(io_uring(Ok("6.1")).verdict, Verdict::Ok);
    }
}
