//! Both ends of a connection that is tried out, without a device.

use forebay_engine::ports::{Class, FetchTag, PeerId, RequestHandle, Time, TransportOp};
use forebay_engine::wire::header::Ask;

use super::*;
use crate::asking::{Asking, Broken, Grant};
use crate::limits::{RECEIVES, TRIAL_MS};
use crate::message::decode_answer;

const ADDRESS: u64 = 4_096 * 77;
const KEY: u32 = 9;

fn asking() -> Asking {
    let grant = Grant {
        messages: RECEIVES,
        credit_bytes: 1 << 20,
    };
    let mut asking = Asking::new(grant, 1, Time(0));
    asking.try_out(ADDRESS, KEY, Time(0));
    asking
}

fn serving() -> Serving {
    Serving::new(PeerId(1), 1 << 20)
}

/// All messages of the asker.
fn sent(asking: &mut Asking) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while asking.next(9, Time(0), |bytes| messages.push(bytes.to_vec())) {}
    messages
}

/// Answers of the peer: where a trial's bytes are written, and the message.
fn posted(serving: &mut Serving) -> Vec<(Option<Destination>, Vec<u8>)> {
    let mut all = Vec::new();
    while serving.next(|written, message| {
        let to = written.map(|(written, to)| {
            assert!(matches!(written, Written::Trial));
            to
        });
        all.push((to, message.to_vec()));
        1
    }) {}
    all
}

#[test]
fn a_trial_is_a_short_answer_and_a_long_one() {
    let (mut asking, mut serving) = (asking(), serving());
    assert!(asking.is_trying() && !asking.is_idle());
    let (messages_before, _) = asking.used();
    for message in sent(&mut asking) {
        let event = serving.received(&message, RequestHandle(1), Time(0));
        assert!(event.unwrap().is_none(), "no affair of the engine's");
    }
    let answers = posted(&mut serving);
    let places: Vec<_> = answers.iter().map(|(to, _)| *to).collect();
    let large = Destination {
        address: ADDRESS,
        key: KEY,
        len_bytes: TRIAL_BYTES as u32,
    };
    assert_eq!(places, [None, Some(large)]);
    for (_, message) in &answers {
        assert!(asking.is_trying());
        assert!(asking.received(message, Time(1)).unwrap().is_none());
    }
    assert!(!asking.is_trying() && asking.is_idle());
    assert_eq!(asking.used().0, messages_before - usize::from(TRIALS));
    assert_eq!(asking.tick(Time(u64::MAX / 2), drop), Ok(()));
    // Once more would be an answer to nothing.
    let again = asking.received(&answers[1].1, Time(1));
    assert_eq!(again.unwrap_err(), Broken::NotAsked);
}

#[test]
fn what_does_not_come_back_is_told_by_its_length() {
    let end = Time(TRIAL_MS * 1_000_000);
    for (comes, why) in [(0, Broken::NothingPasses), (1, Broken::NothingLargePasses)] {
        let (mut asking, mut serving) = (asking(), serving());
        for message in sent(&mut asking) {
            serving
                .received(&message, RequestHandle(1), Time(0))
                .unwrap();
        }
        for (_, message) in &posted(&mut serving)[..comes] {
            asking.received(message, Time(1)).unwrap();
        }
        assert_eq!(asking.tick(Time(end.0 - 1), drop), Ok(()));
        assert_eq!(asking.wake_at(), end);
        assert_eq!(asking.tick(end, drop), Err(why));
    }
}

#[test]
fn answers_out_of_turn_and_trials_again_and_again_end_the_connection() {
    let mut early = asking();
    let mut other = serving();
    let mut first = asking();
    let messages = sent(&mut first);
    for message in &messages {
        other.received(message, RequestHandle(1), Time(0)).unwrap();
    }
    let answers = posted(&mut other);
    // Nothing was sent yet; then the long one before the short one.
    assert_eq!(
        early.received(&answers[0].1, Time(0)).unwrap_err(),
        Broken::NotAsked
    );
    assert_eq!(
        first.received(&answers[1].1, Time(0)).unwrap_err(),
        Broken::NotAsked
    );
    let third = other.received(&messages[0], RequestHandle(1), Time(0));
    assert_eq!(third.unwrap_err(), Breach::Trial);
    // Another length than a trial's would be written past what both ends have.
    let (request, place) = decode_request(&messages[1]).unwrap();
    let Some(mut place) = place else {
        panic!("a place")
    };
    place.len_bytes += 1;
    let (bytes, len) = crate::message::encode_request(&request, Some(place));
    let breach = serving().received(&bytes[..len], RequestHandle(1), Time(0));
    assert!(matches!(breach, Err(Breach::Garbled(_))), "{breach:?}");
    let (answer, _) = decode_answer(&answers[0].1).unwrap();
    assert_eq!(answer.tag & TRIAL_TAG, TRIAL_TAG);
}

/// A call without bytes in its answer has nothing written before it.
#[test]
fn an_answer_without_bytes_is_no_trial() {
    let mut arena = forebay_engine::arena::Arena::new(1 << 20).unwrap();
    let mut asking = asking();
    sent(&mut asking);
    let lease = arena
        .lease(4_096, forebay_engine::arena::Share::Demand)
        .unwrap();
    let op = TransportOp::Call {
        tag: FetchTag(1),
        to: forebay_engine::ports::PeerCore {
            peer: PeerId(2),
            core: 0,
        },
        class: Class::Demand,
        body: vec![7].into(),
        lease,
        deadline: Time::NEVER,
    };
    assert!(asking.ask(op).is_ok());
    let mut serving = serving();
    for message in sent(&mut asking) {
        serving
            .received(&message, RequestHandle(3), Time(0))
            .unwrap();
    }
    assert!(matches!(trial(true).ask, Ask::Call { .. }));
    serving
        .answer(RequestHandle(3), FetchStatus::Bytes, None)
        .unwrap();
    let answers = posted(&mut serving);
    assert!(matches!(answers[..], [(None, _)]));
}
