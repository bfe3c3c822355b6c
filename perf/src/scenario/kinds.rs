//! The scenarios that there are, and the settings of each.

use anyhow::{Context, Result};

use super::{GIB, KIB, Key, MIB, TIB, Values};

/// A layer, or a user's pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Blocks of a device, by the adapter alone.
    Device,
    /// Blocks of another process's memory, by the transport alone.
    Transport,
    /// Reads answered by a core.
    Engine,
    /// Reads of a mount whose data other members have.
    Group,
    /// Reads of a mount.
    Fuse,
    /// Ranged GETs by the adapter to S3.
    Origin,
    /// Whole small files in shuffled order.
    Epoch,
    /// Large files from beginning to end.
    Stream,
    /// Ranges of a mapped file, by several processes.
    Safetensors,
    /// One large file by several readers.
    CheckpointLoad,
    /// Names and attributes of a tree.
    List,
    /// What was recorded of a mount, once more.
    Trace,
}

const ON: Key = Key {
    name: "on",
    values: Values::OneOf(&["uring", "spdk", "memory"]),
    default: "uring",
    meaning: "a file on the disk of --dir by io_uring, the namespace of --spdk-device by SPDK, or a device in memory",
};
const VIA: Key = Key {
    name: "via",
    values: Values::OneOf(&["tcp", "rdma"]),
    default: "tcp",
    meaning: "the transport; rdma is measured on --device",
};
const TIER: Key = Key {
    name: "tier",
    values: Values::OneOf(&["memory", "disk"]),
    default: "memory",
    meaning: "where the data is when it is read",
};
const VERIFY: Key = Key {
    name: "verify",
    values: Values::OneOf(&["on", "off"]),
    default: "on",
    meaning: "whether pages read from disk are checked",
};
const CORES: Key = Key {
    name: "cores",
    values: Values::Count(0, 64),
    default: "0",
    meaning: "threads of the engine; 0: the one that asks turns the core itself",
};
const ANSWER: Key = Key {
    name: "answer",
    values: Values::OneOf(&["copied", "dropped"]),
    default: "copied",
    meaning: "whether answers are copied to their reader, as front ends do",
};
const READER: Key = Key {
    name: "reader",
    values: Values::OneOf(&["direct", "buffered", "mmap"]),
    default: "direct",
    meaning: "past the page cache, through it, or by a mapping",
};
const ORDER: Key = Key {
    name: "order",
    values: Values::OneOf(&["random", "sequential"]),
    default: "random",
    meaning: "which block is next",
};
const RATE: Key = Key {
    name: "rate",
    values: Values::Count(0, 100_000_000),
    default: "0",
    meaning: "operations that arrive each second, whether or not anybody is free; 0: each begins as one ends",
};
const MEMORY: Key = Key {
    name: "memory",
    values: Values::SizeOrAuto(64 * MIB, TIB),
    default: "auto",
    meaning: "Forebay's --memory; auto: twice the data for tier=memory, of tier=disk a sixteenth (fuse, group) or a fourth; in a group the client's",
};
const STATE: Key = Key {
    name: "state",
    values: Values::OneOf(&["warm", "cold"]),
    default: "warm",
    meaning: "cached before it is read, or never read before",
};

const GET_DELAY: Key = Key {
    name: "get-delay",
    values: Values::Count(0, 10_000),
    default: "0",
    meaning: "milliseconds until the S3 server answers a GET",
};
const GET_RATE: Key = Key {
    name: "get-rate",
    values: Values::SizeOrAuto(MIB, TIB),
    default: "auto",
    meaning: "bytes a second that one connection to the S3 server gives; auto: as many as it can",
};

const fn block(default: &'static str, most: u64) -> Key {
    Key {
        name: "block",
        values: Values::Size(4 * KIB, most),
        default,
        meaning: "bytes of one operation",
    }
}

const fn depth(default: &'static str, meaning: &'static str) -> Key {
    Key {
        name: "depth",
        values: Values::Count(1, 256),
        default,
        meaning,
    }
}

const fn data(default: &'static str, most: u64) -> Key {
    Key {
        name: "data",
        values: Values::Size(MIB, most),
        default,
        meaning: "bytes of the data set",
    }
}

