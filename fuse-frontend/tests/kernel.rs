//! The mount as programs see it, through the kernel, over a stand-in for the engine.
//!
//! Each test has its own mount; a guard takes it down whatever happens, and a watchdog ends the
//! process when a test hangs.

mod common;

use std::fs::{self, File};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::mount::{Mount, have_fuse, pattern, wait_until};
use common::{Engine, Store};
use forebay_fuse::{FuseReply, MountOptions, mount};

/// Options under which nothing is remembered, so that each step is seen by itself.
fn no_ttl() -> MountOptions {
    MountOptions {
        attr_ttl: Duration::ZERO,
        entry_ttl: Duration::ZERO,
        negative_ttl: Duration::ZERO,
        ..MountOptions::default()
    }
}

fn shell(directory: &Path, script: &str) -> String {
    let output = Command::new("timeout")
        .args(["60", "sh", "-ec", script])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{script}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name().into_string().unwrap());
    }
    names.sort();
    Ok(names)
}

#[test]
fn a_tree_is_listed_and_read() {
    if !have_fuse() {
        return;
    }
    let store = Store::new();
    store.put("top.txt", "hello");
    store.put("d/e/deep", pattern(3_000_000, 1));
    store.put("d/file", "");
    let mount = Mount::new(store, "", MountOptions::default());
    assert_eq!(names(mount.root()).unwrap(), ["d", "top.txt"]);
    assert_eq!(names(&mount.path("d")).unwrap(), ["e", "file"]);
    assert_eq!(fs::read(mount.path("top.txt")).unwrap(), b"hello");
    assert_eq!(fs::read(mount.path("d/file")).unwrap(), b"");
    assert!(fs::read(mount.path("d/e/deep")).unwrap() == pattern(3_000_000, 1));
    let stat = fs::metadata(mount.path("d/e/deep")).unwrap();
    assert_eq!(
        (stat.len(), stat.blocks(), stat.nlink()),
        (3_000_000, 5860, 1)
    );
    assert_eq!(stat.mode(), 0o100_644);
    assert_eq!(fs::metadata(mount.path("d")).unwrap().mode(), 0o040_755);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts
        .lines()
        .find(|line| line.contains(mount.root().to_str().unwrap()))
        .unwrap();
    assert!(line.contains(" - fuse.forebay s3://bucket/ ro,"), "{line}");
}

#[test]
fn reads_of_every_kind_give_the_bytes() {
    if !have_fuse() {
        return;
    }
    let bytes = pattern(40_000_123, 7);
    let store = Store::new();
    store.put("big", bytes.clone());
    let mount = Mount::new(store, "", MountOptions::default());
    let path = mount.path("big");

    let file = File::open(&path).unwrap();
    let mut buffer = vec![0; 100_000];
    // Across a stripe, over the end, behind it.
    for (offset, expected) in [(16_700_000, 100_000), (40_000_000, 123), (50_000_000, 0)] {
        let read = file.read_at(&mut buffer, offset as u64).unwrap();
        assert_eq!(read, expected, "at {offset}");
        let end = (offset + read).min(bytes.len());
        assert!(buffer[..read] == bytes[end - read..end], "at {offset}");
    }

    let direct = File::options()
        .read(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(&path)
        .unwrap();
    let mut buffer = vec![0; 4 << 20];
    for offset in [0usize, 4096, 15 << 20, 38 << 20] {
        let read = direct.read_at(&mut buffer, offset as u64).unwrap();
        assert_eq!(read, buffer.len().min(bytes.len() - offset));
        assert!(
            buffer[..read] == bytes[offset..offset + read],
            "O_DIRECT at {offset}"
        );
    }

    let mut readers = Vec::new();
    for worker in 0..8u32 {
        let (path, bytes) = (path.clone(), bytes.clone());
        readers.push(std::thread::spawn(move || {
            let mut file = File::open(&path).unwrap();
            let mut all = Vec::new();
            if worker % 2 == 0 {
                file.read_to_end(&mut all).unwrap();
                assert!(all == bytes);
                return;
            }
            let mut buffer = [0; 4096];
            for n in 0..500u32 {
                let offset = n.wrapping_mul(2_654_435_761).wrapping_add(worker) % 39_000_000;
                file.read_exact_at(&mut buffer, u64::from(offset)).unwrap();
                assert!(buffer == bytes[offset as usize..offset as usize + 4096]);
            }
        }));
    }
    readers
        .into_iter()
        .for_each(|reader| reader.join().unwrap());
    // The kernel's read-ahead was set, and large requests arrive.
    let reads = mount.store.reads.load(Ordering::Relaxed);
    assert!(reads < 4000, "{reads} reads for 4 scans and 2000 pages");
    drop((file, direct));
    wait_until("all handles closed", || {
        mount.handle().namespace().stats().open_files == 0
    });
    assert_eq!(mount.handle().namespace().stats().read_ahead_bytes, 0);
}

#[test]
fn a_mapping_shows_the_bytes() {
    if !have_fuse() {
        return;
    }
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no python3 here: the mapping test did not run");
        return;
    }
    let store = Store::new();
    store.put("m", pattern(5_000_000, 3));
    let mount = Mount::new(store, "", MountOptions::default());
    let script = "import mmap, sys
f = open('m', 'rb')
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
f.close()
for at in range(0, len(m), 70001): sys.stdout.write('%02x' % m[at])";
    let got = shell(mount.root(), &format!("python3 -c \"{script}\""));
    let bytes = pattern(5_000_000, 3);
    let expected: String = bytes
        .iter()
        .step_by(70_001)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(got, expected);
}

