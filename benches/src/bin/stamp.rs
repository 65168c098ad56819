//! The program that the gangs of `gang_start` run: writes the time of its first instruction, in
//! nanoseconds of the monotonic clock, as one line `TAG TIME` into a named pipe, and ends.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::OFlags;

fn main() -> ExitCode {
    let now = gangline_benches::stamps::monotonic_ns();
    let mut words = std::env::args_os().skip(1);
    let (Some(pipe), Some(tag)) = (words.next(), words.next()) else {
        eprintln!("usage: stamp PIPE TAG");
        return ExitCode::from(2);
    };
    let line = format!("{} {now}\n", tag.to_string_lossy());
    match write(pipe.as_ref(), line.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stamp: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Without blocking, so that a stamp does not outlive a bench that was killed.
fn write(pipe: &Path, line: &[u8]) -> io::Result<()> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut pipe = File::options().write(true).custom_flags(flags).open(pipe)?;
    // One short write: the lines of several writers never mix.
    pipe.write_all(line)
}
