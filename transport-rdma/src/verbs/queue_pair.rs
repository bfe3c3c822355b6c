//! Reliable-connected queue pairs.

use std::io;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use super::abi::*;
use super::batch::Batch;
use super::checked;
use super::completion::{CompletionQueue, QueueShared};
use super::device::{call_failed, call_failed_with};
use super::memory::{Access, DomainShared, LocalSlice, ProtectionDomain};
use crate::asking::Destroyed;
use crate::inventory::Marking;
use crate::limits::{
    ACK_TIMEOUT_EXPONENT, HOPS_MAX, MESSAGE_BYTES_MAX, RECEIVER_NOT_READY_RETRIES_MAX,
    RECEIVER_NOT_READY_TIMER, RETRIES_MAX,
};
use crate::{PeerAddress, PortAddress, PostError, VerbsError};

/// How much work a queue pair takes.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairSize {
    /// Sends, writes and reads under way.
    pub sends: u32,
    /// Receives posted.
    pub receives: u32,
    /// Pieces of memory that one write is gathered from; see [`super::Device::elements_max`].
    pub elements: u32,
    /// Longest message that [`QueuePair::post_send_inline`] takes; the device may take longer ones.
    pub inline_bytes: u32,
}

/// Where bytes are in a peer's memory: what its [`super::MemoryRegion::remote`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// The address, in the peer's process.
    pub address: u64,
    /// The key of the region.
    pub key: u32,
}

/// One change of state, as the kernel's connection manager says it. Plain numbers, which may travel between threads.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub attributes: ibv_qp_attr,
    pub which: u32,
}

/// How a queue pair is prepared for one connection; see [`super::Cm::prepare_step`].
#[derive(Clone)]
pub struct PrepareStep {
    pub(super) step: Step,
    pub(super) device: String,
}

impl PrepareStep {
    /// The device that the connection goes over.
    pub fn device(&self) -> &str {
        &self.device
    }
}

#[cfg(test)]
impl PrepareStep {
    /// One that prepares nothing.
    pub(crate) fn nothing(device: &str) -> PrepareStep {
        PrepareStep {
            step: Step::nothing(),
            device: device.into(),
        }
    }
}

#[cfg(test)]
impl ConnectSteps {
    /// Steps that connect nothing.
    pub(crate) fn nothing() -> ConnectSteps {
        ConnectSteps {
            to_receive: Step::nothing(),
            to_send: Step::nothing(),
        }
    }

    /// The same, with a global route by an entry of the port's table of GIDs.
    pub(crate) fn nothing_by(gid_index: u8) -> ConnectSteps {
        let mut steps = ConnectSteps::nothing().by_gid(gid_index);
        steps.to_receive.attributes.ah_attr.is_global = 1;
        steps
    }
}

#[cfg(test)]
impl Step {
    fn nothing() -> Step {
        Step {
            attributes: ibv_qp_attr::zeroed(),
            which: 0,
        }
    }
}

/// How a queue pair is connected; see [`super::Cm::connect_steps`].
#[derive(Clone, Copy)]
pub struct ConnectSteps {
    pub(super) to_receive: Step,
    pub(super) to_send: Step,
}

impl ConnectSteps {
    /// Which entry of the port's table of GIDs packets have; none on InfiniBand without a global route.
    pub fn gid_index(&self) -> Option<u8> {
        let path = &self.to_receive.attributes.ah_attr;
        (path.is_global != 0).then_some(path.grh.sgid_index)
    }

    /// The same, with another entry, which must be the same address: the peer knows no other.
    pub fn by_gid(mut self, index: u8) -> ConnectSteps {
        self.to_receive.attributes.ah_attr.grh.sgid_index = index;
        self
    }

    /// The same, with packets marked so.
    pub fn marked(mut self, marking: Marking) -> ConnectSteps {
        let path = &mut self.to_receive.attributes.ah_attr;
        if let Some(traffic_class) = marking.traffic_class {
            path.grh.traffic_class = traffic_class;
        }
        if let Some(service_level) = marking.service_level {
            path.sl = service_level;
        }
        self
    }
}