#[test]
fn an_overwritten_object_shows_old_bytes_to_old_handles_and_new_ones_to_new_opens() {
    if !have_fuse() {
        return;
    }
    let store = Store::new();
    store.put("f", pattern(300_000, 1));
    let mount = Mount::new(store, "", no_ttl());
    let path = mount.path("f");
    let old = File::open(&path).unwrap();
    let mut buffer = vec![0; 100_000];
    old.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == pattern(300_000, 1)[..100_000]);

    mount.store.put("f", pattern(200_000, 2));
    assert!(
        fs::read(&path).unwrap() == pattern(200_000, 2),
        "open after ESTALE inside"
    );
    let new = File::open(&path).unwrap();
    assert_ne!(new.metadata().unwrap().ino(), old.metadata().unwrap().ino());
    assert_eq!(old.metadata().unwrap().len(), 300_000);
    assert_eq!(fs::metadata(&path).unwrap().len(), 200_000);
    // Pages that the old handle has stay what they were; others are gone at the origin.
    old.read_exact_at(&mut buffer, 0).unwrap();
    assert!(
        buffer == pattern(300_000, 1)[..100_000],
        "old pages are not mixed with new ones"
    );
    let direct = rustix::fs::fcntl_setfl(&old, rustix::fs::OFlags::DIRECT);
    direct.unwrap();
    let gone = old.read_at(&mut buffer, 150_000).unwrap_err();
    assert_eq!(
        gone.raw_os_error(),
        Some(rustix::io::Errno::STALE.raw_os_error())
    );

    mount.store.delete("f");
    assert_eq!(fs::read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(
        fs::metadata(&path).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    new.metadata().unwrap();
}

#[test]
fn an_overwrite_is_seen_after_the_attributes_time_to_live() {
    if !have_fuse() {
        return;
    }
    let minutes = Duration::from_secs(600);
    let options = MountOptions {
        // The kernel believes the name for minutes: only the open can tell.
        entry_ttl: minutes,
        attr_ttl: Duration::from_millis(300),
        ..MountOptions::default()
    };
    let store = Store::new();
    store.put("f", "old");
    let mount = Mount::new(store, "", options);
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"old");
    mount.store.put("f", "newer");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"newer");
    assert_eq!(fs::metadata(mount.path("f")).unwrap().len(), 5);
}

#[test]
fn a_directory_of_20_000_entries_is_listed_whole_and_in_parts() {
    if !have_fuse() {
        return;
    }
    let store = Store::new();
    (0..20_000).for_each(|n| store.put(&format!("d/n{n:05}"), "x"));
    let mount = Mount::new(store, "", MountOptions::default());
    let listed = names(&mount.path("d")).unwrap();
    assert_eq!(listed.len(), 20_000);
    assert!(listed.windows(2).all(|pair| pair[0] < pair[1]), "each once");
    assert_eq!(shell(&mount.path("d"), "ls -l | wc -l").trim(), "20001");

    // seekdir, telldir, rewinddir: what follows a cookie is what followed it before.
    let directory = File::open(mount.path("d")).unwrap();
    let all = entries_from(&directory, 0);
    assert_eq!(all.len(), 20_002);
    for at in [19_999, 3, 12_345, 1, 0, 20_001] {
        let rest = entries_from(&directory, all[at].1);
        assert_eq!(rest.len(), all.len() - at - 1, "from {at}");
        assert!(rest == all[at + 1..], "from {at}");
    }
    assert!(entries_from(&directory, 0) == all);
    drop(directory);
    wait_until("closed", || {
        mount.handle().namespace().stats().open_directories == 0
    });
}

/// Names and cookies behind `cookie`.
fn entries_from(directory: &File, cookie: u64) -> Vec<(Vec<u8>, u64)> {
    rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(cookie)).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 16_384];
    let mut raw = rustix::fs::RawDir::new(directory, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry.unwrap();
        entries.push((
            entry.file_name().to_bytes().to_vec(),
            entry.next_entry_cookie(),
        ));
    }
    entries
}

