//! Attributes and listings in a group: who is asked, what is remembered, and how old an answer is.

use super::group::{OTHERS, everyone};
use super::*;
use crate::client::{HeadRequest, ListPageRequest, Told};
use crate::core::metadata::Finding;
use crate::identity::Slot;
use crate::limits::{CHUNK_BYTES, PEER_QUESTIONS_PER_CORE_MAX, SUB_BLOCK_BYTES};
use crate::wire::call::{Call, CallAnswer};

pub(super) type Heads = Arc<Mutex<Vec<Told<ObjectMeta>>>>;
pub(super) type Pages = Arc<Mutex<Vec<Told<Arc<ListPage>>>>>;

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) fn meta(key: &str) -> ObjectMeta {
    version(key, 42)
}

pub(super) fn version(key: &str, size_bytes: u64) -> ObjectMeta {
    ObjectMeta {
        key: key.into(),
        size_bytes,
        validator: Validator::ETag("\"e\"".into()),
        modified_ns: 7,
    }
}

pub(super) fn head_answer(result: Result<ObjectMeta, OriginErrorKind>, age_ms: u32) -> CallAnswer {
    let result = result.map_err(|kind| (kind, "scripted".into()));
    CallAnswer::Head { result, age_ms }
}

/// A question at a peer.
pub(super) struct Question {
    pub to: PeerId,
    call: Call,
    tag: FetchTag,
    lease: Lease,
    pub deadline: Time,
}

impl Bench {
    pub(super) fn head_within(&mut self, key: &str, max_age: Duration) -> Heads {
        let heads = Heads::default();
        let told = heads.clone();
        let request = HeadRequest {
            bucket: self.object.bucket.clone(),
            key: key.into(),
            accept: max_age.into(),
            deadline: self.clock.now() + TIMEOUT,
            reply: Box::new(move |result| told.lock().push(result)),
        };
        self.ring.push(Request::Head(request)).unwrap();
        self.turn();
        heads
    }

    pub(super) fn head(&mut self, key: &str) -> Heads {
        self.head_within(key, SECOND)
    }

    pub(super) fn listing(&self, prefix: &str, continuation: Option<String>) -> ListRequest {
        ListRequest {
            bucket: self.object.bucket.clone(),
            prefix: prefix.into(),
            delimited: true,
            continuation: continuation.map(Into::into),
            entries_max: 1_000,
        }
    }

    pub(super) fn list(&mut self, request: ListRequest) -> Pages {
        let pages = Pages::default();
        let told = pages.clone();
        let request = ListPageRequest {
            request,
            accept: SECOND.into(),
            deadline: self.clock.now() + TIMEOUT,
            reply: Box::new(move |result| told.lock().push(result)),
        };
        self.ring.push(Request::List(request)).unwrap();
        self.turn();
        pages
    }

    pub(super) fn origin_is_not_asked(&self) {
        let script = self.origin.0.borrow();
        assert!(script.ops.is_empty(), "{:?}", script.ops);
    }

    pub(super) fn answer_head(&mut self, result: Result<ObjectMeta, OriginError>) {
        let op = self.origin.0.borrow_mut().ops.pop_front();
        let Some(OriginOp::Head(head)) = op else {
            panic!("a HEAD is expected, not {op:?}")
        };
        self.push(OriginEvent::Head {
            tag: head.tag,
            result,
        });
        self.turn();
    }

    pub(super) fn answer_list(&mut self, page: ListPage) {
        let op = self.origin.0.borrow_mut().ops.pop_front();
        let Some(OriginOp::List(list)) = op else {
            panic!("a LIST is expected, not {op:?}")
        };
        self.push(OriginEvent::List {
            tag: list.tag,
            result: Ok(page),
        });
        self.turn();
    }

    /// The oldest question at a peer.
    pub(super) fn question(&self) -> Question {
        match self.transport.0.borrow_mut().ops.pop_front() {
            Some(TransportOp::Call {
                tag,
                to,
                body,
                lease,
                deadline,
                ..
            }) => Question {
                to: to.peer,
                call: Call::decode(&body).unwrap(),
                tag,
                lease,
                deadline,
            },
            other => panic!("a call is expected, not {other:?}"),
        }
    }

