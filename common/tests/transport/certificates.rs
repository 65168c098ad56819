//! A certificate authority, honest and dishonest leaves of it, made anew in every test.

use gangline_common::tls::{AGENT_URI_PREFIX, Identity, SERVER_NAME};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls::pki_types::CertificateDer;

/// The CA of one cluster.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("a CA") }
    }

    pub fn certificate(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    /// The coordinator's own identity: its chain shows the CA, which the join token pins.
    pub fn server(&self) -> Identity {
        self.sign(server_params())
    }

    pub fn agent(&self, node: &str) -> Identity {
        self.sign(agent_params(&[node]))
    }

    /// Signs whatever it is given.
    pub fn sign(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &self.issuer).expect("a certificate");
        Identity {
            chain: vec![leaf.der().clone(), self.certificate()],
            key_pkcs8: key.serialize_der(),
        }
    }
}

pub fn server_params() -> CertificateParams {
    let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).expect("a name");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}

/// What the coordinator signs for an agent; more or fewer than one node is dishonest.
pub fn agent_params(nodes: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::ExplicitNoCa;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names = nodes
        .iter()
        .map(|node| format!("{AGENT_URI_PREFIX}{node}"))
        .map(|uri| SanType::URI(uri.try_into().expect("an ASCII text")))
        .collect();
    params
}

pub fn expired(mut params: CertificateParams) -> CertificateParams {
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2020, 2, 1);
    params
}

/// A certificate that vouches for itself.
pub fn self_signed(params: CertificateParams) -> Identity {
    let key = KeyPair::generate().expect("a key");
    let leaf = params.self_signed(&key).expect("a certificate");
    Identity { chain: vec![leaf.der().clone()], key_pkcs8: key.serialize_der() }
}
