//! Keys as listings spell them (`encoding-type=url`), and the one thing on which servers differ:
//! what a plus sign stands for.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use percent_encoding::percent_decode_str;

/// What `+` stands for in a listing's encoded keys.
///
/// AWS encodes as forms do: a space is `+`, a plus sign `%2B`. Others (SeaweedFS) encode as paths:
/// a space is `%20`, and a plus sign stays. A listing echoes the prefix in the same encoding, so
/// one listing of a prefix that holds both tells which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plus {
    Space,
    Plus,
}

/// The end of a prefix whose echo tells.
pub(crate) const PROBE: &str = "+ ";

/// What is known of the server, for all cores.
#[derive(Debug, Default)]
pub(crate) struct PlusSign(AtomicU8);

impl PlusSign {
    pub(crate) fn known(&self) -> Option<Plus> {
        match self.0.load(Relaxed) {
            1 => Some(Plus::Space),
            2 => Some(Plus::Plus),
            _ => None,
        }
    }

    /// Reads the echo of a prefix that ends with [`PROBE`]. A server that echoes something else encodes its keys as AWS
    /// does, for all we can know.
    pub(crate) fn learn(&self, echo: Option<&str>) -> Plus {
        let plus = match echo {
            Some(text) if text.ends_with("+%20") => Plus::Plus,
            _ => Plus::Space,
        };
        self.0
            .store(if plus == Plus::Space { 1 } else { 2 }, Relaxed);
        plus
    }
}

/// A key or prefix decoded; none when it is no UTF-8.
pub(crate) fn decode(told: &str, plus: Plus) -> Option<String> {
    let spaced: Cow<'_, str> = match plus {
        Plus::Space if told.contains('+') => told.replace('+', " ").into(),
        _ => told.into(),
    };
    percent_decode_str(&spaced)
        .decode_utf8()
        .ok()
        .map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_echo_tells_what_a_plus_is() {
        for (echo, plus) in [
            (Some("%2B+"), Plus::Space),
            (Some("%2B%20"), Plus::Space),
            (Some("+%20"), Plus::Plus),
            (Some("dir/a+b/+%20"), Plus::Plus),
            (Some("dir/a+b/%2B+"), Plus::Space),
            (Some("+ "), Plus::Space),
            (None, Plus::Space),
        ] {
            let sign = PlusSign::default();
            assert_eq!(sign.learn(echo), plus, "{echo:?}");
            assert_eq!(sign.known(), Some(plus));
        }
    }

    #[test]
    fn keys_decode() {
        assert_eq!(decode("a+b%2Bc%25", Plus::Space).as_deref(), Some("a b+c%"));
        assert_eq!(decode("a+b%20c", Plus::Plus).as_deref(), Some("a+b c"));
        assert_eq!(
            decode("%C3%A9/%0A", Plus::Plus).as_deref(),
            Some("\u{e9}/\n")
        );
        assert_eq!(decode("%FF", Plus::Space), None);
    }
}
