//! How a connection begins.
//!
//! | from | message |
//! |---|---|
//! | dialer | [`Hello`]: who, for what, to whom, of which group, a nonce |
//! | acceptor | [`Welcome`]: who, a nonce, how much may be under way; or a [`Refusal`] |
//! | dialer | the dialer's proof, [`PROOF_BYTES`] |
//! | acceptor | one byte: [`READY`], then the acceptor's proof; or a refusal |
//!
//! A proof is a keyed BLAKE3 over the role and both messages, so it holds for this connection alone. The dialer proves
//! first: a stranger who connects gets nothing by which a weak secret could be guessed at leisure. Hello and
//! welcome begin with [`PREFIX_BYTES`] that stay the same in every version of the protocol.

use super::bytes::{Put, Reader};
use super::{PROTOCOL_VERSION, WireError};
use crate::limits::{CORES_MAX, GROUP_BYTES_MAX, PEER_CREDIT_BYTES_MIN};
use crate::ports::PeerId;

/// Bytes before a hello's or welcome's own: magic 8, version 2, length of the rest 2.
pub const PREFIX_BYTES: usize = 12;
/// The longest rest of a hello or welcome.
pub const BODY_BYTES_MAX: usize = 512;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// The acceptor's byte before its proof, when it takes the connection.
pub const READY: u8 = 0;

const MAGIC: [u8; 8] = *b"FBpeer\r\n";

const _: () = assert!(64 + GROUP_BYTES_MAX + NONCE_BYTES + PROOF_BYTES <= BODY_BYTES_MAX);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// One core asks another.
    Core {
        /// The dialer's core.
        from_core: u16,
        /// The acceptor's core.
        to_core: u16,
    },
    /// Views and statistics.
    Control,
    /// One core wants to ask another over RDMA: the acceptor says how they find each other.
    Rdma {
        /// The dialer's core.
        from_core: u16,
        /// The acceptor's core.
        to_core: u16,
    },
}

/// The dialer's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What for.
    pub purpose: Purpose,
    /// Who dials.
    pub from: PeerId,
    /// Whom it takes the other side for; none when it knows only an address.
    pub to: Option<PeerId>,
    /// Whether it has a secret.
    pub has_secret: bool,
    /// The group's name, at most `GROUP_BYTES_MAX`.
    pub group: String,
    /// Random.
    pub nonce: [u8; NONCE_BYTES],
}

/// The acceptor's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Who accepts.
    pub from: PeerId,
    /// Bytes of answers that may be under way on this connection: at least `PEER_CREDIT_BYTES_MIN`.
    pub credit_bytes: u32,
    /// Random.
    pub nonce: [u8; NONCE_BYTES],
}

/// Why a connection is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// Other versions of the protocol.
    #[error(
        "another version of the protocol: use the same Forebay release on every node of a group"
    )]
    Version,
    /// Another group.
    #[error("another cache group: compare --cache-group on both nodes")]
    Group,
    /// The proof does not hold, or one side has no secret.
    #[error("another group secret: give both nodes the same --group-secret-file")]
    Secret,
    /// It is not who it was taken for.
    #[error("another node has that address now")]
    Identity,
    /// It has no such core.
    #[error("it has no such core: the views differ, which ends by itself")]
    Core,
    /// Neither side has a secret, and they are not on one host.
    #[error(
        "no group secret: off the loopback interface every node needs --group-secret-file (or FOREBAY_GROUP_SECRET)"
    )]
    NoSecret,
    /// Too many connections.
    #[error("it has too many connections")]
    Busy,
    /// What came is no such handshake.
    #[error("not understood")]
    Garbled,
    /// It is asked for RDMA, and has none.
    #[error("it has no RDMA: see `rdma` in its `forebay status`")]
    NoRdma,
}

const REFUSALS: [(u8, Refusal); 9] = [
    (1, Refusal::Version),
    (2, Refusal::Group),
    (3, Refusal::Secret),
    (4, Refusal::Identity),
    (5, Refusal::Core),
    (6, Refusal::NoSecret),
    (7, Refusal::Busy),
    (8, Refusal::Garbled),
    (9, Refusal::NoRdma),
];

impl Refusal {
    /// The refusal as one byte.
    pub fn code(self) -> u8 {
        let found = REFUSALS.iter().find(|(_, refusal)| *refusal == self);
        found.map_or(u8::MAX, |(code, _)| *code)
    }

    /// The acceptor's byte after the dialer's proof.
    ///
    /// # Errors
    /// The refusal, if it is one.
    pub fn of_code(code: u8) -> Result<(), Refusal> {
        if code == READY {
            return Ok(());
        }
        let found = REFUSALS.iter().find(|(known, _)| *known == code);
        Err(found.map_or(Refusal::Garbled, |(_, refusal)| *refusal))
    }
}