const fn count(
    name: &'static str,
    range: (u64, u64),
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key {
        name,
        values: Values::Count(range.0, range.1),
        default,
        meaning,
    }
}

const fn file_size(default: &'static str) -> Key {
    Key {
        name: "size",
        values: Values::Size(4 * KIB, TIB),
        default,
        meaning: "bytes of a file",
    }
}

const fn with_default(mut key: Key, default: &'static str) -> Key {
    key.default = default;
    key
}

const UNDER_WAY: &str = "operations under way at a time";
const THREADS: &str = "threads, each with one operation under way";

static DEVICE: [Key; 6] = [
    ON,
    block("4KiB", MIB),
    depth("32", UNDER_WAY),
    ORDER,
    data("1GiB", TIB),
    RATE,
];
static TRANSPORT: [Key; 4] = [VIA, block("1MiB", MIB), depth("8", UNDER_WAY), RATE];
static ENGINE: [Key; 9] = [
    TIER,
    block("4KiB", MIB),
    depth("32", UNDER_WAY),
    ORDER,
    data("256MiB", 64 * GIB),
    VERIFY,
    CORES,
    ANSWER,
    RATE,
];
static FUSE: [Key; 8] = [
    READER,
    TIER,
    block("1MiB", 16 * MIB),
    depth("1", THREADS),
    with_default(ORDER, "sequential"),
    data("512MiB", TIB),
    MEMORY,
    RATE,
];
static GROUP: [Key; 9] = [
    count(
        "members",
        (1, 16),
        "2",
        "processes that have the data; the reader's has none",
    ),
    READER,
    TIER,
    block("1MiB", 16 * MIB),
    depth("1", THREADS),
    with_default(ORDER, "sequential"),
    data("512MiB", TIB),
    MEMORY,
    RATE,
];
static ORIGIN: [Key; 7] = [
    block("8MiB", 8 * MIB),
    depth("4", "GETs under way at a time"),
    with_default(ORDER, "sequential"),
    data("1GiB", TIB),
    RATE,
    GET_DELAY,
    GET_RATE,
];
static EPOCH: [Key; 9] = [
    count("files", (1, 10_000_000), "2000", "files"),
    file_size("100KiB"),
    count("workers", (1, 256), "8", "threads that read whole files"),
    with_default(READER, "buffered"),
    with_default(TIER, "disk"),
    STATE,
    MEMORY,
    GET_DELAY,
    GET_RATE,
];
static STREAM: [Key; 10] = [
    count("files", (1, 10_000), "1", "files"),
    file_size("1GiB"),
    count(
        "workers",
        (1, 256),
        "1",
        "threads, each with a file of its own at a time",
    ),
    block("1MiB", 16 * MIB),
    with_default(READER, "buffered"),
    with_default(TIER, "disk"),
    STATE,
    MEMORY,
    GET_DELAY,
    GET_RATE,
];
static SAFETENSORS: [Key; 6] = [
    file_size("1GiB"),
    count(
        "tensors",
        (1, 100_000),
        "256",
        "ranges of the file, read in an order of each process's own",
    ),
    count("processes", (1, 64), "4", "processes that map the file"),
    with_default(TIER, "disk"),
    STATE,
    MEMORY,
];
static CHECKPOINT: [Key; 9] = [
    file_size("1GiB"),
    count(
        "readers",
        (1, 256),
        "8",
        "threads that each read all of the file",
    ),
    block("1MiB", 16 * MIB),
    READER,
    with_default(TIER, "disk"),
    STATE,
    MEMORY,
    GET_DELAY,
    GET_RATE,
];
static LIST: [Key; 5] = [
    count("objects", (1, 10_000_000), "10000", "objects"),
    count(
        "directories",
        (1, 1_000_000),
        "100",
        "directories that they lie in",
    ),
    Key {
        name: "attributes",
        values: Values::OneOf(&["yes", "no"]),
        default: "yes",
        meaning: "asked for of each name, as ls -lR does; no: names alone, as ls -R",
    },
    STATE,
    MEMORY,
];

