//! System calls around the birth of a member: detaching the shim, and starting the main process.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::Mode;
use rustix::process::Signal;

use super::OUTPUT_FILE;
use super::record::Launch;
use crate::supervisor::files::{self, Request, Task};
use crate::supervisor::process::{self, ProcessId};

/// Signals that must not end a shim; SIGCHLD is among them because a signalfd delivers it.
const HELD_BACK: [i32; 7] = [
    libc::SIGCHLD,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// Mode bits that files of a shim and of a job never get.
const PRIVATE_MASK: Mode = Mode::from_raw_mode(0o077);
const COMMON_MASK: Mode = Mode::from_raw_mode(0o022);

/// Leaves the agent's session, files and directory behind, and returns the socket on fd 0.
pub fn detach(directory: &Path) -> io::Result<UnixListener> {
    // SAFETY: this is the first thing that the process does; nothing here owns an fd above 2.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) != 0 {
            (3..1024).for_each(|fd| {
                libc::close(fd);
            });
        }
    }
    rustix::process::umask(PRIVATE_MASK);
    // Fails only for a process that leads a session already, which is as good.
    let _ = rustix::process::setsid();
    rustix::process::chdir(directory)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    if !rustix::net::sockopt::socket_acceptconn(&socket)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "fd 0 is no listening socket"));
    }
    let output = open_output()?;
    let nothing = File::open("/dev/null")?;
    for (from, to) in [(&nothing, 0), (&output, 1), (&output, 2)] {
        // SAFETY: replaces standard streams, which nobody else uses: there is one thread.
        if unsafe { libc::dup2(from.as_raw_fd(), to) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn open_output() -> io::Result<File> {
    fs::OpenOptions::new().append(true).create(true).mode(0o600).open(OUTPUT_FILE)
}

/// Holds back the signals that must not end the shim and returns an fd that receives them.
pub fn signals() -> io::Result<OwnedFd> {
    // SAFETY: `set` is initialised by sigemptyset before it is read; the new fd is owned once.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        for signal in HELD_BACK {
            libc::sigaddset(&mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Carries out the launch's file operations as the member's user. Blocks while the file system
/// does; the agent gives up on the whole shim then.
pub fn prepare_files(launch: &Launch) -> Result<(), String> {
    if launch.operations.is_empty() {
        return Ok(());
    }
    if launch.run_as.is_some() {
        return prepare_files_as_user(launch);
    }
    rustix::process::umask(COMMON_MASK);
    let outcome = files::apply(&launch.operations);
    rustix::process::umask(PRIVATE_MASK);
    outcome.map_err(|error| error.to_string())
}

/// The shim itself stays root, so another process becomes the user.
fn prepare_files_as_user(launch: &Launch) -> Result<(), String> {
    let run = || -> io::Result<(bool, String)> {
        let task = Task::CarryOut(launch.operations.clone());
        let request = Request { run_as: launch.run_as, task };
        let mut helper = Command::new("/proc/self/exe")
            .arg("helper")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = helper.stdin.take() {
            stdin.write_all(&serde_json::to_vec(&request)?)?;
        }
        let mut answer = String::new();
        if let Some(stdout) = helper.stdout.take() {
            stdout.take(4096).read_to_string(&mut answer)?;
        }
        Ok((helper.wait()?.success(), answer))
    };
    match run() {
        Ok((true, _)) => Ok(()),
        Ok((false, answer)) => Err(answer.trim_end().to_owned()),
        Err(error) => Err(format!("the file helper cannot be run: {error}")),
    }
}

/// Starts the main process in a session of its own. The error is a sentence for people.
pub fn start(launch: &Launch) -> Result<ProcessId, String> {
    let Some((program, arguments)) = launch.argv.split_first() else {
        return Err("there is no program to start".to_owned());
    };
    let working_directory = std::ffi::CString::new(launch.cwd.as_os_str().as_encoded_bytes())
        .map_err(|_| "the working directory has a NUL byte in its name".to_owned())?;
    let output = open_output().map_err(|error| format!("{OUTPUT_FILE}: {error}"))?;
    let error_output = output.try_clone().map_err(|error| format!("{OUTPUT_FILE}: {error}"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(launch.env.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(error_output);
    if let Some((uid, gid)) = launch.run_as {
        command.uid(uid).gid(gid);
    }
    // SAFETY: only system calls; the shim has one thread, so no lock can be held by another.
    unsafe {
        command.pre_exec(move || {
            // First of all: a child that hangs on its working directory must not come alive after
            // the shim was given up and killed.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            reset_signals();
            rustix::process::setsid()?;
            rustix::process::umask(COMMON_MASK);
            rustix::process::chdir(working_directory.as_c_str())?;
            Ok(())
        });
    }
    let child = command.spawn().map_err(|error| explain(launch, program, &error))?;
    // The child is reaped only by the shim's own loop, so `/proc` has it even if it ended already.
    let started = process::stat(child.id());
    started.map(|stat| stat.id).ok_or_else(|| "/proc does not show the main process".to_owned())
}

/// Gives the child the signals that a program expects to be born with.
fn reset_signals() {
    // SAFETY: system calls on an initialised set; called between fork and exec.
    unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        for signal in HELD_BACK {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

fn explain(launch: &Launch, program: &str, error: &io::Error) -> String {
    match fs::metadata(&launch.cwd) {
        Err(cause) => format!("the working directory {}: {cause}", launch.cwd.display()),
        Ok(found) if !found.is_dir() => {
            format!("the working directory {} is not a directory", launch.cwd.display())
        }
        Ok(_) => format!("`{program}` cannot be started: {error}"),
    }
}
