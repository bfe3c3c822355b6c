//! The command line under test: the same code as `forebay`, as a binary of this crate, so that
//! cargo always builds it together with the tests that run it.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    forebay_cli::run()
}
