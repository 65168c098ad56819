//! InfiniBand and RoCE ports under the names of node_exporter's `infiniband` collector.

use gangline_common::exposition::{Kind, Page};

use super::Facts;
use crate::collectors::rdma::{Port, RdmaDevice};

/// A file of `counters` or `hw_counters`: its name, the name of its family without
/// `node_infiniband_`, what to multiply it by, and what it counts.
pub(super) const COUNTERS: &[(&str, &str, f64, &str)] = &[
    (
        "excessive_buffer_overrun_errors",
        "excessive_buffer_overrun_errors_total",
        1.0,
        "Number of times that OverrunErrors consecutive flow control update periods occurred",
    ),
    (
        "link_downed",
        "link_downed_total",
        1.0,
        "Number of times the link failed to recover from an error state and went down",
    ),
    (
        "link_error_recovery",
        "link_error_recovery_total",
        1.0,
        "Number of times the link successfully recovered from an error state",
    ),
    (
        "local_link_integrity_errors",
        "local_link_integrity_errors_total",
        1.0,
        "Number of times that the count of local physical errors exceeded the threshold",
    ),
    (
        "multicast_rcv_packets",
        "multicast_packets_received_total",
        1.0,
        "Number of multicast packets received (including errors)",
    ),
    (
        "multicast_xmit_packets",
        "multicast_packets_transmitted_total",
        1.0,
        "Number of multicast packets transmitted (including errors)",
    ),
    (
        "port_rcv_constraint_errors",
        "port_constraint_errors_received_total",
        1.0,
        "Number of packets received on the switch physical port that are discarded",
    ),
    (
        "port_xmit_constraint_errors",
        "port_constraint_errors_transmitted_total",
        1.0,
        "Number of packets not transmitted from the switch physical port",
    ),
    (
        "port_rcv_data",
        "port_data_received_bytes_total",
        4.0,
        "Number of data octets received on all links",
    ),
    (
        "port_xmit_data",
        "port_data_transmitted_bytes_total",
        4.0,
        "Number of data octets transmitted on all links",
    ),
    (
        "port_rcv_discards",
        "port_discards_received_total",
        1.0,
        "Number of inbound packets discarded by the port because the port is down or congested",
    ),
    (
        "port_xmit_discards",
        "port_discards_transmitted_total",
        1.0,
        "Number of outbound packets discarded by the port because the port is down or congested",
    ),
    (
        "port_rcv_errors",
        "port_errors_received_total",
        1.0,
        "Number of packets containing an error that were received on this port",
    ),
    (
        "port_rcv_packets",
        "port_packets_received_total",
        1.0,
        "Number of packets received on all VLs by this port (including errors)",
    ),
    (
        "port_xmit_packets",
        "port_packets_transmitted_total",
        1.0,
        "Number of packets transmitted on all VLs from this port (including errors)",
    ),
    (
        "port_xmit_wait",
        "port_transmit_wait_total",
        1.0,
        "Number of ticks during which the port had data to transmit but no data was sent",
    ),
    (
        "unicast_rcv_packets",
        "unicast_packets_received_total",
        1.0,
        "Number of unicast packets received (including errors)",
    ),
    (
        "unicast_xmit_packets",
        "unicast_packets_transmitted_total",
        1.0,
        "Number of unicast packets transmitted (including errors)",
    ),
    (
        "port_rcv_remote_physical_errors",
        "port_receive_remote_physical_errors_total",
        1.0,
        "Number of packets marked with the EBP (End of Bad Packet) delimiter received",
    ),
    (
        "port_rcv_switch_relay_errors",
        "port_receive_switch_relay_errors_total",
        1.0,
        "Number of packets that could not be forwarded by the switch",
    ),
    (
        "symbol_error",
        "symbol_error_total",
        1.0,
        "Number of minor link errors detected on one or more physical lanes",
    ),
    (
        "VL15_dropped",
        "vl15_dropped_total",
        1.0,
        "Number of incoming VL15 packets dropped due to resource limitations",
    ),
    (
        "duplicate_request",
        "duplicate_requests_packets_total",
        1.0,
        "The number of received packets that are duplicates of earlier requests",
    ),
    (
        "implied_nak_seq_err",
        "implied_nak_seq_errors_total",
        1.0,
        "The number of times the requester decided on an ACK with a larger PSN than expected",
    ),
    (
        "lifespan",
        "lifespan_seconds",
        0.001,
        "The maximum period which defines the aging of the counter reads",
    ),
    (
        "local_ack_timeout_err",
        "local_ack_timeout_errors_total",
        1.0,
        "The number of times the ack timer of a queue pair expired at the sender",
    ),
    (
        "np_cnp_sent",
        "np_cnp_packets_sent_total",
        1.0,
        "The number of CNP packets sent by the notification point",
    ),
    (
        "np_ecn_marked_roce_packets",
        "np_ecn_marked_roce_packets_received_total",
        1.0,
        "The number of RoCEv2 packets received with the mark of congestion",
    ),
    (
        "out_of_buffer",
        "out_of_buffer_drops_total",
        1.0,
        "The number of drops that occurred due to lack of work requests for the queue pairs",
    ),
    (
        "out_of_sequence",
        "out_of_sequence_packets_received_total",
        1.0,
        "The number of out of sequence packets received",
    ),
    (
        "packet_seq_err",
        "packet_sequence_errors_total",
        1.0,
        "The number of received NAK sequence error packets",
    ),
    (
        "req_cqe_error",
        "req_cqes_errors_total",
        1.0,
        "The number of times the requester detected CQEs completed with errors",
    ),
    (
        "req_cqe_flush_error",
        "req_cqes_flush_errors_total",
        1.0,
        "The number of times the requester detected CQEs completed with flushed errors",
    ),
    (
        "req_remote_access_errors",
        "req_remote_access_errors_total",
        1.0,
        "The number of times the requester detected remote access errors",
    ),
    (
        "req_remote_invalid_request",
        "req_remote_invalid_request_errors_total",
        1.0,
        "The number of times the requester detected remote invalid request errors",
    ),
    (
        "resp_cqe_error",
        "resp_cqes_errors_total",
        1.0,
        "The number of times the responder detected CQEs completed with errors",
    ),
    (
        "resp_cqe_flush_error",
        "resp_cqes_flush_errors_total",
        1.0,
        "The number of times the responder detected CQEs completed with flushed errors",
    ),
    (
        "resp_local_length_error",
        "resp_local_length_errors_total",
        1.0,
        "The number of times the responder detected local length errors",
    ),
    (
        "resp_remote_access_errors",
        "resp_remote_access_errors_total",
        1.0,
        "The number of times the responder detected remote access errors",
    ),
    (
        "rnr_nak_retry_err",
        "rnr_nak_retry_packets_received_total",
        1.0,
        "The number of received RNR NAK packets after which the retries were used up",
    ),
    (
        "roce_adp_retrans",
        "roce_adp_retransmits_total",
        1.0,
        "The number of adaptive retransmissions for RoCE traffic",
    ),
    (
        "roce_adp_retrans_to",
        "roce_adp_retransmits_timeout_total",
        1.0,
        "The number of times RoCE traffic reached timeout due to adaptive retransmission",
    ),
    (
        "roce_slow_restart",
        "roce_slow_restart_used_total",
        1.0,
        "The number of times RoCE slow restart was used",
    ),
    (
        "roce_slow_restart_cnps",
        "roce_slow_restart_cnps_total",
        1.0,
        "The number of times RoCE slow restart generated CNP packets",
    ),
    (
        "roce_slow_restart_trans",
        "roce_slow_restart_total",
        1.0,
        "The number of times RoCE slow restart changed state to slow restart",
    ),
    (
        "rp_cnp_handled",
        "rp_cnp_packets_handled_total",
        1.0,
        "The number of CNP packets handled by the reaction point",
    ),
    (
        "rp_cnp_ignored",
        "rp_cnp_ignored_packets_received_total",
        1.0,
        "The number of CNP packets received and ignored by the reaction point",
    ),
    (
        "rx_atomic_requests",
        "rx_atomic_requests_total",
        1.0,
        "The number of received atomic requests",
    ),
    (
        "rx_dct_connect",
        "rx_dct_connect_requests_total",
        1.0,
        "The number of received connection requests for dynamic transports",
    ),
    (
        "rx_icrc_encapsulated",
        "rx_icrc_encapsulated_errors_total",
        1.0,
        "The number of RoCE packets with ICRC errors",
    ),
    ("rx_read_requests", "rx_read_requests_total", 1.0, "The number of received read requests"),
    ("rx_write_requests", "rx_write_requests_total", 1.0, "The number of received write requests"),
];

