//! With the feature `spdk`: finds SPDK by pkg-config, has the C compiler compare our declarations with its headers, and links
//! it.
//!
//! Where pkg-config does not find it, nothing fails here: `cargo check` and `cargo clippy` need no library and work, and a
//! build script cannot tell them from a build. What links then ends with "unable to find library -lspdk_nvme", after a warning of
//! ours that says why. `FOREBAY_SPDK=none` does as if it was not there.

// Only what the comparison needs of it is used here.
#[allow(dead_code)]
#[path = "src/ffi/abi.rs"]
mod abi;
#[path = "src/ffi/declared.rs"]
mod declared;

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use declared::{FUNCTIONS, LATER_FIELDS, LAYOUTS, NUMBERS, Size};

/// The oldest version whose structures are those of `abi`.
const OLDEST: (u32, u32) = (24, 1);
/// The newest version whose build ran all tests (docs/decisions/0027-nvme-spdk.md). What is newer and fits is built, with a word.
const NEWEST_TRIED: (u32, u32) = (25, 5);
/// Names the length of `struct spdk_nvme_ctrlr_opts` in what the compiler makes.
const LENGTH_MARK: &str = "forebay_ctrlr_opts_bytes";
/// Names the version in what the preprocessor prints.
const VERSION_MARK: &str = "forebay_spdk_version";
/// What is linked.
const PACKAGES: [&str; 2] = ["spdk_nvme", "spdk_env_dpdk"];
/// What is compared.
const HEADERS: [&str; 6] = [
    "env.h",
    "log.h",
    "nvme.h",
    "nvme_spec.h",
    "uuid.h",
    "version.h",
];
/// What those need of others when they are static: `Libs.private` of this package.
const SYSTEM: &str = "spdk_syslibs";

fn main() {
    for name in ["FOREBAY_SPDK", "PKG_CONFIG", "PKG_CONFIG_PATH", "CC"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/ffi/abi.rs");
    println!("cargo::rerun-if-changed=src/ffi/declared.rs");
    if env::var_os("CARGO_FEATURE_SPDK").is_none() {
        return;
    }
    match pkg_config(&["--modversion", PACKAGES[0]]) {
        Err(why) => {
            println!(
                "cargo::warning=SPDK is not found ({why}): this checks, but does not link. Install SPDK and let pkg-config find \
                 it (PKG_CONFIG_PATH), or build without the feature `spdk`"
            );
            println!("cargo::rustc-link-lib=dylib=spdk_nvme");
        }
        Ok(_) => {
            watch();
            compare();
            link();
        }
    }
}

/// An SPDK that is replaced in place is compared again.
fn watch() {
    for package in PACKAGES.iter().chain([&SYSTEM]) {
        let variable = |name: &str| {
            let value = pkg_config(&["--variable", name, package]).unwrap_or_default();
            PathBuf::from(value.trim())
        };
        let include = variable("includedir").join("spdk");
        for header in HEADERS {
            println!("cargo::rerun-if-changed={}", include.join(header).display());
        }
        println!(
            "cargo::rerun-if-changed={}",
            variable("pcfiledir")
                .join(format!("{package}.pc"))
                .display()
        );
    }
}

fn pkg_config(args: &[&str]) -> Result<String, String> {
    if env::var("FOREBAY_SPDK").as_deref() == Ok("none") {
        return Err("FOREBAY_SPDK=none".into());
    }
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let output = Command::new(&program)
        .args(args)
        .output()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr)
            .trim()
            .replace('\n', " ")),
    }
}

/// Compiles a program of nothing but assertions.
fn compare() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = out.join("compare.c");
    fs::write(&source, assertions()).expect("OUT_DIR can be written");
    let cflags = pkg_config(&["--cflags", PACKAGES[0], PACKAGES[1]]).unwrap_or_default();
    let compiler = |args: &[&str]| {
        let program = env::var("CC").unwrap_or_else(|_| "cc".into());
        let command = Command::new(&program)
            .arg("-std=gnu11")
            .args(args)
            .args(cflags.split_whitespace())
            .arg(&source)
            .output();
        command.unwrap_or_else(|error| {
            panic!("cannot run the C compiler `{program}` ({error}): it compares Forebay's declarations with SPDK's headers")
        })
    };
    let compared = compiler(&["-fsyntax-only"]);
    let text = String::from_utf8_lossy(&compiler(&["-E", "-P"]).stdout).into_owned();
    let version = version(&text);
    let shown = version.map_or_else(
        || "?".to_owned(),
        |(major, minor)| format!("{major}.{minor:02}"),
    );
    if !compared.status.success() {
        panic!(
            "SPDK (version {shown}) differs from what Forebay declares of it, which is that of {}.{:02} and later; docs/decisions/0027-nvme-spdk.md \
             names the versions that were tried. Use one of those, or correct nvme-spdk/src/ffi. The C compiler says:\n{}",
            OLDEST.0,
            OLDEST.1,
            String::from_utf8_lossy(&compared.stderr)
        );
    }
    if version.is_none_or(|version| version > NEWEST_TRIED) {
        let (major, minor) = NEWEST_TRIED;
        println!(
            "cargo::warning=SPDK {shown} is newer than those that Forebay was tried with, which end at {major}.{minor:02}. Its headers fit; run the tests \
             on SPDK (CONTRIBUTING.md) before it is trusted with data"
        );
    }
    // SPDK reads options up to the length that it is told, leaves what lies beyond as it was, and must not be told more than
    // its own length.
    let text = String::from_utf8_lossy(&compiler(&["-S", "-o", "-"]).stdout).into_owned();
    let length = text
        .split_once(&format!("{LENGTH_MARK}:"))
        .and_then(|(_, rest)| {
            let line = rest.lines().find(|line| !line.trim().is_empty())?;
            // A directive and the number; some compilers add a comment.
            line.split_whitespace().nth(1)?.parse::<usize>().ok()
        });
    match length {
        Some(length) => println!("cargo::rustc-env=FOREBAY_SPDK_CTRLR_OPTS_BYTES={length}"),
        None => panic!(
            "the C compiler does not tell the length of spdk_nvme_ctrlr_opts: give another compiler in CC"
        ),
    }
}

