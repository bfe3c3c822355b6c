//! Where to look for members first: any live one is enough, and one's own address among them does no harm.

mod host;
pub mod nodelist;
mod resolver;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

pub use host::Host;
pub use resolver::{SeedStatus, Seeds};

/// One place to look, of `--peers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seed {
    /// `HOST[:PORT]`.
    Host(Host),
    /// `dns:NAME[:PORT]`: all addresses of a name, such as a Kubernetes headless service.
    Dns(Host),
    /// `slurm`: the nodes of the job that this process is part of.
    Slurm,
    /// `file:PATH`: a host on each line.
    File(PathBuf),
}

impl Seed {
    /// Whether it can be looked at: an environment never changes, so what is missing there is missing for good.
    ///
    /// # Errors
    /// What is missing, or wrong.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Seed::Slurm => resolver::slurm_hosts().map(drop),
            Seed::Host(_) | Seed::Dns(_) | Seed::File(_) => Ok(()),
        }
    }
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text.split_once(':') {
            None if text == "slurm" => Ok(Seed::Slurm),
            Some(("dns", name)) => Ok(Seed::Dns(name.parse()?)),
            Some(("file", "")) => {
                Err("`file:` wants a path, such as `file:/etc/forebay/peers`".into())
            }
            Some(("file", path)) => Ok(Seed::File(path.into())),
            _ => Ok(Seed::Host(text.parse()?)),
        }
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seed::Host(host) => host.fmt(f),
            Seed::Dns(host) => write!(f, "dns:{host}"),
            Seed::Slurm => f.write_str("slurm"),
            Seed::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_parse_and_print() {
        for text in [
            "gpu1",
            "gpu1:7000",
            "10.0.0.1",
            "[fd00::1]:7000",
            "dns:cache.ns.svc:7000",
            "dns:cache",
            "slurm",
            "file:/etc/peers",
        ] {
            assert_eq!(text.parse::<Seed>().unwrap().to_string(), text);
        }
        assert_eq!("fd00::1".parse::<Seed>().unwrap().to_string(), "[fd00::1]");
        for text in [
            "", " ", "dns:", "file:", "a:b", "a:0", "a:65536", "a b", ":7440", "a/b",
        ] {
            assert!(text.parse::<Seed>().is_err(), "{text:?}");
        }
    }
}
