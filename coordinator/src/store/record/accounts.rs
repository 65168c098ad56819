//! Records of what allocations cost, open accounts and the lines of the books, and of what is of none.

use std::collections::BTreeMap;

use gangline_common::ids::{Epoch, GangId, JobId, MemberId};
use serde::{Deserialize, Serialize};

use super::{StopwatchV1, seal, unseal};
use crate::core::accounts::{Account, Classes, HeldFor, Reading, Run, Spent};
use crate::core::vacancy::Vacancy;

#[derive(Serialize, Deserialize)]
pub(super) struct AccountV1 {
    gang: GangId,
    epoch: Epoch,
    pool: String,
    held: StopwatchV1,
    hung_ms: u64,
    /// Milliseconds of startup, of the run, and of what of it was a stall and was lost.
    run: Option<(u64, u64, u64, u64)>,
    shares: Vec<HeldForV1>,
}

#[derive(Serialize, Deserialize)]
struct HeldForV1 {
    member: MemberId,
    gpus: u32,
    ms: u64,
    measured_ms: u64,
    busy_ms: u64,
}

pub fn encode_account(account: &Account) -> Result<Vec<u8>, String> {
    let share = |(member, held): (&MemberId, &HeldFor)| HeldForV1 {
        member: *member,
        gpus: held.gpus,
        ms: held.ms,
        measured_ms: held.reading.measured_ms,
        busy_ms: held.reading.busy_ms,
    };
    seal(&AccountV1 {
        gang: account.gang.clone(),
        epoch: account.epoch,
        pool: account.pool.clone(),
        held: account.held.into(),
        hung_ms: account.hung_ms,
        run: account.run.map(|run| (run.startup_ms, run.ran_ms, run.hung_ms, run.lost_ms)),
        shares: account.shares.iter().map(share).collect(),
    })
}

impl From<AccountV1> for Account {
    fn from(record: AccountV1) -> Self {
        let share = |share: HeldForV1| {
            let reading = Reading { measured_ms: share.measured_ms, busy_ms: share.busy_ms };
            (share.member, HeldFor { gpus: share.gpus, ms: share.ms, reading })
        };
        Account {
            gang: record.gang,
            epoch: record.epoch,
            pool: record.pool,
            held: record.held.into(),
            hung_ms: record.hung_ms,
            run: record.run.map(|(startup_ms, ran_ms, hung_ms, lost_ms)| Run {
                startup_ms,
                ran_ms,
                hung_ms,
                lost_ms,
            }),
            shares: record.shares.into_iter().map(share).collect(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct SpentV1 {
    gang: GangId,
    epoch: Epoch,
    job: JobId,
    attempt: u32,
    user: String,
    project: String,
    pool: String,
    from_wall_ms: u64,
    /// GPUs and milliseconds of every member.
    shares: Vec<(u32, u64)>,
    productive_ms: u64,
    idle_ms: u64,
    unmeasured_ms: u64,
    startup_ms: u64,
    hung_ms: u64,
    lost_ms: u64,
    stopping_ms: u64,
}

pub fn encode_spent(spent: &Spent) -> Result<Vec<u8>, String> {
    let classes = spent.classes;
    seal(&SpentV1 {
        gang: spent.gang.clone(),
        epoch: spent.epoch,
        job: spent.job.clone(),
        attempt: spent.attempt,
        user: spent.user.clone(),
        project: spent.project.clone(),
        pool: spent.pool.clone(),
        from_wall_ms: spent.from_wall_ms,
        shares: spent.shares.clone(),
        productive_ms: classes.productive_ms,
        idle_ms: classes.idle_ms,
        unmeasured_ms: classes.unmeasured_ms,
        startup_ms: classes.startup_ms,
        hung_ms: classes.hung_ms,
        lost_ms: classes.lost_ms,
        stopping_ms: classes.stopping_ms,
    })
}

pub fn decode_spent(bytes: &[u8]) -> Result<Spent, String> {
    let record: SpentV1 = unseal(bytes)?;
    Ok(Spent {
        gang: record.gang,
        epoch: record.epoch,
        job: record.job,
        attempt: record.attempt,
        user: record.user,
        project: record.project,
        pool: record.pool,
        from_wall_ms: record.from_wall_ms,
        shares: record.shares,
        classes: Classes {
            productive_ms: record.productive_ms,
            idle_ms: record.idle_ms,
            unmeasured_ms: record.unmeasured_ms,
            startup_ms: record.startup_ms,
            hung_ms: record.hung_ms,
            lost_ms: record.lost_ms,
            stopping_ms: record.stopping_ms,
        },
    })
}

#[derive(Serialize, Deserialize)]
struct VacancyV1 {
    pool: String,
    from_wall_ms: u64,
    until_wall_ms: u64,
    quarantined_ms: u64,
    fragmented_ms: u64,
    queued_ms: BTreeMap<String, u64>,
}

pub fn encode_vacancy(line: &Vacancy) -> Result<Vec<u8>, String> {
    seal(&VacancyV1 {
        pool: line.pool.clone(),
        from_wall_ms: line.from_wall_ms,
        until_wall_ms: line.until_wall_ms,
        quarantined_ms: line.quarantined_ms,
        fragmented_ms: line.fragmented_ms,
        queued_ms: line.queued_ms.clone(),
    })
}

pub fn decode_vacancy(bytes: &[u8]) -> Result<Vacancy, String> {
    let record: VacancyV1 = unseal(bytes)?;
    Ok(Vacancy {
        pool: record.pool,
        from_wall_ms: record.from_wall_ms,
        until_wall_ms: record.until_wall_ms,
        quarantined_ms: record.quarantined_ms,
        fragmented_ms: record.fragmented_ms,
        queued_ms: record.queued_ms,
    })
}
