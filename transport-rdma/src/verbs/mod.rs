//! libibverbs and librdmacm behind types that cannot be misused. All unsafe code of this crate is here, but for two calls in `rail`.
//!
//! | module | holds |
//! |---|---|
//! | `abi` | the library's structures and numbers, as its header has them |
//! | `library` | the functions, loaded at run time |
//! | `declare` | how both are declared, and compared with the header |
//! | `cm_abi`, `cm_library` | the same of librdmacm |
//! | `cm` | addresses, routes and connections |
//! | `device` | devices, ports, GIDs |
//! | `events` | what devices tell unasked |
//! | `memory` | protection domains and registered memory |
//! | `arena` | a core's arena, registered |
//! | `completion` | completion queues, and the channels that wake |
//! | `batch` | work that is posted together |
//! | `queue_pair` | reliable-connected queue pairs |
//! | `parcel` | what moves from the thread that made it to its owner |

#[macro_use]
mod declare;

mod abi;
mod arena;
mod batch;
mod cm;
mod cm_abi;
mod cm_library;
mod completion;
mod device;
mod events;
mod library;
mod memory;
mod parcel;
mod queue_pair;

pub use arena::ArenaRegion;
pub use batch::Batch;
pub use cm::{Cm, CmEvent, CmId, CmPlace};
pub use completion::{CompletionChannel, CompletionQueue};
pub use device::{Device, DeviceInfo, Verbs};
pub use memory::{Access, LocalSlice, MemoryRegion, ProtectionDomain};
pub use parcel::Parcel;
pub use queue_pair::{ConnectSteps, PrepareStep, QueuePair, QueuePairSize, RemoteSlice};

use std::io;

/// The library's convention for functions that return a number: 0 is success, a positive one an error number,
/// -1 says that `errno` has it. Some drivers return an error number below zero.
fn checked(returned: i32) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(
            number.checked_abs().unwrap_or(libc::EIO),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_in_each_of_the_three_ways() {
        assert!(checked(0).is_ok());
        for told in [libc::ENOMEM, -libc::ENOMEM] {
            let why = checked(told).unwrap_err();
            assert_eq!(why.raw_os_error(), Some(libc::ENOMEM));
        }
        assert!(checked(-1).is_err());
        assert_eq!(
            checked(i32::MIN).unwrap_err().raw_os_error(),
            Some(libc::EIO)
        );
    }
}
