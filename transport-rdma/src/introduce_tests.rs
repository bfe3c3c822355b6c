use forebay_engine::ports::PeerId;

use super::*;

const OURS: u32 = 17;
const PEERS: u32 = 0xff_ffff;
const GRANT: Grant = Grant {
    messages: RECEIVES,
    credit_bytes: PEER_CREDIT_BYTES_MIN as u32,
};

fn core(peer: u64, core: u16) -> PeerCore {
    let peer = PeerId(peer);
    PeerCore { peer, core }
}

fn ends() -> Ends {
    Ends {
        asker: core(1, 3),
        acceptor: core(2, 0),
    }
}

fn session() -> Session {
    Session::new(&Key::new(b"secret"), b"hello", b"welcome")
}

/// An acceptor that has given one ticket, and who has it.
fn given(now: Time) -> (Tickets, Asker) {
    let mut tickets = Tickets::new();
    let ticket = tickets.issue(session(), ends(), [7; 16], now).unwrap();
    (tickets, Asker::new(session(), ticket, ends()))
}

/// What came along, as networks give it.
fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(PRIVATE_BYTES_MAX, 0);
    padded
}

#[test]
fn who_was_given_a_ticket_is_let_in_once_and_believes_the_reply() {
    for pad in [false, true] {
        let as_sent = |bytes: &[u8]| if pad { padded(bytes) } else { bytes.to_vec() };
        let (mut tickets, asker) = given(Time(0));
        let question = as_sent(&asker.question(OURS));
        let guest = tickets.take(&question, OURS, Time(1)).unwrap();
        assert_eq!(guest.ends(), ends());
        let reply = as_sent(&guest.reply(PEERS, GRANT));
        assert_eq!(asker.check(&reply, OURS, PEERS), Ok(GRANT));
        let again = tickets.take(&question, OURS, Time(2)).unwrap_err();
        assert_eq!(again, Refused::Ticket);
        assert_eq!(tickets.open(), 0);
    }
}

#[test]
fn a_ticket_lets_in_until_its_life_is_over() {
    for (after, let_in) in [
        (TICKET_LIFE - Duration::from_nanos(1), true),
        (TICKET_LIFE, false),
    ] {
        let (mut tickets, asker) = given(Time(5));
        let taken = tickets.take(&asker.question(OURS), OURS, Time(5) + after);
        assert_eq!(taken.is_ok(), let_in, "after {after:?}");
        assert_eq!(tickets.open(), 0);
    }
}

#[test]
fn strangers_are_refused_and_the_ticket_stays_its_owners() {
    let (mut tickets, asker) = given(Time(0));
    let ticket = asker.ticket;
    let other_key = Session::new(&Key::new(b"another"), b"hello", b"welcome");
    let other_hello = Session::new(&Key::new(b"secret"), b"hello!", b"welcome");
    let other_welcome = Session::new(&Key::new(b"secret"), b"hello", b"welcome!");
    let mut swapped = ends();
    (swapped.asker, swapped.acceptor) = (swapped.acceptor, swapped.asker);
    let mut other_core = ends();
    other_core.acceptor.core = 1;
    for wrong in [
        Asker::new(other_key, ticket, ends()),
        Asker::new(other_hello, ticket, ends()),
        Asker::new(other_welcome, ticket, ends()),
        Asker::new(session(), ticket, swapped),
        Asker::new(session(), ticket, other_core),
    ] {
        let refused = tickets.take(&wrong.question(OURS), OURS, Time(1));
        assert_eq!(refused.unwrap_err(), Refused::Proof, "{wrong:?}");
    }
    // The right question from another queue pair: seen on the network, and sent again.
    let refused = tickets.take(&asker.question(OURS), OURS + 1, Time(1));
    assert_eq!(refused.unwrap_err(), Refused::Proof);
    let unknown = Asker::new(session(), Ticket([8; 16]), ends());
    let refused = tickets.take(&unknown.question(OURS), OURS, Time(1));
    assert_eq!(refused.unwrap_err(), Refused::Ticket);
    assert!(tickets.take(&asker.question(OURS), OURS, Time(1)).is_ok());
}

