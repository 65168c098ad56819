//! The program that the gangs of `gang_start` run: writes the time of its first instruction, in
//! nanoseconds of the monotonic clock, as one line `TAG TIME` into a named pipe, and ends.

use std::fs::File;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let now = gangline_benches::stamps::monotonic_ns();
    let mut words = std::env::args_os().skip(1);
    let (Some(pipe), Some(tag)) = (words.next(), words.next()) else {
        eprintln!("usage: stamp PIPE TAG");
        return ExitCode::from(2);
    };
    let line = format!("{} {now}\n", tag.to_string_lossy());
    // One short write: the lines of several writers never mix.
    match File::options()
        .write(true)
        .open(pipe)
        .and_then(|mut pipe| pipe.write_all(line.as_bytes()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stamp: {error}");
            ExitCode::FAILURE
        }
    }
}