/// What the first bytes of a hello or welcome say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Version of the protocol: what follows is understood only if it is ours.
    pub version: u16,
    /// Bytes that follow: at most [`BODY_BYTES_MAX`].
    pub len_bytes: u16,
}

impl Prefix {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8; PREFIX_BYTES]) -> Result<Prefix, WireError> {
        let mut reader = Reader::new(bytes);
        if reader.array("magic")? != MAGIC {
            return Err(WireError::Magic);
        }
        let prefix = Prefix {
            version: reader.u16("version")?,
            len_bytes: reader.u16("length")?,
        };
        match usize::from(prefix.len_bytes) <= BODY_BYTES_MAX {
            true => Ok(prefix),
            false => Err(WireError::Limit("length")),
        }
    }
}

fn with_prefix(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_BYTES + body.len());
    out.bytes(&MAGIC);
    out.u16(PROTOCOL_VERSION);
    out.u16(body.len() as u16);
    out.bytes(body);
    out
}

impl Hello {
    /// The whole message. A group's name that is too long is cut, and matches none.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let (kind, from_core, to_core) = match self.purpose {
            Purpose::Core { from_core, to_core } => (1, from_core, to_core),
            Purpose::Control => (2, 0, 0),
            Purpose::Rdma { from_core, to_core } => (3, from_core, to_core),
        };
        body.u8(kind);
        body.u8(u8::from(self.has_secret));
        body.u16(from_core);
        body.u16(to_core);
        body.u64(self.from.0);
        body.u8(u8::from(self.to.is_some()));
        body.u64(self.to.map_or(0, |to| to.0));
        body.bytes(&self.nonce);
        body.text(&self.group[..self.group.floor_char_boundary(GROUP_BYTES_MAX)]);
        with_prefix(&body)
    }

    /// Reads what follows the prefix of our version.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(body: &[u8]) -> Result<Hello, WireError> {
        let mut reader = Reader::new(body);
        let kind = reader.u8("purpose")?;
        let has_secret = reader.flag("secret")?;
        let (from_core, to_core) = (reader.u16("core")?, reader.u16("core")?);
        let are_cores = usize::from(from_core) < CORES_MAX && usize::from(to_core) < CORES_MAX;
        let purpose = match (kind, from_core, to_core) {
            (1, from_core, to_core) if are_cores => Purpose::Core { from_core, to_core },
            (2, 0, 0) => Purpose::Control,
            (3, from_core, to_core) if are_cores => Purpose::Rdma { from_core, to_core },
            _ => return Err(WireError::Unknown("purpose")),
        };
        let from = PeerId(reader.u64("id")?);
        let to = match (reader.flag("id")?, reader.u64("id")?) {
            (true, id) => Some(PeerId(id)),
            (false, 0) => None,
            _ => return Err(WireError::Unknown("id")),
        };
        let nonce = reader.array("nonce")?;
        let group = reader.text(GROUP_BYTES_MAX, "group")?.into();
        reader.finish()?;
        Ok(Hello {
            purpose,
            from,
            to,
            has_secret,
            group,
            nonce,
        })
    }
}

impl Welcome {
    /// The whole message.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = vec![READY, 0, 0, 0];
        body.u32(self.credit_bytes);
        body.u64(self.from.0);
        body.bytes(&self.nonce);
        with_prefix(&body)
    }

    /// The whole message of who refuses.
    pub fn refuse(refusal: Refusal) -> Vec<u8> {
        with_prefix(&[refusal.code()])
    }

    /// Reads what follows the prefix: a welcome, or a refusal (of any version of the protocol).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(body: &[u8]) -> Result<Result<Welcome, Refusal>, WireError> {
        let mut reader = Reader::new(body);
        let verdict = reader.u8("verdict")?;
        if let Err(refusal) = Refusal::of_code(verdict) {
            reader.finish()?;
            return Ok(Err(refusal));
        }
        reader.zeros::<3>("verdict")?;
        let credit_bytes = reader.u32("credit")?;
        if (credit_bytes as usize) < PEER_CREDIT_BYTES_MIN {
            return Err(WireError::Limit("credit"));
        }
        let welcome = Welcome {
            credit_bytes,
            from: PeerId(reader.u64("id")?),
            nonce: reader.array("nonce")?,
        };
        reader.finish()?;
        Ok(Ok(welcome))
    }
}

/// Whose proof it is: neither side can send back the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Who connected.
    Dialer,
    /// Who listened.
    Acceptor,
}

