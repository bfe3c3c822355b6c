//! Connections by rdma_cm: addresses, routes, and the messages by which two queue pairs find each other.
//!
//! Queue pairs are not made here: their cores make them, and are told by plain values what to do ([`PrepareStep`],
//! [`ConnectSteps`]).

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

use super::abi::*;
use super::checked;
use super::cm_abi::*;
use super::cm_library::CmLibrary;
use super::device::{call_failed, call_failed_with};
use super::library::Library;
use super::queue_pair::{ConnectSteps, PrepareStep, Step};
use crate::VerbsError;
use crate::limits::{PRIVATE_BYTES_MAX, RECEIVER_NOT_READY_RETRIES_MAX, RETRIES_MAX};

/// Names a connection, or what listens for them, of one [`Cm`]; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub u64);

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// The peer's address leads to a device of this machine: find the route.
    AddressResolved(CmId),
    /// There is a route: connect.
    RouteResolved(CmId),
    /// A peer asks for a connection. Nothing was made for it yet but `id`.
    Requested {
        /// What listened.
        listener: CmId,
        /// The connection: accept, or reject and close it.
        id: CmId,
        /// The number of the peer's queue pair.
        queue_pair: u32,
        /// What the peer sent along; zeros follow up to a length of the network's.
        private: Vec<u8>,
    },
    /// The peer accepts: connect the queue pair, then [`Cm::establish`].
    Accepted {
        /// The connection.
        id: CmId,
        /// The number of the peer's queue pair.
        queue_pair: u32,
        /// As in a request.
        private: Vec<u8>,
    },
    /// The peer, or its machine, refuses: close it.
    Rejected {
        /// The connection.
        id: CmId,
        /// The network's reason: 8 where nobody listens, 28 where a program refused.
        reason: i32,
        /// As in a request.
        private: Vec<u8>,
    },
    /// The peer knows that its queue pair is connected.
    Established(CmId),
    /// It came to nothing: close it.
    Failed {
        /// The connection.
        id: CmId,
        /// What failed.
        what: &'static str,
        /// The system's error number, where it tells one.
        errno: i32,
    },
    /// The peer ended it, or its end was acknowledged: close it.
    Disconnected(CmId),
    /// The device goes away: end its queue pairs, then close it.
    DeviceRemoved(CmId),
}

/// Where a connection is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmPlace {
    /// The device's name.
    pub device: String,
    /// Its port; the first is 1.
    pub port: u8,
}

/// All that this process connects by rdma_cm, for one thread at a time.
pub struct Cm {
    library: &'static CmLibrary,
    channel: NonNull<rdma_event_channel>,
    ids: BTreeMap<CmId, NonNull<rdma_cm_id>>,
    by_address: BTreeMap<usize, CmId>,
    last: u64,
}

// SAFETY: librdmacm has no state of threads: its objects are guarded by locks of its own. All pointers that this one
// holds are its alone, and are used through a reference to it only, so by one thread at a time; it is not `Sync`.
unsafe impl Send for Cm {}

impl Cm {
    /// Loads the library, and no more.
    ///
    /// # Errors
    /// [`VerbsError::Load`] without it.
    pub fn load() -> Result<(), VerbsError> {
        CmLibrary::get().map(|_| ())
    }

    /// Loads the library at the first call, and opens a channel for events that never blocks.
    ///
    /// # Errors
    /// [`VerbsError::Load`] without the library; [`VerbsError::Call`] where the kernel has no rdma_cm (module
    /// `rdma_ucm`).
    pub fn new() -> Result<Cm, VerbsError> {
        let library = CmLibrary::get()?;
        let object = || String::from("this machine");
        // SAFETY: has no conditions.
        let channel = unsafe { (library.rdma_create_event_channel)() };
        let Some(channel) = NonNull::new(channel) else {
            return Err(call_failed(
                "rdma_create_event_channel",
                object(),
                "; is the kernel's module rdma_ucm loaded?",
            ));
        };
        let cm = Cm {
            library,
            channel,
            ids: BTreeMap::new(),
            by_address: BTreeMap::new(),
            last: 0,
        };
        let fd = cm.as_fd();
        match super::completion::set_nonblocking(fd) {
            Ok(()) => Ok(cm),
            Err(why) => Err(call_failed_with("fcntl", object(), why, "")),
        }
    }

