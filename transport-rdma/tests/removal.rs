//! A device that goes away under its connections. `ci/softroce` runs it in its guest, which has an interface for that.

mod common;

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::{WAIT_MAX, open_device_of};
use forebay_transport_rdma::{Cm, CmEvent};

const DEVICE: &str = "rxe9";
const ADDRESS: &str = "10.9.9.1";

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).status();
    assert!(done.expect(program).success(), "{program} {arguments:?}");
}

/// Ends what must not outlive the test.
struct Removal(Child);

impl Drop for Removal {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

#[test]
fn connections_are_told_that_their_device_goes_away() {
    let Ok(interface) = std::env::var("FOREBAY_RDMA_SPARE_INTERFACE") else {
        println!(
            "SKIPPED: FOREBAY_RDMA_SPARE_INTERFACE names no interface to make a device on: its removal was not tried here (ci/softroce does, in a guest)"
        );
        return;
    };
    run(
        "ip",
        &["addr", "add", &format!("{ADDRESS}/24"), "dev", &interface],
    );
    run(
        "rdma",
        &["link", "add", DEVICE, "type", "rxe", "netdev", &interface],
    );
    let device = open_device_of(DEVICE);
    let mut cm = Cm::new().expect("librdmacm");
    let at = SocketAddr::new(ADDRESS.parse().unwrap(), 0);
    let (listener, at) = cm.listen(at, 8).expect("to listen");
    let limit = Duration::from_secs(5);
    let asker = cm.resolve_address(None, at, limit).expect("to look");
    let begun = Instant::now();
    let mut removal = None;
    let (mut resolved, mut told) = (false, Vec::new());
    while told.len() < 2 {
        assert!(begun.elapsed() < WAIT_MAX, "told: {told:?}");
        match cm.next_event().expect("events") {
            None => std::thread::sleep(Duration::from_millis(1)),
            Some(CmEvent::AddressResolved(id)) => {
                assert_eq!(id, asker);
                assert_eq!(cm.place(id).expect("a place").device, DEVICE);
                resolved = true;
            }
            Some(CmEvent::DeviceRemoved(id)) => {
                told.push(id);
                cm.close(id);
            }
            Some(event) => panic!("{event:?}"),
        }
        if resolved && removal.is_none() {
            let child = Command::new("rdma")
                .args(["link", "delete", DEVICE])
                .spawn();
            removal = Some(Removal(child.expect("rdma")));
        }
    }
    told.sort_unstable();
    assert_eq!(told, [listener, asker]);
    assert_eq!(cm.ids(), 0);
    drop(device);
}
