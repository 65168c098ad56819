//! The HTTP listener: TLS and plain text on one port, told apart by the first byte.
//!
//! Plain text is served to this machine only; anybody else is told the https address. Connections
//! are bounded in number, those from one address as well, and each has a time limit until its request
//! head is complete.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::IntoResponse;
use gangline_common::tls::Identity;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::alias;
use super::error::{ApiError, HTTPS_ONLY};
use super::places::Places;
use crate::ca::Ca;
use crate::config::Config;

/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 4096;
/// Connections from one address at a time (all users behind a proxy are one); more are closed at once.
const PER_ADDRESS: usize = 1024;
/// That an address or everybody together has too many is said at most this often.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// A TLS handshake, and the head of every request, must be complete within this.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after an accept that failed: out of descriptors, most of the time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// First byte of a TLS connection: a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// How a request came here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Plain,
    Tls,
}

/// The certificate of the API: the configured one, or one of our own CA, which people pin.
pub fn tls_config(config: &Config, ca: &Ca) -> anyhow::Result<rustls::ServerConfig> {
    let (chain, key) = match (&config.tls_certificate, &config.tls_key) {
        (Some(certificate), Some(key)) => from_files(certificate, key)?,
        _ => {
            let Identity { chain, key_pkcs8 } = ca.api_identity(&names(config))?;
            (chain, PrivateKeyDer::Pkcs8(key_pkcs8.into()))
        }
    };
    with_identity(chain, key)
}

/// Whether the configured certificate, if there is one, could be served.
pub fn configured(config: &Config) -> anyhow::Result<()> {
    let (Some(certificate), Some(key)) = (&config.tls_certificate, &config.tls_key) else {
        return Ok(());
    };
    let (chain, key) = from_files(certificate, key)?;
    with_identity(chain, key).map(drop)
}

fn with_identity(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> anyhow::Result<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("the certificate of the HTTP API")?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

fn from_files(
    certificate: &Path,
    key: &Path,
) -> anyhow::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .with_context(|| format!("tls_certificate {}", certificate.display()))?;
    let key =
        PrivateKeyDer::from_pem_file(key).with_context(|| format!("tls_key {}", key.display()))?;
    Ok((chain, key))
}

/// What people may call this coordinator: this machine's names, and what the configuration adds.
fn names(config: &Config) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !config.http.ip().is_unspecified() {
        names.push(config.http.ip().to_string());
    }
    if let Ok(name) = rustix::system::uname().nodename().to_str() {
        names.push(name.to_owned());
    }
    names.extend(config.tls_names.iter().cloned());
    names.sort();
    names.dedup();
    names
}

/// Serves `router` until this future is dropped.
pub async fn serve(listener: TcpListener, router: Router, tls: rustls::ServerConfig) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let places = Arc::new(Places::new(CONNECTIONS, PER_ADDRESS));
    let (mut refused, mut full) = (Said::default(), Said::default());
    loop {
        let free = Arc::clone(&slots).try_acquire_owned();
        if let Some(times) = free.is_err().then(|| full.again(Instant::now())).flatten() {
            tracing::warn!(most = CONNECTIONS, times, "all connections are taken; more wait");
        }
        let slot = match free {
            Ok(slot) => Ok(slot),
            Err(_) => Arc::clone(&slots).acquire_owned().await,
        };
        // The semaphore is never closed.
        let Ok(slot) = slot else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.take(&holder(peer.ip())) else {
            if let Some(refused) = refused.again(Instant::now()) {
                tracing::warn!(
                    address = %peer.ip(),
                    most = PER_ADDRESS,
                    refused,
                    "an address has too many connections; more are closed"
                );
            }
            continue;
        };
        let (router, acceptor) = (router.clone(), acceptor.clone());
        tokio::spawn(async move {
            if let Err(error) = connection(stream, peer, router, acceptor).await {
                tracing::debug!(%peer, %error, "http connection ended");
            }
            // The place first: who has a slot is never told that all places are taken.
            drop(place);
            drop(slot);
        });
    }
}

/// Something that is said now and then, with how often it has happened.
#[derive(Default)]
struct Said {
    times: u64,
    last: Option<Instant>,
}

impl Said {
    /// It has happened again: how often by now, if that is to be said.
    fn again(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        let due = self.last.is_none_or(|last| now.duration_since(last) >= SAID_EVERY);
        due.then(|| {
            self.last = Some(now);
            self.times
        })
    }
}

/// Who holds a connection: an address, or the network of 64 bits that one machine may have to itself.
fn holder(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    acceptor: TlsAcceptor,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let mut first = [0];
    let seen =
        tokio::time::timeout(HEAD_TIMEOUT, stream.peek(&mut first)).await.map_err(late)??;
    if seen == 0 {
        return Ok(());
    }
    if first == [TLS_HANDSHAKE] {
        let stream =
            tokio::time::timeout(HEAD_TIMEOUT, acceptor.accept(stream)).await.map_err(late)??;
        return exchange(stream, peer, Transport::Tls, router, HEAD_TIMEOUT).await;
    }
    exchange(stream, peer, Transport::Plain, router, HEAD_TIMEOUT).await
}

