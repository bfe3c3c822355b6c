//! forebay-fuse