/// The group's secret as a key. Printed, it shows nothing.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// The key of a secret.
    pub fn new(secret: &[u8]) -> Self {
        Self(blake3::derive_key("forebay group secret v1", secret))
    }

    /// The proof for a connection that began with these two whole messages.
    pub fn proof(&self, role: Role, hello: &[u8], welcome: &[u8]) -> [u8; PROOF_BYTES] {
        *self.hash(role, hello, welcome).as_bytes()
    }

    /// Whether a proof holds; takes the same time whatever it is.
    pub fn holds(
        &self,
        role: Role,
        hello: &[u8],
        welcome: &[u8],
        proof: [u8; PROOF_BYTES],
    ) -> bool {
        self.hash(role, hello, welcome) == blake3::Hash::from_bytes(proof)
    }

    fn hash(&self, role: Role, hello: &[u8], welcome: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(match role {
            Role::Dialer => b"forebay dialer  ",
            Role::Acceptor => b"forebay acceptor",
        });
        for message in [hello, welcome] {
            hasher.update(&(message.len() as u64).to_le_bytes());
            hasher.update(message);
        }
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(purpose: Purpose, to: Option<PeerId>) -> Hello {
        Hello {
            purpose,
            from: PeerId(1),
            to,
            has_secret: true,
            group: "training".into(),
            nonce: [7; NONCE_BYTES],
        }
    }

    fn welcome() -> Welcome {
        Welcome {
            from: PeerId(2),
            credit_bytes: 8 << 20,
            nonce: [9; NONCE_BYTES],
        }
    }

    fn body(message: &[u8]) -> &[u8] {
        let (prefix, body) = message.split_first_chunk().unwrap();
        let prefix = Prefix::decode(prefix).unwrap();
        assert_eq!(
            (prefix.version, usize::from(prefix.len_bytes)),
            (PROTOCOL_VERSION, body.len())
        );
        body
    }

    fn hellos() -> [Hello; 4] {
        let (from_core, to_core) = (3, 255);
        [
            hello(Purpose::Core { from_core, to_core }, Some(PeerId(2))),
            hello(Purpose::Control, None),
            hello(Purpose::Control, Some(PeerId(0))),
            hello(Purpose::Rdma { from_core, to_core }, Some(PeerId(2))),
        ]
    }

    #[test]
    fn messages_arrive_as_they_were_and_have_one_form() {
        for hello in hellos() {
            let bytes = hello.encode();
            assert_eq!(Hello::decode(body(&bytes)), Ok(hello));
            for bit in PREFIX_BYTES * 8..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                if let Ok(other) = Hello::decode(&flipped[PREFIX_BYTES..]) {
                    assert_eq!(other.encode(), flipped);
                }
            }
            for len in PREFIX_BYTES..bytes.len() {
                assert!(Hello::decode(&bytes[PREFIX_BYTES..len]).is_err());
            }
        }
        assert_eq!(
            Welcome::decode(body(&welcome().encode())),
            Ok(Ok(welcome()))
        );
        for (_, refusal) in REFUSALS {
            assert_eq!(
                Welcome::decode(body(&Welcome::refuse(refusal))),
                Ok(Err(refusal))
            );
            assert_eq!(Refusal::of_code(refusal.code()), Err(refusal));
        }
        assert_eq!(Refusal::of_code(READY), Ok(()));
    }

    #[test]
    fn strangers_are_known_by_their_first_bytes() {
        let mut message = welcome().encode();
        let prefix: [u8; PREFIX_BYTES] = *message.first_chunk().unwrap();
        message[0] = b'G';
        assert_eq!(
            Prefix::decode(message.first_chunk().unwrap()),
            Err(WireError::Magic)
        );
        let mut long = prefix;
        long[10..].copy_from_slice(&513u16.to_le_bytes());
        assert_eq!(Prefix::decode(&long), Err(WireError::Limit("length")));
        let little = Welcome {
            credit_bytes: PEER_CREDIT_BYTES_MIN as u32 - 1,
            ..welcome()
        };
        assert_eq!(
            Welcome::decode(body(&little.encode())),
            Err(WireError::Limit("credit"))
        );
    }

    #[test]
    fn a_proof_holds_for_its_secret_role_and_connection_alone() {
        let [hello, other, ..] = hellos().map(|hello| hello.encode());
        let welcome = welcome().encode();
        let key = Key::new(b"secret");
        let proof = key.proof(Role::Dialer, &hello, &welcome);
        assert!(key.holds(Role::Dialer, &hello, &welcome, proof));
        assert!(!key.holds(Role::Acceptor, &hello, &welcome, proof));
        assert!(!key.holds(Role::Dialer, &other, &welcome, proof));
        assert!(!key.holds(Role::Dialer, &hello, &other, proof));
        assert!(!Key::new(b"secreu").holds(Role::Dialer, &hello, &welcome, proof));
        assert_eq!(format!("{key:?}"), "Key");
    }
}
