//! Every option, told something that is wrong: what is said of it, and what to do.

use forebay_cli::args::Cli;

use super::support::{Place, have_fuse};

/// A wrong value for each option that takes one: what of the error says what to do.
const WRONG: [(&str, &str, &str); 46] = [
    ("--attr-ttl", "soon", "write `1s`, `5m`, `250ms`"),
    ("--cache-dir", "/nvme*", "name each directory"),
    ("--cache-dir", "pci:5e:00", "`lspci -D` shows them"),
    (
        "--cache-dir",
        "trtype:RDMA traddr:192.0.2.1",
        "give trtype:TCP, or a PCI address",
    ),
    ("--cache-group", "a/b", "use 1 to 128 letters"),
    ("--cache-size", "0", "larger than zero; leave it out"),
    ("--cores", "0", "give a number of cores"),
    ("--dir-mode", "rwx", "write permission bits in octal"),
    ("--endpoint", "nonsense", "write http://HOST:PORT"),
    ("--entry-ttl", "1 week", "write `1s`, `5m`, `250ms`"),
    ("--file-mode", "8", "write permission bits in octal"),
    (
        "--free-space-ratio",
        "1",
        "write a number from 0 to below 1",
    ),
    ("--fuse-threads", "1", "write a whole number from 2 to 64"),
    ("--gid", "root", "write a whole number from 0"),
    ("--group-ip", "10.0.0.0/99", "give an address"),
    ("--group-secret-file", "no/such", "--group-secret-file"),
    ("--group-weight", "-1", "write a whole number from 0"),
    ("--interval", "0", "longer than zero, such as"),
    ("--io-timeout", "0", "longer than zero, such as"),
    ("--listen", "7440", "write ADDR:PORT"),
    ("--listfile", "no/such", "cannot read the list no/such"),
    ("--log-file", "no/dir/log", "name another with --log-file"),
    ("--memory", "-1", "write a number of MiB"),
    ("--negative-ttl", "-1", "write `1s`, `5m`, `250ms`"),
    ("--node-id", "..", "use 1 to 128 letters"),
    (
        "--origin-limit",
        "0",
        "give at least 64 KiB; leave it out for no limit",
    ),
    (
        "--origin-limit",
        "1B",
        "give at least 64 KiB; leave it out for no limit",
    ),
    ("--parallel", "0", "write a whole number from 1 to 512"),
    ("--path-style", "maybe", "write `true` or `false`"),
    (
        "--peer-limit",
        "65535b",
        "give at least 64 KiB; leave it out for no limit",
    ),
    ("--peers", "a b", "give HOST, HOST:PORT"),
    ("--peers", "file:", "such as `file:/etc/forebay/peers`"),
    ("--poll", "never", "possible values: auto, always"),
    ("--rdma-device", "", "a value is required"),
    (
        "--rdma-gid-index",
        "256",
        "write a whole number from 0 to 255",
    ),
    ("--rdma-port", "0", "write a whole number from 1 to 255"),
    (
        "--rdma-service-level",
        "16",
        "write a whole number from 0 to 15",
    ),
    (
        "--rdma-traffic-class",
        "x",
        "write a whole number from 0 to 255",
    ),
    ("--region", "", "a value is required"),
    ("--stale-max", "never", "write `1s`, `5m`, `250ms`"),
    ("--status", "7-7", "`forebay warmup --status` lists them"),
    ("--stop", "", "a value is required"),
    ("--stop", "7-7", "`forebay warmup --status` lists them"),
    ("--transport", "ib", "possible values: auto, rdma, tcp"),
    ("--uid", "4294967296", "write a whole number from 0"),
    ("-o", "nonsense", "use allow_other, uid=N"),
];