    /// The owner answers.
    pub(super) fn say(&mut self, question: Question, answer: &CallAnswer) {
        let Question { tag, mut lease, .. } = question;
        let bytes = answer.encode(lease.len()).unwrap();
        lease.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        let event = TransportEvent::Fetched {
            tag,
            lease,
            result: Ok(FetchStatus::Bytes),
            len_bytes: bytes.len() as u32,
            checksums: Vec::new(),
        };
        self.transport.0.borrow_mut().events.push_back(event);
        self.turn();
    }

    pub(super) fn hang_up(&mut self, question: Question) {
        let Question { tag, lease, .. } = question;
        self.end(tag, lease, Err(TransportError::Unreachable), Vec::new());
    }

    pub(super) fn call(&mut self, handle: u64, call: &Call, room_bytes: u32) {
        let event = TransportEvent::Request {
            handle: RequestHandle(handle),
            peer: OTHERS[0],
            ask: PeerAsk::Call {
                body: call.encode(),
                room_bytes,
            },
            deadline: self.clock.now() + TIMEOUT,
        };
        self.transport.0.borrow_mut().events.push_back(event);
        self.turn();
    }

    pub(super) fn call_told(&mut self) -> CallAnswer {
        let op = self.transport.0.borrow_mut().ops.pop_front();
        let Some(TransportOp::Answer {
            handle,
            status: FetchStatus::Bytes,
            payload: Some(payload),
        }) = op
        else {
            panic!("an answer is expected, not {op:?}")
        };
        let bytes: Vec<u8> = payload
            .parts
            .iter()
            .flat_map(|part| part.to_vec())
            .collect();
        let payload = Some(payload);
        let event = TransportEvent::Answered { handle, payload };
        self.transport.0.borrow_mut().events.push_back(event);
        self.turn();
        CallAnswer::decode(&bytes).unwrap()
    }

    pub(super) fn head_call(&self, key: &str, max_age_ms: u32) -> Call {
        Call::Head {
            bucket: self.object.bucket.clone(),
            key: key.into(),
            max_age_ms,
        }
    }

    /// A key whose name `who` owns.
    pub(super) fn key_of(&self, view: &Placement, who: PeerId) -> String {
        let mut keys = (0..100).map(|n| format!("dir{n}/"));
        keys.find(|key| view.owner(Slot::of_name(key)).unwrap().id == who)
            .expect("he owns one of 100")
    }
}

/// The members to ask for a key of which this node is no rank, and the key.
pub(super) fn foreign_key(view: &Placement) -> (Vec<PeerId>, String) {
    let ranks = |key: &str| -> Vec<PeerId> {
        let ranked = view.ranked(Slot::of_name(key));
        ranked.map(|member| member.id).collect()
    };
    let mut keys = (0..100).map(|n| format!("far{n}/"));
    let key = keys.find(|key| !ranks(key).contains(&ME)).unwrap();
    (ranks(&key), key)
}

pub(super) fn results(heads: &Heads) -> Vec<Result<ObjectMeta, OriginErrorKind>> {
    let heads = heads.lock();
    let result = |told: &Told<ObjectMeta>| told.result.clone().map_err(|error| error.kind);
    heads.iter().map(result).collect()
}

#[test]
fn the_owner_of_a_name_is_asked_for_its_attributes() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.pass(5 * SECOND);
    let key = bench.key_of(&view, OTHERS[1]);
    let first = bench.head(&key);
    let second = bench.head(&key);
    let question = bench.question();
    bench.nobody_asked();
    assert_eq!(question.to, OTHERS[1]);
    assert_eq!(question.call, bench.head_call(&key, 1_000));
    bench.pass(70 * MS);
    bench.say(question, &head_answer(Ok(meta(&key)), 400));
    // Both learn how old it is, what was on its way not counted.
    let asked = Time(5_000_000_000);
    for heads in [first, second] {
        let told = heads.lock();
        assert_eq!(told[..].len(), 1);
        assert_eq!(told[0].result, Ok(meta(&key)));
        assert_eq!(told[0].at, Time(asked.0 - 400_000_000));
    }
    bench.origin_is_not_asked();
    assert_eq!(bench.core.stats().heads, 0);
    assert_eq!(bench.core.lookups.len(), 0);
}

