//! Joining: a one-time token becomes an identity, which is stored and later renewed.
//!
//! The key is made here and never leaves the node. Key, certificate and CA live in one file, so
//! that no crash can pair a key with another key's certificate.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use data_encoding::BASE64;
use gangline_common::backoff::Backoff;
use gangline_common::ids::NodeId;
use gangline_common::join_token::JoinToken;
use gangline_common::tls::{self, Identity, TlsError};
use gangline_common::transport::{Endpoint, StreamKind, TransportError, close};
use gangline_common::wire::frame::Kind;
use gangline_common::wire::tlv::{Handshake, JoinGrant, JoinRequest, REFUSE_BUSY, Refuse};
use gangline_common::wire::v1::Renewed;
use gangline_common::{random, time};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use crate::config::CoordinatorAddress;
use crate::durable::{private_directory, replace_file};

/// The coordinator answers a join within this.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Waits between two tries to reach a coordinator.
pub const RETRY_FLOOR: Duration = Duration::from_millis(200);
pub const RETRY_CEILING: Duration = Duration::from_secs(5);
/// Form of the identity file.
const VERSION: u32 = 1;

/// The stored identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the identity {} is damaged ({reason}): restore it, or move it away and join with a new \
         token",
        path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    #[error("certificate of the coordinator: {0}")]
    Certificate(#[from] TlsError),
    #[error("the coordinator sent {0}")]
    Wrong(&'static str),
}

/// Joining failed for good.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nothing was sent: this is not the coordinator that the token was made by.
    #[error(
        "{coordinator} has not the key that is pinned in the join token, so nothing was sent to \
         it. Check the address; if the coordinator's CA was made anew, make a new token"
    )]
    WrongPin { coordinator: String },
    #[error("the coordinator refused this join: {0}")]
    Refused(String),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Who this agent is, and to whom.
#[derive(Clone)]
pub struct StoredIdentity {
    pub node: NodeId,
    pub coordinator: CoordinatorAddress,
    /// When the certificate was stored, by the wall clock. Its own `not_before` is backdated.
    pub issued_wall_ms: u64,
    /// End of its validity, by the wall clock.
    pub expires_wall_ms: u64,
    pub identity: Identity,
    pub ca: CertificateDer<'static>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityFile {
    version: u32,
    node: NodeId,
    coordinator: String,
    issued_wall_ms: u64,
    /// Base64 of DER, as the next two.
    certificate: String,
    ca: String,
    key_pkcs8: String,
}

impl StoredIdentity {
    /// Puts an identity together and checks it: the certificate names `node`, ends at some time,
    /// and belongs to the key.
    fn new(
        node: NodeId,
        coordinator: CoordinatorAddress,
        issued_wall_ms: u64,
        key_pkcs8: Vec<u8>,
        certificate: Vec<u8>,
        ca: Vec<u8>,
    ) -> Result<Self, IdentityError> {
        let certificate = CertificateDer::from(certificate);
        let ca = CertificateDer::from(ca);
        let parsed = tls::agent_certificate(&certificate)?;
        if parsed.node != node {
            return Err(IdentityError::Wrong("a certificate for another node"));
        }
        let expires_wall_ms = u64::try_from(parsed.not_after).unwrap_or(0).saturating_mul(1000);
        let identity = Identity { chain: vec![certificate], key_pkcs8 };
        // Fails when key and certificate do not belong together.
        tls::agent_config(&identity, &ca)?;
        Ok(StoredIdentity { node, coordinator, issued_wall_ms, expires_wall_ms, identity, ca })
    }

    fn path(state_dir: &Path) -> PathBuf {
        state_dir.join("identity").join("identity.json")
    }

    /// Reads the identity below `state_dir`; `None` before the first join.
    pub fn load(state_dir: &Path) -> Result<Option<Self>, IdentityError> {
        let path = Self::path(state_dir);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(IdentityError::Io { what: "read", path, source }),
        };
        Self::parse(&text).map(Some).map_err(|reason| IdentityError::Damaged { path, reason })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: IdentityFile = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if file.version != VERSION {
            return Err(format!("its version {} is not {VERSION}", file.version));
        }
        let bytes = |text: &str| BASE64.decode(text.as_bytes()).map_err(|e| e.to_string());
        let coordinator = CoordinatorAddress::parse(&file.coordinator)
            .ok_or_else(|| "its coordinator is not an address".to_owned())?;
        Self::new(
            file.node,
            coordinator,
            file.issued_wall_ms,
            bytes(&file.key_pkcs8)?,
            bytes(&file.certificate)?,
            bytes(&file.ca)?,
        )
        .map_err(|e| e.to_string())
    }

    /// Makes the identity durable, in place of the one before. Blocks for the disk.
    pub fn store(&self, state_dir: &Path) -> Result<(), IdentityError> {
        let path = Self::path(state_dir);
        let io = |what| {
            let path = path.clone();
            move |source| IdentityError::Io { what, path, source }
        };
        let certificate = self.identity.chain.first().map(|c| BASE64.encode(c.as_ref()));
        let file = IdentityFile {
            version: VERSION,
            node: self.node.clone(),
            coordinator: self.coordinator.to_string(),
            issued_wall_ms: self.issued_wall_ms,
            certificate: certificate.unwrap_or_default(),
            ca: BASE64.encode(self.ca.as_ref()),
            key_pkcs8: BASE64.encode(&self.identity.key_pkcs8),
        };
        let text =
            serde_json::to_vec_pretty(&file).map_err(|e| io("encode")(io::Error::other(e)))?;
        private_directory(&state_dir.join("identity")).map_err(io("create the directory of"))?;
        replace_file(&path, &[&text]).map_err(io("write"))
    }

    /// When a new certificate is due: two thirds of the life after it was stored.
    pub fn renew_wall_ms(&self) -> u64 {
        let life = self.expires_wall_ms.saturating_sub(self.issued_wall_ms);
        self.issued_wall_ms.saturating_add(life / 3 * 2)
    }

    /// The same identity with a new key and certificate.
    pub fn renewed(
        &self,
        renewed: Renewed,
        key_pkcs8: Vec<u8>,
        now_wall_ms: u64,
    ) -> Result<Self, IdentityError> {
        Self::new(
            self.node.clone(),
            self.coordinator.clone(),
            now_wall_ms,
            key_pkcs8,
            renewed.certificate,
            renewed.ca,
        )
    }
}

