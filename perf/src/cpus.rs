//! Which processors two sides run on.

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Two processors that this process may use: the last ones, as production's cores take. Without a place of its own each, the
/// kernel may let two threads that poll share one processor, and then it is its time slices that are measured.
///
/// # Errors
/// When there is only one.
pub fn two() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(None).context("the kernel does not tell of processors")?;
    let mut last = (0..CpuSet::MAX_CPU)
        .rev()
        .filter(|cpu| allowed.is_set(*cpu));
    let two = last.next().zip(last.next());
    let (last, other) = two.context("this figure needs two processors")?;
    Ok([other, last])
}

/// Keeps the calling thread on one processor.
///
/// # Errors
/// When the kernel does not let it.
pub fn pin(cpu: usize) -> Result<()> {
    ensure!(cpu < CpuSet::MAX_CPU, "there is no processor {cpu}");
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on processor {cpu}"))
}

/// Runs `work` on one processor; afterwards the calling thread may be where it was allowed before.
///
/// # Errors
/// When the kernel does not let it, and those of `work`.
pub fn pinned<T>(cpu: Option<usize>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(cpu) = cpu else {
        return work();
    };
    let before = sched_getaffinity(None).context("the kernel does not tell of processors")?;
    pin(cpu)?;
    let done = work();
    sched_setaffinity(None, &before).context("cannot leave a processor")?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_is_put_and_may_leave_again() -> Result<()> {
        let before = sched_getaffinity(None)?;
        let Ok([one, other]) = two() else {
            println!("SKIPPED: there is one processor only");
            return Ok(());
        };
        assert!(one != other && before.is_set(one) && before.is_set(other));
        for cpu in [one, other] {
            let inside = pinned(Some(cpu), || Ok(sched_getaffinity(None)?))?;
            assert!(inside.is_set(cpu) && inside.count() == 1);
            assert_eq!(sched_getaffinity(None)?, before);
        }
        Ok(())
    }
}
