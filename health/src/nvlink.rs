//! Rules about the NVLinks of one GPU.

use crate::clock::At;
use crate::latch::Bad;
use crate::part::Part;
use crate::reading::Nvlink;
use crate::rule::{Level, MINUTE_MS, Rule};
use crate::series::Series;

/// CRC errors per second on one link.
const MOST_CRC_PER_SECOND: f64 = 100.0;
/// The fabric manager has brought links up long before.
const LINKS_START_MS: u64 = 10 * MINUTE_MS;
/// Links that a GPU can have; more are not looked at.
const MAX_LINKS: usize = 32;

pub fn on_links(part: &mut Part, links: &[Nvlink], nvswitch: Option<bool>, at: At) {
    let links = links.get(..MAX_LINKS.min(links.len())).unwrap_or_default();
    let most = most_active(part, links);
    let starts = are_starting(part, links, at);
    part.check(Rule::NvlinkDown, down(most, links, nvswitch, starts), at);

    let (mut crc_seen, mut crc_known, mut worst) = (false, false, None::<(u8, f64)>);
    let (mut errors_known, mut errors) = (false, 0_u64);
    for link in links {
        let crc = Series::LinkCrc(link.index);
        if let Some(step) = part.step(crc, link.crc, at) {
            (crc_seen, errors_known) = (true, true);
            errors = errors.saturating_add(step.by());
            if let Some(rate) = part.per_second(crc) {
                crc_known = true;
                if worst.is_none_or(|(_, most)| rate > most) {
                    worst = Some((link.index, rate));
                }
            }
        }
        if let Some(step) = part.step(Series::LinkErrors(link.index), link.errors, at) {
            errors_known = true;
            errors = errors.saturating_add(step.by());
        }
    }
    let crc = crc_known.then(|| {
        worst.filter(|(_, rate)| *rate >= MOST_CRC_PER_SECOND).map(|(link, rate)| {
            let evidence = format!("link {link}: {rate:.0} CRC errors per second");
            Bad::new(Rule::NvlinkCrc, Level::Fatal, "an NVLink is broken", evidence)
        })
    });
    if crc_seen && crc.is_none() {
        part.touch(Rule::NvlinkCrc);
    } else {
        part.check(Rule::NvlinkCrc, crc, at);
    }
    if errors > 0 {
        let evidence = format!("{errors} more on all links since the reading before");
        let bad = Bad::new(Rule::NvlinkErrors, Level::Warning, "NVLink errors", evidence);
        part.event(Rule::NvlinkErrors, bad, at);
    } else {
        part.check(Rule::NvlinkErrors, errors_known.then_some(None), at);
    }
}

/// The most links that were active at once, this reading included.
fn most_active(part: &mut Part, links: &[Nvlink]) -> u32 {
    let active = links.iter().filter(|link| link.active == Some(true)).count();
    let most = part.facts.most_links.max(u32::try_from(active).unwrap_or(u32::MAX));
    part.facts.most_links = most;
    most
}

/// Links to NVSwitch come up some time after the machine did: until one has, for a while, that none has
/// says little.
fn are_starting(part: &mut Part, links: &[Nvlink], at: At) -> bool {
    let facts = &mut part.facts;
    facts.links_were_up |= links.iter().any(|link| link.active == Some(true));
    let looked = *facts.links_looked.get_or_insert(at.ms);
    !facts.links_were_up && at.since(looked) < LINKS_START_MS
}

/// `None` when no link says whether it is active.
fn down(most: u32, links: &[Nvlink], nvswitch: Option<bool>, starts: bool) -> Option<Option<Bad>> {
    if links.iter().all(|link| link.active.is_none()) {
        return None;
    }
    let inactive: Vec<String> = links
        .iter()
        .filter(|link| link.active == Some(false))
        .map(|link| link.index.to_string())
        .collect();
    let unread = links.iter().filter(|link| link.active.is_none()).count();
    let active = links.len() - inactive.len() - unread;
    let evidence = format!("inactive: {}; {active} of {} active", inactive.join(" "), links.len());
    if nvswitch == Some(true) {
        let level = if starts { Level::Warning } else { Level::Fatal };
        let bad = Bad::new(Rule::NvlinkDown, level, "NVLinks are down", evidence);
        return Some((!inactive.is_empty()).then_some(bad));
    }
    // Without NVSwitch a link to nowhere is inactive by design: only one that was active is missed.
    let fewer = active + unread < most as usize;
    let reason = format!("{active} NVLinks are active, {most} were");
    Some(fewer.then(|| Bad::new(Rule::NvlinkDown, Level::Warning, reason, evidence)))
}
