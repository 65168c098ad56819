//! Tests of the readers on trees that the tests make.

use std::time::Duration;

use super::cgroup::{cpu_quota, cpu_used, memory_limit, own_group, pids_limit};
use super::{
    AgentUse, CgroupVersion, HostCollector, HostMemory, HostSample, Limit, Roots, facts,
    parse_load1, parse_meminfo, parse_port_range, parse_start_ticks, usable_cpus,
};
use crate::collectors::fixture::{Tree, roots};

const GIB: u64 = 1 << 30;

/// A host of 64 GiB, half of it available, with an affinity to eight CPUs.
fn host() -> Tree {
    Tree::new()
        .file(
            "proc/meminfo",
            "MemTotal:       67108864 kB\nMemFree:         1024 kB\nMemAvailable:   33554432 kB\n",
        )
        .file("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n")
        .file("proc/loadavg", "1.25 0.90 0.70 3/1200 4242\n")
}

/// The host with a v2 container: own group below a slice that is tighter in memory.
fn v2() -> Tree {
    host()
        .file("proc/self/cgroup", "0::/slice/agent\n")
        .file("cgroup/cgroup.controllers", "cpu memory pids\n")
        .file("cgroup/slice/cpu.max", "max 100000\n")
        .file("cgroup/slice/memory.max", "8589934592\n")
        .file("cgroup/slice/memory.current", "3221225472\n")
        .file("cgroup/slice/memory.stat", "anon 5\ninactive_file 1073741824\n")
        .file("cgroup/slice/pids.max", "max\n")
        .file("cgroup/slice/agent/cpu.max", "250000 100000\n")
        .file("cgroup/slice/agent/cpu.stat", "usage_usec 1500000\nuser_usec 1\n")
        .file("cgroup/slice/agent/memory.max", "max\n")
        .file("cgroup/slice/agent/pids.max", "4096\n")
}

/// The host with a v1 container that has no cgroup namespace: the paths of the host lead nowhere here.
fn v1() -> Tree {
    host()
        .file(
            "proc/self/cgroup",
            "4:memory:/docker/abc\n3:pids:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/docker/abc\n",
        )
        .file("cgroup/cpu/cpu.cfs_quota_us", "-1\n")
        .file("cgroup/cpu/cpu.cfs_period_us", "100000\n")
        .file("cgroup/cpuacct/cpuacct.usage", "2000000000\n")
        .file("cgroup/memory/memory.limit_in_bytes", "4294967296\n")
        .file("cgroup/memory/memory.usage_in_bytes", "2147483648\n")
        .file("cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 1073741824\n")
        .file("cgroup/pids/pids.max", "max\n")
}

#[test]
fn v2_limits_are_the_tightest_on_the_way_up() {
    let tree = v2();
    let roots = roots(&tree);
    let quota = cpu_quota(&roots).expect("quota");
    assert_eq!(quota.cpus, 2.5);
    assert_eq!(quota.directory, tree.path("cgroup/slice/agent"));
    let used = cpu_used(&quota.directory, &roots);
    assert_eq!(used, Some(Duration::from_micros(1_500_000)));
    let memory = memory_limit(&roots).expect("limit");
    assert_eq!(memory.limit, Limit::At(8 * GIB));
    assert_eq!(memory.used(), Some(2 * GIB));
    assert_eq!(pids_limit(&roots), Some(Limit::At(4096)));
    assert_eq!(own_group(&roots), Some(tree.path("cgroup/slice/agent")));

    let facts = facts(&roots);
    assert_eq!(facts.cgroup, Some(CgroupVersion::V2));
    assert_eq!((facts.cpus, facts.cpus_in_mask), (Some(2), Some(8)));
    assert_eq!(facts.memory_bytes, Some(8 * GIB));
    assert_eq!(facts.memory_host_bytes, Some(64 * GIB));
}

