//! What travels between members, byte by byte: the same for every transport. Little endian, versioned.
//!
//! A decoder takes any bytes: it never panics, allocates nothing by a length that it has not checked, and
//! accepts one form only for each value.
//!
//! | module | holds |
//! |---|---|
//! | [`header`] | the fixed headers of requests and answers |
//! | [`call`] | questions other than for bytes, and their answers |
//! | [`listing`] | parts of a listing page that is too long for one answer |
//! | [`hello`] | how a connection begins: who, which group, and the proof of the secret |

mod bytes;
pub mod call;
mod codes;
pub mod header;
pub mod hello;
pub mod listing;

/// Version of everything in this module. Members of different versions refuse each other.
pub const PROTOCOL_VERSION: u16 = 1;

/// Why bytes from a peer were not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// They end too early.
    #[error("it ends within the {0}")]
    Short(&'static str),
    /// A field is longer or larger than it may be.
    #[error("the {0} exceeds its limit")]
    Limit(&'static str),
    /// A field has a value without meaning.
    #[error("the {0} has no meaning")]
    Unknown(&'static str),
    /// A text is no UTF-8.
    #[error("the {0} is no text")]
    Text(&'static str),
    /// More follows than belongs to it.
    #[error("{0} bytes follow its end")]
    Trailing(usize),
    /// It does not begin as a hello does.
    #[error("it is no Forebay connection")]
    Magic,
    /// An encoding does not fit into the room that the asker has.
    #[error("it takes {needed_bytes} bytes, and there is room for {room_bytes}")]
    Room {
        /// Bytes of the encoding.
        needed_bytes: usize,
        /// Bytes that there are.
        room_bytes: usize,
    },
}
