//! A copy of a store in a format of our own, so that no fault of the database takes all history.
//!
//! A file is 8 bytes of magic, then records: length of the body (u32, little endian), CRC-32 of the
//! body (u32), body. The first byte of a body is its kind: one header (JSON), then rows, then the end,
//! which holds the number of rows and a SHA-256 of everything before it: a file that was cut off,
//! or whose records were changed as a whole, shows.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use gangline_common::time::wall_text;
use ring::digest;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use super::{Counts, STORE_VERSION, StoreError, WRITTEN_BY, record};

const MAGIC: &[u8; 8] = b"GLSTORE\x01";
/// Of the format itself; the rows have the layout that the header names.
const FORMAT: u32 = 1;
/// No body is longer: the longest record and its key.
const BODY_LIMIT: usize = (16 << 20) + 4096;
const HEADER: u8 = 1;
const ROW: u8 = 2;
const END: u8 = 3;

/// A copy cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is damaged at byte {at}: {reason}")]
    Damaged { at: u64, reason: String },
    #[error(
        "it was made by gangline-coordinator {written_by} with layout {found}; this build \
         ({WRITTEN_BY}) reads layouts 1 to {STORE_VERSION}"
    )]
    Newer { found: u32, written_by: String },
}

/// Values among these rows that only the key of secrets opens: secrets, and addresses of webhooks.
pub fn sealed(rows: &Counts) -> u64 {
    ["secrets", "webhooks"].iter().filter_map(|table| rows.get(*table)).sum()
}

/// The first record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Layout of the store, and of every row.
    pub store_version: u32,
    /// Version of the program that made the copy.
    pub written_by: String,
    pub era: u32,
    pub cluster: String,
    /// When it was made, in milliseconds since 1970.
    pub wall_ms: u64,
    /// Number of rows that follow, by table.
    pub rows: Counts,
}

#[derive(Serialize, Deserialize)]
struct Tagged {
    format: u32,
    #[serde(flatten)]
    header: Header,
}

/// A whole copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub header: Header,
    pub rows: u64,
    pub bytes: u64,
}

impl Summary {
    pub fn jobs(&self) -> u64 {
        self.header.rows.get("jobs").copied().unwrap_or(0)
    }

    /// Values that only the key of secrets opens.
    pub fn sealed(&self) -> u64 {
        sealed(&self.header.rows)
    }

    /// For people: "3 jobs, 12 rows, 4096 bytes, era 1, of 2026-...".
    pub fn sentence(&self) -> String {
        let Header { era, wall_ms, .. } = &self.header;
        let (jobs, rows, bytes) = (self.jobs(), self.rows, self.bytes);
        let made = wall_text(*wall_ms);
        format!("{jobs} jobs, {rows} records, {bytes} bytes, era {era}, made {made}")
    }
}

/// Writes a copy, record by record.
pub struct Writer<W> {
    out: W,
    header: Header,
    rows: u64,
    bytes: u64,
    hash: digest::Context,
}

impl<W: io::Write> Writer<W> {
    pub fn begin(out: W, header: Header) -> Result<Self, BackupError> {
        let json = serde_json::to_vec(&Tagged { format: FORMAT, header: header.clone() });
        let body = [&[HEADER], &*json.map_err(io::Error::other)?].concat();
        let hash = digest::Context::new(&digest::SHA256);
        let mut writer = Writer { out, header, rows: 0, bytes: 0, hash };
        writer.put(MAGIC)?;
        writer.record(&body)?;
        Ok(writer)
    }

    /// Appends a row.
    pub fn row(&mut self, table: &str, key: &str, value: &[u8]) -> Result<(), BackupError> {
        let mut body = Vec::with_capacity(9 + table.len() + key.len() + value.len());
        body.push(ROW);
        for text in [table, key] {
            body.extend((text.len() as u32).to_le_bytes());
            body.extend(text.as_bytes());
        }
        body.extend(value);
        self.rows += 1;
        self.record(&body)
    }

    /// The last record; `out` is flushed.
    pub fn end(mut self) -> Result<Summary, BackupError> {
        let mut body = vec![END];
        body.extend(self.rows.to_le_bytes());
        body.extend(self.hash.clone().finish().as_ref());
        self.record(&body)?;
        self.out.flush()?;
        Ok(Summary { header: self.header, rows: self.rows, bytes: self.bytes })
    }

