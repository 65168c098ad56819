//! Pages of nodes in several conditions, and their names against what stock dashboards ask for.
//!
//! `GANGLINE_UPDATE_GOLDENS=1` writes the golden pages anew; the difference is for review.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use gangline_common::time::Timestamp;
use gangline_common::wire::v1::{GpuIdentity, NodeRole};

use gangline_common::ids::{GpuId, JobId};

use super::*;
use crate::collectors::ClockOffset;
use crate::collectors::accelerator::{
    Ecc, EccCounts, Fabric, FabricState, GpuSample, Link, P2pStatus, Pcie, Peer, Profile,
    RecoveryAction, RemappedRows, RetiredPages, Violations,
};
use crate::collectors::fixture::Tree;
use crate::collectors::host::{AgentUse, HostSample, Interface, Pressure};
use crate::collectors::rdma::{Counter, Port, PortState, RdmaDevice, RdmaReading};
use crate::collectors::slot::{Latest, Outcome, Plan, Slot};
use crate::collectors::storage::{Room, StorageReading};
use crate::collectors::tasks::TasksReading;
use crate::collectors::versions::Versions;
use crate::holders::Holder;

fn latest<T>(name: &'static str, result: Result<T, Outcome>) -> Latest<T> {
    let interval = Duration::from_secs(3600);
    let slot = Slot::new(Plan { name, interval, timeout: interval });
    slot.end(result);
    let mut latest = slot.latest();
    latest.status.duration = Duration::from_millis(2);
    latest
}

/// Everything that one GPU can tell.
fn whole_gpu(uuid: &str) -> GpuSample {
    let counts = EccCounts { corrected: Some(7), uncorrected: Some(1), ..EccCounts::default() };
    GpuSample {
        uuid: uuid.to_owned(),
        utilization_pct: Some(97.0),
        memory_utilization_pct: Some(41.0),
        encoder_pct: Some(0.0),
        decoder_pct: Some(3.0),
        memory_used_bytes: Some(70 << 30),
        memory_total_bytes: Some(80 << 30),
        memory_reserved_bytes: Some(512 << 20),
        memory_free_bytes: Some(10 << 30),
        temperature_c: Some(61.0),
        memory_temperature_c: Some(74.0),
        power_w: Some(651.25),
        energy_mj: Some(123_456_789_012),
        sm_clock_mhz: Some(1980),
        mem_clock_mhz: Some(2619),
        clock_reasons: Some(0x44),
        clock_events: Some([0, 0, 300, 0, 0, 0, 12, 0, 0]),
        violations: Violations {
            power_ns: Some(1),
            thermal_ns: Some(2),
            sync_boost_ns: Some(3),
            board_limit_ns: Some(4),
            low_utilization_ns: Some(5),
            reliability_ns: Some(6),
        },
        pcie: Pcie { replays: Some(5), ..Pcie::default() },
        ecc: Ecc { volatile: counts, aggregate: counts, sram_threshold_exceeded: Some(false) },
        rows: Some(RemappedRows { corrected: 2, uncorrected: 1, pending: true, failed: false }),
        retired: Some(RetiredPages {
            single_bit: Some(1),
            double_bit: Some(2),
            pending: Some(false),
        }),
        links: Some(vec![
            Link {
                number: 0,
                active: Some(true),
                replays: Some(1),
                recoveries: Some(0),
                crc_flit: Some(2),
                crc_data: Some(3),
            },
            Link { number: 1, replays: Some(4), ..Link::default() },
        ]),
        nvlink_mib_per_s: Some(2048.5),
        first_link_mib_per_s: Some(113.75),
        vgpu_licensed: Some(false),
        peers: [Peer { index: 1, nvlink: P2pStatus::Ok }, Peer { index: 2, nvlink: P2pStatus::Ok }]
            .into(),
        recovery: Some(RecoveryAction::DrainAndReset),
        fabric: Some(Fabric { state: FabricState::Completed, status: 0 }),
        profile: Some(Profile {
            graphics_active: Some(0.75),
            sm_active: Some(0.5),
            sm_occupancy: Some(0.25),
            tensor_active: Some(0.375),
            dram_active: Some(0.125),
            fp64_active: Some(0.0),
            fp32_active: Some(0.0625),
            fp16_active: Some(0.5),
            pcie_received_bytes_per_s: Some(1 << 20),
            pcie_sent_bytes_per_s: Some(2 << 20),
            nvlink_received_bytes_per_s: Some(3 << 30),
            nvlink_sent_bytes_per_s: Some(4 << 30),
        }),
        xids: vec![(31, 9), (79, 1)],
        recent_xids: vec![(31, 2), (79, 1)],
        last_xid: Some(79),
        hears_xids: true,
        ..GpuSample::default()
    }
}