/// One end of a reliable connection. Owned by the thread that made it.
pub struct QueuePair {
    pair: NonNull<ibv_qp>,
    number: u32,
    inline_bytes: usize,
    elements: usize,
    reads: u8,
    destroyed: bool,
    // After the queue pair itself, which is destroyed first.
    domain: Rc<DomainShared>,
    _sends: Rc<QueueShared>,
    _receives: Rc<QueueShared>,
}

impl QueuePair {
    /// A queue pair that is not connected. Completions of sends, writes and reads go to the queue `sends`, those of
    /// receives to `receives`; both may be the same.
    pub fn new(
        domain: &ProtectionDomain,
        sends: &CompletionQueue,
        receives: &CompletionQueue,
        size: QueuePairSize,
    ) -> Result<QueuePair, VerbsError> {
        let device = &domain.0.device;
        let object = || {
            format!(
                "RDMA device {}, a queue pair of {}+{}",
                device.name, size.sends, size.receives
            )
        };
        if ![sends, receives]
            .iter()
            .all(|queue| Rc::ptr_eq(&queue.0.device, device))
        {
            return Err(VerbsError::Unusable {
                object: object(),
                what: "its completion queue is of another".into(),
            });
        }
        let mut wanted = ibv_qp_init_attr::zeroed();
        wanted.send_cq = sends.0.queue.as_ptr();
        wanted.recv_cq = receives.0.queue.as_ptr();
        wanted.qp_type = IBV_QPT_RC;
        wanted.cap = ibv_qp_cap {
            max_send_wr: size.sends,
            max_recv_wr: size.receives,
            max_send_sge: size.elements,
            max_recv_sge: 1,
            max_inline_data: size.inline_bytes,
        };
        // SAFETY: domain and queues live, and are of one device.
        let pair = unsafe { (device.library.ibv_create_qp)(domain.0.domain.as_ptr(), &mut wanted) };
        let Some(pair) = NonNull::new(pair) else {
            return Err(call_failed(
                "ibv_create_qp",
                object(),
                "; look at the limit on locked memory (ulimit -l)",
            ));
        };
        // SAFETY: the queue pair was just made; its number does not change.
        let number = unsafe { pair.as_ref() }.qp_num;
        Ok(QueuePair {
            pair,
            number,
            inline_bytes: wanted.cap.max_inline_data as usize,
            elements: size.elements as usize,
            reads: super::Device(Rc::clone(device)).reads_under_way_max(),
            destroyed: false,
            domain: Rc::clone(&domain.0),
            _sends: Rc::clone(&sends.0),
            _receives: Rc::clone(&receives.0),
        })
    }

    /// Its number, by which completions and peers name it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether it is the one that a [`crate::DeviceEvent::QueuePair`] is of.
    pub fn is_at(&self, address: u64) -> bool {
        self.pair.as_ptr().addr() as u64 == address
    }

    /// What a peer must know of it to connect. `first_packet` is of the caller's choice, 24 bits.
    pub fn address(&self, at: &PortAddress, first_packet: u32) -> PeerAddress {
        PeerAddress {
            queue_pair: self.number,
            first_packet,
            lid: at.lid,
            gid: at.gid,
            mtu: at.mtu,
        }
    }

    /// Gives it a port, and peers the access that they shall have. From now on it takes receives.
    pub fn prepare(&self, at: &PortAddress, access: Access) -> Result<(), VerbsError> {
        let mut wanted = ibv_qp_attr::zeroed();
        wanted.qp_state = IBV_QPS_INIT;
        wanted.port_num = at.port;
        wanted.qp_access_flags = access.flags();
        self.modify(
            &mut wanted,
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        )
    }

