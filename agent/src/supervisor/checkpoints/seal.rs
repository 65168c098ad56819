//! The encrypted form of a stream: AES-256-GCM in chunks of one mebibyte.
//!
//! ```text
//! "GLCOPY1\n"  salt (32 random bytes)  chunk, chunk, ... last chunk
//! key of the file = HKDF-SHA256(salt, key of the key file, "gangline checkpoint copy 1")
//! nonce of a chunk = 3 zero bytes, 1 for the last chunk or 0, its number (u64, big-endian)
//! ```
//!
//! Each file has a key of its own, so no nonce is used twice. A chunk that is changed, moved, left out or
//! taken from another file does not open; nor does a file that ends before its last chunk, or goes on
//! after it. Nothing is given out of a chunk that does not open.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use gangline_common::random;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

const MAGIC: &[u8; 8] = b"GLCOPY1\n";
const SALT_BYTES: usize = 32;
const PURPOSE: &[u8] = b"gangline checkpoint copy 1";
/// Bytes of a chunk, but for the last, which may have fewer or none.
const CHUNK: usize = 1 << 20;
const TAG: usize = 16;
/// Longest key file, in bytes.
const KEY_FILE_BYTES: u64 = 4096;

/// The key of all copies.
pub struct CopyKey([u8; 32]);

impl fmt::Debug for CopyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CopyKey(hidden)")
    }
}

impl CopyKey {
    /// Reads a file of 64 hexadecimal digits, as `openssl rand -hex 32` writes them.
    ///
    /// # Errors
    /// The file cannot be read, others than its owner may read it, or it holds something else.
    pub fn read(path: &Path) -> io::Result<Self> {
        let invalid = |what| io::Error::new(ErrorKind::InvalidData, what);
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(invalid("the key file is not a regular file"));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(invalid("the key file can be read by others: chmod 600"));
        }
        let mut text = String::new();
        file.take(KEY_FILE_BYTES).read_to_string(&mut text)?;
        let digits = text.trim().to_ascii_lowercase();
        let bytes = data_encoding::HEXLOWER.decode(digits.as_bytes()).ok();
        let key = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        key.map(CopyKey).ok_or_else(|| {
            invalid("the key file does not hold 64 hexadecimal digits: openssl rand -hex 32")
        })
    }

    fn of_file(&self, salt: &[u8; SALT_BYTES]) -> io::Result<LessSafeKey> {
        let broken = |_| io::Error::other("the key of a copy cannot be derived");
        let derived = Salt::new(HKDF_SHA256, salt).extract(&self.0);
        let info = [PURPOSE];
        let okm = derived.expand(&info, &AES_256_GCM).map_err(broken)?;
        Ok(LessSafeKey::new(UnboundKey::from(okm)))
    }
}

fn nonce(number: u64, is_last: bool) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    let (front, count) = bytes.split_at_mut(4);
    if let Some(last) = front.last_mut() {
        *last = u8::from(is_last);
    }
    count.copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Encrypts what is written to it. What was not finished does not open.
pub struct Sealer<W: Write> {
    out: W,
    key: LessSafeKey,
    chunk: Vec<u8>,
    number: u64,
}

impl<W: Write> Sealer<W> {
    pub fn new(mut out: W, key: &CopyKey) -> io::Result<Self> {
        let salt = random::bytes::<SALT_BYTES>().map_err(io::Error::other)?;
        out.write_all(MAGIC)?;
        out.write_all(&salt)?;
        let chunk = Vec::with_capacity(CHUNK + TAG);
        Ok(Sealer { out, key: key.of_file(&salt)?, chunk, number: 0 })
    }

    fn seal(&mut self, is_last: bool) -> io::Result<()> {
        let nonce = nonce(self.number, is_last);
        let sealed = self.key.seal_in_place_append_tag(nonce, Aad::empty(), &mut self.chunk);
        sealed.map_err(|_| io::Error::other("a chunk cannot be sealed"))?;
        self.out.write_all(&self.chunk)?;
        self.chunk.clear();
        self.number += 1;
        Ok(())
    }

