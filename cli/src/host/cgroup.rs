//! What control groups (version 1 and 2) leave this process of the machine.

use std::fs;
use std::path::{Path, PathBuf};

/// The tightest limits of the process's control groups and their ancestors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// CPU time per time, in thousandths of a CPU.
    pub cpu_millis: Option<u64>,
    /// Memory.
    pub memory_bytes: Option<u64>,
}

/// Values at and above this are version 1's way to say "no limit".
const MEMORY_UNLIMITED_BYTES: u64 = 1 << 62;

impl CgroupLimits {
    /// The limits of this process. What cannot be read counts as unlimited.
    pub fn read() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::read_below(&groups, Path::new("/sys/fs/cgroup"))
    }

    /// `groups` is the text of `/proc/self/cgroup`, `root` where control groups are mounted.
    fn read_below(groups: &str, root: &Path) -> Self {
        let mut limits = Self::default();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let has = |name| controllers.split(',').any(|controller| controller == name);
            if controllers.is_empty() {
                for dir in chain(root, path).chain(chain(&root.join("unified"), path)) {
                    limits.cap_cpu(cpu_millis_v2(&dir));
                    limits.cap_memory(number(&dir.join("memory.max")));
                }
            }
            if has("cpu") {
                for dir in
                    chain(&root.join(controllers), path).chain(chain(&root.join("cpu"), path))
                {
                    limits.cap_cpu(cpu_millis_v1(&dir));
                }
            }
            if has("memory") {
                for dir in chain(&root.join("memory"), path) {
                    limits.cap_memory(number(&dir.join("memory.limit_in_bytes")));
                }
            }
        }
        limits
    }

    fn cap_cpu(&mut self, millis: Option<u64>) {
        self.cpu_millis = [self.cpu_millis, millis].into_iter().flatten().min();
    }

    fn cap_memory(&mut self, bytes: Option<u64>) {
        let bytes = bytes.filter(|bytes| *bytes < MEMORY_UNLIMITED_BYTES);
        self.memory_bytes = [self.memory_bytes, bytes].into_iter().flatten().min();
    }
}

/// The group's directory and its ancestors up to the mount's root. In a container the path may
/// name a group of the host that is not visible; its visible ancestors still count.
fn chain(root: &Path, path: &str) -> impl Iterator<Item = PathBuf> {
    let root = root.to_path_buf();
    let depth = Path::new(path.trim_start_matches('/')).to_path_buf();
    let ancestors: Vec<PathBuf> = depth.ancestors().map(Path::to_path_buf).collect();
    ancestors
        .into_iter()
        .map(move |ancestor| root.join(ancestor))
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn cpu_millis_v2(dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    millis(quota.parse().ok()?, period.parse().ok()?)
}

fn cpu_millis_v1(dir: &Path) -> Option<u64> {
    millis(
        number(&dir.join("cpu.cfs_quota_us"))?,
        number(&dir.join("cpu.cfs_period_us"))?,
    )
}

fn millis(quota: u64, period: u64) -> Option<u64> {
    quota.checked_mul(1000)?.checked_div(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn version_2_takes_the_tightest_of_the_ancestors() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a/cpu.max", "150000 100000\n");
        write(root.path(), "a/b/cpu.max", "max 100000\n");
        write(root.path(), "a/memory.max", "max\n");
        write(root.path(), "a/b/memory.max", "1073741824\n");
        let limits = CgroupLimits::read_below("0::/a/b\n", root.path());
        assert_eq!(
            limits,
            CgroupLimits {
                cpu_millis: Some(1500),
                memory_bytes: Some(1 << 30)
            }
        );
    }

    #[test]
    fn version_1_and_its_ways_to_say_unlimited() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n");
        write(root.path(), "cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
        write(
            root.path(),
            "memory/x/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        let groups = "4:memory:/x\n1:cpu,cpuacct:/x\n0::/\n";
        assert_eq!(
            CgroupLimits::read_below(groups, root.path()),
            CgroupLimits::default()
        );
        write(root.path(), "cpu,cpuacct/x/cpu.cfs_quota_us", "50000\n");
        write(root.path(), "memory/memory.limit_in_bytes", "4096\n");
        let limits = CgroupLimits::read_below(groups, root.path());
        assert_eq!(
            limits,
            CgroupLimits {
                cpu_millis: Some(500),
                memory_bytes: Some(4096)
            }
        );
    }

    #[test]
    fn nonsense_is_no_limit() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "cpu.max", "many some\n");
        for groups in ["", "x", "0:", "0::/", "0::/../..", "::\n"] {
            assert_eq!(
                CgroupLimits::read_below(groups, root.path()),
                CgroupLimits::default()
            );
        }
    }
}
