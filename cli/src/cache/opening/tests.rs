use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::super::lock::is_held;
use super::super::place::LOG_FILE;
use super::*;

const MIB: u64 = 1 << 20;

struct Dirs {
    _root: tempfile::TempDir,
    all: Vec<PathBuf>,
}

fn dirs(count: usize) -> Dirs {
    let root = tempfile::tempdir().unwrap();
    let all = (0..count).map(|n| root.path().join(n.to_string()));
    let all: Vec<PathBuf> = all.collect();
    all.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    Dirs { _root: root, all }
}

/// A request and where.
struct Asked {
    dirs: CacheDirs,
    config: CacheConfig,
}

impl Asked {
    fn open(&self) -> Result<Vec<OpenLog>> {
        open(&self.dirs, &self.config)
    }

    fn one(&self) -> OpenLog {
        self.open().unwrap().remove(0)
    }
}

fn asked(dirs: &[PathBuf], mib: u64) -> Asked {
    let names: Vec<&str> = dirs.iter().map(|dir| dir.to_str().unwrap()).collect();
    let dirs = names.join(":").parse().unwrap();
    let config = CacheConfig {
        size: Some(Bytes(mib * MIB)),
        free_space_ratio: "0.1".parse().unwrap(),
        overwrite: Overwrite::Nothing,
        owner: Owner {
            group: "g".parse().unwrap(),
            node: "n".parse().unwrap(),
        },
        cores: 1,
        purpose: "test".into(),
    };
    Asked { dirs, config }
}

fn log_in(dir: &Path) -> PathBuf {
    dir.join("g/n").join(LOG_FILE)
}

fn text(error: anyhow::Error) -> String {
    format!("{error:#}")
}

#[test]
fn a_new_cache_is_private_sparse_and_found_again() {
    let dirs = dirs(2);
    let asked = asked(&dirs.all, 256);
    let logs = asked.open().unwrap();
    let ids: Vec<LogId> = logs.iter().map(|log| log.shared.log).collect();
    assert_ne!(ids[0], ids[1]);
    for (log, dir) in logs.iter().zip(&dirs.all) {
        assert!(log.is_new);
        let meta = fs::metadata(log_in(dir)).unwrap();
        let geometry = Geometry::choose(128 * MIB, 1).unwrap();
        let whole = geometry.offset_bytes(geometry.regions);
        assert_eq!(meta.len(), whole, "equal parts of the total");
        assert!(whole > 120 * MIB);
        assert!(meta.blocks() * 512 <= 2 * MIB, "{}", meta.blocks());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert_eq!(log.shared.name, dir.display().to_string());
        assert_eq!(log.shared.geometry, Geometry::choose(128 * MIB, 1).unwrap());
        assert!(!dir.join("g/n").join(NEW_LOG_FILE).exists());
    }
    let held = asked.open().unwrap_err();
    assert!(is_held(&held), "{held:#}");
    drop(logs);
    let again = asked.open().unwrap();
    assert!(again.iter().all(|log| !log.is_new));
    assert_eq!(
        again.iter().map(|log| log.shared.log).collect::<Vec<_>>(),
        ids
    );
}

