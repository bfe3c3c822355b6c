//! The command line. Every flag may also be given as `FOREBAY_` and its name in capitals.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, Resettable};
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use forebay_engine::limits::IO_TIMEOUT_DEFAULT_MS;

use crate::cache::{CacheDir, CacheDirs, Name};
use crate::host::{CoresArg, Poll};
use crate::source::{ObjectUrl, Source};
use crate::units::{
    Bytes, Share, parse_duration, parse_mode, parse_rate, parse_span, whole, yes_or_no,
};
use crate::warm::report::{PARALLEL_DEFAULT, PARALLEL_MAX};

mod device;
mod group;
#[cfg(test)]
mod nonsense;
mod serving;

pub use device::{DeviceBindArgs, DeviceCommand, DeviceListArgs};
pub use group::{DoctorArgs, DrainArgs, GroupArgs, RdmaArgs, ServeArgs, StopArgs, WhichTransport};
pub use serving::{NameArgs, ServingArgs};

/// A read cache in front of S3.
///
/// Exit status: 0 when done, 1 when something failed (the message says what, on which object and
/// what to do next), 2 when the command line is wrong. Credentials come from the usual AWS chain
/// (AWS_ACCESS_KEY_ID, AWS_PROFILE, instance role ...). FOREBAY_LOG sets what is logged
/// (`info`, `debug`, `forebay_cli=trace`).
#[derive(Debug, Parser)]
#[command(name = "forebay", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// What a command line means.
    ///
    /// # Errors
    /// What is wrong with it, for people; or the help that was asked for.
    pub fn parsed<T: Into<OsString> + Clone>(
        line: impl IntoIterator<Item = T>,
    ) -> Result<Self, clap::Error> {
        Self::from_arg_matches(&Self::definition().try_get_matches_from(line)?)
    }

    /// The definition as it is used. Variables that are set to nothing count as unset, and what follows an option
    /// that is no free text is its value even if it begins with a dash: the error names the option then.
    pub fn definition() -> clap::Command {
        settled(Self::command())
    }
}

fn settled(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    let is_checked = |arg: &Arg| {
        let kind = arg.get_value_parser().type_id();
        let is_text = kind == TypeId::of::<String>() || kind == TypeId::of::<PathBuf>();
        arg.get_action().takes_values() && !arg.is_positional() && !is_text
    };
    let command = command.mut_args(|arg| {
        let arg = match is_empty(&arg) {
            true => arg.env(Resettable::Reset),
            false => arg,
        };
        let checked = is_checked(&arg) && !arg.is_require_equals_set();
        arg.allow_hyphen_values(checked)
    });
    command.mut_subcommands(settled)
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows a bucket, or a part of it, as a read-only directory.
    Mount(Box<MountArgs>),
    /// Makes this node a member of a cache group, without a mount.
    Serve(Box<ServeArgs>),
    /// Ends a member that `serve` runs: it says farewell, and ends.
    Stop(StopArgs),
    /// Hands over to other members what a member holds; one that `serve` runs leaves then, a mount goes on and only takes.
    /// No byte of it is read from S3 again.
    Drain(DrainArgs),
    /// Ends a mount and its daemon; cleans up after a daemon that was killed.
    #[command(visible_alias = "unmount")]
    Umount(UmountArgs),
    /// Shows the mounts and members of this machine, or more of one.
    Status(StatusArgs),
    /// Shows what a mount reads: hits and bytes per tier, origin bytes by reason, latencies.
    Stats(StatsArgs),
    /// Writes an object to standard output, through the engine but without a mount.
    Cat(Box<CatArgs>),
    /// Brings files of a mount into the cache; with a group, each part to the member that owns it.
    Warmup(WarmupArgs),
    /// Tells what of files is cached: a line each, `0 PATH` = full, `1` = partial, `2` = none. Fails unless all
    /// of it is.
    Check(PathArgs),
    /// Drops what is cached of files, on every member of the group. Never data.
    Evict(PathArgs),
    /// Looks at caches on disk, checks them, makes them.
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Shows the NVMe controllers of this machine, gives them to vfio-pci, and back to the kernel.
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Looks at this machine before a mount or member runs: limits, hugepages, FUSE, io_uring, RDMA. Says what to
    /// change, and fails when something will not work.
    Doctor(DoctorArgs),
}