/// A wrong word in each place that takes one.
const WRONG_WORDS: [(&[&str], &str); 19] = [
    (&["device", "bind"], "<ADDRESS>"),
    (
        &["device", "bind", "5e:00"],
        "`forebay device list` shows those",
    ),
    (
        &["device", "bind", "pci:ffff:ff:1f.7"],
        "`forebay device list` shows the NVMe controllers",
    ),
    (
        &["device", "unbind", "ffff:ff:1f.7"],
        "`forebay device list` shows the NVMe controllers",
    ),
    (&["mount", "bucket", "m"], "write s3://BUCKET"),
    (&["mount", "s3://bucket", "no/such"], "no does not exist"),
    (&["mount", "s3://bucket"], "<DIR>"),
    (&["serve", "bucket"], "write s3://BUCKET"),
    (&["warmup"], "<PATH>"),
    (
        &["warmup", "no/such"],
        "`forebay mount s3://BUCKET DIR` makes one",
    ),
    (&["check"], "<PATH>"),
    (&["evict", ""], "a value is required for '[PATH]...'"),
    (
        &["status", "nobody"],
        "`forebay status` lists those there are",
    ),
    (
        &["stats", "nobody"],
        "`forebay status` lists those there are",
    ),
    (
        &["stats", "m", "--group", "--interval", "1s"],
        "cannot be used with",
    ),
    (&["drain", ""], "a value is required"),
    (&["drain", "nobody"], "`forebay status` lists what does"),
    (&["doctor", "--group-ip", "192.0.2.1"], "see PROBLEM above"),
    (&["stop", "g/nobody"], "`forebay status` lists what does"),
];

const COMMANDS: [(&str, &[&str]); 10] = [
    ("mount", &["s3://bucket", "m"]),
    ("serve", &["s3://bucket"]),
    ("warmup", &["m/x"]),
    ("check", &["m/x"]),
    ("evict", &["m/x"]),
    ("status", &[]),
    ("stats", &[]),
    ("drain", &[]),
    ("stop", &[]),
    ("doctor", &[]),
];

/// What an option needs beside it, so that it is looked at.
fn company(command: &str, option: &str) -> &'static [&'static str] {
    match (command, option) {
        ("mount", "--group-secret-file") => &["--peers", "127.0.0.1:1"],
        // Nobody else has the port.
        ("serve", "--endpoint") => &["--listen", "127.0.0.1:0", "--node-id", "n"],
        ("serve", "--log-file") => &["--background"],
        (_, "--cache-size") => &["--cache-dir", "m"],
        _ => &[],
    }
}

#[track_caller]
fn refused(place: &Place, args: &[&str], parts: &[&str]) {
    let ended = place.run(args);
    assert!(matches!(ended.code, Some(1 | 2)), "{args:?}: {ended:?}");
    for part in parts {
        assert!(
            ended.stderr.contains(part),
            "{args:?}: no {part:?} in {}",
            ended.stderr
        );
    }
    let all = ended.stderr + &place.log();
    assert!(!all.contains("panicked"), "{args:?}: {all}");
}

#[test]
fn an_option_that_is_told_something_wrong_says_what_to_do() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let path = place.dir("m");
    let mut definition = Cli::definition();
    definition.build();
    for (command, more) in COMMANDS {
        let found = definition
            .find_subcommand(command)
            .expect("it is a command");
        let known = |arg: &&clap::Arg| {
            !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
        };
        for arg in found
            .get_arguments()
            .filter(known)
            .filter(|arg| !arg.is_positional())
        {
            let name = match (arg.get_long(), arg.get_short()) {
                (Some(long), _) => format!("--{long}"),
                (None, short) => format!("-{}", short.expect("an option has a name")),
            };
            if !arg.get_action().takes_values() {
                let told = format!("{name}=x");
                let line = [&[command], more, &[&*told]].concat();
                refused(&place, &line, &[&name, "no more were expected"]);
                continue;
            }
            let mut wrong = WRONG
                .iter()
                .filter(|(option, ..)| *option == name)
                .peekable();
            assert!(
                wrong.peek().is_some(),
                "what is wrong for {command} {name}?"
            );
            for (_, value, what_to_do) in wrong {
                let alone = ["--status", "--stop", "--listfile"].contains(&&*name);
                let more = if alone { &[] } else { more };
                let told = format!("{name}={value}");
                let line = [&[command], more, company(command, &name), &[&*told]].concat();
                let bare = name.trim_start_matches('-');
                // What is asked of a daemon is told by its own name: a list, a job.
                let named = if alone { "" } else { bare };
                refused(&place, &line, &[named, what_to_do]);
            }
        }
    }
    for (line, what_to_do) in WRONG_WORDS {
        refused(&place, line, &[what_to_do]);
    }
    place.assert_clean(&path);
}
