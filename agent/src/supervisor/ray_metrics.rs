//! What Ray exports for Prometheus, of the members that run here: fetched when it is asked for, and
//! handed on untouched.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gangline_common::ids::MemberKey;
use gangline_common::request::MAX_ANSWER;
use gangline_common::wire::request::{FailureReason, RequestFailure};

/// How long Ray may take: less than a question of the coordinator.
const PATIENCE: Duration = Duration::from_secs(8);

/// The members that can be asked; cheap to clone.
#[derive(Clone, Default)]
pub struct RayExports {
    inner: Arc<Mutex<BTreeMap<MemberKey, Export>>>,
}

#[derive(Clone)]
struct Export {
    addresses: [IpAddr; 2],
    port: u16,
}

/// A member's place among those that can be asked; given up on drop.
pub struct Exported {
    exports: RayExports,
    key: MemberKey,
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.exports.lock().remove(&self.key);
    }
}

impl RayExports {
    /// Lets a member be asked that has this port. Ray binds it to all addresses, or to loopback alone
    /// where that is the node's address.
    pub(super) fn list(&self, key: &MemberKey, node: IpAddr, port: u16) -> Exported {
        let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), node];
        self.lock().insert(key.clone(), Export { addresses, port });
        Exported { exports: self.clone(), key: key.clone() }
    }

    /// The page of one member.
    ///
    /// # Errors
    /// When it does not run here, or its Ray does not answer.
    pub async fn page(&self, key: &MemberKey) -> Result<Vec<u8>, RequestFailure> {
        let export = self.lock().get(key).cloned().ok_or_else(|| RequestFailure {
            reason: FailureReason::NotHere,
            text: "the member does not run here".to_owned(),
        })?;
        let fetching = async {
            let [first, second] = export.addresses;
            match fetch(first, export.port).await {
                Err(failure) if failure.reason == FailureReason::NotHere => {
                    fetch(second, export.port).await
                }
                fetched => fetched,
            }
        };
        tokio::time::timeout(PATIENCE, fetching).await.unwrap_or_else(|_| {
            Err(no_answer(format!("no answer within {} s", PATIENCE.as_secs())))
        })
    }

    // The map is whole after every statement, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<MemberKey, Export>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_answer(text: String) -> RequestFailure {
    RequestFailure { reason: FailureReason::NoAnswer, text: format!("Ray's metrics: {text}") }
}

async fn fetch(address: IpAddr, port: u16) -> Result<Vec<u8>, RequestFailure> {
    // As for `ray_api`: an error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| no_answer(error.to_string()))?;
    let host = std::net::SocketAddr::new(address, port);
    let answer = client.get(format!("http://{host}/metrics")).send().await;
    let mut answer = answer.map_err(|error| match error.is_connect() {
        true => {
            let text = "Ray's metrics: nobody listens on their port".to_owned();
            RequestFailure { reason: FailureReason::NotHere, text }
        }
        false => no_answer(error.to_string()),
    })?;
    if !answer.status().is_success() {
        return Err(no_answer(format!("status {}", answer.status().as_u16())));
    }
    let mut page = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| no_answer(error.to_string()))? {
        if page.len() + chunk.len() > MAX_ANSWER {
            let text = format!("Ray's metrics are over {MAX_ANSWER} bytes");
            return Err(RequestFailure { reason: FailureReason::TooLarge, text });
        }
        page.extend_from_slice(&chunk);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers every request with these bytes.
    async fn server(answer: Vec<u8>) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    assert!(stream.read(&mut request).await.unwrap() > 0);
                    // Who has enough stops listening.
                    let _ = stream.write_all(&answer).await;
                });
            }
        });
        port
    }

    async fn asked(answer: Vec<u8>) -> Result<Vec<u8>, FailureReason> {
        let exports = RayExports::default();
        let key: MemberKey = "g-a:1.1:0".parse().unwrap();
        let _exported = exports.list(&key, Ipv4Addr::LOCALHOST.into(), server(answer).await);
        exports.page(&key).await.map_err(|failure| failure.reason)
    }

    #[tokio::test]
    async fn a_page_is_handed_on_untouched_and_bounded() {
        let page = b"# any bytes \xff\n".to_vec();
        let whole = [&b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"[..], &page].concat();
        assert_eq!(asked(whole).await, Ok(page));
        let failed = b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".to_vec();
        assert_eq!(asked(failed).await, Err(FailureReason::NoAnswer));
        let endless = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", MAX_ANSWER + 1);
        let endless = [endless.as_bytes(), &vec![b'#'; MAX_ANSWER + 1]].concat();
        assert_eq!(asked(endless).await, Err(FailureReason::TooLarge));
    }

    #[tokio::test]
    async fn a_member_can_be_asked_while_it_is_listed() {
        let exports = RayExports::default();
        let key: MemberKey = "g-a:1.1:0".parse().unwrap();
        assert_eq!(exports.page(&key).await.unwrap_err().reason, FailureReason::NotHere);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na ".to_vec();
        let exported = exports.list(&key, Ipv4Addr::LOCALHOST.into(), server(answer).await);
        assert_eq!(exports.page(&key).await.unwrap(), b"a ");
        drop(exported);
        assert_eq!(exports.page(&key).await.unwrap_err().reason, FailureReason::NotHere);
    }
}