#[test]
fn v1_paths_of_the_host_fall_back_to_the_mount_point() {
    let tree = v1();
    let roots = roots(&tree);
    assert_eq!(cpu_quota(&roots), None);
    let used = cpu_used(&tree.path("cgroup/cpu"), &roots);
    assert_eq!(used, Some(Duration::from_secs(2)));
    let memory = memory_limit(&roots).expect("limit");
    assert_eq!(memory.limit, Limit::At(4 * GIB));
    assert_eq!(memory.used(), Some(GIB));
    assert_eq!(pids_limit(&roots), Some(Limit::Unlimited));
    let facts = facts(&roots);
    assert_eq!(facts.cgroup, Some(CgroupVersion::V1));
    assert_eq!(facts.cpus, Some(8));
}

#[test]
fn a_limit_above_the_memory_of_the_host_is_none() {
    for unlimited in ["9223372036854771712\n", "1099511627776\n"] {
        let tree = v1().file("cgroup/memory/memory.limit_in_bytes", unlimited);
        let facts = facts(&roots(&tree));
        assert_eq!(facts.memory_limit, Some(Limit::Unlimited), "{unlimited}");
        assert_eq!(facts.memory_bytes, Some(64 * GIB));
    }
}

#[test]
fn a_cgroup_path_that_leaves_the_root_is_not_followed() {
    let tree = v2()
        .file("proc/self/cgroup", "0::/../../etc\n")
        .file("etc/memory.max", "1\n")
        .file("cgroup/memory.max", "1073741824\n");
    let limit = memory_limit(&roots(&tree)).expect("limit").limit;
    assert_eq!(limit, Limit::At(GIB));
}

#[test]
fn what_cannot_be_seen_is_none() {
    let tree = Tree::new();
    let nothing = facts(&roots(&tree));
    assert_eq!(nothing, super::HostFacts::default());
    let sample = HostCollector::new(roots(&tree)).sample();
    // The limit of open files is asked of the kernel, not read.
    let agent = AgentUse { open_files_limit: sample.agent.open_files_limit, ..AgentUse::default() };
    assert_eq!(sample, HostSample { agent, ..HostSample::default() });
}

