//! What is measured: a layer or a user's pattern, with its settings.
//!
//! The text form, `fuse:block=1MiB,depth=8,tier=memory`, is what the command line takes, reports print and outcomes
//! keep. What is left out has its default, so two texts may mean the same; what is shown is always whole.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use forebay_cli::units::Bytes;

mod kinds;

pub use kinds::Kind;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// What a setting may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Bytes, from and to.
    Size(u64, u64),
    /// Bytes, or `auto`.
    SizeOrAuto(u64, u64),
    /// A number, from and to.
    Count(u64, u64),
    /// The name of a file, or nothing.
    File,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// A setting of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Before the `=`.
    pub name: &'static str,
    /// What may stand behind it.
    pub values: Values,
    /// What it is when it is left out.
    pub default: &'static str,
    /// What it means, in a few words.
    pub meaning: &'static str,
}

/// A setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Size(u64),
    Auto,
    Count(u64),
    File(String),
    Word(&'static str),
}

/// What is done, with all its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    kind: Kind,
    /// As [`Kind::keys`].
    values: Vec<Value>,
}

impl Scenario {
    /// The layer or pattern.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    fn value(&self, name: &str) -> &Value {
        let place = self.kind.keys().iter().position(|key| key.name == name);
        match place {
            Some(place) => &self.values[place],
            None => unreachable!("{} has no setting {name}", self.kind.name()),
        }
    }

    /// Whether it has such a setting.
    pub fn has(&self, name: &str) -> bool {
        self.kind.keys().iter().any(|key| key.name == name)
    }

    /// A setting in bytes; none when it is `auto`. The program asks only for settings that the kind has.
    pub fn size_or_auto(&self, name: &str) -> Option<u64> {
        match self.value(name) {
            Value::Size(bytes) => Some(*bytes),
            _ => None,
        }
    }

    /// A setting in bytes.
    pub fn size(&self, name: &str) -> u64 {
        self.size_or_auto(name).unwrap_or_default()
    }

    /// A number.
    pub fn count(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Count(count) => *count,
            _ => unreachable!("{name} is no number"),
        }
    }

    /// A word.
    pub fn word(&self, name: &str) -> &'static str {
        match self.value(name) {
            Value::Word(word) => word,
            _ => unreachable!("{name} is no word"),
        }
    }

    /// A file's name; none when it was left out.
    pub fn file(&self, name: &str) -> Option<&str> {
        match self.value(name) {
            Value::File(file) => Some(file.as_str()).filter(|file| !file.is_empty()),
            _ => unreachable!("{name} is no file"),
        }
    }

    /// Operations that arrive each second; none when each one begins as the one before ends.
    pub fn rate(&self) -> Option<u64> {
        let rate = self.has("rate").then(|| self.count("rate"));
        rate.filter(|rate| *rate > 0)
    }

    /// All settings, as text.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let keys = self.kind.keys().iter().zip(&self.values);
        keys.map(|(key, value)| (key.name.to_owned(), value.to_string()))
            .collect()
    }

    /// In what two scenarios differ, in words; empty when outcomes of both may be compared.
    pub fn differences(&self, other: &Scenario) -> Vec<String> {
        if self.kind != other.kind {
            return vec![format!("{} is not {}", self.kind.name(), other.kind.name())];
        }
        let both = self.values.iter().zip(&other.values);
        let keys = self.kind.keys().iter().zip(both);
        keys.filter(|(_, (one, two))| one != two)
            .map(|(key, (one, two))| format!("{}={one} is not {}={two}", key.name, key.name))
            .collect()
    }

    /// The same with one setting changed.
    ///
    /// # Errors
    /// As for the text form.
    pub fn with(&self, name: &str, text: &str) -> Result<Scenario> {
        let (place, key) = self.kind.key(name)?;
        let mut changed = self.clone();
        changed.values[place] = key.parse(text)?;
        changed.check()?;
        Ok(changed)
    }

    /// The same with several settings changed at once; what must hold together is looked at with all of them.
    ///
    /// # Errors
    /// As for the text form.
    pub fn with_all(&self, settings: &[(&str, &str)]) -> Result<Scenario> {
        let mut changed = self.clone();
        for (name, text) in settings {
            let (place, key) = self.kind.key(name)?;
            changed.values[place] = key.parse(text)?;
        }
        changed.check()?;
        Ok(changed)
    }

    /// How it writes that value of a setting: `4KiB` for 4096.
    ///
    /// # Errors
    /// When there is no such setting, or it cannot have that value.
    pub fn written(&self, name: &str, text: &str) -> Result<String> {
        Ok(self.kind.key(name)?.1.parse(text)?.to_string())
    }

    /// The number that a value of a setting is, bytes of a size; none when it is a word.
    pub fn amount(&self, name: &str, text: &str) -> Option<u64> {
        let (_, key) = self.kind.key(name).ok()?;
        match key.parse(text).ok()? {
            Value::Size(amount) | Value::Count(amount) => Some(amount),
            _ => None,
        }
    }

    /// What settings must hold together.
    fn check(&self) -> Result<()> {
        let size = |name| self.has(name).then(|| self.size(name));
        if let (Some(block), Some(data)) = (size("block"), size("data")) {
            ensure!(
                data >= block,
                "data={} holds no block of {}",
                Value::Size(data),
                Value::Size(block)
            );
        }
        if let (Some(block), Some(file)) = (size("block"), size("size")) {
            ensure!(
                file >= block,
                "size={} holds no block of {}",
                Value::Size(file),
                Value::Size(block)
            );
        }
        if self.has("block") && self.kind != Kind::Origin {
            let block = self.size("block");
            ensure!(
                block.is_multiple_of(4 * KIB),
                "block={} is no multiple of 4KiB",
                Value::Size(block)
            );
        }
        if self.kind == Kind::Engine {
            ensure!(
                self.word("tier") == "disk" || self.word("verify") == "on",
                "verify=off needs tier=disk: what is in memory is always checked"
            );
            ensure!(
                self.word("tier") == "memory" || self.count("cores") == 0,
                "cores=N needs tier=memory: the disk tier is turned by the thread that asks"
            );
        }
        if self.has("depth") && self.has("data") && self.has("block") {
            ensure!(
                self.size("data") / self.size("block") >= self.count("depth"),
                "data={} has fewer blocks than depth={}",
                Value::Size(self.size("data")),
                self.count("depth")
            );
        }
        Ok(())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Size(bytes) => match bytes {
                0 => f.write_str("0B"),
                _ if bytes.is_multiple_of(TIB) => write!(f, "{}TiB", bytes / TIB),
                _ if bytes.is_multiple_of(GIB) => write!(f, "{}GiB", bytes / GIB),
                _ if bytes.is_multiple_of(MIB) => write!(f, "{}MiB", bytes / MIB),
                _ if bytes.is_multiple_of(KIB) => write!(f, "{}KiB", bytes / KIB),
                _ => write!(f, "{bytes}B"),
            },
            Value::Auto => f.write_str("auto"),
            Value::Count(count) => write!(f, "{count}"),
            Value::File(file) => f.write_str(file),
            Value::Word(word) => f.write_str(word),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Value::Size;
        match self {
            Values::Size(least, most) => write!(f, "{} to {}", size(*least), size(*most)),
            Values::SizeOrAuto(least, most) => {
                write!(f, "auto, or {} to {}", size(*least), size(*most))
            }
            Values::Count(least, most) => write!(f, "{least} to {most}"),
            Values::File => f.write_str("a file"),
            Values::OneOf(words) => f.write_str(&words.join("|")),
        }
    }
}