    /// Writes the last chunk, and gives what was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.seal(true)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

impl<W: Write> Write for Sealer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Only now is it known that the full chunk is not the last.
        if self.chunk.len() >= CHUNK && !bytes.is_empty() {
            self.seal(false)?;
        }
        let some = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(bytes.get(..some).unwrap_or_default());
        Ok(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads what a [`Sealer`] has written. At its end everything was there, unchanged and in order.
pub struct Opener<R: Read> {
    from: R,
    key: LessSafeKey,
    /// What was opened, and how much of it was given out.
    open: Vec<u8>,
    given: usize,
    /// The first byte of the next chunk, where there is one.
    next: Option<u8>,
    number: u64,
    is_over: bool,
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the copy is damaged: {what}"))
}

impl<R: Read> Opener<R> {
    pub fn new(mut from: R, key: &CopyKey) -> io::Result<Self> {
        let mut head = [0; MAGIC.len() + SALT_BYTES];
        let mut salt = [0; SALT_BYTES];
        let read = read_full(&mut from, &mut head)?;
        let (magic, rest) = head.split_at(MAGIC.len());
        if read < head.len() || magic != MAGIC {
            return Err(damaged("it does not begin as one"));
        }
        salt.copy_from_slice(rest);
        let mut opener = Opener {
            from,
            key: key.of_file(&salt)?,
            open: Vec::new(),
            given: 0,
            next: None,
            number: 0,
            is_over: false,
        };
        opener.peek()?;
        Ok(opener)
    }

    fn peek(&mut self) -> io::Result<()> {
        let mut byte = [0];
        self.next = (read_full(&mut self.from, &mut byte)? == 1).then_some(byte[0]);
        Ok(())
    }

    fn open_chunk(&mut self) -> io::Result<()> {
        let Some(first) = self.next else { return Err(damaged("it ends too early")) };
        let mut sealed = vec![0; CHUNK + TAG];
        let Some((head, rest)) = sealed.split_first_mut() else { return Ok(()) };
        *head = first;
        let read = read_full(&mut self.from, rest)? + 1;
        sealed.truncate(read);
        self.next = None;
        if read == CHUNK + TAG {
            self.peek()?;
        }
        let is_last = self.next.is_none();
        let nonce = nonce(self.number, is_last);
        let opened = self.key.open_in_place(nonce, Aad::empty(), &mut sealed);
        let length = opened.map(|plain| plain.len()).map_err(|_| {
            damaged("a part of it is not what was written, or missing, or the key is another")
        })?;
        sealed.truncate(length);
        (self.open, self.given) = (sealed, 0);
        self.number += 1;
        self.is_over = is_last;
        Ok(())
    }
}

impl<R: Read> Read for Opener<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.given >= self.open.len() && !self.is_over {
            self.open_chunk()?;
        }
        let left = self.open.get(self.given..).unwrap_or_default();
        let some = left.len().min(into.len());
        if let (Some(into), Some(left)) = (into.get_mut(..some), left.get(..some)) {
            into.copy_from_slice(left);
        }
        self.given += some;
        Ok(some)
    }
}

/// Reads until the buffer is full or nothing comes any more.
fn read_full(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while let Some(rest) = into.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(some) => read += some,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    const KEY: CopyKey = CopyKey([7; 32]);

    fn sealed(plain: &[u8]) -> Vec<u8> {
        let mut sealer = Sealer::new(Vec::new(), &KEY).unwrap();
        sealer.write_all(plain).unwrap();
        sealer.finish().unwrap()
    }

    fn opened(sealed: &[u8], key: &CopyKey) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        Opener::new(sealed, key)?.read_to_end(&mut plain)?;
        Ok(plain)
    }

    fn text(length: usize) -> Vec<u8> {
        (0..length).map(|n| (n % 251) as u8).collect()
    }

    #[test]
    fn what_was_sealed_opens_again() {
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 17] {
            let plain = text(length);
            let sealed = sealed(&plain);
            let chunks = length.div_ceil(CHUNK).max(1);
            assert_eq!(sealed.len(), 40 + length + chunks * TAG);
            assert!(opened(&sealed, &KEY).unwrap() == plain, "{length}");
        }
        let same = text(100);
        assert_ne!(sealed(&same), sealed(&same), "each has a salt of its own");
        assert!(opened(&sealed(&same), &CopyKey([8; 32])).is_err());
    }

    #[test]
    fn chunks_that_are_moved_left_out_or_added_do_not_open() {
        let whole = sealed(&text(3 * CHUNK));
        let (head, body) = whole.split_at(40);
        let chunks: Vec<&[u8]> = body.chunks(CHUNK + TAG).collect();
        assert_eq!(chunks.len(), 3);
        let of = |order: &[usize]| {
            let parts = order.iter().map(|&n| chunks[n]);
            std::iter::once(head).chain(parts).collect::<Vec<_>>().concat()
        };
        assert!(opened(&of(&[0, 1, 2]), &KEY).is_ok());
        for order in [&[0, 1][..], &[0], &[], &[1, 0, 2], &[0, 2], &[0, 1, 2, 2], &[0, 1, 1, 2]] {
            let error = opened(&of(order), &KEY).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{order:?}");
        }
        // Of another file under the same key.
        let other = sealed(&text(3 * CHUNK));
        let mixed = [head, chunks[0], &other[40 + CHUNK + TAG..]].concat();
        assert!(opened(&mixed, &KEY).is_err());
        let longer = [&whole[..], b"x"].concat();
        assert!(opened(&longer, &KEY).is_err());
    }

    #[test]
    fn a_key_file_is_the_owners_alone() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("key");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            CopyKey::read(&path)
        };
        let digits = "0A".repeat(32);
        assert_eq!(write(&format!("{digits}\n"), 0o600).unwrap().0, [10; 32]);
        assert!(write(&digits, 0o640).unwrap_err().to_string().contains("chmod 600"));
        for wrong in ["", "0a", &digits[1..], &"0g".repeat(32), &"0a".repeat(33)] {
            assert!(write(wrong, 0o600).is_err(), "{wrong}");
        }
        assert!(CopyKey::read(root.path()).is_err());
        assert_eq!(format!("{KEY:?}"), "CopyKey(hidden)");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// One bit is enough, wherever it is, and so is one byte less.
        #[test]
        fn no_change_goes_unseen(length in 0..3000usize, at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let whole = sealed(&text(length));
            let at = at.index(whole.len());
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            prop_assert!(opened(&changed, &KEY).is_err());
            prop_assert!(opened(&whole[..at], &KEY).is_err());
        }

        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let with_head = [&MAGIC[..], &bytes].concat();
            prop_assert!(opened(&bytes, &KEY).is_err());
            prop_assert!(opened(&with_head, &KEY).is_err());
        }
    }
}
