//! forebay-cli
