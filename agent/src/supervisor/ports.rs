//! What each port of a member's block is for.
//!
//! A block is 24 fixed ports and, from offset 24 to its end, the ports of Ray's worker processes.
//! Every port that Ray would choose by itself is pinned, because its defaults clash as soon as two
//! members share a network namespace.

use gangline_common::ids::PortBlock;

/// Ports at the start of each block that have a fixed purpose or are spare.
pub const FIXED_PORTS: u16 = 24;

/// Offsets of the fixed ports. Offsets 13 to 23 are spare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum FixedPort {
    /// Head: the GCS, which is the cluster's address.
    Gcs = 0,
    /// Head: dashboard and Jobs API, on loopback only.
    Dashboard = 1,
    NodeManager = 2,
    ObjectManager = 3,
    DashboardAgentHttp = 4,
    DashboardAgentGrpc = 5,
    RuntimeEnvAgent = 6,
    MetricsExport = 7,
    /// Head: Prometheus metrics of the dashboard.
    DashboardMetrics = 8,
    /// Head: Prometheus metrics of the autoscaler, which is off.
    AutoscalerMetrics = 9,
    /// Head: server of Ray Client, which cannot be switched off.
    ClientServer = 10,
    /// Rank 0 of a `command` gang: `MASTER_PORT`.
    Rendezvous = 11,
    /// A rank: where NCCL answers questions about its communicators, on loopback only.
    NcclRas = 12,
}

/// The port at a fixed offset; `None` when the block is too short for it.
pub fn fixed(block: PortBlock, port: FixedPort) -> Option<u16> {
    let offset = port as u16;
    if offset < block.size { block.base.checked_add(offset) } else { None }
}

/// First and last port for Ray's workers; `None` when the block has no room for any.
pub fn workers(block: PortBlock) -> Option<(u16, u16)> {
    let first = block.base.checked_add(FIXED_PORTS)?;
    let last = u16::try_from(block.end().checked_sub(1)?).ok()?;
    (first <= last).then_some((first, last))
}

/// Every port of the block, for probing.
pub fn all(block: PortBlock) -> impl Iterator<Item = u16> {
    (u32::from(block.base)..block.end()).filter_map(|port| u16::try_from(port).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_cut_without_overflow() {
        let block = PortBlock { base: 20_000, size: 256 };
        assert_eq!(fixed(block, FixedPort::Gcs), Some(20_000));
        assert_eq!(fixed(block, FixedPort::Rendezvous), Some(20_011));
        assert_eq!(workers(block), Some((20_024, 20_255)));
        assert_eq!(all(block).count(), 256);
        let last = PortBlock { base: 65_500, size: 36 };
        assert_eq!(workers(last), Some((65_524, 65_535)));
        let beyond = PortBlock { base: 65_530, size: 256 };
        assert_eq!(workers(beyond), None);
        assert_eq!(fixed(beyond, FixedPort::Rendezvous), None);
        assert_eq!(workers(PortBlock { base: 20_000, size: 24 }), None);
        assert_eq!(fixed(PortBlock { base: 20_000, size: 2 }, FixedPort::NodeManager), None);
    }
}
