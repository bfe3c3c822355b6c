//! Tells the program by which compiler it was built: instructions are only compared with those of the same one.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let told = Command::new(compiler).arg("--version").output();
    let version = told.map_or_else(
        |_| "unknown".to_owned(),
        |told| String::from_utf8_lossy(&told.stdout).trim().to_owned(),
    );
    println!("cargo::rustc-env=FOREBAY_PERF_RUSTC={version}");
    let target = env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=FOREBAY_PERF_TARGET={target}");
}
