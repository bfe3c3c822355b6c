//! Credentials that cannot be loaded for a while: S3 has denied nothing.

use std::fs;
use std::time::{Duration, Instant};

use super::support::{COMMAND_TIMEOUT, Place, Running, eventually, have_fuse, json, pattern};

#[test]
fn credentials_that_cannot_be_loaded_for_a_while_are_an_outage() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "known", pattern(100_000, 1));
    place.server.put("bucket", "later", pattern(100_000, 2));
    let keys = place.server.options();
    // Due at once, so that they are asked for again and again.
    let credentials = format!(
        r#"{{"Version":1,"AccessKeyId":"{}","SecretAccessKey":"{}","Expiration":"2020-01-01T00:00:00Z"}}"#,
        keys.access_key, keys.secret_key
    );
    let (config, told) = (place.dir(".").join("config"), place.dir(".").join("told"));
    fs::write(&told, credentials).unwrap();
    let process = format!("[default]\ncredential_process = cat {}\n", told.display());
    fs::write(&config, process).unwrap();
    let path = place.dir("m");
    let mut command = place.command(&["mount", "s3://bucket", "m"]);
    command
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY")
        .env("AWS_CONFIG_FILE", &config);
    Running::start(&mut command).wait(COMMAND_TIMEOUT).ok();
    let read = |name: &str| fs::read(path.join(name));
    assert_eq!(read("known").unwrap(), pattern(100_000, 1));

    let aside = told.with_extension("aside");
    fs::rename(&told, &aside).unwrap();
    let status = || json(&place.run(&["status", "m", "--json"]).ok().text());
    let error = || status()["s3_error"].as_str().unwrap_or_default().to_owned();
    // Names are believed for a second; then S3 would be asked.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) || error().is_empty() {
        assert_eq!(read("known").unwrap(), pattern(100_000, 1));
    }
    assert!(
        error().contains("no credentials could be loaded"),
        "{}",
        error()
    );
    fs::rename(&aside, &told).unwrap();
    eventually("S3 is asked again", || read("later").is_ok());
    assert_eq!(read("later").unwrap(), pattern(100_000, 2));
    eventually("the outage is over", || error().is_empty());
    place.run(&["umount", "m"]).ok();
}