impl Key {
    fn parse(&self, text: &str) -> Result<Value> {
        let wrong = || format!("{}={text}: it may be {}", self.name, self.values);
        let size = |least: u64, most: u64| -> Result<Value> {
            let bytes = text.parse::<Bytes>().map_err(anyhow::Error::msg);
            let bytes = bytes.with_context(wrong)?.0;
            ensure!((least..=most).contains(&bytes), "{}", wrong());
            Ok(Value::Size(bytes))
        };
        match self.values {
            Values::SizeOrAuto(..) if text == "auto" => Ok(Value::Auto),
            Values::Size(least, most) | Values::SizeOrAuto(least, most) => size(least, most),
            Values::Count(least, most) => {
                let count = text.parse::<u64>().ok();
                let count = count.filter(|count| (least..=most).contains(count));
                Ok(Value::Count(count.with_context(wrong)?))
            }
            Values::File => Ok(Value::File(text.to_owned())),
            Values::OneOf(words) => {
                let word = words.iter().find(|word| **word == text);
                Ok(Value::Word(word.with_context(wrong)?))
            }
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        for (number, (key, value)) in self.kind.keys().iter().zip(&self.values).enumerate() {
            let before = if number == 0 { ':' } else { ',' };
            write!(f, "{before}{}={value}", key.name)?;
        }
        Ok(())
    }
}

impl FromStr for Scenario {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Scenario> {
        let (name, settings) = match text.split_once(':') {
            Some((name, settings)) => (name, Some(settings)),
            None => (text, None),
        };
        let kind = Kind::by_name(name)?;
        let keys = kind.keys();
        let values = keys.iter().map(|key| key.parse(key.default));
        let mut values: Vec<Value> = values.collect::<Result<_>>()?;
        let mut given = vec![false; keys.len()];
        for setting in settings.into_iter().flat_map(|all| all.split(',')) {
            let Some((name, text)) = setting.split_once('=') else {
                bail!(
                    "`{setting}` is no setting: write KEY=VALUE; {} has {}",
                    kind.name(),
                    kind.key_names()
                );
            };
            let (place, key) = kind.key(name)?;
            ensure!(
                !std::mem::replace(&mut given[place], true),
                "{name} is given twice"
            );
            values[place] = key.parse(text)?;
        }
        let scenario = Scenario { kind, values };
        scenario.check()?;
        Ok(scenario)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Scenario {
        text.parse().unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn refused(text: &str) -> String {
        match text.parse::<Scenario>() {
            Ok(scenario) => panic!("{text} became {scenario}"),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn what_is_shown_means_the_same() {
        let short = parsed("fuse:block=1MiB,depth=8,tier=memory");
        assert_eq!(short.size("block"), 1 << 20);
        assert_eq!((short.count("depth"), short.word("tier")), (8, "memory"));
        assert_eq!((short.size_or_auto("memory"), short.rate()), (None, None));
        for kind in Kind::ALL {
            let plain = parsed(kind.name());
            assert_eq!(parsed(&plain.to_string()), plain, "{plain}");
            assert_eq!(plain.settings().len(), kind.keys().len());
        }
        assert_eq!(parsed(&short.to_string()), short);
        assert!(short.to_string().contains("block=1MiB,depth=8"), "{short}");
        assert_eq!(parsed("device:rate=500").rate(), Some(500));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        let cases = [
            ("", "no scenario ``; there are: device"),
            ("disk", "no scenario `disk`; there are: device"),
            ("device:", "`` is no setting"),
            (
                "device:block",
                "`block` is no setting: write KEY=VALUE; device has on, block",
            ),
            (
                "device:blok=4KiB",
                "device has no setting blok; it has on, block",
            ),
            ("device:block=4KiB,block=8KiB", "block is given twice"),
            ("device:block=many", "block=many: it may be 4KiB to 1MiB"),
            ("device:block=5000B", "block=5000B is no multiple of 4KiB"),
            ("device:block=2MiB", "block=2MiB: it may be 4KiB to 1MiB"),
            ("device:depth=0", "depth=0: it may be 1 to 256"),
            ("device:depth=-1", "depth=-1: it may be"),
            ("device:on=tape", "on=tape: it may be uring|spdk|memory"),
            (
                "fuse:block=2MiB,data=1MiB",
                "data=1MiB holds no block of 2MiB",
            ),
            (
                "device:block=1MiB,data=4MiB,depth=8",
                "fewer blocks than depth=8",
            ),
            ("engine:verify=off", "verify=off needs tier=disk"),
            ("engine:tier=disk,cores=1", "cores=N needs tier=memory"),
            ("fuse:memory=none", "memory=none: it may be auto, or "),
        ];
        for (text, wanted) in cases {
            let said = refused(text);
            assert!(said.contains(wanted), "{text}: {said}");
        }
    }

    #[test]
    fn every_setting_makes_scenarios_differ() {
        let one = parsed("fuse:block=4KiB,memory=256MiB");
        assert!(one.differences(&one).is_empty());
        assert_eq!(
            one.differences(&parsed("fuse:block=4KiB,memory=1GiB")),
            ["memory=256MiB is not memory=1GiB"]
        );
        assert_eq!(
            one.differences(&parsed("fuse:block=64KiB,memory=256MiB")),
            ["block=4KiB is not block=64KiB"]
        );
        assert_eq!(one.differences(&parsed("device")), ["fuse is not device"]);
        let changed = one.with("order", "random").expect("there is such an order");
        assert_eq!(changed.word("order"), "random");
        assert!(one.with("nonsense", "1").is_err() && one.with("block", "1B").is_err());
    }
}
