//! Blocks at rest on a file or a block device, by io_uring.
