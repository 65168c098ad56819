//! A log file as a reader sees it: durable bytes at offsets, whatever its form on disk is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::packed::Packed;

/// An open log file. It stays readable when it is compressed or removed meanwhile.
#[derive(Debug)]
pub struct LogFile {
    form: Form,
    length: u64,
}

#[derive(Debug)]
enum Form {
    Plain(File),
    Packed(Packed),
}

impl LogFile {
    /// A plain file of which `length` bytes are durable.
    pub(super) fn open_plain(path: &Path, length: u64) -> io::Result<LogFile> {
        Ok(LogFile { form: Form::Plain(File::open(path)?), length })
    }

    pub(super) fn open_packed(path: &Path) -> io::Result<LogFile> {
        let packed = Packed::open(path)?;
        Ok(LogFile { length: packed.length(), form: Form::Packed(packed) })
    }

    /// Plain bytes, of which no more than these are read.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// At most `limit` bytes from `offset` on; fewer only at the end. Blocking.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn read_at(&mut self, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
        let available = self.length.saturating_sub(offset);
        let wanted = usize::try_from(available).unwrap_or(usize::MAX).min(limit);
        if wanted == 0 {
            return Ok(Vec::new());
        }
        match &mut self.form {
            Form::Plain(file) => {
                let mut bytes = vec![0; wanted];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            }
            Form::Packed(packed) => packed.read_at(offset, wanted),
        }
    }
}
