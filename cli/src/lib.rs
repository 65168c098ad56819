//! The command line of Gangline, a client of the coordinator's HTTP API.
//!
//! Data goes to stdout, everything else to stderr; exit codes say what happened (see
//! [`errors::exit`]). One command runs as: `args` (clap) -> `config` (address, token) ->
//! `commands::*` -> `client` (HTTP) -> `view` (tolerant structs) -> `output` (formats, tables).
//! `top` is a screen of its own, `sparkline` a chart of one line.
//! `spec_input` makes the spec of a submission, `code` sends the files that it names, `diff` compares two texts, `follow` and `sse` a log that survives lost
//! connections, `terminal` takes control sequences out of what others wrote, `trust` looks at the CA of
//! a coordinator before it is trusted.

mod archive;
pub mod args;
pub mod client;
pub mod code;
pub mod commands;
pub mod config;
pub mod diff;
pub mod durations;
pub mod errors;
pub mod follow;
pub mod log_sink;
pub mod output;
pub mod pauses;
pub mod sparkline;
pub mod spec_input;
pub mod sse;
pub mod submit_command;
pub mod table;
pub mod terminal;
pub mod top;
pub mod trust;
pub mod view;
pub mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, ColorWhen};
use crate::errors::{CliError, exit};
use crate::output::Screen;

/// Run the command of this process's arguments, print its error if it has one, and give the exit
/// code.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage_error(&error),
    };
    match args.globals.color {
        ColorWhen::Auto => {}
        ColorWhen::Always => anstream::ColorChoice::Always.write_global(),
        ColorWhen::Never => anstream::ColorChoice::Never.write_global(),
    }
    let screen = Screen::new(args.globals.format(), args.globals.quiet);
    let outcome = install_tls().and_then(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| CliError::io("cannot start the async runtime", &error))
    });
    let outcome = outcome.and_then(|runtime| runtime.block_on(commands::run(args, &screen)));
    match outcome {
        Ok(code) => ExitCode::from(code),
        // The reader went away (`gangline ps | head`): nobody is left to tell.
        // Only a command that was to report a job's result has set a code of its own.
        Err(error) if error.is_broken_pipe() && error.exit() == exit::ERROR => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::from(error.exit()),
        Err(error) => {
            screen.error(&error);
            ExitCode::from(error.exit())
        }
    }
}

/// The HTTP client wants a provider of cryptography even where no connection uses it.
fn install_tls() -> Result<(), CliError> {
    rustls::crypto::ring::default_provider().install_default().map_err(|_| {
        CliError::new(exit::ERROR, errors::code::INTERNAL, "cannot set up the HTTP client")
    })
}

/// Print what clap has to say: help and version are no errors. The output format is not known
/// yet, so the plain words of the command line decide whether the error is JSON.
fn usage_error(error: &clap::Error) -> ExitCode {
    let asked_for_json = std::env::args()
        .take_while(|argument| argument != "--")
        .any(|argument| matches!(argument.as_str(), "--json" | "-ojson" | "--output=json"))
        || std::env::args().collect::<Vec<_>>().windows(2).any(|pair| {
            matches!(pair, [flag, value] if matches!(flag.as_str(), "-o" | "--output") && value == "json")
        });
    if error.use_stderr() && asked_for_json {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let error = CliError::new(exit::USAGE, errors::code::USAGE, first)
            .hint("gangline --help lists commands and options");
        Screen::new(output::Format::Json, false).error(&error);
    } else if error.print().is_err() {
        return ExitCode::from(exit::ERROR);
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(exit::USAGE))
}
