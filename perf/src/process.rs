//! What /proc says of a process.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use std::{path::PathBuf, thread};

use anyhow::{Context, Result};

/// Processor time that all threads of `pid` have used, user and system.
///
/// # Errors
/// When the process is gone.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("{path}: the daemon is gone"))?;
    // The name in parentheses may hold anything; fields are counted behind it.
    let fields = text
        .rsplit_once(')')
        .map(|(_, rest)| rest)
        .unwrap_or_default();
    let field = |n: usize| {
        fields
            .split_whitespace()
            .nth(n)
            .and_then(|word| word.parse().ok())
    };
    let ticks: u64 = field(11)
        .zip(field(12))
        .map(|(user, system): (u64, u64)| user + system)
        .with_context(|| format!("{path}: not as expected: {text}"))?;
    Ok(of_ticks(ticks))
}

/// Processor time that this process's threads have used, user and system. Finer than
/// [`processor_time`]; threads that have ended are left out.
///
/// # Errors
/// When the kernel does not tell.
pub fn own_time() -> Result<Duration> {
    let mut sum_ns = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let path = task?.path().join("schedstat");
        // A thread may end while the others are asked.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let first = text.split_whitespace().next();
        sum_ns += first
            .and_then(|word| word.parse::<u64>().ok())
            .with_context(|| format!("{}: not as expected: {text}", path.display()))?;
    }
    Ok(Duration::from_nanos(sum_ns))
}

/// Processor time of `pid` as exactly as the kernel tells: to the nanosecond for threads that live, to a tick with those
/// that have ended.
///
/// # Errors
/// When the process is gone.
pub fn processor_time_exact(pid: u32) -> Result<Duration> {
    let ticks = processor_time(pid)?;
    let mut sum_ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while the others are asked.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        let first = text.split_whitespace().next();
        sum_ns += first.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(ticks.max(Duration::from_nanos(sum_ns)))
}

/// Processor time of this process's children that have ended and were waited for, user and system.
///
/// # Errors
/// When the kernel does not tell.
pub fn children_time() -> Result<Duration> {
    let text = fs::read_to_string("/proc/self/stat")?;
    let fields = text.rsplit_once(')').map(|(_, rest)| rest);
    let mut fields = fields.unwrap_or_default().split_whitespace().skip(13);
    let mut field = || fields.next().and_then(|word| word.parse::<u64>().ok());
    let ticks = field().zip(field()).map(|(user, system)| user + system);
    Ok(of_ticks(ticks.with_context(|| {
        format!("/proc/self/stat: not as expected: {text}")
    })?))
}

/// Time that all processors together were not idle since the machine was started: also what is no process's, such as the
/// kernel's work for devices.
///
/// # Errors
/// When the kernel does not tell.
pub fn machine_busy() -> Result<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    let busy = busy_ticks(&text);
    Ok(of_ticks(busy.context("/proc/stat: not as expected")?))
}

/// User, nice, system, then idle and waiting for input, which do not count, then interrupts, their deferred work, stolen.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Option<Vec<u64>> = line
        .split_whitespace()
        .take(8)
        .map(|word| word.parse().ok())
        .collect();
    match fields?[..] {
        [user, nice, system, _, _, hard, soft, stolen] => {
            Some(user + nice + system + hard + soft + stolen)
        }
        _ => None,
    }
}

fn of_ticks(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Bytes that this process had read from storage, as the kernel counts.
///
/// # Errors
/// When the kernel does not tell.
pub fn read_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io")?;
    text.lines()
        .find_map(|line| line.strip_prefix("read_bytes: "))
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("/proc/self/io: not as expected: {text}"))
}

/// Resident memory of `pid` with its hugepages, in bytes.
///
/// # Errors
/// When the process is gone.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{}: the daemon is gone", path.display()))?;
    let kib = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|word| word.parse::<u64>().ok())
    };
    let resident = kib("VmRSS:").with_context(|| format!("{}: no VmRSS", path.display()))?;
    Ok((resident + kib("HugetlbPages:").unwrap_or(0)) * 1024)
}

/// The largest [`resident_bytes`] seen while `work` runs, sampled every 50 ms.
///
/// # Errors
/// What `work` says, or that the process ended.
pub fn resident_bytes_max(pid: u32, work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = scope.spawn(|| -> Result<u64> {
            let mut most = resident_bytes(pid)?;
            while !over.load(Relaxed) {
                thread::sleep(Duration::from_millis(50));
                most = most.max(resident_bytes(pid)?);
            }
            Ok(most)
        });
        let worked = work();
        over.store(true, Relaxed);
        let most = sampler
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the sampler panicked")));
        worked?;
        most
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_processors_are_not_busy() -> Result<()> {
        let stat = "cpu  10 1 5 1000 500 2 3 4 90 0\ncpu0 10 1 5 1000 500 2 3 4 90 0\n";
        assert_eq!(busy_ticks(stat), Some(25));
        assert_eq!(busy_ticks("cpu 1 2\n"), None);
        let before = machine_busy()?;
        let (start, mut x) = (own_time()?, 0u64);
        while own_time()? < start + Duration::from_millis(100) {
            x = std::hint::black_box(x + 1);
        }
        assert!(machine_busy()? >= before + Duration::from_millis(50));
        Ok(())
    }

    #[test]
    fn reads_its_own_process() -> Result<()> {
        let pid = std::process::id();
        let before = resident_bytes(pid)?;
        let most = resident_bytes_max(pid, || {
            let bytes = std::hint::black_box(vec![1u8; 64 << 20]);
            thread::sleep(Duration::from_millis(200));
            assert_eq!(bytes[bytes.len() - 1], 1);
            Ok(())
        })?;
        assert!(
            most >= before.min(32 << 20) + (60 << 20),
            "{before} then at most {most}"
        );
        let (start, own) = (processor_time(pid)?, own_time()?);
        let mut x = 0u64;
        // `own_time` forgets threads that end, as other tests' do meanwhile: it may fall before it has grown that much.
        let mut spent = Duration::ZERO;
        while processor_time(pid)? < start + Duration::from_millis(50)
            || spent < Duration::from_millis(20)
        {
            x = std::hint::black_box(x + 1);
            spent = own_time()?.saturating_sub(own);
        }
        Ok(())
    }
}
