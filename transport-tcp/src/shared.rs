//! What accepting, dialling and the cores' transports know together.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use forebay_engine::limits::LOG_EVERY_S;
use forebay_engine::placement::View;
use forebay_engine::ports::{PeerCore, PeerId};
use forebay_engine::ring::Doorbell;
use forebay_engine::wire::hello::{Key, Refusal};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::dial::DialError;
use crate::introduction::Introduction;
use crate::limits::{SERVING_PER_CORE_MAX, UNPROVEN_MAX, UNPROVEN_PER_ADDRESS_MAX};
use crate::links::{LinkKey, LinkRecord, LinkStatus};

/// What a core's transport finds when it looks.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A connection that it asked for, or why there is none.
    Dialled {
        to: PeerCore,
        result: Result<Dialled, DialError>,
    },
    /// A peer's core wants to ask.
    Accepted {
        from: PeerCore,
        stream: std::net::TcpStream,
    },
}

/// A proven connection to a peer's core.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub stream: std::net::TcpStream,
    pub credit_bytes: u32,
}

/// Where a core's transport is reached.
#[derive(Debug)]
pub(crate) struct Seat {
    pub arrivals: SegQueue<Arrival>,
    pub serving: AtomicUsize,
    doorbell: Arc<Doorbell>,
}

impl Seat {
    pub fn new(doorbell: Arc<Doorbell>) -> Arc<Self> {
        Arc::new(Self {
            arrivals: SegQueue::new(),
            serving: AtomicUsize::new(0),
            doorbell,
        })
    }

    pub fn push(&self, arrival: Arrival) {
        if matches!(arrival, Arrival::Accepted { .. }) {
            self.serving.fetch_add(1, Ordering::Relaxed);
        }
        self.arrivals.push(arrival);
        self.doorbell.ring();
    }

    pub fn has_room(&self) -> bool {
        self.serving.load(Ordering::Relaxed) < SERVING_PER_CORE_MAX
    }
}

/// How often something was refused, and when that was last said.
#[derive(Debug, Default)]
struct Refused {
    count: u64,
    said: Option<Instant>,
    unsaid: u64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub me: PeerId,
    pub group: String,
    pub key: Option<Key>,
    pub credit_bytes: u32,
    pub runtime: Handle,
    pub control: mpsc::Sender<(PeerId, TcpStream)>,
    /// Who takes connections for RDMA; nobody until it is set.
    pub introductions: OnceLock<mpsc::Sender<Introduction>>,
    book: Mutex<BTreeMap<PeerId, Arc<[SocketAddr]>>>,
    seats: Mutex<Vec<Option<Arc<Seat>>>>,
    links: Mutex<BTreeMap<LinkKey, Arc<LinkRecord>>>,
    refused: Mutex<BTreeMap<Refusal, Refused>>,
    unproven: Mutex<(usize, BTreeMap<IpAddr, usize>)>,
}

impl Shared {
    pub fn new(
        (me, group, key): (PeerId, String, Option<Key>),
        cores: u16,
        credit_bytes: u32,
        runtime: Handle,
        control: mpsc::Sender<(PeerId, TcpStream)>,
    ) -> Arc<Self> {
        let seats = (0..cores).map(|_| None).collect();
        Arc::new(Self {
            me,
            group,
            key,
            credit_bytes,
            runtime,
            control,
            introductions: OnceLock::new(),
            book: Mutex::default(),
            seats: Mutex::new(seats),
            links: Mutex::default(),
            refused: Mutex::default(),
            unproven: Mutex::default(),
        })
    }

    /// Whether connections with that address are allowed without a secret.
    pub fn may_talk_to(&self, address: IpAddr) -> bool {
        self.key.is_some() || address.to_canonical().is_loopback()
    }

    pub fn set_members(&self, view: &View) {
        let members = view.members().iter();
        *self.book.lock() = members
            .map(|member| (member.id, member.addresses.clone()))
            .collect();
        let known = |peer| view.member(peer).is_some();
        self.links
            .lock()
            .retain(|key, record| known(key.0) || !record.is_down());
    }

    pub fn addresses(&self, peer: PeerId) -> Option<Arc<[SocketAddr]>> {
        self.book.lock().get(&peer).cloned()
    }

    pub fn seat(&self, core: u16) -> Option<Arc<Seat>> {
        self.seats.lock().get(usize::from(core)).cloned().flatten()
    }

    /// Takes the seat of a core; none when there is no such core.
    pub fn sit(&self, core: u16, seat: Arc<Seat>) -> Option<()> {
        *self.seats.lock().get_mut(usize::from(core))? = Some(seat);
        Some(())
    }

    /// Leaves it, unless another has taken it.
    pub fn leave(&self, core: u16, seat: &Arc<Seat>) {
        if let Some(place) = self.seats.lock().get_mut(usize::from(core))
            && place.as_ref().is_some_and(|other| Arc::ptr_eq(other, seat))
        {
            *place = None;
        }
    }

    pub fn record(&self, key: LinkKey) -> Arc<LinkRecord> {
        let mut links = self.links.lock();
        let record = links
            .entry(key)
            .or_insert_with(|| Arc::new(LinkRecord::new(key)));
        record.clone()
    }

    pub fn links(&self) -> Vec<LinkStatus> {
        let links = self.links.lock();
        links.values().map(|record| record.status()).collect()
    }

    /// Counts a refusal, and says so once a while.
    pub fn refused(&self, refusal: Refusal, whom: &dyn std::fmt::Display) {
        let mut refused = self.refused.lock();
        let entry = refused.entry(refusal).or_default();
        entry.count += 1;
        entry.unsaid += 1;
        let quiet = entry
            .said
            .is_some_and(|said| said.elapsed() < Duration::from_secs(LOG_EVERY_S));
        if !quiet {
            tracing::warn!(peer = %whom, times = entry.unsaid, "connection refused: {refusal}");
            entry.said = Some(Instant::now());
            entry.unsaid = 0;
        }
    }

    pub fn refusals(&self) -> Vec<(Refusal, u64)> {
        let refused = self.refused.lock();
        refused
            .iter()
            .map(|(refusal, entry)| (*refusal, entry.count))
            .collect()
    }

    /// Room for one more connection that has proven nothing yet.
    pub fn unproven(self: &Arc<Self>, address: IpAddr) -> Option<Unproven> {
        let mut unproven = self.unproven.lock();
        let (all, by_address) = &mut *unproven;
        let of_address = by_address.get(&address).copied().unwrap_or(0);
        if *all >= UNPROVEN_MAX || of_address >= UNPROVEN_PER_ADDRESS_MAX {
            return None;
        }
        *all += 1;
        by_address.insert(address, of_address + 1);
        Some(Unproven {
            shared: self.clone(),
            address,
        })
    }
}

/// A connection that has proven nothing yet takes one of a few places until this is dropped.
#[derive(Debug)]
pub(crate) struct Unproven {
    shared: Arc<Shared>,
    address: IpAddr,
}

impl Drop for Unproven {
    fn drop(&mut self) {
        let mut unproven = self.shared.unproven.lock();
        let (all, by_address) = &mut *unproven;
        *all -= 1;
        match by_address.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                by_address.remove(&self.address);
            }
        }
    }
}
