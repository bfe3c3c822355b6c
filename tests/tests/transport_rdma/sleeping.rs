//! A core that sleeps is woken by what comes over RDMA.

use std::task::Waker;

use forebay_engine::arena::{Arena, Share};
use forebay_engine::ports::Transport;
use forebay_engine::ring::Doorbell;
use forebay_transport_rdma::RdmaTransport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::endings::{asked, ended, fetch, next};
use crate::pair::{Meeting, PEERS, WAIT_MAX, device, transport};

/// Whether something wakes a core within the time that is waited for one thing.
fn is_woken(core: &RdmaTransport) -> bool {
    let limit = Timespec {
        tv_sec: WAIT_MAX.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::from_borrowed_fd(core.fd(), PollFlags::IN)];
    poll(&mut fds, Some(&limit)).expect("to wait") > 0
}

#[test]
fn a_core_is_woken_also_after_all_its_connections_ended() {
    let Some(device) = device() else { return };
    let mut arena = Arena::new(8 << 20).unwrap();
    let mut asker = transport(&device, &arena);
    let doorbell = Doorbell::new(Waker::noop().clone());
    let mut server = transport(&device, &arena).armed_for_sleep(doorbell.clone());
    doorbell.announce_sleep();
    let mut meeting = Meeting::new(&device);
    for round in 0..3 {
        let introduced = meeting.introduce(&mut asker, PEERS[0], &mut server, PEERS[1]);
        // The last look before it sleeps.
        assert!(server.poll().is_none());
        let lease = arena.lease(4_096, Share::Demand).unwrap();
        asker.submit(fetch(lease, round)).unwrap();
        assert!(asker.poll().is_none());
        assert!(is_woken(&server), "nobody wakes it in round {round}");
        asked(next(&mut server, Some(&mut asker)));
        assert!(server.poll().is_none());
        let [id, other] = introduced.ids;
        server.close(other, "closed by the test");
        while server.connections() > 0 {
            let _ = server.poll();
        }
        asker.close(id, "closed by the test");
        drop(next(&mut asker, None));
        meeting.part(&introduced);
        ended(&mut asker, &mut server);
    }
}
