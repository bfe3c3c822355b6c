//! The binary `forebay`.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    forebay_cli::run()
}
