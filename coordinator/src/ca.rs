//! The coordinator's certificate authority: one key in the state directory, one certificate per
//! agent, one for the server itself.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use gangline_common::ids::NodeId;
use gangline_common::join_token::KeyPin;
use gangline_common::tls::{AGENT_URI_PREFIX, Identity, SERVER_NAME, key_pin, sha256};
use gangline_common::transport::ResetKey;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use time::OffsetDateTime;

/// Clocks of agents may be this far behind (F16).
const BACKDATE: Duration = Duration::from_secs(300);
const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const SERVER_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    agent_life: Duration,
}

impl Ca {
    /// Whether `directory` holds a CA: this coordinator has served before.
    pub fn exists(directory: &Path) -> bool {
        key_path(directory).exists()
    }

    /// Loads the CA of `directory`, or makes one.
    pub fn open(directory: &Path, agent_life: Duration) -> anyhow::Result<Ca> {
        if !Self::exists(directory) {
            create(directory)?;
        }
        let key = std::fs::read_to_string(key_path(directory))
            .with_context(|| format!("reading {}", key_path(directory).display()))?;
        let path = directory.join("ca.pem");
        let pem = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        let key = KeyPair::from_pem(&key)
            .with_context(|| format!("{} is not a key", key_path(directory).display()))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key)
            .with_context(|| format!("{} is not a CA certificate", path.display()))?;
        let certificate = rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes())
            .map_err(|e| anyhow::anyhow!("{} is not a certificate: {e}", path.display()))?;
        Ok(Ca { issuer, certificate, agent_life })
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Whether the key is that of the certificate.
    pub fn is_consistent(&self) -> bool {
        let key = self.issuer.key().subject_public_key_info();
        self.pin().is_ok_and(|pin| pin == sha256(&key))
    }

    /// What join tokens pin.
    pub fn pin(&self) -> anyhow::Result<KeyPin> {
        Ok(key_pin(&self.certificate)?)
    }

    /// By which agents believe a coordinator that it was started again.
    pub fn reset_key(&self) -> ResetKey {
        ResetKey::derive(self.issuer.key().serialized_der())
    }

    /// A fresh key and certificate for the QUIC server, with the CA in its chain for joiners.
    pub fn server_identity(&self) -> anyhow::Result<Identity> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
        set_validity(&mut params, SERVER_LIFE)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.distinguished_name.push(DnType::CommonName, SERVER_NAME);
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            chain: vec![certificate.der().clone(), self.certificate.clone()],
            key_pkcs8: key.serialize_der(),
        })
    }

    /// A fresh key and certificate for the HTTP API under these names and addresses, with the CA
    /// in its chain, so that a user can check it against a pin.
    pub fn api_identity(&self, names: &[String]) -> anyhow::Result<Identity> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.to_vec())
            .with_context(|| format!("names for the certificate: {}", names.join(", ")))?;
        set_validity(&mut params, SERVER_LIFE)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.distinguished_name.push(DnType::CommonName, "Gangline API");
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            chain: vec![certificate.der().clone(), self.certificate.clone()],
            key_pkcs8: key.serialize_der(),
        })
    }

    /// Signs an agent's key for `node`. Nothing but the key is taken from the request.
    pub fn sign_agent(&self, request: &[u8], node: &NodeId) -> anyhow::Result<Vec<u8>> {
        let request = CertificateSigningRequestDer::from(request);
        let request = CertificateSigningRequestParams::from_der(&request)
            .context("the certificate request does not parse or its signature is wrong")?;
        let mut params = CertificateParams::default();
        let uri = format!("{AGENT_URI_PREFIX}{node}");
        params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into()?)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name.push(DnType::CommonName, uri);
        set_validity(&mut params, self.agent_life)?;
        Ok(params.signed_by(&request.public_key, &self.issuer)?.der().to_vec())
    }
}

fn key_path(directory: &Path) -> PathBuf {
    directory.join("ca.key")
}

fn set_validity(params: &mut CertificateParams, life: Duration) -> anyhow::Result<()> {
    let now = OffsetDateTime::now_utc();
    params.not_before = now.checked_sub(BACKDATE.try_into()?).context("clock before 1970")?;
    params.not_after = now.checked_add(life.try_into()?).context("clock beyond its range")?;
    Ok(())
}

fn create(directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("creating {}", directory.display()))?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "gangline coordinator CA");
    set_validity(&mut params, CA_LIFE)?;
    let certificate = params.self_signed(&key)?;
    write_new(&directory.join("ca.pem"), certificate.pem().as_bytes(), 0o644)?;
    // The key last: it is what says that the CA is complete.
    write_new(&key_path(directory), key.serialize_pem().as_bytes(), 0o600)
}

/// Writes a file that appears whole, durable and with its mode, or not at all.
pub fn write_new(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let Some(directory) = path.parent() else { bail!("{} has no directory", path.display()) };
    let temporary = path.with_extension("new");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)
        .with_context(|| format!("creating {}", temporary.display()))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path).with_context(|| format!("creating {}", path.display()))?;
    std::fs::File::open(directory)?.sync_all()?;
    Ok(())
}