fn readings(gpus: Option<Latest<Vec<GpuSample>>>) -> Readings {
    let pressure =
        Pressure { some_total_us: 1_500_000, full_total_us: Some(500_000), ..Pressure::default() };
    let host = HostSample {
        cpu_busy_pct: Some(37.5),
        mem_available_bytes: Some(900 << 30),
        mem_total_bytes: Some(1000 << 30),
        load1: Some(12.5),
        memory_pressure: Some(pressure),
        oom_kills: Some(2),
        pids: Some(321),
        interfaces: vec![Interface {
            name: "eth0".to_owned(),
            received_bytes: 1,
            received_errors: 2,
            received_drops: 3,
            sent_bytes: 4,
            sent_errors: 5,
            sent_drops: 6,
        }],
        agent: AgentUse { memory_bytes: Some(12 << 20), ..AgentUse::default() },
        ..HostSample::default()
    };
    let counter = |value| Counter { value, ..Counter::default() };
    let counters = [("port_rcv_data", 1000), ("link_downed", 3), ("lifespan", 10), ("newer", 1)];
    let port = Port {
        number: 1,
        state: Some(PortState { number: 4, name: "ACTIVE".to_owned() }),
        rate_bytes_per_s: Some(50_000_000_000),
        counters: counters.map(|(name, value)| (name.to_owned(), counter(value))).into(),
        ..Port::default()
    };
    let device = RdmaDevice {
        name: "mlx5_0".to_owned(),
        board_id: Some("MT_0000000838".to_owned()),
        firmware: Some("28.39.1002".to_owned()),
        hca_type: Some("MT4129".to_owned()),
        ports: vec![port],
        ..RdmaDevice::default()
    };
    let room = Room {
        path: "/var/lib/gangline/agent".into(),
        total_bytes: 1 << 40,
        free_bytes: 1 << 39,
        total_inodes: 1000,
        free_inodes: 900,
        read_only: false,
    };
    let storage = StorageReading { state: Some(room.clone()), temp: Some(room) };
    Readings {
        number: 1,
        at: Timestamp { boot_ms: 1, wall_ms: 1 },
        gpus,
        rdma: latest("rdma", Ok(RdmaReading { devices: vec![device], ..RdmaReading::default() })),
        host: latest("host", Ok(host)),
        storage: latest("storage", Ok(storage)),
        shared: None,
        tasks: latest("tasks", Ok(TasksReading::default())),
        kernel: None,
        versions: latest("versions", Ok(Versions::default())),
        clock: Some(ClockOffset { ahead_ms: -250, uncertain_ms: 1 }),
        dropped: 4,
        lag_ms: 0,
        interval_ms: 1000,
    }
}

fn node(gpus: &[&str]) -> NodeInventory {
    let identity = |(index, uuid): (usize, &&str)| GpuIdentity {
        uuid: GpuId((*uuid).to_owned()),
        index: index as u32,
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_bytes: 80 << 30,
        pci_bus_id: Some(format!("00000000:{index:02}:00.0")),
    };
    NodeInventory {
        name: "gpu-1".to_owned(),
        hostname: "gpu-1.lan".to_owned(),
        agent_version: "0.1.0".to_owned(),
        roles: vec![NodeRole::Worker],
        pool: None,
        labels: Vec::new(),
        address: [127, 0, 0, 1].into(),
        interface: None,
        boot_id: String::new(),
        network_namespace: 1,
        container_start_ms: 1,
        gpus: gpus.iter().enumerate().map(identity).collect(),
        cpus_milli: 1000,
        memory_bytes: 1,
        shm_bytes: 1,
        pids_limit: None,
        ports: gangline_common::ids::PortBlock { base: 20000, size: 256 },
        versions: vec![("driver".to_owned(), "580.95.05".to_owned())],
        doctor: Vec::new(),
    }
}