static TRACE: [Key; 6] = [
    Key {
        name: "file",
        values: Values::File,
        default: "",
        meaning: "the trace: what `forebay-perf trace record` wrote",
    },
    Key {
        name: "speed",
        values: Values::OneOf(&["1", "max"]),
        default: "1",
        meaning: "1: each access when it was, however late other readers are; max: when those it came after have ended",
    },
    Key {
        name: "reader",
        values: Values::OneOf(&["direct", "buffered"]),
        default: "direct",
        meaning: "past the page cache, as it was recorded behind it, or through it once more",
    },
    with_default(TIER, "disk"),
    STATE,
    MEMORY,
];

impl Kind {
    /// All of them; layers from below, then patterns.
    pub const ALL: [Kind; 12] = [
        Kind::Device,
        Kind::Transport,
        Kind::Engine,
        Kind::Group,
        Kind::Fuse,
        Kind::Origin,
        Kind::Epoch,
        Kind::Stream,
        Kind::Safetensors,
        Kind::CheckpointLoad,
        Kind::List,
        Kind::Trace,
    ];

    /// Before the colon.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Transport => "transport",
            Kind::Engine => "engine",
            Kind::Group => "group",
            Kind::Fuse => "fuse",
            Kind::Origin => "origin",
            Kind::Epoch => "epoch",
            Kind::Stream => "stream",
            Kind::Safetensors => "safetensors",
            Kind::CheckpointLoad => "checkpoint-load",
            Kind::List => "list",
            Kind::Trace => "trace",
        }
    }

    /// What is measured, in a line.
    pub fn meaning(self) -> &'static str {
        match self {
            Kind::Device => "blocks of a device, by the adapter alone",
            Kind::Transport => "blocks of another process's memory, by the transport alone",
            Kind::Engine => "reads answered by a core (tier=disk: by its disk tier alone)",
            Kind::Group => "reads of a mount whose data other members have",
            Kind::Fuse => "reads of a mount",
            Kind::Origin => "ranged GETs, by the adapter to S3 from a server in this process",
            Kind::Epoch => "whole small files in shuffled order; a span is one epoch",
            Kind::Stream => "large files from beginning to end; a span is all of them",
            Kind::Safetensors => "tensors of a mapped file; a span is all tensors by each process",
            Kind::CheckpointLoad => {
                "one large file by several readers; a span is all of it by each"
            }
            Kind::Trace => "the accesses of a recorded mount; a span is all of them",
            Kind::List => {
                "names, and attributes, of a whole tree; a span is the tree, an operation a directory"
            }
        }
    }

    /// Its settings, in the order of the text form.
    pub fn keys(self) -> &'static [Key] {
        match self {
            Kind::Device => &DEVICE,
            Kind::Transport => &TRANSPORT,
            Kind::Engine => &ENGINE,
            Kind::Group => &GROUP,
            Kind::Fuse => &FUSE,
            Kind::Origin => &ORIGIN,
            Kind::Epoch => &EPOCH,
            Kind::Stream => &STREAM,
            Kind::Safetensors => &SAFETENSORS,
            Kind::CheckpointLoad => &CHECKPOINT,
            Kind::List => &LIST,
            Kind::Trace => &TRACE,
        }
    }

    /// Whether a span is a whole pass over the data, however long that takes.
    pub fn is_pattern(self) -> bool {
        matches!(
            self,
            Kind::Epoch
                | Kind::Stream
                | Kind::Safetensors
                | Kind::CheckpointLoad
                | Kind::List
                | Kind::Trace
        )
    }

    pub(super) fn by_name(name: &str) -> Result<Kind> {
        let found = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        found.with_context(|| {
            let names = Kind::ALL.map(Kind::name).join(", ");
            format!("no scenario `{name}`; there are: {names}")
        })
    }

    pub(super) fn key_names(self) -> String {
        let names: Vec<&str> = self.keys().iter().map(|key| key.name).collect();
        names.join(", ")
    }

    pub(super) fn key(self, name: &str) -> Result<(usize, &'static Key)> {
        let found = self.keys().iter().enumerate();
        let mut found = found.filter(|(_, key)| key.name == name);
        found.next().with_context(|| {
            format!(
                "{} has no setting {name}; it has {}",
                self.name(),
                self.key_names()
            )
        })
    }
}
