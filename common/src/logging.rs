//! Log output of both daemons: stderr, one line per event, level from `GANGLINE_LOG`.
//!
//! Level policy: ERROR = somebody must act now; WARN = somebody should look tomorrow;
//! INFO = a state changed; DEBUG = one line per core step; TRACE = bytes.

use tracing_subscriber::EnvFilter;

/// Installs the subscriber. `GANGLINE_LOG` takes a level or a filter such as `info,quinn=warn`.
pub fn init() {
    let filter = EnvFilter::try_from_env("GANGLINE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
}
