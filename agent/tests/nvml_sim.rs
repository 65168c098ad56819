//! The NVML collector against the stand-in library: the production path from `dlopen` on, with a state file
//! that changes while the collector runs.

mod stand_in;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gangline_agent::collectors::accelerator::{
    Accelerator, AcceleratorError, Ecc, Fabric, FabricState, GpuProcess, Owner, P2pStatus, Peer,
    ReadAt, RecoveryAction, RemappedRows, WINDOW_MS, clock_reason,
};
use gangline_agent::collectors::host::{HostFacts, Roots};
use gangline_agent::collectors::nvml::{
    DEFAULT_TIMEOUT, GpuSample, NvmlCollector, NvmlError, XidEvent,
};
use gangline_agent::collectors::slot::Outcome;
use gangline_agent::doctor::{self, DoctorLine, Level, Subject};
use gangline_agent::inventory::{Findings, Standing, inventory};
use gangline_agent::link::LinkStatus;
use gangline_agent::telemetry::{Numbered, Sources, collect};
use gangline_common::ids::{GpuId, PortBlock};
use gangline_common::time::Timestamp;
use gangline_common::wire::v1::NodeSample;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

use stand_in::{A, B, Scene};

fn gpu(uuid: &str, more: &str) -> String {
    format!(
        "[[gpu]]\nuuid = \"{uuid}\"\nname = \"NVIDIA H100 80GB HBM3\"\nmemory_total_mib = 81559\n\
         memory_used_mib = 1024\n{more}\n"
    )
}

fn process(pid: u32) -> GpuProcess {
    GpuProcess { pid, used_bytes: Some(512 << 20), owner: Owner::Unknown }
}

/// The sample but for the times at which its parts were read.
fn timeless(sample: &GpuSample) -> GpuSample {
    GpuSample { read_at: ReadAt::default(), ..sample.clone() }
}

fn by_uuid<'a>(samples: &'a [GpuSample], uuid: &str) -> &'a GpuSample {
    let found = samples.iter().find(|sample| sample.uuid == uuid);
    found.expect("a sample of every known GPU")
}

#[tokio::test]
async fn readings_follow_the_state_file() {
    let Some(scene) = Scene::enter("readings_follow_the_state_file") else {
        return;
    };
    let full = "gpu_util = 97\nmem_util = 54\ntemperature_c = 63\npower_w = 612.5\npower_limit_w = 700.0\n\
                sm_clock_mhz = 1755\nmem_clock_mhz = 2619\npci_bus_id = \"00000000:1B:00.0\"\npids = [4194305, 4194306]";
    scene.write(&(gpu(A, full) + &gpu(B, "minor = 5")));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");

    let facts = nvml.driver().await.expect("driver");
    assert_eq!(facts.driver.as_deref(), Some("570.124.06"));
    assert_eq!(facts.cuda, Some((12, 8)));
    assert_eq!((facts.device_count, facts.xid_sources), (Some(2), 2));

    let gpus = nvml.identity().await.expect("identity");
    assert_eq!(gpus.len(), 2);
    assert_eq!((gpus[0].index, gpus[0].uuid.as_str()), (0, A));
    assert_eq!(gpus[0].name, "NVIDIA H100 80GB HBM3");
    assert_eq!(gpus[0].memory_bytes, 81_559 << 20);
    assert_eq!(gpus[0].pci_bus_id.as_deref(), Some("00000000:1B:00.0"));
    assert_eq!((gpus[0].minor, gpus[1].minor), (Some(0), Some(5)));
    assert_eq!(gpus[1].pci_bus_id, None);

    let samples = nvml.sample().await.expect("sample");
    let expected = GpuSample {
        uuid: A.to_owned(),
        lost: false,
        utilization_pct: Some(97.0),
        memory_utilization_pct: Some(54.0),
        memory_used_bytes: Some(1024 << 20),
        memory_total_bytes: Some(81_559 << 20),
        memory_reserved_bytes: Some(0),
        memory_free_bytes: Some((81_559 - 1024) << 20),
        temperature_c: Some(63.0),
        power_w: Some(612.5),
        power_limit_w: Some(700.0),
        sm_clock_mhz: Some(1755),
        mem_clock_mhz: Some(2619),
        processes: Some(vec![process(4_194_305), process(4_194_306)]),
        hears_xids: true,
        ..GpuSample::default()
    };
    assert_eq!(timeless(by_uuid(&samples, A)), expected);
    let bare = GpuSample {
        uuid: B.to_owned(),
        hears_xids: true,
        memory_used_bytes: Some(1024 << 20),
        memory_total_bytes: Some(81_559 << 20),
        memory_reserved_bytes: Some(0),
        memory_free_bytes: Some((81_559 - 1024) << 20),
        processes: Some(Vec::new()),
        ..GpuSample::default()
    };
    assert_eq!(timeless(by_uuid(&samples, B)), bare, "no sensor is None and not 0");

    scene.write(&(gpu(A, "gpu_util = 3\nmem_util = 1") + &gpu(B, "gpu_util = 0\nmem_util = 0")));
    let samples = nvml.sample().await.expect("sample");
    assert_eq!(by_uuid(&samples, A).utilization_pct, Some(3.0));
    assert_eq!(by_uuid(&samples, A).power_w, None);
    assert_eq!(by_uuid(&samples, B).utilization_pct, Some(0.0));
}

