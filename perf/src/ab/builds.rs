//! Builds of revisions: in a tree of their own, with the third-party artefacts that the repository's own build has.

use std::ffi::OsStr;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::FlockOperation;

use crate::interrupt;

/// Names this very program, which is not built.
pub const THIS: &str = ".";
/// What makes git take another repository than the one where it runs (hooks set them).
const ENVIRONMENT: [&str; 6] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
];
const PROGRAMS: [&str; 2] = ["forebay-perf", "forebay"];
/// Builds that are kept, some 200 MB each.
const KEPT_MAX: usize = 4;
const HALF: &str = ".half-";

/// A build of a revision.
#[derive(Clone, Debug)]
pub struct Build {
    /// As the user named it, and its commit.
    pub name: String,
    /// Its forebay-perf.
    pub program: PathBuf,
}

/// What a folder of builds is made from.
#[derive(Debug)]
struct Place {
    repository: PathBuf,
    /// Where builds are kept.
    ab: PathBuf,
    /// What the repository's own optimised build made.
    release: PathBuf,
}

/// Builds the revision of the repository that the working directory is in; one that was built before is taken from there.
///
/// # Errors
/// When there is no such revision, or it does not build.
pub fn build(revision: &str) -> Result<Build> {
    if revision == THIS {
        return Ok(Build {
            name: "this program".to_owned(),
            program: std::env::current_exe().context("this program has no name")?,
        });
    }
    let place = Place::here()?;
    let commit = place.commit(revision)?;
    let short = &commit[..12];
    let bin = place.ab.join("bin");
    // Of another compiler it is another build.
    let kept = bin.join(format!(
        "{commit}-{}",
        Compiler::here(&place.repository)?.mark()
    ));
    fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
    // Another one would check out its revision under this one's feet.
    let _lock = lock(&place.ab.join("lock"))?;
    let program = kept.join(PROGRAMS[0]);
    if !program.exists() {
        println!("  building {revision} ({short})");
        place.check_out(&commit)?;
        place.seed()?;
        place.compile(revision)?;
        keep(&place.ab.join("target/release"), &bin, &kept)
            .with_context(|| format!("{revision} cannot be kept"))?;
    }
    // Used now: others are thrown away before it.
    let _ = fs::File::open(&program).and_then(|file| file.set_modified(SystemTime::now()));
    prune(&bin)?;
    Ok(Build {
        name: format!("{revision} ({short})"),
        program,
    })
}

/// What makes builds of one commit differ.
#[derive(Debug)]
pub struct Compiler {
    /// Its first line.
    pub version: String,
    whole: String,
}

impl Compiler {
    /// The one that cargo would take.
    ///
    /// # Errors
    /// When there is none.
    pub fn here(at: &Path) -> Result<Compiler> {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let told = Command::new(&rustc).arg("-vV").current_dir(at).output();
        let told = told.with_context(|| format!("cannot run {}", rustc.display()))?;
        ensure!(
            told.status.success(),
            "{} -vV: {}",
            rustc.display(),
            String::from_utf8_lossy(&told.stderr).trim()
        );
        let mut whole = String::from_utf8_lossy(&told.stdout).into_owned();
        let version = whole.lines().next().unwrap_or_default().to_owned();
        for name in [
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_BUILD_RUSTFLAGS",
        ] {
            whole += &format!("{name}={:?}\n", std::env::var_os(name));
        }
        Ok(Compiler { version, whole })
    }

    /// Short, the same for the same.
    fn mark(&self) -> String {
        let mut hasher = std::hash::DefaultHasher::new();
        self.whole.hash(&mut hasher);
        format!("{:08x}", hasher.finish() as u32)
    }
}

/// Waits until nobody else builds; held until it is dropped.
fn lock(file: &Path) -> Result<fs::File> {
    let lock = fs::File::create(file).with_context(|| format!("cannot make {}", file.display()))?;
    let mut told = false;
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot lock {}", file.display()));
            }
        }
        if !std::mem::replace(&mut told, true) {
            println!("  waiting for another ab that builds");
        }
        interrupt::sleep(Duration::from_millis(500))?;
    }
}