    /// Connections that are there, and what listens for them.
    pub fn ids(&self) -> usize {
        self.ids.len()
    }

    /// Listens at an address of a device; with port 0 at one of the kernel's choice. `backlog` requests may wait.
    pub fn listen(
        &mut self,
        at: SocketAddr,
        backlog: i32,
    ) -> Result<(CmId, SocketAddr), VerbsError> {
        let (id, raw) = self.create()?;
        let mut address = SocketStorage::new(at);
        let listening = self
            .call("rdma_bind_addr", id, |library| {
                // SAFETY: the identifier lives; the address is a whole one of its family.
                unsafe { (library.rdma_bind_addr)(raw.as_ptr(), address.as_mut_ptr()) }
            })
            .and_then(|()| {
                self.call("rdma_listen", id, |library| {
                    // SAFETY: the identifier lives.
                    unsafe { (library.rdma_listen)(raw.as_ptr(), backlog) }
                })
            });
        if let Err(error) = listening {
            self.close(id);
            // By the address: it is tried again, each time by another number.
            return Err(match error {
                VerbsError::Call {
                    call,
                    source,
                    advice,
                    ..
                } => call_failed_with(call, format!("address {}", at.ip()), source, advice),
                error => error,
            });
        }
        // SAFETY: the identifier lives.
        let port = unsafe { (self.library.rdma_get_src_port)(raw.as_ptr()) };
        Ok((id, SocketAddr::new(at.ip(), u16::from_be(port))))
    }

    /// Begins a connection: looks for the device that leads to a peer, from an address of this machine where one is
    /// given.
    pub fn resolve_address(
        &mut self,
        from: Option<IpAddr>,
        to: SocketAddr,
        limit: Duration,
    ) -> Result<CmId, VerbsError> {
        let (id, raw) = self.create()?;
        let mut source = from.map(|ip| SocketStorage::new(SocketAddr::new(ip, 0)));
        let source = source
            .as_mut()
            .map_or(ptr::null_mut(), SocketStorage::as_mut_ptr);
        let mut target = SocketStorage::new(to);
        let begun = self.call("rdma_resolve_addr", id, |library| {
            let target = target.as_mut_ptr();
            // SAFETY: the identifier lives; the addresses are whole ones of their family, or none.
            unsafe { (library.rdma_resolve_addr)(raw.as_ptr(), source, target, millis(limit)) }
        });
        match begun {
            Ok(()) => Ok(id),
            Err(error) => {
                self.close(id);
                Err(error)
            }
        }
    }

    /// Looks for the way to a peer whose address is resolved.
    pub fn resolve_route(&mut self, id: CmId, limit: Duration) -> Result<(), VerbsError> {
        let raw = self.raw(id)?;
        self.call("rdma_resolve_route", id, |library| {
            // SAFETY: the identifier lives.
            unsafe { (library.rdma_resolve_route)(raw.as_ptr(), millis(limit)) }
        })
    }

    /// The device and port of a connection whose address is resolved, or that was asked for.
    ///
    /// # Errors
    /// [`VerbsError::Unusable`] when it has none yet.
    pub fn place(&self, id: CmId) -> Result<CmPlace, VerbsError> {
        let raw = self.raw(id)?;
        // SAFETY: the identifier lives, and no call is writing to it: that takes `&mut self`.
        let told = unsafe { raw.as_ref() };
        let Some(context) = NonNull::new(told.verbs) else {
            return Err(VerbsError::Unusable {
                object: named(id),
                what: "it has no device yet".into(),
            });
        };
        // SAFETY: the library keeps the context open as long as the identifier lives.
        let device = unsafe { context.as_ref() }.device;
        // SAFETY: the device is that of an open context.
        let name = unsafe { (Library::get()?.ibv_get_device_name)(device) };
        // SAFETY: the name is a field of the device, and ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) };
        Ok(CmPlace {
            device: name.to_string_lossy().into_owned(),
            port: told.port_num,
        })
    }

    /// The address of the peer of a connection; none when it has no IP address.
    pub fn peer(&self, id: CmId) -> Option<IpAddr> {
        let raw = self.raw(id).ok()?;
        // SAFETY: the identifier lives, and no call is writing to it: that takes `&mut self`.
        let told = unsafe { raw.as_ref() };
        ip_of(&told.route.addr.dst_addr)
    }

