//! The list of a tree's files, and its bytes. There is one way to write a tree, so that a tree has
//! one name.
//!
//! ```text
//! "gangline tree 1\n", then per entry, in the order of paths, with big-endian lengths:
//!   'f' or 'x' (executable) | u16 path | u32 count | count x (32-byte BLAKE3, u32 bytes)
//!   'l' (link)              | u16 path | u16 target
//! ```

use std::collections::HashSet;

use crate::hash::Hash;
use crate::rules::{TreeError, check};

/// Most entries of a tree, most bytes of its files, and most bytes of its list.
pub const MAX_ENTRIES: usize = 60_000;
pub const MAX_TREE_BYTES: u64 = 8 << 30;
pub const MAX_MANIFEST_BYTES: usize = 16 << 20;

const MAGIC: &[u8] = b"gangline tree 1\n";

/// One chunk of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRef {
    pub hash: Hash,
    pub bytes: u32,
}

/// What an entry is. Directories are there because files are in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File { executable: bool, chunks: Vec<ChunkRef> },
    Symlink { target: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Relative, with `/` between names.
    pub path: String,
    pub kind: Kind,
}

impl Entry {
    /// Bytes of the file; 0 for a link.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::File { chunks, .. } => chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum(),
            Kind::Symlink { .. } => 0,
        }
    }
}

/// A tree that keeps the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    entries: Vec<Entry>,
}

impl Tree {
    /// The tree of these entries, in any order.
    ///
    /// # Errors
    /// A rule that they break.
    pub fn new(mut entries: Vec<Entry>) -> Result<Tree, TreeError> {
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        check(&entries)?;
        let tree = Tree { entries };
        if tree.to_bytes().len() > MAX_MANIFEST_BYTES {
            return Err(TreeError::ListTooLong);
        }
        Ok(tree)
    }

    /// Reads a list that anybody may have written.
    ///
    /// # Errors
    /// It is no list, or breaks a rule.
    pub fn from_bytes(bytes: &[u8]) -> Result<Tree, TreeError> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(TreeError::ListTooLong);
        }
        let rest = bytes.strip_prefix(MAGIC).ok_or(TreeError::Malformed("it begins otherwise"))?;
        let mut input = Input(rest);
        let mut entries = Vec::new();
        while !input.0.is_empty() {
            if entries.len() >= MAX_ENTRIES {
                return Err(TreeError::TooManyEntries);
            }
            entries.push(input.entry()?);
        }
        check(&entries)?;
        Ok(Tree { entries })
    }

    /// The list as it is stored and sent.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        // The rules keep every length far below what its field can hold.
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend_from_slice(&(text.len() as u16).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        };
        for entry in &self.entries {
            match &entry.kind {
                Kind::File { executable, chunks } => {
                    out.push(if *executable { b'x' } else { b'f' });
                    text(&mut out, &entry.path);
                    out.extend_from_slice(&(chunks.len() as u32).to_be_bytes());
                    for chunk in chunks {
                        out.extend_from_slice(&chunk.hash.0);
                        out.extend_from_slice(&chunk.bytes.to_be_bytes());
                    }
                }
                Kind::Symlink { target } => {
                    out.push(b'l');
                    text(&mut out, &entry.path);
                    text(&mut out, target);
                }
            }
        }
        out
    }

    /// The tree's name.
    #[must_use]
    pub fn name(&self) -> Hash {
        Hash::of(&self.to_bytes())
    }

    /// In the order of paths.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(Entry::bytes).sum()
    }

    /// Every chunk of every file, in order; the same one may come again.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkRef> + '_ {
        self.entries
            .iter()
            .flat_map(|entry| match &entry.kind {
                Kind::File { chunks, .. } => chunks.as_slice(),
                Kind::Symlink { .. } => &[],
            })
            .copied()
    }

    /// Every chunk once, in the order of its first use.
    #[must_use]
    pub fn distinct_chunks(&self) -> Vec<ChunkRef> {
        let mut seen = HashSet::new();
        self.chunks().filter(|chunk| seen.insert(chunk.hash)).collect()
    }

    /// The names right below the root.
    #[must_use]
    pub fn top_names(&self) -> Vec<&str> {
        let tops = self.entries.iter().filter_map(|entry| entry.path.split('/').next());
        let mut names: Vec<&str> = tops.collect();
        // `a-b` sorts between `a` and `a/c`, so the same name need not be in one place.
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], TreeError> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or(TreeError::Malformed("it is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TreeError> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| TreeError::Malformed("it is cut off"))
    }

    fn text(&mut self) -> Result<String, TreeError> {
        let length = u16::from_be_bytes(self.array()?);
        let text = std::str::from_utf8(self.take(length.into())?);
        text.map(str::to_owned).map_err(|_| TreeError::Malformed("a path is not UTF-8"))
    }

    fn entry(&mut self) -> Result<Entry, TreeError> {
        const CHUNK: usize = 36;
        let [kind] = self.array()?;
        let path = self.text()?;
        let kind = match kind {
            b'f' | b'x' => {
                let count = u32::from_be_bytes(self.array()?) as usize;
                // Nothing is set aside for chunks that are not there.
                if count > self.0.len() / CHUNK {
                    return Err(TreeError::Malformed("it is cut off"));
                }
                let mut chunks = Vec::with_capacity(count);
                for _ in 0..count {
                    let hash = Hash(self.array()?);
                    chunks.push(ChunkRef { hash, bytes: u32::from_be_bytes(self.array()?) });
                }
                Kind::File { executable: kind == b'x', chunks }
            }
            b'l' => Kind::Symlink { target: self.text()? },
            _ => return Err(TreeError::Malformed("an entry is of no known kind")),
        };
        Ok(Entry { path, kind })
    }
}
