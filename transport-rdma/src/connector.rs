//! What the control thread does by rdma_cm. In its tests something else does it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::{Cm, CmEvent, CmId, CmPlace, ConnectSteps, PrepareStep, VerbsError};

type Done<T = ()> = Result<T, VerbsError>;

/// As [`Cm`] has it.
pub(crate) trait Connector {
    fn listen(&mut self, at: SocketAddr, backlog: i32) -> Done<(CmId, SocketAddr)>;
    fn resolve_address(&mut self, from: IpAddr, to: SocketAddr, limit: Duration) -> Done<CmId>;
    fn resolve_route(&mut self, id: CmId, limit: Duration) -> Done;
    fn place(&self, id: CmId) -> Done<CmPlace>;
    fn peer(&self, id: CmId) -> Option<IpAddr>;
    fn prepare_step(&mut self, id: CmId) -> Done<PrepareStep>;
    fn connect_steps(&mut self, id: CmId) -> Done<ConnectSteps>;
    fn connect(&mut self, id: CmId, queue_pair: u32, private: &[u8]) -> Done;
    fn accept(&mut self, id: CmId, queue_pair: u32, private: &[u8]) -> Done;
    fn reject(&mut self, id: CmId, private: &[u8]) -> Done;
    fn establish(&mut self, id: CmId) -> Done;
    fn disconnect(&mut self, id: CmId) -> Done;
    fn close(&mut self, id: CmId);
    fn next_event(&mut self) -> Done<Option<CmEvent>>;
    /// Readable when there is an event.
    fn fd(&self) -> BorrowedFd<'_>;
}

impl Connector for Cm {
    fn listen(&mut self, at: SocketAddr, backlog: i32) -> Done<(CmId, SocketAddr)> {
        Cm::listen(self, at, backlog)
    }

    fn resolve_address(&mut self, from: IpAddr, to: SocketAddr, limit: Duration) -> Done<CmId> {
        Cm::resolve_address(self, Some(from), to, limit)
    }

    fn resolve_route(&mut self, id: CmId, limit: Duration) -> Done {
        Cm::resolve_route(self, id, limit)
    }

    fn place(&self, id: CmId) -> Done<CmPlace> {
        Cm::place(self, id)
    }

    fn peer(&self, id: CmId) -> Option<IpAddr> {
        Cm::peer(self, id)
    }

    fn prepare_step(&mut self, id: CmId) -> Done<PrepareStep> {
        Cm::prepare_step(self, id)
    }

    fn connect_steps(&mut self, id: CmId) -> Done<ConnectSteps> {
        Cm::connect_steps(self, id)
    }

    fn connect(&mut self, id: CmId, queue_pair: u32, private: &[u8]) -> Done {
        Cm::connect(self, id, queue_pair, private)
    }

    fn accept(&mut self, id: CmId, queue_pair: u32, private: &[u8]) -> Done {
        Cm::accept(self, id, queue_pair, private)
    }

    fn reject(&mut self, id: CmId, private: &[u8]) -> Done {
        Cm::reject(self, id, private)
    }

    fn establish(&mut self, id: CmId) -> Done {
        Cm::establish(self, id)
    }

    fn disconnect(&mut self, id: CmId) -> Done {
        Cm::disconnect(self, id)
    }

    fn close(&mut self, id: CmId) {
        Cm::close(self, id);
    }

    fn next_event(&mut self) -> Done<Option<CmEvent>> {
        Cm::next_event(self)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}
