//! Sealing and opening the values of secrets: AES-256-GCM under one key, in a file of its own beside
//! the store, so that a copy of the store alone gives nothing away.
//!
//! A sealed value is a fresh random nonce (12 bytes), the encrypted text, and its tag. Project and
//! name are authenticated with it: a value that was moved to another row does not open.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use data_encoding::HEXLOWER;
use gangline_common::random::{self, NoRandom};
use gangline_common::redact::{RedactError, Redactor, is_secret};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::board::{Board, JobSnapshot};
use crate::ca::write_new;
use crate::core::secrets::{Sealed, SecretRecord};

const KEY_BYTES: usize = 32;

/// The text of a secret: it has no way into a log.
#[derive(Clone, PartialEq, Eq)]
pub struct PlainText(String);

impl PlainText {
    pub fn new(text: String) -> Self {
        PlainText(text)
    }

    /// For the job's environment and nothing else.
    pub fn reveal(self) -> String {
        self.0
    }
}

impl fmt::Debug for PlainText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PlainText(hidden)")
    }
}

/// Secrets cannot be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error(
        "{path} is missing, and the store holds {count} secrets and addresses of webhooks that only this key opens. Put the \
         key back from a backup. No other key was made"
    )]
    KeyMissing { path: PathBuf, count: usize },
    #[error("{path} is not usable: {reason}. Put the key back from a backup")]
    KeyUnusable { path: PathBuf, reason: String },
    #[error(
        "{path} is not the key that sealed the secret {project}/{name}. Put the key back that \
         belongs to this store"
    )]
    WrongKey { path: PathBuf, project: String, name: String },
    #[error("the key of secrets cannot be made: {0:#}")]
    NotMade(anyhow::Error),
    #[error(transparent)]
    NoRandom(#[from] NoRandom),
    #[error(transparent)]
    Redact(#[from] RedactError),
}

/// Looks for every secret of the job's project, as a job may print one that is not its own, and for
/// variables of the job whose names say that they are secrets.
///
/// # Errors
/// A secret does not open, or they are too much to be looked for.
pub fn redactor(
    sealer: &Sealer,
    board: &Board,
    snapshot: &JobSnapshot,
) -> Result<Redactor, SecretError> {
    let sealed = board.secrets(&snapshot.job.project);
    let open = sealed.iter().map(|secret| Ok(sealer.reveal(secret)?.reveal()));
    let mut values = open.collect::<Result<Vec<String>, SecretError>>()?;
    let env = snapshot.job.request.env.iter();
    values.extend(env.filter(|(name, value)| is_secret(name, value)).map(|(_, v)| v.clone()));
    Ok(Redactor::new(values.iter().map(String::as_str))?)
}

/// Seals and opens. Cheap to clone; the key is read or made once.
#[derive(Clone)]
pub struct Sealer {
    path: Arc<PathBuf>,
    key: Arc<OnceLock<LessSafeKey>>,
    /// Held while the key is made, so that it is made once.
    making: Arc<Mutex<()>>,
}

impl Sealer {
    /// With the key at `path`, if there is one. `stored` is every secret of the store: each must
    /// open, so that no job finds out later.
    ///
    /// # Errors
    /// The key is missing although there are secrets, or it is not theirs.
    pub fn open(path: &Path, stored: &[Arc<SecretRecord>]) -> Result<Sealer, SecretError> {
        let path = path.to_owned();
        let (key, making) = (OnceLock::new(), Arc::default());
        match read_key(&path)? {
            Some(found) => {
                let _ = key.set(found);
            }
            None if stored.is_empty() => {}
            None => return Err(SecretError::KeyMissing { path, count: stored.len() }),
        }
        let sealer = Sealer { path: Arc::new(path), key: Arc::new(key), making };
        stored.iter().try_for_each(|record| sealer.reveal(record).map(drop))?;
        Ok(sealer)
    }

    /// Seals a value for this project and name. The first call makes the key: it blocks for the
    /// disk.
    ///
    /// # Errors
    /// The key cannot be made, or the system gives no random bits.
    pub fn seal(&self, project: &str, name: &str, text: &PlainText) -> Result<Sealed, SecretError> {
        let nonce: [u8; NONCE_LEN] = random::bytes()?;
        let mut bytes = text.0.clone().into_bytes();
        let about = Aad::from(about(project, name));
        self.made_key()?
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), about, &mut bytes)
            .map_err(|_| SecretError::NotMade(anyhow::anyhow!("the value is too long")))?;
        Ok(Sealed([&nonce[..], &bytes].concat()))
    }

    /// Opens a value.
    ///
    /// # Errors
    /// The key is another one, or the value belongs to another project or name.
    pub fn reveal(&self, record: &SecretRecord) -> Result<PlainText, SecretError> {
        self.try_reveal(record).ok_or_else(|| SecretError::WrongKey {
            path: self.path.to_path_buf(),
            project: record.project.clone(),
            name: record.name.clone(),
        })
    }

    fn try_reveal(&self, record: &SecretRecord) -> Option<PlainText> {
        let (nonce, sealed) = record.sealed.0.split_first_chunk::<NONCE_LEN>()?;
        let mut bytes = sealed.to_vec();
        let about = Aad::from(about(&record.project, &record.name));
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let text = self.key.get()?.open_in_place(nonce, about, &mut bytes).ok()?;
        String::from_utf8(text.to_vec()).ok().map(PlainText)
    }

    fn made_key(&self) -> Result<&LessSafeKey, SecretError> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        // Nothing is half done under this lock that a panic elsewhere could spoil.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let key = match read_key(&self.path)? {
            Some(key) => key,
            None => {
                let bytes: [u8; KEY_BYTES] = random::bytes()?;
                let text = HEXLOWER.encode(&bytes) + "\n";
                write_new(&self.path, text.as_bytes(), 0o600).map_err(SecretError::NotMade)?;
                usable(&self.path, &bytes)?
            }
        };
        Ok(self.key.get_or_init(|| key))
    }
}