#[tokio::test]
async fn a_lost_gpu_reads_as_lost_and_the_others_go_on() {
    let Some(scene) = Scene::enter("a_lost_gpu_reads_as_lost_and_the_others_go_on") else {
        return;
    };
    let healthy = "temperature_c = 40";
    scene.write(&(gpu(A, healthy) + &gpu(B, healthy)));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");
    let before = nvml.identity().await.expect("identity");
    let lost =
        GpuSample { uuid: A.to_owned(), lost: true, hears_xids: true, ..GpuSample::default() };

    // Marked as lost, and gone from the file: NVML says the same.
    for state in [gpu(A, "lost = true") + &gpu(B, healthy), gpu(B, healthy)] {
        scene.write(&state);
        let samples = nvml.sample().await.expect("sample");
        assert_eq!(by_uuid(&samples, A), &lost);
        assert_eq!(by_uuid(&samples, B).temperature_c, Some(40.0));
        assert!(!by_uuid(&samples, B).lost);
        assert_eq!(nvml.identity().await.expect("identity"), before);
    }

    scene.write(&(gpu(B, healthy) + &gpu(A, healthy)));
    let samples = nvml.sample().await.expect("sample");
    assert_eq!(by_uuid(&samples, A).temperature_c, Some(40.0));
    assert_eq!(samples.len(), 2);
}

#[tokio::test]
async fn a_broken_file_is_a_broken_driver_until_it_is_repaired() {
    let Some(scene) = Scene::enter("a_broken_file_is_a_broken_driver_until_it_is_repaired") else {
        return;
    };
    let refused = scene.open(DEFAULT_TIMEOUT).map(|_| ());
    assert!(matches!(refused, Err(NvmlError::NoDriver)), "no state file: {refused:?}");
    scene.write("[[gpu]\n");
    let refused = scene.open(DEFAULT_TIMEOUT).map(|_| ());
    assert!(matches!(refused, Err(NvmlError::NoDriver)), "broken: {refused:?}");
    scene.write("version_mismatch = true\n");
    let refused = scene.open(DEFAULT_TIMEOUT).map(|_| ());
    assert!(matches!(refused, Err(NvmlError::VersionMismatch)), "{refused:?}");

    scene.write(&gpu(A, "temperature_c = 40"));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");
    assert_eq!(nvml.sample().await.expect("sample").len(), 1);

    scene.write("gpu = 7\n");
    let failed = nvml.sample().await;
    assert!(matches!(failed, Err(NvmlError::Call { .. })), "broken while it runs: {failed:?}");
    let facts = nvml.driver().await.expect("facts");
    assert_eq!((facts.driver, facts.device_count), (None, None));
    std::fs::remove_file(&scene.state).expect("removed");
    assert!(nvml.sample().await.is_err(), "no file any more");

    scene.write(&gpu(A, "temperature_c = 41"));
    let samples = nvml.sample().await.expect("sample");
    assert_eq!(by_uuid(&samples, A).temperature_c, Some(41.0));
}

