//! What travels between members, byte by byte: the same for every transport. Little endian, versioned.
//!
//! | module | holds |
//! |---|---|
//! | [`call`] | questions other than for bytes, and their answers |

pub mod call;
