//! The performance harness: Forebay's figures, measured against a yardstick in the same run.
//!
//! | module | holds |
//! |---|---|
//! | [`scenario`] | what is measured, and its settings |
//! | [`side`], [`sides`] | who does it |
//! | [`layers`] | Forebay's layers one at a time |
//! | [`patterns`] | what users do with a mount |
//! | [`paths`] | pinned hot paths, whose instructions are counted |
//! | [`ab`] | two builds, compared |
//! | [`targets`] | whose files are read |
//! | [`peers`] | public tools that do the same |
//! | [`pace`] | closed and open loops |
//! | [`recorder`], [`counters`] | how long operations take, and what they cost |
//! | [`ceilings`] | what limits can do |
//! | [`session`], [`plan`] | sides that take turns, and how much is measured |
//! | [`budget`] | whether the machine has what that takes |
//! | [`outcome`], [`verdict`], [`table`] | what came of it: as JSON, in a word, for people |
//! | [`sweep`] | a scenario at several values of its settings |
//! | [`html`] | outcomes as a page with charts |
//! | [`machine`] | where it was measured |
//! | [`raw`] | calls that the compiler cannot check; unsafe |
//! | [`figures`] | one file for each figure: what is measured, and its target |
//! | [`load`] | readers: sequential, random, many at once |
//! | [`disk`] | the engine's disk tier in a loop of its own; traces, a model of its policy |
//! | [`fio`] | the yardstick for disks |
//! | [`simulate`] | groups that no desk holds, on virtual time |
//! | [`spdk_perf`] | the yardstick for SPDK |
//! | [`network`] | fetches from another process, and the yardsticks for them |
//! | [`guest`] | figures measured in a guest that has an RDMA device |
//! | [`trace`] | a mount's accesses: recorded, read, shown |
//! | [`turns`] | two sides of a figure that take turns, and their ratio |
//! | [`run`] | how much is measured, and where files are put |
//! | [`cpus`] | which processors two sides run on |
//! | [`direct`] | O_DIRECT files and aligned buffers |
//! | [`null_server`] | the yardstick: a FUSE server that answers reads with zeros |
//! | [`bucket`] | objects, and the server that counts what it hands out of them |
//! | [`bench`] | a bucket and Forebay's mount of it |
//! | [`group`] | a bucket and a cache group of it, each member a process |
//! | [`process`] | what /proc says of a process: processor time, memory |
//! | [`samples`] | medians, spreads, verdicts |
//! | [`interrupt`] | signals, and waiting that ends with them |
//! | [`report`] | the table in `docs/performance.md` |

#![deny(unsafe_code)]

pub mod ab;
pub mod bench;
pub mod bucket;
pub mod budget;
pub mod ceilings;
pub mod counters;
pub mod cpus;
pub mod direct;
pub mod disk;
pub mod figures;
pub mod fio;
pub mod group;
pub mod guest;
pub mod html;
pub mod interrupt;
pub mod layers;
pub mod load;
pub mod machine;
pub mod network;
pub mod null_server;
pub mod outcome;
pub mod pace;
pub mod paths;
pub mod patterns;
pub mod peers;
pub mod plan;
pub mod process;
#[allow(unsafe_code)]
pub mod raw;
pub mod recorder;
pub mod report;
pub mod run;
pub mod samples;
pub mod scenario;
pub mod session;
pub mod side;
pub mod sides;
pub mod simulate;
pub mod spdk_perf;
pub mod sweep;
pub mod table;
pub mod targets;
pub mod trace;
pub mod turns;
pub mod verdict;