/// The next `count` events, as (sequence, uuid, code).
async fn next(events: &mut Receiver<XidEvent>, count: usize) -> Vec<(u64, String, Option<u64>)> {
    let mut found = Vec::new();
    for _ in 0..count {
        let event = events.recv().await.expect("the listener runs");
        found.push((event.sequence, event.uuid, event.xid));
    }
    found
}

#[tokio::test]
async fn every_xid_is_delivered_once() {
    let Some(scene) = Scene::enter("every_xid_is_delivered_once") else {
        return;
    };
    let event = |sequence, uuid: &str, xid| (sequence, uuid.to_owned(), xid);
    scene.write(&(gpu(A, "") + &gpu(B, "")));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");
    let mut events = nvml.events().expect("not taken before");
    assert!(nvml.events().is_none(), "one reader");
    assert_eq!(nvml.sample().await.expect("sample").len(), 2);

    // Xid 79 comes from a GPU that has just been lost; 999 is NVML's word for an unknown code.
    scene.write(&(gpu(A, "xid = 79\nlost = true") + &gpu(B, "xid = 999")));
    let both = next(&mut events, 2).await;
    assert_eq!(both, [event(1, A, Some(79)), event(2, B, None)]);
    // The same file again, and again a word of A alone: nothing comes twice.
    scene.write(&(gpu(A, "xid = 79\nxid_serial = 1") + &gpu(B, "xid = 999")));
    assert_eq!(next(&mut events, 1).await, [event(3, A, Some(79))]);

    let samples = nvml.sample().await.expect("sample");
    assert_eq!(
        (by_uuid(&samples, A).last_xid, &by_uuid(&samples, A).xids[..]),
        (Some(79), &[(79, 2)][..])
    );
    assert_eq!(by_uuid(&samples, B).xids, [(0, 1)]);
    assert_eq!(by_uuid(&samples, A).recent_xids, [(79, 2)]);
    // Five minutes later that is no longer news.
    let later = Timestamp { boot_ms: Timestamp::now().boot_ms + WINDOW_MS, wall_ms: 0 };
    let samples = nvml.sample_at(later).await.expect("sample");
    assert_eq!(by_uuid(&samples, A).recent_xids, []);
    assert_eq!(by_uuid(&samples, A).xids, [(79, 2)]);
}

