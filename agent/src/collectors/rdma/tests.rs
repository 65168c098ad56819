//! Tests on trees as mlx5 lays them out, for InfiniBand and for RoCE, with everything that can be wrong with one.

use super::*;
use crate::collectors::fixture::{Tree, roots};

/// A device with one port that is up.
fn device(tree: Tree, name: &str, layer: &str) -> Tree {
    let base = format!("sys/class/infiniband/{name}");
    let port = format!("{base}/ports/1");
    let tree = tree
        .file(&format!("{base}/board_id"), "MT_0000000838\n")
        .file(&format!("{base}/fw_ver"), "28.39.1002\n")
        .file(&format!("{base}/hca_type"), "MT4129\n")
        .file(&format!("{base}/node_guid"), "a088:c203:0012:3456\n")
        .link(&format!("{base}/device"), "../../../0000:18:00.0")
        .file(&format!("{port}/link_layer"), &format!("{layer}\n"))
        .file(&format!("{port}/state"), "4: ACTIVE\n")
        .file(&format!("{port}/phys_state"), "5: LinkUp\n")
        .file(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n")
        .file(&format!("{port}/counters/port_rcv_data"), "1000\n")
        .file(&format!("{port}/counters/port_xmit_data"), "2000\n")
        .file(&format!("{port}/counters/symbol_error"), "0\n")
        .file(&format!("{port}/counters/link_downed"), "1\n")
        .file(&format!("{port}/counters/VL15_dropped"), "N/A (no PMA)\n")
        .file(&format!("{port}/hw_counters/out_of_sequence"), "7\n")
        .file(&format!("{port}/hw_counters/lifespan"), "10\n")
        .file(&format!("{port}/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
    match layer {
        "Ethernet" => tree
            .file(&format!("{port}/gids/0"), "fe80:0000:0000:0000:a288:c2ff:fe12:3456\n")
            .file(&format!("{port}/gid_attrs/types/0"), "RoCE v2\n")
            .file(&format!("{port}/gid_attrs/ndevs/0"), "eth2\n")
            .file(&format!("{port}/hw_counters/np_cnp_sent"), "33\n"),
        _ => tree.file(&format!("{port}/gids/0"), "fe80:0000:0000:0000:a088:c203:0012:3456\n"),
    }
}

fn counter(tree: Tree, device: &str, file: &str, text: &str) -> Tree {
    tree.file(&format!("sys/class/infiniband/{device}/ports/1/{file}"), text)
}

fn port<'a>(reading: &'a RdmaReading, name: &str) -> &'a Port {
    let device = reading.devices.iter().find(|device| device.name == name);
    device.and_then(|device| device.ports.first()).expect("a port of the device")
}

#[test]
fn a_node_without_devices_has_none() {
    let tree = Tree::new();
    let reading = RdmaCollector::new(&roots(&tree)).read();
    assert_eq!(reading, Ok(RdmaReading::default()));
}

#[test]
fn infiniband_and_roce_ports_are_read() {
    let tree = device(device(Tree::new(), "mlx5_0", "InfiniBand"), "mlx5_bond_0", "Ethernet")
        .file("dev/infiniband/uverbs0", "")
        .file("dev/infiniband/rdma_cm", "");
    let reading = RdmaCollector::new(&roots(&tree)).read().expect("reading");
    let names: Vec<&str> = reading.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["mlx5_0", "mlx5_bond_0"]);
    let characters = reading.character_devices.as_deref();
    assert_eq!(characters, Some(&["rdma_cm".to_owned(), "uverbs0".to_owned()][..]));
    let first = &reading.devices[0];
    assert_eq!(first.board_id.as_deref(), Some("MT_0000000838"));
    assert_eq!(first.firmware.as_deref(), Some("28.39.1002"));
    assert_eq!(first.hca_type.as_deref(), Some("MT4129"));
    assert_eq!(first.pci_address.as_deref(), Some("0000:18:00.0"));
    assert_eq!((first.ports.len(), &first.problem), (1, &None));

    let infiniband = port(&reading, "mlx5_0");
    assert_eq!((infiniband.number, infiniband.link_layer), (1, Some(LinkLayer::InfiniBand)));
    assert_eq!(infiniband.state, Some(PortState { number: 4, name: "ACTIVE".to_owned() }));
    assert_eq!(infiniband.physical_state.as_ref().map(|state| state.number), Some(5));
    assert_eq!(infiniband.rate_bytes_per_s, Some(50_000_000_000));
    assert_eq!(infiniband.counters["port_rcv_data"], Counter { value: 1000, grown: 0, step: 0 });
    assert_eq!(infiniband.counters["out_of_sequence"].value, 7);
    assert!(!infiniband.counters.contains_key("VL15_dropped"), "no such counter, and no error");
    assert_eq!((infiniband.unreadable_count, infiniband.gids.len()), (0, 1));
    assert_eq!(infiniband.gids[0].kind, None);

    let roce = port(&reading, "mlx5_bond_0");
    assert_eq!(roce.link_layer, Some(LinkLayer::Ethernet));
    assert_eq!(roce.counters["np_cnp_sent"].value, 33);
    assert_eq!(roce.gids.len(), 1, "an entry that is not in use is left out");
    assert_eq!(roce.gids[0].kind.as_deref(), Some("RoCE v2"));
    assert_eq!(roce.gids[0].interface.as_deref(), Some("eth2"));
}

