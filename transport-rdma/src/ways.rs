//! Which of this node's addresses a connection leaves by, and which of the peer's it goes to.

use std::net::{IpAddr, SocketAddr};

use crate::inventory::Rail;

/// Whose connection it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whose {
    /// This node's core.
    pub core: u16,
    /// The NUMA node that the core is on, where that is known.
    pub node: Option<u32>,
    /// Devices by which it has one already.
    pub without: Vec<String>,
    /// Addresses of the peer that those go to.
    pub taken: Vec<IpAddr>,
}

/// The pair of addresses of attempt `attempt`: every pair of one family in turn, beginning with another one for each core;
/// devices near to the core come before those that are not.
pub(crate) fn way(
    rails: &[Rail],
    at: &[SocketAddr],
    whose: &Whose,
    attempt: usize,
) -> Option<(IpAddr, SocketAddr)> {
    let is_near = |rail: &Rail| match (rail.node, whose.node) {
        (Some(rail), Some(core)) => rail == core,
        // Unknown is as good as near: it must not keep cores from a rail.
        _ => true,
    };
    let free = pairs(rails, at).into_iter();
    let free = free.filter(|pair| !whose.without.contains(&pair.rail.device));
    let mut free: Vec<Pair<'_>> = free.collect();
    // Stable: among equals those first that have the same place at both ends.
    free.sort_by_key(|pair| {
        let is_taken = whose.taken.contains(&pair.at.ip());
        (is_taken, !is_near(pair.rail), !pair.is_straight)
    });
    if whose.without.is_empty() {
        // Cores spread over what is as good as the first.
        let best = free
            .first()
            .map(|first| (is_near(first.rail), first.is_straight));
        let same = free
            .iter()
            .take_while(|pair| Some((is_near(pair.rail), pair.is_straight)) == best);
        let count = same.count();
        if count > 0 {
            free[..count].rotate_left(usize::from(whose.core) % count);
        }
    }
    let pair = free.get(attempt.checked_rem(free.len())?)?;
    Some((pair.rail.ip, pair.at))
}

struct Pair<'a> {
    rail: &'a Rail,
    at: SocketAddr,
    /// Both ends have it at the same place of their lists: rails of one fabric are often told in the same order.
    is_straight: bool,
}

/// All pairs of one family.
fn pairs<'a>(rails: &'a [Rail], at: &[SocketAddr]) -> Vec<Pair<'a>> {
    let (from, to) = (rails.len(), at.len());
    if from == 0 || to == 0 {
        return Vec::new();
    }
    // After so many both lists begin anew together, and the second is shifted by one.
    let round = from / gcd(from, to) * to;
    let pairs = (0..from * to).map(|n| Pair {
        rail: &rails[n % from],
        at: at[(n + n / round) % to],
        is_straight: n < round,
    });
    pairs
        .filter(|pair| pair.rail.ip.is_ipv4() == pair.at.is_ipv4())
        .collect()
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn rail(device: &str, last: u8) -> Rail {
        Rail {
            device: device.into(),
            port: 1,
            gid_index: 3,
            gid: None,
            forces_gid: false,
            ip: IpAddr::from([10, 0, 0, last]),
            node: None,
            marking: Default::default(),
        }
    }

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 1, last], 7))
    }

    fn of(core: u16) -> Whose {
        Whose {
            core,
            ..Whose::default()
        }
    }

    #[test]
    fn attempts_go_through_all_pairs_of_addresses() {
        let rails: Vec<Rail> = (1..=8).map(|last| rail("a", last)).collect();
        let at: Vec<SocketAddr> = (1..=8).map(at).collect();
        for (from, to) in (1..=8).flat_map(|from| (1..=8).map(move |to| (from, to))) {
            for core in [0, 1, 7] {
                let ways = (0..from * to)
                    .filter_map(|attempt| way(&rails[..from], &at[..to], &of(core), attempt));
                let ways: BTreeSet<_> = ways.collect();
                assert_eq!(ways.len(), from * to, "{from} to {to}, core {core}");
            }
        }
        let first = way(&rails, &at[..2], &of(0), 0).unwrap();
        assert_eq!((first.0, first.1.ip()), (rails[0].ip, at[0].ip()));
        assert_eq!(way(&rails, &[], &of(0), 0), None);
    }

    #[test]
    fn addresses_of_two_families_are_no_pair() {
        let mut six = rail("a", 1);
        six.ip = "fd00::1".parse().unwrap();
        let rails = [rail("a", 1), six.clone()];
        for attempt in 0..4 {
            let (from, to) = way(&rails, &[at(1)], &of(0), attempt).unwrap();
            assert!(from.is_ipv4() && to.is_ipv4());
        }
        assert_eq!(way(&[six], &[at(1)], &of(0), 0), None);
    }

    #[test]
    fn rails_near_to_the_core_come_first() {
        let mut rails: Vec<Rail> = (1..=4).map(|last| rail("a", last)).collect();
        for (rail, node) in rails.iter_mut().zip([0, 0, 1, 1]) {
            rail.node = Some(node);
        }
        let on = |core, node| Whose { node, ..of(core) };
        let first =
            |core, node, attempt| way(&rails, &[at(1)], &on(core, node), attempt).unwrap().0;
        // Cores of one node spread over its rails,
        assert_eq!(first(2, Some(1), 0), rails[2].ip);
        assert_eq!(first(3, Some(1), 0), rails[3].ip);
        // and come to the others only when those have failed.
        let all: Vec<_> = (0..4).map(|attempt| first(2, Some(1), attempt)).collect();
        assert_eq!(all, [2, 3, 0, 1].map(|n: usize| rails[n].ip));
        // A core whose node is not known takes any.
        let starts: BTreeSet<_> = (0..4).map(|core| first(core, None, 0)).collect();
        assert_eq!(starts.len(), 4);
    }

    /// Both connections of a core with two rails to a peer with two, when all can be made.
    #[test]
    fn a_second_connection_goes_to_another_port_of_the_peer() {
        let rails = [rail("a", 1), rail("b", 2)];
        let peer = [at(1), at(2)];
        for core in 0..5 {
            let (from, to) = way(&rails, &peer, &of(core), 0).unwrap();
            let first = rails.iter().find(|rail| rail.ip == from).unwrap();
            assert_eq!(
                to.ip().to_string(),
                format!("10.0.1.{}", if first.device == "a" { 1 } else { 2 })
            );
            let whose = Whose {
                without: vec![first.device.clone()],
                taken: vec![to.ip()],
                ..of(core)
            };
            let (second, other) = way(&rails, &peer, &whose, 0).unwrap();
            assert_ne!((second, other), (from, to));
            assert!(second != from && other != to, "core {core}");
            // Whichever of them breaks and is made anew.
            let whose = Whose {
                without: vec![if first.device == "a" { "b" } else { "a" }.into()],
                taken: vec![other.ip()],
                ..of(core)
            };
            assert_eq!(way(&rails, &peer, &whose, 0), Some((from, to)));
        }
    }

    #[test]
    fn a_second_connection_goes_by_another_device() {
        let rails = [rail("a", 1), rail("a", 2), rail("b", 3)];
        let whose = Whose {
            without: vec!["a".into()],
            ..of(0)
        };
        for attempt in 0..3 {
            let (from, _) = way(&rails, &[at(1)], &whose, attempt).unwrap();
            assert_eq!(from, rails[2].ip);
        }
        let whose = Whose {
            without: vec!["a".into(), "b".into()],
            ..of(0)
        };
        assert_eq!(way(&rails, &[at(1)], &whose, 0), None);
    }
}
