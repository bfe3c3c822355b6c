//! A mount that has nothing itself, of a group of real processes that have everything.

use std::path::Path;

use anyhow::{Context, Result};
use forebay_tests::harness::Mount;

use super::forebay::{TIMED_SHARE, cache_size, memory};
use crate::counters::Watched;
use crate::group::{Group, Plan as Member, received_bytes};
use crate::patterns::Target;
use crate::plan::Plan;
use crate::scenario::Scenario;

const MIB: u64 = 1 << 20;
const CLIENT: &str = "client";
/// The client's memory where nothing else is said: a fraction of the data, and not less than it takes to run.
const CLIENT_SHARE: u64 = 8;
const CLIENT_MIN: u64 = 64 * MIB;

/// Members and one client.
pub struct GroupMount {
    scenario: Scenario,
    plan: Plan,
    // Before the group: the client goes first.
    client: Option<Mount>,
    group: Option<Group>,
    memory: String,
    pids: Vec<(String, u32)>,
}

impl GroupMount {
    /// Of a `group` scenario.
    pub fn new(scenario: &Scenario, plan: &Plan) -> GroupMount {
        GroupMount {
            scenario: scenario.clone(),
            plan: plan.clone(),
            client: None,
            group: None,
            memory: String::new(),
            pids: Vec::new(),
        }
    }

    fn client(&self) -> Result<&Mount> {
        self.client.as_ref().context("the client was not mounted")
    }

    fn on_disk(&self) -> bool {
        self.scenario.word("tier") == "disk"
    }

    /// A new client, of members that have nothing in memory where disks are measured.
    fn forget(&mut self) -> Result<()> {
        if self.on_disk() {
            let group = self.group.as_mut().context("the group was not started")?;
            group.restart()?;
        }
        self.pids = self.group()?.pids();
        self.client = Some(self.group()?.client(CLIENT, &self.memory)?);
        Ok(())
    }

    fn group(&self) -> Result<&Group> {
        self.group.as_ref().context("the group was not started")
    }
}

impl Target for GroupMount {
    fn name(&self) -> &str {
        "Forebay"
    }

    fn version(&self) -> String {
        let members = self.scenario.count("members");
        format!(
            "{} ({members} members and a client)",
            env!("CARGO_PKG_VERSION")
        )
    }

    fn start(&mut self, objects: &[(String, u64)], data_bytes: u64) -> Result<()> {
        let on_disk = self.on_disk();
        let auto = self.scenario.with("memory", "auto")?;
        let memory = memory(&auto, data_bytes, on_disk);
        let cache = cache_size(data_bytes);
        let plans = (0..self.scenario.count("members")).map(|n| Member {
            node: format!("m{n}"),
            memory: &memory,
            cache: on_disk.then_some(cache.as_str()),
            weight: 1,
        });
        let plans: Vec<Member<'_>> = plans.collect();
        self.group = Some(Group::start(self.plan.run.scratch()?, objects, &plans)?);
        let own = self.scenario.size_or_auto("memory");
        let share = if on_disk { TIMED_SHARE } else { CLIENT_SHARE };
        let own = own.unwrap_or_else(|| (data_bytes / share).max(CLIENT_MIN));
        self.memory = format!("{}MiB", own.div_ceil(MIB));
        Ok(())
    }

    fn root(&self) -> Result<&Path> {
        Ok(self.client()?.dir())
    }

    fn fill(&mut self) -> Result<()> {
        self.group()?.warm_up()?;
        self.forget()
    }

    fn renew(&mut self) -> Result<()> {
        let client = self.client.take().context("the client was not mounted")?;
        client.unmount()?;
        self.forget()
    }

    fn watched(&self) -> Result<Vec<Watched>> {
        let mut all = vec![Watched::Other(
            "forebay mount".to_owned(),
            self.client()?.pid(),
        )];
        let members = self.pids.iter();
        all.extend(members.map(|(node, pid)| Watched::Other(format!("member {node}"), *pid)));
        Ok(all)
    }

    fn origin_bytes(&self) -> Result<Option<u64>> {
        Ok(Some(self.group()?.bucket().server().counters().body_bytes))
    }

    fn disk_bytes(&self) -> Result<Option<u64>> {
        let told = self.on_disk().then(|| self.group()?.disk_read_bytes());
        told.transpose()
    }

    fn peer_bytes(&self) -> Result<Option<u64>> {
        received_bytes(self.client()?.dir()).map(Some)
    }

    fn end(&mut self) -> Result<()> {
        if let Some(client) = self.client.take() {
            client.unmount()?;
        }
        match self.group.take() {
            Some(mut group) => group.stop(),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for GroupMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupMount").finish_non_exhaustive()
    }
}