#[test]
fn growth_survives_a_counter_that_begins_anew() {
    let tree = device(Tree::new(), "mlx5_0", "InfiniBand");
    let mut collector = RdmaCollector::new(&roots(&tree));
    collector.read().expect("reading");
    let mut tree = tree;
    for (value, grown, step) in [(1500, 500, 500), (1500, 500, 0), (40, 540, 40), (41, 541, 1)] {
        tree = counter(tree, "mlx5_0", "counters/port_rcv_data", &format!("{value}\n"));
        let reading = collector.read().expect("reading");
        assert_eq!(
            port(&reading, "mlx5_0").counters["port_rcv_data"],
            Counter { value, grown, step }
        );
    }
}

#[test]
fn more_files_than_may_stay_open_are_read_all_the_same() {
    let tree = device(Tree::new(), "mlx5_0", "InfiniBand");
    let mut collector = RdmaCollector { most_kept: 3, ..RdmaCollector::new(&roots(&tree)) };
    let before = collector.read().expect("reading");
    let kept: usize = collector.devices.values().map(Device::kept).sum();
    assert_eq!(kept, 3);
    let tree = counter(tree, "mlx5_0", "counters/VL15_dropped", "1\n");
    let tree = counter(tree, "mlx5_0", "hw_counters/out_of_sequence", "9\n");
    let tree = counter(tree, "mlx5_0", "hw_counters/new_one", "5\n");
    // The clock of a file system may be too coarse to tell this from the time of the listing.
    let directory = tree.path("sys/class/infiniband/mlx5_0/ports/1/hw_counters");
    let directory = std::fs::File::open(directory).expect("directory");
    directory.set_modified(std::time::UNIX_EPOCH).expect("another time");
    let after = collector.read().expect("reading");
    let (before, after) = (port(&before, "mlx5_0"), port(&after, "mlx5_0"));
    assert_eq!(after.counters.len(), before.counters.len() + 2);
    assert_eq!(after.counters["VL15_dropped"].value, 1);
    assert_eq!(after.counters["out_of_sequence"].step, 2);
    assert_eq!(after.counters["new_one"].value, 5, "a file that came is found at once");
    collector.devices.clear();
    collector.read().expect("reading");
    let kept: usize = collector.devices.values().map(Device::kept).sum();
    assert_eq!(kept, 3, "what is forgotten makes room");
}