/// Files of mounts.
#[derive(Clone, Debug, Args)]
pub struct PathArgs {
    /// Files and directories of mounts; of a directory all that is below it.
    #[arg(value_name = "PATH", required_unless_present = "listfile")]
    pub paths: Vec<PathBuf>,
    /// Paths from a file, one each line; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub listfile: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `forebay warmup`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("paths", |arg| arg.required_unless_present_any(["listfile", "status", "stop"])))]
pub struct WarmupArgs {
    /// What to warm.
    #[command(flatten)]
    pub paths: PathArgs,
    /// Parts of 16 MiB under way at once, 1 to 512; of smaller files as many as are as large together, at most 512.
    #[arg(short, long, env = "FOREBAY_PARALLEL", value_name = "N", default_value_t = PARALLEL_DEFAULT,
          value_parser = whole::<u32>(1..=PARALLEL_MAX as u64))]
    pub parallel: u32,
    /// Print the job's ID and return; the mount's daemon goes on.
    #[arg(long)]
    pub background: bool,
    /// Names and attributes only, no data.
    #[arg(long)]
    pub metadata_only: bool,
    /// Tell how far a job is, or list those there are.
    #[arg(long, value_name = "ID", num_args = 0..=1, value_parser = NonEmptyStringValueParser::new(), conflicts_with_all = ["paths", "listfile", "background"])]
    pub status: Option<Option<String>>,
    /// Stop a job; what is cached stays.
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new(),
          conflicts_with_all = ["paths", "listfile", "background", "status"])]
    pub stop: Option<String>,
}

/// Where the objects are.
#[derive(Clone, Debug, Args)]
pub struct OriginArgs {
    /// URL of the S3 service; without it AWS_ENDPOINT_URL, or AWS itself.
    #[arg(
        long,
        env = "FOREBAY_ENDPOINT",
        hide_env_values = true,
        value_name = "URL",
        value_parser = NonEmptyStringValueParser::new(),
        help_heading = "Origin"
    )]
    pub endpoint: Option<String>,
    /// Region that requests are signed for; without it the AWS chain's, or us-east-1.
    #[arg(long, env = "FOREBAY_REGION", value_parser = NonEmptyStringValueParser::new(), help_heading = "Origin")]
    pub region: Option<String>,
    /// Put the bucket in the path instead of the host name; on by itself when there is an endpoint.
    #[arg(long, env = "FOREBAY_PATH_STYLE", help_heading = "Origin", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = "true|false",
          value_parser = yes_or_no)]
    pub path_style: Option<bool>,
    /// Send unsigned requests: for public buckets.
    #[arg(long, env = "FOREBAY_NO_SIGN_REQUEST", help_heading = "Origin", value_parser = yes_or_no)]
    pub no_sign_request: bool,
}

/// How the engine runs.
#[derive(Clone, Debug, Args)]
pub struct EngineArgs {
    /// Ceiling over buffers, index, checksums and origin buffers together; a bare number is MiB.
    /// Without it: a tenth of the machine's (or control group's) memory, 256 MiB to 8 GiB.
    #[arg(
        long,
        env = "FOREBAY_MEMORY",
        value_name = "SIZE",
        help_heading = "Engine"
    )]
    pub memory: Option<Bytes>,
    /// Number of engine cores, or a list of CPUs for them such as 0,2-3. Without it: one for 8
    /// CPUs (fewer under a CPU quota), 1 to 4.
    #[arg(
        long,
        env = "FOREBAY_CORES",
        value_name = "N|LIST",
        help_heading = "Engine"
    )]
    pub cores: Option<CoresArg>,
    /// When an idle engine core may spin.
    #[arg(
        long,
        env = "FOREBAY_POLL",
        value_enum,
        default_value_t,
        help_heading = "Engine"
    )]
    pub poll: Poll,
    /// A read that is not answered within this ends with EIO; in a mapped file with SIGBUS.
    #[arg(long, env = "FOREBAY_IO_TIMEOUT", value_name = "DURATION", value_parser = parse_span,
          default_value = IO_TIMEOUT_DEFAULT, help_heading = "Engine")]
    pub io_timeout: Duration,
    /// This node reads no more than so many bytes per second from the origin, at least 64KiB; a bare number is MiB. Each
    /// engine core gets an equal part of it.
    #[arg(
        long,
        env = "FOREBAY_ORIGIN_LIMIT",
        value_name = "SIZE",
        value_parser = parse_rate,
        help_heading = "Engine"
    )]
    pub origin_limit: Option<Bytes>,
    /// This node asks other members for no more than so many bytes per second, at least 64KiB, and gives them no more; a
    /// bare number is MiB. Each engine core gets an equal part of it.
    #[arg(
        long,
        env = "FOREBAY_PEER_LIMIT",
        value_name = "SIZE",
        value_parser = parse_rate,
        help_heading = "Engine"
    )]
    pub peer_limit: Option<Bytes>,
}