    fn record(&mut self, body: &[u8]) -> Result<(), BackupError> {
        if body.len() > BODY_LIMIT {
            return Err(io::Error::other("a record is too long for a copy").into());
        }
        self.put(&(body.len() as u32).to_le_bytes())?;
        self.put(&crc32fast::hash(body).to_le_bytes())?;
        self.put(body)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.out.write_all(bytes)?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// A row of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub table: String,
    pub key: String,
    pub value: Vec<u8>,
}

/// Reads a copy, record by record. Only after `next` has answered `None` is all of it known to be
/// right.
pub struct Reader<R> {
    input: R,
    header: Header,
    seen: Counts,
    rows: u64,
    bytes: u64,
    hash: digest::Context,
    /// Read, and not yet part of the hash: the last record is not.
    unhashed: Vec<u8>,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// It is no copy, damaged, or of a newer build.
    pub fn begin(input: R) -> Result<Self, BackupError> {
        let none = Header {
            store_version: 0,
            written_by: String::new(),
            era: 0,
            cluster: String::new(),
            wall_ms: 0,
            rows: Counts::new(),
        };
        let mut reader = Reader {
            input,
            header: none,
            seen: Counts::new(),
            rows: 0,
            bytes: 0,
            hash: digest::Context::new(&digest::SHA256),
            unhashed: Vec::new(),
            ended: false,
        };
        let magic = reader.take(MAGIC.len())?;
        if magic != MAGIC {
            return Err(BackupError::Damaged {
                at: 0,
                reason: "it is not a backup of gangline-coordinator".to_owned(),
            });
        }
        let body = reader.record()?;
        let Some((&HEADER, json)) = body.split_first() else {
            return Err(reader.damaged("it does not begin with a header"));
        };
        let tagged: Tagged = serde_json::from_slice(json)
            .map_err(|e| reader.damaged(&format!("its header does not parse: {e}")))?;
        reader.header = tagged.header;
        let Header { store_version: found, written_by, .. } = &reader.header;
        if tagged.format != FORMAT || *found > STORE_VERSION {
            return Err(BackupError::Newer { found: *found, written_by: written_by.clone() });
        }
        Ok(reader)
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next row; `None` after the last one, when everything before it was right.
    pub fn next_row(&mut self) -> Result<Option<Row>, BackupError> {
        if self.ended {
            return Ok(None);
        }
        self.hash.update(&std::mem::take(&mut self.unhashed));
        let body = self.record()?;
        match body.split_first() {
            Some((&ROW, rest)) => {
                let row = parse_row(rest).ok_or_else(|| self.damaged("a row does not parse"))?;
                self.rows += 1;
                *self.seen.entry(row.table.clone()).or_default() += 1;
                Ok(Some(row))
            }
            Some((&END, rest)) => {
                self.check_end(rest)?;
                self.ended = true;
                Ok(None)
            }
            _ => Err(self.damaged("a record has an unknown kind")),
        }
    }

    /// What was read; meaningful after the last row.
    pub fn summary(self) -> Summary {
        Summary { header: self.header, rows: self.rows, bytes: self.bytes }
    }

    fn check_end(&mut self, rest: &[u8]) -> Result<(), BackupError> {
        let expected = self.hash.clone().finish();
        let rows = rest.first_chunk::<8>().map(|rows| u64::from_le_bytes(*rows));
        if rows != Some(self.rows) || rest.get(8..) != Some(expected.as_ref()) {
            return Err(self.damaged("it does not hold what its end says"));
        }
        let counted =
            |(table, rows): (&String, &u64)| self.seen.get(table).copied().unwrap_or(0) == *rows;
        if !self.header.rows.iter().all(counted) {
            return Err(self.damaged("it does not hold what its header says"));
        }
        let mut more = [0];
        if self.input.read(&mut more)? != 0 {
            return Err(self.damaged("it goes on after its end"));
        }
        Ok(())
    }

    /// The body of the next record.
    fn record(&mut self) -> Result<Vec<u8>, BackupError> {
        let head = self.take(8)?;
        let word = |at: usize| head.get(at..).and_then(|head| head.first_chunk::<4>().copied());
        let (Some(length), Some(crc)) = (word(0), word(4)) else {
            return Err(self.damaged("it is cut off"));
        };
        let length = u32::from_le_bytes(length) as usize;
        if length > BODY_LIMIT {
            return Err(self.damaged("a record is too long"));
        }
        let body = self.take(length)?;
        if crc32fast::hash(&body) != u32::from_le_bytes(crc) {
            return Err(self.damaged("the checksum of a record is wrong"));
        }
        Ok(body)
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>, BackupError> {
        // Grows with what is there, not with what a damaged length says.
        let mut bytes = Vec::new();
        (&mut self.input).take(length as u64).read_to_end(&mut bytes)?;
        self.bytes += bytes.len() as u64;
        if bytes.len() < length {
            return Err(self.damaged("it is cut off"));
        }
        self.unhashed.extend(&bytes);
        Ok(bytes)
    }

    fn damaged(&self, reason: &str) -> BackupError {
        BackupError::Damaged { at: self.bytes, reason: reason.to_owned() }
    }
}

fn parse_row(bytes: &[u8]) -> Option<Row> {
    let (table, rest) = text(bytes)?;
    let (key, value) = text(rest)?;
    Some(Row { table, key, value: value.to_vec() })
}

fn text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((String::from_utf8(text.to_vec()).ok()?, rest))
}

/// Whether a row of this build's layout decodes.
///
/// # Errors
/// Why it does not.
pub fn check_row(table: &str, value: &[u8]) -> Result<(), String> {
    match table {
        "audit" => record::decode_audit(value).map(drop),
        "notices" => record::decode_notice(value).map(drop),
        "books" => record::decode_spent(value).map(drop),
        "vacancies" => record::decode_vacancy(value).map(drop),
        other => record::decode(other, value).map(drop),
    }
}

/// Reads all of a copy, and decodes every record that has this build's layout.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify(input: impl Read) -> Result<Summary, BackupError> {
    let mut reader = Reader::begin(input)?;
    while let Some(row) = reader.next_row()? {
        if reader.header.store_version == STORE_VERSION {
            check_row(&row.table, &row.value).map_err(|reason| {
                reader.damaged(&format!("{}/{}: {reason}", row.table, row.key))
            })?;
        }
    }
    Ok(reader.summary())
}

/// Opens a copy for [`verify`] and [`Reader`].
pub fn open(path: &Path) -> io::Result<BufReader<File>> {
    Ok(BufReader::with_capacity(1 << 20, File::open(path)?))
}

/// Where a copy becomes a file: it appears whole and durable, or not at all, and never over another.
pub struct Destination {
    path: PathBuf,
    unfinished: PathBuf,
    file: File,
}

impl Destination {
    /// # Errors
    /// `path` exists, or nothing can be written beside it.
    pub fn new(path: &Path) -> Result<Self, BackupError> {
        use std::os::unix::fs::OpenOptionsExt;
        let problem = |text: String| BackupError::Io(io::Error::other(text));
        if path.symlink_metadata().is_ok() {
            let what = if path.is_dir() { "is a directory: name a file in it" } else { "exists" };
            return Err(problem(format!("{} {what}; a backup never overwrites", path.display())));
        }
        let Some(name) = path.file_name() else {
            return Err(problem(format!("{} is not the name of a file", path.display())));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let unfinished = path.with_file_name(hidden);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished);
        let file = file.map_err(|e| problem(format!("{}: {e}", unfinished.display())))?;
        Ok(Destination { path: path.to_owned(), unfinished, file })
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Reads it again as a whole, and gives it its name.
    pub fn publish(self) -> Result<Summary, BackupError> {
        self.file.sync_all()?;
        let summary = verify(open(&self.unfinished)?)?;
        // Neither takes a name that somebody else has taken meanwhile; not every disk has links.
        if let Err(error) = std::fs::hard_link(&self.unfinished, &self.path) {
            if error.kind() == io::ErrorKind::AlreadyExists {
                return Err(error.into());
            }
            renameat_with(CWD, &self.unfinished, CWD, &self.path, RenameFlags::NOREPLACE)
                .map_err(io::Error::from)?;
        }
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(summary)
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        // Its other name, when it was published.
        let _ = std::fs::remove_file(&self.unfinished);
    }
}
