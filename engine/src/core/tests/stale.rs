//! Names while the origin does not answer: who is told what was known, when, and by whom.

use super::group::{OTHERS, everyone};
use super::metadata_group::{Heads, MS, SECOND, foreign_key, head_answer, meta, results, version};
use super::*;
use crate::client::{Accept, HeadRequest};
use crate::identity::Slot;
use crate::wire::call::{Call, CallAnswer};

/// Any answer younger than this will do, as far as it is up to the asker.
const HOUR: Duration = Duration::from_secs(3_600);

impl Bench {
    /// The origin fails whatever it is asked, until someone has an answer or `limit` is over.
    fn fail_until_told(&mut self, told: impl Fn(&mut Self) -> bool, limit: Duration) {
        let end = self.clock.now() + limit;
        while !told(self) && self.clock.now() < end {
            self.fail_all();
            self.pass(50 * MS);
        }
    }

    pub(super) fn fail_all(&mut self) {
        let ops: Vec<OriginOp> = self.origin.0.borrow_mut().ops.drain(..).collect();
        for op in ops {
            let error = OriginError::new(OriginErrorKind::Unavailable, "scripted");
            match op {
                OriginOp::Head(head) => self.push(OriginEvent::Head {
                    tag: head.tag,
                    result: Err(error),
                }),
                OriginOp::List(list) => self.push(OriginEvent::List {
                    tag: list.tag,
                    result: Err(error),
                }),
                OriginOp::Get(get) => self.push(OriginEvent::GetDone {
                    tag: get.tag,
                    result: Err(error),
                    unfilled: get.leases,
                    wasted_bytes: 0,
                }),
            }
        }
        self.turn();
    }

    /// What the origin said of `key` is remembered, and ten minutes old.
    fn knows(&mut self, key: &str, result: Result<ObjectMeta, OriginErrorKind>) {
        let heads = self.head(key);
        self.answer_head(result.map_err(|kind| OriginError::new(kind, "scripted")));
        assert_eq!(heads.lock().len(), 1);
    }

    /// The owner of `key` said what it is.
    fn knows_of(&mut self, key: &str, meta: ObjectMeta) {
        let heads = self.head(key);
        let question = self.question();
        self.say(question, &head_answer(Ok(meta), 0));
        assert_eq!(heads.lock().len(), 1);
    }

    /// Asks in vain for something, until it is known that the origin does not answer.
    pub(super) fn outage(&mut self) {
        let mut keys = (0..).map(|n| format!("asked in vain {n}"));
        let is_mine = |key: &String| self.core.group.owns(Slot::of_name(key));
        let key = keys.find(is_mine).expect("one of them");
        self.outage_at(&key);
    }

    /// Asks in vain for a key that this node owns, until it is known that the origin does not answer.
    fn outage_at(&mut self, key: &str) {
        self.pass(600 * SECOND);
        let bucket = self.object.bucket.clone();
        let heads = self.head_within(key, Duration::ZERO);
        let is_known = move |bench: &mut Bench| bench.core.outages.is_known(&bucket);
        self.fail_until_told(is_known, 10 * SECOND);
        assert_eq!(self.core.stats().outages, 1);
        self.transport.0.borrow_mut().ops.clear();
        drop(heads);
    }
}

impl Bench {
    /// The origin does not answer once more.
    pub(super) fn outage_again(&mut self) {
        self.core.stats.outages = 0;
        self.core.outages = Default::default();
        self.outage();
    }
}

fn told(heads: &Heads) -> bool {
    !heads.lock().is_empty()
}