#[test]
fn a_silent_owner_is_stood_in_for_and_the_origin_comes_last() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (ranks, key) = foreign_key(&view);
    let heads = bench.head(&key);
    for (asked, peer) in ranks.iter().enumerate() {
        bench.origin_is_not_asked();
        let question = bench.question();
        assert_eq!(question.to, *peer);
        // Time is left for those that come after it.
        let left = TIMEOUT / (ranks.len() - asked + 1) as u32;
        assert!(question.deadline <= bench.clock.now() + left);
        bench.hang_up(question);
    }
    bench.answer_head(Ok(meta(&key)));
    assert_eq!(results(&heads), [Ok(meta(&key))]);
    // They are passed over at once now.
    bench.pass(MS);
    let heads = bench.head_within(&key, Duration::ZERO);
    bench.answer_head(Ok(meta(&key)));
    assert_eq!(results(&heads), [Ok(meta(&key))]);
    assert_eq!(bench.core.lookups.len(), 0);
}

/// A bucket of one name holds other objects there.
#[test]
fn what_is_at_another_endpoint_is_declined_and_the_asker_goes_on_to_its_own() {
    let elsewhere = FetchStatus::Failed(PeerFailure::Elsewhere);
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.core.config.endpoint = Some("http://another".into());
    let key = bench.key_of(&view, ME);
    let head = bench.head_call(&key, 1_000);
    let list = Call::List {
        request: bench.listing(&key, None),
        max_age_ms: 1_000,
    };
    for (handle, call) in [(1, head.clone()), (2, list)] {
        bench.call(handle, &call, 65_536);
        assert_eq!(bench.told(), (handle, elsewhere, None));
    }
    bench.origin_is_not_asked();
    assert_eq!(bench.core.stats().elsewhere, 2);
    bench.core.config.endpoint = Some(bench.object.bucket.endpoint.as_str().into());
    bench.call(3, &head, 65_536);
    bench.answer_head(Ok(meta(&key)));
    assert_eq!(bench.call_told(), head_answer(Ok(meta(&key)), 0));

    let (ranks, key) = foreign_key(&view);
    let heads = bench.head(&key);
    for peer in &ranks {
        let Question { to, tag, lease, .. } = bench.question();
        assert_eq!(to, *peer);
        bench.end(tag, lease, Ok(elsewhere), Vec::new());
    }
    bench.answer_head(Ok(meta(&key)));
    assert_eq!(results(&heads), [Ok(meta(&key))]);
}

/// Its credentials may be wrong, and those of others right.
#[test]
fn what_a_member_is_refused_is_asked_of_others_and_the_last_word_is_this_nodes() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (ranks, key) = foreign_key(&view);
    let denied = head_answer(Err(OriginErrorKind::Denied), 0);
    let heads = bench.head(&key);
    let question = bench.question();
    assert_eq!(question.to, ranks[0]);
    bench.say(question, &denied);
    let question = bench.question();
    assert_eq!(question.to, ranks[1]);
    bench.say(question, &head_answer(Ok(meta(&key)), 0));
    assert_eq!(results(&heads), [Ok(meta(&key))]);
    bench.origin_is_not_asked();

    let heads = bench.head_within(&key, Duration::ZERO);
    for _ in &ranks {
        let question = bench.question();
        bench.say(question, &denied);
    }
    assert!(bench.core.stats().refusal.is_none());
    let error = OriginError::new(OriginErrorKind::Denied, "scripted");
    bench.answer_head(Err(error));
    assert_eq!(results(&heads), [Err(OriginErrorKind::Denied)]);
    let stats = bench.core.stats();
    let refusal = stats.standing_refusal().expect("this node is refused");
    assert!(refusal.error.contains("scripted"), "{refusal:?}");
}

#[test]
fn a_stand_in_asks_the_origin_and_remembers_as_the_owner_would() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let key = bench.key_of(&view, OTHERS[1]);
    let call = bench.head_call(&key, 1_000);
    bench.call(1, &call, 65_536);
    bench.answer_head(Ok(meta(&key)));
    assert_eq!(bench.call_told(), head_answer(Ok(meta(&key)), 0));
    bench.call(2, &call, 65_536);
    assert_eq!(bench.call_told(), head_answer(Ok(meta(&key)), 0));
    assert_eq!(bench.core.stats().heads, 1);
}

