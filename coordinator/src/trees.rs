//! The code of jobs, as trees and their chunks in the state directory:
//! `code/projects/<project>/{packs,trees}/`.
//!
//! Projects share nothing: that another project holds a chunk neither spares an upload nor can be
//! found out. What a client says of content is never believed; every hash is made here again.
//! Everything but `permit` blocks.

mod pack;
mod unzip;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use data_encoding::HEXLOWER;
use gangline_common::random::{self, NoRandom};
use gangline_common::tls::sha256;
use gangline_tree::{ChunkRef, Hash, MAX_MANIFEST_BYTES, Tree, TreeError, batch};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use unzip::ZipProblem;

/// Bytes of all chunks of all projects; chunks and trees, which are indexed in memory; packs.
pub const MAX_TOTAL_BYTES: u64 = 64 << 30;
/// Bytes of the chunks of one project, so that none takes the room of all.
pub const MAX_PROJECT_BYTES: u64 = 16 << 30;
pub const MAX_CHUNKS: usize = 4 << 20;
pub const MAX_TREES: usize = 64 << 10;
pub const MAX_PACKS: usize = 256 << 10;
/// Uploads at a time, each of which holds one body in memory; further ones are refused.
pub const MAX_UPLOADS: usize = 8;

/// Code could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum TreesError {
    #[error("{MAX_UPLOADS} uploads of code are under way")]
    Busy,
    #[error("the store of code is full: {bytes} bytes in {chunks} chunks, {trees} trees")]
    Full { bytes: u64, chunks: usize, trees: usize },
    #[error("this is no code: {0}")]
    Tree(#[from] TreeError),
    #[error("the upload is called {said} and is {is}")]
    Lies { said: Hash, is: Hash },
    #[error("{0} chunks of the code have not been uploaded")]
    Missing(usize),
    #[error("the chunk {0} has another size than the list of files says")]
    Size(Hash),
    #[error("the archive cannot be used: {0}")]
    Zip(ZipProblem),
    #[error("the chunk {0} is damaged on the coordinator's disk")]
    Damaged(Hash),
    #[error(transparent)]
    Random(#[from] NoRandom),
    #[error("store of code: {0}")]
    Disk(#[from] io::Error),
}

/// What became of a body of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    pub stored: usize,
    /// Were there already.
    pub known: usize,
}

#[derive(Clone)]
pub struct Trees {
    root: Arc<PathBuf>,
    index: Arc<Mutex<Index>>,
    uploads: Arc<Semaphore>,
}

/// What is on disk.
#[derive(Default)]
struct Index {
    /// By the name of their directory.
    projects: HashMap<String, Project>,
    bytes: u64,
    chunks: usize,
    trees: usize,
    packs: usize,
}

#[derive(Default)]
struct Project {
    packs: Vec<Arc<PathBuf>>,
    chunks: HashMap<Hash, Place>,
    trees: HashSet<Hash>,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct Place {
    /// Index into `packs`.
    pack: u32,
    offset: u64,
    bytes: u32,
}

impl Index {
    fn add_pack(&mut self, project: &str, path: PathBuf, rows: &[pack::Row]) {
        let of = self.projects.entry(project.to_owned()).or_default();
        // At most `MAX_PACKS`.
        let number = of.packs.len() as u32;
        of.packs.push(Arc::new(path));
        self.packs += 1;
        for row in rows {
            let place = Place { pack: number, offset: row.offset, bytes: row.bytes };
            self.bytes = self.bytes.saturating_add(row.bytes.into());
            of.bytes = of.bytes.saturating_add(row.bytes.into());
            self.chunks += usize::from(of.chunks.insert(row.hash, place).is_none());
        }
    }

    fn add_tree(&mut self, project: &str, tree: Hash) {
        let of = self.projects.entry(project.to_owned()).or_default();
        self.trees += usize::from(of.trees.insert(tree));
    }

    fn full(&self) -> TreesError {
        TreesError::Full { bytes: self.bytes, chunks: self.chunks, trees: self.trees }
    }
}

impl Trees {
    /// Over a directory, which is made when it is not there. Uploads that a crash has cut off go.
    pub fn open(root: PathBuf) -> io::Result<Trees> {
        let trees = Trees {
            root: Arc::new(root),
            index: Arc::default(),
            uploads: Arc::new(Semaphore::new(MAX_UPLOADS)),
        };
        let unfinished = trees.root.join("unfinished");
        match std::fs::remove_dir_all(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        make_directory(&unfinished)?;
        trees.load()?;
        Ok(trees)
    }

    fn load(&self) -> io::Result<()> {
        let mut index = self.index();
        for (project, directory) in entries(&self.root.join("projects"))? {
            for (_, path) in entries(&directory.join("packs"))? {
                match pack::read(&path) {
                    Ok(rows) => index.add_pack(&project, path, &rows),
                    // Whoever needs its chunks uploads them again.
                    Err(error) => tracing::error!(pack = %path.display(), %error, "left aside"),
                }
            }
            for (name, _) in entries(&directory.join("trees"))? {
                if let Some(tree) = Hash::from_hex(&name) {
                    index.add_tree(&project, tree);
                }
            }
        }
        Ok(())
    }

    // The index is whole after every statement, so a panic elsewhere does not spoil it.
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Projects may be called anything, so their directories are called by hash.
    fn directory(&self, project: &str) -> (String, PathBuf) {
        let name = HEXLOWER.encode(&sha256(project.as_bytes()));
        let path = self.root.join("projects").join(&name);
        (name, path)
    }

    /// Room for one upload.
    pub fn permit(&self) -> Result<OwnedSemaphorePermit, TreesError> {
        self.uploads.clone().try_acquire_owned().map_err(|_| TreesError::Busy)
    }

    /// A path for a file that is being uploaded. It goes at the next start at the latest.
    pub fn unfinished(&self) -> Result<PathBuf, TreesError> {
        let name = HEXLOWER.encode(&random::bytes::<16>()?);
        Ok(self.root.join("unfinished").join(name))
    }

    /// The chunks of a tree that the project does not have, each once.
    pub fn missing(&self, project: &str, tree: &Tree) -> Vec<Hash> {
        let (project, _) = self.directory(project);
        let index = self.index();
        let have = index.projects.get(&project);
        let has = |chunk: &ChunkRef| have.is_some_and(|have| have.chunks.contains_key(&chunk.hash));
        tree.distinct_chunks().into_iter().filter(|c| !has(c)).map(|c| c.hash).collect()
    }

    /// Stores the chunks of a body; they are durable when this returns.
    pub fn add_batch(&self, project: &str, body: &[u8]) -> Result<Added, TreesError> {
        let chunks = batch::chunks(body)?;
        let named: Vec<_> = chunks.into_iter().map(|chunk| (Hash::of(chunk), chunk)).collect();
        self.add(project, &named)
    }

    fn add(&self, project: &str, chunks: &[(Hash, &[u8])]) -> Result<Added, TreesError> {
        let (project, directory) = self.directory(project);
        let mut new: Vec<(Hash, &[u8])> = Vec::new();
        {
            let index = self.index();
            let have = index.projects.get(&project);
            let mut seen = HashSet::new();
            for (hash, chunk) in chunks {
                let known = have.is_some_and(|have| have.chunks.contains_key(hash));
                if !known && seen.insert(*hash) {
                    new.push((*hash, chunk));
                }
            }
            let bytes: u64 = new.iter().map(|(_, chunk)| chunk.len() as u64).sum();
            let of_project = have.map_or(0, |have| have.bytes);
            let full = index.bytes.saturating_add(bytes) > MAX_TOTAL_BYTES
                || of_project.saturating_add(bytes) > MAX_PROJECT_BYTES
                || index.chunks + new.len() > MAX_CHUNKS
                || index.packs >= MAX_PACKS;
            if full && !new.is_empty() {
                return Err(index.full());
            }
        }
        let added = Added { stored: new.len(), known: chunks.len() - new.len() };
        if new.is_empty() {
            return Ok(added);
        }
        let unfinished = self.unfinished()?;
        let rows = match pack::write(&unfinished, &new) {
            Ok(rows) => rows,
            Err(error) => {
                remove(&unfinished);
                return Err(error.into());
            }
        };
        let name = unfinished.file_name().unwrap_or_default();
        let path = directory.join("packs").join(name).with_extension("pack");
        self.give_name(&unfinished, &path)?;
        self.index().add_pack(&project, path, &rows);
        Ok(added)
    }

    /// Keeps the list of a tree whose chunks are all there, durably. False when it was there.
    pub fn add_tree(
        &self,
        project: &str,
        said: Hash,
        list: &[u8],
    ) -> Result<(Tree, bool), TreesError> {
        let is = Hash::of(list);
        if is != said {
            return Err(TreesError::Lies { said, is });
        }
        let tree = Tree::from_bytes(list)?;
        let new = self.keep(project, is, &tree, list)?;
        Ok((tree, new))
    }

    fn keep(
        &self,
        project: &str,
        name: Hash,
        tree: &Tree,
        list: &[u8],
    ) -> Result<bool, TreesError> {
        let (project, directory) = self.directory(project);
        {
            let index = self.index();
            let have = index.projects.get(&project);
            if have.is_some_and(|have| have.trees.contains(&name)) {
                return Ok(false);
            }
            let mut missing = 0;
            for chunk in tree.distinct_chunks() {
                match have.and_then(|have| have.chunks.get(&chunk.hash)) {
                    None => missing += 1,
                    Some(place) if place.bytes != chunk.bytes => {
                        return Err(TreesError::Size(chunk.hash));
                    }
                    Some(_) => {}
                }
            }
            if missing > 0 {
                return Err(TreesError::Missing(missing));
            }
            if index.trees >= MAX_TREES {
                return Err(index.full());
            }
        }
        let unfinished = self.unfinished()?;
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
        let written = io::Write::write_all(&mut &file, list).and_then(|()| file.sync_all());
        if let Err(error) = written {
            remove(&unfinished);
            return Err(error.into());
        }
        self.give_name(&unfinished, &directory.join("trees").join(name.hex()))?;
        self.index().add_tree(&project, name);
        Ok(true)
    }

    /// Renames a finished file, durably.
    fn give_name(&self, unfinished: &Path, path: &Path) -> io::Result<()> {
        let directory = path.parent().unwrap_or(&self.root);
        let known = directory.exists();
        make_directory(directory)?;
        std::fs::rename(unfinished, path)?;
        let mut above = Some(directory);
        while let Some(directory) = above.filter(|path| path.starts_with(self.root.as_path())) {
            File::open(directory)?.sync_all()?;
            // Directories that were there have their names already.
            above = if known { None } else { directory.parent() };
        }
        Ok(())
    }

    /// Whether the project has a tree.
    pub fn has(&self, project: &str, tree: Hash) -> bool {
        let (project, _) = self.directory(project);
        self.index().projects.get(&project).is_some_and(|have| have.trees.contains(&tree))
    }

    /// The list of a tree of the project; `None` when it has no such tree.
    pub fn list(&self, project: &str, tree: Hash) -> Result<Option<Vec<u8>>, TreesError> {
        if !self.has(project, tree) {
            return Ok(None);
        }
        let (_, directory) = self.directory(project);
        let file = File::open(directory.join("trees").join(tree.hex()))?;
        let mut list = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, MAX_MANIFEST_BYTES as u64 + 1), &mut list)?;
        if Hash::of(&list) != tree {
            return Err(TreesError::Damaged(tree));
        }
        Ok(Some(list))
    }

    /// The bytes of one chunk of the project.
    pub fn chunk(&self, project: &str, chunk: &ChunkRef) -> Result<Vec<u8>, TreesError> {
        let (project, _) = self.directory(project);
        let found = {
            let index = self.index();
            let have = index.projects.get(&project);
            have.and_then(|have| {
                let place = *have.chunks.get(&chunk.hash)?;
                Some((have.packs.get(place.pack as usize)?.clone(), place))
            })
        };
        let Some((pack, place)) = found else { return Err(TreesError::Missing(1)) };
        let mut bytes = vec![0; place.bytes as usize];
        File::open(pack.as_path())?.read_exact_at(&mut bytes, place.offset)?;
        if Hash::of(&bytes) != chunk.hash || place.bytes != chunk.bytes {
            return Err(TreesError::Damaged(chunk.hash));
        }
        Ok(bytes)
    }

    /// Makes a tree of an archive. Everything that an archive can say is checked before the first
    /// chunk is stored; nothing is ever unpacked into files here.
    pub fn import_zip(&self, project: &str, archive: &File) -> Result<Tree, TreesError> {
        let tree = unzip::import(self, project, archive)?;
        let list = tree.to_bytes();
        self.keep(project, Hash::of(&list), &tree, &list)?;
        Ok(tree)
    }
}

/// Names and paths in a directory, in order; none when it is not there.
fn entries(directory: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let read = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let mut out = Vec::new();
    for entry in read {
        let entry = entry?;
        out.extend(entry.file_name().into_string().ok().map(|name| (name, entry.path())));
    }
    out.sort();
    Ok(out)
}

fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn remove(unfinished: &Path) {
    if let Err(error) = std::fs::remove_file(unfinished) {
        tracing::warn!(%error, "an unfinished upload is left until the next start");
    }
}

#[cfg(test)]
mod tests;