#[test]
fn names_are_told_as_last_known_while_the_origin_refuses() {
    let mut bench = Bench::new(64 * MIB, MIB);
    bench.knows("a", Ok(meta("a")));
    bench.knows("gone", Err(OriginErrorKind::NotFound));
    let listing = bench.listing("d/", None);
    bench.list(listing.clone());
    bench.answer_list(ListPage::default());
    bench.pass(600 * SECOND);
    let began = bench.clock.now();
    let heads = bench.head("a");
    bench.fail_until_told(|_| told(&heads), TIMEOUT);
    assert_eq!(results(&heads), [Ok(meta("a"))]);
    // It says of when it is.
    assert_eq!(heads.lock()[0].at, Time(0));
    let took = bench.clock.now().since(began);
    assert!(took < 5 * SECOND, "{took:?}");
    // From then on nobody waits, for what there was and for what there was not.
    let requests = bench.core.stats().heads;
    assert_eq!(results(&bench.head("a")), [Ok(meta("a"))]);
    let gone = [Err(OriginErrorKind::NotFound)];
    assert_eq!(results(&bench.head("gone")), gone);
    let pages = bench.list(listing);
    assert_eq!(pages.lock()[0].result, Ok(Arc::default()));
    let stats = bench.core.stats();
    assert_eq!((stats.heads, stats.stale_answers), (requests, 4));
    assert_eq!(stats.outages, 1);
    assert!(stats.outage_ns >= 2_000_000_000);
    // A probe finds out that it answers again, without anyone who asks.
    bench.fail_until_told(|_| false, 5 * SECOND);
    bench.pass(5 * SECOND);
    bench.answer_head(Err(OriginError::new(OriginErrorKind::NotFound, "none")));
    assert_eq!(bench.core.stats().outage_ns, 0);
    let heads = bench.head("a");
    bench.answer_head(Ok(version("a", 2)));
    assert_eq!(results(&heads), [Ok(version("a", 2))]);
    assert_eq!(bench.core.stats().stale_answers, 4);
    bench.pass(SECOND);
    assert!(bench.core.is_quiet());
    assert_eq!(bench.core.turn(Budget::default()).wake_at, Time::NEVER);
}

#[test]
fn what_a_silent_origin_is_asked_is_told_as_last_known_before_the_deadline() {
    let mut bench = Bench::new(64 * MIB, MIB);
    bench.knows("a", Ok(meta("a")));
    bench.pass(600 * SECOND);
    let heads = bench.head("a");
    bench.pass(TIMEOUT / 3 - MS);
    assert!(!told(&heads));
    for _ in 0..4 {
        bench.fail_canceled();
        bench.pass(SECOND);
    }
    assert_eq!(results(&heads), [Ok(meta("a"))]);
    assert_eq!(results(&bench.head("a")), [Ok(meta("a"))]);
}

impl Bench {
    /// Operations that were given up end.
    fn fail_canceled(&mut self) {
        let cancelled: Vec<OriginTag> = self.origin.0.borrow().cancelled.clone();
        let ops: Vec<OriginOp> = self.origin.0.borrow_mut().ops.drain(..).collect();
        for op in ops {
            match op {
                OriginOp::Head(head) if cancelled.contains(&head.tag) => {
                    let kind = OriginErrorKind::Cancelled;
                    let result = Err(OriginError::new(kind, "scripted"));
                    self.push(OriginEvent::Head {
                        tag: head.tag,
                        result,
                    });
                }
                op => self.origin.0.borrow_mut().ops.push_back(op),
            }
        }
        self.turn();
    }
}

#[test]
fn an_answer_of_the_origin_is_never_replaced_by_what_was_known() {
    let mut bench = Bench::new(64 * MIB, MIB);
    bench.knows("a", Ok(meta("a")));
    bench.outage();
    for kind in [OriginErrorKind::Denied, OriginErrorKind::NotFound] {
        bench.core.outages = Default::default();
        bench.origin.0.borrow_mut().ops.clear();
        let heads = bench.head("a");
        let op = bench.origin.0.borrow_mut().ops.pop_back();
        bench.origin.0.borrow_mut().ops.push_front(op.unwrap());
        bench.answer_head(Err(OriginError::new(kind, "scripted")));
        assert_eq!(results(&heads), [Err(kind)]);
    }
    assert_eq!(bench.core.stats().stale_answers, 0);
}