#[test]
fn an_owner_fetches_attributes_once_in_their_lifetime_for_all() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.core.config.negative_ttl = 100 * MS;
    let key = bench.key_of(&view, ME);
    let call = bench.head_call(&key, 1_000);
    bench.call(1, &call, 65_536);
    bench.call(2, &call, 65_536);
    let own = bench.head(&key);
    bench.answer_head(Ok(meta(&key)));
    assert_eq!(results(&own), [Ok(meta(&key))]);
    for _ in 0..2 {
        assert_eq!(bench.call_told(), head_answer(Ok(meta(&key)), 0));
    }
    // Remembered, for a second, and its age with it.
    bench.pass(400 * MS);
    bench.call(3, &call, 65_536);
    assert_eq!(bench.call_told(), head_answer(Ok(meta(&key)), 400));
    assert_eq!(bench.core.stats().heads, 1);
    bench.pass(601 * MS);
    bench.call(4, &call, 65_536);
    let absent = OriginError::new(OriginErrorKind::NotFound, "scripted");
    bench.answer_head(Err(absent.clone()));
    let told = |age_ms| head_answer(Err(absent.kind), age_ms);
    assert_eq!(bench.call_told(), told(0));
    // That there is none is remembered too, for a time of its own.
    bench.pass(99 * MS);
    bench.call(5, &call, 65_536);
    assert_eq!(bench.call_told(), told(99));
    assert_eq!(bench.core.stats().heads, 2);
    bench.pass(MS);
    bench.call(6, &call, 65_536);
    bench.answer_head(Ok(meta(&key)));
    assert_eq!(bench.call_told(), head_answer(Ok(meta(&key)), 0));
}

#[test]
fn who_takes_nothing_old_is_told_what_the_origin_has_now_and_so_is_everyone_after() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let key = bench.key_of(&view, ME);
    bench.call(1, &bench.head_call(&key, 1_000), 65_536);
    bench.answer_head(Ok(version(&key, 1)));
    assert_eq!(bench.call_told(), head_answer(Ok(version(&key, 1)), 0));
    bench.pass(300 * MS);
    // The object has changed since; who met that asks with 0.
    bench.call(2, &bench.head_call(&key, 0), 65_536);
    bench.answer_head(Ok(version(&key, 2)));
    assert_eq!(bench.call_told(), head_answer(Ok(version(&key, 2)), 0));
    bench.pass(300 * MS);
    bench.call(3, &bench.head_call(&key, 1_000), 65_536);
    assert_eq!(bench.call_told(), head_answer(Ok(version(&key, 2)), 300));
    bench.call(4, &bench.head_call(&key, 299), 65_536);
    bench.answer_head(Ok(version(&key, 3)));
    assert_eq!(bench.call_told(), head_answer(Ok(version(&key, 3)), 0));
}

#[test]
fn a_request_under_way_does_not_serve_who_needs_a_newer_answer_and_the_next_serves_all() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let key = bench.key_of(&view, ME);
    let first = bench.head_within(&key, Duration::ZERO);
    bench.pass(MS);
    let late = [(); 3].map(|()| bench.head_within(&key, Duration::ZERO));
    let lax = bench.head(&key);
    bench.answer_head(Ok(version(&key, 1)));
    for heads in [first, lax] {
        assert_eq!(results(&heads), [Ok(version(&key, 1))]);
    }
    for heads in &late {
        assert_eq!(results(heads), []);
    }
    bench.answer_head(Ok(version(&key, 2)));
    for heads in late {
        assert_eq!(results(&heads), [Ok(version(&key, 2))]);
    }
    bench.origin_is_not_asked();
    assert_eq!(bench.core.lookups.len(), 0);
}

#[test]
fn the_same_holds_for_a_question_at_the_owner() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.pass(5 * SECOND);
    let key = bench.key_of(&view, OTHERS[1]);
    let first = bench.head(&key);
    let late = bench.head_within(&key, Duration::ZERO);
    let question = bench.question();
    bench.say(question, &head_answer(Ok(version(&key, 1)), 900));
    assert_eq!(results(&first), [Ok(version(&key, 1))]);
    assert_eq!(results(&late), []);
    let question = bench.question();
    assert_eq!(question.call, bench.head_call(&key, 0));
    bench.say(question, &head_answer(Ok(version(&key, 2)), 0));
    assert_eq!(results(&late), [Ok(version(&key, 2))]);
}

#[test]
fn two_members_whose_views_differ_do_not_wait_for_each_other() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let key = bench.key_of(&view, OTHERS[0]);
    let own = bench.head(&key);
    assert_eq!(bench.transport.0.borrow().ops.len(), 1, "it asks the owner");
    // In the owner's view this node owns the name.
    bench.call(1, &bench.head_call(&key, 1_000), 65_536);
    bench.answer_head(Ok(meta(&key)));
    assert_eq!(results(&own), [Ok(meta(&key))]);
    assert_eq!(bench.call_told(), head_answer(Ok(meta(&key)), 0));
    bench.nobody_asked();
    assert!(bench.core.is_quiet());
}

