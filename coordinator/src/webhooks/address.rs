//! Where a webhook goes. Members of projects name addresses that the coordinator then connects to: it
//! must not reach for them what they cannot reach, such as services on its own loopback or the
//! metadata of a cloud. The check is made of the address that is connected to, not of a name.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Url};
use serde::{Deserialize, Serialize};

use crate::secrets::PlainText;

/// Longest address, in bytes.
const MAX_URL: usize = 2048;
/// Longest key, in bytes.
const MAX_KEY: usize = 256;
/// Shortest key: a shorter one can be guessed.
const MIN_KEY: usize = 16;

/// Why an address or a key is refused. The address itself may be a secret and is not in it.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("the address is not an http or https URL of at most {MAX_URL} bytes with a host")]
    NotHttp,
    #[error("the address has a user or a password in it")]
    Credentials,
    #[error("the address is {0}, which only webhooks of the fleet may name")]
    Closed(&'static str),
    #[error("the key has to have {MIN_KEY} to {MAX_KEY} visible ASCII characters")]
    BadKey,
}

/// Address and key, as they are sealed.
#[derive(Clone, Serialize, Deserialize)]
pub struct Target {
    url: String,
    key: String,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Target(hidden)")
    }
}

impl Target {
    /// # Errors
    /// What is wrong with them. `of_fleet`: an administrator gives it.
    pub fn new(url: &str, key: String, of_fleet: bool) -> Result<Target, AddressError> {
        let parsed = Url::parse(url).ok().filter(|_| url.len() <= MAX_URL);
        let parsed = parsed.filter(|url| matches!(url.scheme(), "http" | "https"));
        let parsed = parsed.filter(Url::has_host).ok_or(AddressError::NotHttp)?;
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(AddressError::Credentials);
        }
        if !(MIN_KEY..=MAX_KEY).contains(&key.len()) || !key.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(AddressError::BadKey);
        }
        let target = Target { url: parsed.to_string(), key };
        target.check(of_fleet)?;
        Ok(target)
    }

    /// Scheme, host and port: what people may see.
    pub fn shown(&self) -> String {
        Url::parse(&self.url)
            .map_or_else(|_| "-".to_owned(), |url| url.origin().ascii_serialization())
    }

    pub fn seal_text(&self) -> PlainText {
        // Two strings always become JSON; an empty text would not open again.
        PlainText::new(serde_json::to_string(self).unwrap_or_default())
    }

    /// `None` for a text that is none of [`Target::seal_text`].
    pub fn opened(text: PlainText) -> Option<Target> {
        serde_json::from_str(&text.reveal()).ok()
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// A host that is written as an address is not looked up, so it is checked here.
    fn check(&self, of_fleet: bool) -> Result<(), AddressError> {
        let url = Url::parse(&self.url).map_err(|_| AddressError::NotHttp)?;
        let host = url.host_str().unwrap_or_default();
        let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        match address.and_then(closed).filter(|_| !of_fleet) {
            Some(what) => Err(AddressError::Closed(what)),
            None => Ok(()),
        }
    }
}

/// What members of projects may not have the coordinator connect to.
fn closed(address: IpAddr) -> Option<&'static str> {
    let address = address.to_canonical();
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let this_network = matches!(address, IpAddr::V4(v4) if v4.octets()[0] == 0);
    if address.is_loopback() || address.is_unspecified() || this_network {
        return Some("on the coordinator's own machine");
    }
    (link_local || address.is_multicast()).then_some("link-local or multicast")
}

/// Looks names up, and shows the client only what it may connect to.
struct Guard;

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let open: Vec<SocketAddr> = found.filter(|at| closed(at.ip()).is_none()).collect();
            if open.is_empty() {
                let text = "its name leads to no address that may be connected to";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text).into());
            }
            Ok(Box::new(open.into_iter()) as Addrs)
        })
    }
}

/// A client for one webhook. It follows no redirect, which would lead around the check.
///
/// # Errors
/// The machine has no usable certificates of authorities.
pub(super) fn client(of_fleet: bool, timeout: Duration) -> reqwest::Result<Client> {
    // Only the first call of a process installs it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder()
        .user_agent(concat!("gangline-coordinator/", env!("CARGO_PKG_VERSION")))
        .timeout(timeout)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .http1_only();
    match of_fleet {
        true => builder.build(),
        false => builder.dns_resolver(Arc::new(Guard)).build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    fn target(url: &str, of_fleet: bool) -> Result<Target, AddressError> {
        Target::new(url, KEY.to_owned(), of_fleet)
    }

    #[test]
    fn members_do_not_reach_the_coordinators_own_machine_or_the_metadata_of_a_cloud() {
        for url in [
            "http://127.0.0.1:8265/x",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0.0.0.0/",
            "http://0.1.2.3/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::]/",
            "http://169.254.169.254/latest/meta-data",
            "http://[fe80::1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://224.0.0.1/",
            "http://255.255.255.255/",
        ] {
            assert!(matches!(target(url, false), Err(AddressError::Closed(_))), "{url}");
            assert!(target(url, true).is_ok(), "{url}");
        }
        for url in ["https://hooks.example.com/T0/B1", "http://10.1.2.3:9093", "http://[fd00::1]/"]
        {
            assert!(target(url, false).is_ok(), "{url}");
        }
    }

    /// The same by name, where it counts: when the client connects.
    #[tokio::test]
    async fn a_name_that_leads_there_is_not_connected_to() {
        let resolve = |name: &str| Guard.resolve(name.parse().unwrap());
        let refused = resolve("localhost").await.map(|found| found.collect::<Vec<_>>());
        assert!(refused.is_err(), "{refused:?}");
    }

    #[test]
    fn what_is_no_web_address_is_refused() {
        for url in ["", "x", "ftp://a/", "file:///etc/passwd", "http://", "gopher://a/"] {
            assert!(matches!(target(url, true), Err(AddressError::NotHttp)), "{url}");
        }
        assert!(matches!(target("http://u:p@a/", true), Err(AddressError::Credentials)));
        let long = format!("http://a/{}", "x".repeat(MAX_URL));
        assert!(matches!(target(&long, true), Err(AddressError::NotHttp)));
        for key in ["short", "with a space 0123456789", &"x".repeat(MAX_KEY + 1)] {
            let bad = Target::new("http://a/", key.to_owned(), true);
            assert!(matches!(bad, Err(AddressError::BadKey)), "{key}");
        }
    }

    #[test]
    fn only_the_host_is_shown() {
        let target = target("https://hooks.example.com:444/services/T0/SECRET?x=SECRET", false);
        let target = target.unwrap();
        assert_eq!(target.shown(), "https://hooks.example.com:444");
        assert_eq!(format!("{target:?}"), "Target(hidden)");
    }
}
