//! `deploy/mount.forebay`, which mount(8) runs: what of its options becomes which flag.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use forebay_cli::args::Cli;

const HELPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/mount.forebay");
/// Flags that people give to `forebay mount` themselves, or that `-o` carries as they are.
const NO_OPTIONS: [&str; 8] = [
    "allow-other",
    "daemon",
    "foreground",
    "format",
    "gid",
    "help",
    "uid",
    "version",
];

/// The helper with a `forebay` that prints `SECRET` and its arguments, one each line.
fn helper(dir: &Path, args: &[&str]) -> Output {
    let program = dir.join("forebay");
    fs::write(
        &program,
        "#!/bin/sh\nprintf '%s\\n' \"${SECRET:-}\" \"$@\"\n",
    )
    .unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    Command::new(HELPER)
        .args(args)
        .env("PATH", format!("{}:{path}", dir.display()))
        .env_remove("SECRET")
        .output()
        .expect("the helper starts")
}

fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn every_flag_of_mount_is_an_option() {
    let dir = tempfile::tempdir().unwrap();
    let definition = Cli::definition();
    let mount = definition.find_subcommand("mount").unwrap();
    let mut seen = 0;
    for arg in mount.get_arguments() {
        let Some(long) = arg.get_long().filter(|long| !NO_OPTIONS.contains(long)) else {
            continue;
        };
        let (option, flag) = match arg.get_action().takes_values() {
            true => (
                format!("{}=a:b", long.replace('-', "_")),
                format!("--{long}=a:b"),
            ),
            false => (long.replace('-', "_"), format!("--{long}")),
        };
        let told = lines(&helper(
            dir.path(),
            &["s3://b/p q", "/mnt", "-o", &format!("rw,{option}")],
        ));
        let wanted = ["", "mount", "s3://b/p q", "/mnt", &flag, "-o", "rw"];
        assert_eq!(
            told, wanted,
            "add {long} to the options in deploy/mount.forebay"
        );
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn what_else_mount_8_passes() {
    let dir = tempfile::tempdir().unwrap();
    let env = dir.path().join("env");
    fs::write(&env, "# a comment\nSECRET=x y=$z\n\nno variable").unwrap();
    let options = format!("ro,_netdev,env_file={},peers=*,peers=c", env.display());
    let args = [
        "s3://b", "/m", "-n", "-s", "-v", "-o", &options, "-o", "uid=7",
    ];
    let wanted = [
        "x y=$z",
        "mount",
        "s3://b",
        "/m",
        "--peers=*",
        "--peers=c",
        "-o",
        "ro,_netdev,uid=7",
    ];
    assert_eq!(lines(&helper(dir.path(), &args)), wanted);
    assert!(
        lines(&helper(dir.path(), &["s3://b", "/m", "-f"])).is_empty(),
        "-f mounts nothing"
    );
}

#[test]
fn what_cannot_be_done_is_told() {
    let dir = tempfile::tempdir().unwrap();
    for (args, part) in [
        (&["s3://b"][..], "mount -t forebay"),
        (&["s3://b", "/m", "-o", "env_file=/no/such"], "/no/such"),
        (&["s3://b", "/m", "-N", "1"], "-N"),
    ] {
        let output = helper(dir.path(), args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(part), "{text}");
    }
}
