//! Rules about the host, the container, and the agent itself.

use crate::clock::At;
use crate::latch::Bad;
use crate::part::Part;
use crate::reading::{
    Agent, Collector, KernelClass, KernelLine, Memory, OomKills, Outcome, Tasks, Usage,
};
use crate::rule::{Level, Rule};
use crate::storage::percent;

const LEAST_AVAILABLE: u64 = 200;
const MOST_PRESSURE: f64 = 20.0;
/// In hundredths of a percent.
const SHM_FULL: u64 = 9_000;
const LIMIT_NEAR: u64 = 8_000;
const MOST_ZOMBIES: u64 = 1_000;
const MOST_OFFSET_MS: u64 = 2_000;
const MOST_LAG_MS: u64 = 1_000;
const MOST_RSS_BYTES: u64 = 256 << 20;
/// How many of a list are named as evidence.
const NAMED: usize = 4;

pub fn on_memory(part: &mut Part, memory: &Memory, at: At) {
    let used = Usage { used: memory.available_bytes, limit: memory.total_bytes };
    let verdict = used.per_10_000().map(|available| {
        (available < LEAST_AVAILABLE).then(|| {
            let evidence = format!("{} available", percent(Some(available)));
            Bad::new(Rule::HostMemory, Level::Degraded, "memory runs out", evidence)
        })
    });
    part.check(Rule::HostMemory, verdict, at);
    let pressure = memory.pressure_full_avg10.filter(|percent| percent.is_finite());
    let verdict = pressure.map(|percent| {
        (percent > MOST_PRESSURE).then(|| {
            let evidence = format!("PSI memory full avg10 {percent:.1} %");
            Bad::new(Rule::MemoryPressure, Level::Degraded, "everything waits for memory", evidence)
        })
    });
    part.check(Rule::MemoryPressure, verdict, at);
}

pub fn on_oom_kills(part: &mut Part, kills: &OomKills, at: At) {
    if kills.new == 0 {
        return;
    }
    let gang = kills.gang.as_ref().map_or("no gang".to_owned(), |gang| format!("gang {gang}"));
    let reason = format!("{} processes ended for want of memory", kills.new);
    part.event(Rule::OomKill, Bad::new(Rule::OomKill, Level::Info, reason, gang), at);
}

pub fn on_shm(part: &mut Part, usage: Usage, at: At) {
    near(part, Rule::SharedMemory, usage, SHM_FULL, "/dev/shm is full", at);
}

pub fn on_pids(part: &mut Part, usage: Usage, at: At) {
    near(part, Rule::Pids, usage, LIMIT_NEAR, "process ids run out", at);
}

pub fn on_descriptors(part: &mut Part, usage: Usage, at: At) {
    near(part, Rule::Descriptors, usage, LIMIT_NEAR, "file descriptors run out", at);
}

fn near(part: &mut Part, rule: Rule, usage: Usage, most: u64, reason: &str, at: At) {
    let verdict = usage.per_10_000().map(|used| {
        (used > most).then(|| {
            let Usage { used: count, limit } = usage;
            let (count, limit) = (count.unwrap_or(0), limit.unwrap_or(0));
            let evidence = format!("{count} of {limit} ({})", percent(Some(used)));
            Bad::new(rule, Level::Warning, reason, evidence)
        })
    });
    part.check(rule, verdict, at);
}

pub fn on_tasks(part: &mut Part, tasks: &Tasks, at: At) {
    let stuck = tasks.stuck.as_ref().map(|names| {
        (!names.is_empty()).then(|| {
            let shown: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
            let reason = "tasks wait for the kernel for over 2 minutes";
            let evidence = format!("{}: {}", names.len(), shown.join(" "));
            Bad::new(Rule::StuckTasks, Level::Degraded, reason, evidence)
        })
    });
    part.check(Rule::StuckTasks, stuck, at);
    let zombies = tasks.zombies.map(|count| {
        let evidence = format!("{count} zombies");
        let bad = || Bad::new(Rule::Zombies, Level::Degraded, "nobody reaps processes", evidence);
        (count > MOST_ZOMBIES).then(bad)
    });
    part.check(Rule::Zombies, zombies, at);
}

pub fn on_clock_offset(part: &mut Part, offset_ms: i64, at: At) {
    let bad = (offset_ms.unsigned_abs() > MOST_OFFSET_MS).then(|| {
        let evidence = format!("{offset_ms} ms against the coordinator");
        Bad::new(Rule::ClockOffset, Level::Warning, "the clock is wrong", evidence)
    });
    part.check(Rule::ClockOffset, Some(bad), at);
}

pub fn on_kernel(part: &mut Part, line: &KernelLine, at: At) {
    let level = match line.class {
        KernelClass::ContainerOutOfMemory => Level::Info,
        KernelClass::SoftLockup
        | KernelClass::HungTask
        | KernelClass::ReadOnlyRemount
        | KernelClass::NfsNotResponding
        | KernelClass::HostOutOfMemory
        | KernelClass::IoError
        | KernelClass::AdapterTrouble => Level::Degraded,
    };
    let reason = format!("the kernel says: {}", line.class.word());
    part.event(Rule::Kernel, Bad::new(Rule::Kernel, level, reason, line.text.as_str()), at);
}

pub fn on_agent(part: &mut Part, agent: &Agent, at: At) {
    let lag = agent.loop_lag_ms.map(|lag| {
        (lag > MOST_LAG_MS).then(|| {
            let evidence = format!("{lag} ms late");
            Bad::new(Rule::AgentLag, Level::Warning, "the agent is late", evidence)
        })
    });
    part.check(Rule::AgentLag, lag, at);
    let memory = agent.rss_bytes.map(|bytes| {
        (bytes > MOST_RSS_BYTES).then(|| {
            let evidence = format!("{} MiB", bytes >> 20);
            Bad::new(Rule::AgentMemory, Level::Warning, "the agent is large", evidence)
        })
    });
    part.check(Rule::AgentMemory, memory, at);
    let reason = "the agent runs out of file descriptors";
    near(part, Rule::AgentDescriptors, agent.descriptors, LIMIT_NEAR, reason, at);
}

pub fn on_collector(part: &mut Part, collector: &Collector, at: At) {
    let bad =
        |level, reason: &str, evidence: String| Bad::new(Rule::Collector, level, reason, evidence);
    let verdict = match &collector.outcome {
        Outcome::Good => None,
        Outcome::Failed(error) => Some(bad(Level::Warning, "it fails", error.clone())),
        Outcome::Panicked(error) => Some(bad(Level::Warning, "it panicked", error.clone())),
        Outcome::TimedOut => Some(bad(Level::Degraded, "it takes too long", String::new())),
        Outcome::Hangs(ms) => {
            // Its time is up and it is still not back: that is as good as two readings.
            let hangs = bad(Level::Degraded, "it hangs", format!("for {} s", ms / 1000));
            return part.event(Rule::Collector, hangs, at);
        }
    };
    part.check(Rule::Collector, Some(verdict), at);
}
