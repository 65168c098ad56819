//! From what a driver and a kernel say to what is said of the node, in virtual time: the collectors' own readers on
//! the stand-in for NVIDIA's library and on a tree that looks like the kernel's, then the rules. One fault at a
//! time leads to exactly the conditions that are written down for it, and to no other.

mod stand_in;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use gangline_agent::collectors::Readings;
use gangline_agent::collectors::accelerator::{Accelerator, AcceleratorError, GpuSample, XidEvent};
use gangline_agent::collectors::host::{HostSample, Roots};
use gangline_agent::collectors::kernel::{KernelCollector, KernelReading};
use gangline_agent::collectors::nvml::{GpuIdentity, NvmlCollector};
use gangline_agent::collectors::rdma::{RdmaCollector, RdmaReading};
use gangline_agent::collectors::shared::{CanaryOutcome, SharedReading};
use gangline_agent::collectors::slot::{Latest, Outcome, Plan, Slot, read_into};
use gangline_agent::collectors::storage::{Room, StorageReading};
use gangline_agent::collectors::tasks::TasksReading;
use gangline_agent::collectors::versions::Versions;
use gangline_agent::health::judge::{Beside, Judge, Kept};
use gangline_agent::holders::{Holder, Holders};
use gangline_common::ids::{GangId, GpuId};
use gangline_common::time::Timestamp;
use gangline_health::Config;
use tokio::sync::mpsc::Receiver;

use stand_in::{A, B, Scene};

/// How long a call into the library may take, in real time.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Long enough for everything to be read twice, in seconds.
const WHILE: u64 = 30;
const MINUTE: u64 = 60;

/// A healthy GPU of a machine with NVSwitch, as the state file has it.
const WELL: [(&str, &str); 17] = [
    ("name", "\"NVIDIA H100 80GB HBM3\""),
    ("memory_total_mib", "81559"),
    ("memory_used_mib", "61440"),
    ("gpu_util", "97"),
    ("mem_util", "54"),
    ("memory_temperature_c", "70"),
    ("temperature_margin_c", "25"),
    ("clock_reasons", "4"),
    ("persistence", "true"),
    ("recovery_action", "0"),
    ("pcie", "{replays = 0, generation = 5, width = 16, max_generation = 5, max_width = 16}"),
    ("rows", "{pending = false}"),
    ("fabric", "{state = 3}"),
    ("ecc", "{volatile = {sram_uncorrected = 0}}"),
    ("link", "[{active = true}, {active = true}]"),
    ("pids", "[]"),
    ("lost", "false"),
];

/// The GPU with some of that changed, or with more.
fn gpu(uuid: &str, changes: &[(&str, &str)]) -> String {
    let changed = |key: &str| changes.iter().any(|(other, _)| *other == key);
    let well = WELL.iter().filter(|(key, _)| !changed(key));
    let lines = well.chain(changes).map(|(key, value)| format!("{key} = {value}\n"));
    format!("[[gpu]]\nuuid = \"{uuid}\"\n{}", lines.collect::<String>())
}

/// The first of two GPUs with these changes; the second is well.
fn gpus(changes: &[(&str, &str)]) -> String {
    gpu(A, changes) + &gpu(B, &[])
}

/// A tree with two InfiniBand ports that are up.
struct Sysfs(tempfile::TempDir);

impl Sysfs {
    fn new() -> Self {
        let sysfs = Sysfs(tempfile::tempdir().expect("directory"));
        for device in 0..2 {
            sysfs.port(device, true);
            for file in ["link_layer", "rate", "symbol_error", "link_downed", "port_rcv_errors"] {
                let (place, text) = match file {
                    "link_layer" => ("", "InfiniBand\n"),
                    "rate" => ("", "400 Gb/sec (4X NDR)\n"),
                    "link_downed" => ("counters/", "5\n"),
                    _ => ("counters/", "1000\n"),
                };
                sysfs.write(device, &format!("{place}{file}"), text);
            }
            sysfs.write(device, "hw_counters/local_ack_timeout_err", "7\n");
            for kind in ["uverbs", "umad"] {
                let path = sysfs.0.path().join(format!("dev/infiniband/{kind}{device}"));
                std::fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
                std::fs::write(path, "").expect("file");
            }
        }
        std::fs::write(sysfs.0.path().join("dev/kmsg"), "").expect("file");
        sysfs
    }