#[test]
fn what_cannot_be_read_is_told_of_and_absent() {
    let tree = device(Tree::new(), "mlx5_0", "InfiniBand");
    let tree = device(tree, "mlx5_1", "InfiniBand");
    let mut collector = RdmaCollector::new(&roots(&tree));
    collector.read().expect("reading");
    // In place of a file a directory: reading it fails with an error that is not its absence.
    let broken = tree.path("sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error");
    std::fs::remove_file(&broken).expect("removed");
    std::fs::create_dir(&broken).expect("directory");
    let mut tree = tree;
    for (file, text) in [
        ("state", "garbage\n"),
        ("rate", "many Gb/sec\n"),
        ("link_layer", "Token Ring\n"),
        ("counters/link_downed", "a few\n"),
        ("counters/port_xmit_data", "18446744073709551616\n"),
    ] {
        tree = counter(tree, "mlx5_0", file, text);
    }
    let reading = collector.read().expect("reading");
    let sick = port(&reading, "mlx5_0");
    assert_eq!((&sick.state, sick.rate_bytes_per_s, sick.link_layer), (&None, None, None));
    assert_eq!(sick.unreadable, ["link_downed", "port_xmit_data", "symbol_error"]);
    assert_eq!(sick.unreadable_count, 3);
    assert_eq!(sick.counters.get("symbol_error"), None);
    assert_eq!(sick.counters["port_rcv_data"].value, 1000);
    assert_eq!(port(&reading, "mlx5_1").unreadable_count, 0, "the other device is as before");

    // Readable again: what happened in between counts.
    std::fs::remove_dir(&broken).expect("removed");
    let _tree = counter(tree, "mlx5_0", "counters/symbol_error", "5\n");
    let reading = collector.read().expect("reading");
    let counters = &port(&reading, "mlx5_0").counters;
    assert_eq!(counters["symbol_error"], Counter { value: 5, grown: 5, step: 5 });
}

#[test]
fn devices_come_go_and_change_their_names() {
    let tree = device(device(Tree::new(), "mlx5_0", "InfiniBand"), "mlx5_1", "InfiniBand");
    let class = tree.path("sys/class/infiniband");
    let mut collector = RdmaCollector::new(&roots(&tree));
    collector.read().expect("reading");
    std::fs::rename(class.join("mlx5_1"), class.join("mlx5_7")).expect("renamed");
    let reading = collector.read().expect("reading");
    let names: Vec<&str> = reading.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["mlx5_0", "mlx5_7"]);
    assert_eq!(collector.devices.len(), 2, "the old name is forgotten");

    // The same name, made anew by a reload of the driver: the open directories are of the old one.
    std::fs::remove_dir_all(class.join("mlx5_0/ports/1")).expect("removed");
    let tree = device_again(tree);
    let reading = collector.read().expect("reading");
    let port_again = port(&reading, "mlx5_0");
    assert_eq!(port_again.counters["port_rcv_data"].value, 3);
    assert_eq!(port_again.counters["port_rcv_data"].grown, 3);

    // A device without its ports, and one that is not a directory at all.
    std::fs::remove_dir_all(class.join("mlx5_7/ports")).expect("removed");
    let _tree = tree.file("sys/class/infiniband/odd", "");
    let reading = collector.read().expect("reading");
    let problems: Vec<bool> = reading.devices.iter().map(|d| d.problem.is_some()).collect();
    assert_eq!(problems, [false, true, true]);
    assert_eq!(port(&reading, "mlx5_0").state.as_ref().map(|state| state.number), Some(4));
}

/// The first device's port after its driver was loaded again.
fn device_again(tree: Tree) -> Tree {
    let tree = counter(tree, "mlx5_0", "state", "4: ACTIVE\n");
    counter(tree, "mlx5_0", "counters/port_rcv_data", "3\n")
}

#[test]
fn a_class_that_cannot_be_listed_is_no_reading() {
    let tree = Tree::new().file("sys/class/infiniband", "not a directory");
    let failed = RdmaCollector::new(&roots(&tree)).read();
    assert!(failed.is_err_and(|error| error.to_string().contains("infiniband")));
}
