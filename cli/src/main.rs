//! The binary `forebay`.

#![forbid(unsafe_code)]

fn main() {}