    /// A record of the kernel's log: its number, its facility, its text.
    fn log(&self, number: u64, facility: u64, text: &str) {
        let log = std::fs::OpenOptions::new().append(true).open(self.0.path().join("dev/kmsg"));
        let priority = facility * 8 + 3;
        writeln!(log.expect("log"), "{priority},{number},100,-;{text}").expect("written");
    }

    /// Whether the link is up.
    fn port(&self, device: u32, up: bool) {
        let (state, physical) =
            if up { ("4: ACTIVE\n", "5: LinkUp\n") } else { ("1: DOWN\n", "2: Polling\n") };
        self.write(device, "state", state);
        self.write(device, "phys_state", physical);
    }

    fn write(&self, device: u32, file: &str, text: &str) {
        let ports = format!("sys/class/infiniband/mlx5_{device}/ports/1");
        let path = self.0.path().join(ports).join(file);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
        std::fs::write(path, text).expect("file");
    }

    fn roots(&self) -> Roots {
        let below = |name: &str| self.0.path().join(name);
        Roots { sys: below("sys"), dev: below("dev"), ..Roots::default() }
    }
}

fn slot<T>(name: &'static str) -> Slot<T> {
    Slot::new(Plan { name, interval: Duration::from_secs(1), timeout: Duration::from_secs(60) })
}

/// What a collector without a reader here has read.
fn read<T>(slot: &Slot<T>, value: T) -> Latest<T> {
    slot.begin();
    slot.end(Ok(value));
    slot.latest()
}

/// A node in virtual time. Everything is well until something is changed.
struct Node {
    judge: Judge,
    sysfs: Sysfs,
    collector: RdmaCollector,
    kernel: KernelCollector,
    visible: BTreeSet<GpuId>,
    holders: Holders,
    gangs: BTreeSet<GangId>,
    canary: CanaryOutcome,
    oom_kills: u64,
    slots: Slots,
}

struct Slots {
    gpus: Slot<Vec<GpuSample>>,
    rdma: Slot<RdmaReading>,
    host: Slot<HostSample>,
    storage: Slot<StorageReading>,
    shared: Slot<SharedReading>,
    tasks: Slot<TasksReading>,
    kernel: Slot<KernelReading>,
    versions: Slot<Versions>,
}

fn rules(excluded: &[&str]) -> Config {
    Config {
        boot_id: Some("boot".to_owned()),
        excluded_devices: excluded.iter().map(|name| (*name).to_owned()).collect(),
        ..Config::default()
    }
}

impl Node {
    fn new(clock: Timestamp) -> Self {
        let gang: GangId = "g".parse().expect("an id");
        let visible = [A, B].map(|uuid| GpuId(uuid.to_owned()));
        let holder = Holder { gang: gang.clone(), job: Some("train-1".parse().expect("an id")) };
        let sysfs = Sysfs::new();
        Node {
            judge: Judge::new(rules(&[]), Kept::default(), clock),
            collector: RdmaCollector::new(&sysfs.roots()),
            kernel: KernelCollector::open(&sysfs.roots()).expect("a log"),
            sysfs,
            holders: visible.iter().map(|gpu| (gpu.clone(), holder.clone())).collect(),
            visible: visible.into(),
            gangs: [gang].into(),
            canary: CanaryOutcome::Ok { took_ms: 3 },
            oom_kills: 0,
            slots: Slots {
                gpus: slot("gpu"),
                rdma: slot("rdma"),
                host: slot("host"),
                storage: slot("storage"),
                shared: slot("shared"),
                tasks: slot("tasks"),
                kernel: slot("kernel"),
                versions: slot("versions"),
            },
        }
    }

