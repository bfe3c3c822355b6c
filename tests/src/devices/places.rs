//! Where a test's disk can lie: loop devices and small file systems of its own. Only root can make them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Why none of these can be made here; nothing when they can.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("loop devices and mounts need root");
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("no loop devices here");
    }
    None
}

fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no UTF-8")
}

/// A loop device over a sparse file. Detached when dropped.
#[derive(Debug)]
pub struct LoopDevice {
    device: PathBuf,
    backing: PathBuf,
}

impl LoopDevice {
    /// With sectors of `sector_bytes`, over the new file `backing`.
    ///
    /// # Errors
    /// When `losetup` fails.
    pub fn new(backing: &Path, len_bytes: u64, sector_bytes: u32) -> Result<Self> {
        std::fs::File::create(backing)?.set_len(len_bytes)?;
        let sector = format!("--sector-size={sector_bytes}");
        let device = run("losetup", &["--find", "--show", &sector, text(backing)?])?;
        Ok(Self {
            device: device.into(),
            backing: backing.to_owned(),
        })
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.device
    }

    /// The file that it keeps its bytes in.
    pub fn backing(&self) -> &Path {
        &self.backing
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = text(&self.device).and_then(|path| run("losetup", &["--detach", path]))
        {
            eprintln!("{error:#}");
        }
    }
}

/// A file system of its own. Unmounted when dropped.
#[derive(Debug)]
pub struct Mounted {
    dir: PathBuf,
}

impl Mounted {
    /// Memory that holds at most `len_bytes`.
    ///
    /// # Errors
    /// When `mount` fails.
    pub fn tmpfs(dir: &Path, len_bytes: u64) -> Result<Self> {
        let size = format!("size={len_bytes}");
        Self::mount(dir, &["-t", "tmpfs", "-o", &size, "tmpfs"])
    }

    /// Memory without `O_DIRECT` and without holes.
    ///
    /// # Errors
    /// When `mount` fails.
    pub fn ramfs(dir: &Path) -> Result<Self> {
        Self::mount(dir, &["-t", "ramfs", "ramfs"])
    }

    /// An ext4 of its own in the new file `backing`; it turns read-only on the first error.
    ///
    /// # Errors
    /// When `mkfs.ext4` or `mount` fails.
    pub fn ext4(dir: &Path, backing: &Path, len_bytes: u64) -> Result<Self> {
        std::fs::File::create(backing)?.set_len(len_bytes)?;
        run("mkfs.ext4", &["-q", text(backing)?])?;
        Self::mount(dir, &["-o", "loop,errors=remount-ro", text(backing)?])
    }

    /// Stops all writes to the file system until [`Mounted::thaw`]: who writes hangs.
    ///
    /// # Errors
    /// When `fsfreeze` fails.
    pub fn freeze(&self) -> Result<()> {
        run("fsfreeze", &["--freeze", text(&self.dir)?]).map(drop)
    }

    /// Ends [`Mounted::freeze`].
    ///
    /// # Errors
    /// When `fsfreeze` fails.
    pub fn thaw(&self) -> Result<()> {
        run("fsfreeze", &["--unfreeze", text(&self.dir)?]).map(drop)
    }

    /// Makes an ext4 find an error, as after a fault of its disk.
    ///
    /// # Errors
    /// When the kernel has no such switch.
    pub fn break_ext4(&self) -> Result<()> {
        let source = run("findmnt", &["-no", "SOURCE", text(&self.dir)?])?;
        let device = Path::new(&source).file_name().context("no device")?;
        let switch = Path::new("/sys/fs/ext4")
            .join(device)
            .join("trigger_fs_error");
        std::fs::write(&switch, "test").with_context(|| format!("{}", switch.display()))
    }

    fn mount(dir: &Path, arguments: &[&str]) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        run("mount", &[arguments, &[text(dir)?]].concat())?;
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = text(&self.dir).and_then(|path| run("umount", &["--lazy", path])) {
            eprintln!("{error:#}");
        }
    }
}