#[tokio::test]
async fn events_wait_for_a_reader_that_comes_late() {
    let Some(scene) = Scene::enter("events_wait_for_a_reader_that_comes_late") else {
        return;
    };
    let raise = |serial: usize| scene.write(&gpu(A, &format!("xid = 31\nxid_serial = {serial}")));
    scene.write(&gpu(A, ""));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");
    assert_eq!(nvml.sample().await.expect("sample").len(), 1);
    let seen = async || {
        let samples = nvml.sample().await.expect("sample");
        by_uuid(&samples, A).xids.iter().map(|(_, count)| *count as usize).sum::<usize>()
    };
    // The stand-in keeps one event per GPU, so each is waited for before the next.
    for serial in 1..=3 {
        raise(serial);
        while seen().await < serial {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let mut events = nvml.events().expect("not taken before");
    let found: Vec<u64> = next(&mut events, 3).await.into_iter().map(|event| event.0).collect();
    assert_eq!(found, [1, 2, 3]);
}

#[tokio::test]
async fn errors_of_memory_links_and_bus_are_read() {
    let Some(scene) = Scene::enter("errors_of_memory_links_and_bus_are_read") else {
        return;
    };
    let state = |uncorrected: u32, active: bool| {
        format!(
            "memory_reserved_mib = 551\nencoder_util = 3\ndecoder_util = 4\nmemory_temperature_c = 78\n\
             temperature_margin_c = -2\nenergy_mj = 123\nclock_reasons = 72\npersistence = true\n\
             recovery_action = 4\npcie = {{ replays = 6, generation = 4, width = 8, max_generation = 5, \
             max_width = 16 }}\nviolations = {{ thermal_ns = 9 }}\nrows = {{ uncorrected = 1, pending = true }}\n\
             fabric = {{ state = 3, status = 999 }}\n[gpu.ecc]\nvolatile = {{ sram_uncorrected = {uncorrected}, \
             dram_corrected = 2 }}\naggregate = {{ dram_uncorrected = 5 }}\nsram_threshold_exceeded = true\n\
             [gpu.gpm]\nsm = 91.0\ntensor = 50.0\nnvlink_sent = 2.0\n[[gpu.link]]\nactive = true\ncrc_data = 7\n\
             [[gpu.link]]\nactive = {active}\n"
        )
    };
    scene.write(&(gpu(A, &state(0, true)) + &gpu(B, "")));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");
    let samples = nvml.sample().await.expect("sample");
    let first = by_uuid(&samples, A);
    assert_eq!(first.memory_reserved_bytes, Some(551 << 20));
    assert_eq!(first.memory_free_bytes, Some((81_559 - 1024 - 551) << 20));
    assert_eq!((first.encoder_pct, first.decoder_pct), (Some(3.0), Some(4.0)));
    assert_eq!((first.memory_temperature_c, first.temperature_margin_c), (Some(78.0), Some(-2)));
    assert_eq!((first.energy_mj, first.persistence), (Some(123), Some(true)));
    assert_eq!(first.clock_reasons, Some(clock_reason::HW_SLOWDOWN | clock_reason::HW_THERMAL));
    assert_eq!(first.recovery, Some(RecoveryAction::DrainAndReset));
    let pcie = first.pcie;
    assert_eq!((pcie.replays, pcie.generation, pcie.width), (Some(6), Some(4), Some(8)));
    assert_eq!((pcie.max_generation, pcie.max_width), (Some(5), Some(16)));
    assert_eq!((first.violations.thermal_ns, first.violations.power_ns), (Some(9), Some(0)));
    let rows = RemappedRows { corrected: 0, uncorrected: 1, pending: true, failed: false };
    assert_eq!((first.rows, first.retired), (Some(rows), None));
    let fabric = Fabric { state: FabricState::Completed, status: 999 };
    assert_eq!(first.fabric, Some(fabric));
    assert_eq!((first.ecc.volatile.corrected, first.ecc.volatile.uncorrected), (Some(2), Some(0)));
    assert_eq!(first.ecc.volatile.dram_corrected, Some(2));
    assert_eq!(first.ecc.aggregate.dram_uncorrected, Some(5));
    assert_eq!(first.ecc.sram_threshold_exceeded, Some(true));
    let links = first.links.as_deref().expect("links");
    let states: Vec<_> = links.iter().map(|link| (link.number, link.active)).collect();
    assert_eq!(states, [(0, Some(true)), (1, Some(true))]);
    assert_eq!((links[0].crc_data, links[1].crc_data), (Some(7), Some(0)));
    assert_eq!(first.profile, None, "nothing to compare with yet");
    // What the GPU cannot say is absent.
    let bare = by_uuid(&samples, B);
    assert_eq!((bare.ecc, &bare.links, bare.fabric), (Ecc::default(), &None, None));
    assert_eq!((bare.recovery, bare.rows, bare.profile), (None, None, None));

    // An error and a link that goes down are seen with the next sample, with their kind.
    scene.write(&(gpu(A, &state(1, false)) + &gpu(B, "")));
    let samples = nvml.sample().await.expect("sample");
    let second = by_uuid(&samples, A);
    assert_eq!(second.ecc.volatile.uncorrected, Some(1));
    assert_eq!(second.ecc.volatile.sram_uncorrected, Some(1));
    let down: Vec<_> = second.links.iter().flatten().map(|link| link.active).collect();
    assert_eq!(down, [Some(true), Some(false)]);
    let profile = second.profile.expect("two samples");
    assert_eq!((profile.sm_active, profile.tensor_active), (Some(0.91), Some(0.5)));
    assert_eq!(profile.nvlink_sent_bytes_per_s, Some(2 << 20));
    assert_eq!(profile.nvlink_received_bytes_per_s, Some(0));

    scene.write(&(gpu(A, "reset_required = true") + &gpu(B, "temperature_c = 40")));
    let samples = nvml.sample().await.expect("sample");
    assert!(by_uuid(&samples, A).reset_required && !by_uuid(&samples, A).lost);
    assert_eq!(by_uuid(&samples, A).temperature_c, None);
    assert_eq!(by_uuid(&samples, B).temperature_c, Some(40.0));
}

#[tokio::test]
async fn what_links_carry_and_licenses_are_read() {
    let Some(scene) = Scene::enter("what_links_carry_and_licenses_are_read") else {
        return;
    };
    // Two links with counters and one without; the other GPU has links without any.
    let state = |sent: u64, fault: bool, licenses: &str| {
        gpu(
            A,
            &format!(
                "{licenses}\nlink = [{{active = true, sent_kib = {sent}, received_kib = 1024}}, \
                 {{active = {}, sent_kib = {sent}, received_kib = 0}}, {{active = true}}]",
                !fault
            ),
        ) + &gpu(B, "link = [{active = true}]")
    };
    let mib = 1024;
    scene.write(&state(10 * mib, false, "licenses = []"));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");
    let read = async |second: u64| {
        let now = Timestamp { boot_ms: second * 1000, wall_ms: 0 };
        let samples = nvml.sample_at(now).await.expect("sample");
        let (bare, of) = (by_uuid(&samples, B), by_uuid(&samples, A));
        assert_eq!((bare.nvlink_mib_per_s, bare.first_link_mib_per_s), (None, None));
        assert_eq!(bare.vgpu_licensed, None);
        (of.nvlink_mib_per_s, of.first_link_mib_per_s, of.vgpu_licensed)
    };
    assert_eq!(read(100).await, (None, None, Some(false)), "nothing to compare with yet");
    // The first one of all is looked at twice, and then what is slow after ten seconds.
    scene.write(&state(14 * mib, false, "licenses = [{feature = 1, state = 2}]"));
    assert_eq!(read(101).await, (Some(8.0), Some(4.0), Some(true)));
    scene.write(&state(34 * mib, false, "licenses = [{feature = 4, state = 1}, {feature = 1}]"));
    assert_eq!(read(110).await, (Some(8.0), Some(4.0), Some(true)));
    assert_eq!(read(111).await, (Some(4.0), Some(2.0), Some(false)));
    // A link that goes down is looked up at once: the rate is of the time that there was.
    scene.write(&state(40 * mib, true, "licenses = [{feature = 4, state = 1}]"));
    assert_eq!(read(113).await, (Some(6.0), Some(3.0), None), "another license says nothing");
    // The counters began anew, and then they are gone.
    scene.write(&state(0, true, ""));
    assert_eq!(read(123).await, (None, None, None));
    scene.write(&state(5 * mib, true, ""));
    assert_eq!(read(133).await, (Some(1.0), Some(0.5), None));
    scene.write(&(gpu(A, "link = [{active = true}]") + &gpu(B, "link = [{active = true}]")));
    assert_eq!(read(143).await, (None, None, None));
}

#[tokio::test]
async fn reasons_of_clocks_are_counted_for_five_minutes() {
    let Some(scene) = Scene::enter("reasons_of_clocks_are_counted_for_five_minutes") else {
        return;
    };
    let hot = gpu(A, "clock_reasons = 72");
    scene.write(&(hot.clone() + &gpu(B, "")));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");
    let read = async |second: u64| {
        let now = Timestamp { boot_ms: second * 1000, wall_ms: 0 };
        let samples = nvml.sample_at(now).await.expect("sample");
        assert_eq!(by_uuid(&samples, B).clock_events, None, "no reading is no count");
        by_uuid(&samples, A).clock_events
    };
    assert_eq!(read(100).await, Some([0, 0, 0, 1, 0, 0, 1, 0, 0]));
    assert_eq!(read(101).await, Some([0, 0, 0, 2, 0, 0, 2, 0, 0]));
    scene.write(&(gpu(A, "clock_reasons = 1") + &gpu(B, "")));
    assert_eq!(read(102).await, Some([1, 0, 0, 2, 0, 0, 2, 0, 0]));
    assert_eq!(read(400).await, Some([2, 0, 0, 1, 0, 0, 1, 0, 0]));
    assert_eq!(read(401).await, Some([3, 0, 0, 0, 0, 0, 0, 0, 0]));
    // What is no longer read stays for its time, and what was lost begins anew.
    scene.write(&(gpu(A, "") + &gpu(B, "")));
    assert_eq!(read(402).await, Some([2, 0, 0, 0, 0, 0, 0, 0, 0]));
    scene.write(&(gpu(A, "lost = true") + &gpu(B, "")));
    assert_eq!(read(403).await, None);
    scene.write(&(hot + &gpu(B, "")));
    assert_eq!(read(404).await, Some([0, 0, 0, 1, 0, 0, 1, 0, 0]));
}

#[tokio::test]
async fn pairs_of_gpus_are_asked_about_once_a_minute() {
    let Some(scene) = Scene::enter("pairs_of_gpus_are_asked_about_once_a_minute") else {
        return;
    };
    let third = "GPU-5f1c2a10-0000-4000-8000-00000000000c";
    let state = |seen_from_a: &str, more_of_b: &str| {
        gpu(A, &format!("p2p = {{ {seen_from_a} }}"))
            + &gpu(B, &format!("p2p = {{ {A} = 0 }}\n{more_of_b}"))
            + &gpu(third, "")
    };
    scene.write(&state(&format!("{B} = 0, {third} = 4"), ""));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");
    let read = async |second: u64| {
        let now = Timestamp { boot_ms: second * 1000, wall_ms: 0 };
        let samples = nvml.sample_at(now).await.expect("sample");
        [A, B, third].map(|uuid| by_uuid(&samples, uuid).peers.to_vec())
    };
    let peer = |index, nvlink| Peer { index, nvlink };
    let (joined, off) = (peer(1, P2pStatus::Ok), peer(2, P2pStatus::DisabledByRegKey));
    let back = vec![peer(0, P2pStatus::Ok)];
    // What the driver says nothing of is absent.
    assert_eq!(read(100).await, [vec![joined, off], back.clone(), vec![]]);
    scene.write(&state(&format!("{B} = 6"), ""));
    assert_eq!(read(159).await, [vec![joined, off], back.clone(), vec![]]);
    assert_eq!(read(160).await, [vec![peer(1, P2pStatus::Unknown)], back.clone(), vec![]]);
    // A number that has no name says nothing; a GPU that is lost takes its pairs with it, and no other GPU.
    scene.write(&state(&format!("{B} = 7, {third} = 0"), ""));
    assert_eq!(read(220).await, [vec![peer(2, P2pStatus::Ok)], back, vec![]]);
    scene.write(&state(&format!("{B} = 0, {third} = 0"), "lost = true"));
    assert_eq!(read(280).await, [vec![peer(2, P2pStatus::Ok)], vec![], vec![]]);
    let samples = nvml.sample().await.expect("sample");
    assert!(!by_uuid(&samples, A).lost && by_uuid(&samples, B).lost);
}

#[tokio::test]
async fn a_sample_says_when_what_it_repeats_was_read() {
    let Some(scene) = Scene::enter("a_sample_says_when_what_it_repeats_was_read") else {
        return;
    };
    let well = "rows = {pending = false}\nrecovery_action = 0\nlink = [{active = true, crc_flit = 1}]\n\
                gpu_util = 90\nmem_util = 9";
    let sick = "rows = {pending = true}\nrecovery_action = 1\nlink = [{active = true, crc_flit = 2}]\n\
                pids = [4194305]\ngpu_util = 90\nmem_util = 9";
    scene.write(&gpu(A, well));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");
    let read = async |second: u64| {
        let now = Timestamp { boot_ms: second * 1000, wall_ms: 0 };
        let samples = nvml.sample_at(now).await.expect("sample");
        let GpuSample { read_at, rows, processes, recovery, links, .. } = samples[0].clone();
        let seconds = |ms: Option<u64>| ms.expect("read") / 1000;
        let (slow, listed) = (seconds(read_at.slow_ms), seconds(read_at.processes_ms));
        let crc = links.expect("links")[0].crc_flit;
        (slow, rows.expect("rows").pending, crc, listed, processes.expect("a list").len(), recovery)
    };
    let none = Some(RecoveryAction::None);
    assert_eq!(read(100).await, (100, false, Some(1), 100, 0, none));
    // The first one of all is looked at twice.
    assert_eq!(read(101).await, (101, false, Some(1), 100, 0, none));
    scene.write(&gpu(A, sick));
    let reset = Some(RecoveryAction::GpuReset);
    assert_eq!(
        read(102).await,
        (101, false, Some(1), 102, 1, reset),
        "the driver's verdict at once"
    );
    assert_eq!(read(103).await, (101, false, Some(1), 102, 1, reset));
    assert_eq!(read(110).await, (101, false, Some(1), 110, 1, reset));
    assert_eq!(read(111).await, (111, true, Some(2), 110, 1, reset));
    // A doubt does not wait for another ten seconds.
    assert_eq!(read(112).await, (112, true, Some(2), 112, 1, reset));
    assert_eq!(read(113).await, (112, true, Some(2), 112, 1, reset));
}

#[tokio::test]
async fn a_hanging_driver_blocks_no_caller_and_may_come_back() {
    let Some(scene) = Scene::enter("a_hanging_driver_blocks_no_caller_and_may_come_back") else {
        return;
    };
    let timeout = Duration::from_secs(2);
    let healthy = gpu(A, "temperature_c = 40");
    scene.write(&healthy);
    let nvml = scene.open(timeout).expect("opens");
    assert!(!nvml.hung());

    scene.write(&format!("hang = true\n{healthy}"));
    assert_eq!(nvml.sample().await, Err(NvmlError::TimedOut(timeout)));
    // The thread may have taken the request a moment after the caller began to wait for it.
    while !nvml.hung() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let refused = nvml.sample().await;
    assert!(matches!(refused, Err(NvmlError::Hung(_))), "{refused:?}");
    let refused = scene.open(timeout).map(|_| ());
    assert_eq!(refused, Err(NvmlError::TimedOut(timeout)));

    scene.write(&healthy);
    while nvml.hung() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let samples = nvml.sample().await.expect("works again");
    assert_eq!(by_uuid(&samples, A).temperature_c, Some(40.0));
}

/// What the agent takes readings of, with the stand-in for its GPUs.
fn sources(nvml: NvmlCollector, state_dir: &Path) -> Sources {
    let standing = Standing {
        name: "node".to_owned(),
        roles: Vec::new(),
        pool: None,
        labels: Vec::new(),
        address: [10, 0, 0, 1].into(),
        interface: None,
        ports: PortBlock { base: 20_000, size: 512 },
    };
    let known = inventory(&standing, &HostFacts::default(), &Findings::default());
    Sources {
        accelerators: Arc::new(Ok(Some(Box::new(nvml)))),
        visible: watch::channel([GpuId(A.to_owned())].into()).1,
        roots: Roots::default(),
        state_dir: state_dir.to_owned(),
        temp_root: state_dir.to_owned(),
        shared: None,
        shared_root: watch::channel(None).1,
        inventory: watch::channel(Arc::new(known)).1,
        clock: watch::channel(None).1,
        link: watch::channel(LinkStatus::default()).1,
        last_sent: Arc::default(),
    }
}

#[tokio::test]
async fn a_hanging_driver_is_told_of_and_the_other_readings_go_on() {
    let Some(scene) = Scene::enter("a_hanging_driver_is_told_of_and_the_other_readings_go_on")
    else {
        return;
    };
    let healthy = gpu(A, "temperature_c = 40\n[gpu.gpm]\nsm = 50.0") + &gpu(B, "");
    scene.write(&healthy);
    let nvml = scene.open(Duration::from_secs(1)).expect("opens");
    let state_dir = scene.state.parent().expect("a directory").to_owned();
    let (newest, mut samples) = watch::channel(None);
    let (whole, readings) = watch::channel(None);
    let collecting = tokio::spawn(collect(sources(nvml, &state_dir), newest, whole));
    let mut wait = async |wanted: fn(&NodeSample) -> bool| {
        let found = samples.wait_for(|newest: &Option<Arc<Numbered>>| {
            newest.as_ref().is_some_and(|numbered| wanted(&numbered.sample))
        });
        found
            .await
            .expect("readings go on")
            .as_ref()
            .map(|numbered| numbered.sample.clone())
            .expect("a sample")
    };
    fn gpu_is_read(sample: &NodeSample) -> bool {
        sample.collectors.iter().any(|collector| collector.name == "gpu" && collector.success)
    }
    let sample = wait(|sample| sample.gpus.iter().any(|gpu| gpu.sm_active.is_some())).await;
    assert_eq!(sample.gpus.len(), 1, "only what is in the inventory");
    assert_eq!((sample.gpus[0].temperature_c, sample.gpus[0].sm_active), (Some(40.0), Some(0.5)));

    scene.write(&format!("hang = true\n{healthy}"));
    let sample = wait(|sample| !gpu_is_read(sample) && sample.gpus.is_empty()).await;
    let host = sample.collectors.iter().find(|collector| collector.name == "host").expect("host");
    assert!(host.success && sample.host.memory_used_bytes.is_some());
    let latest = readings.borrow().clone().expect("readings").gpus.clone().expect("GPUs");
    assert_eq!(latest.status.outcome, Outcome::Hung);

    scene.write(&healthy);
    let sample = wait(gpu_is_read).await;
    assert_eq!(sample.gpus[0].temperature_c, Some(40.0));
    collecting.abort();
}

#[tokio::test]
async fn one_gpu_that_hangs_is_a_driver_that_hangs() {
    let Some(scene) = Scene::enter("one_gpu_that_hangs_is_a_driver_that_hangs") else {
        return;
    };
    let timeout = Duration::from_secs(1);
    scene.write(&(gpu(A, "") + &gpu(B, "")));
    let nvml = scene.open(timeout).expect("opens");
    assert_eq!(nvml.sample().await.expect("sample").len(), 2);
    scene.write(&(gpu(A, "hang = true") + &gpu(B, "xid = 48")));
    assert_eq!(nvml.sample().await, Err(NvmlError::TimedOut(timeout)));
    // Events have a thread of their own.
    let mut events = nvml.events().expect("not taken before");
    assert_eq!(next(&mut events, 1).await, [(1, B.to_owned(), Some(48))]);
    scene.write(&(gpu(A, "") + &gpu(B, "")));
    while nvml.hung() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(nvml.sample().await.expect("sample").len(), 2);
}

type Opened<'a> = Result<Option<&'a dyn Accelerator>, &'a AcceleratorError>;

fn subject(accelerator: Opened<'_>, expected_gpus: u32) -> Subject<'_> {
    let here = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    Subject {
        accelerator,
        expected_gpus: Some(expected_gpus),
        nvidia_visible: None,
        cuda_visible: Some("0".to_owned()),
        rdma_exclude: std::collections::BTreeSet::new(),
        roots: Roots::default(),
        state_dir: here.clone(),
        temp_root: PathBuf::from("/tmp"),
        shared_root: Some(here),
        python: None,
        port_range: (20_000, 32_767),
    }
}

fn line<'a>(lines: &'a [DoctorLine], check: &str) -> &'a DoctorLine {
    let found = lines.iter().find(|line| line.check == check);
    found.unwrap_or_else(|| panic!("no line {check}:\n{}", doctor::render(lines)))
}

#[tokio::test]
async fn the_doctor_tells_what_the_stand_in_shows() {
    let Some(scene) = Scene::enter("the_doctor_tells_what_the_stand_in_shows") else {
        return;
    };
    let own = std::process::id();
    scene.write(&(gpu(A, &format!("pids = [{own}]")) + &gpu(B, "")));
    let nvml = scene.open(DEFAULT_TIMEOUT).expect("opens");
    let lines = doctor::examine(&subject(Ok(Some(&nvml)), 2)).await;
    print!("{}", doctor::render(&lines));
    assert_eq!(line(&lines, "GPUs").level, Level::Ok);
    assert_eq!(line(&lines, "Xid events").level, Level::Ok);
    assert_eq!(line(&lines, "PID namespace").level, Level::Ok);
    assert!(line(&lines, "usable GPUs").text.starts_with("1 of 2 "));
    assert_eq!(line(&lines, "Python and Ray").level, Level::Blind);

    // A pid that no Linux can have is one of another PID namespace.
    scene.write(&(gpu(A, "pids = [4194305]") + &gpu(B, "lost = true")));
    let lines = doctor::examine(&subject(Ok(Some(&nvml)), 2)).await;
    assert_eq!(line(&lines, "GPUs").level, Level::Error);
    assert!(line(&lines, "GPUs").text.contains(B));
    // The lost GPU lists no processes, so nothing is certain.
    assert_eq!(line(&lines, "PID namespace").level, Level::Blind);

    let error = NvmlError::Init("driver not loaded".to_owned()).into();
    let lines = doctor::examine(&subject(Err(&error), 2)).await;
    assert_eq!(line(&lines, "GPUs").level, Level::Error);
    let lines = doctor::examine(&subject(Ok(None), 2)).await;
    assert_eq!(line(&lines, "GPUs").level, Level::Error, "two were expected");
    assert_eq!(doctor::worst(&lines), Level::Error);
}