    /// Everything but the GPUs is read, and judged.
    fn judge(&mut self, gpus: Option<Latest<Vec<GpuSample>>>, now: Timestamp) {
        let room = Room {
            path: PathBuf::from("/state"),
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            total_inodes: 0,
            free_inodes: 0,
            read_only: false,
        };
        let host = HostSample {
            mem_available_bytes: Some(1 << 34),
            mem_total_bytes: Some(1 << 35),
            oom_kills: Some(self.oom_kills),
            ..HostSample::default()
        };
        let storage = StorageReading { state: Some(room.clone()), temp: None };
        let shared = SharedReading { outcome: self.canary.clone(), room: Some(room) };
        let slots = &self.slots;
        read_into(&mut self.collector, &slots.rdma);
        read_into(&mut self.kernel, &slots.kernel);
        let readings = Readings {
            number: 1,
            at: now,
            gpus,
            rdma: slots.rdma.latest(),
            host: read(&slots.host, host),
            storage: read(&slots.storage, storage),
            shared: Some(read(&slots.shared, shared)),
            tasks: read(&slots.tasks, TasksReading::default()),
            kernel: Some(slots.kernel.latest()),
            versions: read(&slots.versions, Versions::default()),
            clock: None,
            dropped: 0,
            interval_ms: 1000,
            lag_ms: 0,
        };
        let beside = Beside { visible: &self.visible, holders: &self.holders, gangs: &self.gangs };
        self.judge.on_readings(&readings, beside, now);
    }

    /// Rule, part, level and action of everything that stands.
    fn says(&self, now: Timestamp) -> BTreeSet<[String; 4]> {
        let said = |condition: gangline_health::Condition| {
            [
                condition.rule.id().to_owned(),
                condition.component.to_string(),
                condition.level.word().to_owned(),
                condition.suggested_action.word().to_owned(),
            ]
        };
        self.judge.conditions(now).into_iter().map(said).collect()
    }
}

fn set(wanted: &[[&str; 4]]) -> BTreeSet<[String; 4]> {
    wanted.iter().map(|one| one.map(str::to_owned)).collect()
}

/// The driver, and the time that goes on from one fault to the next.
struct World {
    scene: Scene,
    nvml: NvmlCollector,
    events: Receiver<XidEvent>,
    now: Timestamp,
}

impl World {
    fn open(scene: Scene) -> Self {
        scene.write(&gpus(&[]));
        let nvml = scene.open(TIMEOUT).expect("opens");
        let events = nvml.events().expect("not taken before");
        World { scene, nvml, events, now: Timestamp { boot_ms: 1_000_000, wall_ms: 1_000_000 } }
    }

    /// A node that has been well for a while.
    async fn node(&mut self) -> Node {
        self.scene.write(&gpus(&[]));
        let mut node = Node::new(self.now);
        self.pass(&mut node, WHILE).await;
        assert_eq!(node.says(self.now), set(&[]), "it is well");
        node
    }

    /// Seconds pass.
    async fn pass(&mut self, node: &mut Node, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now.plus_ms(1000);
            let slot = &node.slots.gpus;
            slot.begin();
            let samples = self.nvml.sample_at(self.now).await;
            let samples = samples.map_err(AcceleratorError::from).map_err(Outcome::from);
            slot.end(samples.map(|mut all| {
                all.retain(|sample| node.visible.contains(&GpuId(sample.uuid.clone())));
                all
            }));
            let latest = slot.latest();
            node.judge(Some(latest), self.now);
        }
    }

    /// The next error that the driver reports by itself.
    async fn hear(&mut self, node: &mut Node) {
        let event = tokio::time::timeout(Duration::from_secs(30), self.events.recv()).await;
        let event = event.expect("in time").expect("the listener runs");
        let beside = Beside { visible: &node.visible, holders: &node.holders, gangs: &node.gangs };
        node.judge.on_xid(&event, beside, self.now);
    }
}

