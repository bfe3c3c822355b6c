//! `s3://bucket/prefix` and `s3://bucket/key`.

use std::fmt;
use std::str::FromStr;

use forebay_engine::limits::KEY_BYTES_MAX;

const SCHEME: &str = "s3://";

fn split(text: &str) -> Result<(&str, &str), String> {
    let rest = text.strip_prefix(SCHEME).ok_or_else(|| {
        format!("`{text}` is no s3:// URL: write s3://BUCKET or s3://BUCKET/PREFIX")
    })?;
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if bucket.is_empty() || bucket.len() > 255 || !bucket.chars().all(allowed) {
        return Err(format!(
            "`{bucket}` in `{text}` is no bucket name: write s3://BUCKET or s3://BUCKET/PREFIX; the \
             server's address goes to --endpoint"
        ));
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(format!(
            "the key in `{text}` is longer than the {KEY_BYTES_MAX} bytes that S3 allows"
        ));
    }
    Ok((bucket, key))
}

/// A bucket, or what begins with a prefix in it: the root of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The bucket's name.
    pub bucket: String,
    /// Empty, or ending in `/`: the directory of the bucket that is mounted.
    pub prefix: String,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (bucket, prefix) = split(text)?;
        let prefix = match prefix.strip_suffix('/').unwrap_or(prefix) {
            "" => String::new(),
            directory => format!("{directory}/"),
        };
        Ok(Self {
            bucket: bucket.to_owned(),
            prefix,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.prefix)
    }
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectUrl {
    /// The bucket's name.
    pub bucket: String,
    /// The whole key.
    pub key: String,
}

impl FromStr for ObjectUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (bucket, key) = split(text)?;
        match key {
            "" => Err(format!("`{text}` names no object: write s3://BUCKET/KEY")),
            _ => Ok(Self {
                bucket: bucket.to_owned(),
                key: key.to_owned(),
            }),
        }
    }
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_directory() {
        for (text, prefix) in [
            ("s3://data", ""),
            ("s3://data/", ""),
            ("s3://data/a", "a/"),
            ("s3://data/a/", "a/"),
            ("s3://data/a/b c", "a/b c/"),
        ] {
            let source: Source = text.parse().unwrap();
            assert_eq!(
                (source.bucket.as_str(), source.prefix.as_str()),
                ("data", prefix),
                "{text}"
            );
            assert_eq!(source.to_string().parse(), Ok(source));
        }
    }

    #[test]
    fn an_object_has_a_key_that_is_kept_as_it_is() {
        let url: ObjectUrl = "s3://data/a//b/".parse().unwrap();
        assert_eq!((url.bucket.as_str(), url.key.as_str()), ("data", "a//b/"));
        assert!(
            "s3://data".parse::<ObjectUrl>().is_err() && "s3://data/".parse::<ObjectUrl>().is_err()
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let long = format!("s3://data/{}", "x".repeat(KEY_BYTES_MAX + 1));
        for text in [
            "",
            "data",
            "/data",
            "http://data",
            "s3:/data",
            "s3://",
            "s3:///x",
            "s3://a b/x",
            "s3://ä",
            &long,
        ] {
            assert!(text.parse::<Source>().is_err(), "{text}");
            assert!(text.parse::<ObjectUrl>().is_err(), "{text}");
        }
    }
}
