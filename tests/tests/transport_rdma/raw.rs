//! A peer that does with its queue pair what it likes.

use std::time::Instant;

use forebay_engine::ports::PeerId;
use forebay_transport_rdma::asking::Grant;
use forebay_transport_rdma::{
    Access, CompletionQueue, ConnectSteps, MemoryRegion, PrepareStep, ProtectionDomain, QueuePair,
    QueuePairSize, RailConfig, RdmaTransport, Verbs,
};

use crate::pair::{Asked, Meeting, WAIT_MAX, rest};

/// Bytes of one receive.
const SLOT_BYTES: usize = 8_192;
const RECEIVES: u32 = 8;

pub struct Raw {
    pair: QueuePair,
    queue: CompletionQueue,
    /// Slots for what comes, and one for what goes.
    region: MemoryRegion,
}

impl Raw {
    fn new((verbs, config): &(Verbs, RailConfig), prepare: &PrepareStep) -> Raw {
        let device = verbs.open(&config.device).expect("the device");
        let domain = ProtectionDomain::new(&device).expect("a domain");
        let queue = CompletionQueue::new(&device, 64).expect("a queue");
        let size = QueuePairSize {
            sends: 32,
            receives: RECEIVES,
            elements: 1,
            inline_bytes: 64,
        };
        let pair = QueuePair::new(&domain, &queue, &queue, size).expect("a queue pair");
        pair.prepare_by(prepare, Access::LOCAL).expect("to prepare");
        let len_bytes = SLOT_BYTES * (RECEIVES as usize + 1);
        let region = MemoryRegion::new(&domain, len_bytes, Access::LOCAL).expect("memory");
        for slot in 0..RECEIVES as usize {
            let place = region.slice(slot * SLOT_BYTES, SLOT_BYTES).unwrap();
            pair.post_receive(slot as u64, place).expect("a receive");
        }
        Raw {
            pair,
            queue,
            region,
        }
    }

    /// One that a transport lets in as `from`, to ask what it likes.
    pub fn asking(
        device: &(Verbs, RailConfig),
        meeting: &mut Meeting,
        from: PeerId,
        acceptor: &mut RdmaTransport,
        to: PeerId,
    ) -> Raw {
        let invited = meeting.invite(from, to);
        let mut raw = None;
        let make = |prepare: &PrepareStep| {
            let made = raw.insert(Raw::new(device, prepare));
            made.pair.number()
        };
        let question = |number| invited.question(number).to_vec();
        let (by_cm, _) = meeting.ask_with(make, question);
        let (_, by_other) = meeting.judge(acceptor).expect("to be let in");
        let accepted = meeting.accepted();
        let raw = raw.expect("it was made");
        let connected = raw.pair.connect_by(&accepted.connect);
        connected.expect("to connect");
        meeting.establish(by_cm);
        assert_eq!(meeting.established(), by_other);
        raw
    }

    /// One that a transport asks as `to`, to answer what it likes.
    pub fn asked(
        device: &(Verbs, RailConfig),
        meeting: &mut Meeting,
        asker: &mut RdmaTransport,
        from: PeerId,
        to: PeerId,
    ) -> Raw {
        let invited = meeting.invite(from, to);
        let question = |number| invited.question(number).to_vec();
        let asked: Asked = meeting.ask(asker, question);
        let mut raw = None;
        let make = |_, prepare: &PrepareStep, connect: &ConnectSteps| {
            let made = raw.insert(Raw::new(device, prepare));
            made.pair.connect_by(connect).expect("to connect");
            let grant = Grant {
                messages: 64,
                credit_bytes: 2 << 20,
            };
            (made.pair.number(), grant)
        };
        let by_other = meeting.judge_with(make).expect("to be let in");
        meeting.begin(asker, to, &invited, &asked);
        assert_eq!(meeting.established(), by_other);
        raw.expect("it was made")
    }

    /// Sends a message, and waits until it has left: the peer acknowledges it or not.
    pub fn send(&self, message: &[u8]) {
        let at = SLOT_BYTES * RECEIVES as usize;
        self.region.write_at(at, message).unwrap();
        let place = self.region.slice(at, message.len()).unwrap();
        if self.pair.post_send(1_000, place, true).is_ok() {
            self.until(|work| work == 1_000);
        }
    }

    /// The next message of the peer; `poll` lets the peer work meanwhile.
    pub fn receive(&self, mut poll: impl FnMut()) -> Vec<u8> {
        let begun = Instant::now();
        loop {
            poll();
            let mut came = None;
            let polled = self
                .queue
                .poll_up_to(1, |completion| came = Some(completion));
            polled.expect("the queue");
            if let Some(completion) = came.filter(|one| one.work < u64::from(RECEIVES)) {
                let done = completion.outcome.expect("a message");
                let mut message = vec![0; done.len_bytes as usize];
                let at = SLOT_BYTES * completion.work as usize;
                self.region.read_at(at, &mut message).unwrap();
                return message;
            }
            assert!(begun.elapsed() < WAIT_MAX, "no message comes");
            rest();
        }
    }

    fn until(&self, is_it: impl Fn(u64) -> bool) {
        let begun = Instant::now();
        let mut done = false;
        while !done {
            let polled = self.queue.poll_up_to(1, |one| done |= is_it(one.work));
            polled.expect("the queue");
            assert!(begun.elapsed() < WAIT_MAX, "work does not end");
            rest();
        }
    }
}
