//! Connections by rdma_cm, on a device. `ci/softroce` runs them.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{End, TestDevice, WAIT_MAX, open_device, pattern, wait_for};
use forebay_transport_rdma::{Access, Cm, CmEvent, CmId, CmPlace};

const LIMIT: Duration = Duration::from_secs(5);
/// The reason that the network gives where a program refused.
const BY_PROGRAM: i32 = 28;

/// Both ends of connections, as two processes would have them.
struct Ends {
    device: TestDevice,
    asker: Cm,
    acceptor: Cm,
    listener: CmId,
    at: SocketAddr,
}

/// A connection's end: its queue pair, and what rdma_cm calls it.
type Joined = (CmId, End);

fn next(cm: &mut Cm) -> CmEvent {
    let begun = Instant::now();
    loop {
        if let Some(event) = cm.next_event().expect("events") {
            return event;
        }
        assert!(begun.elapsed() < WAIT_MAX, "no event within {WAIT_MAX:?}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl Ends {
    fn new(device: TestDevice) -> Ends {
        let port = device.open.port_address(device.port, device.gid_index);
        let ip = port.expect("an address").gid.ip();
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        let mut acceptor = Cm::new().expect("librdmacm");
        let (listener, at) = acceptor
            .listen(SocketAddr::new(ip, 0), 128)
            .expect("to listen");
        assert_ne!(at.port(), 0);
        Ends {
            device,
            asker: Cm::new().expect("librdmacm"),
            acceptor,
            listener,
            at,
        }
    }

    /// What both ends say is where the test's device is.
    fn is_here(&self, place: &CmPlace) -> bool {
        place.device == self.device.open.name() && place.port == self.device.port
    }

    fn end(&self) -> End {
        self.device.end(8_192, Access::LOCAL)
    }

    /// The asker's end, up to its question.
    fn ask(&mut self, private: &[u8]) -> Joined {
        let id = self.asker.resolve_address(None, self.at, LIMIT);
        let id = id.expect("to look for the address");
        assert!(self.asker.place(id).is_err(), "it has no device yet");
        assert_eq!(next(&mut self.asker), CmEvent::AddressResolved(id));
        self.asker
            .resolve_route(id, LIMIT)
            .expect("to look for a route");
        assert_eq!(next(&mut self.asker), CmEvent::RouteResolved(id));
        assert!(self.is_here(&self.asker.place(id).expect("a place")));
        let step = self.asker.prepare_step(id).expect("the first step");
        let end = self.end();
        end.pair
            .prepare_by(&step, Access::LOCAL)
            .expect("to prepare");
        let number = end.pair.number();
        self.asker.connect(id, number, private).expect("to ask");
        (id, end)
    }

    /// Takes a question; `private` is what must have come along, before what the network adds.
    fn asked(&mut self, by: &End, private: &[u8]) -> CmId {
        let event = next(&mut self.acceptor);
        let CmEvent::Requested {
            listener,
            id,
            queue_pair,
            private: told,
        } = event
        else {
            panic!("not a question: {event:?}");
        };
        assert_eq!((listener, queue_pair), (self.listener, by.pair.number()));
        let (told, rest) = told.split_at(private.len());
        assert!(told == private && rest.iter().all(|byte| *byte == 0));
        assert!(self.is_here(&self.acceptor.place(id).expect("a place")));
        id
    }

    /// The acceptor's end of what was asked for.
    fn accept(&mut self, id: CmId, private: &[u8]) -> End {
        let end = self.end();
        let prepare = self.acceptor.prepare_step(id).expect("the first step");
        end.pair
            .prepare_by(&prepare, Access::LOCAL)
            .expect("to prepare");
        let connect = self.acceptor.connect_steps(id).expect("further steps");
        end.pair.connect_by(&connect).expect("to connect");
        let number = end.pair.number();
        self.acceptor
            .accept(id, number, private)
            .expect("to accept");
        end
    }

    /// The asker's end of what was accepted, until both know.
    fn establish(&mut self, (id, end): &Joined, by: &End, private: &[u8]) {
        let event = next(&mut self.asker);
        let CmEvent::Accepted {
            id: accepted,
            queue_pair,
            private: told,
        } = event
        else {
            panic!("not accepted: {event:?}");
        };
        assert_eq!((accepted, queue_pair), (*id, by.pair.number()));
        assert!(told.starts_with(private));
        let steps = self.asker.connect_steps(*id).expect("further steps");
        end.pair.connect_by(&steps).expect("to connect");
        self.asker.establish(*id).expect("to establish");
    }

    fn connect(&mut self, number: u64) -> [Joined; 2] {
        let question = pattern(56, number);
        let asker = self.ask(&question);
        let id = self.asked(&asker.1, &question);
        let answer = pattern(48, number + 1);
        let end = self.accept(id, &answer);
        self.establish(&asker, &end, &answer);
        assert_eq!(next(&mut self.acceptor), CmEvent::Established(id));
        [asker, (id, end)]
    }

    /// Ends a connection from the asker's side.
    fn disconnect(&mut self, [asker, acceptor]: [Joined; 2]) {
        self.asker.disconnect(asker.0).expect("to disconnect");
        assert_eq!(next(&mut self.acceptor), CmEvent::Disconnected(acceptor.0));
        self.acceptor.disconnect(acceptor.0).expect("to agree");
        assert_eq!(next(&mut self.asker), CmEvent::Disconnected(asker.0));
        drop((asker.1, acceptor.1));
        self.asker.close(asker.0);
        self.acceptor.close(acceptor.0);
    }

    /// What the device, and this process, have in use.
    fn holds(&self) -> (String, usize, usize) {
        let told = Command::new("rdma").args(["resource", "show"]).output();
        let told = String::from_utf8(told.expect("rdma, of iproute2").stdout).unwrap();
        let mark = format!(" {}: ", self.device.open.name());
        let of_device = told.lines().find(|line| line.contains(&mark));
        let of_device = of_device.unwrap_or_else(|| panic!("no device in {told}"));
        assert!(of_device.contains(" qp ") && of_device.contains(" cm_id "));
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
        (of_device.to_owned(), descriptors, pages * 4_096)
    }
}

fn send(from: &End, to: &End, seed: u64) {
    let message = pattern(4_096, seed);
    let place = to.region.slice(4_096, 4_096).unwrap();
    to.pair.post_receive(7, place).expect("a receive");
    from.region.write_at(0, &message).unwrap();
    let message_place = from.region.slice(0, 4_096).unwrap();
    from.pair.post_send(8, message_place, true).expect("a send");
    wait_for(from, 8).outcome.expect("the send");
    wait_for(to, 7).outcome.expect("the receive");
    assert!(to.bytes(4_096, 4_096) == message);
}

#[test]
fn two_ends_connect_and_tell_each_other_what_they_like() {
    let Some(device) = open_device() else { return };
    let mut ends = Ends::new(device);
    let joined = ends.connect(1);
    send(&joined[0].1, &joined[1].1, 1);
    send(&joined[1].1, &joined[0].1, 2);
    ends.disconnect(joined);
    assert_eq!((ends.asker.ids(), ends.acceptor.ids()), (0, 1));
    assert_eq!(ends.asker.next_event().expect("events"), None);
}

#[test]
fn a_stranger_is_refused_before_there_is_a_queue_pair_for_it() {
    let Some(device) = open_device() else { return };
    let mut ends = Ends::new(device);
    let stranger = ends.ask(b"let me in");
    let before = ends.holds().0;
    let id = ends.asked(&stranger.1, b"let me in");
    // A queue pair of the stranger's, none of this end's.
    assert!(before.contains(" qp 2 "), "{before}");
    assert_eq!(
        ends.holds().0,
        before,
        "a request takes something of the device"
    );
    ends.acceptor.reject(id, b"no").expect("to refuse");
    let event = next(&mut ends.asker);
    let CmEvent::Rejected {
        id,
        reason,
        private,
    } = event
    else {
        panic!("not refused: {event:?}");
    };
    assert_eq!((id, reason), (stranger.0, BY_PROGRAM));
    assert!(private.starts_with(b"no"));
    assert_eq!(ends.acceptor.ids(), 1, "only what listens is left");
    assert_eq!(ends.acceptor.next_event().expect("events"), None);
    // Too much to send along is refused here.
    assert!(ends.asker.connect(id, 1, &[0; 57]).is_err());
    ends.asker.close(id);
    assert!(ends.asker.connect(id, 1, b"").is_err(), "it is closed");
    // And the next one is let in.
    let joined = ends.connect(3);
    send(&joined[0].1, &joined[1].1, 3);
}

#[test]
fn where_nobody_listens_the_asker_is_told() {
    let Some(device) = open_device() else { return };
    let mut ends = Ends::new(device);
    ends.acceptor.close(ends.listener);
    let (id, _end) = ends.ask(b"");
    let event = next(&mut ends.asker);
    let CmEvent::Rejected { id: told, .. } = event else {
        panic!("not refused: {event:?}");
    };
    assert_eq!(told, id);
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let Some(device) = open_device() else { return };
    let mut ends = Ends::new(device);
    let mut connect = |times| {
        for number in 0..times {
            let joined = ends.connect(number);
            ends.disconnect(joined);
        }
        assert_eq!((ends.asker.ids(), ends.acceptor.ids()), (0, 1));
        ends.holds()
    };
    let before = connect(20);
    let after = connect(1_000);
    assert_eq!((&after.0, after.1), (&before.0, before.1));
    let grown_bytes = after.2.saturating_sub(before.2);
    assert!(grown_bytes < 4 << 20, "{grown_bytes} bytes more");
}

#[test]
fn a_hundred_connect_at_once() {
    let Some(device) = open_device() else { return };
    let mut ends = Ends::new(device);
    let askers: Vec<Joined> = (0..100).map(|n| ends.ask(&pattern(56, n))).collect();
    // They come, are accepted and become known in any order.
    let mut accepted = BTreeMap::new();
    while accepted.len() < askers.len() {
        let event = next(&mut ends.acceptor);
        let CmEvent::Requested { id, private, .. } = event else {
            panic!("not a question: {event:?}");
        };
        let number = (0..100).find(|number| private.starts_with(&pattern(56, *number)));
        let number = number.expect("a question that was asked");
        let end = ends.accept(id, &pattern(48, number));
        assert!(accepted.insert(number as usize, (id, end)).is_none());
    }
    for _ in 0..askers.len() {
        let event = next(&mut ends.asker);
        let CmEvent::Accepted { id, private, .. } = event else {
            panic!("not accepted: {event:?}");
        };
        let number = askers.iter().position(|asker| asker.0 == id);
        let number = number.expect("what was asked");
        assert!(private.starts_with(&pattern(48, number as u64)));
        let steps = ends.asker.connect_steps(id).expect("further steps");
        askers[number]
            .1
            .pair
            .connect_by(&steps)
            .expect("to connect");
        ends.asker.establish(id).expect("to establish");
    }
    let known: BTreeSet<CmId> = (0..100)
        .map(|_| match next(&mut ends.acceptor) {
            CmEvent::Established(id) => id,
            event => panic!("not established: {event:?}"),
        })
        .collect();
    assert!(
        known
            .iter()
            .eq(accepted.values().map(|(id, _)| id).collect::<BTreeSet<_>>())
    );
    for (number, (_, end)) in &accepted {
        send(&askers[*number].1, end, *number as u64);
    }
}
