//! TLS of the link: keys, identity in certificates, and the two rustls configurations.
//!
//! TLS 1.3 only, ring only, no early data. The coordinator's CA is the only root: an agent first
//! finds it by the key pin of its join token and afterwards knows it by its certificate.

use std::sync::Arc;

use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

use crate::ids::NodeId;
use crate::join_token::KeyPin;

/// Server name of every coordinator: identity is the CA's key, not a host name.
pub const SERVER_NAME: &str = "coordinator.gangline";
/// Prefix of the URI in an agent's certificate; the node id follows.
pub const AGENT_URI_PREFIX: &str = "agent:";

/// What a handshake fails with when the coordinator is not the one of the join token.
pub const WRONG_PIN: &str = "the coordinator's key is not the one pinned in the join token";

/// A key or certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("TLS configuration: {0}")]
    Rustls(#[from] rustls::Error),
    #[error("certificate verifier: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("certificate: {0}")]
    Certificate(String),
    #[error("key: {0}")]
    Key(#[from] rcgen::Error),
}

/// A certificate chain (leaf first) and its private key, as DER.
#[derive(Clone)]
pub struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key_pkcs8: Vec<u8>,
}

impl Identity {
    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key_pkcs8.clone().into())
    }
}

/// SHA-256 of a certificate's DER: the name of a certificate in deny lists.
pub type Fingerprint = [u8; 32];

pub fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    sha256(certificate.as_ref())
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

/// SHA-256 of a certificate's SubjectPublicKeyInfo.
pub fn key_pin(certificate: &CertificateDer<'_>) -> Result<KeyPin, TlsError> {
    let parsed = parse(certificate)?;
    Ok(sha256(parsed.tbs_certificate.subject_pki.raw))
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, TlsError> {
    X509Certificate::from_der(certificate.as_ref())
        .map(|(_, parsed)| parsed)
        .map_err(|e| TlsError::Certificate(e.to_string()))
}

/// When a certificate begins and ends to be valid, in seconds since 1970.
pub fn validity(certificate: &CertificateDer<'_>) -> Result<(i64, i64), TlsError> {
    let parsed = parse(certificate)?;
    let validity = parsed.validity();
    Ok((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// What an agent's certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentCertificate {
    pub node: NodeId,
    pub fingerprint: Fingerprint,
    /// Validity, in seconds since 1970.
    pub not_before: i64,
    pub not_after: i64,
}

/// Reads the node id out of a certificate that the handshake has already verified.
pub fn agent_certificate(certificate: &CertificateDer<'_>) -> Result<AgentCertificate, TlsError> {
    let parsed = parse(certificate)?;
    let wrong = |text: &str| TlsError::Certificate(text.to_owned());
    if parsed.is_ca() {
        return Err(wrong("a CA certificate is not an agent's"));
    }
    let mut nodes = Vec::new();
    for extension in parsed.extensions() {
        let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
            continue;
        };
        for name in &names.general_names {
            if let GeneralName::URI(uri) = name
                && let Some(node) = uri.strip_prefix(AGENT_URI_PREFIX)
            {
                nodes.push(NodeId::new(node).map_err(|e| TlsError::Certificate(e.to_string()))?);
            }
        }
    }
    let [node] =
        <[NodeId; 1]>::try_from(nodes).map_err(|_| wrong("it does not name exactly one agent"))?;
    Ok(AgentCertificate {
        node,
        fingerprint: fingerprint(certificate),
        not_before: parsed.validity().not_before.timestamp(),
        not_after: parsed.validity().not_after.timestamp(),
    })
}

/// Makes a key and a signing request for it. Returns (key in PKCS#8, request in DER).
pub fn key_and_request() -> Result<(Vec<u8>, Vec<u8>), TlsError> {
    let key = rcgen::KeyPair::generate()?;
    let request = rcgen::CertificateParams::default().serialize_request(&key)?;
    Ok((key.serialize_der(), request.der().to_vec()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn roots(ca: &CertificateDer<'static>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone())?;
    Ok(roots)
}

/// The coordinator's side. A client certificate is verified when there is one; a connection
/// without one may only join.
pub fn server_config(
    identity: &Identity,
    ca: &CertificateDer<'static>,
) -> Result<rustls::ServerConfig, TlsError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider())
        .allow_unauthenticated()
        .build()?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain.clone(), identity.key())?;
    config.alpn_protocols = vec![crate::wire::ALPN.to_vec()];
    config.max_early_data_size = 0;
    // A resumed session would carry the old certificate along unchecked.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(config)
}

/// An agent that has joined: knows the CA, shows its certificate.
pub fn agent_config(
    identity: &Identity,
    ca: &CertificateDer<'static>,
) -> Result<rustls::ClientConfig, TlsError> {
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots(ca)?)
        .with_client_auth_cert(identity.chain.clone(), identity.key())?;
    config.alpn_protocols = vec![crate::wire::ALPN.to_vec()];
    config.enable_early_data = false;
    Ok(config)
}

/// An agent that wants to join: knows only the pin of the CA's key, shows nothing.
pub fn join_config(pin: KeyPin) -> Result<rustls::ClientConfig, TlsError> {
    let verifier = PinnedCaVerifier { pin, provider: provider() };
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![crate::wire::ALPN.to_vec()];
    config.enable_early_data = false;
    Ok(config)
}

/// Accepts a server whose chain holds a certificate with the pinned key and leads to it.
#[derive(Debug)]
struct PinnedCaVerifier {
    pin: KeyPin,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCaVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let pinned = intermediates
            .iter()
            .find(|ca| key_pin(ca).is_ok_and(|pin| pin == self.pin))
            .ok_or_else(|| rustls::Error::General(WRONG_PIN.to_owned()))?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &roots,
            &[],
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
