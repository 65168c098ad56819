//! What is typed and must not be seen: from a terminal that shows nothing meanwhile, or from what is
//! piped in.

use std::io::{IsTerminal, Read};

use crate::errors::{CliError, exit};
use crate::output::Screen;

/// What is asked for.
pub(super) struct Wanted {
    /// Its word.
    pub thing: &'static str,
    /// Longest text, in bytes.
    pub most: usize,
    /// Code of the error when it cannot be used.
    pub code: &'static str,
}

/// The text as it comes: a line of a terminal, or all that is piped in.
pub(super) fn read(wanted: &Wanted, screen: &Screen) -> Result<String, CliError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        screen.hint(&format!("paste your {} (it is not shown) and press Enter:", wanted.thing));
        let _silent = Silent::begin();
        let mut text = String::new();
        stdin.read_line(&mut text).map_err(|error| cannot_read(wanted, &error))?;
        return Ok(text);
    }
    read_from(stdin, wanted)
}

/// The whole text of a reader.
pub(super) fn read_from(from: impl Read, wanted: &Wanted) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    // An end of line may follow the longest text; one byte more tells that it is too long.
    let limit = wanted.most.saturating_add(2);
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    from.take(most).read_to_end(&mut bytes).map_err(|error| cannot_read(wanted, &error))?;
    let refused = |why: &str| {
        CliError::new(exit::INVALID, wanted.code, format!("the {} {why}", wanted.thing))
    };
    if bytes.len() > limit {
        return Err(refused(&format!("has more than {} bytes", wanted.most)));
    }
    String::from_utf8(bytes).map_err(|_| refused("is not UTF-8 text"))
}

fn cannot_read(wanted: &Wanted, error: &std::io::Error) -> CliError {
    CliError::io(format!("cannot read the {}", wanted.thing), error)
}

/// A terminal that shows nothing of what is typed, until this is dropped.
struct Silent(Option<rustix::termios::Termios>);

impl Silent {
    fn begin() -> Self {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let Ok(before) = tcgetattr(std::io::stdin()) else { return Silent(None) };
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        match tcsetattr(std::io::stdin(), OptionalActions::Now, &silent) {
            Ok(()) => Silent(Some(before)),
            Err(_) => Silent(None),
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // Nothing can be done about a terminal that has gone.
            let _ = rustix::termios::tcsetattr(
                std::io::stdin(),
                rustix::termios::OptionalActions::Now,
                before,
            );
        }
    }
}
