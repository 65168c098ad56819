//! The handshake: Hello, Welcome, Refuse, JoinRequest, JoinGrant as tag (u16), length (u32), value.
//!
//! These forms never change, so that any two versions can at least tell each other why they do
//! not work together. An unknown tag is skipped; a missing one has a stated meaning.

use super::WireError;
use super::frame::{Frame, Kind};

/// First frame of an agent on its control stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Oldest and newest minor protocol version that the agent speaks.
    pub minor_oldest: u32,
    pub minor: u32,
    /// Version of the agent, for people.
    pub build: String,
    /// Random text, new at each start of the agent: tells a restart from a clone.
    pub instance: String,
}

/// The coordinator's answer when it goes on with the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    pub minor: u32,
    pub build: String,
    /// The node that the certificate names.
    pub node: String,
    /// Era of the coordinator's store.
    pub era: u32,
    /// How often the agent sends a heartbeat, in milliseconds: where it can ride with a
    /// sample, a quarter of a second sooner or half a second later.
    pub heartbeat_ms: u32,
}

/// The coordinator's answer when it does not; also the answer to a bad join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refuse {
    /// Stable number, see the `REFUSE_*` constants.
    pub code: u32,
    pub text: String,
}

pub const REFUSE_VERSION: u32 = 1;
pub const REFUSE_TOKEN: u32 = 2;
pub const REFUSE_REVOKED: u32 = 3;
pub const REFUSE_CLONE: u32 = 4;
pub const REFUSE_BUSY: u32 = 5;
pub const REFUSE_PROTOCOL: u32 = 6;

/// A new agent asks for a certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinRequest {
    pub token_id: String,
    pub token_secret: Vec<u8>,
    /// PKCS#10 in DER.
    pub csr: Vec<u8>,
    /// Wished name of the node (host name or config).
    pub node_name: String,
    pub build: String,
}

/// The certificate, its issuer, and the node that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinGrant {
    pub node: String,
    pub certificate: Vec<u8>,
    pub ca: Vec<u8>,
}

struct Fields<'a>(Vec<(u16, &'a [u8])>);

impl<'a> Fields<'a> {
    fn parse(mut bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let broken = WireError::Handshake("a field is cut off");
            let (head, rest) = bytes.split_first_chunk::<6>().ok_or(broken.clone())?;
            let [t0, t1, l0, l1, l2, l3] = *head;
            let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
            let (value, rest) = rest.split_at_checked(length).ok_or(broken)?;
            fields.push((u16::from_be_bytes([t0, t1]), value));
            if fields.len() > 64 {
                return Err(WireError::Handshake("more than 64 fields"));
            }
            bytes = rest;
        }
        Ok(Fields(fields))
    }

    fn bytes(&self, tag: u16) -> Result<&'a [u8], WireError> {
        self.0
            .iter()
            .find(|(t, _)| *t == tag)
            .map(|(_, value)| *value)
            .ok_or(WireError::Handshake("a required field is missing"))
    }

    fn text(&self, tag: u16) -> Result<String, WireError> {
        let bytes = self.bytes(tag)?;
        if bytes.len() > 1024 {
            return Err(WireError::Handshake("a text is over 1024 bytes"));
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| WireError::Handshake("a text is not UTF-8"))
    }

    fn number(&self, tag: u16) -> Result<u32, WireError> {
        let bytes = self.bytes(tag)?.try_into();
        bytes
            .map(u32::from_be_bytes)
            .map_err(|_| WireError::Handshake("a number is not four bytes"))
    }
}

fn put(out: &mut Vec<u8>, tag: u16, value: &[u8]) {
    out.extend_from_slice(&tag.to_be_bytes());
    out.extend_from_slice(&(value.len() as u32).to_be_bytes());
    out.extend_from_slice(value);
}