fn part(uuid: &str) -> String {
    format!("gpu:{uuid}")
}

#[tokio::test]
async fn every_xid_is_what_its_tier_says() {
    let Some(scene) = Scene::enter("every_xid_is_what_its_tier_says") else { return };
    let mut world = World::open(scene);
    let fatal = ["xid-fatal", "fatal", "REBOOT_SYSTEM"];
    for (xid, [rule, level, action]) in [
        ("79", fatal),
        ("48", fatal),
        ("119", fatal),
        ("63", ["xid-info", "info", "IGNORE_NO_ACTION_REQUIRED"]),
        ("94", ["xid-watch", "drain-after-job", "REBOOT_SYSTEM"]),
        // NVML's word for a code that it does not know.
        ("999", ["xid-info", "info", "IGNORE_NO_ACTION_REQUIRED"]),
    ] {
        let mut node = world.node().await;
        world.scene.write(&gpus(&[("xid", xid)]));
        world.hear(&mut node).await;
        let expected = set(&[[rule, &part(A), level, action]]);
        assert_eq!(node.says(world.now), expected, "Xid {xid}, at once");
        world.pass(&mut node, WHILE).await;
        assert_eq!(node.says(world.now), expected, "Xid {xid}");
    }
}

#[tokio::test]
async fn every_sick_part_of_a_gpu_becomes_its_condition() {
    let Some(scene) = Scene::enter("every_sick_part_of_a_gpu_becomes_its_condition") else {
        return;
    };
    let mut world = World::open(scene);
    let own = std::process::id().to_string();
    let slow = "{replays = 0, generation = 1, width = 16, max_generation = 5, max_width = 16}";
    let cases: [(&str, &str, u64, [&str; 3]); 11] = [
        (
            "ecc",
            "{volatile = {sram_uncorrected = 1}}",
            WHILE,
            ["ecc-sram", "fatal", "HARDWARE_INSPECTION"],
        ),
        (
            "ecc",
            "{volatile = {dram_uncorrected = 1}}",
            WHILE,
            ["ecc-dram", "drain-after-job", "REBOOT_SYSTEM"],
        ),
        ("rows", "{pending = true}", WHILE, ["remap-pending", "drain-after-job", "REBOOT_SYSTEM"]),
        ("rows", "{failed = true}", WHILE, ["remap-failure", "fatal", "HARDWARE_INSPECTION"]),
        // Two seconds: the driver's own verdict.
        ("recovery_action", "2", 2, ["recovery-action", "fatal", "REBOOT_SYSTEM"]),
        ("clock_reasons", "64", 7 * MINUTE, ["hw-slowdown", "degraded", "HARDWARE_INSPECTION"]),
        ("temperature_margin_c", "3", WHILE, ["gpu-temperature", "warning", "HARDWARE_INSPECTION"]),
        (
            "link",
            "[{active = true}, {active = false}]",
            WHILE,
            ["nvlink-down", "fatal", "REBOOT_SYSTEM"],
        ),
        ("pcie", slow, WHILE, ["pcie-link", "degraded", "HARDWARE_INSPECTION"]),
        ("lost", "true", WHILE, ["gpu-handle", "fatal", "REBOOT_SYSTEM"]),
        // A process that belongs to no gang is seen to within ten seconds (F31, A42).
        ("pids", &format!("[{own}]"), 10, ["gpu-foreign", "no-new-jobs", "CHECK_USER_APP_AND_GPU"]),
    ];
    for (key, value, seconds, [rule, level, action]) in cases {
        let mut node = world.node().await;
        world.scene.write(&gpus(&[(key, value)]));
        world.pass(&mut node, seconds).await;
        let expected = set(&[[rule, &part(A), level, action]]);
        assert_eq!(node.says(world.now), expected, "{key} = {value}");
    }
}