#[test]
fn without_room_a_question_waits_and_the_origin_is_not_asked() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let key = bench.key_of(&view, OTHERS[1]);
    bench.transport.0.borrow_mut().full = true;
    let heads = bench.head(&key);
    bench.pass(SECOND);
    bench.origin_is_not_asked();
    bench.transport.0.borrow_mut().full = false;
    bench.pass(10 * MS);
    let question = bench.question();
    bench.say(question, &head_answer(Ok(meta(&key)), 0));
    assert_eq!(results(&heads), [Ok(meta(&key))]);
    // The same without memory.
    let lease = |bench: &mut Bench| {
        let arena = &mut bench.core.parts.arena;
        arena.lease(SUB_BLOCK_BYTES, Share::Demand).ok()
    };
    let held: Vec<Lease> = std::iter::from_fn(|| lease(&mut bench)).collect();
    let heads = bench.head(&key);
    bench.pass(SECOND);
    bench.nobody_asked();
    bench.origin_is_not_asked();
    drop(held);
    bench.pass(10 * MS);
    let question = bench.question();
    bench.say(question, &head_answer(Ok(meta(&key)), 0));
    assert_eq!(results(&heads), [Ok(meta(&key))]);
    assert_eq!(bench.core.stats().heads, 0);
}

#[test]
fn an_owner_that_the_origin_slows_down_is_asked_again_and_the_origin_is_not() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (ranks, key) = foreign_key(&view);
    let heads = bench.head(&key);
    let mut asked = 0;
    while results(&heads).is_empty() {
        if !bench.transport.0.borrow().ops.is_empty() {
            let question = bench.question();
            assert_eq!(question.to, ranks[0]);
            bench.say(question, &head_answer(Err(OriginErrorKind::Throttled), 0));
            asked += 1;
        }
        bench.origin_is_not_asked();
        bench.pass(100 * MS);
    }
    assert!(matches!(results(&heads)[..], [Err(_)]));
    assert!((5..1_000).contains(&asked), "{asked}");
    assert!(bench.clock.now() > Time(0) + TIMEOUT / 2);
    assert!(bench.core.is_quiet());
}

#[test]
fn an_owner_that_does_not_reach_the_origin_is_stood_in_for() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (ranks, key) = foreign_key(&view);
    let heads = bench.head(&key);
    for peer in ranks {
        assert_eq!(results(&heads), []);
        bench.origin_is_not_asked();
        let question = bench.question();
        assert_eq!(question.to, peer);
        bench.say(question, &head_answer(Err(OriginErrorKind::Unavailable), 0));
    }
    bench.answer_head(Ok(meta(&key)));
    assert_eq!(results(&heads), [Ok(meta(&key))]);
}

fn long_page(prefix: &str) -> Vec<ListEntry> {
    let entry = |n| ListEntry::Object(meta(&format!("{prefix}{n:04}{}", "x".repeat(900))));
    (0..1_000).map(entry).collect()
}

#[test]
fn a_long_page_goes_to_a_peer_in_parts_and_is_listed_once() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    // Not even who remembers nothing lists a page again for each of its parts.
    bench.core.config.attr_ttl = Duration::ZERO;
    let prefix = bench.key_of(&view, ME);
    let mut request = bench.listing(&prefix, None);
    let entries = long_page(&prefix);
    let mut got = Vec::new();
    for part in 0.. {
        let call = Call::List {
            request: request.clone(),
            max_age_ms: 0,
        };
        bench.call(part, &call, 1 << 18);
        if part == 0 {
            bench.answer_list(ListPage {
                entries: entries.clone(),
                next: None,
                left_out: 0,
            });
        }
        let CallAnswer::List {
            result: Ok(page), ..
        } = bench.call_told()
        else {
            panic!("another answer")
        };
        got.extend(page.entries);
        match page.next {
            Some(next) => request.continuation = Some(next),
            None => break,
        }
        bench.pass(MS);
    }
    assert_eq!(got, entries);
    assert_eq!(bench.core.stats().lists, 1);
}