/// A handshake message: its frame kind and its two conversions.
pub trait Handshake: Sized {
    const KIND: Kind;
    fn to_body(&self) -> Vec<u8>;
    fn from_body(bytes: &[u8]) -> Result<Self, WireError>;

    fn to_frame(&self) -> Result<Frame, WireError> {
        Frame::new(Self::KIND, self.to_body())
    }

    /// Decodes `frame`, which must be of this kind.
    fn from_frame(frame: &Frame) -> Result<Self, WireError> {
        if frame.kind != Self::KIND {
            return Err(WireError::Unexpected(frame.kind.name()));
        }
        Self::from_body(&frame.body)
    }
}

impl Handshake for Hello {
    const KIND: Kind = Kind::Hello;

    fn to_body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, 1, &self.minor_oldest.to_be_bytes());
        put(&mut out, 2, &self.minor.to_be_bytes());
        put(&mut out, 3, self.build.as_bytes());
        put(&mut out, 4, self.instance.as_bytes());
        out
    }

    fn from_body(bytes: &[u8]) -> Result<Self, WireError> {
        let fields = Fields::parse(bytes)?;
        Ok(Hello {
            minor_oldest: fields.number(1)?,
            minor: fields.number(2)?,
            build: fields.text(3)?,
            instance: fields.text(4)?,
        })
    }
}

impl Handshake for Welcome {
    const KIND: Kind = Kind::Welcome;

    fn to_body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, 1, &self.minor.to_be_bytes());
        put(&mut out, 2, self.build.as_bytes());
        put(&mut out, 3, self.node.as_bytes());
        put(&mut out, 4, &self.era.to_be_bytes());
        put(&mut out, 5, &self.heartbeat_ms.to_be_bytes());
        out
    }

    fn from_body(bytes: &[u8]) -> Result<Self, WireError> {
        let fields = Fields::parse(bytes)?;
        Ok(Welcome {
            minor: fields.number(1)?,
            build: fields.text(2)?,
            node: fields.text(3)?,
            era: fields.number(4)?,
            heartbeat_ms: fields.number(5)?,
        })
    }
}

impl Handshake for Refuse {
    const KIND: Kind = Kind::Refuse;

    fn to_body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, 1, &self.code.to_be_bytes());
        put(&mut out, 2, self.text.as_bytes());
        out
    }

    fn from_body(bytes: &[u8]) -> Result<Self, WireError> {
        let fields = Fields::parse(bytes)?;
        Ok(Refuse { code: fields.number(1)?, text: fields.text(2)? })
    }
}

impl Handshake for JoinRequest {
    const KIND: Kind = Kind::JoinRequest;

    fn to_body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, 1, self.token_id.as_bytes());
        put(&mut out, 2, &self.token_secret);
        put(&mut out, 3, &self.csr);
        put(&mut out, 4, self.node_name.as_bytes());
        put(&mut out, 5, self.build.as_bytes());
        out
    }

    fn from_body(bytes: &[u8]) -> Result<Self, WireError> {
        let fields = Fields::parse(bytes)?;
        Ok(JoinRequest {
            token_id: fields.text(1)?,
            token_secret: fields.bytes(2)?.to_vec(),
            csr: fields.bytes(3)?.to_vec(),
            node_name: fields.text(4)?,
            build: fields.text(5)?,
        })
    }
}

impl std::fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JoinRequest({} from {}, secret hidden)", self.token_id, self.node_name)
    }
}

impl Handshake for JoinGrant {
    const KIND: Kind = Kind::JoinGrant;

    fn to_body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, 1, self.node.as_bytes());
        put(&mut out, 2, &self.certificate);
        put(&mut out, 3, &self.ca);
        out
    }

    fn from_body(bytes: &[u8]) -> Result<Self, WireError> {
        let fields = Fields::parse(bytes)?;
        Ok(JoinGrant {
            node: fields.text(1)?,
            certificate: fields.bytes(2)?.to_vec(),
            ca: fields.bytes(3)?.to_vec(),
        })
    }
}
