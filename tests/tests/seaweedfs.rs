//! End to end against an S3 server that others wrote: SeaweedFS, the real `forebay mount`, a plain
//! S3 client. Installs SeaweedFS itself (`ci/seaweedfs`: pinned by version and hash).

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use forebay_tests::harness::{BucketClient, Mount, MountOptions, Weed, install_weed};
use forebay_tests::s3::synthetic_bytes;

const BUCKET: &str = "end-to-end";

fn content(seed: u64, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    synthetic_bytes(seed, 0, &mut bytes);
    bytes.into()
}

/// What a machine may lack; the reason is printed, never swallowed.
fn weed_program() -> Result<Result<PathBuf, String>> {
    if fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .is_err()
    {
        return Ok(Err("no /dev/fuse here, or no right to open it".into()));
    }
    install_weed()
}

#[test]
fn a_bucket_of_seaweedfs_reads_as_it_was_written() -> Result<()> {
    let weed = match weed_program()? {
        Ok(weed) => weed,
        Err(why) => {
            eprintln!("SKIPPED: end to end against SeaweedFS: {why}");
            return Ok(());
        }
    };
    let dir = tempfile::tempdir()?;
    let server = Weed::start(&weed, &dir.path().join("weed"), || true)?;
    let client = BucketClient::new(server.endpoint(), BUCKET, Some(server.credentials()))?;
    client.create()?;
    let objects = objects();
    client.put_all(objects.clone())?;

    let point = dir.path().join("mnt");
    fs::create_dir(&point)?;
    let mount = Mount::new(
        &point,
        &MountOptions {
            // Built by cargo together with this test; target/debug/forebay may be stale or missing.
            binary: Some(env!("CARGO_BIN_EXE_forebay-under-test").into()),
            source: format!("s3://{BUCKET}"),
            endpoint: server.endpoint(),
            credentials: Some(server.credentials()),
            memory: "256MiB",
            flags: ["--attr-ttl", "100ms", "--entry-ttl", "100ms"]
                .map(Into::into)
                .into(),
        },
    )?;
    reads_back(&point, &objects)?;
    listed_names_are_all(&point, &objects)?;
    let unique: u64 = objects.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let stats = mount.stats()?;
    ensure!(stats.read_errors == 0, "{stats:?}");
    ensure!(
        stats.origin_bytes >= unique && stats.origin_bytes as f64 <= 1.01 * unique as f64,
        "{unique} unique bytes: {stats:?}"
    );
    overwritten_while_open(&point, &client)?;
    deleted_names_go(&point, &client)?;
    mount.unmount()
}

/// Sizes around every unit: page, sub-block, chunk, block, stripe.
fn objects() -> Vec<(String, Bytes)> {
    let edges = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20];
    let mut sizes = vec![0, 1, 37 << 20];
    sizes.extend(edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 1]));
    let large = sizes
        .into_iter()
        .enumerate()
        .map(|(n, len)| (format!("sizes/{len}"), content(n as u64, len)));
    let small = (0..1_100).map(|n| {
        (
            format!("many/{:02}/{n:04} ü.txt", n % 7),
            content(1_000 + n, 100),
        )
    });
    large.chain(small).collect()
}

fn reads_back(point: &Path, objects: &[(String, Bytes)]) -> Result<()> {
    for (key, bytes) in objects {
        let mut seen = Vec::new();
        fs::File::open(point.join(key))
            .and_then(|mut file| file.read_to_end(&mut seen))
            .with_context(|| key.clone())?;
        ensure!(seen == *bytes, "{key} differs");
    }
    Ok(())
}

fn listed_names_are_all(point: &Path, objects: &[(String, Bytes)]) -> Result<()> {
    let mut seen = Vec::new();
    let mut dirs = vec![point.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                dirs.push(entry.path());
            } else {
                seen.push(
                    entry
                        .path()
                        .strip_prefix(point)?
                        .to_str()
                        .context("UTF-8")?
                        .to_owned(),
                );
            }
        }
    }
    let mut wanted: Vec<String> = objects.iter().map(|(key, _)| key.clone()).collect();
    seen.sort();
    wanted.sort();
    ensure!(
        seen == wanted,
        "{} names listed, {} wanted",
        seen.len(),
        wanted.len()
    );
    Ok(())
}

/// Old handles read old bytes or fail; new opens read new bytes; never a mixture.
fn overwritten_while_open(point: &Path, client: &BucketClient) -> Result<()> {
    const LEN: usize = 3 << 20;
    let (old, new) = (content(71, LEN), content(72, LEN));
    client.put_all([("changing".to_owned(), old.clone())])?;
    let path = point.join("changing");
    let handle = fs::File::open(&path)?;
    let mut half = vec![0; LEN / 2];
    handle.read_exact_at(&mut half, 0)?;
    ensure!(half == old[..LEN / 2], "before the overwrite");

    client.put_all([("changing".to_owned(), new.clone())])?;
    std::thread::sleep(Duration::from_millis(300));
    ensure!(fs::read(&path)? == new, "a new open reads the new version");
    ensure!(
        fs::metadata(&path)?.ino() != handle.metadata()?.ino(),
        "both versions are one inode"
    );
    for at in (0..LEN).step_by(256 << 10) {
        let mut piece = vec![0; 256 << 10];
        if handle.read_exact_at(&mut piece, at as u64).is_ok() {
            ensure!(
                piece == old[at..at + piece.len()],
                "the old handle reads other bytes at {at}"
            );
        }
    }
    Ok(())
}

fn deleted_names_go(point: &Path, client: &BucketClient) -> Result<()> {
    client.delete("changing")?;
    std::thread::sleep(Duration::from_millis(300));
    let opened = fs::File::open(point.join("changing"))
        .map(drop)
        .map_err(|error| error.kind());
    ensure!(
        opened == Err(io::ErrorKind::NotFound),
        "after its deletion: {opened:?}"
    );
    Ok(())
}