const EXTENDED: Options =
    Options { extended: true, compat_hostname_label: true, host: HostMetrics::On };

struct Case {
    name: &'static str,
    gpus: Option<Result<Vec<GpuSample>, Outcome>>,
    known: &'static [&'static str],
    options: Options,
    with_host: bool,
}

fn cases() -> Vec<Case> {
    let plain = Options::default();
    let partly = GpuSample {
        uuid: "GPU-b".to_owned(),
        temperature_c: Some(30.0),
        power_w: Some(70.5),
        sm_clock_mhz: Some(345),
        utilization_pct: Some(0.0),
        memory_used_bytes: Some(4 << 20),
        xids: vec![(31, 9)],
        hears_xids: true,
        ..GpuSample::default()
    };
    let lost = GpuSample {
        uuid: "GPU-b".to_owned(),
        lost: true,
        xids: vec![(79, 1)],
        recent_xids: vec![(79, 1)],
        last_xid: Some(79),
        hears_xids: true,
        ..GpuSample::default()
    };
    let case =
        |name, gpus, known, options, with_host| Case { name, gpus, known, options, with_host };
    let whole = || whole_gpu("GPU-a");
    let second = || GpuSample {
        uuid: "GPU-b".to_owned(),
        clock_events: Some([0; 9]),
        peers: [Peer { index: 0, nvlink: P2pStatus::DisabledByRegKey }].into(),
        ..GpuSample::default()
    };
    let both: &[&str] = &["GPU-a", "GPU-b"];
    vec![
        case("whole", Some(Ok(vec![whole()])), &["GPU-a"], plain, true),
        // The second of its peers is somebody else's.
        case("extended", Some(Ok(vec![whole(), second()])), both, EXTENDED, false),
        case("older_gpu", Some(Ok(vec![whole(), partly])), both, plain, false),
        case("lost_gpu", Some(Ok(vec![whole(), lost])), both, plain, false),
        case("hung_driver", Some(Err(Outcome::Hung)), both, plain, false),
        case("no_gpu", None, &[], plain, true),
        // A GPU that the inventory does not have is somebody else's.
        case("other_containers_gpu", Some(Ok(vec![whole()])), &["GPU-z"], plain, false),
    ]
}

fn text(case: Case) -> String {
    let Case { gpus, known, options, with_host, .. } = case;
    let readings = readings(gpus.map(|gpus| latest("gpu", gpus)));
    let job = JobId::new("j-train").unwrap();
    let holder = Holder { gang: "g".parse().unwrap(), job: Some(job) };
    let holders = Holders::from([(GpuId("GPU-a".to_owned()), holder)]);
    let (inventory, kernel) = (node(known), super::node::tests::kernel());
    let facts = Facts {
        readings: &readings,
        inventory: &inventory,
        holders: &holders,
        links: &LinksTold::default(),
        kernel: &kernel,
        options,
        with_host,
    };
    page(&facts).text().unwrap()
}

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/metrics/{name}.txt"))
}

#[test]
fn pages_are_the_golden_ones() {
    let update = std::env::var_os("GANGLINE_UPDATE_GOLDENS").is_some();
    for case in cases() {
        let (path, now) = (golden(case.name), text(case));
        if update {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &now).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert!(now == expected, "{}:\n{now}", path.display());
    }
}

/// Names and kinds of dcgm-exporter's `default-counters.csv`: what it has switched on.
const DCGM: &[(&str, &str)] = &[
    ("DCGM_FI_DEV_SM_CLOCK", "gauge"),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge"),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge"),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge"),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter"),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter"),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge"),
    ("DCGM_FI_DEV_ENC_UTIL", "gauge"),
    ("DCGM_FI_DEV_DEC_UTIL", "gauge"),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge"),
    ("DCGM_FI_DEV_FB_FREE", "gauge"),
    ("DCGM_FI_DEV_FB_USED", "gauge"),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge"),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter"),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge"),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "gauge"),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge"),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge"),
];