    /// Connects a prepared one to its peer, which does the same on its side. `first_packet` is what this side's
    /// address told.
    pub fn connect(
        &self,
        at: &PortAddress,
        first_packet: u32,
        peer: &PeerAddress,
    ) -> Result<(), VerbsError> {
        let mut wanted = ibv_qp_attr::zeroed();
        wanted.qp_state = IBV_QPS_RTR;
        wanted.path_mtu = at.mtu.min(peer.mtu).code();
        wanted.dest_qp_num = peer.queue_pair;
        wanted.rq_psn = peer.first_packet;
        wanted.max_dest_rd_atomic = self.reads;
        wanted.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
        wanted.ah_attr.port_num = at.port;
        wanted.ah_attr.dlid = peer.lid;
        // Ports on Ethernet have no LID.
        if peer.lid == 0 {
            wanted.ah_attr.is_global = 1;
            wanted.ah_attr.grh.dgid = AlignedGid(peer.gid.0);
            wanted.ah_attr.grh.sgid_index = at.gid_index;
            wanted.ah_attr.grh.hop_limit = HOPS_MAX;
        }
        let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        self.modify(
            &mut wanted,
            IBV_QP_STATE | path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        )?;

        let mut wanted = ibv_qp_attr::zeroed();
        wanted.qp_state = IBV_QPS_RTS;
        wanted.sq_psn = first_packet;
        wanted.timeout = ACK_TIMEOUT_EXPONENT;
        wanted.retry_cnt = RETRIES_MAX;
        wanted.rnr_retry = RECEIVER_NOT_READY_RETRIES_MAX;
        wanted.max_rd_atomic = self.reads;
        let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
        self.modify(
            &mut wanted,
            IBV_QP_STATE | IBV_QP_SQ_PSN | retries | IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// As [`QueuePair::prepare`], by the kernel's connection manager.
    ///
    /// # Errors
    /// [`VerbsError::Unusable`] for a connection over another device.
    pub fn prepare_by(&self, prepare: &PrepareStep, access: Access) -> Result<(), VerbsError> {
        let own = &self.domain.device.name;
        if prepare.device != *own {
            return Err(VerbsError::Unusable {
                object: format!("RDMA device {own}, queue pair {}", self.number),
                what: format!("its connection goes over {}", prepare.device),
            });
        }
        let Step {
            mut attributes,
            which,
        } = prepare.step;
        attributes.qp_access_flags = access.flags();
        self.modify(&mut attributes, which | IBV_QP_ACCESS_FLAGS)
    }

    /// As [`QueuePair::connect`], by the kernel's connection manager. What peers may do stays as it is.
    pub fn connect_by(&self, steps: &ConnectSteps) -> Result<(), VerbsError> {
        let Step {
            mut attributes,
            which,
        } = steps.to_receive;
        attributes.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
        let which = which & !IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, which | IBV_QP_MIN_RNR_TIMER)?;
        let Step {
            mut attributes,
            which,
        } = steps.to_send;
        attributes.timeout = ACK_TIMEOUT_EXPONENT;
        attributes.retry_cnt = RETRIES_MAX;
        attributes.rnr_retry = RECEIVER_NOT_READY_RETRIES_MAX;
        let which = which & !IBV_QP_ACCESS_FLAGS;
        let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
        self.modify(&mut attributes, which | retries)
    }

    /// Changes what peers may do from now on; for one that is connected.
    pub fn allow(&self, access: Access) -> Result<(), VerbsError> {
        let mut wanted = ibv_qp_attr::zeroed();
        wanted.qp_access_flags = access.flags();
        self.modify(&mut wanted, IBV_QP_ACCESS_FLAGS)
    }

    /// Puts it into error: what is posted, and all that will be, comes back as flushed.
    pub fn fail(&self) -> Result<(), VerbsError> {
        let mut wanted = ibv_qp_attr::zeroed();
        wanted.qp_state = IBV_QPS_ERR;
        self.modify(&mut wanted, IBV_QP_STATE)
    }

    /// Destroys it. From then on nothing that its peer has sent lands in this process's memory.
    ///
    /// # Errors
    /// The queue pair, which still exists, and the device's reason: memory that the peer may write into must not be
    /// used again before a later try has succeeded.
    pub fn destroy(mut self) -> Result<Destroyed, Box<(QueuePair, VerbsError)>> {
        match self.destroy_once() {
            Ok(()) => {
                self.destroyed = true;
                Ok(Destroyed::new())
            }
            Err(why) => Err(Box::new((self, why))),
        }
    }

    fn destroy_once(&self) -> Result<(), VerbsError> {
        // SAFETY: it exists: who succeeds in this uses it no more, `destroy` by consuming it and keeping `drop` from it,
        // or `drop`. What it was made from is still held.
        let returned = unsafe { (self.domain.device.library.ibv_destroy_qp)(self.pair.as_ptr()) };
        let returned = self.domain.device.is_destroyed(checked(returned));
        returned.map_err(|why| {
            let object = format!(
                "RDMA device {}, queue pair {}",
                self.domain.device.name, self.number
            );
            call_failed_with("ibv_destroy_qp", object, why, "")
        })
    }

    fn modify(&self, wanted: &mut ibv_qp_attr, which: u32) -> Result<(), VerbsError> {
        let library = self.domain.device.library;
        // SAFETY: the queue pair lives; the structure is the one that the function reads.
        let returned =
            unsafe { (library.ibv_modify_qp)(self.pair.as_ptr(), wanted, which.cast_signed()) };
        checked(returned).map_err(|why| {
            let object = format!(
                "RDMA device {}, queue pair {} to state {}",
                self.domain.device.name, self.number, wanted.qp_state
            );
            call_failed_with("ibv_modify_qp", object, why, "")
        })
    }

    /// Posts room for one message of the peer.
    pub fn post_receive(&self, work: u64, to: LocalSlice<'_>) -> Result<(), PostError> {
        let mut element = element(to)?;
        let mut request = ibv_recv_wr {
            wr_id: work,
            next: ptr::null_mut(),
            sg_list: &mut element,
            num_sge: 1,
        };
        let mut refused = ptr::null_mut();
        let Some(post_recv) = self.domain.device.operations().post_recv else {
            return Err(PostError::Refused(io::ErrorKind::Unsupported.into()));
        };
        // SAFETY: the queue pair lives; request and element are read during the call only. The region that the
        // element names cannot be freed while a device reaches it (see `MemoryRegion`'s drop).
        let returned = unsafe { post_recv(self.pair.as_ptr(), &mut request, &mut refused) };
        posted(returned)
    }

    /// Posts a message to the peer. Without `signalled` it has a completion only when it fails.
    pub fn post_send(
        &self,
        work: u64,
        from: LocalSlice<'_>,
        signalled: bool,
    ) -> Result<(), PostError> {
        self.post(work, element(from)?, IBV_WR_SEND, None, signal(signalled))
    }

    /// Posts a short message, which is copied at once: the bytes may change when this returns.
    ///
    /// # Errors
    /// [`PostError::TooLong`] for more than the queue pair was made for.
    pub fn post_send_inline(
        &self,
        work: u64,
        message: &[u8],
        signalled: bool,
    ) -> Result<(), PostError> {
        if message.len() > self.inline_bytes {
            return Err(PostError::TooLong {
                len_bytes: message.len(),
                max_bytes: self.inline_bytes,
            });
        }
        let element = ibv_sge {
            addr: message.as_ptr().addr() as u64,
            // Inline messages are some hundreds of bytes.
            length: message.len() as u32,
            lkey: 0,
        };
        self.post(
            work,
            element,
            IBV_WR_SEND,
            None,
            signal(signalled) | IBV_SEND_INLINE,
        )
    }

    /// Posts an RDMA WRITE of bytes of this side into the peer's memory.
    pub fn post_write(
        &self,
        work: u64,
        from: LocalSlice<'_>,
        to: RemoteSlice,
        signalled: bool,
    ) -> Result<(), PostError> {
        self.post(
            work,
            element(from)?,
            IBV_WR_RDMA_WRITE,
            Some(to),
            signal(signalled),
        )
    }

    /// Posts an RDMA READ of bytes of the peer into memory of this side.
    pub fn post_read(
        &self,
        work: u64,
        to: LocalSlice<'_>,
        from: RemoteSlice,
        signalled: bool,
    ) -> Result<(), PostError> {
        self.post(
            work,
            element(to)?,
            IBV_WR_RDMA_READ,
            Some(from),
            signal(signalled),
        )
    }

    /// Posts all that was gathered, in its order and with one doorbell, and empties the batch.
    ///
    /// # Errors
    /// The device's reason. A part may be under way: the connection must be ended.
    pub fn post_batch(&self, batch: &mut Batch) -> Result<(), PostError> {
        if batch.is_empty() {
            return Ok(());
        }
        let (inline_bytes, elements) = (batch.inline_max(), batch.elements_max());
        if inline_bytes > self.inline_bytes || elements > self.elements {
            batch.clear();
            return Err(PostError::TooLong {
                len_bytes: inline_bytes,
                max_bytes: self.inline_bytes,
            });
        }
        let Some(post_send) = self.domain.device.operations().post_send else {
            return Err(PostError::Refused(io::ErrorKind::Unsupported.into()));
        };
        let mut refused = ptr::null_mut();
        let first = batch.linked();
        // SAFETY: the queue pair lives; requests, elements and inline bytes are the batch's, which is not touched
        // during the call, and are read during the call only; none has more than the queue pair was made for. An
        // element names memory by a region's key, for reading: where the region is gone, the device refuses it.
        let returned = unsafe { post_send(self.pair.as_ptr(), first, &mut refused) };
        batch.clear();
        posted(returned)
    }

    /// Longest message that [`Batch::send_inline`] may have for it, in bytes.
    pub fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    fn post(
        &self,
        work: u64,
        mut element: ibv_sge,
        opcode: u32,
        target: Option<RemoteSlice>,
        flags: u32,
    ) -> Result<(), PostError> {
        let mut request = ibv_send_wr::zeroed();
        request.wr_id = work;
        request.sg_list = &mut element;
        request.num_sge = 1;
        request.opcode = opcode;
        request.send_flags = flags;
        if let Some(target) = target {
            request.wr.remote_addr = target.address;
            request.wr.rkey = target.key;
        }
        let mut refused = ptr::null_mut();
        let Some(post_send) = self.domain.device.operations().post_send else {
            return Err(PostError::Refused(io::ErrorKind::Unsupported.into()));
        };
        // SAFETY: the queue pair lives; request and element are read during the call only, and so are the bytes of
        // an inline message. A region that the element names cannot be freed while a device reaches it (see
        // `MemoryRegion`'s drop).
        let returned = unsafe { post_send(self.pair.as_ptr(), &mut request, &mut refused) };
        posted(returned)
    }
}

fn signal(signalled: bool) -> u32 {
    if signalled { IBV_SEND_SIGNALED } else { 0 }
}

pub(super) fn element(slice: LocalSlice<'_>) -> Result<ibv_sge, PostError> {
    match u32::try_from(slice.len_bytes) {
        Ok(length) if slice.len_bytes <= MESSAGE_BYTES_MAX => Ok(ibv_sge {
            addr: slice.address,
            length,
            lkey: slice.key,
        }),
        _ => Err(PostError::TooLong {
            len_bytes: slice.len_bytes,
            max_bytes: MESSAGE_BYTES_MAX,
        }),
    }
}

/// What a post function says.
fn posted(returned: i32) -> Result<(), PostError> {
    checked(returned).map_err(|why| match why.raw_os_error() {
        Some(libc::ENOMEM) => PostError::Full,
        _ => PostError::Refused(why),
    })
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.destroyed
            && let Err(error) = self.destroy_once()
        {
            tracing::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_marked_as_told_and_else_as_the_connection_manager_has_it() {
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.ah_attr.grh.traffic_class = 8;
        attributes.ah_attr.sl = 1;
        let step = Step {
            attributes,
            which: IBV_QP_AV,
        };
        let steps = ConnectSteps {
            to_receive: step,
            to_send: step,
        };
        let marks = |traffic_class, service_level| {
            let marking = Marking {
                traffic_class,
                service_level,
            };
            let path = steps.marked(marking).to_receive.attributes.ah_attr;
            (path.grh.traffic_class, path.sl)
        };
        assert_eq!(marks(None, None), (8, 1));
        assert_eq!(marks(Some(106), None), (106, 1));
        assert_eq!(marks(Some(0), Some(3)), (0, 3));
    }
}
