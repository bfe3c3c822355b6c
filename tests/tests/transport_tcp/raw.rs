//! The other side by hand: a peer that speaks the handshake and then whatever a test wants.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use forebay_engine::ports::PeerId;
use forebay_engine::wire::hello::{
    Hello, Key, NONCE_BYTES, PREFIX_BYTES, PROOF_BYTES, Prefix, Purpose, READY, Refusal, Role,
    Welcome,
};

use crate::node::GROUP;

pub fn core() -> Purpose {
    Purpose::Core {
        from_core: 0,
        to_core: 0,
    }
}

pub fn hello(from: u64, to: u64, has_secret: bool) -> Hello {
    Hello {
        purpose: core(),
        from: PeerId(from),
        to: Some(PeerId(to)),
        has_secret,
        group: GROUP.into(),
        nonce: [3; NONCE_BYTES],
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

/// A hello or welcome, whole.
fn message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; PREFIX_BYTES];
    stream.read_exact(&mut message)?;
    let prefix = Prefix::decode(message.first_chunk().unwrap()).unwrap();
    message.resize(PREFIX_BYTES + usize::from(prefix.len_bytes), 0);
    stream.read_exact(&mut message[PREFIX_BYTES..])?;
    Ok(message)
}

/// Dials as a peer does, and shows `proof`'s secret.
pub fn dial(
    stream: &mut TcpStream,
    hello: &Hello,
    secret: Option<&[u8]>,
) -> Result<Welcome, Refusal> {
    let hello = hello.encode();
    stream.write_all(&hello).unwrap();
    let message = message(stream).unwrap();
    let welcome = Welcome::decode(&message[PREFIX_BYTES..]).unwrap()?;
    let proof = secret.map_or([0; PROOF_BYTES], |secret| {
        Key::new(secret).proof(Role::Dialer, &hello, &message)
    });
    stream.write_all(&proof).unwrap();
    let mut verdict = [0];
    stream.read_exact(&mut verdict).unwrap();
    Refusal::of_code(verdict[0])?;
    let mut shown = [0; PROOF_BYTES];
    stream.read_exact(&mut shown).unwrap();
    if let Some(secret) = secret {
        assert!(Key::new(secret).holds(Role::Acceptor, &hello, &message, shown));
    }
    Ok(welcome)
}

/// Accepts as a peer without secret does.
pub fn accept(listener: &TcpListener, me: u64, credit_bytes: u32) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    message(&mut stream).unwrap();
    let welcome = Welcome {
        from: PeerId(me),
        credit_bytes,
        nonce: [4; NONCE_BYTES],
    };
    stream.write_all(&welcome.encode()).unwrap();
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).unwrap();
    stream.write_all(&[READY]).unwrap();
    stream.write_all(&[0; PROOF_BYTES]).unwrap();
    stream
}

/// Reads until the other side has closed the connection.
pub fn is_closed(stream: &mut TcpStream) -> bool {
    let mut sink = [0; 4096];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}
