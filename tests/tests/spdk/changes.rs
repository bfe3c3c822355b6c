//! Namespaces that change while they are open, and controllers that are opened more than once.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use forebay_engine::arena::Share;
use forebay_engine::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceOp, DeviceTag};
use forebay_nvme_spdk::{Change, Loss, Namespace, OpenError, OpenOptions};

use crate::bench::{Bench, CAPACITY_BYTES, PATIENCE, open, open_with, target};

/// Until it is lost, by nobody's doing here.
fn lost(namespace: &Arc<Namespace>) -> Loss {
    let last = Instant::now() + PATIENCE;
    loop {
        if let Some(loss) = namespace.loss() {
            return loss;
        }
        assert!(Instant::now() < last, "its loss is not seen");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn assert_gone(namespace: &Arc<Namespace>, bench: &mut Bench) {
    assert_eq!(bench.read(0, 4096), Err(DeviceError::Gone));
    assert_eq!(bench.write(0, 1, 4096), Err(DeviceError::Gone));
    assert_eq!(bench.flush(), Err(DeviceError::Gone));
    assert_eq!(
        bench.device.loss(),
        namespace.loss().map(|loss| loss.to_string())
    );
    bench.assert_nothing_lent();
}

#[test]
fn a_namespace_taken_away_at_rest_is_gone() {
    let Some(target) = target("a namespace taken away at rest") else {
        return;
    };
    let namespace = open(&target.add("rest", CAPACITY_BYTES, 512).unwrap());
    let mut bench = Bench::new(&namespace);
    bench.write(0, 1, 4096).unwrap();
    target.take_namespace("rest").unwrap();
    assert_eq!(lost(&namespace), Loss::Changed(Change::Gone));
    assert_gone(&namespace, &mut bench);
}

#[test]
fn a_namespace_replaced_in_use_is_lost_and_the_new_one_untouched() {
    let Some(target) = target("a namespace that is replaced") else {
        return;
    };
    for (name, bytes, change) in [
        ("stranger", CAPACITY_BYTES, Change::Replaced),
        ("smaller", CAPACITY_BYTES / 2, Change::Smaller),
    ] {
        let there = target.add(name, CAPACITY_BYTES, 512).unwrap();
        let namespace = open(&there);
        let mut bench = Bench::new(&namespace);
        bench.write(0, 7, 4096).unwrap();
        target.take_namespace(name).unwrap();
        let new = format!("{name}2");
        match change {
            Change::Replaced => target.give_stranger(name, &new, bytes, 512).unwrap(),
            _ => target.give_namespace(name, &new, bytes, 512).unwrap(),
        }
        // It may have been seen while there was none.
        let loss = lost(&namespace);
        assert!(
            [Change::Gone, change].map(Loss::Changed).contains(&loss),
            "{loss}"
        );
        assert_gone(&namespace, &mut bench);
        drop(bench);
        drop(namespace);
        let mut bench = Bench::new(&open(&there));
        assert_eq!(bench.read(0, 4096).unwrap(), [0; 4096], "{name}");
    }
}

/// SPDK computes the length of a transfer with the sectors that the namespace has at that moment.
#[test]
fn sectors_that_grow_in_use_never_write_past_a_buffer() {
    const AROUND: usize = 16;
    let Some(target) = target("sectors that grow") else {
        return;
    };
    let namespace = open(&target.add("grown", CAPACITY_BYTES, 512).unwrap());
    let mut bench = Bench::new(&namespace);
    let mut pages: Vec<_> = (0..AROUND)
        .map(|_| bench.arena.lease(4096, Share::Demand).unwrap())
        .collect();
    pages
        .iter_mut()
        .for_each(|page| page.bytes_mut().fill(0xab));
    pages.sort_by_key(|page| page.bytes().as_ptr() as usize);
    let mut lease = pages.remove(0);
    target.take_namespace("grown").unwrap();
    target
        .give_namespace("grown", "grown2", CAPACITY_BYTES, 4096)
        .unwrap();
    let last = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < last, "reads go on");
        let op = DeviceOp::Read {
            tag: DeviceTag(1),
            offset_bytes: 0,
            lease,
        };
        bench.device.submit(op).expect("room");
        bench.device.commit();
        let result = loop {
            match bench.device.poll() {
                Some(DeviceEvent::Read {
                    lease: back,
                    result,
                    ..
                }) => {
                    lease = back;
                    break result;
                }
                other => assert!(other.is_none()),
            }
        };
        for page in &pages {
            assert!(
                page.bytes().iter().all(|byte| *byte == 0xab),
                "a read of a page wrote into the next one"
            );
        }
        if result == Err(DeviceError::Gone) {
            break;
        }
    }
    let loss = lost(&namespace);
    assert!(
        [Change::Gone, Change::Sectors]
            .map(Loss::Changed)
            .contains(&loss),
        "{loss}"
    );
    drop((lease, pages));
    assert_gone(&namespace, &mut bench);
}

#[test]
fn a_controller_is_attached_once_however_its_address_is_written() {
    let Some(mut target) = target("two spellings of an address") else {
        return;
    };
    let there = target.add("spelled", CAPACITY_BYTES, 512).unwrap();
    let mut words: Vec<String> = there.split(' ').map(String::from).collect();
    words[0] = "TRTYPE:tcp".into();
    words[1..].reverse();
    let spelled = words.join("  ");
    let (first, second) = (open(&there), open(&spelled));
    assert_eq!(target.controllers("spelled").unwrap(), 1);
    drop(first);
    let mut bench = Bench::new(&second);
    bench.write(0, 1, 4096).unwrap();
    target.kill().unwrap();
    assert_eq!(lost(&second), Loss::Removed);
    for again in [&there, &spelled] {
        let error = open_with(again, &OpenOptions::default()).unwrap_err();
        assert!(matches!(error, OpenError::Held { .. }), "{error}");
    }
    assert_gone(&second, &mut bench);
    drop(bench);
    drop(second);
    let error = open_with(&there, &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, OpenError::Attach(_)), "{error}");
}

/// A target that takes the connection and says nothing.
#[test]
fn attaching_one_that_says_nothing_holds_up_no_other() {
    let Some(mut target) = target("a target that says nothing") else {
        return;
    };
    let namespace = open(&target.add("held-up", CAPACITY_BYTES, 512).unwrap());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let attaching = std::thread::spawn(move || {
        let there = format!(
            "trtype:TCP traddr:127.0.0.1 trsvcid:{port} subnqn:nqn.2026-11.example.forebay:silent"
        );
        open_with(&there, &OpenOptions::default())
    });
    let (connection, _) = silent.accept().unwrap();
    target.kill().unwrap();
    assert_eq!(lost(&namespace), Loss::Removed);
    assert!(!attaching.is_finished(), "it was seen only afterwards");
    drop((connection, silent));
    let error = attaching.join().unwrap().unwrap_err();
    assert!(matches!(error, OpenError::Attach(_)), "{error}");
}