#[test]
fn a_listing_is_asked_for_with_little_room_and_the_rest_of_a_long_page_with_more() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let prefix = bench.key_of(&view, OTHERS[1]);
    let whole = ListPage {
        entries: long_page(&prefix),
        next: None,
        left_out: 0,
    };
    let (mut got, mut rooms) = (Vec::new(), Vec::new());
    let mut continuation = None;
    loop {
        let pages = bench.list(bench.listing(&prefix, continuation));
        let question = bench.question();
        rooms.push(question.lease.len());
        let Call::List { request, .. } = &question.call else {
            panic!("another call")
        };
        let part = crate::wire::listing::part(&whole, request, question.lease.len()).unwrap();
        let answer = CallAnswer::List {
            result: Ok(part),
            age_ms: 0,
        };
        bench.say(question, &answer);
        let page = pages.lock()[0].result.clone().unwrap();
        got.extend(page.entries.iter().cloned());
        match &page.next {
            Some(next) => continuation = Some(next.to_string()),
            None => break,
        }
    }
    assert_eq!(got, whole.entries);
    assert_eq!(rooms, [SUB_BLOCK_BYTES, CHUNK_BYTES]);
    bench.origin_is_not_asked();
}

#[test]
fn a_continuation_too_long_for_the_protocol_goes_to_the_origin_and_blames_nobody() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let prefix = bench.key_of(&view, OTHERS[1]);
    let pages = bench.list(bench.listing(&prefix, Some("t".repeat(9_000))));
    bench.nobody_asked();
    bench.answer_list(ListPage::default());
    assert_eq!(pages.lock()[0].result, Ok(Arc::default()));
    bench.list(bench.listing(&prefix, None));
    assert_eq!(bench.question().to, OTHERS[1]);
}

#[test]
fn an_empty_page_is_an_absence() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.core.config.attr_ttl = 600 * SECOND;
    bench.core.config.negative_ttl = SECOND;
    let prefix = bench.key_of(&view, ME);
    bench.list(bench.listing(&prefix, None));
    bench.answer_list(ListPage::default());
    bench.pass(SECOND);
    let pages = bench.list(bench.listing(&prefix, None));
    let page = ListPage {
        entries: vec![ListEntry::Object(meta("a"))],
        ..ListPage::default()
    };
    bench.answer_list(page.clone());
    assert_eq!(pages.lock()[0].result, Ok(Arc::new(page)));
    let kept = bench.core.findings.get(
        bench.clock.now(),
        &crate::core::metadata::Question::List(bench.listing(&prefix, None)),
        Time(0),
        false,
    );
    assert!(matches!(
        kept.unwrap().result,
        Ok(Finding::List(page)) if page.entries.len() == 1
    ));
}

#[test]
fn peers_beyond_a_bound_are_told_to_come_again_and_this_node_goes_on() {
    let view = everyone();
    let mut bench = Bench::grouped(view);
    let ask = |bench: &mut Bench, handle: usize, key: String| {
        let call = Call::Head {
            bucket: bench.object.bucket.clone(),
            key: key.into(),
            max_age_ms: 1_000,
        };
        bench.call(handle as u64, &call, 4_096);
    };
    // Every second one joins the question of the one before: it waits as well.
    for handle in 0..PEER_QUESTIONS_PER_CORE_MAX {
        ask(&mut bench, handle, format!("key {}", handle / 2));
    }
    bench.nothing_told();
    ask(&mut bench, 9_999, "key 0".into());
    assert_eq!(bench.told(), (9_999, FetchStatus::Busy, None));
    let mine = (0..).map(|n| format!("mine {n}"));
    let mut mine = mine.filter(|key| bench.core.group.owns(Slot::of_name(key)));
    let own = bench.head(&mine.next().expect("one of them"));
    let last = bench.origin.0.borrow_mut().ops.pop_back();
    bench
        .origin
        .0
        .borrow_mut()
        .ops
        .push_front(last.expect("it was asked"));
    bench.answer_head(Ok(meta("mine")));
    assert_eq!(own.lock().len(), 1);
    // An answer makes room for as many as waited for it.
    bench.answer_head(Ok(meta("key 0")));
    for _ in 0..2 {
        bench.call_told();
    }
    ask(&mut bench, 1, "one more".into());
    ask(&mut bench, 2, "another".into());
    bench.nothing_told();
    ask(&mut bench, 3, "too many".into());
    assert_eq!(bench.told(), (3, FetchStatus::Busy, None));
    // All end at the deadline, and are counted off.
    bench.pass(TIMEOUT);
    let all = bench.transport.0.borrow_mut().ops.drain(..).count();
    assert_eq!(all, PEER_QUESTIONS_PER_CORE_MAX);
    // The origin is known not to answer; what would be told at once otherwise waits again.
    bench.core.outages = Default::default();
    ask(&mut bench, 4, "after".into());
    bench.nothing_told();
}
