//! Where the processes of a member stand: `py-spy dump` of the Python ones, or where there is no
//! `py-spy`, or it may not look, what the kernel says of their threads.

use std::collections::VecDeque;
use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use gangline_common::ids::ATTEMPT_MARK_VARIABLE;
use gangline_common::redact::Redactor;
use gangline_common::wire::scene::{Part, ProcessStack};
use rustix::process::Signal;

use super::processes::{below, command, wchan};
use super::{STACKS_PART, Shared};
use crate::supervisor::process::{self, ProcessId};

/// Most bytes of one process's stacks.
pub const TEXT_BYTES: usize = 12 << 10;
/// Most processes that are looked at: those of the job first.
const MAX_PROCESSES: usize = 64;
/// `py-spy` at a time: each takes a CPU for a moment.
const AT_ONCE: usize = 4;
/// `py-spy` of one process.
const DUMP: Duration = Duration::from_secs(4);
/// It is tried once more when it fails within this time.
const AT_ONCE_FAILED: Duration = Duration::from_secs(1);
/// Most bytes that are read of what it prints.
const OUTPUT_BYTES: u64 = 256 << 10;
/// Most threads of which the kernel is asked.
const MAX_THREADS: usize = 32;
/// Longest line of an error that is kept, in characters.
const ERROR_CHARS: usize = 300;
/// What Ray's own processes call themselves, after `ray::`.
const SERVICES: [&str; 5] = ["IDLE", "Dashboard", "RuntimeEnvAgent", "JobSupervisor", "Monitor"];
const POLL: Duration = Duration::from_millis(5);

/// The first of these that is there.
pub fn find(candidates: &[PathBuf]) -> Option<PathBuf> {
    candidates.iter().find(|path| path.is_file()).cloned()
}

/// Dumps under way.
pub struct Dumps {
    taken: Shared,
    done: mpsc::Receiver<()>,
    began: Instant,
    until: Instant,
    about: String,
    expected: usize,
}

impl Dumps {
    /// Begins with every process below `shim`; ends by `until`.
    pub fn begin(
        shim: ProcessId,
        py_spy: Option<PathBuf>,
        redactor: Arc<Redactor>,
        until: Instant,
    ) -> Dumps {
        let began = Instant::now();
        let wanted = Wanted::below(shim);
        let (expected, left_out) = (wanted.pids.len(), wanted.left_out);
        let mut about = match &py_spy {
            Some(path) => format!("by {}", path.display()),
            None => "py-spy is not there (install it beside the job's Python, or into PATH): only \
                     what the kernel says"
                .to_owned(),
        };
        if left_out > 0 {
            let _ = write!(about, "; {left_out} further processes were not looked at");
        }
        let taken = Shared::default();
        let (sender, done) = mpsc::channel();
        let queue = Arc::new(Mutex::new(wanted.pids));
        for _ in 0..AT_ONCE.min(expected) {
            let (queue, taken, sender) = (Arc::clone(&queue), taken.clone(), sender.clone());
            let (py_spy, redactor) = (py_spy.clone(), Arc::clone(&redactor));
            std::thread::spawn(move || {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some((pid, of_job)) = next() {
                    taken.add(one(pid, of_job, py_spy.as_deref(), &redactor, until));
                }
                drop(sender);
            });
        }
        Dumps { taken, done, began, until, about, expected }
    }

    /// Waits for the end, and returns how it went and what there is.
    pub fn end(self) -> (Part, Vec<ProcessStack>) {
        // Ends when every thread has given up its sender.
        let left = self.until.saturating_duration_since(Instant::now());
        let _ = self.done.recv_timeout(left);
        let mut taken = self.taken.take();
        taken.sort_by_key(|stack| (!stack.of_job, stack.pid));
        let good = taken.iter().filter(|stack| stack.ok).count();
        let text = format!("{good} of {} processes, {}", self.expected, self.about);
        let ok = good > 0 && good == self.expected;
        let took_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        (Part { name: STACKS_PART.to_owned(), ok, took_ms, text }, taken)
    }
}

/// What is looked at, and whether it is the job's.
struct Wanted {
    pids: VecDeque<(u32, bool)>,
    left_out: usize,
}

impl Wanted {
    fn below(shim: ProcessId) -> Wanted {
        let all: Vec<u32> = below(shim).into_iter().filter(|pid| *pid != shim.pid).collect();
        let mut python: Vec<u32> = all.iter().copied().filter(|pid| is_python(*pid)).collect();
        if python.is_empty() {
            python = all;
        }
        let mut pids: Vec<(u32, bool)> =
            python.into_iter().map(|pid| (pid, is_of_job(pid))).collect();
        pids.sort_by_key(|(pid, of_job)| (!of_job, *pid));
        let left_out = pids.len().saturating_sub(MAX_PROCESSES);
        pids.truncate(MAX_PROCESSES);
        Wanted { pids: pids.into(), left_out }
    }
}

fn is_python(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with("python") || name.starts_with("pypy")
}

