//! What the kernel lets this process see and do: its log, pids, capabilities, orphaned children, versions and
//! the clock.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use super::gpu::Processes;
use super::{DoctorLine, Level};
use crate::collectors::host::{HostFacts, Roots, namespace, text, word};

/// Inode of the PID namespace of the host: the kernel fixes it (`PROC_PID_INIT_INO`).
const HOST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Capabilities that matter here: bit, name, what goes without it.
const CAPABILITIES: [(u32, &str, &str); 4] = [
    (5, "CAP_KILL", "processes of other users cannot be stopped"),
    (19, "CAP_SYS_PTRACE", "stacks of other users' processes cannot be read"),
    (21, "CAP_SYS_ADMIN", "cgroups and DCGM profiling counters stay closed"),
    (34, "CAP_SYSLOG", "the kernel log may be closed"),
];

/// A clock before this is wrong: 2025-01-01.
const EARLIEST_CLOCK: i64 = 1_735_689_600;

/// Whether `/dev/kmsg` can be read.
pub(super) fn log(roots: &Roots) -> DoctorLine {
    const CHECK: &str = "kernel log";
    let path = roots.dev.join("kmsg");
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = OpenOptions::new().read(true).custom_flags(nonblocking).open(&path);
    // One record is enough. `EAGAIN`: no record waits. `EPIPE`: the record was overwritten meanwhile.
    let read = opened.and_then(|mut log| log.read(&mut [0; 8192]));
    match read {
        Ok(_) => DoctorLine::new(CHECK, Level::Ok, "/dev/kmsg is readable"),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe) => {
            DoctorLine::new(CHECK, Level::Ok, "/dev/kmsg is readable")
        }
        Err(error) => DoctorLine::new(CHECK, Level::Blind, format!("/dev/kmsg: {error}"))
            .advise("GPU errors come from NVML events only; give the container CAP_SYSLOG and /dev/kmsg to see the log"),
    }
}

/// Whether the pids that NVML shows are pids of this PID namespace.
pub(super) fn pid_namespace(roots: &Roots, processes: &Processes) -> DoctorLine {
    const CHECK: &str = "PID namespace";
    let own = namespace(&roots.proc.join("self/ns/pid"));
    let of_host = own == Some(HOST_PID_NAMESPACE);
    let own = match own {
        Some(_) if of_host => "that of the host",
        Some(_) => "of its own",
        None => "unknown",
    };
    let exists = |pid: &u32| roots.proc.join(pid.to_string()).is_dir();
    match processes {
        Processes::NoGpu => {
            DoctorLine::new(CHECK, Level::Ok, format!("{own}; no GPU processes to compare"))
        }
        Processes::Unreadable => DoctorLine::new(
            CHECK,
            Level::Blind,
            format!("{own}; NVML does not list the processes of every GPU"),
        )
        .advise("whether a GPU is free is judged by its memory in use"),
        Processes::Seen(pids) if pids.is_empty() => DoctorLine::new(
            CHECK,
            Level::Blind,
            format!("{own}; no process uses a GPU now, so it is open whose pids NVML shows"),
        ),
        Processes::Seen(pids) => {
            let foreign = pids.iter().filter(|pid| !exists(pid)).count();
            if foreign == 0 {
                return DoctorLine::new(
                    CHECK,
                    Level::Ok,
                    format!("{own}; NVML shows pids of this container"),
                );
            }
            let text = format!("{own}; {foreign} of {} GPU pids do not exist here", pids.len());
            let advice = if of_host {
                "they have just ended, or NVML is not of this host: ask again"
            } else {
                "NVML shows pids of the host: whether a GPU is free is judged by its memory in use"
            };
            DoctorLine::new(CHECK, Level::Blind, text).advise(advice)
        }
    }
}

/// Versions of the kernel and of the C library that Python uses.
pub(super) fn versions(facts: &HostFacts, libc: Option<String>) -> DoctorLine {
    let kernel = facts.kernel.as_deref();
    let level = if kernel.is_some() && libc.is_some() { Level::Ok } else { Level::Blind };
    let text = format!(
        "kernel {}, {}",
        kernel.unwrap_or("unknown"),
        libc.as_deref().unwrap_or("C library unknown")
    );
    DoctorLine::new("versions", level, text)
}

