//! Whose a process is: the mark in its environment names the member of a gang that it was started for.

use std::path::Path;

use gangline_common::ids::{MARK_VARIABLE, MemberKey};

use super::accelerator::Owner;
use crate::supervisor::process;

/// Who owns the processes of one list of NVML's. In another PID namespace their numbers name nobody here, or
/// somebody else: where one of them does not exist and none carries a mark, nothing is said of any.
#[must_use]
pub fn of_all(pids: &[u32]) -> Vec<Owner> {
    let owners: Vec<Owner> = pids.iter().map(|pid| of(*pid)).collect();
    let ours = owners.iter().any(|owner| matches!(owner, Owner::Member(_)));
    let elsewhere = pids.iter().any(|pid| process::stat(*pid).is_none());
    if elsewhere && !ours { vec![Owner::Unknown; pids.len()] } else { owners }
}

fn of(pid: u32) -> Owner {
    if process::stat(pid).is_none() {
        return Owner::Unknown;
    }
    match process::environment_value(pid, MARK_VARIABLE) {
        Some(mark) => match mark.and_then(|mark| mark.parse::<MemberKey>().ok()) {
            Some(key) => Owner::Member(key),
            None => Owner::Foreign { uid: uid(pid) },
        },
        // An agent that may not read it has not started it for another user either.
        None => match uid(pid) {
            Some(uid) if uid != rustix::process::getuid().as_raw() => {
                Owner::Foreign { uid: Some(uid) }
            }
            Some(_) | None => Owner::Unknown,
        },
    }
}

fn uid(pid: u32) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(Path::new("/proc").join(pid.to_string())).ok().map(|found| found.uid())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Process(Child);

    impl Process {
        fn with(mark: Option<&str>) -> Self {
            let mut command = Command::new("sleep");
            command.arg("60").env_remove(MARK_VARIABLE);
            if let Some(mark) = mark {
                command.env(MARK_VARIABLE, mark);
            }
            Self(command.spawn().expect("sleep"))
        }

        /// The owner, once the program is the one that was started: before, its environment is that of this
        /// test, and for a moment none.
        fn owner(&self) -> Owner {
            let link = format!("/proc/{}/exe", self.0.id());
            let own = std::env::current_exe().expect("own program");
            while std::fs::read_link(&link).is_ok_and(|program| program == own)
                || of(self.0.id()) == Owner::Unknown
            {
                std::thread::yield_now();
            }
            of(self.0.id())
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_mark_names_the_member_and_others_are_foreign() {
        let key: MemberKey = "g-7f3k2:1.3:2".parse().expect("a mark");
        assert_eq!(Process::with(Some("g-7f3k2:1.3:2")).owner(), Owner::Member(key));
        let own = rustix::process::getuid().as_raw();
        assert_eq!(Process::with(None).owner(), Owner::Foreign { uid: Some(own) });
        assert_eq!(Process::with(Some("no mark")).owner(), Owner::Foreign { uid: Some(own) });
    }

    #[test]
    fn a_pid_of_another_namespace_is_nobodys() {
        // No Linux has such a pid.
        let (elsewhere, own) = (4_194_305, std::process::id());
        assert_eq!(of_all(&[elsewhere]), [Owner::Unknown]);
        assert_eq!(of_all(&[own, elsewhere]), [Owner::Unknown, Owner::Unknown]);
        assert!(matches!(of_all(&[own])[..], [Owner::Foreign { .. }]));
    }
}