#[test]
fn who_was_never_told_and_who_takes_nothing_old_waits_until_the_deadline() {
    let mut bench = Bench::new(64 * MIB, MIB);
    bench.knows("a", Ok(meta("a")));
    bench.outage();
    let new = bench.head("new");
    let strict = bench.head_within("a", Duration::ZERO);
    bench.fail_until_told(|_| told(&new) || told(&strict), TIMEOUT * 2);
    let asked = Time(bench.clock.now().0);
    assert!(!told(&new) || matches!(results(&new)[..], [Err(kind)] if kind.is_transient()));
    bench.fail_until_told(|_| told(&new) && told(&strict), SECOND * 2);
    for heads in [new, strict] {
        assert!(matches!(results(&heads)[..], [Err(kind)] if kind.is_transient()));
    }
    assert!(asked.since(Time(0)) > 600 * SECOND + TIMEOUT / 10 * 9);
    // While it waits, a new name is told as soon as the origin answers.
    let new = bench.head("new");
    bench.fail_until_told(|_| false, 3 * SECOND);
    bench.pass(3 * SECOND);
    while !told(&new) {
        bench.answer_head(Ok(meta("new")));
    }
    assert_eq!(results(&new), [Ok(meta("new"))]);
}

#[test]
fn who_knows_an_answer_itself_is_told_at_once_that_there_is_no_other() {
    let mut bench = Bench::new(64 * MIB, MIB);
    bench.outage();
    let heads = Heads::default();
    let reply = heads.clone();
    let request = HeadRequest {
        bucket: bench.object.bucket.clone(),
        key: "b".into(),
        accept: Accept {
            max_age: SECOND,
            knows_last: true,
            until: None,
        },
        deadline: bench.clock.now() + TIMEOUT,
        reply: Box::new(move |result| reply.lock().push(result)),
    };
    bench.ring.push(Request::Head(request)).unwrap();
    bench.turn();
    assert_eq!(results(&heads), [Err(OriginErrorKind::Unavailable)]);
}

#[test]
fn what_is_older_than_allowed_is_not_told() {
    let mut bench = Bench::new(64 * MIB, MIB);
    bench.core.config.stale_max = 700 * SECOND;
    bench.knows("a", Ok(meta("a")));
    bench.outage();
    assert_eq!(results(&bench.head("a")), [Ok(meta("a"))]);
    bench.pass(100 * SECOND);
    let heads = bench.head("a");
    bench.fail_until_told(|_| told(&heads), TIMEOUT * 2);
    assert!(matches!(results(&heads)[..], [Err(kind)] if kind.is_transient()));
}

#[test]
fn an_owner_tells_members_at_once_what_it_knows_or_that_it_cannot_find_out() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let key = bench.key_of(&view, ME);
    bench.knows(&key, Ok(meta(&key)));
    bench.outage();
    bench.call(1, &bench.head_call(&key, 1_000), 65_536);
    let CallAnswer::Head { result, age_ms } = bench.call_told() else {
        panic!("another answer")
    };
    assert_eq!(result, Ok(meta(&key)));
    assert!(age_ms > 600_000, "{age_ms}");
    let mut refused = |call: &Call| {
        bench.call(2, call, 65_536);
        let CallAnswer::Head { result, .. } = bench.call_told() else {
            panic!("another answer")
        };
        assert_eq!(
            result.map_err(|error| error.0),
            Err(OriginErrorKind::Unavailable)
        );
    };
    let call = |key: &str, max_age_ms| Call::Head {
        bucket: object("", 0).bucket.clone(),
        key: key.into(),
        max_age_ms,
    };
    refused(&call(&key, 0));
    refused(&call("never heard of", 1_000));
}