#[test]
fn every_changed_bit_of_a_question_or_reply_is_refused() {
    let (mut tickets, asker) = given(Time(0));
    let question = padded(&asker.question(OURS));
    for bit in 0..8 * question.len() {
        let mut changed = question.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(tickets.take(&changed, OURS, Time(1)).is_err(), "bit {bit}");
    }
    let guest = tickets.take(&question, OURS, Time(1)).unwrap();
    let reply = padded(&guest.reply(PEERS, GRANT));
    for bit in 0..8 * reply.len() {
        let mut changed = reply.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(asker.check(&changed, OURS, PEERS).is_err(), "bit {bit}");
    }
    let refused = Err(Refused::Proof);
    assert_eq!(asker.check(&reply, OURS, PEERS - 1), refused);
    assert_eq!(asker.check(&reply, OURS + 1, PEERS), refused);
    // The question sent back is no reply.
    let refused = asker.check(&question, OURS, PEERS);
    assert!(refused.is_err());
    for short in [0, 1, TICKET_BYTES, REPLY_BYTES - 1] {
        assert_eq!(
            asker.check(&reply[..short], OURS, PEERS),
            Err(Refused::Garbled)
        );
        let (mut tickets, _) = given(Time(0));
        let refused = tickets.take(&question[..short], OURS, Time(1));
        assert_eq!(refused.unwrap_err(), Refused::Garbled);
    }
}

#[test]
fn a_grant_that_no_request_fits_or_that_answers_outgrow_is_not_taken() {
    for (messages, credit_bytes) in [
        (REQUEST_MESSAGES_MAX as u16, GRANT.credit_bytes),
        (RECEIVES + 1, GRANT.credit_bytes),
        (RECEIVES, GRANT.credit_bytes - 1),
        (0, 0),
    ] {
        let (mut tickets, asker) = given(Time(0));
        let question = asker.question(OURS);
        let guest = tickets.take(&question, OURS, Time(1)).unwrap();
        let grant = Grant {
            messages,
            credit_bytes,
        };
        let refused = asker.check(&guest.reply(PEERS, grant), OURS, PEERS);
        assert_eq!(refused, Err(Refused::Garbled), "{grant:?}");
    }
}

#[test]
fn tickets_are_bounded_and_make_room_when_they_end_or_are_used() {
    let mut tickets = Tickets::new();
    let random = |n: usize| (n as u128).to_le_bytes();
    for n in 0..TICKETS_MAX {
        let issued = tickets.issue(session(), ends(), random(n), Time(n as u64));
        assert_eq!(issued, Ok(Ticket(random(n))));
    }
    let issue = |tickets: &mut Tickets, n, now| tickets.issue(session(), ends(), random(n), now);
    let now = Time(TICKETS_MAX as u64);
    assert_eq!(issue(&mut tickets, TICKETS_MAX, now), Err(Refused::Busy));
    let asker = Asker::new(session(), Ticket(random(9)), ends());
    assert!(tickets.take(&asker.question(OURS), OURS, now).is_ok());
    assert!(issue(&mut tickets, TICKETS_MAX, now).is_ok());
    // The first one's life is over, the second one's is not.
    let now = Time(0) + TICKET_LIFE;
    assert!(issue(&mut tickets, TICKETS_MAX + 1, now).is_ok());
    assert_eq!(
        issue(&mut tickets, TICKETS_MAX + 2, now),
        Err(Refused::Busy)
    );
    // What was used is not given back by its end, and the same bytes are not given twice.
    let later = Time(0) + TICKET_LIFE * 2;
    assert!(issue(&mut tickets, 9, later).is_ok());
    assert_eq!(issue(&mut tickets, 9, later), Err(Refused::Busy));
    assert!(tickets.by_end.len() <= tickets.open() + 1);
}

#[test]
fn offers_and_refusals_arrive_as_they_were_sent() {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let offer = Offer {
        ticket: Ticket(*b"sixteen bytes of"),
        at: vec![at("10.9.0.1:7441"), at("[fd00::7]:1")],
    };
    let bytes = offer.encode();
    assert_eq!(Offer::decode(&bytes), Ok(offer.clone()));
    for len in 0..bytes.len() {
        assert_eq!(Offer::decode(&bytes[..len]), Err(Refused::Garbled));
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert_eq!(Offer::decode(&longer), Err(Refused::Garbled));
    let none = Offer {
        at: Vec::new(),
        ..offer.clone()
    };
    assert_eq!(Offer::decode(&none.encode()), Err(Refused::Garbled));
    let many = Offer {
        at: vec![at("10.9.0.1:1"); OFFER_ADDRESSES_MAX + 1],
        ..offer
    };
    let told = Offer::decode(&many.encode()).unwrap();
    assert_eq!(told.at.len(), OFFER_ADDRESSES_MAX);
    for (_, refused) in REFUSALS {
        assert_eq!(Refused::of(&padded(&[refused.code()])), Some(refused));
    }
    assert_eq!(Refused::of(&[]), None);
    assert_eq!(Refused::of(&[0]), None);
    assert_eq!(Refused::of(&[200]), None);
}