/// Of four GPUs that do the same, one is slow: said after five minutes, and not acted on, for the rule is on trial.
#[tokio::test]
async fn a_gpu_whose_clock_is_behind_that_of_its_gang_is_only_shown() {
    let Some(scene) = Scene::enter("a_gpu_whose_clock_is_behind_that_of_its_gang_is_only_shown")
    else {
        return;
    };
    let others =
        ["GPU-00000000-0000-0000-0000-00000000000c", "GPU-00000000-0000-0000-0000-00000000000d"];
    let four = |mhz: &str, load: &str| {
        let all = [A, B, others[0], others[1]];
        let clock = |uuid: &str| if uuid == A { mhz.to_owned() } else { "1980".to_owned() };
        let one = |uuid: &str| gpu(uuid, &[("sm_clock_mhz", &clock(uuid)), ("gpu_util", load)]);
        all.map(one).concat()
    };
    scene.write(&four("1980", "97"));
    let nvml = scene.open(TIMEOUT).expect("opens");
    let events = nvml.events().expect("not taken before");
    let mut world = World { scene, nvml, events, now: begin() };
    let mut node = Node::new(world.now);
    let holder = node.holders.values().next().expect("two are held").clone();
    for uuid in others.map(|uuid| GpuId(uuid.to_owned())) {
        node.visible.insert(uuid.clone());
        node.holders.insert(uuid, holder.clone());
    }
    world.pass(&mut node, WHILE).await;
    // Clocks of GPUs that wait say nothing.
    world.scene.write(&four("345", "3"));
    world.pass(&mut node, 6 * MINUTE).await;
    world.scene.write(&four("1200", "97"));
    world.pass(&mut node, 4 * MINUTE).await;
    assert_eq!(node.says(world.now), set(&[]));
    world.pass(&mut node, 2 * MINUTE).await;
    let slow = ["gpu-clock", &part(A), "degraded", "HARDWARE_INSPECTION"];
    assert_eq!(node.says(world.now), set(&[slow]));
    assert!(node.judge.conditions(world.now)[0].shadow);
}

/// A GPU's PCIe link sleeps while nothing runs, and is read less often than the load: neither the begin nor the end
/// of a job makes it look slow.
#[tokio::test]
async fn a_pcie_link_is_judged_by_the_load_of_the_same_moment() {
    let Some(scene) = Scene::enter("a_pcie_link_is_judged_by_the_load_of_the_same_moment") else {
        return;
    };
    let mut world = World::open(scene);
    let asleep = "{replays = 0, generation = 1, width = 16, max_generation = 5, max_width = 16}";
    let mut node = world.node().await;
    // Readings of what changes slowly fall anywhere into the work.
    for second in 0..24 {
        world.scene.write(&gpus(&[("pcie", asleep), ("gpu_util", "0")]));
        world.pass(&mut node, 13 + second % 5).await;
        world.scene.write(&gpus(&[]));
        world.pass(&mut node, 12).await;
        assert_eq!(node.says(world.now), set(&[]));
    }
}

#[tokio::test]
async fn crc_errors_of_a_link_are_counted_by_the_second() {
    let Some(scene) = Scene::enter("crc_errors_of_a_link_are_counted_by_the_second") else {
        return;
    };
    let mut world = World::open(scene);
    let errors = ["nvlink-errors", &part(A), "warning", "IGNORE_NO_ACTION_REQUIRED"];
    let broken = ["nvlink-crc", &part(A), "fatal", "HARDWARE_INSPECTION"];
    for (per_second, expected) in [(90, set(&[errors])), (110, set(&[errors, broken]))] {
        let mut node = world.node().await;
        for second in 1..=WHILE {
            let link = format!(
                "[{{active = true}}, {{active = true, crc_flit = {}}}]",
                second * per_second
            );
            world.scene.write(&gpus(&[("link", &link)]));
            world.pass(&mut node, 1).await;
        }
        assert_eq!(node.says(world.now), expected, "{per_second} each second");
    }
}

