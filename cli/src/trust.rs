//! Finding out which CA a coordinator shows, before it is trusted. Nothing is sent to it.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use data_encoding::{BASE64, HEXLOWER_PERMISSIVE, HEXUPPER};
use reqwest::Url;
use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

use crate::errors::{CliError, code, exit};

/// Limit of connecting, and of every read and write of the handshake.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Characters in a line of a PEM file.
const PEM_LINE: usize = 64;

/// The fingerprint of a CA that somebody trusts.
pub type Pin = [u8; 32];

/// Read a pin: SHA-256 in hexadecimal, with or without colons.
///
/// # Errors
/// It has another form.
pub fn parse_pin(text: &str) -> Result<Pin, String> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    let bytes = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok();
    bytes.and_then(|bytes| Pin::try_from(bytes).ok()).ok_or_else(|| {
        format!("a fingerprint has 64 hexadecimal digits, this has {} characters", digits.len())
    })
}

/// The certificate of a CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    der: Vec<u8>,
}

impl Authority {
    /// SHA-256 of the certificate, as `openssl x509 -fingerprint -sha256` writes it.
    pub fn fingerprint(&self) -> String {
        let hash = digest(&SHA256, &self.der);
        let pairs: Vec<String> =
            hash.as_ref().iter().map(|byte| HEXUPPER.encode(&[*byte])).collect();
        pairs.join(":")
    }

    /// Whether `pin` is the fingerprint.
    pub fn is(&self, pin: &Pin) -> bool {
        pin == digest(&SHA256, &self.der).as_ref()
    }

    pub fn to_pem(&self) -> String {
        let text = BASE64.encode(&self.der);
        let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (line, tail) = rest.split_at_checked(PEM_LINE).unwrap_or((rest, ""));
            pem.push_str(line);
            pem.push('\n');
            rest = tail;
        }
        pem + "-----END CERTIFICATE-----\n"
    }
}

/// The last certificate of the chain that the server at `address` shows: its CA. Blocks.
pub fn shown_by(address: &Url) -> Result<Authority, CliError> {
    let failed = |why: String| {
        let what = format!("no certificate from {}", address.as_str().trim_end_matches('/'));
        CliError::new(exit::UNREACHABLE, code::UNREACHABLE, what)
            .why(why)
            .hint("is the address right, and does the coordinator serve https there?")
    };
    let host = address.host_str().unwrap_or_default();
    let port = address.port_or_known_default().unwrap_or(443);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let stream = connect(bare, port).map_err(|error| failed(error.to_string()))?;
    let name = ServerName::try_from(bare.to_owned()).map_err(|error| failed(error.to_string()))?;
    let chain = handshake(stream, name).map_err(|error| failed(error.to_string()))?;
    let last = chain.last().ok_or_else(|| failed("it shows none".to_owned()))?;
    Ok(Authority { der: last.to_vec() })
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn handshake(
    mut stream: TcpStream,
    name: ServerName<'static>,
) -> io::Result<Vec<CertificateDer<'static>>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let listener = Arc::new(Listener { provider: provider.clone(), seen: Mutex::default() });
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(listener.clone())
        .with_no_client_auth();
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    let mut seen = listener.seen.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut *seen))
}

/// Takes down the chain and trusts nobody: the connection is not used for anything.
#[derive(Debug)]
struct Listener {
    provider: Arc<CryptoProvider>,
    seen: Mutex<Vec<CertificateDer<'static>>>,
}

impl ServerCertVerifier for Listener {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let chain = std::iter::once(end_entity).chain(intermediates);
        let chain = chain.map(|certificate| certificate.clone().into_owned()).collect();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = chain;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_the_fingerprint_in_any_spelling() {
        let authority = Authority { der: b"certificate".to_vec() };
        let fingerprint = authority.fingerprint();
        assert_eq!(fingerprint.len(), 32 * 3 - 1);
        for text in [fingerprint.clone(), fingerprint.replace(':', "").to_lowercase()] {
            assert!(authority.is(&parse_pin(&text).unwrap()));
        }
        let other = fingerprint.replace(['0', '1', '2', '3'], "F");
        assert!(!authority.is(&parse_pin(&other).unwrap()));
        let (head, _) = fingerprint.rsplit_once(':').unwrap();
        for wrong in ["", "zz", head, &fingerprint.replace(':', "")[2..]] {
            assert!(parse_pin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pem_file_has_short_lines() {
        let pem = Authority { der: vec![7; 200] }.to_pem();
        assert!(pem.lines().all(|line| line.len() <= PEM_LINE));
        let middle: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        assert_eq!(BASE64.decode(middle.as_bytes()).unwrap(), vec![7; 200]);
    }
}