    /// How to prepare the queue pair of a connection whose route is resolved, or that was asked for.
    pub fn prepare_step(&mut self, id: CmId) -> Result<PrepareStep, VerbsError> {
        let device = self.place(id)?.device;
        let step = self.step(id, IBV_QPS_INIT)?;
        Ok(PrepareStep { step, device })
    }

    /// How to connect the queue pair of a connection that the peer accepted, or asked for.
    pub fn connect_steps(&mut self, id: CmId) -> Result<ConnectSteps, VerbsError> {
        Ok(ConnectSteps {
            to_receive: self.step(id, IBV_QPS_RTR)?,
            to_send: self.step(id, IBV_QPS_RTS)?,
        })
    }

    fn step(&mut self, id: CmId, state: u32) -> Result<Step, VerbsError> {
        let raw = self.raw(id)?;
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = state;
        let mut which = 0;
        self.call("rdma_init_qp_attr", id, |library| {
            // SAFETY: the identifier lives; both places are there to be filled.
            unsafe { (library.rdma_init_qp_attr)(raw.as_ptr(), &mut attributes, &mut which) }
        })?;
        Ok(Step {
            attributes,
            which: which.cast_unsigned(),
        })
    }

    /// Asks the peer for a connection with this side's queue pair, which is prepared.
    pub fn connect(&mut self, id: CmId, queue_pair: u32, private: &[u8]) -> Result<(), VerbsError> {
        let raw = self.raw(id)?;
        let mut wanted = parameters(id, queue_pair, private)?;
        self.call("rdma_connect", id, |library| {
            // SAFETY: the identifier lives; the parameters, and what they point to, are read during the call only.
            unsafe { (library.rdma_connect)(raw.as_ptr(), &mut wanted) }
        })
    }

    /// Accepts what a peer asked for, with this side's queue pair, which is connected.
    pub fn accept(&mut self, id: CmId, queue_pair: u32, private: &[u8]) -> Result<(), VerbsError> {
        let raw = self.raw(id)?;
        let mut wanted = parameters(id, queue_pair, private)?;
        self.call("rdma_accept", id, |library| {
            // SAFETY: as for connecting.
            unsafe { (library.rdma_accept)(raw.as_ptr(), &mut wanted) }
        })
    }

    /// Refuses what a peer asked for, and closes it.
    pub fn reject(&mut self, id: CmId, private: &[u8]) -> Result<(), VerbsError> {
        let raw = self.raw(id)?;
        let wanted = parameters(id, 0, private)?;
        let rejected = self.call("rdma_reject", id, |library| {
            let (data, len) = (wanted.private_data, wanted.private_data_len);
            // SAFETY: the identifier lives; the bytes are read during the call only.
            unsafe { (library.rdma_reject)(raw.as_ptr(), data, len) }
        });
        self.close(id);
        rejected
    }

    /// Tells the peer that this side, which asked, is connected.
    pub fn establish(&mut self, id: CmId) -> Result<(), VerbsError> {
        let raw = self.raw(id)?;
        self.call("rdma_establish", id, |library| {
            // SAFETY: the identifier lives, and has no queue pair of the library's.
            unsafe { (library.rdma_establish)(raw.as_ptr()) }
        })
    }

    /// Tells the peer that the connection ends.
    pub fn disconnect(&mut self, id: CmId) -> Result<(), VerbsError> {
        let raw = self.raw(id)?;
        self.call("rdma_disconnect", id, |library| {
            // SAFETY: the identifier lives.
            unsafe { (library.rdma_disconnect)(raw.as_ptr()) }
        })
    }

    /// Forgets a connection, or ends listening. Of one that is not there nothing happens.
    pub fn close(&mut self, id: CmId) {
        let Some(raw) = self.ids.remove(&id) else {
            return;
        };
        self.by_address.remove(&raw.as_ptr().addr());
        // SAFETY: made once, destroyed here only, since it was taken out; all its events were acknowledged.
        let returned = unsafe { (self.library.rdma_destroy_id)(raw.as_ptr()) };
        if let Err(why) = checked(returned) {
            tracing::warn!("{} could not be destroyed: {why}", named(id));
        }
    }