#[test]
fn an_owner_that_alone_is_cut_off_is_stood_in_for_by_those_that_are_not() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (ranks, key) = foreign_key(&view);
    bench.pass(600 * SECOND);
    let heads = bench.head(&key);
    let question = bench.question();
    assert_eq!(question.to, ranks[0]);
    bench.say(question, &head_answer(Ok(version(&key, 1)), 500_000));
    assert_eq!(results(&heads), []);
    let question = bench.question();
    assert_eq!(question.to, ranks[1]);
    // There is an answer already: nobody else is waited for long.
    assert!(question.deadline <= bench.clock.now() + 3 * SECOND);
    bench.say(question, &head_answer(Ok(version(&key, 2)), 0));
    assert_eq!(results(&heads), [Ok(version(&key, 2))]);
    assert_eq!(bench.core.stats().stale_answers, 0);
}

#[test]
fn what_the_owner_knew_is_told_when_nobody_knows_anything_newer() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (ranks, key) = foreign_key(&view);
    bench.pass(600 * SECOND);
    let heads = bench.head(&key);
    let answers = [
        head_answer(Ok(version(&key, 2)), 300_000),
        head_answer(Ok(version(&key, 1)), 500_000),
        head_answer(Err(OriginErrorKind::Unavailable), 0),
    ];
    for (peer, answer) in ranks.iter().zip(&answers) {
        let question = bench.question();
        assert_eq!(question.to, *peer);
        bench.say(question, answer);
    }
    assert_eq!(results(&heads), []);
    bench.fail_all();
    assert_eq!(results(&heads), [Ok(version(&key, 2))]);
    assert_eq!(heads.lock()[0].at, Time(300_000_000_000));
    assert_eq!(bench.core.stats().stale_answers, 1);
}

#[test]
fn an_owner_that_is_cut_off_asks_those_that_stand_for_it() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let key = bench.key_of(&view, ME);
    bench.knows(&key, Ok(version(&key, 1)));
    bench.outage();
    let heads = bench.head_within(&key, HOUR / 60);
    assert_eq!(results(&heads), []);
    let question = bench.question();
    assert!(OTHERS.contains(&question.to));
    bench.say(question, &head_answer(Ok(version(&key, 2)), 0));
    assert_eq!(results(&heads), [Ok(version(&key, 2))]);
    // None of them does: what is known from before.
    let heads = bench.head_within(&key, MS);
    bench.pass(2 * MS);
    while !told(&heads) {
        let question = bench.question();
        bench.say(question, &head_answer(Err(OriginErrorKind::Unavailable), 0));
    }
    assert_eq!(results(&heads), [Ok(version(&key, 2))]);
}

#[test]
fn a_members_question_does_not_end_what_is_asked_of_others_meanwhile() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    // This node, cut off, asks for its own name; and it asks for the name of another, S3 being silent for all it knows.
    let own = bench.key_of(&view, ME);
    let (_, far) = foreign_key(&view);
    for (key, is_cut_off) in [(far, false), (own, true)] {
        if is_cut_off {
            bench.outage();
        }
        let heads = bench.head(&key);
        let question = bench.question();
        bench.call(2, &bench.head_call(&key, 1_000), 65_536);
        if is_cut_off {
            let CallAnswer::Head { result, .. } = bench.call_told() else {
                panic!("another answer")
            };
            assert!(matches!(result, Err((OriginErrorKind::Unavailable, _))));
        }
        bench.say(question, &head_answer(Ok(version(&key, 2)), 0));
        assert_eq!(results(&heads), [Ok(version(&key, 2))]);
        if !is_cut_off {
            bench.answer_head(Ok(version(&key, 3)));
            let told = head_answer(Ok(version(&key, 3)), 0);
            assert_eq!(bench.call_told(), told);
        }
    }
}