/// Copies what was built: first under another name, so that no half of a program is ever taken for one.
fn keep(from: &Path, bin: &Path, kept: &Path) -> Result<()> {
    let half = tempfile::Builder::new().prefix(HALF).tempdir_in(bin)?;
    for name in PROGRAMS {
        let from = from.join(name);
        fs::copy(&from, half.path().join(name))
            .with_context(|| format!("it built no {}", from.display()))?;
    }
    let _ = fs::remove_dir_all(kept);
    fs::rename(half.keep(), kept)?;
    Ok(())
}

/// Throws away those that were used longest ago, and halves that a killed one left.
fn prune(bin: &Path) -> Result<()> {
    let mut all = Vec::new();
    for entry in fs::read_dir(bin)? {
        let path = entry?.path();
        let used = fs::metadata(path.join(PROGRAMS[0])).and_then(|of| of.modified());
        let is_half = path
            .file_name()
            .is_some_and(|name| name.as_bytes().starts_with(HALF.as_bytes()));
        match used {
            Ok(used) if !is_half => all.push((used, path)),
            _ => drop(fs::remove_dir_all(&path)),
        }
    }
    all.sort();
    let old = all.len().saturating_sub(KEPT_MAX);
    for (_, path) in &all[..old] {
        fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// What git says to this.
fn git(at: &Path, words: &[&OsStr]) -> Result<PathBuf> {
    let mut git = Command::new("git");
    for name in ENVIRONMENT {
        git.env_remove(name);
    }
    let said = git
        .arg("-C")
        .arg(at)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .context("cannot run git")?;
    if !said.status.success() {
        bail!("{}", String::from_utf8_lossy(&said.stderr).trim());
    }
    Ok(PathBuf::from(OsStr::from_bytes(
        said.stdout.trim_ascii_end(),
    )))
}

impl Place {
    fn here() -> Result<Place> {
        let here = std::env::current_dir()?;
        let top = git(&here, &["rev-parse".as_ref(), "--show-toplevel".as_ref()])
            .context("revisions are built of the repository that the working directory is in")?;
        ensure!(
            top.join("perf/Cargo.toml").is_file(),
            "{} is not Forebay's repository",
            top.display()
        );
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| top.join("target"), |target| here.join(target));
        Ok(Place {
            ab: target.join("ab"),
            release: target.join("release"),
            repository: top,
        })
    }

    fn commit(&self, revision: &str) -> Result<String> {
        // A name that begins with a dash would be an option.
        let wanted = format!("{revision}^{{commit}}");
        let words = ["rev-parse", "--verify", "--quiet", "--end-of-options"];
        let mut words: Vec<&OsStr> = words.iter().map(AsRef::as_ref).collect();
        words.push(wanted.as_ref());
        let commit = git(&self.repository, &words);
        // --quiet says nothing of a revision that is not there, and git something of what else is wrong.
        let why = commit.as_ref().err().map(ToString::to_string);
        let commit = commit
            .ok()
            .and_then(|commit| commit.into_os_string().into_string().ok());
        let is_commit = |commit: &String| {
            matches!(commit.len(), 40 | 64) && commit.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        commit.filter(is_commit).with_context(|| {
            format!(
                "no revision {revision} in {} (a shallow clone has few: git fetch --deepen 1 brings one more){}",
                self.repository.display(),
                why.filter(|why| !why.is_empty()).map_or(String::new(), |why| format!("; git: {why}"))
            )
        })
    }

    /// What a file was in a commit; none when it was not there.
    fn file(&self, commit: &str, name: &str) -> Option<String> {
        let wanted = format!("{commit}:./{name}");
        let text = git(&self.repository, &["show".as_ref(), wanted.as_ref()]).ok()?;
        text.into_os_string().into_string().ok()
    }

    /// Checks out; once more into a new tree when the one that is there is broken.
    fn check_out(&self, commit: &str) -> Result<()> {
        if self.try_check_out(commit).is_ok() {
            return Ok(());
        }
        interrupt::check()?;
        let tree = self.tree();
        if tree.exists() {
            fs::remove_dir_all(&tree)
                .with_context(|| format!("cannot remove {}", tree.display()))?;
        }
        self.try_check_out(commit)
    }

    /// The same tree for all revisions: files that do not change stay as old as they are, so cargo builds only what changed.
    fn try_check_out(&self, commit: &str) -> Result<()> {
        let tree = self.tree();
        if !tree.join(".git").exists() {
            fs::create_dir_all(&tree)?;
            git(&tree, &["init".as_ref(), "--quiet".as_ref()])?;
        }
        // It borrows the repository's objects, and leaves nothing there.
        let objects = [
            "rev-parse",
            "--path-format=absolute",
            "--git-path",
            "objects",
        ];
        let objects: Vec<&OsStr> = objects.iter().map(AsRef::as_ref).collect();
        let mut objects = git(&self.repository, &objects)?.into_os_string();
        objects.push("\n");
        fs::write(
            tree.join(".git/objects/info/alternates"),
            objects.as_bytes(),
        )?;
        let words = ["checkout", "--quiet", "--force", "--detach", commit];
        // By name: where `.git` is none, git would take the repository around it, and its uncommitted work would be gone.
        let mut all: Vec<&OsStr> = vec!["--git-dir=.git".as_ref(), "--work-tree=.".as_ref()];
        all.extend(words.iter().map(AsRef::<OsStr>::as_ref));
        git(&tree, &all).with_context(|| format!("cannot check out {commit}"))?;
        Ok(())
    }

    fn tree(&self) -> PathBuf {
        self.ab.join("tree")
    }

    /// Third-party artefacts do not depend on where the repository lies: cargo takes what it finds and builds the rest.
    fn seed(&self) -> Result<()> {
        let to = self.ab.join("target/release");
        if to.exists() {
            return Ok(());
        }
        // Cargo writes into files of the first two where they are: those must not be the repository's.
        for (folder, linked) in [("build", false), (".fingerprint", false), ("deps", true)] {
            share(&self.release.join(folder), &to.join(folder), linked)?;
        }
        Ok(())
    }

    fn compile(&self, revision: &str) -> Result<()> {
        let status = Command::new("cargo")
            .current_dir(self.tree())
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CARGO_BUILD_TARGET_DIR")
            .env_remove("CARGO_BUILD_TARGET")
            .args(["build", "--release", "--locked", "--bins"])
            .arg("--target-dir")
            .arg(self.ab.join("target"))
            // By name: else cargo would look for one in the folders around it.
            .arg("--manifest-path")
            .arg(self.tree().join("Cargo.toml"))
            .args(["-p", "forebay-perf", "-p", "forebay-cli"])
            .stdin(Stdio::null())
            .status()
            .context("cannot run cargo")?;
        interrupt::check()?;
        ensure!(status.success(), "{revision} does not build ({status})");
        Ok(())
    }
}

/// Whether cargo makes it of a member of the workspace: what is made of one tree is of no use to another.
fn is_own(name: &OsStr) -> bool {
    name.as_bytes()
        .windows(b"forebay".len())
        .any(|part| part == b"forebay")
}

/// Copies or links what is not our own from one folder into another; a folder that is not there holds nothing.
fn share(from: &Path, to: &Path, linked: bool) -> Result<()> {
    let Ok(entries) = fs::read_dir(from) else {
        return Ok(());
    };
    fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if is_own(&name) {
            continue;
        }
        let to = to.join(name);
        if kind.is_dir() {
            share(&entry.path(), &to, linked)?;
        } else if kind.is_file() && !(linked && fs::hard_link(entry.path(), &to).is_ok()) {
            copy_with_time(&entry.path(), &to)?;
        }
    }
    Ok(())
}

/// As old as it was: cargo tells by times what must be built anew.
fn copy_with_time(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    let time = fs::metadata(from)?.modified()?;
    fs::File::options()
        .append(true)
        .open(to)?
        .set_modified(time)?;
    Ok(())
}

/// What a file of the repository was in a revision; none when it was not there.
///
/// # Errors
/// When there is no such revision, or the file is of no repository.
pub fn file_of(revision: &str, file: &Path) -> Result<Option<String>> {
    let place = Place::here()?;
    let commit = place.commit(revision)?;
    let whole =
        fs::canonicalize(file).with_context(|| format!("cannot read {}", file.display()))?;
    let name = whole
        .strip_prefix(fs::canonicalize(&place.repository)?)
        .ok();
    let name = name.and_then(Path::to_str);
    let name = name.with_context(|| {
        let repository = place.repository.display();
        format!("{} is no file of {repository}", file.display())
    })?;
    Ok(place.file(&commit, name))
}

/// Fails when revisions would be built by another compiler than this program was: then counts differ for no change of the code.
///
/// # Errors
/// That it is so, or there is no compiler.
pub fn ensure_same_compiler() -> Result<()> {
    let own = env!("FOREBAY_PERF_RUSTC");
    let here = Compiler::here(&std::env::current_dir()?)?.version;
    ensure!(
        own == here,
        "this program was built by {own}, and revisions would be by {here}: build it anew"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn third_party_artefacts_are_shared_and_our_own_are_not() {
        let dir = tempfile::tempdir().expect("there is a place for files");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("crc-fast-1")).expect("it is made");
        fs::create_dir_all(from.join("forebay-engine-1")).expect("it is made");
        for file in [
            "crc-fast-1/lib",
            "forebay-engine-1/lib",
            "libforebay_cli.rlib",
        ] {
            fs::write(from.join(file), file).expect("it is written");
        }
        share(&from, &to, true).expect("it is linked");
        assert!(to.join("crc-fast-1/lib").is_file());
        assert!(!to.join("forebay-engine-1").exists() && !to.join("libforebay_cli.rlib").exists());
        share(&dir.path().join("nowhere"), &to, true).expect("nothing is no fault");
        // What cargo writes in place is another file, as old as the first.
        let copies = dir.path().join("copies");
        share(&from, &copies, false).expect("it is copied");
        let (one, other) = (from.join("crc-fast-1/lib"), copies.join("crc-fast-1/lib"));
        let time = |file: &Path| fs::metadata(file).and_then(|of| of.modified()).ok();
        assert_eq!(time(&one), time(&other));
        fs::write(&other, "changed").expect("it is written");
        assert_eq!(
            fs::read_to_string(&one).ok().as_deref(),
            Some("crc-fast-1/lib")
        );
    }

    #[test]
    fn a_revision_that_is_not_there_is_told() {
        let Ok(place) = Place::here() else {
            println!("SKIPPED: revisions of the repository: this is none (no .git, or no git)");
            return;
        };
        for wrong in ["no-such-branch", "--all", ""] {
            let refused = place.commit(wrong).expect_err("there is none");
            assert!(refused.to_string().contains("--deepen"), "{refused:#}");
        }
        let commit = place.commit("HEAD").expect("there is one");
        assert_eq!(commit.len(), 40);
        let text = place.file(&commit, "perf/Cargo.toml");
        assert!(text.is_some_and(|text| text.contains("forebay-perf")));
        assert_eq!(place.file(&commit, "no/such/file"), None);
    }

    fn told(at: &Path, words: &[&str]) -> String {
        let words: Vec<&OsStr> = words.iter().map(AsRef::as_ref).collect();
        let said = git(at, &words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        said.to_string_lossy().into_owned()
    }

    /// A repository with two commits and work that is not committed.
    fn repository(at: &Path) -> Place {
        told(at, &["init", "--quiet", "--initial-branch=work"]);
        for (name, value) in [("user.name", "t"), ("user.email", "t@example.org")] {
            told(at, &["config", name, value]);
        }
        for number in ["1", "2"] {
            fs::write(at.join("file"), number).expect("it is written");
            told(at, &["add", "file"]);
            told(at, &["commit", "--quiet", "-m", number]);
        }
        fs::write(at.join("file"), "staged").expect("it is written");
        told(at, &["add", "file"]);
        fs::write(at.join("file"), "not committed").expect("it is written");
        Place {
            repository: at.to_owned(),
            ab: at.join("target/ab"),
            release: at.join("target/release"),
        }
    }

    #[test]
    fn a_broken_tree_is_made_anew_and_the_repository_around_it_is_left_alone() {
        if Command::new("git").arg("--version").output().is_err() {
            println!("SKIPPED: the tree of ab: git is not installed");
            return;
        }
        let dir = tempfile::tempdir().expect("there is a place for files");
        let at = dir.path();
        let place = repository(at);
        let before = place.commit("HEAD^").expect("there are two");
        let (head, index) = (at.join(".git/HEAD"), at.join(".git/index"));
        let state = || {
            let work = fs::read(at.join("file")).ok();
            (work, fs::read(&head).ok(), told(at, &["write-tree"]))
        };
        let untouched = state();
        let is_right = |what: &str| {
            place
                .check_out(&before)
                .unwrap_or_else(|error| panic!("{what}: {error:#}"));
            let file = fs::read_to_string(place.tree().join("file")).ok();
            assert_eq!(file.as_deref(), Some("1"), "{what}");
            assert_eq!(state(), untouched, "{what}");
        };
        is_right("new");
        let own = place.tree().join(".git");
        // What a power loss, a full disk and a killed git leave.
        fs::write(own.join("HEAD"), "").expect("it is written");
        is_right("an empty HEAD");
        fs::write(own.join("index.lock"), "").expect("it is written");
        is_right("a lock");
        fs::remove_dir_all(&own).expect("it is removed");
        fs::create_dir_all(own.join("objects/info")).expect("it is made");
        is_right("a folder that is no repository");
        fs::remove_dir_all(place.tree()).expect("it is removed");
        fs::create_dir_all(place.tree()).expect("it is made");
        fs::write(&own, format!("gitdir: {}", at.join(".git").display())).expect("it is written");
        is_right("a way to the repository");
        assert!(index.exists());
    }

    #[test]
    fn builds_are_kept_whole_or_not_at_all_and_few_of_them() {
        let dir = tempfile::tempdir().expect("there is a place for files");
        let (made, bin) = (dir.path().join("made"), dir.path().join("bin"));
        fs::create_dir_all(&made).expect("it is made");
        fs::create_dir_all(&bin).expect("it is made");
        fs::write(made.join(PROGRAMS[0]), "program").expect("it is written");
        let kept = bin.join("one");
        assert!(keep(&made, &bin, &kept).is_err() && !kept.exists());
        fs::write(made.join(PROGRAMS[1]), "program").expect("it is written");
        fs::create_dir_all(bin.join(".half-killed")).expect("it is made");
        for number in 0..KEPT_MAX as u64 + 2 {
            let kept = bin.join(number.to_string());
            keep(&made, &bin, &kept).expect("it is kept");
            let program = fs::File::open(kept.join(PROGRAMS[0])).expect("it is there");
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(number);
            program.set_modified(time).expect("it is ours");
        }
        prune(&bin).expect("it is pruned");
        let mut left: Vec<_> = fs::read_dir(&bin)
            .expect("it is there")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["2", "3", "4", "5"]);
    }

    #[test]
    fn one_builds_at_a_time() {
        let dir = tempfile::tempdir().expect("there is a place for files");
        let file = dir.path().join("lock");
        let first = lock(&file).expect("nobody has it");
        let other = fs::File::open(&file).expect("it is there");
        let again = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(again, Err(rustix::io::Errno::WOULDBLOCK));
        drop(first);
        lock(&file).expect("it was given back");
    }
}