    /// The next event; none when there is none now.
    pub fn next_event(&mut self) -> Result<Option<CmEvent>, VerbsError> {
        loop {
            let mut event = ptr::null_mut();
            // SAFETY: the channel lives, and the place is there to be filled.
            let returned =
                unsafe { (self.library.rdma_get_cm_event)(self.channel.as_ptr(), &mut event) };
            if let Err(why) = checked(returned) {
                match why.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted => continue,
                    _ => {
                        let object = String::from("rdma_cm's events");
                        return Err(call_failed_with("rdma_get_cm_event", object, why, ""));
                    }
                }
            }
            let Some(event) = NonNull::new(event) else {
                return Ok(None);
            };
            // SAFETY: the library made the event, and nobody changes it before it is acknowledged.
            let told = Told::of(unsafe { event.as_ref() });
            // SAFETY: acknowledged once, and not used any more.
            unsafe { (self.library.rdma_ack_cm_event)(event.as_ptr()) };
            if let Some(event) = self.understood(told) {
                return Ok(Some(event));
            }
        }
    }

    fn understood(&mut self, told: Told) -> Option<CmEvent> {
        let Told {
            kind,
            status,
            queue_pair,
            private,
            ..
        } = told;
        if kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            // Made by the library for this event.
            let id = self.adopt(NonNull::new(told.id)?);
            let Some(listener) = self.by_address.get(&told.listener).copied() else {
                self.close(id);
                return None;
            };
            return Some(CmEvent::Requested {
                listener,
                id,
                queue_pair,
                private,
            });
        }
        let id = self.by_address.get(&told.id.addr()).copied()?;
        let failed = |what| {
            let errno = status.checked_abs().unwrap_or(0);
            Some(CmEvent::Failed { id, what, errno })
        };
        match kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => Some(CmEvent::AddressResolved(id)),
            RDMA_CM_EVENT_ROUTE_RESOLVED => Some(CmEvent::RouteResolved(id)),
            RDMA_CM_EVENT_CONNECT_RESPONSE => Some(CmEvent::Accepted {
                id,
                queue_pair,
                private,
            }),
            RDMA_CM_EVENT_REJECTED => Some(CmEvent::Rejected {
                id,
                reason: status,
                private,
            }),
            RDMA_CM_EVENT_ESTABLISHED => Some(CmEvent::Established(id)),
            RDMA_CM_EVENT_DISCONNECTED => Some(CmEvent::Disconnected(id)),
            RDMA_CM_EVENT_DEVICE_REMOVAL => Some(CmEvent::DeviceRemoved(id)),
            RDMA_CM_EVENT_ADDR_ERROR => failed("no device of this machine leads to the address"),
            RDMA_CM_EVENT_ROUTE_ERROR => failed("there is no route"),
            RDMA_CM_EVENT_CONNECT_ERROR => failed("connecting failed"),
            RDMA_CM_EVENT_UNREACHABLE => failed("the peer does not answer"),
            // Changes of address, the end of waiting for late packets, and what later versions tell.
            _ => None,
        }
    }

    fn create(&mut self) -> Result<(CmId, NonNull<rdma_cm_id>), VerbsError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives and is destroyed after all identifiers; the place is there to be filled.
        let returned = unsafe {
            (self.library.rdma_create_id)(
                self.channel.as_ptr(),
                &mut raw,
                ptr::null_mut(),
                RDMA_PS_TCP,
            )
        };
        let object = || String::from("a new connection");
        checked(returned).map_err(|why| call_failed_with("rdma_create_id", object(), why, ""))?;
        match NonNull::new(raw) {
            Some(raw) => Ok((self.adopt(raw), raw)),
            None => Err(call_failed("rdma_create_id", object(), "")),
        }
    }

    fn adopt(&mut self, raw: NonNull<rdma_cm_id>) -> CmId {
        self.last += 1;
        let id = CmId(self.last);
        self.ids.insert(id, raw);
        self.by_address.insert(raw.as_ptr().addr(), id);
        id
    }

    fn raw(&self, id: CmId) -> Result<NonNull<rdma_cm_id>, VerbsError> {
        self.ids.get(&id).copied().ok_or(VerbsError::Unusable {
            object: named(id),
            what: "it is closed".into(),
        })
    }

    fn call(
        &self,
        name: &'static str,
        id: CmId,
        call: impl FnOnce(&CmLibrary) -> c_int,
    ) -> Result<(), VerbsError> {
        checked(call(self.library)).map_err(|why| call_failed_with(name, named(id), why, ""))
    }
}