/// What it has switched off, and metrics.md wants with `metrics_extended`.
const DCGM_EXTENDED: &[(&str, &str)] = &[
    ("DCGM_FI_PROF_SM_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "gauge"),
    ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "gauge"),
    ("DCGM_FI_DEV_POWER_VIOLATION", "counter"),
    ("DCGM_FI_DEV_THERMAL_VIOLATION", "counter"),
    ("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "counter"),
    ("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "counter"),
    ("DCGM_FI_DEV_LOW_UTIL_VIOLATION", "counter"),
    ("DCGM_FI_DEV_RELIABILITY_VIOLATION", "counter"),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter"),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter"),
    ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "counter"),
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "counter"),
    ("DCGM_FI_DEV_RETIRED_SBE", "counter"),
    ("DCGM_FI_DEV_RETIRED_DBE", "counter"),
    ("DCGM_FI_DEV_RETIRED_PENDING", "counter"),
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "counter"),
    ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "counter"),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter"),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter"),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_L0", "gauge"),
    ("DCGM_EXP_XID_ERRORS_COUNT", "gauge"),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT", "gauge"),
    ("DCGM_EXP_P2P_STATUS", "gauge"),
];

/// What metrics.md lists, too, and why it is on no page.
const NOT_EMITTED: &[(&str, &str)] = &[(
    "DCGM_EXP_GPU_HEALTH_STATUS",
    "the verdict of DCGM's own checks, which NVML does not give: gangline_node_conditions is ours",
)];

/// What the stock dashboard 12239 reads.
const DASHBOARD_12239: [&str; 6] = [
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
];

fn named(name: &str) -> String {
    text(cases().into_iter().find(|case| case.name == name).unwrap())
}

#[test]
fn names_kinds_and_labels_are_those_of_dcgm_exporter() {
    let page = named("whole");
    for (name, kind) in DCGM {
        assert!(page.contains(&format!("# TYPE {name} {kind}\n")), "{name} is a {kind}");
        let sample = page.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
        let labels = sample.split(['{', '}']).nth(1).unwrap();
        let names: Vec<&str> = labels.split(',').map(|l| l.split('=').next().unwrap()).collect();
        let expected = [
            "gpu",
            "UUID",
            "pci_bus_id",
            "device",
            "modelName",
            "hostname",
            "DCGM_FI_DRIVER_VERSION",
            "hpc_job",
        ];
        assert_eq!(names, expected, "{name}");
    }
    assert!(named("extended").contains("hostname=\"gpu-1.lan\",Hostname=\"gpu-1.lan\""));
    let names: Vec<&str> = gpu::FAMILIES.iter().map(|family| family.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a name comes twice");
    let hidden = gpu::FAMILIES.iter().filter(|family| family.extended);
    for family in hidden {
        assert!(!page.contains(family.name) && named("extended").contains(family.name));
    }
    let extended = named("extended");
    for (name, kind) in DCGM_EXTENDED {
        assert!(extended.contains(&format!("# TYPE {name} {kind}\n")), "{name} is a {kind}");
    }
    for (name, why) in NOT_EMITTED {
        assert!(!extended.contains(&format!("# TYPE {name} ")), "{name} is there: {why}");
    }
}

#[test]
fn the_six_families_of_the_stock_dashboard_are_there() {
    for name in DASHBOARD_12239 {
        assert!(named("whole").contains(&format!("{name}{{gpu=\"0\",")), "{name}");
    }
}

#[test]
fn units_are_those_of_dcgm() {
    let page = named("whole");
    for (name, value) in [
        ("DCGM_FI_DEV_FB_USED", "71680"),
        ("DCGM_FI_DEV_POWER_USAGE", "651.25"),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0.375"),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", "2097152"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "123456789012"),
        ("node_infiniband_port_data_received_bytes_total", "4000"),
        ("node_infiniband_lifespan_seconds", "0.01"),
        ("gangline_clock_offset_seconds", "-0.25"),
    ] {
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert_eq!(line.rsplit(' ').next(), Some(value), "{name}: {line}");
    }
}

