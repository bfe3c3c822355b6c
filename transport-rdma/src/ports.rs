//! Ports that reach no peer, and what people are told of it: not more than they can read when a port flaps.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_engine::ports::Time;

use crate::limits::{PORT_LINE_S, PORT_LINES};
use crate::rails::PortNews;

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// To be looked after.
    Warning(String),
    /// All is well.
    Info(String),
}

/// What is known of a device's port.
#[derive(Debug, Default)]
struct Port {
    /// Why it reaches no peer; none when it does.
    down: Option<String>,
    /// Lines that may be written now, and since when one more grows in [`LINE`].
    lines: u32,
    grows_since: Time,
    /// Changes that no line told of; the last one is how it is now.
    left_out: u64,
}

/// One line may be written of a port in so long.
const LINE: Duration = Duration::from_secs(PORT_LINE_S);

/// All devices that were ever told of.
#[derive(Debug, Default)]
pub(crate) struct Ports(BTreeMap<String, Port>);

impl Ports {
    /// What became of a device's port. Each core tells of it: only what is new counts, and is a line now, or later.
    pub fn changed(&mut self, device: &str, news: PortNews, now: Time) -> Option<Line> {
        let fresh = Port {
            lines: PORT_LINES,
            grows_since: now,
            ..Port::default()
        };
        let port = self.0.entry(device.to_owned()).or_insert(fresh);
        let was_down = port.down.is_some();
        port.down = match news {
            PortNews::Down(why) => Some(why),
            PortNews::Up => None,
            // The device's end has a line of its own.
            PortNews::Closed => {
                port.down = None;
                return None;
            }
        };
        if was_down == port.down.is_some() {
            return None;
        }
        port.left_out += 1;
        port.line(device, now)
    }

    /// Lines that were due only now.
    pub fn due(&mut self, now: Time) -> Vec<Line> {
        let late = self.0.iter_mut().filter(|(_, port)| port.left_out > 0);
        late.filter_map(|(device, port)| port.line(device, now))
            .collect()
    }

    /// When the next line is due.
    pub fn due_at(&self) -> Option<Time> {
        let late = self.0.values().filter(|port| port.left_out > 0);
        late.map(|port| port.grows_since + LINE).min()
    }

    /// Whether a device's port reaches no peer.
    pub fn is_down(&self, device: &str) -> bool {
        self.0.get(device).is_some_and(|port| port.down.is_some())
    }

    /// Devices whose port reaches no peer, each with the reason.
    pub fn down(&self) -> Vec<String> {
        let down = self.0.iter();
        let down =
            down.filter_map(|(device, port)| Some(format!("{device}: {}", port.down.as_ref()?)));
        down.collect()
    }
}

impl Port {
    /// How the port is now, if a line may be written.
    fn line(&mut self, device: &str, now: Time) -> Option<Line> {
        let grown = now.since(self.grows_since).as_secs() / PORT_LINE_S;
        if grown > 0 {
            let all = grown.saturating_add(self.lines.into());
            self.lines = u32::try_from(all).unwrap_or(u32::MAX).min(PORT_LINES);
            self.grows_since = now;
        }
        if self.lines == 0 {
            return None;
        }
        if self.lines == PORT_LINES {
            self.grows_since = now;
        }
        self.lines -= 1;
        let changes = std::mem::take(&mut self.left_out);
        let also = match changes {
            0 | 1 => String::new(),
            _ => format!(" (the last of {changes} changes, of which one line a minute is written)"),
        };
        Some(match &self.down {
            Some(why) => Line::Warning(format!(
                "RDMA device {device}: {why}; links by it take TCP until then{also}"
            )),
            None => Line::Info(format!("RDMA device {device}: its port is up again{also}")),
        })
    }
}

impl Line {
    pub fn write(&self) {
        match self {
            Line::Warning(text) => tracing::warn!("{text}"),
            Line::Info(text) => tracing::info!("{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down() -> PortNews {
        PortNews::Down("its port 1 is down: set its link up".into())
    }

    fn at_ms(ms: u64) -> Time {
        Time(0) + Duration::from_millis(ms)
    }

    #[test]
    fn an_outage_is_told_at_both_ends_and_once_whatever_the_number_of_cores() {
        let mut ports = Ports::default();
        let mut lines = Vec::new();
        for _ in 0..4 {
            lines.extend(ports.changed("a", down(), at_ms(0)));
        }
        assert!(ports.is_down("a") && !ports.is_down("b"));
        assert_eq!(ports.down(), ["a: its port 1 is down: set its link up"]);
        for _ in 0..4 {
            lines.extend(ports.changed("a", PortNews::Up, at_ms(9_000)));
        }
        let [Line::Warning(first), Line::Info(second)] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert!(first.contains("links by it take TCP") && second.contains("up again"));
        assert!(ports.down().is_empty() && ports.due_at().is_none());
    }

    #[test]
    fn a_port_that_flaps_writes_a_line_a_minute_and_the_last_one_is_true() {
        let (mut ports, mut lines) = (Ports::default(), Vec::new());
        // Down and up each second, for ten minutes; whoever waits looks when something is due.
        for second in 0..600 {
            lines.extend(ports.changed("a", down(), at_ms(1_000 * second)));
            lines.extend(ports.changed("a", PortNews::Up, at_ms(1_000 * second + 500)));
            if ports.due_at().is_some_and(|at| at <= at_ms(1_000 * second)) {
                lines.extend(ports.due(at_ms(1_000 * second)));
            }
        }
        let most = 600 / PORT_LINE_S as usize + PORT_LINES as usize;
        assert!((most - 2..=most).contains(&lines.len()), "{}", lines.len());
        let counted = |line: &Line| matches!(line, Line::Info(text) | Line::Warning(text) if text.contains("the last of 120 changes"));
        assert!(lines.iter().any(counted), "{lines:?}");
        // It stays down: that is told though nothing changes any more.
        lines.clear();
        lines.extend(ports.changed("a", down(), at_ms(600_000)));
        let due = ports.due_at();
        if lines.is_empty() {
            lines.extend(ports.due(due.expect("a line is due")));
        }
        assert!(matches!(lines.last(), Some(Line::Warning(_))), "{lines:?}");
        assert!(ports.due_at().is_none());
    }
}