/// What a sealed value is bound to: each part with its length in front, so that none runs into the
/// next.
fn about(project: &str, name: &str) -> Vec<u8> {
    let mut bytes = b"gangline secret 1".to_vec();
    for part in [project, name] {
        bytes.extend((part.len() as u64).to_be_bytes());
        bytes.extend(part.as_bytes());
    }
    bytes
}

fn read_key(path: &Path) -> Result<Option<LessSafeKey>, SecretError> {
    let unusable = |reason: String| SecretError::KeyUnusable { path: path.to_owned(), reason };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(error.to_string())),
    };
    let bytes = HEXLOWER.decode(text.trim().as_bytes());
    let bytes = bytes.map_err(|_| unusable("it is not a key in hexadecimal".to_owned()))?;
    usable(path, &bytes).map(Some)
}

fn usable(path: &Path, bytes: &[u8]) -> Result<LessSafeKey, SecretError> {
    let key = UnboundKey::new(&AES_256_GCM, bytes).map_err(|_| SecretError::KeyUnusable {
        path: path.to_owned(),
        reason: format!("it has {} bytes, not {KEY_BYTES}", bytes.len()),
    })?;
    Ok(LessSafeKey::new(key))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gangline_common::time::Timestamp;

    use super::*;

    fn record(project: &str, name: &str, sealed: Sealed) -> SecretRecord {
        let set = Timestamp { boot_ms: 0, wall_ms: 0 };
        SecretRecord {
            project: project.to_owned(),
            name: name.to_owned(),
            sealed,
            set_by: "alice".to_owned(),
            set,
        }
    }

    fn text(text: &str) -> PlainText {
        PlainText::new(text.to_owned())
    }

    #[test]
    fn what_was_sealed_opens_and_is_not_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secrets.key");
        let sealer = Sealer::open(&path, &[]).unwrap();
        assert!(!path.exists(), "a key that nobody needs");
        let sealed = sealer.seal("rlhf", "HF_TOKEN", &text("canary-17")).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!sealed.0.windows(6).any(|window| window == b"canary"));
        let again = sealer.seal("rlhf", "HF_TOKEN", &text("canary-17")).unwrap();
        assert_ne!(sealed, again, "each value has a nonce of its own");
        // The same key after a restart, which checks what is stored.
        let stored = Arc::new(record("rlhf", "HF_TOKEN", sealed));
        let sealer = Sealer::open(&path, std::slice::from_ref(&stored)).unwrap();
        let opened = sealer.reveal(&stored).unwrap();
        assert_eq!(format!("{opened:?} {stored:?}").matches("canary").count(), 0);
        assert_eq!(opened.reveal(), "canary-17");
    }

    #[test]
    fn another_name_project_key_or_byte_does_not_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secrets.key");
        let sealer = Sealer::open(&path, &[]).unwrap();
        let sealed = sealer.seal("rlhf", "HF_TOKEN", &text("canary-17")).unwrap();
        for (project, name) in [("vision", "HF_TOKEN"), ("rlhf", "OTHER"), ("rlh", "fHF_TOKEN")] {
            let moved = record(project, name, sealed.clone());
            assert!(matches!(sealer.reveal(&moved), Err(SecretError::WrongKey { .. })));
        }
        for at in 0..sealed.0.len() {
            let mut changed = sealed.clone();
            changed.0[at] ^= 1;
            assert!(sealer.reveal(&record("rlhf", "HF_TOKEN", changed)).is_err(), "byte {at}");
        }
        let short = record("rlhf", "HF_TOKEN", Sealed(vec![0; 11]));
        assert!(sealer.reveal(&short).is_err());
        let other = directory.path().join("other.key");
        Sealer::open(&other, &[]).unwrap().seal("a", "B", &text("x")).unwrap();
        let stored = [Arc::new(record("rlhf", "HF_TOKEN", sealed))];
        let wrong = Sealer::open(&other, &stored).err().unwrap().to_string();
        assert!(wrong.contains("other.key") && wrong.contains("rlhf/HF_TOKEN"), "{wrong}");
    }

    #[test]
    fn a_key_that_is_gone_is_not_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secrets.key");
        let sealer = Sealer::open(&path, &[]).unwrap();
        let sealed = sealer.seal("rlhf", "HF_TOKEN", &text("x")).unwrap();
        let stored = [Arc::new(record("rlhf", "HF_TOKEN", sealed))];
        let key = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let missing = Sealer::open(&path, &stored).err().unwrap();
        assert!(matches!(missing, SecretError::KeyMissing { count: 1, .. }), "{missing}");
        assert!(missing.to_string().contains("backup"), "{missing}");
        assert!(!path.exists());
        for bad in [&b"not hex"[..], &key[..20], b""] {
            std::fs::write(&path, bad).unwrap();
            let unusable = Sealer::open(&path, &[]).err().unwrap();
            assert!(matches!(unusable, SecretError::KeyUnusable { .. }), "{unusable}");
        }
        std::fs::write(&path, key).unwrap();
        assert!(Sealer::open(&path, &stored).is_ok());
    }
}