#[test]
fn a_listing_is_kept_by_the_kernel_while_it_is_believed() {
    if !have_fuse() {
        return;
    }
    let minutes = Duration::from_secs(600);
    let options = MountOptions {
        attr_ttl: minutes,
        entry_ttl: minutes,
        ..MountOptions::default()
    };
    let store = Store::new();
    (0..2_500).for_each(|n| store.put(&format!("d/n{n:04}"), "x"));
    let mount = Mount::new(store, "", options);
    let lists = || mount.store.lists.load(Ordering::Relaxed);
    let heads = || mount.store.heads.load(Ordering::Relaxed);
    let first = names(&mount.path("d")).unwrap();
    assert_eq!(first.len(), 2_500);
    wait_until("closed", || {
        mount.handle().namespace().stats().open_directories == 0
    });
    let before = (lists(), heads());
    for _ in 0..3 {
        assert_eq!(names(&mount.path("d")).unwrap(), first);
        assert_eq!(shell(mount.root(), "ls -l d | wc -l").trim(), "2501");
    }
    assert_eq!((lists(), heads()), before, "nobody was asked again");

    mount.store.put("d/new", "x");
    mount.engine().clock.advance(minutes);
    assert_eq!(names(&mount.path("d")).unwrap().len(), 2_501);
    assert!(lists() > before.0);
}

#[test]
fn a_directory_that_stays_open_shows_what_is_new_when_it_is_read_again() {
    if !have_fuse() {
        return;
    }
    let options = MountOptions {
        attr_ttl: Duration::from_millis(500),
        ..MountOptions::default()
    };
    let store = Store::new();
    (0..10).for_each(|n| store.put(&format!("d/{n}"), "x"));
    let mount = Mount::new(store, "", options);
    let directory = File::open(mount.path("d")).unwrap();
    assert_eq!(entries_from(&directory, 0).len(), 12);
    mount.store.put("d/new", "x");
    // `rewinddir`: nothing is opened.
    wait_until("the new name is seen", || {
        entries_from(&directory, 0).len() == 13
    });
}

#[test]
fn keys_that_are_no_paths_are_left_out_and_the_rest_is_there() {
    if !have_fuse() {
        return;
    }
    let store = Store::new();
    let long = "x".repeat(255);
    for key in [
        "a",
        "a-b",
        "a/b",
        "a//b",
        "/abs",
        "./x",
        "../x",
        "d/./x",
        "d/../x",
        "d/ok",
        "empty/",
        "new\nline",
        "sp ace",
        "\u{e9}\u{1f600}",
        "trail/x/",
        &long,
        &format!("{long}y"),
        "tab\t",
    ] {
        store.put(key, if key.ends_with('/') { "" } else { "x" });
    }
    let mount = Mount::new(store, "", no_ttl());
    let expected = [
        "a",
        "a-b",
        "d",
        "empty",
        "new\nline",
        "sp ace",
        "tab\t",
        "trail",
        &long,
        "\u{e9}\u{1f600}",
    ];
    assert_eq!(names(mount.root()).unwrap(), expected);
    assert_eq!(names(&mount.path("d")).unwrap(), ["ok"]);
    assert_eq!(names(&mount.path("a")).unwrap(), ["b"]);
    assert!(names(&mount.path("empty")).unwrap().is_empty());
    assert!(names(&mount.path("trail/x")).unwrap().is_empty());
    assert!(fs::metadata(mount.path("a")).unwrap().is_dir());
    assert_eq!(fs::read(mount.path("new\nline")).unwrap(), b"x");
    assert_eq!(fs::read(mount.path(&long)).unwrap(), b"x");
    let not_utf8 = mount.root().join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    assert_eq!(
        fs::metadata(not_utf8).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    let too_long = fs::metadata(mount.path(&format!("{long}y"))).unwrap_err();
    assert_eq!(
        too_long.raw_os_error(),
        Some(rustix::io::Errno::NAMETOOLONG.raw_os_error())
    );
    let left_out = mount.handle().namespace().stats().left_out;
    assert!(
        left_out.iter().filter(|(_, count)| *count > 0).count() >= 4,
        "{left_out:?}"
    );
}

#[test]
fn find_tar_and_rsync_walk_the_tree() {
    if !have_fuse() {
        return;
    }
    let store = Store::new();
    let mut files = 0;
    for top in 0..5 {
        for deep in 0..4 {
            for n in 0..10 {
                store.put(
                    &format!("t{top}/s{deep}/f{n}"),
                    pattern(1000 * n, top * 100 + deep),
                );
                files += 1;
            }
        }
    }
    store.put("t0/only/dirs/", "");
    let mount = Mount::new(store, "", MountOptions::default());
    let root = mount.root();
    assert_eq!(
        shell(root, "find . -type f | wc -l").trim(),
        files.to_string()
    );
    assert_eq!(
        shell(root, "find . -type d | wc -l").trim(),
        (1 + 5 + 20 + 2).to_string()
    );
    assert_eq!(
        shell(root, "find . -type f -size +8000c | wc -l").trim(),
        "20"
    );
    assert_eq!(
        shell(
            root,
            "ls -lR >/dev/null; du -s . >/dev/null; df . >/dev/null; echo ok"
        )
        .trim(),
        "ok"
    );
    let copy = tempfile::tempdir().unwrap();
    let to = copy.path().display();
    shell(root, &format!("tar cf - . | tar xf - -C {to}"));
    assert_eq!(
        shell(root, &format!("diff -r . {to} && echo same")).trim(),
        "same"
    );
    shell(
        root,
        &format!("rm -r {to}/t0 && cp -a t0 {to}/ && diff -r t0 {to}/t0"),
    );
    if Command::new("rsync").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no rsync here: its walk did not run");
        return;
    }
    let missing = format!("rsync -a --delete ./ {to}/ && rsync -ain --delete ./ {to}/");
    assert_eq!(
        shell(root, &missing),
        "",
        "a second rsync finds nothing to do"
    );
}

