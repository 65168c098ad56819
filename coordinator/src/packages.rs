//! Packages of code that Ray's clients upload, as files of the state directory:
//! `packages/<project>/<protocol>/<name>`, with `<name>.sha256` beside each.
//!
//! A client names a package by a hash of its own, so the name is an opaque key: it is never trusted
//! to say what is inside, the content of a name never changes, and projects do not share names (a
//! name that another project filled must not become code of yours). The SHA-256 is ours.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use gangline_common::random::{self, NoRandom};
use gangline_common::tls::sha256;
use ring::digest::{Context, SHA256};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

/// Largest package.
pub const MAX_PACKAGE_BYTES: u64 = 512 << 20;
/// Uploads at a time; further ones are refused.
pub const MAX_UPLOADS: usize = 4;
/// Packages of all projects together, and their bytes.
pub const MAX_PACKAGES: usize = 4096;
pub const MAX_TOTAL_BYTES: u64 = 64 << 30;

const HASH_SUFFIX: &str = ".sha256";

/// A package could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error("{MAX_UPLOADS} packages are being uploaded")]
    Busy,
    #[error("the package is over {MAX_PACKAGE_BYTES} bytes")]
    TooLarge,
    #[error("there are {packages} packages with {bytes} bytes")]
    Full { packages: usize, bytes: u64 },
    /// The name is taken by a package with another content.
    #[error("a package of this name has another content")]
    Different,
    #[error(transparent)]
    Random(#[from] NoRandom),
    #[error("package store: {0}")]
    Disk(#[from] io::Error),
}

/// The name of a package: a file name and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageName {
    protocol: &'static str,
    name: String,
}

impl PackageName {
    /// What a valid name is, for people.
    pub const RULE: &str = "1 to 128 letters, digits, `_`, `-`, `+`, `.`, ending in .zip or .whl";

    /// `None` when it is not one that Ray's clients make.
    pub fn new(protocol: &str, name: &str) -> Option<PackageName> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'+' | b'.');
        let good = (1..=128).contains(&name.len())
            && name.bytes().all(plain)
            && !name.starts_with('.')
            && (name.ends_with(".zip") || name.ends_with(".whl"));
        (protocol == "gcs" && good).then(|| PackageName { protocol: "gcs", name: name.to_owned() })
    }

    /// Whether it is a directory, and not a wheel.
    pub fn is_zip(&self) -> bool {
        self.name.ends_with(".zip")
    }
}

#[derive(Clone)]
pub struct Packages {
    root: Arc<PathBuf>,
    uploads: Arc<Semaphore>,
    /// Held while a finished upload is counted and gets its name.
    naming: Arc<Mutex<()>>,
}

impl Packages {
    /// Over a directory, which is made when it is not there. Uploads that a crash has cut off go.
    pub fn open(root: PathBuf) -> io::Result<Packages> {
        let packages = Packages {
            root: Arc::new(root),
            uploads: Arc::new(Semaphore::new(MAX_UPLOADS)),
            naming: Arc::default(),
        };
        let unfinished = packages.unfinished();
        match std::fs::remove_dir_all(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        make_directory(&unfinished)?;
        Ok(packages)
    }

    fn unfinished(&self) -> PathBuf {
        self.root.join("unfinished")
    }

    /// Projects may be called anything, so their directories are called by hash.
    fn directory(&self, project: &str, name: &PackageName) -> PathBuf {
        let hash = HEXLOWER.encode(&sha256(project.as_bytes()));
        self.root.join("projects").join(hash).join(name.protocol)
    }

    /// The file of a package, when it is there. Blocking.
    pub fn find(&self, project: &str, name: &PackageName) -> io::Result<Option<PathBuf>> {
        let path = self.directory(project, name).join(&name.name);
        Ok(path.try_exists()?.then_some(path))
    }

    /// The SHA-256 of a package, when it is there. Blocking.
    pub fn sha256(&self, project: &str, name: &PackageName) -> io::Result<Option<[u8; 32]>> {
        let Some(path) = self.find(project, name)? else { return Ok(None) };
        let text = std::fs::read(hash_path(&path))?;
        let bytes = HEXLOWER.decode(text.trim_ascii()).map_err(io::Error::other)?;
        bytes.try_into().map(Some).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Begins an upload.
    pub async fn upload(&self) -> Result<Upload, PackageError> {
        let permit = self.uploads.clone().try_acquire_owned().map_err(|_| PackageError::Busy)?;
        let name = HEXLOWER.encode(&random::bytes::<16>()?);
        let path = self.unfinished().join(name);
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&path).await?;
        let unfinished = Unfinished(path);
        Ok(Upload { file, unfinished, bytes: 0, hash: Context::new(&SHA256), _permit: permit })
    }

    /// Gives a finished upload its name, durably. The same content again is the same package.
    pub async fn keep(
        &self,
        upload: Upload,
        project: &str,
        name: &PackageName,
    ) -> Result<(), PackageError> {
        let Upload { mut file, unfinished, bytes, hash, _permit } = upload;
        file.flush().await?;
        file.sync_all().await?;
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(hash.finish().as_ref());
        let naming = self.naming.clone().lock_owned().await;
        let (this, project, name) = (self.clone(), project.to_owned(), name.clone());
        let task = tokio::task::spawn_blocking(move || {
            let _naming = naming;
            this.give_name(&unfinished.0, (bytes, sha256), &project, &name)
        });
        task.await.map_err(io::Error::other)?
    }

    fn give_name(
        &self,
        unfinished: &Path,
        (bytes, sha256): (u64, [u8; 32]),
        project: &str,
        name: &PackageName,
    ) -> Result<(), PackageError> {
        if let Some(have) = self.sha256(project, name)? {
            return if have == sha256 { Ok(()) } else { Err(PackageError::Different) };
        }
        let (packages, total) = self.usage()?;
        if packages >= MAX_PACKAGES || total.saturating_add(bytes) > MAX_TOTAL_BYTES {
            return Err(PackageError::Full { packages, bytes: total });
        }
        let directory = self.directory(project, name);
        make_directory(&directory)?;
        let path = directory.join(&name.name);
        // The hash first: a package that is there has one. Left behind alone, it is overwritten.
        std::fs::write(hash_path(&path), HEXLOWER.encode(&sha256))?;
        std::fs::File::open(hash_path(&path))?.sync_all()?;
        std::fs::rename(unfinished, &path)?;
        let mut above = Some(directory.as_path());
        while let Some(directory) = above.filter(|path| path.starts_with(self.root.as_path())) {
            std::fs::File::open(directory)?.sync_all()?;
            above = directory.parent();
        }
        Ok(())
    }

    /// Number and bytes of all packages.
    fn usage(&self) -> io::Result<(usize, u64)> {
        let (mut packages, mut bytes) = (0, 0u64);
        let mut directories = vec![self.root.join("projects")];
        while let Some(directory) = directories.pop() {
            let entries = match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                let metadata = entry.metadata()?;
                if metadata.is_dir() {
                    directories.push(entry.path());
                } else if !entry.file_name().as_encoded_bytes().ends_with(HASH_SUFFIX.as_bytes()) {
                    packages += 1;
                    bytes = bytes.saturating_add(metadata.len());
                }
            }
        }
        Ok((packages, bytes))
    }
}

