//! What weighs on the host: time lost to waiting, traffic, open files, and the agent's own share.

use std::time::{Duration, Instant};

use super::{AgentUse, Interface, Pressure, Roots, cgroup, text};

/// Most interfaces that are told of.
const MAX_INTERFACES: usize = 64;

/// Pressure of `resource` (`cpu`, `memory`, `io`): of the own cgroup, else of the host.
pub(super) fn pressure(roots: &Roots, resource: &str) -> Option<Pressure> {
    let own = || {
        let group = cgroup::own_v2(roots)?;
        text(&group.join(format!("{resource}.pressure")))
    };
    let host = || text(&roots.proc.join("pressure").join(resource));
    parse_pressure(&own().or_else(host)?)
}

/// Lines such as `some avg10=1.50 avg60=0.40 avg300=0.10 total=123456`.
fn parse_pressure(text: &str) -> Option<Pressure> {
    let line = |kind: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let value =
            |key: &str| rest.split_ascii_whitespace().find_map(|word| word.strip_prefix(key));
        let average: f32 = value("avg10=")?.parse().ok()?;
        let total: u64 = value("total=")?.parse().ok()?;
        (0.0..=100.0).contains(&average).then_some((average, total))
    };
    let (some_avg10_pct, some_total_us) = line("some ")?;
    let full = line("full ");
    Some(Pressure {
        some_avg10_pct,
        some_total_us,
        full_avg10_pct: full.map(|(average, _)| average),
        full_total_us: full.map(|(_, total)| total),
    })
}

/// Open files of the host, and how many there may be.
pub(super) fn open_files(roots: &Roots) -> Option<(u64, u64)> {
    let text = text(&roots.proc.join("sys/fs/file-nr"))?;
    let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().ok());
    let (open, _unused, limit) = (numbers.next()??, numbers.next()?, numbers.next()??);
    Some((open, limit))
}

/// Whole seconds since the boot of the host.
pub(super) fn uptime_s(roots: &Roots) -> Option<u64> {
    let text = text(&roots.proc.join("uptime"))?;
    let (whole, _) = text.split_once('.')?;
    whole.parse().ok()
}

/// All interfaces but loopback.
pub(super) fn interfaces(roots: &Roots) -> Vec<Interface> {
    let text = text(&roots.proc.join("self/net/dev")).unwrap_or_default();
    let all = text.lines().filter_map(parse_interface);
    all.filter(|interface| interface.name != "lo").take(MAX_INTERFACES).collect()
}

/// A line such as `  eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0`: bytes, packets, errors and drops of both
/// directions among the numbers.
fn parse_interface(line: &str) -> Option<Interface> {
    let (name, numbers) = line.split_once(':')?;
    let numbers: Option<Vec<u64>> =
        numbers.split_ascii_whitespace().map(|number| number.parse().ok()).collect();
    let numbers = numbers?;
    let at = |index: usize| numbers.get(index).copied();
    Some(Interface {
        name: name.trim().to_owned(),
        received_bytes: at(0)?,
        received_errors: at(2)?,
        received_drops: at(3)?,
        sent_bytes: at(8)?,
        sent_errors: at(10)?,
        sent_drops: at(11)?,
    })
}

/// Reads what the agent's process uses; CPU shares are differences.
#[derive(Default)]
pub(super) struct AgentMeter {
    last: Option<(Instant, Duration)>,
}

impl AgentMeter {
    pub(super) fn read(&mut self, roots: &Roots) -> AgentUse {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let used = Duration::try_from(used).ok();
        let now = used.map(|used| (Instant::now(), used));
        let last = std::mem::replace(&mut self.last, now);
        let share = last.zip(now).and_then(|((then, before), (now, used))| {
            let wall = now.checked_duration_since(then)?.as_secs_f64();
            let share = used.checked_sub(before)?.as_secs_f64() / wall;
            share.is_finite().then_some((share * 100.0) as f32)
        });
        let own = roots.proc.join("self");
        let pages = text(&own.join("statm"))
            .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
        let page = u64::try_from(rustix::param::page_size()).unwrap_or_default();
        let files = std::fs::read_dir(own.join("fd")).ok().map(Iterator::count);
        AgentUse {
            memory_bytes: pages.and_then(|pages| pages.checked_mul(page)),
            cpu_pct: share,
            open_files: files.and_then(|count| u64::try_from(count).ok()),
            open_files_limit: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_has_two_lines_or_one() {
        let both = "some avg10=1.50 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=3\n";
        let expected = Pressure {
            some_avg10_pct: 1.5,
            some_total_us: 12,
            full_avg10_pct: Some(0.25),
            full_total_us: Some(3),
        };
        assert_eq!(parse_pressure(both), Some(expected));
        let one =
            parse_pressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n").expect("pressure");
        assert_eq!((one.full_avg10_pct, one.full_total_us), (None, None));
        for wrong in
            ["", "some", "some avg10=x total=1", "some avg10=NaN total=1", "full avg10=0 total=0"]
        {
            assert_eq!(parse_pressure(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn interfaces_are_lines_with_sixteen_numbers() {
        let line = "  eth0: 100 2 3 4 0 0 0 0 900 6 7 8 0 0 0 0";
        let interface = parse_interface(line).expect("an interface");
        assert_eq!((interface.name.as_str(), interface.received_bytes), ("eth0", 100));
        assert_eq!((interface.received_errors, interface.received_drops), (3, 4));
        assert_eq!(
            (interface.sent_bytes, interface.sent_errors, interface.sent_drops),
            (900, 7, 8)
        );
        for wrong in
            ["Inter-|   Receive", " face |bytes", "eth0: 1 2 3", "eth0: a 2 3 4 5 6 7 8 9 10 11 12"]
        {
            assert_eq!(parse_interface(wrong), None, "{wrong:?}");
        }
    }
}