/// The cache on disk: there is one when `--cache-dir` is given.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cache")]
pub struct CacheArgs {
    /// Directories (which must exist) or block devices that keep what was read, separated by `:` or
    /// `,`. Without it the cache is memory only. A directory may be shared by many nodes: each has its
    /// own part, DIR/GROUP/NODE.
    #[arg(long, env = "FOREBAY_CACHE_DIR", value_name = "DIR[:DIR...]")]
    pub cache_dir: Option<CacheDirs>,
    /// Size of the cache on disk, over all directories together, which take equal parts; a bare
    /// number is MiB. Without it: what each directory's file system has free beyond
    /// --free-space-ratio, at most 8 TiB each; block devices are used whole.
    #[arg(long, env = "FOREBAY_CACHE_SIZE", value_name = "SIZE", value_parser = parse_some_bytes,
          requires = "cache_dir")]
    pub cache_size: Option<Bytes>,
    /// Share of each directory's file system that is kept free, whoever fills it: when it falls
    /// short, the cache gives space back.
    #[arg(
        long,
        env = "FOREBAY_FREE_SPACE_RATIO",
        value_name = "RATIO",
        default_value = "0.1"
    )]
    pub free_space_ratio: Share,
    /// Make a new cache where there is something that is not a cache of this version and node,
    /// overwriting it. Caches of ours are kept.
    #[arg(long, env = "FOREBAY_FORMAT", value_parser = yes_or_no)]
    pub format: bool,
    /// Whose part of a directory.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// Whose part of a cache directory.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cache")]
pub struct NodeArgs {
    /// This node's name: names its part of a cache directory, and must stay the same for the cache
    /// to be found again. Without it: the host name and a hash of the machine id.
    #[arg(long, env = "FOREBAY_NODE_ID", value_name = "NAME")]
    pub node_id: Option<Name>,
    /// The group's name: nodes with the same name are one cache. Names the group's part of a cache directory.
    #[arg(
        long,
        env = "FOREBAY_CACHE_GROUP",
        value_name = "NAME",
        default_value = "default"
    )]
    pub cache_group: Name,
}

fn parse_some_bytes(text: &str) -> Result<Bytes, String> {
    match text.parse()? {
        Bytes(0) => {
            Err("it must be larger than zero; leave it out for what there is room for".into())
        }
        bytes => Ok(bytes),
    }
}

const IO_TIMEOUT_DEFAULT: &str = "30s";
const _: () = assert!(IO_TIMEOUT_DEFAULT_MS == 30_000);

