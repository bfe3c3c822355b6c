//! How an endpoint is spelled in a block's identity.

use crate::check::CheckError;

/// The spelling of an endpoint in `Bucket::endpoint`: the same from every mount of one bucket,
/// however the user wrote it.
///
/// `None`, and every spelling of AWS's own endpoints, give `s3.REGION`. Others give
/// `scheme://host[:port][/path]` with scheme and host in lower case, without the scheme's default
/// port and without trailing slashes.
///
/// # Errors
/// [`CheckError::BadEndpoint`] when the text is no `http://` or `https://` URL of a host.
pub fn endpoint_identity(endpoint: Option<&str>, region: &str) -> Result<String, CheckError> {
    let Some(endpoint) = endpoint else {
        return Ok(format!("s3.{region}"));
    };
    let bad = |reason: &'static str| CheckError::BadEndpoint {
        endpoint: without_user(endpoint),
        reason,
    };
    let (scheme, rest) = endpoint
        .trim()
        .split_once("://")
        .ok_or_else(|| bad("it has no scheme"))?;
    let scheme = scheme.to_ascii_lowercase();
    let default_port = match scheme.as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => return Err(bad("its scheme is neither http nor https")),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // Also behind a `/`, `?` or `#`, which a password may hold.
    if rest.contains('@') {
        return Err(bad(
            "it holds a user name; credentials come from the AWS credential chain",
        ));
    }
    if path.contains(['?', '#']) {
        return Err(bad("it has a query or a fragment"));
    }
    let authority = authority.to_ascii_lowercase();
    let host = authority.strip_suffix(default_port).unwrap_or(&authority);
    if host.is_empty() || host.starts_with(':') || host.contains(char::is_whitespace) {
        return Err(bad("it names no host"));
    }
    if let Some(region) = aws_region(host) {
        return Ok(format!("s3.{region}"));
    }
    Ok(format!("{scheme}://{host}{}", path.trim_end_matches('/')))
}

/// The endpoint as texts may show it: what may be a user's name and password is hidden. A password
/// may hold any character, so all up to the last `@` goes, a path's included.
fn without_user(endpoint: &str) -> String {
    let Some((user, host)) = endpoint.rsplit_once('@') else {
        return endpoint.to_owned();
    };
    let scheme = user.split_once("://").map(|(scheme, _)| scheme);
    let scheme = scheme.filter(|scheme| scheme.chars().all(char::is_alphanumeric));
    match scheme {
        Some(scheme) => format!("{scheme}://***@{host}"),
        None => format!("***@{host}"),
    }
}

/// The region of one of AWS's own endpoints.
fn aws_region(host: &str) -> Option<&str> {
    let name = host
        .strip_suffix(".amazonaws.com")
        .or_else(|| host.strip_suffix(".amazonaws.com.cn"))?;
    if name == "s3" {
        return Some("us-east-1");
    }
    let region = name
        .strip_prefix("s3.dualstack.")
        .or_else(|| name.strip_prefix("s3."))?;
    (!region.contains('.')).then_some(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_endpoint_has_one_spelling() {
        for (text, spelled) in [
            ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
            ("http://127.0.0.1:9000///", "http://127.0.0.1:9000"),
            (" HTTP://Minio.Example:80/", "http://minio.example"),
            ("https://minio.example:443", "https://minio.example"),
            ("https://minio.example:80", "https://minio.example:80"),
            ("http://[::1]:9000/", "http://[::1]:9000"),
            ("https://gw.example/S3/", "https://gw.example/S3"),
            ("https://s3.amazonaws.com", "s3.us-east-1"),
            ("https://s3.eu-west-1.amazonaws.com/", "s3.eu-west-1"),
            (
                "https://s3.dualstack.eu-west-1.amazonaws.com",
                "s3.eu-west-1",
            ),
            ("https://s3.cn-north-1.amazonaws.com.cn", "s3.cn-north-1"),
        ] {
            assert_eq!(
                endpoint_identity(Some(text), "x").unwrap(),
                spelled,
                "{text}"
            );
        }
        assert_eq!(
            endpoint_identity(None, "eu-west-1").unwrap(),
            "s3.eu-west-1"
        );
    }

    #[test]
    fn no_text_shows_a_password() {
        for (text, shown) in [
            ("http://u:secret@h:80/p", "http://***@h:80/p"),
            ("http://u:s/ecret@h", "http://***@h"),
            ("http://u:s#@ecret@h", "http://***@h"),
            ("ftp://u:secret@h", "ftp://***@h"),
            ("u:secret@h", "***@h"),
            ("u:se://cret@h", "***@h"),
        ] {
            let error = endpoint_identity(Some(text), "r").unwrap_err().to_string();
            assert!(
                error.contains(&format!("{shown:?}")) && !error.contains("ecret"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for text in [
            "",
            "127.0.0.1:9000",
            "ftp://host",
            "http://",
            "http://:80",
            "http://h?x",
            "http://a b",
            "http://u:p@h",
        ] {
            assert!(
                matches!(
                    endpoint_identity(Some(text), "r"),
                    Err(CheckError::BadEndpoint { .. })
                ),
                "{text}"
            );
        }
    }
}
