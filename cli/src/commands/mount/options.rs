//! `-o` options, and what the file system is told.

use anyhow::{Result, bail};
use forebay_fuse::MountOptions;

use crate::args::MountArgs;
use crate::host::EngineConfig;

/// Read-ahead may have announced one part in this many of the engine's buffers.
const READ_AHEAD_SHARE: u64 = 4;

/// Options of mount(8) that mean nothing to a FUSE mount, or what it does anyway.
const IGNORED: [&str; 18] = [
    "",
    "ro",
    "rw",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nofail",
    "_netdev",
    "nosuid",
    "nodev",
    "noexec",
    "exec",
    "noatime",
    "relatime",
    "nodiratime",
];

/// Carries `-o` over to the flags of the same meaning.
///
/// # Errors
/// When an option is not known.
pub fn apply(args: &mut MountArgs) -> Result<()> {
    for option in std::mem::take(&mut args.options) {
        let (name, value) = option.split_once('=').unwrap_or((&option, ""));
        let number = || value.parse::<u32>();
        match (name, number()) {
            ("allow_other", _) if value.is_empty() => args.files.allow_other = true,
            ("uid", Ok(uid)) => args.files.uid = Some(uid),
            ("gid", Ok(gid)) => args.files.gid = Some(gid),
            _ if IGNORED.contains(&option.as_str()) || name.starts_with("x-") => {}
            _ => bail!(
                "-o {option} is not known: use allow_other, uid=N, gid=N, or the long flags (`forebay mount --help`)"
            ),
        }
    }
    Ok(())
}

/// The file system's options from the flags.
pub fn fuse_options(args: &MountArgs, engine: &EngineConfig) -> MountOptions {
    let files = &args.files;
    let default = MountOptions::default();
    let arena_bytes = (engine.memory.arena_bytes_per_core * engine.cores.cores()) as u64;
    MountOptions {
        allow_other: files.allow_other,
        uid: files.uid.unwrap_or(default.uid),
        gid: files.gid.unwrap_or(default.gid),
        file_mode: files.file_mode,
        dir_mode: files.dir_mode,
        attr_ttl: args.serving.names.attr_ttl,
        stale_max: args.serving.names.stale_span(),
        entry_ttl: files.entry_ttl,
        negative_ttl: args.serving.names.negative_ttl,
        threads: files.fuse_threads.map_or(default.threads, usize::from),
        read_ahead_budget_bytes: arena_bytes / READ_AHEAD_SHARE,
        ..default
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn applied(options: &str) -> Result<MountArgs> {
        let cli = Cli::try_parse_from(["forebay", "mount", "s3://b", "/mnt", "-o", options])?;
        let Command::Mount(mut args) = cli.command else {
            bail!("another command")
        };
        apply(&mut args)?;
        Ok(*args)
    }

    #[test]
    fn options_of_mount_8() {
        let args = applied("rw,_netdev,allow_other,uid=7,gid=8,x-systemd.automount").unwrap();
        assert_eq!(
            (args.files.allow_other, args.files.uid, args.files.gid),
            (true, Some(7), Some(8))
        );
        for options in ["uid=x", "memory=1", "allow_root", "ro=1"] {
            let error = applied(options).unwrap_err().to_string();
            assert!(error.contains(options), "{error}");
        }
    }
}