/// A process below an entrypoint carries its mark; Ray's workers for it name themselves.
fn is_of_job(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if let Some(title) = line.strip_prefix(b"ray::") {
        return !SERVICES.iter().any(|service| title.starts_with(service.as_bytes()));
    }
    matches!(process::environment_value(pid, ATTEMPT_MARK_VARIABLE), Some(Some(_)))
}

/// Looks at one process; for tests.
#[cfg(test)]
pub fn one_for_test(pid: u32, py_spy: &Path, until: Instant) -> ProcessStack {
    let none = Redactor::new([]).unwrap();
    one(pid, false, Some(py_spy), &none, until)
}

fn one(
    pid: u32,
    of_job: bool,
    py_spy: Option<&Path>,
    redactor: &Redactor,
    until: Instant,
) -> ProcessStack {
    let title = command(pid, redactor);
    let stack = |source: &str, ok, text: String| {
        let text = redactor.clean(&text);
        ProcessStack { pid, title: title.clone(), of_job, source: source.to_owned(), ok, text }
    };
    let kernel = || kernel_stacks(pid);
    let dumped = py_spy.filter(|_| is_python(pid)).map(|program| {
        let began = Instant::now();
        let first = dump(program, pid, until);
        // A process that changes while it is read makes it fail at once, and not a second time.
        let again = first.is_err() && began.elapsed() < AT_ONCE_FAILED && Instant::now() < until;
        if again { dump(program, pid, until) } else { first }
    });
    match dumped {
        Some(Ok(text)) => stack("py-spy", true, text),
        Some(Err(why)) => stack("kernel", false, format!("py-spy: {why}\n{}", kernel())),
        None => stack("kernel", true, kernel()),
    }
}

/// What `py-spy` prints of a process, or why it does not.
fn dump(program: &Path, pid: u32, until: Instant) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(["dump", "--pid", &pid.to_string()]).env_clear().stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: one system call. A `py-spy` that nobody waits for would keep a process stopped.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        });
    }
    let was_stopped = is_stopped(pid);
    let mut child = command.spawn().map_err(|error| format!("it cannot be run: {error}"))?;
    let output = reader(child.stdout.take());
    let errors = reader(child.stderr.take());
    let until = until.min(Instant::now() + DUMP);
    let Some(success) = wait(&mut child, until) else {
        // A stop that it had sent to a thread that could not take it would come when it is gone.
        if !was_stopped {
            cont(pid);
        }
        return Err("it took too long and was killed".to_owned());
    };
    // Both ended with the child.
    let text = |stream: Option<mpsc::Receiver<Vec<u8>>>| {
        let bytes = stream.and_then(|bytes| bytes.recv_timeout(Duration::from_millis(200)).ok());
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    };
    if success {
        return Ok(text(output));
    }
    Err(problem(&text(errors)))
}

/// Whether somebody has stopped the process: then it is not ours to continue.
fn is_stopped(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && line.contains('T'))
}

fn cont(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(Err(error)) = pid.map(|pid| rustix::process::kill_process(pid, Signal::CONT)) {
        tracing::warn!(%error, "a process that was looked into cannot be continued");
    }
}

/// Its own words, and what helps when it may not look.
fn problem(errors: &str) -> String {
    let lines: Vec<&str> =
        errors.lines().map(str::trim).take_while(|line| *line != "Stack backtrace:").collect();
    let said: String = lines.join(" ").trim().chars().take(ERROR_CHARS).collect();
    let refused = ["ermission denied", "ermission Denied", "not permitted", "EPERM"];
    if refused.iter().any(|word| said.contains(word)) {
        return format!(
            "{said} (to look into a process needs the same user and CAP_SYS_PTRACE, or root)"
        );
    }
    if said.is_empty() { "it failed and said nothing".to_owned() } else { said }
}

fn reader(stream: Option<impl Read + Send + 'static>) -> Option<mpsc::Receiver<Vec<u8>>> {
    let stream = stream?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could be read until an error is what there is.
        let _ = stream.take(OUTPUT_BYTES).read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    Some(receiver)
}

/// Whether it ended well; `None` when it had to be killed.
fn wait(child: &mut Child, until: Instant) -> Option<bool> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if Instant::now() < until => std::thread::sleep(POLL),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

/// The kernel's word on every thread. Stacks are for root alone.
fn kernel_stacks(pid: u32) -> String {
    let mut text = String::new();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut ids: Vec<u32> =
        threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    if ids.is_empty() {
        return "the process is gone".to_owned();
    }
    for id in ids.iter().take(MAX_THREADS) {
        let place = format!("/proc/{pid}/task/{id}");
        let read = |name: &str| fs::read_to_string(format!("{place}/{name}")).unwrap_or_default();
        let status = read("status");
        let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("?");
        let name = read("comm");
        let (name, state, at) = (name.trim_end(), state.trim(), wchan(*id));
        let _ = writeln!(text, "Thread {id} ({state}): \"{name}\" wchan {at}");
        for line in read("stack").lines() {
            let _ = writeln!(text, "    {}", line.trim());
        }
    }
    text
}
