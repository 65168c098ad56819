//! The coordinator's disk: what was committed, and nothing else. A batch is there as a whole or not.

use std::collections::BTreeMap;

use gangline_common::ids::{GangId, JobId, NodeId};
use gangline_common::time::Timestamp;
use gangline_core::Core;
use gangline_core::effect::Write;
use gangline_core::webhooks::WebhookKey;

/// Name of one record. The order is that in which a store gives its tables back.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Job(JobId),
    Attempt(JobId, u32),
    Gang(GangId),
    Node(NodeId),
    JoinToken(String),
    ApiToken(String),
    Secret(String, String),
    Project(String),
    Usage(String),
    Pool(String),
    NodeTest(JobId),
    RuleTrial(String),
    Account(GangId),
    Webhook(WebhookKey),
    Delivery(WebhookKey),
    Idempotency(String, String),
}

/// The records, newest only.
#[derive(Debug, Clone)]
pub struct Disk {
    pub era: u32,
    pub(crate) records: BTreeMap<Key, Write>,
}

impl Default for Disk {
    fn default() -> Self {
        Disk { era: 1, records: BTreeMap::new() }
    }
}

impl Disk {
    /// Makes one write of a batch durable.
    pub fn apply(&mut self, write: &Write) {
        let key = match write {
            Write::Job(job) => Key::Job(job.id.clone()),
            Write::Attempt(attempt) => Key::Attempt(attempt.job.clone(), attempt.number),
            Write::Gang(gang) => Key::Gang(gang.id.clone()),
            Write::Node(node) => Key::Node(node.id.clone()),
            Write::JoinToken(token) => Key::JoinToken(token.id.clone()),
            Write::ApiToken(token) => Key::ApiToken(token.name.clone()),
            Write::Secret(secret) => Key::Secret(secret.project.clone(), secret.name.clone()),
            Write::Project(project) => Key::Project(project.name.clone()),
            Write::Usage(usage) => Key::Usage(usage.project.clone()),
            Write::Account(account) => Key::Account(account.gang.clone()),
            Write::ForgetAccount { gang } => return self.forget(&Key::Account(gang.clone())),
            Write::Webhook(webhook) => Key::Webhook(webhook.key.clone()),
            Write::ForgetWebhook { key } => return self.forget(&Key::Webhook(key.clone())),
            Write::Delivery(delivery) => Key::Delivery(delivery.key.clone()),
            Write::ForgetDelivery { key } => return self.forget(&Key::Delivery(key.clone())),
            Write::Pool(pool) => Key::Pool(pool.name.clone()),
            Write::ForgetPool { name } => return self.forget(&Key::Pool(name.clone())),
            Write::NodeTest(test) => Key::NodeTest(test.job.clone()),
            Write::ForgetNodeTest { job } => return self.forget(&Key::NodeTest(job.clone())),
            Write::RuleTrial(trial) => Key::RuleTrial(trial.rule.clone()),
            Write::ForgetRuleTrial { rule } => {
                return self.forget(&Key::RuleTrial(rule.clone()));
            }
            Write::Idempotency(entry) => Key::Idempotency(entry.user.clone(), entry.key.clone()),
            Write::Audit(_) | Write::Notice(_) | Write::Spent(_) | Write::Vacancy(_) => return,
            Write::ForgetIdempotency { user, key } => {
                return self.forget(&Key::Idempotency(user.clone(), key.clone()));
            }
            Write::ForgetJoinToken { id } => return self.forget(&Key::JoinToken(id.clone())),
            Write::ForgetApiToken { name } => return self.forget(&Key::ApiToken(name.clone())),
            Write::ForgetSecret { project, name } => {
                return self.forget(&Key::Secret(project.clone(), name.clone()));
            }
            Write::ForgetAttempt { job, number } => {
                return self.forget(&Key::Attempt(job.clone(), *number));
            }
            Write::ForgetGang { id } => return self.forget(&Key::Gang(id.clone())),
            Write::ForgetJob { id } => return self.forget(&Key::Job(id.clone())),
        };
        self.records.insert(key, write.clone());
    }

    fn forget(&mut self, key: &Key) {
        self.records.remove(key);
    }

    pub fn records(&self) -> impl Iterator<Item = &Write> {
        self.records.values()
    }

    /// A core as the coordinator's start makes it of the disk. `codec` is what a record becomes on
    /// its way to the disk and back.
    pub fn core(&self, now: Timestamp, codec: &Codec) -> Core {
        let mut core = Core::new(self.era, now);
        for write in self.records.values() {
            let mut write = codec(write);
            write.begin_again(now, false);
            core.restore(write);
        }
        core
    }

    /// The machine was started again: times of the boot before are replaced, as the coordinator's
    /// start does it.
    pub fn begin_again(&mut self, now: Timestamp) {
        for write in self.records.values_mut() {
            write.begin_again(now, true);
        }
    }
}

/// Encodes and decodes a record, or gives it back as it is where records are tested elsewhere.
pub type Codec = dyn Fn(&Write) -> Write + Sync;
