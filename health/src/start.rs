//! The check before a start, and what cannot be seen. Both only look at what running collectors
//! have read: a healthy node pays nothing for a start.

use std::collections::BTreeSet;

use gangline_common::time::Timestamp;

use crate::clock::At;
use crate::component::Component;
use crate::condition::{Blind, Stale, StartCheck};
use crate::rule::{BeforeStart, MINUTE_MS, Rule, Scope};
use crate::{Engine, MAX_BLIND};

/// A reading that has been absent for longer than this is said to be blind.
const ABSENT_MS: u64 = 10 * MINUTE_MS;

impl Engine {
    /// Whether a gang may start here now, by readings of the last `max_age_ms`.
    pub fn start_check(&self, now: Timestamp, max_age_ms: u64) -> StartCheck {
        let at = self.clock.at(now);
        let mut check = StartCheck {
            bad: self.conditions(now).into_iter().filter(|c| c.blocks_start).collect(),
            ..StartCheck::default()
        };
        for rule in Rule::ALL {
            if let Some(before) = rule.row().before_start
                && !self.config.is_on_trial(*rule)
            {
                self.look(*rule, before, max_age_ms, at, &mut check);
            }
        }
        check
    }

    /// Looks whether the readings of `rule` are young enough on every part that it is about.
    fn look(&self, rule: Rule, before: BeforeStart, max_age: u64, at: At, check: &mut StartCheck) {
        let components: Vec<Option<Component>> = match rule.row().scope {
            Scope::Gpu => {
                // The set itself is looked at by its own rule.
                let gpus = self.registered.iter().flatten();
                gpus.map(|gpu| Some(Component::gpu(gpu))).collect()
            }
            Scope::Mount => {
                let mounts = self.parts.iter().filter(|(component, part)| {
                    matches!(component, Component::Mount(_)) && part.latches.contains_key(&rule)
                });
                let mounts: Vec<_> = mounts.map(|(component, _)| Some(component.clone())).collect();
                if mounts.is_empty() { vec![None] } else { mounts }
            }
            _ => vec![Some(Component::Node)],
        };
        for component in components {
            let part = component.as_ref().and_then(|component| self.parts.get(component));
            let latch = part.and_then(|part| part.latches.get(&rule));
            let young = |when: Option<u64>| when.is_some_and(|then| at.since(then) <= max_age);
            let read = latch.and_then(|latch| latch.read);
            // A doubt about what could not forbid the start holds nothing up.
            if young(read) && !latch.is_some_and(|latch| latch.may_become(before.forbids)) {
                continue;
            }
            let absent = latch.and_then(|latch| latch.absent);
            let said = part.and_then(|part| part.blind.get(&rule));
            if !young(read) && (young(absent) || said.is_some()) {
                let why = said.cloned().unwrap_or_else(|| "not to be read here".to_owned());
                check.blind.push(Blind { rule, component, why });
                continue;
            }
            let age_ms = read.map(|then| at.since(then));
            check.stale.push(Stale { check: before.check, rule, component, age_ms });
        }
    }

    /// What cannot be seen from here, in a fixed order. It is not known to be healthy.
    pub fn blind(&self, now: Timestamp) -> Vec<Blind> {
        let at = self.clock.at(now);
        let mut blind = BTreeSet::new();
        for (component, part) in &self.parts {
            for (rule, why) in &part.blind {
                let (rule, why) = (*rule, why.clone());
                blind.insert(Blind { rule, component: Some(component.clone()), why });
            }
            for (rule, latch) in &part.latches {
                if rule.row().compares {
                    continue;
                }
                let recent =
                    |when: Option<u64>| when.is_some_and(|then| at.since(then) <= ABSENT_MS);
                if latch.absent.is_some() && !recent(latch.read) && !part.blind.contains_key(rule) {
                    let why = "not to be read here".to_owned();
                    blind.insert(Blind { rule: *rule, component: Some(component.clone()), why });
                }
            }
        }
        for rule in Rule::ALL {
            let row = rule.row();
            let known = self
                .parts
                .values()
                .any(|part| part.latches.contains_key(rule) || part.blind.contains_key(rule));
            let is_awaited = !row.events_only && !row.compares;
            if !known && is_awaited && self.has_parts_of(row.scope) {
                let why = "no reading yet".to_owned();
                blind.insert(Blind { rule: *rule, component: None, why });
            }
        }
        let refused = self.refused;
        let mut blind: Vec<Blind> = blind.into_iter().take(MAX_BLIND).collect();
        if refused > 0 {
            let why = format!("{refused} readings of more parts than can be followed");
            blind.push(Blind { rule: Rule::Collector, component: None, why });
        }
        let odd = self.clock.oddities;
        if odd.went_back + odd.leapt > 0 {
            let why = format!(
                "the clock of the readings went back {} times and leapt ahead {} times",
                odd.went_back, odd.leapt
            );
            blind.push(Blind { rule: Rule::ClockOffset, component: None, why });
        }
        blind
    }

    /// Whether this node has, or may have, such parts at all.
    fn has_parts_of(&self, scope: Scope) -> bool {
        let any = |is: fn(&Component) -> bool| self.parts.keys().any(is);
        match scope {
            Scope::Node | Scope::Mount => true,
            Scope::Gpu => self.registered.as_ref().is_none_or(|gpus| !gpus.is_empty()),
            Scope::Port => any(|component| matches!(component, Component::Port { .. })),
            Scope::Switch | Scope::Collector | Scope::Gang => false,
        }
    }
}
