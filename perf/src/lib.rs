//! forebay-perf