#[test]
fn a_cache_grows_and_shrinks_at_start() {
    let dirs = dirs(1);
    let first = asked(&dirs.all, 256).open().unwrap();
    let (id, region_bytes) = (first[0].shared.log, first[0].shared.geometry.region_bytes);
    drop(first);
    for mib in [512, 128, 65, 256] {
        let log = asked(&dirs.all, mib).one();
        assert_eq!(log.shared.log, id, "{mib} MiB");
        let geometry = Geometry::fit(region_bytes, mib * MIB);
        assert_eq!(log.shared.geometry, geometry);
        // No part of a region may be left behind: a larger cache would find its header again, and zeros.
        let whole = geometry.offset_bytes(geometry.regions);
        assert_eq!(fs::metadata(log_in(&dirs.all[0])).unwrap().len(), whole);
    }
    let last = fs::metadata(log_in(&dirs.all[0])).unwrap().len();
    let mut asked = asked(&dirs.all, 64);
    let error = text(asked.open().unwrap_err());
    for part in ["--cache-size", "65 MiB", "--format", "left as it is"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert_eq!(fs::metadata(log_in(&dirs.all[0])).unwrap().len(), last);
    asked.config.overwrite = Overwrite::Unusable;
    let log = asked.one();
    assert!(log.is_new && log.shared.log != id);
    assert!(log.shared.geometry.region_bytes < region_bytes);
}

#[test]
fn what_is_not_ours_is_left_alone_until_format_says_otherwise() {
    let mut ext4 = vec![0; 2 << 20];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    let mut damaged = Superblock {
        log: LogId(7),
        region_bytes: 8 << 20,
        sector_bytes: 512,
        created_ns: 1,
        owner: "g/n".into(),
    }
    .encode()
    .to_vec();
    damaged[40] ^= 1;
    for (bytes, says) in [
        (ext4, "ext4"),
        (damaged, "damaged"),
        (b"hello".to_vec(), "a short file"),
    ] {
        let dirs = dirs(1);
        let path = log_in(&dirs.all[0]);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for below in ["g", "g/n"] {
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(dirs.all[0].join(below), private).unwrap();
        }
        fs::write(&path, &bytes).unwrap();
        let mut asked = asked(&dirs.all, 128);
        let error = text(asked.open().unwrap_err());
        for part in [says, "cache format --force", "--format", "left as it is"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(fs::read(&path).unwrap() == bytes, "nothing was changed");
        asked.config.overwrite = Overwrite::Unusable;
        assert!(asked.one().is_new);
        asked.config.overwrite = Overwrite::Nothing;
        assert!(!asked.one().is_new);
    }
}

#[test]
fn format_keeps_what_is_ours() {
    let dirs = dirs(1);
    let mut asked = asked(&dirs.all, 128);
    let id = asked.one().shared.log;
    asked.config.overwrite = Overwrite::Unusable;
    assert_eq!(asked.one().shared.log, id);
}

#[test]
fn what_a_killed_formatter_left_is_no_obstacle() {
    let dirs = dirs(1);
    let asked = asked(&dirs.all, 128);
    drop(asked.open().unwrap());
    let path = log_in(&dirs.all[0]);
    fs::rename(&path, path.with_file_name(NEW_LOG_FILE)).unwrap();
    assert!(asked.one().is_new);
    // A file of zeros has never been a cache.
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    assert!(asked.one().is_new);
}

#[test]
fn one_bad_directory_fails_them_all() {
    let dirs = dirs(1);
    let typo = dirs.all[0].with_file_name("typo");
    let error = text(asked(&[dirs.all[0].clone(), typo], 256).open().unwrap_err());
    assert!(
        error.contains("typo") && error.contains("does not exist"),
        "{error}"
    );
    let error = text(asked(&dirs.all, 16).open().unwrap_err());
    assert!(
        error.contains("too little") && error.contains("--cache-size"),
        "{error}"
    );
    assert!(!log_in(&dirs.all[0]).exists());
    assert!(!dirs.all[0].join("g/n").join(NEW_LOG_FILE).exists());
}

#[test]
fn without_a_size_the_free_space_decides_and_a_log_never_shrinks() {
    let dirs = dirs(2);
    let mut asked = asked(&dirs.all, 0);
    asked.config.size = None;
    // Whatever else the machine's disk holds.
    asked.config.free_space_ratio = "0".parse().unwrap();
    let room = Room::of(&dirs.all[0]).unwrap();
    let sizes = |asked: &Asked| {
        let logs = asked.open().unwrap();
        let sizes = logs.iter().map(|log| log.medium.geometry().capacity_bytes);
        sizes.collect::<Vec<u64>>()
    };
    let first = sizes(&asked);
    let expected = room.default_bytes(0, asked.config.free_space_ratio, 2);
    for size in &first {
        assert!(size.abs_diff(expected) < expected / 4, "{size} {expected}");
    }
    asked.config.free_space_ratio = "0.999".parse().unwrap();
    assert_eq!(sizes(&asked), first);
    let fresh = super::tests::dirs(1);
    asked.dirs = super::tests::asked(&fresh.all, 1).dirs;
    let error = text(asked.open().unwrap_err());
    assert!(error.contains("--free-space-ratio"), "{error}");
}

#[test]
fn formatting_replaces_our_own_and_others_only_by_force() {
    let dirs = dirs(1);
    let mut asked = asked(&dirs.all, 128);
    let first = asked.one().shared.log;
    asked.config.overwrite = Overwrite::Ours;
    let second = asked.one().shared.log;
    assert_ne!(first, second);
    let path = log_in(&dirs.all[0]);
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let error = text(asked.open().unwrap_err());
    assert!(error.contains("--force"), "{error}");
    asked.config.overwrite = Overwrite::Anything;
    let third = asked.one().shared.log;
    assert_ne!(third, asked.one().shared.log);
}

#[test]
fn a_directory_that_is_named_twice_is_told_as_such() {
    let dirs = dirs(2);
    let link = dirs.all[0].with_file_name("link");
    std::os::unix::fs::symlink(&dirs.all[0], &link).unwrap();
    for other in [link, dirs.all[1].join("../0"), dirs.all[0].join(".")] {
        let both = [dirs.all[0].clone(), other.clone()];
        let error = asked(&both, 256).open().unwrap_err();
        assert!(!is_held(&error), "{error:#}");
        let error = text(error);
        for part in ["the same place", other.to_str().unwrap()] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(!log_in(&dirs.all[0]).exists());
    }
}

#[test]
fn the_log_of_another_node_is_not_taken_in_a_directory_either() {
    let dirs = dirs(1);
    let mut asked = asked(&dirs.all, 128);
    let id = asked.one().shared.log;
    // Who takes another name has another part; who moves the part as well is told.
    asked.config.owner.node = "m".parse().unwrap();
    let (before, after) = (dirs.all[0].join("g/n"), dirs.all[0].join("g/m"));
    fs::rename(&before, &after).unwrap();
    let refused = |asked: &Asked| {
        let error = text(asked.open().unwrap_err());
        let back = dirs.all[0].join("g/n/blocks").display().to_string();
        for part in [
            "cache of g/n",
            "this node is g/m",
            "--node-id",
            &back,
            "--format",
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
    };
    refused(&asked);
    asked.config.overwrite = Overwrite::Ours;
    refused(&asked);
    asked.config.overwrite = Overwrite::Nothing;
    asked.config.owner.node = "n".parse().unwrap();
    fs::rename(&after, &before).unwrap();
    assert_eq!(asked.one().shared.log, id);
    fs::rename(&before, &after).unwrap();
    asked.config.owner.node = "m".parse().unwrap();
    asked.config.overwrite = Overwrite::Unusable;
    assert!(asked.one().is_new);
    asked.config.overwrite = Overwrite::Nothing;
    assert!(!asked.one().is_new);
}
