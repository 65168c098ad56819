//! Reading the stored logs of a job for steps: what is new since the last look, attempt by attempt.

use std::io;

use gangline_common::ids::{MemberId, MemberKey};
use gangline_common::time::Timestamp;
use gangline_training::{Feed, Pace, Reading};

use super::Training;
use crate::board::JobSnapshot;
use crate::core::job::{Attempt, DRIVER_MEMBER, Job, Launcher};
use crate::ingest::logs::Logs;

/// What is read of a file at once, and of one file in one look.
const PIECE: usize = 1 << 20;
const LOOK_BYTES: u64 = 16 << 20;
/// Of a file that nobody has followed, no more than this much of its end.
const PAST_BYTES: u64 = 64 << 20;

/// A gang whose logs have not grown since this long before the last look needs no other one: the clock
/// of growth is not finer than a millisecond, and a line may be on its way to the disk.
const SETTLED_MS: u64 = 2_000;

/// What Ray itself writes goes on while a training hangs. Names as tails give them.
const RAYS_OWN: [&str; 7] =
    ["raylet", "gcs_server", "monitor", "dashboard", "runtime_env", "ray_client", "event_"];

/// Where the reading of one file stands.
#[derive(Debug, Default)]
pub(super) struct File {
    /// Up to here it is read for steps.
    offset: u64,
    /// As long as it was when it was looked at last.
    length: u64,
    feed: Feed,
    /// The last look did not come to its end.
    behind: bool,
    /// What comes now comes at this moment.
    follows: bool,
}

/// What one look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Found {
    lines: bool,
    step: bool,
}

/// What a file is to the watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It is read for steps, and that it grows is a sign of life.
    Steps,
    /// That it grows is a sign of life.
    Life,
    Nothing,
}

fn role(job: &Job, attempt: &Attempt, member: MemberId, file: &str) -> Role {
    let driver = format!("driver-{}", job.operation(attempt.number));
    if let Some(guest) = &attempt.guest {
        // The rest of the gang's files are those of its cluster.
        let own = member == guest.driver() && file == driver;
        return if own { Role::Steps } else { Role::Nothing };
    }
    let by_rank_0 = member == MemberId::Rank(0);
    match job.request.launcher {
        Launcher::Ray if member == DRIVER_MEMBER && file == driver => Role::Steps,
        Launcher::Command if by_rank_0 && file == "output" => Role::Steps,
        // Those of other ranks say the same, and there may be thousands.
        _ if by_rank_0 && file.contains("metrics") => Role::Steps,
        _ if RAYS_OWN.iter().any(|own| file.contains(own)) => Role::Nothing,
        _ => Role::Life,
    }
}

impl Training {
    /// Looks at everything that is new, and tells the watch of it. `started`: when this process began. Blocking. What cannot be
    /// read now is read at the next look.
    pub(super) fn read(
        &mut self,
        logs: &Logs,
        snapshot: &JobSnapshot,
        started: Timestamp,
        now: Timestamp,
    ) {
        let mut found = Found::default();
        let unread = snapshot.attempts.iter().filter(|attempt| attempt.number >= self.attempt);
        for attempt in unread.cloned().collect::<Vec<_>>() {
            if (self.attempt, self.epoch) != (attempt.number, Some(attempt.epoch)) {
                self.begin(&attempt);
            }
            // Of an attempt that began before this process nobody knows when its lines came.
            let from_its_start = attempt.ended.is_none() && started.ms_since(attempt.started) == 0;
            found = self.read_attempt(logs, &snapshot.job, &attempt, from_its_start, now);
        }
        match &mut self.watch {
            Some(watch) if found.step => watch.step(now.boot_ms),
            Some(watch) if found.lines => watch.line(now.boot_ms),
            Some(_) | None => {}
        }
    }

    fn begin(&mut self, attempt: &Attempt) {
        if self.series.has_begun() {
            self.highest = self.highest.max(self.series.newest());
        }
        self.attempt = attempt.number;
        self.epoch = Some(attempt.epoch);
        self.series.begin(attempt.number);
        self.pace = Pace::default();
        self.last_step = None;
        self.files.clear();
        self.looked_ms = 0;
        self.watch = None;
    }

    fn read_attempt(
        &mut self,
        logs: &Logs,
        job: &Job,
        attempt: &Attempt,
        from_its_start: bool,
        now: Timestamp,
    ) -> Found {
        let mut found = Found::default();
        // What is not known to have grown since this process began has not grown after its first look.
        let grown_ms = logs.last_growth(&attempt.gang).map_or(0, |at| at.boot_ms);
        let all_read = !self.files.values().any(|file| file.behind);
        if self.looked_ms > grown_ms.saturating_add(SETTLED_MS) && all_read {
            return found;
        }
        self.looked_ms = now.boot_ms;
        let is_first = self.files.is_empty();
        for (member, name, length) in logs.files(&attempt.gang, attempt.epoch) {
            let role = role(job, attempt, member, &name);
            if role == Role::Nothing {
                continue;
            }
            let place = (member, name);
            let mut file = self.files.remove(&place).unwrap_or_else(|| File {
                follows: from_its_start || !is_first,
                ..File::default()
            });
            found.lines |= length > file.length;
            file.length = length;
            if role == Role::Steps {
                let key = MemberKey { gang: attempt.gang.clone(), epoch: attempt.epoch, member };
                match self.read_file(logs, &key, &place.1, &mut file, now) {
                    Ok(step) => found.step |= step,
                    Err(error) => {
                        tracing::warn!(job = %job.id, file = place.1, %error, "reading steps");
                    }
                }
            }
            self.files.insert(place, file);
        }
        found
    }

    fn read_file(
        &mut self,
        logs: &Logs,
        key: &MemberKey,
        name: &str,
        file: &mut File,
        now: Timestamp,
    ) -> io::Result<bool> {
        if !file.follows && file.length.saturating_sub(file.offset) > PAST_BYTES {
            file.offset = file.length - PAST_BYTES;
            file.feed = Feed::from_the_middle();
        }
        file.behind = true;
        let at = file.follows.then_some(now);
        let until = if file.follows {
            file.length.min(file.offset.saturating_add(LOOK_BYTES))
        } else {
            file.length
        };
        let mut step = false;
        while file.offset < until {
            let wanted = usize::try_from(until - file.offset).unwrap_or(PIECE).min(PIECE);
            let bytes = logs.read(key, name, file.offset, wanted)?;
            if bytes.is_empty() {
                break;
            }
            file.offset += bytes.len() as u64;
            file.feed.take(&bytes, |reading| step |= self.take(&reading, at));
        }
        file.behind = file.offset < file.length;
        file.follows |= !file.behind;
        Ok(step)
    }

    /// Gives whether it is of a new step.
    fn take(&mut self, reading: &Reading, at: Option<Timestamp>) -> bool {
        let Some(step) = self.series.take(reading, at.map(|at| at.wall_ms)) else { return false };
        self.pace.note(step, at.map(|at| at.boot_ms), &reading.values);
        self.last_step = at;
        true
    }
}
