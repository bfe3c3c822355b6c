//! Hello, welcome and proofs on one connection.

use std::io;
use std::time::Duration;

use forebay_engine::ports::PeerId;
use forebay_engine::wire::hello::{
    BODY_BYTES_MAX, Hello, Key, NONCE_BYTES, PREFIX_BYTES, PROOF_BYTES, Prefix, READY, Refusal,
    Role, Welcome,
};
use forebay_engine::wire::{PROTOCOL_VERSION, hello::Purpose};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::limits::{FAREWELL_BYTES_MAX, FAREWELL_MS};
use crate::shared::Shared;

/// Why a handshake did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// We refuse the other side.
    #[error("{0}")]
    Refuse(Refusal),
    /// We refuse the other side's proof.
    #[error("{}", Refusal::Secret)]
    RefuseProof,
    /// It refuses us.
    #[error("it refuses: {0}")]
    Refused(Refusal),
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The two messages that a connection began with: what was proven on it was proven for these.
#[derive(Debug)]
pub(crate) struct Began {
    pub hello: Vec<u8>,
    pub welcome: Vec<u8>,
}

/// Who is at the other end of an accepted connection, and for what.
#[derive(Debug)]
pub(crate) struct Guest {
    pub from: PeerId,
    pub purpose: Purpose,
    pub began: Began,
}

/// Who is at the other end of a dialled connection.
#[derive(Debug)]
pub(crate) struct Host {
    pub from: PeerId,
    pub credit_bytes: u32,
    pub began: Began,
}

/// The acceptor's side. Whoever is refused has not been told yet: [`dismiss`].
pub(crate) async fn accept(shared: &Shared, stream: &mut TcpStream) -> Result<Guest, Failure> {
    let (hello, hello_bytes) = read_hello(stream).await?;
    if let Some(refusal) = objection(shared, &hello) {
        return Err(Failure::Refuse(refusal));
    }
    let welcome = Welcome {
        from: shared.me,
        credit_bytes: shared.credit_bytes,
        nonce: nonce()?,
    };
    let welcome_bytes = welcome.encode();
    stream.write_all(&welcome_bytes).await?;
    let mut shown = [0; PROOF_BYTES];
    stream.read_exact(&mut shown).await?;
    let key = shared.key.as_ref();
    if !holds(key, Role::Dialer, &hello_bytes, &welcome_bytes, shown) {
        return Err(Failure::RefuseProof);
    }
    let mut verdict = vec![READY];
    verdict.extend(proof(key, Role::Acceptor, &hello_bytes, &welcome_bytes));
    stream.write_all(&verdict).await?;
    Ok(Guest {
        from: hello.from,
        purpose: hello.purpose,
        began: Began {
            hello: hello_bytes,
            welcome: welcome_bytes,
        },
    })
}

/// Says the last word. A socket closed with unread bytes resets the connection, which may overtake what was
/// written: what the other side still sends is read for a moment.
pub(crate) async fn dismiss(stream: &mut TcpStream, message: &[u8]) {
    let farewell = async {
        stream.write_all(message).await?;
        stream.shutdown().await?;
        let mut rest = [0; BODY_BYTES_MAX];
        let mut left_bytes = FAREWELL_BYTES_MAX;
        while left_bytes > 0 {
            match stream.read(&mut rest).await? {
                0 => break,
                bytes => left_bytes = left_bytes.saturating_sub(bytes),
            }
        }
        io::Result::Ok(())
    };
    // Whether it arrives is the other side's affair.
    let _ = timeout(Duration::from_millis(FAREWELL_MS), farewell).await;
}

async fn read_hello(stream: &mut TcpStream) -> Result<(Hello, Vec<u8>), Failure> {
    let garbled = |_| Failure::Refuse(Refusal::Garbled);
    let mut prefix_bytes = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix_bytes).await?;
    let prefix = Prefix::decode(&prefix_bytes).map_err(garbled)?;
    if prefix.version != PROTOCOL_VERSION {
        return Err(Failure::Refuse(Refusal::Version));
    }
    let mut body = [0; BODY_BYTES_MAX];
    let body = &mut body[..usize::from(prefix.len_bytes)];
    stream.read_exact(body).await?;
    let hello = Hello::decode(body).map_err(garbled)?;
    Ok((hello, [&prefix_bytes, &*body].concat()))
}