/// `forebay mount`.
#[derive(Clone, Debug, Args)]
pub struct MountArgs {
    /// s3://BUCKET or s3://BUCKET/PREFIX
    pub source: Source,
    /// Where: an existing directory.
    #[arg(value_name = "DIR")]
    pub mount_point: PathBuf,
    /// What every node is told.
    #[command(flatten)]
    pub serving: ServingArgs,
    /// How the files look.
    #[command(flatten)]
    pub files: FileArgs,
    /// Stay in the foreground and log to standard error; Ctrl-C ends the mount.
    #[arg(short, long, env = "FOREBAY_FOREGROUND", value_parser = yes_or_no)]
    pub foreground: bool,
    /// Log of the daemon. Without it: /var/log/forebay/ for root, else $XDG_STATE_HOME/forebay/
    /// or ~/.local/state/forebay/, in a file named after the mount point.
    #[arg(long, env = "FOREBAY_LOG_FILE", value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Options as mount(8) passes them, separated by commas: allow_other, uid=N, gid=N, and ro;
    /// what only mount(8) itself needs is ignored.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Set by `mount` for the daemon that it starts.
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// How the files of a mount look.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Files")]
pub struct FileArgs {
    /// How long the kernel believes that a name leads to its file.
    #[arg(long, env = "FOREBAY_ENTRY_TTL", value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    pub entry_ttl: Duration,
    /// Other users may use the mount; for non-root mounts /etc/fuse.conf must say user_allow_other.
    #[arg(long, env = "FOREBAY_ALLOW_OTHER", value_parser = yes_or_no)]
    pub allow_other: bool,
    /// Owner of every file and directory; without it who mounts.
    #[arg(long, env = "FOREBAY_UID", value_name = "N", value_parser = whole::<u32>(0..=u32::MAX as u64))]
    pub uid: Option<u32>,
    /// Group of every file and directory; without it that of who mounts.
    #[arg(long, env = "FOREBAY_GID", value_name = "N", value_parser = whole::<u32>(0..=u32::MAX as u64))]
    pub gid: Option<u32>,
    /// Permission bits of files, octal.
    #[arg(long, env = "FOREBAY_FILE_MODE", value_name = "MODE", value_parser = parse_mode, default_value = "0644")]
    pub file_mode: u16,
    /// Permission bits of directories, octal.
    #[arg(long, env = "FOREBAY_DIR_MODE", value_name = "MODE", value_parser = parse_mode, default_value = "0755")]
    pub dir_mode: u16,
    /// Threads that take requests from the kernel, 2 to 64; without it half the CPUs, 2 to 8.
    #[arg(long, env = "FOREBAY_FUSE_THREADS", value_name = "N", value_parser = whole::<u16>(2..=64))]
    pub fuse_threads: Option<u16>,
}

/// `forebay umount`.
#[derive(Clone, Debug, Args)]
pub struct UmountArgs {
    /// The mount point.
    #[arg(value_name = "DIR")]
    pub mount_point: PathBuf,
    /// Take the mount away although it is in use; the daemon ends with its last user.
    #[arg(short, long)]
    pub lazy: bool,
}

/// `forebay status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// A mount point, or serve:GROUP[/NODE]; without it all of this machine that this user may see.
    #[arg(value_name = "DIR")]
    pub mount_point: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `forebay stats`.
#[derive(Clone, Debug, Args)]
pub struct StatsArgs {
    /// A mount point, or serve:GROUP[/NODE]; may be left out when there is just one.
    #[arg(value_name = "DIR")]
    pub mount_point: Option<PathBuf>,
    /// What the whole group does: the counters of all members added up, and a row for each.
    #[arg(long, conflicts_with = "interval")]
    pub group: bool,
    /// Print JSON; with --interval one line for each.
    #[arg(long)]
    pub json: bool,
    /// Print one line of rates each DURATION until the mount ends; without it all counters, once.
    #[arg(short, long, value_name = "DURATION", value_parser = parse_span)]
    pub interval: Option<Duration>,
}

/// `forebay cat`.
#[derive(Clone, Debug, Args)]
pub struct CatArgs {
    /// s3://BUCKET/KEY
    pub object: ObjectUrl,
    /// First byte.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub offset: u64,
    /// How many bytes; without it all to the end.
    #[arg(long, value_name = "BYTES")]
    pub length: Option<u64>,
    /// Where the objects are.
    #[command(flatten)]
    pub origin: OriginArgs,
    /// How the engine runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The cache on disk.
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// `forebay cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Shows what a cache on disk is and what lies in it; reads tables, no data. Works beside a mount.
    Inspect(InspectArgs),
    /// Reads every page of every entry and checks it. Fails when anything is wrong. Changes nothing.
    Verify(VerifyArgs),
    /// Makes an empty cache, also over one of this node.
    Format(FormatArgs),
}

/// `forebay cache inspect`.
#[derive(Clone, Debug, Args)]
pub struct InspectArgs {
    /// Cache directories, a node's part of one (DIR/GROUP/NODE), or block devices.
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<CacheDir>,
    /// A line for each region that holds something.
    #[arg(long)]
    pub regions: bool,
    /// A line for each entry.
    #[arg(long)]
    pub entries: bool,
    /// Print JSON; with --regions or --entries one object a line, the summary last.
    #[arg(long)]
    pub json: bool,
    /// Whose part of a directory.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// `forebay cache verify`.
#[derive(Clone, Debug, Args)]
pub struct VerifyArgs {
    /// Cache directories, a node's part of one (DIR/GROUP/NODE), or block devices.
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<CacheDir>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Whose part of a directory.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// `forebay cache format`.
#[derive(Clone, Debug, Args)]
pub struct FormatArgs {
    /// Cache directories, a node's part of one (DIR/GROUP/NODE), or block devices.
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<CacheDir>,
    /// As for `mount`: over all of them together, in equal parts.
    #[arg(long, env = "FOREBAY_CACHE_SIZE", value_name = "SIZE", value_parser = parse_some_bytes)]
    pub cache_size: Option<Bytes>,
    /// As for `mount`: decides the size when there is no --cache-size.
    #[arg(
        long,
        env = "FOREBAY_FREE_SPACE_RATIO",
        value_name = "RATIO",
        default_value = "0.1"
    )]
    pub free_space_ratio: Share,
    /// As for `mount`: decides the size of regions.
    #[arg(long, env = "FOREBAY_CORES", value_name = "N|LIST")]
    pub cores: Option<CoresArg>,
    /// Overwrite whatever is there.
    #[arg(long)]
    pub force: bool,
    /// Whose part of a directory.
    #[command(flatten)]
    pub node: NodeArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(args: &[&str]) -> Result<Box<MountArgs>, String> {
        let line = ["forebay", "mount", "s3://b/p", "/mnt"]
            .into_iter()
            .chain(args.iter().copied());
        match Cli::parsed(line)
            .map_err(|error| error.to_string())?
            .command
        {
            Command::Mount(args) => Ok(args),
            _ => Err("another command".into()),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let args = mount(&[]).unwrap();
        assert_eq!(args.serving.engine.io_timeout, Duration::from_secs(30));
        assert_eq!(
            (args.serving.names.attr_ttl, args.files.file_mode),
            (Duration::from_secs(1), 0o644)
        );
        assert_eq!(
            (args.serving.engine.memory, args.serving.origin.path_style),
            (None, None)
        );
        let cache = &args.serving.cache;
        assert_eq!((&cache.cache_dir, cache.cache_size), (&None, None));
        assert_eq!(cache.free_space_ratio.of(1000), 100);
        assert_eq!(
            (cache.node.cache_group.as_str(), cache.format),
            ("default", false)
        );
    }

    #[test]
    fn the_cache_has_flags() {
        let args = mount(&[
            "--cache-dir",
            "/a:/b",
            "--cache-size",
            "100",
            "--free-space-ratio",
            "0.25",
            "--node-id",
            "n1",
            "--cache-group",
            "train",
            "--format",
        ]);
        let cache = args.unwrap().serving.cache;
        assert_eq!(cache.cache_dir.unwrap().iter().count(), 2);
        assert_eq!(cache.cache_size, Some(Bytes(100 << 20)));
        assert_eq!(cache.free_space_ratio.of(100), 25);
        assert!(cache.format && cache.node.node_id.is_some());
    }

    #[test]
    fn flags_parse() {
        let args = mount(&[
            "--memory",
            "512",
            "--cores",
            "0,2-3",
            "--poll",
            "always",
            "--io-timeout",
            "5s",
            "--attr-ttl",
            "5m",
            "--path-style",
            "--dir-mode",
            "0555",
            "-f",
            "-o",
            "ro,allow_other,uid=7",
        ]);
        let args = args.unwrap();
        assert_eq!(args.serving.engine.memory, Some(Bytes(512 << 20)));
        assert_eq!(
            args.serving.engine.cores,
            Some(CoresArg::List(vec![0, 2, 3]))
        );
        assert_eq!(
            (args.serving.engine.poll, args.files.dir_mode),
            (Poll::Always, 0o555)
        );
        assert_eq!(
            (args.serving.origin.path_style, args.foreground),
            (Some(true), true)
        );
        assert_eq!(args.options, ["ro", "allow_other", "uid=7"]);
        assert_eq!(
            mount(&["--path-style=false"])
                .unwrap()
                .serving
                .origin
                .path_style,
            Some(false)
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for args in [
            ["--memory", "lots"],
            ["--cores", "0"],
            ["--io-timeout", "0"],
            ["--file-mode", "rw"],
            ["--fuse-threads", "1"],
            ["--poll", "never"],
            ["--cache-dir", "/nvme*"],
            ["--cache-size", "0"],
            ["--free-space-ratio", "1"],
            ["--cache-group", "a/b"],
            ["--node-id", ".."],
            // There would be no cache of that size.
            ["--cache-size", "100"],
        ] {
            assert!(mount(&args).is_err(), "{args:?}");
        }
    }
}
