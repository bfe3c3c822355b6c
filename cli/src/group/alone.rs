//! A member that is alone although it was told where others are says so, and why: it reads a whole data set by
//! itself meanwhile.

use std::fmt::{Display, Formatter};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::placement::PeerId;
use forebay_transport_tcp::Endpoint;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::Group;

/// How often a member looks whether it is alone,
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// and as long as it is, asks where others should be why. All of them,
const ASK_INTERVAL: Duration = Duration::from_secs(30);
/// so many at a time; one that says nothing takes a second, one that does not end its sentence three.
const ASKED_AT_ONCE: usize = 32;
/// A start waits so long for what they say; those not asked by then are asked afterwards.
const START_WAIT: Duration = Duration::from_secs(3);
/// So many reasons are kept,
const REASONS_MAX: usize = 8;
/// and so many are told in one line.
const TOLD_MAX: usize = 3;

/// Alone among addresses where others should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AloneReport {
    /// Addresses of `--peers` that are not this member's own: no member of the group was found at any of them.
    pub addresses: usize,
    /// How many of those have been asked why; all, but for the first seconds where there are many.
    #[serde(default)]
    pub asked: usize,
    /// Whether this member has the weight 0: then nobody owns the ring.
    #[serde(default)]
    pub weightless: bool,
    /// Whether one of them refuses this member, or this member it: waiting does not help.
    pub refused: bool,
    /// What became of connections to them, refusals first; at most 8.
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
            "alone: no member of this group was found at {which} of --peers ({}{}); ",
            self.reasons[..told].join("; "),
            if told < self.addresses { "; ..." } else { "" },
        )?;
        if self.asked < self.addresses {
            write!(f, "{} of them were asked why so far; ", self.asked)?;
        }
        f.write_str(match self.weightless {
            true => {
                "this member has the weight 0, so nobody owns a share of the ring: it keeps what it has, and reads from the \
                 origin by itself "
            }
            false => "this member owns the whole ring and reads from the origin by itself ",
        })?;
        f.write_str(match (self.refused, self.weightless) {
            (true, _) => "until that is mended",
            (false, true) => "until one is there",
            (false, false) => "until one is there, as the first member of a group does",
        })
    }
}

/// What became of a connection to an address where a member should be.
#[derive(Clone, Debug)]
enum Answer {
    /// This member itself, by another name.
    Own,
    /// Whether it is a refusal, and the reason in words.
    NotFound { refused: bool, reason: String },
}

impl AloneReport {
    /// Of what some of `addresses` addresses said; none when all are this member's own.
    fn new(
        addresses: usize,
        mut answers: Vec<(SocketAddr, Answer)>,
        weightless: bool,
    ) -> Option<Self> {
        let asked = answers.len();
        answers.retain(|(_, answer)| !matches!(answer, Answer::Own));
        let own = asked - answers.len();
        let refuses = |answer: &Answer| matches!(answer, Answer::NotFound { refused: true, .. });
        answers.sort_by_key(|(address, answer)| (!refuses(answer), *address));
        let refused = answers.first().is_some_and(|(_, answer)| refuses(answer));
        let reasons = answers.into_iter().filter_map(|(_, answer)| match answer {
            Answer::Own => None,
            Answer::NotFound { reason, .. } => Some(reason),
        });
        (own < addresses).then(|| Self {
            addresses: addresses - own,
            asked: asked - own,
            weightless,
            refused,
            reasons: reasons.take(REASONS_MAX).collect(),
        })
    }
}

/// What was found last, and when.
pub(super) type Found = parking_lot::Mutex<Option<(Instant, AloneReport)>>;

impl Group {
    /// Whether this member is alone although it was told where others are; looks again and again from now on, and
    /// logs it. Takes 3 s at most: of many addresses some are asked afterwards. Not for the runtime's own threads.
    pub fn watch_alone(self: &Arc<Self>) -> Option<AloneReport> {
        if !self.plan().is_member() {
            return None;
        }
        let found = self.runtime().block_on(self.look_alone(START_WAIT));
        let group = Arc::downgrade(self);
        self.runtime().spawn(async move {
            loop {
                tokio::time::sleep(LOOK_INTERVAL).await;
                let Some(group) = group.upgrade() else { return };
                group.look_alone(Duration::MAX).await;
            }
        });
        found
    }

