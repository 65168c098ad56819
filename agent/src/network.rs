//! Which RDMA ports collectives should use, for NCCL: found from what sysfs says of the ports.

use std::collections::{BTreeMap, BTreeSet};

use crate::collectors::rdma::{LinkLayer, Port, RdmaDevice, RdmaReading};

/// InfiniBand's number of an active port, and of a physical link that is up.
const ACTIVE: u8 = 4;
const LINK_UP: u8 = 5;
/// What begins a GID that is an IPv4 address: those are routed, and reach the other nodes.
const IPV4_MAPPED: &str = "0000:0000:0000:0000:0000:ffff:";
const ROCE_V2: &str = "RoCE v2";

/// The variables that NCCL should get here; none without usable ports, and then it takes sockets.
///
/// Of all active ports those of the fastest rate are taken, so that a slow port of management is left
/// out, and InfiniBand goes before RoCE. For RoCE the index of a version 2 address is named if one
/// index is right for all of them; otherwise NCCL chooses by itself.
#[must_use]
pub fn variables(rdma: &RdmaReading, exclude: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    // Without the character devices in this container no program can use a port.
    let characters = rdma.character_devices.iter().flatten();
    if !characters.into_iter().any(|name| name.starts_with("uverbs")) {
        return variables;
    }
    let ports = chosen(rdma, exclude);
    if ports.is_empty() {
        return variables;
    }
    let names: Vec<String> =
        ports.iter().map(|(device, port)| format!("{}:{}", device.name, port.number)).collect();
    // `=` asks for exactly these: without it `mlx5_1` is `mlx5_10` as well.
    variables.insert("NCCL_IB_HCA".to_owned(), format!("={}", names.join(",")));
    if let Some(index) = common_index(&ports) {
        variables.insert("NCCL_IB_GID_INDEX".to_owned(), index.to_string());
    }
    variables
}

fn chosen<'a>(
    rdma: &'a RdmaReading,
    exclude: &BTreeSet<String>,
) -> Vec<(&'a RdmaDevice, &'a Port)> {
    let devices = rdma.devices.iter().filter(|device| !exclude.contains(&device.name));
    let all = devices.flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let up = |port: &Port| {
        port.state.as_ref().is_some_and(|state| state.number == ACTIVE)
            && port.physical_state.as_ref().is_none_or(|state| state.number == LINK_UP)
    };
    let mut ports: Vec<(&RdmaDevice, &Port)> = all.filter(|(_, port)| up(port)).collect();
    let is_infiniband = |port: &Port| port.link_layer == Some(LinkLayer::InfiniBand);
    if ports.iter().any(|(_, port)| is_infiniband(port)) {
        ports.retain(|(_, port)| is_infiniband(port));
    }
    let fastest = ports.iter().map(|(_, port)| port.rate_bytes_per_s).max();
    ports.retain(|(_, port)| Some(port.rate_bytes_per_s) == fastest);
    ports
}

