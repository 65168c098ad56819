//! A zip archive as a tree. The archive is hostile until shown otherwise (A35): its directory is read
//! and judged as a whole, and only then content is unpacked, into chunks and never into files.
//!
//! Read here and not by a library, because every bound must hold before anything is allocated, and
//! because an archive that says two things (two entries of one name, two places for one entry) is
//! refused instead of understood in one of the ways.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use flate2::read::DeflateDecoder;
use gangline_tree::{
    ChunkRef, Chunker, Entry, Hash, Kind, MAX_ENTRIES, MAX_TREE_BYTES, Tree, TreeError, batch,
    check_path,
};

use super::{Trees, TreesError};

/// An archive of more than `RATIO_FREE` bytes may unpack to at most `RATIO` times its own size.
const RATIO: u64 = 200;
const RATIO_FREE: u64 = 64 << 20;
/// Most bytes of an archive's directory.
const MAX_DIRECTORY_BYTES: u64 = 32 << 20;
/// Longest target of a link that is looked at.
const MAX_TARGET_BYTES: u64 = 1024;

const END: [u8; 4] = *b"PK\x05\x06";
const END_BYTES: usize = 22;
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const CENTRAL_BYTES: usize = 46;
const LOCAL: [u8; 4] = *b"PK\x03\x04";
const LOCAL_BYTES: usize = 30;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;
const ENCRYPTED: u16 = 1;

/// Why an archive is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ZipProblem {
    #[error("it is not a zip archive, or it is cut off ({0})")]
    NotZip(&'static str),
    #[error("it needs the 64-bit form of zip: more than 65,534 entries or 4 GiB")]
    Zip64,
    #[error("it has more than {MAX_ENTRIES} entries")]
    TooManyEntries,
    #[error("it unpacks to {unpacked} bytes, of {packed} in the archive")]
    Bomb { packed: u64, unpacked: u64 },
    #[error("{name:?} {problem}")]
    Entry { name: String, problem: &'static str },
    #[error("{0}")]
    Tree(TreeError),
}

impl From<ZipProblem> for TreesError {
    fn from(problem: ZipProblem) -> TreesError {
        TreesError::Zip(problem)
    }
}

/// One entry, as the archive's directory has it.
struct Member {
    name: String,
    what: What,
    method: u16,
    crc: u32,
    packed: u64,
    unpacked: u64,
    /// Of its local header, and of its content once that was found.
    offset: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Directory,
    File { executable: bool },
    Link,
}

/// Makes the tree of an archive and stores its chunks for the project.
pub fn import(trees: &Trees, project: &str, file: &File) -> Result<Tree, TreesError> {
    let (mut members, directory_at) = directory(file)?;
    check_sizes(&members, file.metadata()?.len())?;
    find_content(file, &mut members, directory_at)?;
    let of_tree = |error| TreesError::from(ZipProblem::Tree(error));
    // All names and links, before any content is stored.
    let mut entries = Vec::with_capacity(members.len());
    for member in &members {
        let kind = match member.what {
            What::Directory => {
                check_path(&member.name).map_err(of_tree)?;
                continue;
            }
            What::File { executable } => Kind::File { executable, chunks: Vec::new() },
            What::Link => Kind::Symlink { target: target(file, member)? },
        };
        entries.push(Entry { path: member.name.clone(), kind });
    }
    Tree::new(entries.clone()).map_err(of_tree)?;

    let mut store = Store { trees, project, waiting: Vec::new(), bytes: 0 };
    let mut chunker = Chunker::default();
    let files = members.iter().filter(|member| member.what != What::Directory);
    for (member, entry) in files.zip(&mut entries) {
        let Kind::File { chunks, .. } = &mut entry.kind else { continue };
        let mut content = Content::of(file, member);
        let cut = chunker.cut(&mut content, |chunk| {
            let hash = Hash::of(chunk);
            // A chunk has at most a MiB.
            chunks.push(ChunkRef { hash, bytes: chunk.len() as u32 });
            store.take(hash, chunk)
        });
        content.finish(cut)?;
    }
    store.flush()?;
    Tree::new(entries).map_err(of_tree)
}

fn wrong(name: &str, problem: &'static str) -> ZipProblem {
    ZipProblem::Entry { name: name.chars().take(200).collect(), problem }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let pair = bytes.get(at..at + 2).unwrap_or_default();
    pair.iter().rev().fold(0, |number, byte| number << 8 | u16::from(*byte))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).unwrap_or_default();
    four.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The entries, and where their directory begins.
fn directory(file: &File) -> Result<(Vec<Member>, u64), TreesError> {
    let length = file.metadata()?.len();
    let tail_bytes = length.min((END_BYTES + usize::from(u16::MAX)) as u64);
    let mut tail = vec![0; tail_bytes as usize];
    file.read_exact_at(&mut tail, length - tail_bytes)?;
    // The end record says how long the comment behind it is, and nothing comes after that.
    let ends_here = |at: &usize| {
        let record = tail.get(*at..).unwrap_or_default();
        record.starts_with(&END)
            && record.len() >= END_BYTES
            && record.len() - END_BYTES == usize::from(u16_at(record, 20))
    };
    let at = (0..tail.len()).rev().find(ends_here);
    let at = at.ok_or(ZipProblem::NotZip("it has no end record"))?;
    let record = tail.get(at..).unwrap_or_default();
    let end_at = length - tail_bytes + at as u64;
    let (count, bytes, from) = (u16_at(record, 10), u32_at(record, 12), u32_at(record, 16));
    if count == u16::MAX || bytes == u32::MAX || from == u32::MAX {
        return Err(ZipProblem::Zip64.into());
    }
    if u16_at(record, 4) != 0 || u16_at(record, 6) != 0 || u16_at(record, 8) != count {
        return Err(ZipProblem::NotZip("it is in several parts").into());
    }
    let (count, bytes, from) = (usize::from(count), u64::from(bytes), u64::from(from));
    if from + bytes != end_at || bytes > MAX_DIRECTORY_BYTES {
        return Err(ZipProblem::NotZip("its directory is not where it says").into());
    }
    if count > MAX_ENTRIES {
        return Err(ZipProblem::TooManyEntries.into());
    }
    let mut table = vec![0; bytes as usize];
    file.read_exact_at(&mut table, from)?;
    let mut rest = table.as_slice();
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        let (member, after) = central(rest)?;
        members.push(member);
        rest = after;
    }
    if !rest.is_empty() {
        return Err(ZipProblem::NotZip("its directory has more than it says").into());
    }
    Ok((members, from))
}

