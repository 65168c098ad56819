//! Where log bytes go: cleaned for a terminal, raw, or as JSON lines.

use std::io::Write;

use serde_json::json;

use crate::errors::CliError;
use crate::output::Screen;
use crate::terminal::LogCleaner;

/// Takes a log piece by piece, in order.
#[derive(Debug)]
pub struct LogSink<'a> {
    screen: &'a Screen,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Clean(LogCleaner),
    Raw,
    Json,
}

impl<'a> LogSink<'a> {
    /// A sink to stdout; `raw` lets control sequences through. JSON is never raw.
    pub fn new(screen: &'a Screen, raw: bool) -> Self {
        let form = match (screen.is_json(), raw) {
            (true, _) => Form::Json,
            (false, true) => Form::Raw,
            (false, false) => Form::Clean(LogCleaner::default()),
        };
        Self { screen, form }
    }

    /// The bytes of the log of `attempt` from `offset` on. A character that is cut at the end is held back in
    /// the cleaned form, and marked in JSON.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn push(
        &mut self,
        attempt: Option<u32>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), CliError> {
        match &mut self.form {
            Form::Clean(cleaner) => {
                let text = cleaner.push(bytes);
                if text.is_empty() { Ok(()) } else { self.screen.plain(&text) }
            }
            Form::Raw => write_raw(bytes),
            Form::Json => {
                let text = String::from_utf8_lossy(bytes);
                self.screen
                    .json_line(&json!({ "attempt": attempt, "offset": offset, "text": text }))
            }
        }
    }

    /// Print what is held back: the log has ended, or the user goes away.
    ///
    /// # Errors
    /// Stdout cannot be written.
    pub fn finish(&mut self) -> Result<(), CliError> {
        let Form::Clean(cleaner) = &mut self.form else {
            return Ok(());
        };
        let text = cleaner.finish();
        if text.is_empty() { Ok(()) } else { self.screen.plain(&format!("{text}\n")) }
    }
}

fn write_raw(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| CliError::io("cannot write to stdout", &error))
}