#[test]
fn identities_are_read_from_proc() {
    let tree = host()
        .file("proc/sys/kernel/hostname", "node-7\n")
        .file("proc/sys/kernel/osrelease", "6.8.0\n")
        .file("proc/sys/kernel/random/boot_id", "0c2d4e4e-29ab-4b2f-8c0a-8d1f3c6d0b11\n")
        .file("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
        .link("proc/self/ns/net", "net:[4026531840]")
        .file(
            "proc/1/stat",
            "1 (tini ) (x) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 9 9\n",
        );
    let facts = facts(&roots(&tree));
    assert_eq!(facts.hostname.as_deref(), Some("node-7"));
    assert_eq!(facts.kernel.as_deref(), Some("6.8.0"));
    assert!(facts.boot_id.is_some_and(|id| id.starts_with("0c2d4e4e-")));
    assert_eq!(facts.net_namespace, Some(4_026_531_840));
    assert_eq!(facts.container_start_ticks, Some(987_654));
    assert_eq!(facts.ip_local_port_range, Some((32_768, 60_999)));
}

#[test]
fn a_limited_container_samples_itself_and_not_the_host() {
    let tree = v2();
    let mut collector = HostCollector::new(roots(&tree));
    let first = collector.sample();
    assert_eq!(first.cpu_busy_pct, None, "nothing to compare with yet");
    assert_eq!(first.mem_total_bytes, Some(8 * GIB));
    assert_eq!(first.mem_used_bytes, Some(2 * GIB));
    assert_eq!(first.mem_available_bytes, Some(6 * GIB));
    assert_eq!(first.load1, Some(1.25));
    let tree = tree.file("cgroup/slice/agent/cpu.stat", "usage_usec 1600000\n");
    let busy = collector.sample().cpu_busy_pct.expect("second sample");
    assert!(busy > 0.0, "{busy}");
    let _tree = tree.file("cgroup/slice/agent/cpu.stat", "usage_usec 1600000\n");
    assert_eq!(collector.sample().cpu_busy_pct, Some(0.0));
}

#[test]
fn the_real_machine_has_cpus_memory_and_a_boot_id() {
    let facts = facts(&Roots::default());
    assert!(facts.cpus.is_some_and(|cpus| cpus >= 1));
    assert!(facts.memory_bytes.is_some_and(|bytes| bytes > GIB / 4));
    assert!(facts.boot_id.is_some_and(|id| id.len() == 36));
    assert!(facts.net_namespace.is_some());
    assert!(facts.container_start_ticks.is_some());
    let mut collector = HostCollector::new(Roots::default());
    let sample = collector.sample();
    assert!(sample.mem_used_bytes <= sample.mem_total_bytes);
    assert!(sample.load1.is_some());
}

#[test]
fn parsers_refuse_what_they_do_not_know() {
    assert_eq!(parse_start_ticks("1 (x) S 0 1"), None);
    assert_eq!(parse_start_ticks(""), None);
    assert_eq!(parse_port_range("32768 60999 1"), None);
    assert_eq!(parse_port_range("60999 32768"), None);
    assert_eq!(parse_port_range("32768 70000"), None);
    assert_eq!(parse_load1("-1 0 0"), None);
    assert_eq!(parse_load1("nan 0 0"), None);
    assert_eq!(parse_meminfo("MemTotal: 10 kB\n"), None);
    assert_eq!(
        parse_meminfo("MemTotal: 10 kB\nMemAvailable: 0 kB\n"),
        Some(HostMemory { total: 10_240, available: 0 })
    );
}

#[test]
fn a_quota_is_rounded_down_and_never_below_one_cpu() {
    assert_eq!(usable_cpus(Some(8), Some(2.9)), Some(2));
    assert_eq!(usable_cpus(Some(8), Some(0.5)), Some(1));
    assert_eq!(usable_cpus(Some(2), Some(64.0)), Some(2));
    assert_eq!(usable_cpus(None, Some(3.0)), Some(3));
    assert_eq!(usable_cpus(None, None), None);
}

#[test]
fn what_weighs_on_a_limited_container_is_its_own() {
    let tree = v2()
        .file("proc/pressure/memory", "some avg10=90.00 avg60=0 avg300=0 total=9\n")
        .file("proc/pressure/io", "some avg10=7.00 avg60=0 avg300=0 total=8\n")
        .file(
            "cgroup/slice/agent/memory.pressure",
            "some avg10=2.00 avg60=0 avg300=0 total=5\nfull avg10=1.00 avg60=0 avg300=0 total=4\n",
        )
        .file("cgroup/slice/memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\n")
        .file("cgroup/slice/agent/pids.current", "321\n")
        .file("proc/sys/fs/file-nr", "1984\t0\t9223372\n")
        .file("proc/uptime", "86400.25 1.00\n")
        .file(
            "proc/self/net/dev",
            "Inter-|   Receive  |  Transmit\n face |bytes packets\n    lo: 5 0 0 0 0 0 0 0 5 0 0 0 0 0 0 0\n  \
             eth0: 100 2 0 0 0 0 0 0 900 6 0 0 0 0 0 0\n",
        );
    let sample = HostCollector::new(roots(&tree)).sample();
    assert_eq!(sample.memory_pressure.and_then(|pressure| pressure.full_avg10_pct), Some(1.0));
    assert_eq!(sample.io_pressure.map(|pressure| pressure.some_avg10_pct), Some(7.0));
    assert_eq!(sample.cpu_pressure, None);
    assert_eq!(sample.oom_kills, Some(2));
    assert_eq!((sample.pids, sample.pids_limit), (Some(321), Some(4096)));
    assert_eq!((sample.open_files, sample.open_files_limit), (Some(1984), Some(9_223_372)));
    assert_eq!(sample.uptime_s, Some(86_400));
    let names: Vec<&str> = sample.interfaces.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["eth0"]);
}

#[test]
fn v1_counts_its_kills_elsewhere() {
    let tree = v1()
        .file("cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
        .file("cgroup/pids/pids.current", "12\n");
    let sample = HostCollector::new(roots(&tree)).sample();
    assert_eq!(sample.oom_kills, Some(4));
    assert_eq!((sample.pids, sample.pids_limit), (Some(12), None));
}

#[test]
fn a_host_that_cannot_be_read_is_no_reading() {
    use crate::collectors::slot::Collector;
    let tree = Tree::new();
    assert!(HostCollector::new(roots(&tree)).read().is_err());
}