fn hash_path(package: &Path) -> PathBuf {
    let mut path = package.as_os_str().to_owned();
    path.push(HASH_SUFFIX);
    path.into()
}

fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// A file without a name of its own yet; deleted unless it got one.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "an unfinished upload is left until the next start");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// An upload under way.
pub struct Upload {
    file: File,
    unfinished: Unfinished,
    bytes: u64,
    hash: Context,
    _permit: OwnedSemaphorePermit,
}

impl Upload {
    /// Appends bytes.
    ///
    /// # Errors
    /// The package becomes too large, or the disk refuses.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), PackageError> {
        let total = self.bytes.saturating_add(bytes.len() as u64);
        if total > MAX_PACKAGE_BYTES {
            return Err(PackageError::TooLarge);
        }
        self.bytes = total;
        self.hash.update(bytes);
        Ok(self.file.write_all(bytes).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PackageName {
        PackageName::new("gcs", text).unwrap()
    }

    async fn put(packages: &Packages, project: &str, bytes: &[u8]) -> Result<(), PackageError> {
        let mut upload = packages.upload().await?;
        for part in bytes.chunks(3) {
            upload.write(part).await?;
        }
        packages.keep(upload, project, &name("_ray_pkg_00ff.zip")).await
    }

    #[test]
    fn a37_names_are_plain_file_names() {
        for good in ["_ray_pkg_0123456789abcdef.zip", "x-1.0+cu12-py3-none-any.whl"] {
            assert!(PackageName::new("gcs", good).is_some(), "{good}");
        }
        let long = format!("{}.zip", "x".repeat(128));
        for bad in ["", ".zip", "../x.zip", "a/b.zip", "x.sha256", "x.zip\0", "x.tar", &long] {
            assert!(PackageName::new("gcs", bad).is_none(), "{bad}");
        }
        assert!(PackageName::new("s3", "x.zip").is_none());
    }

    #[tokio::test]
    async fn the_content_of_a_name_never_changes() {
        let directory = tempfile::tempdir().unwrap();
        let packages = Packages::open(directory.path().join("packages")).unwrap();
        let key = name("_ray_pkg_00ff.zip");
        assert_eq!(packages.find("rlhf", &key).unwrap(), None);
        put(&packages, "rlhf", b"some code").await.unwrap();
        put(&packages, "rlhf", b"some code").await.unwrap();
        let other = put(&packages, "rlhf", b"other code").await;
        assert!(matches!(other, Err(PackageError::Different)), "{other:?}");
        let path = packages.find("rlhf", &key).unwrap().unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"some code");
        assert_eq!(packages.sha256("rlhf", &key).unwrap(), Some(sha256(b"some code")));
        assert_eq!(packages.find("../rlhf", &key).unwrap(), None);
        put(&packages, "vision", b"other code").await.unwrap();
        assert_eq!(packages.usage().unwrap(), (2, 19));
        let unfinished = std::fs::read_dir(packages.unfinished()).unwrap();
        assert_eq!(unfinished.count(), 0, "every upload is named or deleted");
    }

    #[tokio::test]
    async fn uploads_are_few_and_cut_off_ones_go() {
        let directory = tempfile::tempdir().unwrap();
        let packages = Packages::open(directory.path().to_owned()).unwrap();
        let mut uploads = Vec::new();
        for _ in 0..MAX_UPLOADS {
            uploads.push(packages.upload().await.unwrap());
        }
        assert!(matches!(packages.upload().await, Err(PackageError::Busy)));
        std::mem::forget(uploads.pop());
        drop(uploads);
        let again = Packages::open(directory.path().to_owned()).unwrap();
        assert_eq!(std::fs::read_dir(again.unfinished()).unwrap().count(), 0);
        let mut upload = again.upload().await.unwrap();
        upload.bytes = MAX_PACKAGE_BYTES;
        assert!(matches!(upload.write(b"x").await, Err(PackageError::TooLarge)));
    }
}