    /// What was found last, if it is still so.
    pub(super) fn alone_report(&self) -> Option<AloneReport> {
        let found = self.alone.lock().as_ref().map(|(_, report)| report.clone());
        found.filter(|_| !self.missed().is_empty())
    }

    async fn look_alone(&self, within: Duration) -> Option<AloneReport> {
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
            && report.asked >= report.addresses
        {
            return Some(report.clone());
        }
        let report = self.ask_why(&missed, within).await;
        // Others may have come meanwhile.
        let report = report.filter(|_| !self.missed().is_empty())?;
        if before.is_none_or(|(_, before)| before != report) {
            tracing::warn!("{report}");
        }
        *self.alone.lock() = Some((Instant::now(), report.clone()));
        Some(report)
    }

    /// Connects to them, which tells more than gossip that is not answered; whom it has not reached `within` that is
    /// left out. None when all are this member.
    async fn ask_why(&self, missed: &[SocketAddr], within: Duration) -> Option<AloneReport> {
        let mut answers = Vec::new();
        let ask_all = async {
            let (mut waiting, mut asked) = (missed.iter().copied(), JoinSet::new());
            loop {
                while asked.len() < ASKED_AT_ONCE
                    && let Some(address) = waiting.next()
                {
                    let (endpoint, me) = (self.endpoint().clone(), self.plan().me);
                    asked.spawn(async move { (address, ask(&endpoint, address, me).await) });
                }
                match asked.join_next().await {
                    Some(Ok(answer)) => answers.push(answer),
                    Some(Err(_)) => {}
                    None => return,
                }
            }
        };
        // Whether all were asked is seen in the answers.
        let _ = tokio::time::timeout(within, ask_all).await;
        AloneReport::new(missed.len(), answers, self.is_weightless())
    }
}

async fn ask(endpoint: &Endpoint, address: SocketAddr, me: PeerId) -> Answer {
    match endpoint.connect_control(address).await {
        Ok((id, _)) if id == me => Answer::Own,
        Ok(_) => Answer::NotFound {
            refused: false,
            reason: format!(
                "{address}: it answers TCP, but no gossip: is it starting, or is UDP kept back?"
            ),
        },
        Err(error) => Answer::NotFound {
            refused: error.refusal().is_some(),
            reason: error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: usize) -> SocketAddr {
        ([127, 0, 0, n as u8], 1).into()
    }

    /// The last of twenty refuses, the first is this member, and the others say nothing.
    fn answers() -> Vec<(SocketAddr, Answer)> {
        let answer = |n| match n {
            1 => Answer::Own,
            _ => Answer::NotFound {
                refused: n == 20,
                reason: format!("no {n}"),
            },
        };
        (1..=20).map(|n| (address(n), answer(n))).collect()
    }

    #[test]
    fn refusals_are_told_first_wherever_they_are() {
        let report = AloneReport::new(20, answers(), false).unwrap();
        assert_eq!((report.addresses, report.asked), (19, 19));
        assert!(report.refused);
        assert_eq!(report.reasons.len(), REASONS_MAX);
        assert_eq!(report.reasons[..2], ["no 20", "no 2"]);
        let text = report.to_string();
        for part in ["(no 20; no 2; no 3; ...)", "owns the whole ring", "mended"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(!text.contains("so far"), "{text}");
        let own = vec![(address(1), Answer::Own)];
        assert_eq!(AloneReport::new(1, own, false), None);
    }

    #[test]
    fn who_has_no_weight_owns_nothing_and_who_was_not_asked_is_said() {
        let report = AloneReport::new(100, answers(), true).unwrap();
        assert_eq!((report.addresses, report.asked), (99, 19));
        let text = report.to_string();
        for part in ["nobody owns", "19 of them were asked why so far"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(!text.contains("whole ring"), "{text}");
    }
}
