//! What is wrong with endpoint, bucket, credentials or region, found out before a mount.

use std::time::Duration;

use aws_credential_types::provider::ProvideCredentials;
use aws_sdk_s3::types::EncodingType;
use forebay_engine::errors::OriginErrorKind;
use thiserror::Error;
use tokio::time::timeout;

use crate::config::Resolved;
use crate::errors::{Facts, causes};
use crate::runtime::Shared;

/// Longest search for credentials: the chain's last place is a metadata service that does not
/// answer on most machines.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest wait for the listing that is tried.
const LIST_TIMEOUT: Duration = Duration::from_secs(6);

/// Why an origin cannot be used. Each text says what failed, on what, and what to do next.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CheckError {
    /// The endpoint is no URL.
    #[error(
        "endpoint {endpoint:?} is not usable: {reason}; write http://HOST:PORT or https://HOST"
    )]
    BadEndpoint {
        /// As the user wrote it.
        endpoint: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No connection, or no answer in time.
    #[error(
        "endpoint {endpoint} is not reachable: {detail}; check --endpoint, the network and that the server runs"
    )]
    Unreachable {
        /// Its URL.
        endpoint: String,
        /// What happened.
        detail: String,
    },
    /// Something answered that is no S3 server.
    #[error(
        "{endpoint} answers, but not as an S3 server: {detail}; check --endpoint (host, port, http or https)"
    )]
    NotS3 {
        /// Its URL.
        endpoint: String,
        /// What it answered.
        detail: String,
    },
    /// The bucket does not exist there.
    #[error("bucket {bucket} does not exist at {endpoint}; check its name and --endpoint")]
    NoSuchBucket {
        /// Its name.
        bucket: String,
        /// Where.
        endpoint: String,
    },
    /// The credential chain found nothing.
    #[error(
        "no credentials for s3://{bucket}: {detail}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
         or AWS_PROFILE, or --no-sign-request for unsigned requests"
    )]
    NoCredentials {
        /// The bucket.
        bucket: String,
        /// Where the chain ended.
        detail: String,
    },
    /// The server does not accept the credentials.
    #[error(
        "{endpoint} does not accept the credentials for s3://{bucket}: {detail}; check access key, secret key, \
         session token and this machine's clock"
    )]
    WrongCredentials {
        /// The bucket.
        bucket: String,
        /// Where.
        endpoint: String,
        /// The server's words.
        detail: String,
    },
    /// The credentials are good, but may not list the bucket.
    #[error(
        "listing s3://{bucket} at {endpoint} is not allowed: {detail}; grant s3:ListBucket and s3:GetObject"
    )]
    Denied {
        /// The bucket.
        bucket: String,
        /// Where.
        endpoint: String,
        /// The server's words.
        detail: String,
    },
    /// The bucket lives in another region.
    #[error(
        "bucket {bucket} is not in region {used}{}; set --region",
        in_region(actual)
    )]
    WrongRegion {
        /// The bucket.
        bucket: String,
        /// The region that was tried.
        used: String,
        /// The bucket's region, when the server tells it.
        actual: Option<String>,
    },
    /// The server answered something that fits none of the above.
    #[error("listing s3://{bucket} at {endpoint} failed: {detail}")]
    Failed {
        /// The bucket.
        bucket: String,
        /// Where.
        endpoint: String,
        /// The server's words.
        detail: String,
    },
    /// This machine lacks something.
    #[error("cannot start the origin's threads: {detail}; check the limits on threads and memory")]
    Machine {
        /// What.
        detail: String,
    },
}

fn in_region(actual: &Option<String>) -> String {
    actual
        .as_ref()
        .map(|region| format!(" but in {region}"))
        .unwrap_or_default()
}

/// Looks for credentials, then lists one entry. Whether there is one.
pub(crate) async fn check(
    resolved: &Resolved,
    shared: &Shared,
    bucket: &str,
    prefix: &str,
) -> Result<bool, CheckError> {
    find_credentials(resolved, bucket).await?;
    let request = shared
        .client
        .list_objects_v2()
        .bucket(bucket)
        .prefix(prefix)
        // Keys may hold characters that XML cannot.
        .encoding_type(EncodingType::Url)
        .max_keys(1);
    match timeout(LIST_TIMEOUT, request.send()).await {
        Err(_) => Err(CheckError::Unreachable {
            endpoint: shared.endpoint.clone(),
            detail: format!("no answer within {} s", LIST_TIMEOUT.as_secs()),
        }),
        Ok(Err(error)) => Err(explain(&Facts::of(&error), resolved, shared, bucket)),
        // What is no listing parses as an empty one: a listing tells the bucket's name.
        Ok(Ok(answer)) if answer.name().is_none() && answer.key_count().is_none() => {
            let detail = "the listing names no bucket".to_owned();
            Err(CheckError::NotS3 {
                endpoint: shared.endpoint.clone(),
                detail,
            })
        }
        Ok(Ok(answer)) => Ok(!answer.contents().is_empty()),
    }
}

async fn find_credentials(resolved: &Resolved, bucket: &str) -> Result<(), CheckError> {
    let Some(provider) = &resolved.credentials else {
        return Ok(());
    };
    let detail = match timeout(CREDENTIALS_TIMEOUT, provider.provide_credentials()).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => causes(&error),
        Err(_) => format!("none found within {} s", CREDENTIALS_TIMEOUT.as_secs()),
    };
    Err(CheckError::NoCredentials {
        bucket: bucket.to_owned(),
        detail,
    })
}

fn explain(facts: &Facts, resolved: &Resolved, shared: &Shared, bucket: &str) -> CheckError {
    let (bucket, endpoint, detail) = (
        bucket.to_owned(),
        shared.endpoint.clone(),
        facts.to_string(),
    );
    if facts.credentials.is_some() {
        return CheckError::NoCredentials { bucket, detail };
    }
    match (facts.code.as_deref(), facts.kind()) {
        (
            Some(
                "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "ExpiredToken"
                | "InvalidToken"
                | "RequestTimeTooSkewed"
                | "NotSignedUp",
            ),
            _,
        ) => CheckError::WrongCredentials {
            bucket,
            endpoint,
            detail,
        },
        (_, OriginErrorKind::NoSuchBucket) => CheckError::NoSuchBucket { bucket, endpoint },
        (_, OriginErrorKind::WrongRegion) => CheckError::WrongRegion {
            bucket,
            used: resolved.region.clone(),
            actual: facts.region.clone(),
        },
        (_, _) if facts.is_unreadable() => CheckError::NotS3 { endpoint, detail },
        (_, OriginErrorKind::Denied) => CheckError::Denied {
            bucket,
            endpoint,
            detail,
        },
        (_, OriginErrorKind::Unavailable) if facts.status.is_none() => {
            // What a server without TLS answers is no record of it.
            let detail = match detail.contains("InvalidContentType") {
                true => "it speaks no TLS: is it http:// instead of https://?".to_owned(),
                false => detail,
            };
            CheckError::Unreachable { endpoint, detail }
        }
        _ => CheckError::Failed {
            bucket,
            endpoint,
            detail,
        },
    }
}
