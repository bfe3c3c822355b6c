//! The SDK's errors as the engine's: kind for retry and errno, words for people.

use std::error::Error;
use std::fmt;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use forebay_engine::errors::{OriginError, OriginErrorKind};

/// What was being done, for error texts. Made only when something fails.
pub(crate) struct Attempt<'a> {
    /// `GET`, `HEAD` or `LIST`.
    pub(crate) verb: &'static str,
    pub(crate) bucket: &'a str,
    pub(crate) key: &'a str,
    pub(crate) endpoint: &'a str,
}

impl fmt::Display for Attempt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys may hold newlines and other characters that would break a log.
        write!(
            f,
            "{} s3://{}/{} at {}",
            self.verb,
            self.bucket,
            self.key.escape_debug(),
            self.endpoint
        )
    }
}

impl Attempt<'_> {
    pub(crate) fn error(&self, kind: OriginErrorKind, what: impl fmt::Display) -> OriginError {
        OriginError::new(kind, format!("{self}: {what}{}", advice(kind)))
    }

    pub(crate) fn sdk_error<E>(&self, error: &SdkError<E, HttpResponse>) -> OriginError
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let facts = Facts::of(error);
        if facts.credentials.is_some() {
            let advice = "; S3 was not asked: look at what the credentials come from";
            return OriginError::new(facts.kind(), format!("{self}: {facts}{advice}"));
        }
        self.error(facts.kind(), &facts)
    }
}

fn advice(kind: OriginErrorKind) -> &'static str {
    use OriginErrorKind::*;
    match kind {
        Denied => {
            "; check the credentials, their permissions on the bucket, and this machine's clock"
        }
        NoSuchBucket => "; check the bucket's name and the endpoint",
        WrongRegion => "; set --region to the bucket's region",
        Unavailable | Timeout => "; check that the endpoint is up and reachable from here",
        _ => "",
    }
}

/// What an SDK error tells.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) code: Option<String>,
    pub(crate) message: Option<String>,
    /// HTTP status; none when there was no answer.
    pub(crate) status: Option<u16>,
    /// The region that the answer names.
    pub(crate) region: Option<String>,
    /// No credentials could be had, and why: S3 was not asked.
    pub(crate) credentials: Option<String>,
    /// What went wrong on the way, when there was no answer or none that could be read.
    pub(crate) transport: Option<String>,
    unreadable: bool,
}

impl Facts {
    pub(crate) fn of<E>(error: &SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let response = error.raw_response();
        let service = error.as_service_error().map(ProvideErrorMetadata::meta);
        let body = response
            .and_then(|answer| answer.body().bytes())
            .unwrap_or_default();
        let header = |name| response.and_then(|answer| answer.headers().get(name));
        Self {
            code: service.and_then(|meta| meta.code()).map(str::to_owned),
            message: service.and_then(|meta| meta.message()).map(str::to_owned),
            status: response.map(|answer| answer.status().as_u16()),
            region: header("x-amz-bucket-region")
                .map(str::to_owned)
                .or_else(|| region_in(body)),
            credentials: chain(error)
                .find(|error| error.is::<CredentialsError>())
                .map(causes),
            transport: service.is_none().then(|| match error {
                // The layers around it only say that a request was sent.
                SdkError::DispatchFailure(_) | SdkError::TimeoutError(_) => innermost(error),
                _ => causes(error),
            }),
            unreadable: matches!(error, SdkError::ResponseError(_)),
        }
    }

    pub(crate) fn kind(&self) -> OriginErrorKind {
        use OriginErrorKind::*;
        // Whoever hands them out may be down, as S3 itself may be. Only S3 denies.
        if self.credentials.is_some() {
            return Unavailable;
        }
        match self.code.as_deref() {
            Some("NoSuchBucket") => return NoSuchBucket,
            Some("PermanentRedirect" | "AuthorizationHeaderMalformed" | "TemporaryRedirect") => {
                return WrongRegion;
            }
            Some("IllegalLocationConstraintException") => return WrongRegion,
            Some("SlowDown" | "TooManyRequests" | "RequestLimitExceeded" | "Throttling") => {
                return Throttled;
            }
            Some("ExpiredToken" | "InvalidToken") => return Denied,
            Some("RequestTimeout") => return Unavailable,
            _ => {}
        }
        match self.status {
            None => Unavailable,
            Some(301 | 307) => WrongRegion,
            Some(401 | 403) => Denied,
            Some(404) => NotFound,
            Some(412 | 416) => VersionChanged,
            Some(429) => Throttled,
            // A HEAD has no body that could say SlowDown.
            Some(503) if self.code.is_none() => Throttled,
            Some(500..) => Unavailable,
            Some(_) => BadAnswer,
        }
    }

    /// Whether an answer came that no S3 server gives.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.unreadable || (self.status.is_some() && self.code.is_none())
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.credentials {
            return write!(f, "no credentials could be loaded: {why}");
        }
        if let Some(status) = self.status {
            write!(f, "HTTP {status}")?;
        }
        if let Some(code) = &self.code {
            write!(f, " {code}")?;
        }
        if let Some(message) = &self.message {
            write!(f, " ({message})")?;
        }
        if let Some(region) = &self.region {
            write!(f, " (region {region})")?;
        }
        match (&self.transport, self.status) {
            (Some(transport), Some(_)) => write!(f, ": {transport}"),
            (Some(transport), None) => f.write_str(transport),
            (None, _) => Ok(()),
        }
    }
}

/// `<Region>` of an error answer: the SDK's error types have no place for it.
fn region_in(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once("<Region>")?;
    let (region, _) = rest.split_once("</Region>")?;
    Some(region.to_owned())
}

/// An error and its causes, outermost first.
pub(crate) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The text of an error's first cause.
fn innermost(error: &(dyn Error + 'static)) -> String {
    chain(error)
        .map(ToString::to_string)
        .filter(|text| !text.is_empty())
        .last()
        .unwrap_or_default()
}

/// The texts of an error and its causes, without repetitions.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for error in chain(error) {
        let text = error.to_string();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::operation::head_object::HeadObjectError;

    use super::*;

    #[test]
    fn credentials_that_cannot_be_loaded_are_no_denial() {
        let cause = CredentialsError::provider_error("the metadata service is down");
        let error: SdkError<HeadObjectError, HttpResponse> = SdkError::construction_failure(cause);
        let attempt = Attempt {
            verb: "HEAD",
            bucket: "b",
            key: "k",
            endpoint: "http://e",
        };
        let error = attempt.sdk_error(&error);
        assert_eq!(error.kind, OriginErrorKind::Unavailable, "{error}");
        for part in ["the metadata service is down", "S3 was not asked"] {
            assert!(error.detail.contains(part), "{error}");
        }
    }
}
