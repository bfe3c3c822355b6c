//! Devices that stack over any [`BlockDevice`](forebay_engine::ports::BlockDevice), switched from outside while
//! they run, and places for real ones.
//!
//! | module | holds |
//! |---|---|
//! | [`places`] | loop devices and small file systems of a test's own |

pub mod places;