/// One row of the directory, and what is behind it.
fn central(bytes: &[u8]) -> Result<(Member, &[u8]), ZipProblem> {
    let cut = ZipProblem::NotZip("its directory is cut off");
    let Some((head, rest)) = bytes.split_at_checked(CENTRAL_BYTES) else { return Err(cut) };
    if !head.starts_with(&CENTRAL) {
        return Err(ZipProblem::NotZip("its directory has something else in it"));
    }
    let name_bytes = usize::from(u16_at(head, 28));
    let others = usize::from(u16_at(head, 30)) + usize::from(u16_at(head, 32));
    let split = rest.split_at_checked(name_bytes);
    let Some((name, rest)) = split else { return Err(cut) };
    let Some((_, rest)) = rest.split_at_checked(others) else { return Err(cut) };
    let Ok(name) = std::str::from_utf8(name) else {
        return Err(wrong(&String::from_utf8_lossy(name), "has a name that is not UTF-8"));
    };
    let (packed, unpacked, offset) = (u32_at(head, 20), u32_at(head, 24), u32_at(head, 42));
    if [packed, unpacked, offset].contains(&u32::MAX) {
        return Err(ZipProblem::Zip64);
    }
    if u16_at(head, 8) & ENCRYPTED != 0 {
        return Err(wrong(name, "is encrypted"));
    }
    let method = u16_at(head, 10);
    if !matches!(method, STORED | DEFLATED) {
        return Err(wrong(name, "is packed in a way that is not read; use deflate"));
    }
    if name.contains('\\') {
        return Err(wrong(name, "has a `\\` in its name; zip's separator is `/`"));
    }
    let mode = u32_at(head, 38) >> 16;
    let what = what(name, mode).map_err(|problem| wrong(name, problem))?;
    if what == What::Directory && unpacked > 0 {
        return Err(wrong(name, "is a directory with content"));
    }
    let member = Member {
        name: name.trim_end_matches('/').to_owned(),
        what,
        method,
        crc: u32_at(head, 16),
        packed: packed.into(),
        unpacked: unpacked.into(),
        offset: offset.into(),
    };
    Ok((member, rest))
}

/// What an entry is, from its Unix mode, which is 0 when a program gave none.
fn what(name: &str, mode: u32) -> Result<What, &'static str> {
    if mode & 0o6000 != 0 {
        return Err("has a setuid or setgid bit");
    }
    let named_directory = name.ends_with('/');
    match mode & 0o170_000 {
        0o040_000 if named_directory => Ok(What::Directory),
        0 if named_directory => Ok(What::Directory),
        0 | 0o100_000 if !named_directory => Ok(What::File { executable: mode & 0o111 != 0 }),
        0o120_000 if !named_directory => Ok(What::Link),
        _ => Err("is no file, directory or link"),
    }
}

fn check_sizes(members: &[Member], archive: u64) -> Result<(), ZipProblem> {
    let unpacked = members.iter().fold(0u64, |sum, m| sum.saturating_add(m.unpacked));
    let ratio = unpacked > RATIO_FREE && unpacked > archive.saturating_mul(RATIO);
    if unpacked > MAX_TREE_BYTES || ratio {
        return Err(ZipProblem::Bomb { packed: archive, unpacked });
    }
    Ok(())
}