#[test]
fn who_waits_for_the_origin_with_a_member_asks_others_when_it_is_found_silent() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let key = bench.key_of(&view, ME);
    let heads = bench.head(&key);
    bench.call(2, &bench.head_call(&key, 1_000), 65_536);
    let is_told = |bench: &mut Bench| !bench.transport.0.borrow().ops.is_empty();
    bench.fail_until_told(is_told, 5 * SECOND);
    let is_call = |op: &TransportOp| matches!(op, TransportOp::Call { .. });
    let mut ops = bench.transport.0.borrow_mut();
    ops.ops.make_contiguous().sort_by_key(is_call);
    drop(ops);
    let CallAnswer::Head { result, .. } = bench.call_told() else {
        panic!("another answer")
    };
    assert!(matches!(result, Err((OriginErrorKind::Unavailable, _))));
    let question = bench.question();
    assert!(OTHERS.contains(&question.to));
    bench.say(question, &head_answer(Ok(version(&key, 2)), 0));
    assert_eq!(results(&heads), [Ok(version(&key, 2))]);
}

#[test]
fn who_asks_for_what_the_origin_is_tried_with_asks_others_all_the_same() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let key = bench.key_of(&view, ME);
    bench.knows(&key, Ok(version(&key, 1)));
    bench.outage_at(&key);
    // Whoever asked then is gone; the origin has begun to swallow what it is asked.
    bench.fail_until_told(|_| false, TIMEOUT);
    bench.fail_all();
    bench.transport.0.borrow_mut().ops.clear();
    while bench.origin.0.borrow().ops.is_empty() {
        bench.pass(10 * MS);
    }
    for (age, size_bytes) in [(SECOND, 2), (Duration::ZERO, 3)] {
        let heads = bench.head_within(&key, age);
        let question = bench.question();
        assert!(OTHERS.contains(&question.to));
        bench.say(question, &head_answer(Ok(version(&key, size_bytes)), 0));
        assert_eq!(results(&heads), [Ok(version(&key, size_bytes))]);
        bench.pass(MS);
    }
    // It is the probe's, and nobody else's.
    let script = bench.origin.0.borrow();
    assert_eq!(script.ops.len(), 1);
    assert!(
        matches!(&script.ops[0], OriginOp::Head(head) if !script.cancelled.contains(&head.tag))
    );
}

/// Asks for a key of others, all of whom say that the origin does not answer them.
fn asked_in_vain(bench: &mut Bench) -> (String, Heads) {
    let (ranks, key) = foreign_key(&everyone());
    let heads = bench.head(&key);
    for _ in ranks {
        let question = bench.question();
        bench.say(question, &head_answer(Err(OriginErrorKind::Unavailable), 0));
    }
    (key, heads)
}

#[test]
fn what_the_origin_takes_long_for_is_waited_for_though_the_owner_is_cut_off() {
    let mut bench = Bench::grouped(everyone());
    bench.pass(600 * SECOND);
    let (key, heads) = asked_in_vain(&mut bench);
    for _ in 0..9 {
        bench.pass(SECOND);
        bench.fail_canceled();
    }
    bench.answer_head(Ok(version(&key, 1)));
    assert_eq!(results(&heads), [Ok(version(&key, 1))]);
    let stats = bench.core.stats();
    assert_eq!((stats.heads, stats.outages), (1, 0));
}

#[test]
fn whoever_knows_something_does_not_wait_for_a_slow_origin_and_a_probe_tells_whether_it_is_silent()
{
    for is_slow in [true, false] {
        let mut bench = Bench::grouped(everyone());
        let (_, key) = foreign_key(&everyone());
        bench.knows_of(&key, version(&key, 1));
        bench.pass(600 * SECOND);
        let (_, heads) = asked_in_vain(&mut bench);
        bench.pass(2 * SECOND);
        assert_eq!(results(&heads), [Ok(version(&key, 1))]);
        bench.fail_canceled();
        // One request has not been answered: that is no outage yet.
        assert_eq!(bench.core.stats().outages, 0);
        bench.pass(SECOND);
        let asked: Vec<OriginTag> = bench.origin.0.borrow().cancelled.clone();
        assert_eq!(asked.len(), 1);
        if is_slow {
            bench.answer_head(Ok(version(&key, 2)));
        }
        bench.pass(SECOND);
        let outages = u64::from(!is_slow);
        assert_eq!(bench.core.stats().outages, outages);
        bench.pass(TIMEOUT);
        bench.fail_canceled();
        assert_eq!(bench.core.stats().outages, outages);
    }
}

