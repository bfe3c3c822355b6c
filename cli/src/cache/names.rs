//! Whose part of a cache directory: the group's and the node's names.

use std::fmt;
use std::str::FromStr;

/// Longest name.
const NAME_BYTES_MAX: usize = 128;
/// The host name's part of a default node name is cut to this.
const HOST_BYTES_MAX: usize = 64;
/// Hexadecimal digits of the machine id's hash in a default node name.
const MACHINE_DIGITS: usize = 12;

/// The name of a group or of a node: a path component of letters, digits, `.`, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if !begins_well || !text.chars().all(is_sane) || text.len() > NAME_BYTES_MAX {
            return Err(format!(
                "`{text}` is no name: use 1 to {NAME_BYTES_MAX} letters, digits, `.`, `-` and `_`, with a letter, digit or `_` first"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_sane(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
}

/// This machine's name, the same after each restart: its host name and, where there is a machine
/// id, a hash of that (the id itself shall not be shown to others, says machine-id(5)).
pub fn node_of_this_machine() -> Name {
    let host = rustix::system::uname();
    let files = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
    let machine = files.iter().find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        let id = text.trim();
        (id.len() >= 16 && id != "uninitialized").then(|| id.to_owned())
    });
    node_name(&host.nodename().to_string_lossy(), machine.as_deref())
}

fn node_name(host: &str, machine: Option<&str>) -> Name {
    let host: String = host
        .chars()
        .map(|c| if is_sane(c) { c } else { '-' })
        .collect();
    let host = host.trim_start_matches(['.', '-']);
    let host = match host {
        "" => "node",
        host => &host[..host.len().min(HOST_BYTES_MAX)],
    };
    Name(match machine {
        Some(id) => {
            let hash = blake3::derive_key("forebay 2026 node name from machine id", id.as_bytes());
            let digits = blake3::Hash::from_bytes(hash).to_hex();
            format!("{host}-{}", &digits[..MACHINE_DIGITS])
        }
        None => host.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_path_components_of_sane_characters() {
        for text in ["default", "gpu-17.rack_3", "0", "_x", &"a".repeat(128)] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), text);
        }
        for text in [
            "",
            ".",
            "..",
            ".x",
            "-x",
            "a/b",
            "a b",
            "ä",
            "a\n",
            &"a".repeat(129),
        ] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_default_name_is_a_name_and_hides_the_machine_id() {
        let id = "0123456789abcdef0123456789abcdef";
        for host in [
            "gpu17",
            "gpu17.example.org",
            "",
            "-.-",
            "höst name",
            &"h".repeat(300),
        ] {
            for machine in [None, Some(id)] {
                let name = node_name(host, machine);
                assert!(name.as_str().parse::<Name>().is_ok(), "{host}: {name}");
                assert!(!name.as_str().contains(&id[..8]));
                assert_eq!(name, node_name(host, machine));
            }
        }
        assert_eq!(node_name("gpu17", None).as_str(), "gpu17");
        assert_ne!(
            node_name("a", Some(id)),
            node_name("a", Some("another one, as long"))
        );
        assert_eq!(node_of_this_machine(), node_of_this_machine());
    }
}
