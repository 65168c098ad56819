//! A compressed archive of texts: gzip around the common form of tar (ustar).

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Longest name of a file in an archive, in bytes.
const MAX_NAME: usize = 100;
/// Archives are made of blocks of this size, in bytes.
const BLOCK: usize = 512;
/// Rights of every file in it: its owner reads and writes.
const MODE: u64 = 0o600;

/// An archive that is being written.
pub struct Archive<W: Write> {
    out: GzEncoder<W>,
    /// Seconds since 1970.
    time: u64,
}

impl<W: Write> Archive<W> {
    /// An archive whose files all have this time, in seconds since 1970.
    pub fn new(out: W, time: u64) -> Self {
        Archive { out: GzEncoder::new(out, Compression::default()), time }
    }

    /// Adds a file.
    ///
    /// # Errors
    /// The name is too long or is no plain path, or the archive cannot be written.
    pub fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let good = |part: &str| !part.is_empty() && part != "." && part != "..";
        if name.len() > MAX_NAME || !name.is_ascii() || !name.split('/').all(good) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("the name {name:?}")));
        }
        self.out.write_all(&header(name, content.len() as u64, self.time))?;
        self.out.write_all(content)?;
        let rest = content.len().next_multiple_of(BLOCK) - content.len();
        self.out.write_all(&vec![0; rest])
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.finish()
    }
}

fn header(name: &str, size: u64, time: u64) -> Vec<u8> {
    let number = |value: u64, digits: usize| format!("{value:0digits$o}\0");
    let with_sum = |sum: &str| {
        let mut text = format!("{name:\0<100}");
        text.push_str(&number(MODE, 7));
        // User and group.
        text.push_str(&number(0, 7).repeat(2));
        text.push_str(&number(size, 11));
        text.push_str(&number(time, 11));
        text.push_str(sum);
        text.push('0');
        text.push_str(&"\0".repeat(100));
        text.push_str("ustar\x0000");
        let mut block = text.into_bytes();
        block.resize(BLOCK, 0);
        block
    };
    // The sum counts its own place as blanks.
    let sum: u64 = with_sum("        ").iter().map(|byte| u64::from(*byte)).sum();
    with_sum(&format!("{sum:06o}\0 "))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn tar_reads_it() {
        let mut archive = Archive::new(Vec::new(), 1_760_000_000);
        archive.add("a/job.json", b"{}\n").unwrap();
        archive.add("a/empty", b"").unwrap();
        archive.add("a/long", &[b'x'; 1025]).unwrap();
        for name in ["../x", "/x", "a//b", "", "\u{e4}", &"n".repeat(101)] {
            assert!(archive.add(name, b"").is_err(), "{name}");
        }
        let bytes = archive.finish().unwrap();
        let root = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar")
            .args(["-xzf", "-", "-C"])
            .arg(root.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        tar.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(tar.wait().unwrap().success());
        let read = |name: &str| std::fs::read(root.path().join(name)).unwrap();
        assert_eq!(read("a/job.json"), b"{}\n");
        assert_eq!(read("a/empty"), b"");
        assert_eq!(read("a/long"), [b'x'; 1025]);
    }
}