#[test]
fn who_learns_of_an_outage_while_the_owner_is_asked_goes_on_to_all_who_may_know() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let ranks = |key: &String| -> Vec<PeerId> {
        let ranked = view.ranked(Slot::of_name(key));
        ranked.map(|member| member.id).collect()
    };
    // This node is the first to stand in: as long as it reaches the origin itself it asks nobody behind it.
    let mut keys = (0..1_000).map(|n| format!("dir{n}/"));
    let key = keys.find(|key| ranks(key)[1] == ME).expect("one of them");
    let heads = bench.head(&key);
    let question = bench.question();
    assert_eq!(question.to, ranks(&key)[0]);
    let own = bench.key_of(&view, ME);
    let others = bench.head_within(&own, Duration::ZERO);
    let bucket = bench.object.bucket.clone();
    let is_known = move |bench: &mut Bench| bench.core.outages.is_known(&bucket);
    bench.fail_until_told(is_known, 5 * SECOND);
    bench.transport.0.borrow_mut().ops.clear();
    bench.say(question, &head_answer(Err(OriginErrorKind::Unavailable), 0));
    let question = bench.question();
    assert_eq!(question.to, ranks(&key)[2]);
    bench.say(question, &head_answer(Ok(version(&key, 2)), 0));
    assert_eq!(results(&heads), [Ok(version(&key, 2))]);
    assert_eq!(results(&others), []);
}

#[test]
fn what_is_asked_of_a_member_that_leaves_is_asked_of_the_next() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (ranks, key) = foreign_key(&view);
    let heads = bench.head(&key);
    let left = OTHERS.into_iter().filter(|peer| *peer != ranks[0]);
    let members: Vec<_> = left.chain([ME]).map(|peer| (peer, 1)).collect();
    bench.view(super::group::placement(&members));
    let question = bench.question();
    assert_eq!(question.to, ranks[1]);
    bench.say(question, &head_answer(Ok(meta(&key)), 0));
    assert_eq!(results(&heads), [Ok(meta(&key))]);
    assert_eq!(bench.core.stats().peer_failures, 0);
}

#[test]
fn what_was_known_is_told_when_the_owner_has_no_answer_to_the_end() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (_, key) = foreign_key(&view);
    bench.knows_of(&key, version(&key, 1));
    bench.pass(600 * SECOND);
    let heads = bench.head(&key);
    let question = bench.question();
    bench.pass(TIMEOUT - Duration::from_nanos(500));
    bench.say(question, &head_answer(Err(OriginErrorKind::Throttled), 0));
    assert_eq!(results(&heads), [Ok(version(&key, 1))]);
}

#[test]
fn a_member_that_was_silent_is_asked_again_when_the_question_that_would_tell_was_given_up() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (ranks, key) = foreign_key(&view);
    let _first = bench.head(&key);
    let question = bench.question();
    bench.hang_up(question);
    let question = bench.question();
    bench.say(question, &head_answer(Ok(meta(&key)), 0));
    bench.pass(5 * SECOND);
    // It is asked whether it answers; what it would say is known before it does.
    let heads = bench.head_within(&key, Duration::ZERO);
    bench.call(2, &bench.head_call(&key, 0), 65_536);
    bench.answer_head(Ok(meta(&key)));
    assert_eq!(results(&heads), [Ok(meta(&key))]);
    bench.call_told();
    bench.pass(MS);
    let _last = bench.head_within(&key, Duration::ZERO);
    assert_eq!(bench.question().to, ranks[0]);
}
