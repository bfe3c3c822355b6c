//! What the user may set, and what it resolves to with the AWS credential chain.

use std::env;
use std::time::Duration;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    Region, RequestChecksumCalculation, ResponseChecksumValidation, SharedCredentialsProvider,
    StalledStreamProtectionConfig,
};

use crate::check::CheckError;
use crate::endpoint::endpoint_identity;

/// Longest wait for a TCP connection (and TLS) of one attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for the machine's metadata service to tell the region.
const IMDS_REGION_TIMEOUT: Duration = Duration::from_secs(2);
/// The region where nothing names another.
const REGION_DEFAULT: &str = "us-east-1";

/// An access key and its secret, known from the start.
#[derive(Clone, PartialEq, Eq)]
pub struct StaticCredentials {
    /// The access key.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
}

impl std::fmt::Debug for StaticCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StaticCredentials")
            .field("access_key", &self.access_key)
            .finish_non_exhaustive()
    }
}

/// How the origin is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginConfig {
    /// `--endpoint`. None: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, the profile's, or AWS itself.
    pub endpoint: Option<String>,
    /// `--region`. None: the AWS chain's; else `us-east-1`.
    pub region: Option<String>,
    /// Bucket in the path instead of the host name. None: yes with an endpoint of one's own.
    pub path_style: Option<bool>,
    /// Send unsigned requests.
    pub anonymous: bool,
    /// Keys to sign with. None: the AWS credential chain.
    pub credentials: Option<StaticCredentials>,
    /// Threads of the runtime.
    pub workers: usize,
    /// GETs under way at a time, over all cores: bounds the connections.
    pub gets_max: usize,
    /// HEADs and listings under way at a time: their own share, so that GETs cannot starve them.
    pub metadata_max: usize,
}

impl Default for OriginConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            path_style: None,
            anonymous: false,
            credentials: None,
            workers: 2,
            gets_max: 128,
            metadata_max: 32,
        }
    }
}

/// A client and what it was made from.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) client: Client,
    /// The endpoint's URL; none for AWS itself.
    pub(crate) endpoint: Option<String>,
    /// The endpoint as identities spell it.
    pub(crate) identity: String,
    pub(crate) region: String,
    /// None when unsigned.
    pub(crate) credentials: Option<SharedCredentialsProvider>,
}

/// Asks the environment and the profile, then, for AWS itself only, the metadata service: on any
/// other machine that would only be a wait.
async fn find_region(config: &OriginConfig, has_endpoint: bool) -> String {
    if let Some(region) = &config.region {
        return region.clone();
    }
    let chain = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new());
    if let Some(region) = chain.region().await {
        return region.to_string();
    }
    if !has_endpoint {
        let imds = ImdsRegionProvider::builder().build();
        if let Ok(Some(region)) = tokio::time::timeout(IMDS_REGION_TIMEOUT, imds.region()).await {
            return region.to_string();
        }
    }
    REGION_DEFAULT.to_owned()
}

fn endpoint_from_environment() -> Option<String> {
    let ignored = env::var("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_ok_and(|text| text == "true");
    if ignored {
        return None;
    }
    let named = |name| env::var(name).ok().filter(|text| !text.is_empty());
    named("AWS_ENDPOINT_URL_S3").or_else(|| named("AWS_ENDPOINT_URL"))
}

/// Makes the client. Credentials are looked for only when the first request needs them.
pub(crate) async fn resolve(config: &OriginConfig) -> Result<Resolved, CheckError> {
    let mut endpoint = config.endpoint.clone().or_else(endpoint_from_environment);
    let region = find_region(config, endpoint.is_some()).await;
    let mut loader = aws_config::defaults(aws_config::BehaviorVersion::latest())
        .region(Region::new(region.clone()));
    if config.anonymous {
        loader = loader.no_credentials();
    } else if let Some(StaticCredentials {
        access_key,
        secret_key,
    }) = &config.credentials
    {
        let fixed = Credentials::new(access_key, secret_key, None, None, "forebay");
        loader = loader.credentials_provider(fixed);
    }
    let shared = loader.load().await;
    endpoint = endpoint.or_else(|| shared.endpoint_url().map(str::to_owned));
    let identity = endpoint_identity(endpoint.as_deref(), &region)?;
    let endpoint = endpoint.map(|url| url.trim().to_owned());

    let mut builder = aws_sdk_s3::config::Builder::from(&shared)
        // The engine retries, within the reader's deadline.
        .retry_config(RetryConfig::disabled())
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .build(),
        )
        // Deadlines end what stalls. The wrapper costs a timer for each piece of a body.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // S3's checksums cover whole objects, not ranges; the engine makes its own on arrival.
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .force_path_style(config.path_style.unwrap_or(endpoint.is_some()));
    if let Some(url) = &endpoint {
        builder = builder.endpoint_url(url);
    }
    if config.anonymous {
        builder = builder.allow_no_auth();
    }
    let credentials = shared.credentials_provider().filter(|_| !config.anonymous);
    Ok(Resolved {
        client: Client::from_conf(builder.build()),
        endpoint,
        identity,
        region,
        credentials,
    })
}