#[test]
fn writing_is_refused_and_absence_is_remembered() {
    if !have_fuse() {
        return;
    }
    let store = Store::new();
    store.put("f", "x");
    store.put("d/g", "x");
    let options = MountOptions {
        negative_ttl: Duration::from_secs(600),
        ..MountOptions::default()
    };
    let mount = Mount::new(store, "", options);
    let (file, new) = (mount.path("f"), mount.path("new"));
    let refused: [io::Result<()>; 8] = [
        File::create(&new).map(drop),
        File::options().write(true).open(&file).map(drop),
        File::options().append(true).open(&file).map(drop),
        fs::remove_file(&file),
        fs::rename(&file, &new),
        fs::create_dir(mount.path("e")),
        fs::remove_dir(mount.path("d")),
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o777)),
    ];
    for (n, result) in refused.into_iter().enumerate() {
        assert_eq!(
            result.unwrap_err().kind(),
            io::ErrorKind::ReadOnlyFilesystem,
            "operation {n}"
        );
    }

    let absent = mount.path("absent");
    assert_eq!(
        fs::metadata(&absent).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    let asked = mount.store.heads.load(Ordering::Relaxed);
    for _ in 0..100 {
        assert_eq!(
            fs::metadata(&absent).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
    assert_eq!(mount.store.heads.load(Ordering::Relaxed), asked);
}

#[test]
fn a_busy_mount_refuses_detaches_lazily_and_can_be_mounted_over() {
    if !have_fuse() {
        return;
    }
    let store = Store::new();
    store.put("f", "x");
    let mount = Mount::new(store, "", MountOptions::default());
    let open = File::open(mount.path("f")).unwrap();
    assert_eq!(
        mount.handle().unmount(false).unwrap_err().kind(),
        io::ErrorKind::ResourceBusy
    );
    assert!(mount.handle().wait_timeout(Duration::ZERO).is_none());
    let engine = mount.engine();
    let twice = forebay_fuse::mount(
        engine.client.clone(),
        engine.bucket.clone(),
        "",
        mount.root(),
        &MountOptions::default(),
    );
    assert_eq!(
        twice.map(drop).unwrap_err().kind(),
        io::ErrorKind::ResourceBusy
    );

    mount.handle().unmount(true).unwrap();
    let mut buffer = [0; 1];
    open.read_exact_at(&mut buffer, 0)
        .expect("open files outlive a lazy unmount");
    let second = forebay_fuse::mount(
        engine.client.clone(),
        engine.bucket.clone(),
        "",
        mount.root(),
        &MountOptions::default(),
    )
    .unwrap();
    drop(open);
    mount.handle().wait().unwrap();
    assert_eq!(
        fs::read(mount.path("f")).unwrap(),
        b"x",
        "the first one's end left the second alone"
    );
    mount.handle().unmount(false).unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"x");
    drop(second);
    assert!(names(mount.root()).unwrap().is_empty());
}

#[test]
fn what_cannot_be_mounted_says_why() {
    if !have_fuse() {
        return;
    }
    let engine: Engine<FuseReply> = Engine::start(Store::new());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, kind) in [
        (directory.path().join("missing"), io::ErrorKind::NotFound),
        (file, io::ErrorKind::NotADirectory),
    ] {
        let options = MountOptions::default();
        let error = mount(
            engine.client.clone(),
            engine.bucket.clone(),
            "",
            &path,
            &options,
        )
        .map(drop)
        .unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
}