/// Replaces the place of each local header by that of the content behind it, and makes sure that no
/// two entries share any of it.
fn find_content(file: &File, members: &mut [Member], end: u64) -> Result<(), TreesError> {
    let mut places = Vec::with_capacity(members.len());
    let mut names = std::collections::HashSet::new();
    for member in members {
        if !names.insert(member.name.clone()) {
            return Err(wrong(&member.name, "is there twice").into());
        }
        let begin = member.offset;
        let mut head = [0; LOCAL_BYTES];
        let outside = || wrong(&member.name, "lies outside of the archive");
        if begin.saturating_add(LOCAL_BYTES as u64) > end {
            return Err(outside().into());
        }
        file.read_exact_at(&mut head, begin)?;
        let name_bytes = usize::from(u16_at(&head, 26));
        let behind = (LOCAL_BYTES + name_bytes + usize::from(u16_at(&head, 28))) as u64;
        if begin + behind + member.packed > end {
            return Err(outside().into());
        }
        let mut name = vec![0; name_bytes];
        file.read_exact_at(&mut name, begin + LOCAL_BYTES as u64)?;
        let same = name.strip_suffix(b"/").unwrap_or(&name) == member.name.as_bytes()
            && head.starts_with(&LOCAL)
            && u16_at(&head, 8) == member.method;
        if !same {
            let problem = "is something else in the archive's directory";
            return Err(wrong(&member.name, problem).into());
        }
        member.offset = begin + behind;
        places.push((begin, member.offset + member.packed));
    }
    places.sort_unstable();
    let overlap = places.windows(2).any(|pair| matches!(pair, [a, b] if a.1 > b.0));
    if overlap {
        return Err(ZipProblem::NotZip("entries share their content").into());
    }
    Ok(())
}

fn target(file: &File, member: &Member) -> Result<String, TreesError> {
    if member.unpacked > MAX_TARGET_BYTES {
        return Err(wrong(&member.name, "is a link with a target that is too long").into());
    }
    let mut content = Content::of(file, member);
    let mut bytes = Vec::new();
    let read = content.read_to_end(&mut bytes);
    content.finish(read.map(drop).map_err(TreesError::from))?;
    let text = String::from_utf8(bytes);
    text.map_err(|_| wrong(&member.name, "is a link with a target that is not UTF-8").into())
}

/// The unpacked content of one entry: exactly as much as was said, whatever the archive holds.
struct Content<'a> {
    member: &'a Member,
    source: Box<dyn Read + 'a>,
    read: u64,
    crc: crc32fast::Hasher,
    /// It does not unpack.
    broken: bool,
}

impl<'a> Content<'a> {
    fn of(file: &'a File, member: &'a Member) -> Content<'a> {
        let packed = Section { file, at: member.offset, left: member.packed };
        let source: Box<dyn Read + 'a> = match member.method {
            STORED => Box::new(packed),
            _ => Box::new(DeflateDecoder::new(packed)),
        };
        // One byte more would show that there is more.
        let source = Box::new(source.take(member.unpacked + 1));
        Content { member, source, read: 0, crc: crc32fast::Hasher::new(), broken: false }
    }

    /// What reading all of it came to.
    fn finish(self, reading: Result<(), TreesError>) -> Result<(), TreesError> {
        if self.broken {
            return Err(wrong(&self.member.name, "does not unpack").into());
        }
        reading?;
        if self.read != self.member.unpacked || self.crc.finalize() != self.member.crc {
            return Err(wrong(&self.member.name, "is not what the archive says of it").into());
        }
        Ok(())
    }
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer).inspect_err(|_| self.broken = true)?;
        self.crc.update(buffer.get(..count).unwrap_or_default());
        self.read += count as u64;
        Ok(count)
    }
}

/// A part of a file.
struct Section<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read_at(buffer.get_mut(..most).unwrap_or_default(), self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Stores chunks, as many together as one upload brings.
struct Store<'a> {
    trees: &'a Trees,
    project: &'a str,
    waiting: Vec<(Hash, Vec<u8>)>,
    bytes: usize,
}

impl Store<'_> {
    fn take(&mut self, hash: Hash, chunk: &[u8]) -> Result<(), TreesError> {
        self.waiting.push((hash, chunk.to_vec()));
        self.bytes += chunk.len();
        if self.bytes >= batch::MAX_BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), TreesError> {
        let chunks: Vec<(Hash, &[u8])> =
            self.waiting.iter().map(|(hash, chunk)| (*hash, chunk.as_slice())).collect();
        self.trees.add(self.project, &chunks)?;
        self.waiting.clear();
        self.bytes = 0;
        Ok(())
    }
}
