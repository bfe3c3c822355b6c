//! Which part of a path a function belongs to, by where its source is and, where that is not known, by its name.

/// A part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Where bytes are: in memory, on disk.
    Index,
    /// Of pages.
    Checksum,
    /// The adapter to a device, and the library below it.
    Device,
    /// Of bytes from one place to another.
    Copy,
    /// The adapter to peers, and what travels.
    Transport,
    /// The FUSE front end.
    FrontEnd,
    /// The rest of the engine.
    Engine,
    /// Memory asked for and given back.
    Allocator,
    /// The harness's own: it asks, and takes the answer.
    Load,
    /// Everything else.
    Other,
}

impl Group {
    /// In the order in which they are shown.
    pub const ALL: [Group; 10] = [
        Group::Index,
        Group::Checksum,
        Group::Device,
        Group::Copy,
        Group::Transport,
        Group::FrontEnd,
        Group::Engine,
        Group::Allocator,
        Group::Load,
        Group::Other,
    ];

    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Group::Index => "index",
            Group::Checksum => "checksum",
            Group::Device => "device",
            Group::Copy => "copy",
            Group::Transport => "transport",
            Group::FrontEnd => "front end",
            Group::Engine => "engine",
            Group::Allocator => "allocator",
            Group::Load => "load",
            Group::Other => "other",
        }
    }

    /// That of code of `file` in `function`: `file` is where it was written, `function` where it was compiled to.
    pub fn of(file: &str, function: &str) -> Group {
        let in_file = FILES.iter().find(|(part, _)| file.contains(part));
        let named = || FUNCTIONS.iter().find(|(part, _)| function.contains(part));
        in_file
            .or_else(named)
            .map_or(Group::Other, |(_, group)| *group)
    }
}

/// The first that fits counts.
static FILES: [(&str, Group); 16] = [
    ("engine/src/checksum.rs", Group::Checksum),
    ("/crc-fast-", Group::Checksum),
    ("engine/src/core/index", Group::Index),
    ("engine/src/core/s3fifo", Group::Index),
    ("engine/src/disk/index", Group::Index),
    ("engine/src/disk/tier.rs", Group::Index),
    ("engine/src/placement/", Group::Index),
    ("engine/src/wire/", Group::Transport),
    ("engine/src/", Group::Engine),
    ("nvme-uring/src/", Group::Device),
    ("nvme-spdk/src/", Group::Device),
    ("/io-uring-", Group::Device),
    ("perf/src/disk/memory.rs", Group::Device),
    ("transport-tcp/src/", Group::Transport),
    ("fuse-frontend/src/", Group::FrontEnd),
    ("perf/src/", Group::Load),
];

/// Of code of the standard library and of other crates, which becomes part of whoever calls it, and of C.
static FUNCTIONS: [(&str, Group); 26] = [
    ("memcpy", Group::Copy),
    ("memmove", Group::Copy),
    ("memset", Group::Copy),
    ("crc_fast", Group::Checksum),
    ("crc32", Group::Checksum),
    ("malloc", Group::Allocator),
    ("calloc", Group::Allocator),
    ("realloc", Group::Allocator),
    ("_int_free", Group::Allocator),
    ("cfree", Group::Allocator),
    ("__rust_alloc", Group::Allocator),
    ("__rust_dealloc", Group::Allocator),
    ("forebay_engine::core::index", Group::Index),
    ("forebay_engine::disk::index", Group::Index),
    ("forebay_engine::wire", Group::Transport),
    ("forebay_transport_tcp", Group::Transport),
    ("forebay_nvme_", Group::Device),
    ("io_uring", Group::Device),
    ("spdk_", Group::Device),
    ("nvme_", Group::Device),
    ("MemoryDevice", Group::Device),
    ("forebay_fuse", Group::FrontEnd),
    ("forebay_engine", Group::Engine),
    ("forebay_perf", Group::Load),
    ("forebay_tests", Group::Load),
    ("syscall", Group::Device),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_counts_where_it_was_written_and_else_where_it_ended_up() {
        for (file, function, group) in [
            (
                "/src/engine/src/core/index.rs",
                "forebay_engine::core::Core<P>::turn",
                Group::Index,
            ),
            (
                "engine/src/core/read.rs",
                "forebay_engine::core::Core<P>::turn",
                Group::Engine,
            ),
            (
                "/rustc/1/library/core/src/slice/mod.rs",
                "forebay_engine::core::index::Index::find",
                Group::Index,
            ),
            ("???", "__memcpy_avx_unaligned_erms", Group::Copy),
            ("???", "crc_fast::checksum", Group::Checksum),
            ("perf/src/paths/core.rs", "whatever", Group::Load),
            ("perf/src/disk/memory.rs", "whatever", Group::Device),
            ("???", "nvme_tcp_qpair_process_completions", Group::Device),
            ("???", "clock_gettime", Group::Other),
        ] {
            assert_eq!(Group::of(file, function), group, "{file} {function}");
        }
    }
}
