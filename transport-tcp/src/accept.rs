//! Connections from peers, until they are proven.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::ports::PeerCore;
use forebay_engine::wire::hello::{Purpose, Refusal, Welcome};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::handshake::{self, Failure, Guest};
use crate::introduction::Introduction;
use crate::limits::HANDSHAKE_MS;
use crate::shared::{Arrival, Shared};
use crate::socket;

/// A pause after an accept that failed (no descriptor left): until something has been closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts for as long as it is polled.
pub(crate) async fn run(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let shared = shared.clone();
                tokio::spawn(async move { guest(&shared, stream, from).await });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn guest(shared: &Arc<Shared>, mut stream: TcpStream, from: SocketAddr) {
    let refusal = if !shared.may_talk_to(from.ip()) {
        Some(Refusal::NoSecret)
    } else {
        None
    };
    let place = shared.unproven(from.ip());
    let refusal = refusal.or(place.is_none().then_some(Refusal::Busy));
    if let Some(refusal) = refusal {
        shared.refused(refusal, &from);
        if place.is_some() {
            handshake::dismiss(&mut stream, &Welcome::refuse(refusal)).await;
        } else {
            // Nobody waits for whom there is no place: one small write into an empty buffer, and the end.
            let _ = stream.write_all(&Welcome::refuse(refusal)).await;
        }
        return;
    }
    let handshake = async {
        socket::tune(&stream)?;
        handshake::accept(shared, &mut stream).await
    };
    match timeout(Duration::from_millis(HANDSHAKE_MS), handshake).await {
        Err(_) => shared.refused(Refusal::Garbled, &from),
        Ok(Err(Failure::Refused(refusal))) => shared.refused(refusal, &from),
        Ok(Err(Failure::Refuse(refusal))) => {
            shared.refused(refusal, &from);
            handshake::dismiss(&mut stream, &Welcome::refuse(refusal)).await;
        }
        Ok(Err(Failure::RefuseProof)) => {
            shared.refused(Refusal::Secret, &from);
            handshake::dismiss(&mut stream, &[Refusal::Secret.code()]).await;
        }
        Ok(Err(Failure::Io(error))) => {
            tracing::debug!(%from, %error, "a connection broke before it was proven");
        }
        Ok(Ok(guest)) => {
            drop(place);
            if let Err(error) = hand_over(shared, guest, stream) {
                tracing::warn!(%from, %error, "a proven connection is lost");
            }
        }
    }
}

fn hand_over(shared: &Shared, guest: Guest, stream: TcpStream) -> io::Result<()> {
    match guest.purpose {
        Purpose::Control => shared
            .control
            .try_send((guest.from, stream))
            .map_err(|_| io::Error::other("nobody takes control connections")),
        Purpose::Rdma { from_core, to_core } => {
            let introductions = shared
                .introductions
                .get()
                .ok_or_else(|| io::Error::other("this member has no RDMA"))?;
            let introduction = Introduction {
                peer: PeerCore {
                    peer: guest.from,
                    core: from_core,
                },
                core: to_core,
                stream,
                hello: guest.began.hello,
                welcome: guest.began.welcome,
            };
            introductions
                .try_send(introduction)
                .map_err(|_| io::Error::other("too many wait to be introduced over RDMA"))
        }
        Purpose::Core { from_core, to_core } => {
            let seat = shared
                .seat(to_core)
                .ok_or_else(|| io::Error::other("its core has stopped"))?;
            seat.push(Arrival::Accepted {
                from: PeerCore {
                    peer: guest.from,
                    core: from_core,
                },
                stream: stream.into_std()?,
            });
            Ok(())
        }
    }
}
