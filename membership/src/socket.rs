//! chitchat's transport: UDP, with each datagram sealed.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::net::UdpSocket;

use crate::fragments::{Assembly, MESSAGE_BYTES_MAX, split};
use crate::replays::Replays;
use crate::seal::{DropCounts, Dropped, SKEW_MAX_MS, Sealer, unix_ms};

/// Room for what several members of a large group send at one moment: a digest of 1,000 members has some 55
/// datagrams, and losing one loses the message.
const RECEIVE_BYTES: usize = 8 << 20;

/// The longest datagram there can be.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A socket that is bound already, for chitchat to open.
pub(crate) struct SealedTransport {
    socket: Mutex<Option<UdpSocket>>,
    sealer: Sealer,
    drops: Arc<DropCounts>,
}

impl SealedTransport {
    pub fn new(socket: UdpSocket, sealer: Sealer, drops: Arc<DropCounts>) -> Self {
        widen(&socket);
        Self {
            socket: Mutex::new(Some(socket)),
            sealer,
            drops,
        }
    }
}

/// As much receive buffer as the kernel grants: beyond its limit where this process may.
fn widen(socket: &UdpSocket) {
    let granted = sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BYTES)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BYTES))
        .and_then(|()| sockopt::socket_recv_buffer_size(socket));
    match granted {
        Ok(bytes) if bytes >= RECEIVE_BYTES => {}
        Ok(bytes) => tracing::debug!(
            bytes,
            "the kernel's limit for receive buffers is short for groups of many hundred members; raise net.core.rmem_max"
        ),
        Err(error) => tracing::debug!(%error, "cannot set the gossip socket's receive buffer"),
    }
}

#[async_trait]
impl Transport for SealedTransport {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let socket = self.socket.lock().take();
        Ok(Box::new(SealedSocket {
            socket: socket.context("the gossip socket is open already")?,
            sealer: self.sealer.clone(),
            drops: self.drops.clone(),
            // Random: messages of a restarted member are no parts of its earlier ones, and two members that send the
            // same bytes in one millisecond do not send the same datagram.
            message: RandomState::new().build_hasher().finish() as u32,
            assembly: Assembly::default(),
            replays: Replays::default(),
            plain: Vec::new(),
            sealed: Vec::new(),
            received: vec![0; DATAGRAM_BYTES_MAX].into(),
        }))
    }
}

struct SealedSocket {
    socket: UdpSocket,
    sealer: Sealer,
    drops: Arc<DropCounts>,
    message: u32,
    assembly: Assembly,
    replays: Replays,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    received: Box<[u8]>,
}

#[async_trait]
impl Socket for SealedSocket {
    /// Never fails: a peer that cannot be reached is one that will not be heard of.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        if !self.sealer.may_reach(to) {
            tracing::debug!("{to} is not asked: without a group secret only loopback is");
            return Ok(());
        }
        self.plain.clear();
        message.serialize(&mut self.plain);
        if self.plain.len() > MESSAGE_BYTES_MAX {
            tracing::error!("the group is too large for gossip");
        }
        self.message = self.message.wrapping_add(1);
        for part in split(self.message, &self.plain) {
            self.sealed.clear();
            self.sealer.seal(&part, unix_ms(), &mut self.sealed);
            if let Err(error) = self.socket.send_to(&self.sealed, to).await {
                tracing::debug!("cannot send to {to}: {error}");
            }
        }
        Ok(())
    }

    /// May be dropped at any await point: nothing is taken off the socket and not kept.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            match self.socket.recv_from(&mut self.received).await {
                Ok((len, from)) => {
                    if let Some(message) = self.accept(len, from) {
                        return Ok((from, message));
                    }
                }
                // What the network said about something sent earlier, or a passing shortage.
                Err(error) => {
                    tracing::debug!("gossip socket: {error}");
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

impl SealedSocket {
    fn accept(&mut self, len: usize, from: SocketAddr) -> Option<ChitchatMessage> {
        let (datagram, now_ms) = (&self.received[..len], unix_ms());
        let opened = self.sealer.open(datagram, from, now_ms);
        // Only what a member made is remembered.
        let fresh = opened.and_then(|part| {
            let is_new = self.replays.is_new(Sealer::proof(datagram), now_ms);
            is_new.then_some(part).ok_or(Dropped::Replayed)
        });
        let part = match fresh {
            Ok(part) => part,
            Err(why) => {
                report(why, from, self.drops.count(why));
                return None;
            }
        };
        let message = self.assembly.take(from, &part)?;
        match ChitchatMessage::deserialize(&mut message.as_slice()) {
            Ok(message) => Some(message),
            Err(error) => {
                tracing::debug!("from {from}: {error}");
                report(
                    Dropped::Unreadable,
                    from,
                    self.drops.count(Dropped::Unreadable),
                );
                None
            }
        }
    }
}

/// Tells the first, the second, the fourth ... of a kind: strangers do not fill the log.
fn report(why: Dropped, from: SocketAddr, count: u64) {
    if !count.is_power_of_two() {
        return;
    }
    match why {
        Dropped::Foreign => {
            tracing::info!(count, "dropped from {from}: not gossip of this version")
        }
        Dropped::OtherGroup => {
            tracing::info!(count, "dropped from {from}: it is of another --cache-group")
        }
        Dropped::Unproven => tracing::warn!(
            count,
            "dropped from {from}: it does not have this group's secret; give all members the same --group-secret-file"
        ),
        Dropped::NotLoopback => tracing::warn!(
            count,
            "dropped from {from}: without a group secret only this machine is accepted; give --group-secret-file"
        ),
        Dropped::Skewed(ms) => tracing::warn!(
            count,
            "dropped from {from}: its clock is {} s {} this one's, more than {} s; synchronise both (NTP, chrony)",
            ms.unsigned_abs() / 1000,
            if ms > 0 { "ahead of" } else { "behind" },
            SKEW_MAX_MS / 1000
        ),
        Dropped::Replayed => tracing::warn!(
            count,
            "dropped from {from}: that datagram came before; the network doubles packets, or somebody sends recorded ones"
        ),
        Dropped::Unreadable => tracing::warn!(
            count,
            "dropped from {from}: it cannot be read; do all members run the same version?"
        ),
    }
}