impl AsFd for Cm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and the library does not change its descriptor.
        let fd = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Cm {
    fn drop(&mut self) {
        while let Some(id) = self.ids.keys().next().copied() {
            self.close(id);
        }
        // SAFETY: all identifiers are gone, and all events were acknowledged.
        unsafe { (self.library.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// An event, copied.
struct Told {
    kind: u32,
    status: i32,
    id: *mut rdma_cm_id,
    listener: usize,
    queue_pair: u32,
    private: Vec<u8>,
}

impl Told {
    fn of(event: &rdma_cm_event) -> Told {
        let has_private = matches!(
            event.event,
            RDMA_CM_EVENT_CONNECT_REQUEST | RDMA_CM_EVENT_CONNECT_RESPONSE | RDMA_CM_EVENT_REJECTED
        );
        let len = usize::from(event.param.private_data_len);
        let private = NonNull::new(event.param.private_data.cast_mut())
            .filter(|_| has_private)
            // SAFETY: of these events the parameters are those of connections; the library says how many bytes there are,
            // and keeps them until the event is acknowledged.
            .map(|first| unsafe { std::slice::from_raw_parts(first.cast::<u8>().as_ptr(), len) });
        Told {
            kind: event.event,
            status: event.status,
            id: event.id,
            listener: event.listen_id.addr(),
            queue_pair: event.param.qp_num,
            private: private.unwrap_or_default().to_vec(),
        }
    }
}

/// What both ends say of a connection. It points into `private`.
fn parameters(id: CmId, queue_pair: u32, private: &[u8]) -> Result<rdma_conn_param, VerbsError> {
    if private.len() > PRIVATE_BYTES_MAX {
        return Err(VerbsError::Unusable {
            object: named(id),
            what: format!(
                "{} bytes are too many to send along: at most {PRIVATE_BYTES_MAX}",
                private.len()
            ),
        });
    }
    let mut told = rdma_conn_param::zeroed();
    told.private_data = private.as_ptr().cast::<c_void>();
    told.private_data_len = private.len() as u8;
    // No READs are sent, but some drivers do not take none.
    told.responder_resources = 1;
    told.initiator_depth = 1;
    told.retry_count = RETRIES_MAX;
    told.rnr_retry_count = RECEIVER_NOT_READY_RETRIES_MAX;
    told.qp_num = queue_pair;
    Ok(told)
}

fn millis(limit: Duration) -> c_int {
    c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX)
}

/// What errors call a connection.
/// The IP address in a socket's address; none of another family.
fn ip_of(address: &[u64; 16]) -> Option<IpAddr> {
    let mut bytes = [0; 128];
    for (place, word) in bytes.chunks_exact_mut(8).zip(address) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let family = i32::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
    match family {
        libc::AF_INET => <[u8; 4]>::try_from(&bytes[4..8]).ok().map(IpAddr::from),
        libc::AF_INET6 => <[u8; 16]>::try_from(&bytes[8..24]).ok().map(IpAddr::from),
        _ => None,
    }
}

fn named(id: CmId) -> String {
    format!("RDMA connection {}", id.0)
}

/// An address as C has it.
enum SocketStorage {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl SocketStorage {
    fn new(address: SocketAddr) -> SocketStorage {
        match address {
            SocketAddr::V4(v4) => SocketStorage::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => SocketStorage::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    fn as_mut_ptr(&mut self) -> *mut sockaddr {
        match self {
            SocketStorage::V4(v4) => ptr::from_mut(v4).cast(),
            SocketStorage::V6(v6) => ptr::from_mut(v6).cast(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        for at in ["10.9.0.7:80", "[fd00::7]:80"] {
            let at: SocketAddr = at.parse().unwrap();
            let mut storage = SocketStorage::new(at);
            let len_bytes = match storage {
                SocketStorage::V4(_) => size_of::<libc::sockaddr_in>(),
                SocketStorage::V6(_) => size_of::<libc::sockaddr_in6>(),
            };
            let mut words = [0_u64; 16];
            // SAFETY: the storage has that many bytes, all of them with a value, and the array has more.
            unsafe {
                ptr::copy_nonoverlapping(
                    storage.as_mut_ptr().cast::<u8>(),
                    words.as_mut_ptr().cast(),
                    len_bytes,
                );
            }
            assert_eq!(ip_of(&words), Some(at.ip()));
        }
        assert_eq!(ip_of(&[0; 16]), None);
    }
}