#[tokio::test]
async fn a_gpu_that_does_not_come_back_with_its_driver_is_missing() {
    let Some(scene) = Scene::enter("a_gpu_that_does_not_come_back_with_its_driver_is_missing")
    else {
        return;
    };
    let mut world = World::open(scene);
    let mut node = world.node().await;
    let kept = node.judge.kept();
    let World { scene, nvml, now, .. } = world;
    // The driver forgets it when nobody uses it any more.
    drop(nvml);
    scene.write(&gpu(B, &[]));
    let (nvml, found) = loop {
        let nvml = scene.open(TIMEOUT).expect("opens");
        let found = nvml.identity().await.expect("identity");
        if found.len() == 1 {
            break (nvml, found);
        }
        drop(nvml);
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let events = nvml.events().expect("not taken before");
    let mut world = World { scene, nvml, events, now };
    node = Node {
        judge: Judge::new(rules(&[]), kept, now),
        visible: found.into_iter().map(|gpu| GpuId(gpu.uuid)).collect(),
        ..Node::new(now)
    };
    world.pass(&mut node, WHILE).await;
    let missing = set(&[["gpu-set", "node", "fatal", "REBOOT_SYSTEM"]]);
    assert_eq!(node.says(world.now), missing);
}

#[tokio::test]
async fn a_call_into_the_driver_that_hangs_is_the_collectors() {
    let Some(scene) = Scene::enter("a_call_into_the_driver_that_hangs_is_the_collectors") else {
        return;
    };
    let mut world = World::open(scene);
    let mut node = world.node().await;
    world.scene.write(&format!("hang = true\n{}", gpus(&[])));
    world.pass(&mut node, WHILE).await;
    let hangs = ["collector", "collector:gpu", "degraded", "CHECK_USER_APP_AND_GPU"];
    assert_eq!(node.says(world.now), set(&[hangs]));
    let evidence = node.judge.conditions(world.now).remove(0).evidence;
    let seconds = evidence.strip_prefix("for ").and_then(|rest| rest.strip_suffix(" s"));
    let seconds: u64 = seconds.and_then(|text| text.parse().ok()).expect("a duration");
    assert!(seconds >= TIMEOUT.as_secs(), "{evidence}");
}

/// A node without GPUs, second by second.
struct Plain {
    node: Node,
    now: Timestamp,
}

impl Plain {
    fn new() -> Self {
        Plain::of(Node { visible: BTreeSet::new(), holders: Holders::new(), ..Node::new(begin()) })
    }

    fn of(node: Node) -> Self {
        let mut plain = Plain { node, now: begin() };
        plain.pass(WHILE);
        assert_eq!(plain.says(), set(&[]), "it is well");
        plain
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now.plus_ms(1000);
            self.node.judge(None, self.now);
        }
    }

    fn says(&self) -> BTreeSet<[String; 4]> {
        self.node.says(self.now)
    }

    /// Another agent goes on.
    fn restart(&mut self, excluded: &[&str]) {
        let kept = serde_json::to_string(&self.node.judge.kept()).expect("JSON");
        let kept = serde_json::from_str(&kept).expect("JSON");
        self.node.judge = Judge::new(rules(excluded), kept, self.now);
        self.node.collector = RdmaCollector::new(&self.node.sysfs.roots());
    }
}

fn begin() -> Timestamp {
    Timestamp { boot_ms: 1_000_000, wall_ms: 1_000_000 }
}

const PORT: &str = "port:mlx5_0/1";
const STATE: [&str; 4] = ["port-state", PORT, "degraded", "HARDWARE_INSPECTION"];
const LINK_DOWNED: [&str; 4] = ["port-link-downed", PORT, "degraded", "HARDWARE_INSPECTION"];