/// The effective capabilities of this process.
pub(super) fn capabilities(roots: &Roots) -> DoctorLine {
    const CHECK: &str = "capabilities";
    let status = text(&roots.proc.join("self/status"));
    let Some(held) = status.as_deref().and_then(parse_effective) else {
        return DoctorLine::new(CHECK, Level::Blind, "CapEff of /proc/self/status cannot be read");
    };
    let has = |bit: u32| held >> bit & 1 == 1;
    let list = |wanted: bool| {
        let named = CAPABILITIES.iter().filter(|(bit, _, _)| has(*bit) == wanted);
        named
            .map(|(_, name, without)| match wanted {
                true => (*name).to_owned(),
                false => format!("{name} ({without})"),
            })
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut text = format!("held: {}", or_none(list(true)));
    let missing = list(false);
    if !missing.is_empty() {
        text = format!("{text}; not held: {missing}");
    }
    // Only CAP_KILL is needed, and only where gangs run as another user; containers rarely give the others.
    if has(5) {
        DoctorLine::new(CHECK, Level::Ok, text)
    } else {
        DoctorLine::new(CHECK, Level::Warning, text)
            .advise("gangs with run_as of another user cannot be stopped without CAP_KILL")
    }
}

fn or_none(list: String) -> String {
    if list.is_empty() { "none of interest".to_owned() } else { list }
}

fn parse_effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Whether orphaned descendants can be collected. Sets the attribute to the value that it has, which tells
/// whether the kernel and a seccomp filter permit it and changes nothing.
pub(super) fn subreaper() -> DoctorLine {
    const CHECK: &str = "subreaper";
    let tried = rustix::process::child_subreaper().and_then(rustix::process::set_child_subreaper);
    match tried {
        Ok(()) => DoctorLine::new(CHECK, Level::Ok, "orphaned processes of a gang can be collected"),
        Err(error) => DoctorLine::new(CHECK, Level::Error, format!("PR_SET_CHILD_SUBREAPER: {error}"))
            .advise("allow prctl in the container's seccomp profile, else processes of a gang can escape its stop"),
    }
}

/// The wall clock, as far as it can be judged alone.
pub(super) fn clock(roots: &Roots, now: jiff::Timestamp) -> DoctorLine {
    const CHECK: &str = "clock";
    let source =
        word(&roots.sys.join("devices/system/clocksource/clocksource0/current_clocksource"));
    let text = format!("{now:.0}, clock source {}", source.as_deref().unwrap_or("unknown"));
    if now.as_second() < EARLIEST_CLOCK {
        return DoctorLine::new(CHECK, Level::Error, format!("{text}: long past"))
            .advise("certificates will be refused: set the clock of the host");
    }
    let text = format!("{text}; its offset shows once the coordinator is reached");
    DoctorLine::new(CHECK, Level::Blind, text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Processes, capabilities, clock, log, parse_effective, pid_namespace, versions};
    use crate::collectors::fixture::{Tree, roots};
    use crate::collectors::host::HostFacts;
    use crate::doctor::Level;

    #[test]
    fn a_kernel_log_that_cannot_be_read_is_blind() {
        let tree = Tree::new();
        assert_eq!(log(&roots(&tree)).level, Level::Blind);
        let tree = tree.file("dev/kmsg", "6,1,0,-;booted\n");
        assert_eq!(log(&roots(&tree)).level, Level::Ok);
    }

    #[test]
    fn pids_that_do_not_exist_here_are_those_of_the_host() {
        let tree =
            Tree::new().file("proc/42/stat", "").link("proc/self/ns/pid", "pid:[4026533000]");
        let check = |processes| pid_namespace(&roots(&tree), &processes);
        let seen = |pids: &[u32]| Processes::Seen(BTreeSet::from_iter(pids.iter().copied()));
        let line = check(seen(&[42]));
        assert_eq!(line.level, Level::Ok);
        assert!(line.text.starts_with("of its own"), "{}", line.text);
        assert_eq!(check(seen(&[42, 43])).level, Level::Blind);
        assert_eq!(check(seen(&[])).level, Level::Blind, "nothing seen proves nothing");
        assert_eq!(check(Processes::Unreadable).level, Level::Blind);
        assert_eq!(check(Processes::NoGpu).level, Level::Ok);
        let tree = Tree::new().link("proc/self/ns/pid", "pid:[4026531836]");
        let line = pid_namespace(&roots(&tree), &Processes::NoGpu);
        assert!(line.text.starts_with("that of the host"), "{}", line.text);
    }

    #[test]
    fn capabilities_are_named() {
        assert_eq!(parse_effective("CapPrm:\t0\nCapEff:\t00000000a80425fb\n"), Some(0xa804_25fb));
        let tree = Tree::new().file("proc/self/status", "CapEff:\t00000000a80425fb\n");
        let line = capabilities(&roots(&tree));
        assert_eq!(line.level, Level::Ok, "the usual set of a container");
        assert!(line.text.starts_with("held: CAP_KILL; not held: "), "{}", line.text);
        let tree = Tree::new().file("proc/self/status", "CapEff:\t0000000000000000\n");
        assert_eq!(capabilities(&roots(&tree)).level, Level::Warning);
        assert_eq!(capabilities(&roots(&Tree::new())).level, Level::Blind);
    }

    #[test]
    fn a_clock_is_never_called_right_without_a_second_one() {
        let at = |seconds| jiff::Timestamp::from_second(seconds).expect("time");
        let tree = Tree::new();
        assert_eq!(clock(&roots(&tree), at(1_800_000_000)).level, Level::Blind);
        assert_eq!(clock(&roots(&tree), at(0)).level, Level::Error);
    }

    #[test]
    fn an_unknown_version_is_blind() {
        let facts = HostFacts { kernel: Some("6.8.0".to_owned()), ..HostFacts::default() };
        let line = versions(&facts, Some("glibc 2.35".to_owned()));
        assert_eq!((line.level, line.text.as_str()), (Level::Ok, "kernel 6.8.0, glibc 2.35"));
        assert_eq!(versions(&facts, None).level, Level::Blind);
    }
}
