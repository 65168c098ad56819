//! What NCCL itself says of its communicators: since 2.24 its processes answer questions in text, on a
//! socket that the environment of a member names. They are asked as NVIDIA's guide shows it for `nc`.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Failure;

/// The variable of NCCL: address and port.
pub const VARIABLE: &str = "NCCL_RAS_ADDR";
/// NCCL asks its other processes for so long before it answers without them.
const QUESTION: &[u8] = b"timeout 1\nverbose status\n";
/// On this machine somebody listens at once, or nobody does.
const CONNECT: Duration = Duration::from_millis(200);
/// The whole answer: less than what a part may take.
const ANSWER: Duration = Duration::from_millis(2_500);
const ANSWER_BYTES: usize = 128 << 10;

/// Connects to the NCCL of a member's processes; `None` where none of them answers questions. Only
/// addresses of this machine are tried.
pub fn connect(environment: &[(String, String)]) -> Option<TcpStream> {
    let (_, value) = environment.iter().rev().find(|(name, _)| name == VARIABLE)?;
    // No name is looked up: that may take long.
    let addresses = match value.strip_prefix("localhost:") {
        Some(port) => {
            let port = port.parse().ok()?;
            let own = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
            own.map(|ip| SocketAddr::new(ip, port)).to_vec()
        }
        None => vec![value.parse().ok()?],
    };
    let mut here = addresses.into_iter().filter(|address| address.ip().is_loopback());
    here.find_map(|address| TcpStream::connect_timeout(&address, CONNECT).ok())
}

/// Asks how the communicators are. What has come within the time is the answer.
pub fn ask(mut stream: TcpStream) -> Result<String, Failure> {
    let until = Instant::now() + ANSWER;
    stream.write_all(QUESTION).map_err(|error| error.to_string())?;
    let (mut answer, mut piece) = (Vec::new(), [0; 8192]);
    while answer.len() < ANSWER_BYTES {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            break;
        }
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend(piece.iter().take(count)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    match answer.is_empty() {
        true => Err("NCCL listens and says nothing".to_owned()),
        false => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}
