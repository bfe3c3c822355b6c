//! A daemon's process: whether it lives, whatever its socket says.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process, also when its number belongs to another one by now.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// The process of that number; none when there is none, or it runs where its number means nothing here.
    pub fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    /// Waits for its end, for so long at most. Whether it has ended.
    pub fn has_ended(&self, timeout: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // Its descriptor is readable once the process has ended.
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_has_ended() {
        assert!(Process::of(0).is_none());
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(!process.has_ended(Duration::ZERO));
        child.kill().unwrap();
        assert!(process.has_ended(Duration::from_secs(600)));
        child.wait().unwrap();
        assert!(process.has_ended(Duration::ZERO));
    }
}