/// The version in what the preprocessor has made: `24 * 100 + 1`.
fn version(text: &str) -> Option<(u32, u32)> {
    let (_, rest) = text.split_once(VERSION_MARK)?;
    let (sum, _) = rest.split_once('}')?;
    let mut numbers = sum.split(|c: char| !c.is_ascii_digit());
    let mut next = || {
        numbers
            .find(|number| !number.is_empty())?
            .parse::<u32>()
            .ok()
    };
    let (major, _hundred, minor) = (next()?, next()?, next()?);
    Some((major, minor))
}

/// One C assertion for each structure, field, number and function.
fn assertions() -> String {
    let mut c = String::from(
        "#include <spdk/stdinc.h>\n#include <spdk/env.h>\n#include <spdk/log.h>\n#include <spdk/nvme.h>\n#include <spdk/uuid.h>\n#include \
         <spdk/version.h>\n",
    );
    // The preprocessor makes the version of it.
    writeln!(
        c,
        "enum {{ {VERSION_MARK} = SPDK_VERSION_MAJOR * 100 + SPDK_VERSION_MINOR }};"
    )
    .expect("a string can be written");
    writeln!(
        c,
        "const unsigned long {LENGTH_MARK} = sizeof(struct spdk_nvme_ctrlr_opts);"
    )
    .expect("a string can be written");
    let mut assert = |condition: String, what: &str| {
        writeln!(c, "_Static_assert({condition}, \"{what}\");").expect("a string can be written");
    };
    let (major, minor) = OLDEST;
    assert(
        format!("SPDK_VERSION >= SPDK_VERSION_NUM({major}, {minor}, 0)"),
        "this SPDK is too old for Forebay",
    );
    for layout in LAYOUTS {
        let c_type = layout.c_type;
        let (relation, bytes) = match layout.size {
            Size::Same(bytes) => ("==", bytes),
            Size::AtMost(bytes) => ("<=", bytes),
            Size::AtLeast(bytes) => (">=", bytes),
        };
        assert(
            format!("sizeof({c_type}) {relation} {bytes}"),
            &format!("length of {c_type}"),
        );
        for (field, place) in layout.fields {
            assert(
                format!("offsetof({c_type}, {field}) == {place}"),
                &format!("place of {field} in {c_type}"),
            );
        }
    }
    for (name, number) in NUMBERS {
        assert(
            format!("(long long)({name}) == {number}"),
            &format!("value of {name}"),
        );
    }
    for (name, c_type) in FUNCTIONS {
        assert(
            format!(
                "__builtin_types_compatible_p(__typeof__({name}), {})",
                function(c_type)
            ),
            &format!("type of {name}"),
        );
    }
    for (c_type, field, place, (major, minor)) in LATER_FIELDS {
        writeln!(
            c,
            "#if SPDK_VERSION >= SPDK_VERSION_NUM({major}, {minor}, 0)\n_Static_assert(offsetof({c_type}, {field}) == {place}, \
             \"place of {field} in {c_type}\");\n#endif"
        )
        .expect("a string can be written");
    }
    c
}

/// `result(arguments)` as a type that the C compiler takes.
fn function(c_type: &str) -> String {
    let (result, arguments) = c_type
        .split_once('(')
        .expect("a function's type has arguments");
    format!("{result} ({arguments}")
}

/// Static libraries are taken whole: SPDK's transports and DPDK's drivers register themselves when they are loaded, and nobody
/// names them.
fn link() {
    let flags = |args: &[&str]| match pkg_config(args) {
        Ok(flags) => flags,
        Err(why) => panic!("pkg-config does not say how to link SPDK: {why}"),
    };
    let own = flags(&["--libs", PACKAGES[0], PACKAGES[1]]);
    let system = flags(&["--libs", "--static", SYSTEM]);
    let mut folders = Vec::new();
    let mut seen = Vec::new();
    for flag in own.split_whitespace() {
        if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={folder}");
            folders.push(PathBuf::from(folder));
        }
        let Some(name) = flag.strip_prefix("-l").filter(|name| !seen.contains(name)) else {
            continue;
        };
        seen.push(name);
        match folders
            .iter()
            .any(|folder| folder.join(format!("lib{name}.a")).exists())
        {
            true => println!("cargo::rustc-link-lib=static:+whole-archive,-bundle={name}"),
            false => println!("cargo::rustc-link-lib=dylib={name}"),
        }
    }
    for flag in system.split_whitespace() {
        if let Some(name) = flag.strip_prefix("-l") {
            println!("cargo::rustc-link-lib=dylib={name}");
        } else if let Some((folder, name)) = archive(Path::new(flag)) {
            println!("cargo::rustc-link-search=native={folder}");
            println!("cargo::rustc-link-lib=static:-bundle={name}");
        }
    }
}

/// Folder and name of a static library that is named by its path.
fn archive(path: &Path) -> Option<(String, String)> {
    let name = path
        .file_name()?
        .to_str()?
        .strip_prefix("lib")?
        .strip_suffix(".a")?;
    Some((path.parent()?.to_str()?.to_owned(), name.to_owned()))
}
