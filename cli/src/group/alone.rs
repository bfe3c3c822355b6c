//! A member that is alone although it was told where others are says so, and why: it reads a whole data set by
//! itself meanwhile.

use std::fmt::{Display, Formatter};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::Group;

/// How often a member looks whether it is alone,
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// and as long as it is, asks where others should be why,
const ASK_INTERVAL: Duration = Duration::from_secs(30);
/// so many of them.
const ASKED_MAX: usize = 8;
/// So many reasons are told in one line.
const TOLD_MAX: usize = 3;

/// Alone among addresses where others should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AloneReport {
    /// Addresses of `--peers` that are not this member's own: no member of the group was found at any of them.
    pub addresses: usize,
    /// Whether one of them refuses this member, or this member it: waiting does not help.
    pub refused: bool,
    /// What became of connections to them, refusals first; of at most 8.
    pub reasons: Vec<String>,
}

impl Display for AloneReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let told = self.reasons.len().min(TOLD_MAX);
        let which = match self.addresses {
            1 => "the one other address".to_owned(),
            n => format!("any of the {n} other addresses"),
        };
        write!(
            f,
            "alone: no member of this group was found at {which} of --peers ({}{}); this member owns the whole ring and reads from the origin by itself ",
            self.reasons[..told].join("; "),
            if told < self.addresses { "; ..." } else { "" },
        )?;
        f.write_str(match self.refused {
            true => "until that is mended",
            false => "until one is there, as the first member of a group does",
        })
    }
}

/// What was found last, and when.
pub(super) type Found = parking_lot::Mutex<Option<(Instant, AloneReport)>>;

impl Group {
    /// Whether this member is alone although it was told where others are; looks again and again from now on, and
    /// logs it. Takes 3 s at most. Not for the runtime's own threads.
    pub fn watch_alone(self: &Arc<Self>) -> Option<AloneReport> {
        if !self.plan().is_member() {
            return None;
        }
        let found = self.runtime().block_on(self.look_alone());
        let group = Arc::downgrade(self);
        self.runtime().spawn(async move {
            loop {
                tokio::time::sleep(LOOK_INTERVAL).await;
                let Some(group) = group.upgrade() else { return };
                group.look_alone().await;
            }
        });
        found
    }

    /// What was found last, if it is still so.
    pub(super) fn alone_report(&self) -> Option<AloneReport> {
        let found = self.alone.lock().as_ref().map(|(_, report)| report.clone());
        found.filter(|_| !self.missed().is_empty())
    }

    async fn look_alone(&self) -> Option<AloneReport> {
        let missed = self.missed();
        if missed.is_empty() {
            if self.alone.lock().take().is_some() {
                tracing::info!("no longer alone in the group");
            }
            return None;
        }
        let before = self.alone.lock().clone();
        if let Some((at, report)) = &before
            && at.elapsed() < ASK_INTERVAL
        {
            return Some(report.clone());
        }
        let report = self.ask_why(&missed).await;
        // Others may have come meanwhile.
        let report = report.filter(|_| !self.missed().is_empty())?;
        if before.is_none_or(|(_, before)| before != report) {
            tracing::warn!("{report}");
        }
        *self.alone.lock() = Some((Instant::now(), report.clone()));
        Some(report)
    }

    /// Connects to some of them, which tells more than gossip that is not answered. None when all are this member.
    async fn ask_why(&self, missed: &[SocketAddr]) -> Option<AloneReport> {
        let mut asked = JoinSet::new();
        for address in missed.iter().copied().take(ASKED_MAX) {
            let endpoint = self.endpoint().clone();
            asked.spawn(async move { (address, endpoint.connect_control(address).await) });
        }
        let mut addresses = missed.len();
        let mut reasons = Vec::new();
        while let Some(Ok((address, connected))) = asked.join_next().await {
            match connected {
                Ok((id, _)) if id == self.plan().me => addresses -= 1,
                Ok(_) => reasons.push((
                    false,
                    address,
                    format!("{address}: it answers TCP, but no gossip: is it starting, or is UDP kept back?"),
                )),
                Err(error) => {
                    reasons.push((error.refusal().is_some(), address, error.to_string()));
                }
            }
        }
        reasons.sort_by_key(|(refused, address, _)| (!refused, *address));
        (addresses > 0).then(|| AloneReport {
            addresses,
            refused: reasons.first().is_some_and(|(refused, ..)| *refused),
            reasons: reasons.into_iter().map(|(_, _, reason)| reason).collect(),
        })
    }
}
