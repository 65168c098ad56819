//! Which address of this node other members of a gang use, and which interface has it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use crate::collectors::host::text;

/// Ray takes 127.0.0.1 for "find a better one", so that a node on loopback uses this.
pub const LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The local address of the route to `remote`. Sends nothing: connecting a UDP socket only looks
/// the route up.
pub fn local_address(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

/// The address as Ray can be told it.
pub fn for_ray(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => LOOPBACK.into(),
        other => other,
    }
}

/// The interface of `address`, from the kernel's tables below `proc`; `None` when they do not
/// tell.
pub fn interface(address: IpAddr, proc: &Path) -> Option<String> {
    match address {
        ip if ip.is_loopback() => Some("lo".to_owned()),
        IpAddr::V4(ip) => interface_v4(ip, &text(&proc.join("net/route"))?),
        IpAddr::V6(ip) => interface_v6(ip, &text(&proc.join("net/if_inet6"))?),
    }
}

/// The interface of the narrowest directly attached network that contains `ip`.
fn interface_v4(ip: Ipv4Addr, routes: &str) -> Option<String> {
    let mut best: Option<(u32, &str)> = None;
    for line in routes.lines().skip(1) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[name, destination, gateway, _, _, _, _, mask, ..] = fields.as_slice() else {
            continue;
        };
        // The kernel prints network byte order as a number of this machine.
        let number = |hex: &str| u32::from_str_radix(hex, 16).ok().map(u32::from_be);
        let numbers = (number(destination), number(gateway), number(mask));
        let (Some(destination), Some(0), Some(mask)) = numbers else { continue };
        if mask != 0
            && u32::from(ip) & mask == destination
            && best.is_none_or(|(narrowest, _)| mask > narrowest)
        {
            best = Some((mask, name));
        }
    }
    best.map(|(_, name)| name.to_owned())
}

fn interface_v6(ip: Ipv6Addr, addresses: &str) -> Option<String> {
    let wanted = format!("{:032x}", u128::from(ip));
    addresses.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        match fields.as_slice() {
            [address, .., name] if *address == wanted => Some((*name).to_owned()),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "\
Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
ib0\t0005000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
";

    #[test]
    fn the_narrowest_attached_network_wins() {
        let find = |ip: [u8; 4]| interface_v4(ip.into(), ROUTES);
        if cfg!(target_endian = "little") {
            assert_eq!(find([10, 0, 9, 9]).as_deref(), Some("eth0"));
            assert_eq!(find([10, 0, 5, 7]).as_deref(), Some("ib0"));
        }
        // Reached through the default route only: that is not an address of this node.
        assert_eq!(find([192, 168, 0, 1]), None);
        assert_eq!(interface_v4([10, 0, 0, 1].into(), "garbage\nmore garbage"), None);
    }

    #[test]
    fn v6_addresses_are_looked_up() {
        let table = "fd000000000000000000000000000007 02 40 00 80     eth1\n";
        let find = |ip: &str| interface_v6(ip.parse().unwrap(), table);
        assert_eq!(find("fd00::7").as_deref(), Some("eth1"));
        assert_eq!(find("fd00::8"), None);
    }

    #[test]
    fn loopback_becomes_an_address_that_ray_keeps() {
        let local = local_address(([127, 0, 0, 1], 9).into()).unwrap();
        assert_eq!(for_ray(local), IpAddr::from([127, 0, 0, 2]));
        assert_eq!(interface(for_ray(local), Path::new("/proc")).as_deref(), Some("lo"));
        let other = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(for_ray(other), other);
    }
}
