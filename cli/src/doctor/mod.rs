//! What `forebay doctor` looks at. Each part only reads, and tells what it found with what to change.
//!
//! | module | looks at |
//! |---|---|
//! | [`finding`] | what is told of one thing |
//! | `machine` | the kernel's files, below a root that tests choose |
//! | `limits` | open files, locked memory |
//! | `memory` | hugepages |
//! | `kernel` | FUSE, io_uring |
//! | `rdma` | library, devices, ports, GIDs, MTU, and the rails of `--group-ip` |

pub mod finding;
mod kernel;
mod limits;
pub(crate) mod machine;
mod memory;
mod rdma;

use forebay_membership::local::Network;
use forebay_transport_rdma::inventory::Wanted;

use finding::Finding;
use machine::Files;

/// What the flags ask about.
#[derive(Clone, Debug)]
pub struct Question {
    /// `--memory`, or its default.
    pub memory_bytes: u64,
    /// `--group-ip`.
    pub networks: Vec<Network>,
    /// `--rdma-device` and its like.
    pub rdma: Wanted,
}

/// Looks at this machine.
pub fn examine(question: &Question) -> Vec<Finding> {
    let files = Files::of_this_machine();
    let rdma = rdma::look(&files, &question.rdma, &question.networks);
    let devices = match rdma.has_devices {
        true => rdma.rails.max(1),
        false => 0,
    };
    let mut findings = kernel::look(&files);
    findings.extend(limits::look(&files, question.memory_bytes, devices));
    findings.extend(memory::look(&files));
    findings.extend(rdma.findings);
    findings
}
