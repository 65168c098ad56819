//! What both programs compile against: names of things, time, the wire, the transport and its TLS.
//! Nothing here decides anything; decisions live in the `core` of each program.

pub mod backoff;
pub mod exposition;
pub mod ids;
pub mod join_token;
pub mod logging;
pub mod random;
pub mod redact;
pub mod request;
pub mod time;
pub mod tls;
pub mod transport;
pub mod wire;
