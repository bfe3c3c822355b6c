//! What the demo does, one step after the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::group::{Group, NODES, Site};
use super::server::Server;
use super::sources::Sources;
use super::table::{Claim, Table, grouped};
use super::{Form, Stop, overwrite, verify, warm};
use crate::harness::BucketClient;

/// The member that is killed.
const VICTIM: &str = NODES[2];

/// One run.
pub(super) struct Demo<'a> {
    pub(super) server: &'a Server,
    pub(super) client: &'a BucketClient,
    pub(super) sources: &'a Sources,
    pub(super) dir: &'a Path,
    pub(super) form: &'a Form,
    pub(super) start: Instant,
    pub(super) stop: &'a Stop,
}

/// Origin bytes up to some moment.
struct Mark {
    forebay: u64,
    reasons: BTreeMap<String, u64>,
    server: Option<u64>,
}

impl Demo<'_> {
    /// All steps, and the table.
    pub(super) fn run(&self) -> Result<()> {
        self.fill()?;
        let site = Site::new(self.server, self.client, self.dir, self.form)?;
        let mut table = Table::default();
        let result = self.group_steps(&site, &mut table);
        if result.is_err() && !self.stop.requested() {
            site.show_logs();
        }
        if !table.claims.is_empty() {
            println!("\n{table}");
        }
        result?;
        let broken = table.broken();
        ensure!(broken.is_empty(), "not as claimed: {}", broken.join("; "));
        Ok(())
    }

    fn group_steps(&self, site: &Site<'_>, table: &mut Table) -> Result<()> {
        self.step("2. one cache of three");
        let mut group = Group::start(site, self.stop)?;
        self.tell(&format!(
            "members a, b and c serve, each with a cache directory of its own; a client that owns nothing has mounted the \
             bucket at {}",
            site.point().display()
        ));
        self.tell(&format!(
            "shares of the ring, which says who owns what: {}",
            group.shares()?
        ));
        self.warm(site, &group, table)?;
        self.read(site, &group, table)?;
        // A small one is for slow machines: it shows what a group does, not what a cache does.
        if !self.form.small {
            group = self.restart(site, group, table)?;
        }
        self.kill(site, &mut group, table)?;
        if !self.form.small {
            self.overwrite(site, &group, table)?;
        }
        group.end()
    }

    fn fill(&self) -> Result<()> {
        self.step("1. a bucket");
        for batch in self.sources.batches() {
            self.stop.check()?;
            self.client
                .put_all_while(batch?, || !self.stop.requested())?;
        }
        self.tell(&format!(
            "S3 server: {}; s3://{} filled with {}",
            self.server.name(),
            self.client.bucket(),
            self.sources.summary()
        ));
        self.stop.check()
    }

    fn warm(&self, site: &Site<'_>, group: &Group, table: &mut Table) -> Result<()> {
        self.step("3. warm-up: forebay warmup, then forebay check");
        let mark = self.mark(group)?;
        warm::up(&site.point(), self.stop)?;
        let what = "read from S3 to warm all: each byte once";
        let claim = self.claim(what, self.total(), mark, group)?;
        self.tell(&format!(
            "origin bytes / unique bytes: {:.4}",
            claim.measured as f64 / self.total() as f64
        ));
        table.claims.push(claim);
        self.checked(site)?;
        let mut held_bytes = 0;
        for node in NODES {
            held_bytes += site.held_bytes(node)?;
        }
        table.claims.push(Claim {
            what: "on the three members' disks: each byte on one",
            expected: self.total(),
            measured: held_bytes,
            server: None,
            reasons: Vec::new(),
            excused: None,
        });
        Ok(())
    }

    /// Shows that `forebay check` finds everything cached.
    fn checked(&self, site: &Site<'_>) -> Result<()> {
        let checked = warm::check(&site.point())?;
        let told = format!(
            "check: {} of {} bytes cached, {} of {} files full",
            grouped(checked.cached_bytes),
            grouped(checked.bytes),
            checked.full,
            checked.files
        );
        ensure!(
            checked.bytes == self.total() && checked.cached_bytes == checked.bytes,
            "{told}; the bucket has {} bytes",
            grouped(self.total())
        );
        self.tell(&told);
        Ok(())
    }

    fn read(&self, site: &Site<'_>, group: &Group, table: &mut Table) -> Result<()> {
        self.step("4. every byte, through the client's mount");
        let mark = self.mark(group)?;
        let before = match &self.form.rdma {
            Some(_) => Some(group.until_rdma(self.stop)?),
            None => None,
        };
        self.compare(site, 1)?;
        let claim = self.claim("read from S3 while all was compared", 0, mark, group)?;
        table.claims.push(claim);
        if let Some(before) = before {
            let bytes = group.over_rdma()?.bytes.saturating_sub(before.bytes);
            let told = format!("{} bytes of those came over RDMA", grouped(bytes));
            // On a busy machine a queue pair may break: that is TCP's turn for ten seconds.
            ensure!(bytes > self.total() / 2, "only {told}");
            self.tell(&told);
        }
        Ok(())
    }

    fn restart(&self, site: &Site<'_>, group: Group, table: &mut Table) -> Result<Group> {
        self.step("5. everything restarts");
        group.end()?;
        let group = Group::start(site, self.stop)?;
        self.tell("client unmounted, members stopped; all are new processes now, their memory empty, the disks as they were");
        let mark = self.mark(&group)?;
        self.compare(site, 2)?;
        let claim = self.claim("read from S3 after the restart", 0, mark, &group)?;
        table.claims.push(claim);
        Ok(group)
    }

    fn kill(&self, site: &Site<'_>, group: &mut Group, table: &mut Table) -> Result<()> {
        self.step("6. a member is killed");
        // What the client has in its own memory would hide a part of the loss.
        group.remount(site, self.stop)?;
        group.kill(VICTIM)?;
        let lost_bytes = site.held_bytes(VICTIM)?;
        self.tell(&format!(
            "client mounted afresh; SIGKILL for {VICTIM}. Its disk holds {} bytes, {:.1} % (forebay cache inspect); a and b fetch those again",
            grouped(lost_bytes),
            100.0 * lost_bytes as f64 / self.total() as f64
        ));
        let dropped_before = group.dropped_bytes()?;
        let mark = self.mark(group)?;
        self.compare(site, 3)?;
        let claim = self.claim(
            "read from S3 after the kill: what was lost",
            lost_bytes,
            mark,
            group,
        )?;
        self.tell(&format!(
            "read from S3 again, by reason (forebay stats): {}",
            claim.reasons()
        ));
        table.claims.push(claim);

        group.until_agreed(self.stop)?;
        self.tell(&format!(
            "{VICTIM} has left the ring after 10 s of silence: {}",
            group.shares()?
        ));
        self.checked(site)?;
        group.remount(site, self.stop)?;
        let mark = self.mark(group)?;
        self.compare(site, 4)?;
        let mut claim = self.claim(
            "read from S3 without the killed member, once more",
            0,
            mark,
            group,
        )?;
        let dropped_bytes = group.dropped_bytes()? - dropped_before;
        claim.excused = Some((
            dropped_bytes,
            "which the disks could not write as fast as they came",
        ));
        table.claims.push(claim);
        Ok(())
    }

    fn overwrite(&self, site: &Site<'_>, group: &Group, table: &mut Table) -> Result<()> {
        self.step("7. two objects are overwritten while they are open");
        let mark = self.mark(group)?;
        overwrite::show(&site.point(), self.client, self.stop)?;
        let expected = overwrite::ORIGIN_BYTES;
        let claim = self.claim(
            "read from S3 of the overwritten: 1 old, 2 new",
            expected,
            mark,
            group,
        )?;
        table.claims.push(claim);
        Ok(())
    }

    fn compare(&self, site: &Site<'_>, seed: u64) -> Result<()> {
        let passed = verify::read_all(&site.point(), self.sources, seed, self.stop)?;
        if passed.bytes != self.total() {
            bail!("{} of {} bytes were compared", passed.bytes, self.total());
        }
        self.tell(&format!(
            "{} bytes read in random order, each equals its source; {:.0} MiB/s with comparing",
            grouped(passed.bytes),
            passed.bytes as f64 / f64::from(1 << 20) / passed.elapsed.as_secs_f64()
        ));
        Ok(())
    }

    fn total(&self) -> u64 {
        self.sources.total_bytes()
    }

    fn mark(&self, group: &Group) -> Result<Mark> {
        Ok(Mark {
            forebay: group.origin_bytes()?,
            reasons: group.origin_reasons()?,
            server: self.server.body_bytes(),
        })
    }

    /// What came from S3 since `mark`, against what should have.
    fn claim(&self, what: &'static str, expected: u64, mark: Mark, group: &Group) -> Result<Claim> {
        let now = self.mark(group)?;
        let server = now.server.zip(mark.server);
        let reasons = now.reasons.into_iter().map(|(reason, bytes)| {
            let before = mark.reasons.get(&reason).copied().unwrap_or(0);
            (reason, bytes.saturating_sub(before))
        });
        Ok(Claim {
            what,
            expected,
            measured: now.forebay.saturating_sub(mark.forebay),
            server: server.map(|(now, before)| now - before),
            reasons: reasons.filter(|(_, bytes)| *bytes > 0).collect(),
            excused: None,
        })
    }

    fn step(&self, what: &str) {
        println!(
            "\ndemo: {:5.1} s  {what}",
            self.start.elapsed().as_secs_f64()
        );
    }

    fn tell(&self, what: &str) {
        println!("  {what}");
    }

    /// Says something at the end.
    pub(super) fn say(&self, what: &str) {
        println!("demo: {:5.1} s  {what}", self.start.elapsed().as_secs_f64());
    }
}
