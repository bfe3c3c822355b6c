//! The region log alone, without a core around it: driven on virtual time over simulated media, and
//! compared with a plain model.
//!
//! | module | holds |
//! |---|---|
//! | [`universe`] | the blocks of a run; their bytes follow from their identity |
//! | [`node`] | the cores and queue pairs of one process, and the loop that moves time |
//! | [`media`] | what a device claims to hold, read past the log |
//! | [`model`] | what was kept, what may be found, what is wrong with an answer |
//! | [`ops`] | operations as data: keeping, reading, restarts, power cuts, resizes |
//! | [`script`] | the run that carries them out |
//! | [`check`] | what must hold at rest, after a restart and at the end |
//! | [`crash`] | the same workload over a real file, in a process that is killed |

pub mod check;
pub mod crash;
pub mod media;
pub mod model;
pub mod node;
pub mod ops;
pub mod script;
pub mod universe;
