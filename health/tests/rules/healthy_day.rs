//! A day of a healthy node, with what healthy nodes do: no condition above info.

use gangline_health::reading::{
    Canary, Counter, Gpu, KernelClass, KernelLine, Memory, Pcie, Port, Reading, SharedRoot,
};
use gangline_health::{Level, StartCheck};

use crate::support::{
    DAY, HOUR, MINUTE, Node, gpu, healthy, memory, port, shared_root, usage, xid,
};

/// A little noise, the same in every run.
fn noise(seed: u64) -> u64 {
    seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) >> 33
}

/// One GPU at a second of the day: jobs come and go, clocks and temperatures with them.
fn gpu_at(index: usize, now: u64) -> Gpu {
    let busy = now % HOUR < 50 * MINUTE;
    let swing = i64::try_from(noise(now ^ index as u64) % 15).unwrap();
    let ending = (50 * MINUTE..50 * MINUTE + 4).contains(&(now % HOUR));
    Gpu {
        // Idle, power cap, sync boost, and now and then a minute of heat.
        clock_event_reasons: Some(match now % (20 * MINUTE) {
            0..60 => 0x40,
            _ if busy => 0x4,
            _ => 0x1,
        }),
        temperature_margin_c: Some(if busy { 8 + swing } else { 40 }),
        hbm_temperature_c: Some(if busy { 75 + swing } else { 40 }),
        pcie: Some(Pcie {
            generation: Some(if busy { 5 } else { 1 }),
            max_generation: Some(5),
            width: Some(16),
            max_width: Some(16),
            under_load: Some(busy),
        }),
        // A replay every two hours.
        pcie_replays: Some(now / (2 * HOUR)),
        ecc_dram_uncorrected: Some(2),
        free: Some(!busy),
        memory_used_bytes: Some(if busy || ending { 70 << 30 } else { 3 << 20 }),
        ..gpu(index)
    }
}

/// One port: counters that grow a little on healthy fabrics.
fn port_at(index: usize, now: u64) -> Port {
    let mut seen = port(index);
    let busy = now % HOUR < 50 * MINUTE;
    seen.in_use = Some(busy);
    let drift = now / 7 + noise(now / 600) % 20;
    for (counter, value) in [
        (Counter::SymbolError, now / 300),
        (Counter::RcvErrors, now / (3 * HOUR)),
        (Counter::XmitDiscards, now * 20),
        (Counter::OutOfSequence, drift),
        (Counter::DuplicateRequest, drift / 2),
        (Counter::LinkErrorRecovery, now / (6 * HOUR)),
        (Counter::RoceSlowRestart, now / 10),
        (Counter::LocalAckTimeout, now / HOUR),
    ] {
        seen.counters.insert(counter, value);
    }
    seen
}

#[test]
fn a_healthy_day_says_nothing_above_info() {
    let mut node = Node::new();
    let begin = node.now;
    let mut starts = 0;
    while node.now < begin + DAY {
        node.now += 10;
        let now = node.now;
        for reading in healthy() {
            match reading {
                Reading::Gpu(_) | Reading::Port(_) => {}
                Reading::Memory(_) => {
                    let pressure_full_avg10 = Some((noise(now) % 12) as f64);
                    let available = 100 + noise(now) % 500;
                    node.see(&Reading::Memory(Memory { pressure_full_avg10, ..memory(available) }));
                }
                Reading::SharedRoot(_) => {
                    let root = shared_root(Some(Canary::Done(noise(now) % 2_000)));
                    let bytes = usage(60 + now * 20 / (2 * DAY), 100);
                    node.see(&Reading::SharedRoot(SharedRoot { bytes, ..root }));
                }
                reading => node.see(&reading),
            }
        }
        for index in 0..8 {
            node.see(&Reading::Gpu(Box::new(gpu_at(index, now))));
            node.see(&Reading::Port(Box::new(port_at(index, now))));
        }
        // Jobs end and are killed; a container runs out of its own memory.
        if now.is_multiple_of(HOUR) {
            node.see(&xid(3, 45));
            node.see(&xid(4, 43));
            let class = KernelClass::ContainerOutOfMemory;
            node.see(&Reading::Kernel(KernelLine { class, text: "oom-kill".to_owned() }));
        }
        let conditions = node.conditions();
        let loud: Vec<_> = conditions.iter().filter(|c| c.level > Level::Info).collect();
        assert!(loud.is_empty(), "at {} s of the day: {loud:#?}", now - begin);
        if now.is_multiple_of(HOUR) {
            assert_eq!(node.engine.start_check(node.time(), 30_000), StartCheck::default());
            starts += 1;
        }
        if now.is_multiple_of(6 * HOUR) {
            node.restart(10);
        }
    }
    assert_eq!(starts, 24);
    assert_eq!(node.engine.blind(node.time()), []);
}