/// Dials every address of the coordinator in turn; the error is that of the last one.
pub async fn dial(
    coordinator: &CoordinatorAddress,
    tls: rustls::ClientConfig,
) -> Result<(Endpoint, gangline_common::transport::Connection), TransportError> {
    let unresolved = |e: &dyn std::fmt::Display| {
        TransportError::Closed(format!("cannot resolve {}: {e}", coordinator.host))
    };
    let addresses = tokio::net::lookup_host((coordinator.host.as_str(), coordinator.port))
        .await
        .map_err(|e| unresolved(&e))?;
    let mut last = unresolved(&"no address");
    for address in addresses {
        let bind: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let endpoint = Endpoint::client(bind, tls.clone())?;
        match endpoint.dial(address).await {
            Ok(connection) => return Ok((endpoint, connection)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Joins with `token` and stores the identity. Waits for a coordinator that is not there yet, or
/// is busy, for as long as it takes; everything else is final.
pub async fn join(
    coordinator: &CoordinatorAddress,
    token: &JoinToken,
    node_name: &str,
    state_dir: &Path,
) -> Result<StoredIdentity, JoinError> {
    // One key for all tries, so that an answer that was lost on the way costs nothing but a try.
    let (key_pkcs8, csr) = tls::key_and_request().map_err(IdentityError::from)?;
    let request = JoinRequest {
        token_id: token.id.clone(),
        token_secret: token.secret.to_vec(),
        csr,
        node_name: node_name.to_owned(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut backoff = Backoff::new(RETRY_FLOOR, RETRY_CEILING);
    let grant = loop {
        let why = match ask(coordinator, token, &request).await {
            Ok(Answer::Granted(grant)) => break grant,
            Ok(Answer::Refused(refuse)) if refuse.code == REFUSE_BUSY => refuse.text,
            Ok(Answer::Refused(refuse)) => return Err(JoinError::Refused(refuse.text)),
            Err(error) if error.to_string().contains(tls::WRONG_PIN) => {
                return Err(JoinError::WrongPin { coordinator: coordinator.to_string() });
            }
            Err(error) => error.to_string(),
        };
        let wait = backoff.next_wait(jitter());
        tracing::warn!(%coordinator, why, retry_in = ?wait, "cannot join yet");
        tokio::time::sleep(wait).await;
    };
    let node = NodeId::new(grant.node)
        .map_err(|_| IdentityError::Wrong("a node id of an unexpected form"))?;
    let now = time::Timestamp::now().wall_ms;
    let coordinator = coordinator.clone();
    let identity =
        StoredIdentity::new(node, coordinator, now, key_pkcs8, grant.certificate, grant.ca)?;
    if tls::key_pin(&identity.ca).map_err(IdentityError::from)? != token.pin {
        return Err(IdentityError::Wrong("a CA that is not the pinned one").into());
    }
    identity.store(state_dir)?;
    Ok(identity)
}

enum Answer {
    Granted(JoinGrant),
    Refused(Refuse),
}

async fn ask(
    coordinator: &CoordinatorAddress,
    token: &JoinToken,
    request: &JoinRequest,
) -> Result<Answer, TransportError> {
    let tls = tls::join_config(token.pin).map_err(|e| TransportError::Tls(e.to_string()))?;
    // The handshake checks the pin, so a wrong coordinator never sees the request.
    let (endpoint, connection) = dial(coordinator, tls).await?;
    let (mut sender, mut receiver) = connection.open_bi(StreamKind::Join).await?;
    sender.send(&request.to_frame()?).await?;
    let frame = tokio::time::timeout(ANSWER_TIMEOUT, receiver.receive())
        .await
        .map_err(|_| TransportError::Deadline)??
        .ok_or_else(|| TransportError::Closed("no answer to the join".to_owned()))?;
    let answer = match frame.kind {
        Kind::Refuse => Answer::Refused(Refuse::from_frame(&frame)?),
        _ => Answer::Granted(JoinGrant::from_frame(&frame)?),
    };
    endpoint.close(close::DONE, "joined").await;
    Ok(answer)
}

/// Random bits for a wait. Without any, the wait is the shortest one: that is no security matter.
pub fn jitter() -> u64 {
    random::number().unwrap_or(0)
}