#[test]
fn a_port_that_is_down_for_five_minutes_stays_down() {
    let mut plain = Plain::new();
    plain.node.sysfs.port(0, false);
    plain.pass(3 * MINUTE);
    assert_eq!(plain.says(), set(&[STATE]));
    plain.pass(2 * MINUTE);
    let drop = ["port-drop", PORT, "degraded", "HARDWARE_INSPECTION"];
    assert_eq!(plain.says(), set(&[STATE, drop]));
}

#[test]
fn a_link_that_comes_and_goes_three_times_flaps() {
    let mut plain = Plain::new();
    for time in 1..=3 {
        assert_eq!(plain.says().contains(&LINK_DOWNED.map(str::to_owned)), time > 1);
        plain.node.sysfs.port(0, false);
        plain.node.sysfs.write(0, "counters/link_downed", &format!("{}\n", 5 + time));
        plain.pass(WHILE);
        plain.node.sysfs.port(0, true);
        plain.pass(10);
    }
    let flap = ["port-flap", PORT, "no-new-jobs", "HARDWARE_INSPECTION"];
    assert_eq!(plain.says(), set(&[STATE, LINK_DOWNED, flap]));
}

#[test]
fn symbol_errors_are_bit_errors_of_the_link() {
    let mut plain = Plain::new();
    for second in 1..=10 {
        plain.node.sysfs.write(0, "counters/symbol_error", &format!("{}\n", 1000 + 20 * second));
        plain.pass(1);
    }
    let bits = ["port-symbol-errors", PORT, "fatal", "HARDWARE_INSPECTION"];
    assert_eq!(plain.says(), set(&[bits]));
}

#[test]
fn a_counter_that_goes_backwards_has_grown_by_nothing() {
    let mut plain = Plain::new();
    plain.node.sysfs.write(0, "counters/symbol_error", "900\n");
    plain.node.sysfs.write(0, "counters/link_downed", "4\n");
    plain.pass(WHILE);
    assert_eq!(plain.says(), set(&[]));
}

#[test]
fn what_a_port_counted_while_no_agent_ran_is_not_missed() {
    let mut plain = Plain::new();
    plain.node.sysfs.write(0, "counters/link_downed", "6\n");
    plain.restart(&[]);
    plain.pass(2);
    assert_eq!(plain.says(), set(&[LINK_DOWNED]));
}

#[test]
fn a_port_of_an_excluded_device_is_not_missed() {
    let judge = Judge::new(rules(&["mlx5_1"]), Kept::default(), begin());
    let node =
        Node { judge, visible: BTreeSet::new(), holders: Holders::new(), ..Node::new(begin()) };
    let mut plain = Plain::of(node);
    plain.node.sysfs.port(1, false);
    plain.pass(WHILE);
    assert_eq!(plain.says(), set(&[]));
    // Nor one that is excluded from now on.
    plain.restart(&["mlx5_0", "mlx5_1"]);
    plain.pass(WHILE);
    assert_eq!(plain.says(), set(&[]));
}

#[test]
fn a_shared_file_system_that_hangs_is_said() {
    let mut plain = Plain::new();
    plain.node.canary = CanaryOutcome::TimedOut { waiting_ms: 5_400 };
    plain.pass(1);
    let hangs = ["shared-root", "mount:shared root", "degraded", "CHECK_USER_APP_AND_GPU"];
    assert_eq!(plain.says(), set(&[hangs]));
}

#[test]
fn a_kill_for_want_of_memory_is_the_only_gangs_also_without_gpus_and_when_it_has_left() {
    let evidence = |gangs: &[&str]| {
        let mut plain = Plain::new();
        let ids = gangs.iter().map(|gang| gang.parse::<GangId>().expect("an id"));
        plain.node.gangs = ids.collect();
        plain.pass(1);
        plain.node.oom_kills += 1;
        plain.node.gangs.clear();
        plain.pass(1);
        let said = plain.node.judge.conditions(plain.now);
        assert_eq!((said.len(), said[0].rule.id()), (1, "oom-kill"));
        said[0].evidence.clone()
    };
    assert_eq!(evidence(&["g"]), "gang g");
    assert_eq!(evidence(&["g", "h"]), "no gang");
    assert_eq!(evidence(&[]), "no gang");
}

