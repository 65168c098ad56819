//! Finds out whether the ports of a block are free, by binding them.
//!
//! Ray notices a busy port only after half a minute and says nothing about which one it was.
//! The probe sets SO_REUSEADDR: on Linux a port that somebody listens on stays busy even so, while
//! one whose connections are merely in TIME_WAIT counts as free, which is what a server that
//! starts there will find too. It never listens, and it binds each port only once: a child that is
//! being spawned by another thread may hold a copy of the socket for a moment longer.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use gangline_common::wire::v1::Refusal;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// Binds every port once, on the wildcard of both families, and lets go of it again.
///
/// Errors: [`Refusal::PortBusy`] with the first busy port, or [`Refusal::Impossible`] when a port
/// cannot be bound for another reason.
pub fn ports_free(ports: impl IntoIterator<Item = u16>) -> Result<(), Refusal> {
    ports.into_iter().try_for_each(|port| {
        let bound = match bind_both_families(port) {
            // This host has no IPv6, or has it switched off.
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => bind_v4(port),
            other => other,
        };
        bound.map_err(|error| match error {
            Errno::ADDRINUSE => Refusal::PortBusy { port },
            _ => Refusal::Impossible { reason: format!("port {port} cannot be bound: {error}") },
        })
    })
}

fn bind_both_families(port: u16) -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
}

fn bind_v4(port: u16) -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A port that was let go of may at once be somebody else's: another test's, or another
    /// program's. With one port of several it goes well, or the probe is at fault.
    fn goes_well_with_some_port(try_one: impl Fn() -> bool) -> bool {
        (0..20).any(|_| try_one())
    }

    #[test]
    fn a_listener_on_any_address_makes_the_port_busy() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            if TcpListener::bind(address).is_err() {
                assert!(address.starts_with('['), "IPv4 must be there");
                continue;
            }
            let free_afterwards = || {
                let listener = TcpListener::bind(address).unwrap();
                let port = listener.local_addr().unwrap().port();
                assert_eq!(ports_free([port]), Err(Refusal::PortBusy { port }), "{address}");
                drop(listener);
                ports_free([port]) == Ok(())
            };
            assert!(goes_well_with_some_port(free_afterwards), "{address}");
        }
    }

    #[test]
    fn probes_do_not_disturb_each_other() {
        let all_free = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let probe = move || (0..500).all(|_| ports_free([port]).is_ok());
            let probes: Vec<_> = (0..4).map(|_| std::thread::spawn(probe)).collect();
            let free = probes.into_iter().map(|probe| probe.join().unwrap());
            free.filter(|free| *free).count() == 4 && bind_v4(port).is_ok()
        };
        assert!(goes_well_with_some_port(all_free));
    }

    #[test]
    fn time_wait_is_not_busy() {
        let free_afterwards = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            server.write_all(b"x").unwrap();
            // The side that closes first keeps the port in TIME_WAIT: here the server.
            drop(server);
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).unwrap();
            drop(client);
            drop(listener);
            ports_free([port]) == Ok(())
        };
        assert!(goes_well_with_some_port(free_afterwards));
    }
}