#[test]
fn counts_of_a_window_are_zero_where_nothing_happened_and_absent_where_nothing_is_known() {
    let gpu = |uuid: &str, clock_events, hears_xids| GpuSample {
        uuid: uuid.to_owned(),
        clock_events,
        hears_xids,
        ..GpuSample::default()
    };
    let gpus = vec![
        gpu("GPU-a", Some([9, 0, 0, 0, 0, 0, 0, 0, 1]), true),
        gpu("GPU-b", Some([0; 9]), true),
        gpu("GPU-c", None, false),
    ];
    let known: &[&str] = &["GPU-a", "GPU-b", "GPU-c"];
    let case = Case { name: "", gpus: Some(Ok(gpus)), known, options: EXTENDED, with_host: false };
    let page = text(case);
    let told = |family: &str| -> Vec<String> {
        let lines = page.lines().filter(|line| line.starts_with(&format!("{family}{{")));
        let own = lines.map(|line| {
            let labels = line.split(['{', ' ', ',', '}']).filter(|label| {
                ["gpu=", "clock_event=", "xid=", "window"].iter().any(|own| label.starts_with(own))
            });
            let value = line.rsplit(' ').next().unwrap();
            labels.chain([value]).collect::<Vec<_>>().join(" ")
        });
        own.collect()
    };
    let window = "window_size_in_ms=\"300000\"";
    assert_eq!(
        told("DCGM_EXP_CLOCK_EVENTS_COUNT"),
        [
            format!("gpu=\"0\" {window} clock_event=\"gpu_idle\" 9"),
            format!("gpu=\"0\" {window} clock_event=\"display_clocks\" 1"),
            format!("gpu=\"1\" {window} 0"),
        ]
    );
    assert_eq!(
        told("DCGM_EXP_XID_ERRORS_COUNT"),
        [format!("gpu=\"0\" {window} 0"), format!("gpu=\"1\" {window} 0")]
    );
}

#[test]
fn every_name_is_begun_once() {
    for case in cases() {
        let page = text(case);
        let begun: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        assert_eq!(begun.iter().collect::<BTreeSet<_>>().len(), begun.len(), "{page}");
    }
}

#[tokio::test]
async fn before_the_first_reading_there_is_no_page() {
    let holders = watch::channel(Holders::new()).1;
    let inventory = watch::channel(Arc::new(node(&[]))).1;
    let (sender, readings_now) = watch::channel(None);
    let options = Options { host: HostMetrics::Off, ..Options::default() };
    let page = NodePage::new(readings_now, inventory, holders, options);
    assert_eq!(page.text().await.unwrap_err().reason, FailureReason::NotHere);
    sender.send_replace(Some(Arc::new(readings(None))));
    let text = String::from_utf8(page.text().await.unwrap()).unwrap();
    assert!(text.contains("gangline_dropped_samples_total 4\n"), "{text}");
    assert!(!text.contains("node_load1"), "{text}");
}

#[tokio::test]
async fn the_kernels_files_are_read_at_every_scrape() {
    let holders = watch::channel(Holders::new()).1;
    let inventory = watch::channel(Arc::new(node(&[]))).1;
    let (_sender, readings_now) = watch::channel(Some(Arc::new(readings(None))));
    let options = Options { host: HostMetrics::On, ..Options::default() };
    let tree = Tree::new().file("proc/loadavg", "1.00 2.50 3.75 1/2 3\n");
    let proc = tree.path("proc").into();
    let page = NodePage { proc, ..NodePage::new(readings_now, inventory, holders, options) };
    let text = async || String::from_utf8(page.text().await.unwrap()).unwrap();
    let first = text().await;
    assert!(first.contains("node_load5 2.5\n") && !first.contains("node_cpu_"), "{first}");
    let _tree = tree.file("proc/loadavg", "1.00 4.50 3.75 1/2 3\n");
    let second = text().await;
    assert!(second.contains("node_load5 4.5\n"), "{second}");
}