#[test]
fn a45_only_the_kernels_own_lines_count_and_each_is_of_its_gpu_and_job() {
    let mut node = Node::new(begin());
    let identity = |(uuid, bus): (&str, &str)| GpuIdentity {
        index: 0,
        uuid: uuid.to_owned(),
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_bytes: 80 << 30,
        pci_bus_id: Some(format!("00000000:{bus}:00.0")),
        minor: None,
    };
    // The driver shows all GPUs of the machine, and this node has two of them.
    node.judge.learn(Ok(&[(A, "1B"), (B, "2B"), ("GPU-other", "4B")].map(identity)));
    let mut now = begin();
    let mut number = 0;
    let mut says = |node: &mut Node, facility: u64, text: &str| {
        number += 1;
        now = now.plus_ms(1000);
        node.sysfs.log(number, facility, text);
        let sample = |uuid: &str| GpuSample { uuid: uuid.to_owned(), ..GpuSample::default() };
        let gpus = read(&node.slots.gpus, vec![sample(A), sample(B)]);
        node.judge(Some(gpus), now);
        node.says(now)
    };
    let fault = |bus: &str| format!("NVRM: Xid (PCI:0000:{bus}:00): 13, pid=7, Graphics SM Warp");
    let lost = |bus: &str| format!("NVRM: GPU 0000:{bus}:00.0: GPU has fallen off the bus.");
    // A program may write to the log, but not as the kernel.
    for facility in [1, 3, 16] {
        assert_eq!(says(&mut node, facility, &lost("1b")), set(&[]));
    }
    // Of another container's GPU on this machine, whether the driver shows it here or not.
    assert_eq!(says(&mut node, 0, &lost("3b")), set(&[]));
    assert_eq!(says(&mut node, 0, &lost("4b")), set(&[]));

    let app = ["xid-app", &part(A), "info", "CHECK_USER_APP_AND_GPU"];
    let repeated = ["xid-repeated", &part(A), "degraded", "CHECK_USER_APP_AND_GPU"];
    for (job, expected) in
        [("j-1", set(&[app])), ("j-2", set(&[app])), ("j-3", set(&[app, repeated]))]
    {
        let job = Some(job.parse().expect("an id"));
        node.holders.insert(GpuId(A.to_owned()), Holder { gang: "g".parse().expect("an id"), job });
        assert_eq!(says(&mut node, 0, &fault("1b")), expected);
    }
    let broken = ["xid-fatal", &part(B), "fatal", "REBOOT_SYSTEM"];
    assert_eq!(says(&mut node, 0, &lost("2b")), set(&[app, repeated, broken]));
    let kernel = ["kernel", "node", "degraded", "REBOOT_SYSTEM"];
    let hot =
        "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature";
    assert_eq!(says(&mut node, 0, hot), set(&[app, repeated, broken, kernel]));
}

#[test]
fn an_xid_of_another_containers_gpu_is_not_this_nodes() {
    let mut node = Node::new(begin());
    let event = XidEvent { sequence: 1, at: begin(), uuid: "GPU-other".to_owned(), xid: Some(79) };
    let beside = Beside { visible: &node.visible, holders: &node.holders, gangs: &node.gangs };
    node.judge.on_xid(&event, beside, begin());
    assert_eq!(node.says(begin()), set(&[]));
    let event = XidEvent { uuid: A.to_owned(), ..event };
    node.judge.on_xid(&event, beside, begin());
    assert_eq!(node.says(begin()).len(), 1);
}
