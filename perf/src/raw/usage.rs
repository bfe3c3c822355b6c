//! What the kernel counted for this process, threads that have ended included.

use std::mem::MaybeUninit;
use std::time::Duration;

/// See getrusage(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time, user and system.
    pub cpu: Duration,
    /// Times that a thread gave up its processor to wait.
    pub voluntary_switches: u64,
    /// Times that it was taken away.
    pub involuntary_switches: u64,
}

/// Of this process.
pub fn own_usage() -> Usage {
    let mut told = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: RUSAGE_SELF is a valid subject, and the pointer is to a whole rusage that the kernel may fill.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, told.as_mut_ptr()) };
    // SAFETY: all bytes were zeroed before, and zeros are a valid rusage: numbers only.
    let told = unsafe { told.assume_init() };
    debug_assert_eq!(result, 0, "fails only for wrong arguments");
    let time = |part: libc::timeval| {
        Duration::from_secs(part.tv_sec.max(0) as u64)
            + Duration::from_micros(part.tv_usec.max(0) as u64)
    };
    Usage {
        cpu: time(told.ru_utime) + time(told.ru_stime),
        voluntary_switches: told.ru_nvcsw.max(0) as u64,
        involuntary_switches: told.ru_nivcsw.max(0) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_a_thread_that_has_ended_counts() {
        let before = own_usage();
        let worker = std::thread::spawn(|| {
            let (start, mut x) = (std::time::Instant::now(), 0u64);
            while start.elapsed() < Duration::from_millis(100) {
                x = std::hint::black_box(x + 1);
            }
            std::thread::sleep(Duration::from_millis(5));
        });
        worker.join().expect("it does not panic");
        let after = own_usage();
        assert!(after.cpu - before.cpu > Duration::from_millis(15));
        assert!(after.voluntary_switches > before.voluntary_switches);
    }
}
