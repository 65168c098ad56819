//! Whether some rank of a training is slower than the others: its step times, and its GPUs beside
//! theirs. Shown and told, never acted on.

use std::collections::BTreeMap;

use gangline_common::ids::{GpuId, MemberId};
use gangline_common::time::Timestamp;
use gangline_training::{RankReading, Sign, Slow, Word};

use super::patrol::{Parts, place};
use super::{SlowRank, Training, words};
use crate::board::JobSnapshot;
use crate::core::gang::{Gang, Member};
use crate::core::stall::{StallKind, StallWord};
use crate::ingest::telemetry::{GPU, Record};

/// Ranks are compared this often at most, and at least.
const ROUND_LEAST_MS: u64 = 1_000;
const ROUND_MOST_MS: u64 = 10_000;
/// The readings of GPUs that are compared.
const WINDOW_MS: u64 = 60_000;
/// Readings of a GPU that make a mean.
const LEAST_READINGS: usize = 10;
/// Slow ranks that are shown of one job.
const SHOWN: usize = 8;

/// The least used GPU of a rank and the one with the lowest clock.
#[derive(Debug, Clone, Default)]
struct Gpus {
    utilization: Option<(f64, GpuId)>,
    clock_mhz: Option<(f64, GpuId)>,
}

impl Parts {
    /// Compares the ranks of a running attempt, when it is time to. Gives what is to be said, and the
    /// ranks that are slow now; `None` when it is not time.
    pub(super) fn compare(
        &self,
        training: &mut Training,
        snapshot: &JobSnapshot,
        now: Timestamp,
    ) -> Option<(Vec<StallWord>, Vec<SlowRank>)> {
        let after_ms = snapshot.job.request.hang.warn_after_ms;
        let pause_ms = (after_ms / 8).clamp(ROUND_LEAST_MS, ROUND_MOST_MS);
        let attempt = snapshot.attempts.last()?;
        // Ranks of a standing cluster work for others as well.
        let gang = snapshot.gang.as_deref().filter(|gang| gang.epoch == attempt.epoch)?;
        if attempt.guest.is_some() || now.boot_ms.saturating_sub(training.compared_ms) < pause_ms {
            return None;
        }
        training.compared_ms = now.boot_ms;
        let gpus = self.gpus_of_ranks(gang, now);
        let of_rank = |rank: u32| {
            let pace = if rank == 0 { Some(&training.pace) } else { training.paces.get(&rank) };
            let gpus = gpus.get(&rank);
            RankReading {
                step_ms: pace.and_then(|pace| pace.step_ms()),
                utilization: gpus.and_then(|of| Some(of.utilization.as_ref()?.0)),
                clock_mhz: gpus.and_then(|of| Some(of.clock_mhz.as_ref()?.0)),
            }
        };
        let ranks: BTreeMap<u32, RankReading> =
            ranks(gang).map(|(rank, _)| (rank, of_rank(rank))).collect();
        let node = |rank: u32| {
            let member = gang.members.get(&MemberId::Rank(rank));
            let node = member.map(|member| member.node.as_str()).unwrap_or_default();
            self.board.node(node).map_or_else(|| node.to_owned(), |found| found.node.name.clone())
        };
        let said = |slow: &Slow| {
            let gpu = gpus.get(&slow.rank).and_then(|gpus| match slow.sign {
                Sign::StepTime => None,
                Sign::Clock => gpus.clock_mhz.as_ref(),
                Sign::Utilization => gpus.utilization.as_ref(),
            });
            let gpu = gpu.map(|(_, gpu)| gpu.0.as_str());
            words::slow(slow, &node(slow.rank), gpu, now.boot_ms)
        };
        let words = training.stragglers.round(now.boot_ms, after_ms, &ranks);
        let words = words.into_iter().map(|word| {
            let (kind, text) = match word {
                Word::Slow(slow) => (StallKind::Straggler, said(&slow)),
                Word::Over { rank } => {
                    (StallKind::StragglerOver, words::no_longer_slow(rank, &node(rank)))
                }
            };
            StallWord {
                job: snapshot.job.id.clone(),
                attempt: attempt.number,
                kind,
                for_ms: 0,
                text,
            }
        });
        let words = words.collect();
        let slow = training.stragglers.told().take(SHOWN).map(|slow| {
            let ago_ms = now.boot_ms.saturating_sub(slow.since_ms);
            let wall_ms = now.wall_ms.saturating_sub(ago_ms);
            SlowRank {
                rank: slow.rank,
                node: node(slow.rank),
                since: Timestamp { boot_ms: slow.since_ms, wall_ms },
                said: said(&slow),
            }
        });
        Some((words, slow.collect()))
    }

    /// What the GPUs of each rank did of late; nothing of any when they are not all of one model.
    fn gpus_of_ranks(&self, gang: &Gang, now: Timestamp) -> BTreeMap<u32, Gpus> {
        let since_ms = now.wall_ms.saturating_sub(WINDOW_MS);
        let (mut found, mut model) = (BTreeMap::new(), None);
        for (rank, member) in ranks(gang) {
            if member.gpus.is_empty() || !self.is_of(&mut model, member) {
                return BTreeMap::new();
            }
            let history = self.telemetry.history(&member.node, since_ms, false).unwrap_or_default();
            let mut gpus = Gpus::default();
            for uuid in &member.gpus {
                let slot = history.gpus.iter().position(|known| known == uuid);
                let mean = |name| {
                    let place = place(&GPU, name);
                    let value = |record: &Record| *record.gpus.get(slot?)?.get(place?)?;
                    let values: Vec<f64> = history.records.iter().filter_map(value).collect();
                    let enough = values.len() >= LEAST_READINGS;
                    enough.then(|| values.iter().sum::<f64>() / values.len() as f64)
                };
                least(&mut gpus.utilization, mean("utilization_pct"), uuid);
                least(&mut gpus.clock_mhz, mean("sm_clock_mhz"), uuid);
            }
            found.insert(rank, gpus);
        }
        found
    }

    /// Whether all GPUs of a member are of this model; the first says which it is.
    fn is_of(&self, model: &mut Option<String>, member: &Member) -> bool {
        let Some(node) = self.board.node(member.node.as_str()) else { return false };
        let Some(inventory) = &node.node.inventory else { return false };
        member.gpus.iter().all(|uuid| {
            let gpu = inventory.gpus.iter().find(|gpu| gpu.uuid == *uuid);
            gpu.is_some_and(|gpu| *model.get_or_insert_with(|| gpu.name.clone()) == gpu.name)
        })
    }
}

fn ranks(gang: &Gang) -> impl Iterator<Item = (u32, &Member)> {
    gang.members.iter().filter_map(|(id, member)| match id {
        MemberId::Rank(rank) => Some((*rank, member)),
        MemberId::Head => None,
    })
}

fn least(least: &mut Option<(f64, GpuId)>, value: Option<f64>, gpu: &GpuId) {
    if let Some(value) = value
        && least.as_ref().is_none_or(|(known, _)| value < *known)
    {
        *least = Some((value, gpu.clone()));
    }
}