/// A value of a port that is no counter of the device.
type PortValue = fn(&Port) -> Option<f64>;

pub(super) const VALUES: &[(&str, &str, PortValue)] = &[
    (
        "state_id",
        "State of the InfiniBand port (0: no change, 1: down, 2: init, 3: armed, 4: active, 5: act defer)",
        |port| port.state.as_ref().map(|state| f64::from(state.number)),
    ),
    (
        "physical_state_id",
        "Physical state of the InfiniBand port (0: no change, 1: sleep, 2: polling, 3: disable, 4: shift, 5: link up, 6: link error recover, 7: phytest)",
        |port| port.physical_state.as_ref().map(|state| f64::from(state.number)),
    ),
    ("rate_bytes_per_second", "Maximum signal transfer rate", |port| {
        port.rate_bytes_per_s.map(|rate| rate as f64)
    }),
];

/// Adds every family of every port that was read.
pub(super) fn add(page: &mut Page, facts: &Facts<'_>) {
    let Some(reading) = facts.readings.rdma.fresh() else { return };
    let devices = &reading.devices;
    let mut info = page.family(
        "node_infiniband_info",
        "Non-numeric data from /sys/class/infiniband/<device>, value is always 1.",
        Kind::Gauge,
    );
    for device in devices {
        let text = |value: &'_ Option<String>| value.clone().unwrap_or_default();
        let (board, firmware, hca) =
            (text(&device.board_id), text(&device.firmware), text(&device.hca_type));
        let labels = [
            ("device", device.name.as_str()),
            ("board_id", &board),
            ("firmware_version", &firmware),
            ("hca_type", &hca),
        ];
        info.add(&labels, 1.0);
    }
    for (name, help, read) in VALUES {
        let mut out = page.family(&format!("node_infiniband_{name}"), help, Kind::Gauge);
        for_each_port(devices, |labels, port| out.add(labels, read(port)));
    }
    for (file, name, factor, help) in COUNTERS {
        let mut out = page.family(&format!("node_infiniband_{name}"), help, Kind::Counter);
        for_each_port(devices, |labels, port| {
            let value = port.counters.get(*file).map(|counter| counter.value as f64 * factor);
            out.add(labels, value);
        });
    }
}

fn for_each_port(devices: &[RdmaDevice], mut each: impl FnMut(&[(&str, &str)], &Port)) {
    for device in devices {
        for port in &device.ports {
            let number = port.number.to_string();
            each(&[("device", &device.name), ("port", &number)], port);
        }
    }
}
