//! Reading the stored logs of a job for steps: what is new since the last look, attempt by attempt.

use std::io;

use gangline_common::ids::{MemberId, MemberKey};
use gangline_common::time::Timestamp;
use gangline_common::wire::scene::is_scene;
use gangline_training::{Feed, Pace, Reading, Stragglers};

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

/// The first ranks of a gang, whose own steps are read; of a larger one they are not compared.
pub(super) const RANKS_READ: u32 = 128;
/// What is read at most of the log of one of them in one look; what is older is skipped.
const RANK_BYTES: u64 = 256 << 10;
/// The log of a rank that has said no step in so much is not read any more.
const MUTE_BYTES: u64 = 4 << 20;

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

/// The numbers in files of TensorBoard and W&B, as agents write them down.
const CURVES: &str = "metrics-tensorboard";
/// Readings of them that wait for the step that they are of.
const HELD: usize = 1024;

/// What a file is to the watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It is read for steps, and that it grows is a sign of life.
    Steps,
    /// That it grows is a sign of life, and the steps in it are those of this rank alone.
    Rank(u32),
    /// That it grows is a sign of life.
    Life,
    Nothing,
}

fn role(job: &Job, attempt: &Attempt, member: MemberId, file: &str) -> Role {
    // What is kept of a gang that hangs is no sign of its life.
    if is_scene(file) {
        return Role::Nothing;
    }
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
        // Those of other ranks say the same, and there may be thousands: how fast each is.
        Launcher::Command if file == "output" => match member {
            MemberId::Rank(rank) if rank < RANKS_READ => Role::Rank(rank),
            _ => Role::Life,
        },
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
            let highest =
                if self.says_steps { &mut self.highest } else { &mut self.highest_beside };
            *highest = (*highest).max(self.series.newest());
        }
        self.attempt = attempt.number;
        self.epoch = Some(attempt.epoch);
        self.series.begin(attempt.number);
        self.pace = Pace::default();
        self.paces.clear();
        self.last_step = None;
        self.files.clear();
        self.says_steps = false;
        self.held.clear();
        self.looked_ms = 0;
        self.watch = None;
        self.stragglers = Stragglers::default();
        self.compared_ms = 0;
        self.kept_scenes = false;
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
        let mut files: Vec<_> = logs.files(&attempt.gang, attempt.epoch).into_iter().collect();
        // By then it is known whether the training itself says steps.
        files.sort_by_key(|(_, name, _)| name == CURVES);
        for (member, name, length) in files {
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
            if let Role::Rank(rank) = role {
                let key = MemberKey { gang: attempt.gang.clone(), epoch: attempt.epoch, member };
                if let Err(error) = self.read_rank(logs, &key, rank, &mut file, now) {
                    tracing::warn!(job = %job.id, file = place.1, %error, "reading steps of a rank");
                }
            }
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
            let beside = name == CURVES;
            file.feed.take(&bytes, |reading| {
                step |=
                    if beside { self.take_beside(reading, at) } else { self.take(&reading, at) };
            });
        }
        file.behind = file.offset < file.length;
        file.follows |= !file.behind;
        Ok(step)
    }

    /// A curve whose steps may count something else: samples, tokens. Where the training itself says
    /// steps, those say how far it is, and what is of a step to come waits for it.
    fn take_beside(&mut self, reading: Reading, at: Option<Timestamp>) -> bool {
        if self.says_steps && reading.step <= self.series.newest() {
            return self.put(&reading, at);
        }
        // As long as nothing else says steps, these count.
        let is_new = !self.says_steps && self.put(&reading, at);
        if self.held.len() >= HELD {
            self.held.pop_front();
        }
        self.held.push_back(reading);
        is_new
    }

    /// Learns how fast another rank is, from what it says of late.
    fn read_rank(
        &mut self,
        logs: &Logs,
        key: &MemberKey,
        rank: u32,
        file: &mut File,
        now: Timestamp,
    ) -> io::Result<()> {
        let is_mute = !self.paces.contains_key(&rank) && file.offset > MUTE_BYTES;
        if is_mute || file.length <= file.offset {
            return Ok(());
        }
        // Of what nobody has followed nobody knows when it came.
        if !file.follows || file.length - file.offset > RANK_BYTES {
            file.offset = file.length.saturating_sub(RANK_BYTES);
            file.feed = Feed::from_the_middle();
        }
        let at = file.follows.then_some(now.boot_ms);
        file.follows = true;
        let bytes = logs.read(key, "output", file.offset, (file.length - file.offset) as usize)?;
        file.offset += bytes.len() as u64;
        let paces = &mut self.paces;
        file.feed.take(&bytes, |reading| {
            if let Some(step) = reading.step {
                paces.entry(rank).or_default().note(step, at, &reading.values);
            }
        });
        Ok(())
    }

    /// Gives whether it is of a new step.
    fn take(&mut self, reading: &Reading, at: Option<Timestamp>) -> bool {
        if reading.step.is_some() && !std::mem::replace(&mut self.says_steps, true) {
            // What came so far was of TensorBoard's files, or of no step: it waits now, or comes again.
            self.series.begin(self.attempt);
            self.pace = Pace::default();
            self.last_step = None;
        }
        let is_new = self.put(reading, at);
        let newest = self.series.newest();
        while self.held.front().is_some_and(|held| held.step <= newest) {
            let Some(held) = self.held.pop_front() else { break };
            self.put(&held, at);
        }
        is_new
    }

    fn put(&mut self, reading: &Reading, at: Option<Timestamp>) -> bool {
        let Some(step) = self.series.take(reading, at.map(|at| at.wall_ms)) else { return false };
        self.pace.note(step, at.map(|at| at.boot_ms), &reading.values);
        self.last_step = at;
        true
    }
}