/// The lowest index at which every port has a routed address of RoCE version 2.
fn common_index(ports: &[(&RdmaDevice, &Port)]) -> Option<u32> {
    let indexes = |port: &Port| -> BTreeSet<u32> {
        let routed = port
            .gids
            .iter()
            .filter(|gid| gid.kind.as_deref() == Some(ROCE_V2) && gid.gid.starts_with(IPV4_MAPPED));
        routed.map(|gid| gid.index).collect()
    };
    let is_roce = ports.iter().all(|(_, port)| port.link_layer == Some(LinkLayer::Ethernet));
    let mut all = ports.iter().map(|(_, port)| indexes(port));
    let first = all.next().filter(|_| is_roce)?;
    let common = all.fold(first, |common, of_port| &common & &of_port);
    common.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::rdma::{Gid, PortState};

    const FAST: u64 = 50_000_000_000;

    fn port(layer: LinkLayer, state: u8, rate: u64) -> Port {
        let named = |number| Some(PortState { number, name: String::new() });
        Port {
            number: 1,
            link_layer: Some(layer),
            state: named(state),
            physical_state: named(LINK_UP),
            rate_bytes_per_s: Some(rate),
            ..Port::default()
        }
    }

    fn with_gids(port: Port, gids: &[(u32, &str, &str)]) -> Port {
        let gid = |(index, gid, kind): &(u32, &str, &str)| Gid {
            index: *index,
            gid: (*gid).to_owned(),
            kind: Some((*kind).to_owned()),
            interface: None,
        };
        Port { gids: gids.iter().map(gid).collect(), ..port }
    }

    fn node(ports: Vec<Port>) -> RdmaReading {
        let device = |(n, port)| RdmaDevice {
            name: format!("mlx5_{n}"),
            ports: vec![port],
            ..RdmaDevice::default()
        };
        RdmaReading {
            devices: ports.into_iter().enumerate().map(device).collect(),
            character_devices: Some(vec!["rdma_cm".to_owned(), "uverbs0".to_owned()]),
            left_out: 0,
        }
    }

    fn shown(rdma: &RdmaReading) -> Vec<String> {
        shown_without(rdma, &[])
    }

    fn shown_without(rdma: &RdmaReading, exclude: &[&str]) -> Vec<String> {
        let exclude = exclude.iter().map(|name| (*name).to_owned()).collect();
        variables(rdma, &exclude)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn infiniband_goes_before_roce_and_slow_and_sleeping_ports_are_left_out() {
        let rdma = node(vec![
            port(LinkLayer::InfiniBand, ACTIVE, FAST),
            port(LinkLayer::InfiniBand, 1, FAST),
            port(LinkLayer::InfiniBand, ACTIVE, FAST / 4),
            port(LinkLayer::Ethernet, ACTIVE, FAST * 2),
            port(LinkLayer::InfiniBand, ACTIVE, FAST),
        ]);
        assert_eq!(shown(&rdma), ["NCCL_IB_HCA==mlx5_0:1,mlx5_4:1"]);
        assert_eq!(shown_without(&rdma, &["mlx5_4"]), ["NCCL_IB_HCA==mlx5_0:1"]);
    }

    #[test]
    fn the_index_of_a_routed_address_is_named_when_it_is_right_for_all() {
        let v4 = "0000:0000:0000:0000:0000:ffff:0a00:0001";
        let local = "fe80:0000:0000:0000:0000:0000:0000:0001";
        let first =
            [(1, local, ROCE_V2), (2, v4, "IB/RoCE v1"), (3, v4, ROCE_V2), (5, v4, ROCE_V2)];
        let second = [(3, v4, "IB/RoCE v1"), (4, v4, ROCE_V2), (5, v4, ROCE_V2)];
        let roce = || port(LinkLayer::Ethernet, ACTIVE, FAST);
        let both = node(vec![with_gids(roce(), &first), with_gids(roce(), &second)]);
        assert_eq!(shown(&both), ["NCCL_IB_GID_INDEX=5", "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"]);
        let none = node(vec![with_gids(roce(), &first[..2]), with_gids(roce(), &second)]);
        assert_eq!(shown(&none), ["NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"]);
    }

    #[test]
    fn nothing_is_said_of_ports_that_no_program_here_can_open() {
        let mut rdma = node(vec![port(LinkLayer::InfiniBand, ACTIVE, FAST)]);
        rdma.character_devices = Some(vec!["umad0".to_owned()]);
        assert_eq!(shown(&rdma), Vec::<String>::new());
        rdma.character_devices = None;
        assert_eq!(shown(&rdma), Vec::<String>::new());
        assert_eq!(shown(&node(vec![])), Vec::<String>::new());
        let down = node(vec![port(LinkLayer::InfiniBand, 1, FAST)]);
        assert_eq!(shown(&down), Vec::<String>::new());
    }
}
