//! libibverbs behind types that cannot be misused. All unsafe code of this crate is here.
//!
//! | module | holds |
//! |---|---|
//! | `abi` | the library's structures and numbers, as its header has them |
//! | `library` | the functions, loaded at run time |
//! | `device` | devices, ports, GIDs |
//! | `memory` | protection domains and registered memory |
//! | `completion` | completion queues, and the channels that wake |
//! | `batch` | work that is posted together |
//! | `queue_pair` | reliable-connected queue pairs |

mod abi;
mod batch;
mod completion;
mod device;
mod library;
mod memory;
mod queue_pair;

pub use batch::Batch;
pub use completion::{CompletionChannel, CompletionQueue};
pub use device::{Device, DeviceInfo, Verbs};
pub use memory::{Access, LocalSlice, MemoryRegion, ProtectionDomain};
pub use queue_pair::{QueuePair, QueuePairSize, RemoteSlice};

use std::io;

/// The library's convention for functions that return a number: 0 is success, a positive one an error number,
/// a negative one says that `errno` has it.
fn checked(returned: i32) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        number if number > 0 => Err(io::Error::from_raw_os_error(number)),
        _ => Err(io::Error::last_os_error()),
    }
}