/// Requests and answers of one connection; a WebSocket takes it over.
async fn exchange<S>(
    stream: S,
    peer: SocketAddr,
    transport: Transport,
    router: Router,
    head_timeout: Duration,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let router = router.clone();
        async move {
            if transport == Transport::Plain && !peer.ip().is_loopback() {
                return Ok(https_only(&request).into_response());
            }
            let mut request = request.map(Body::new);
            if let Some(uri) = alias::resolve(request.uri()) {
                *request.uri_mut() = uri;
            }
            request.extensions_mut().insert(ConnectInfo(peer));
            request.extensions_mut().insert(transport);
            let mut response = router.oneshot(request).await?;
            // There is too much of something: who is refused is not to keep a connection as well.
            if is_crowded(response.status()) {
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await
        .map_err(io::Error::other)
}

fn is_crowded(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

fn https_only<B>(request: &Request<B>) -> ApiError {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    // What a stranger wrote is repeated only where it is a plain name.
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
    let host = host.filter(|host| !host.is_empty() && host.chars().all(plain));
    ApiError::new(HTTPS_ONLY, "plain HTTP is answered for this machine only").hint(format!(
        "use https://{} with the coordinator's CA (`gangline login`, or --verify of the ray command)",
        host.unwrap_or("HOST:8265")
    ))
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn router() -> Router {
        let who = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() };
        let full = async || StatusCode::SERVICE_UNAVAILABLE;
        Router::new().route("/", get(who)).route("/full", get(full))
    }

    /// What a peer at `address` gets for these bytes, until the connection ends.
    async fn answer(address: &str, transport: Transport, request: &str) -> String {
        answer_within(LIMIT, address, transport, request).await
    }

    async fn answer_within(
        limit: Duration,
        address: &str,
        transport: Transport,
        request: &str,
    ) -> String {
        let (mut ours, theirs) = tokio::io::duplex(64 << 10);
        let serving = exchange(theirs, address.parse().unwrap(), transport, router(), limit);
        let asking = async {
            ours.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            ours.read_to_string(&mut answer).await.unwrap();
            answer
        };
        tokio::join!(serving, asking).1
    }

    const LIMIT: Duration = Duration::from_millis(300);
    const REQUEST: &str = "GET / HTTP/1.1\r\nHost: gangline.lan:8265\r\nConnection: close\r\n\r\n";

    #[tokio::test]
    async fn a49_plain_text_is_for_this_machine_only() {
        let local = answer("127.0.0.1:5", Transport::Plain, REQUEST).await;
        assert!(local.starts_with("HTTP/1.1 200") && local.ends_with("127.0.0.1:5"), "{local}");
        let remote = answer("10.0.0.9:5", Transport::Tls, REQUEST).await;
        assert!(remote.ends_with("10.0.0.9:5"), "{remote}");
        let refused = answer("10.0.0.9:5", Transport::Plain, REQUEST).await;
        assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
        assert!(refused.contains("https://gangline.lan:8265"), "{refused}");
        let strange = REQUEST.replace("gangline.lan:8265", "a\"}<b>");
        let refused = answer("10.0.0.9:5", Transport::Plain, &strange).await;
        assert!(refused.contains("https://HOST:8265"), "{refused}");
    }

    #[test]
    fn a_machine_holds_its_connections_under_one_address() {
        let of = |text: &str| holder(text.parse().unwrap()).to_string();
        assert_eq!(of("10.0.0.9"), "10.0.0.9");
        assert_eq!(of("::ffff:10.0.0.9"), "10.0.0.9");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }

    #[tokio::test]
    async fn who_is_refused_keeps_no_connection() {
        let began = Instant::now();
        let kept = REQUEST.replace("close", "keep-alive").replace("GET /", "GET /full");
        let limit = LIMIT * 100;
        let text = answer_within(limit, "10.0.0.9:5", Transport::Tls, &kept).await;
        assert!(text.starts_with("HTTP/1.1 503") && text.contains("connection: close"), "{text}");
        assert!(began.elapsed() < limit / 2, "{:?}", began.elapsed());
    }

    #[test]
    fn what_goes_on_is_said_now_and_then() {
        let (mut said, began) = (Said::default(), Instant::now());
        let at = [0, 1, 59, 60, 61].map(|s| said.again(began + Duration::from_secs(s)));
        assert_eq!(at, [Some(1), None, None, Some(4), None]);
    }

    /// Without the limit this test never ends.
    #[tokio::test]
    async fn a_head_that_never_ends_is_cut() {
        let text = answer("127.0.0.1:5", Transport::Plain, "GET / HTTP/1.1\r\nHost: loc").await;
        assert!(!text.contains("200 OK"), "{text}");
    }

    /// Without the limit this test never ends.
    #[tokio::test]
    async fn a_connection_that_waits_after_its_answer_is_cut() {
        let kept = REQUEST.replace("close", "keep-alive");
        let text = answer("127.0.0.1:5", Transport::Plain, &kept).await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    }
}
