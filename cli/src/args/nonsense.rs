//! What options are told by mistake: the error is about the option, whatever it is told.

use clap::Arg;

use super::Cli;

const COMMANDS: [(&str, &[&str]); 9] = [
    ("mount", &["s3://b", "/m"]),
    ("serve", &["s3://b"]),
    ("warmup", &[]),
    ("check", &["/m/x"]),
    ("evict", &["/m/x"]),
    ("status", &[]),
    ("stats", &[]),
    ("drain", &[]),
    ("stop", &[]),
];

const NONSENSE: [&str; 28] = [
    "",
    " ",
    "-",
    "--",
    "-1",
    "-1GiB",
    "--memory",
    "0",
    "0x10",
    "1e9",
    "1.5.2",
    ".",
    "..",
    "99999999999999999999999999999999999999999",
    "18446744073709551616TiB",
    "0.0000000000000000000001",
    "NaN",
    "inf",
    "lots",
    "\u{1b}[31m\u{e9}",
    "a b",
    ",",
    ":",
    "//",
    "[::",
    "/99",
    "%s%n",
    "s3://",
];

/// How an option is written.
fn name(arg: &Arg) -> String {
    match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => panic!("{} is no option", arg.get_id()),
    }
}

fn refusal(line: &[&str]) -> Option<String> {
    Cli::parsed(line).err().map(|error| error.to_string())
}

#[test]
fn whatever_an_option_is_told_the_error_is_about_it() {
    let mut definition = Cli::definition();
    definition.build();
    let mut refused = 0;
    for (command, more) in COMMANDS {
        let found = definition.find_subcommand(command);
        for arg in found.expect("it is a command").get_opts() {
            let name = name(arg);
            let any = format!("{name}=x/y:z");
            let is_text = refusal(&[&["forebay", command][..], more, &[&any]].concat()).is_none();
            for value in NONSENSE {
                let joined = format!("{name}={value}");
                let apart: &[&str] = &[&name, value];
                let forms = [&[&*joined][..], apart];
                // One that may stand alone takes nothing but what is joined to it.
                let forms = &forms[..2 - usize::from(arg.is_require_equals_set())];
                for told in forms {
                    let line = [&["forebay", command][..], more, *told].concat();
                    let Some(error) = refusal(&line) else {
                        continue;
                    };
                    refused += 1;
                    // Free text may begin with a dash only behind an equals sign; the dash and a letter are named.
                    let is_other =
                        is_text && told.len() == 2 && value.len() > 1 && value.starts_with('-');
                    assert!(
                        error.contains(&name) || is_other && error.contains(&value[..2]),
                        "{line:?}: {error}"
                    );
                }
            }
        }
    }
    assert!(refused > 1_000, "{refused}");
}

#[test]
fn what_follows_a_command_may_be_anything() {
    for (command, _) in COMMANDS {
        for value in NONSENSE {
            for line in [
                &["forebay", command, value][..],
                &["forebay", command, "--", value],
                &["forebay", command, value, value],
                &["forebay", command, "--", value, value],
            ] {
                if let Some(error) = refusal(line) {
                    assert!(
                        error.starts_with("error: ") || error.contains("Usage: "),
                        "{error}"
                    );
                }
            }
        }
    }
}