fn objection(shared: &Shared, hello: &Hello) -> Option<Refusal> {
    if hello.group != shared.group {
        return Some(Refusal::Group);
    }
    if hello.has_secret != shared.key.is_some() {
        return Some(Refusal::Secret);
    }
    if hello.to.is_some_and(|to| to != shared.me) || hello.from == shared.me {
        return Some(Refusal::Identity);
    }
    match hello.purpose {
        Purpose::Control => None,
        Purpose::Rdma { .. } if shared.key.is_none() => Some(Refusal::NoSecret),
        Purpose::Rdma { .. } if shared.introductions.get().is_none() => Some(Refusal::NoRdma),
        Purpose::Rdma { to_core, .. } => match shared.seat(to_core) {
            None => Some(Refusal::Core),
            Some(_) => None,
        },
        Purpose::Core { to_core, .. } => match shared.seat(to_core) {
            None => Some(Refusal::Core),
            Some(seat) if !seat.has_room() => Some(Refusal::Busy),
            Some(_) => None,
        },
    }
}

/// The dialler's side.
pub(crate) async fn dial(
    shared: &Shared,
    stream: &mut TcpStream,
    purpose: Purpose,
    to: Option<PeerId>,
) -> Result<Host, Failure> {
    let hello = Hello {
        purpose,
        from: shared.me,
        to,
        has_secret: shared.key.is_some(),
        group: shared.group.clone(),
        nonce: nonce()?,
    };
    let hello_bytes = hello.encode();
    stream.write_all(&hello_bytes).await?;
    let (welcome, welcome_bytes) = read_welcome(stream).await?;
    if to.is_some_and(|to| to != welcome.from) || welcome.from == shared.me {
        return Err(Failure::Refuse(Refusal::Identity));
    }
    let key = shared.key.as_ref();
    let proof = proof(key, Role::Dialer, &hello_bytes, &welcome_bytes);
    stream.write_all(&proof).await?;
    let mut verdict = [0];
    stream.read_exact(&mut verdict).await?;
    Refusal::of_code(verdict[0]).map_err(Failure::Refused)?;
    let mut shown = [0; PROOF_BYTES];
    stream.read_exact(&mut shown).await?;
    if !holds(key, Role::Acceptor, &hello_bytes, &welcome_bytes, shown) {
        return Err(Failure::RefuseProof);
    }
    Ok(Host {
        from: welcome.from,
        credit_bytes: welcome.credit_bytes,
        began: Began {
            hello: hello_bytes,
            welcome: welcome_bytes,
        },
    })
}

async fn read_welcome(stream: &mut TcpStream) -> Result<(Welcome, Vec<u8>), Failure> {
    let garbled = |_| Failure::Refuse(Refusal::Garbled);
    let mut prefix_bytes = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix_bytes).await?;
    let prefix = Prefix::decode(&prefix_bytes).map_err(garbled)?;
    if prefix.version != PROTOCOL_VERSION {
        return Err(Failure::Refuse(Refusal::Version));
    }
    let mut body = [0; BODY_BYTES_MAX];
    let body = &mut body[..usize::from(prefix.len_bytes)];
    stream.read_exact(body).await?;
    let welcome = Welcome::decode(body)
        .map_err(garbled)?
        .map_err(Failure::Refused)?;
    Ok((welcome, [&prefix_bytes, &*body].concat()))
}

fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    let filled = getrandom(&mut nonce, GetRandomFlags::empty())?;
    match filled == NONCE_BYTES {
        true => Ok(nonce),
        false => Err(io::Error::other("the kernel gave too few random bytes")),
    }
}

/// Without a secret the proof is zeros: both ends are on one host.
fn proof(key: Option<&Key>, role: Role, hello: &[u8], welcome: &[u8]) -> [u8; PROOF_BYTES] {
    key.map_or([0; PROOF_BYTES], |key| key.proof(role, hello, welcome))
}

fn holds(
    key: Option<&Key>,
    role: Role,
    hello: &[u8],
    welcome: &[u8],
    shown: [u8; PROOF_BYTES],
) -> bool {
    match key {
        Some(key) => key.holds(role, hello, welcome, shown),
        None => shown == [0; PROOF_BYTES],
    }
}
