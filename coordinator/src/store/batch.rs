//! What a batch of changes leaves in the tables.

use std::collections::BTreeMap;

use gangline_common::ids::JobId;
use redb::{TableHandle, WriteTransaction};

use super::audit::{self, AuditHead};
use super::notices::{self, Numbered};
use super::{
    ACCOUNTS, API_TOKENS, ATTEMPTS, AUDIT, BOOKS, DELIVERIES, GANGS, Heads, IDEMPOTENCY, JOBS,
    JOIN_TOKENS, NODE_TESTS, NODES, NOTICES, POOLS, PROJECTS, RULE_TRIALS, SECRETS, Table, USAGE,
    VACANCIES, WEBHOOKS, books, record, vacancies,
};
use crate::core::effect::Write;
use crate::core::webhooks::WebhookKey;

/// What stands in one place after a batch; `None` for nothing.
type Row = Option<Vec<u8>>;

/// Applies a batch in the order of the tables and keys. What changes more than once in it, as a job
/// that is submitted and starts, is written once: nobody sees what lay between.
pub(super) fn apply(
    transaction: &WriteTransaction,
    writes: &[Write],
    era: u32,
    heads: &mut Heads,
) -> Result<(), String> {
    let mut last: BTreeMap<String, (Table, BTreeMap<String, &Write>)> = BTreeMap::new();
    let (mut audited, mut told, mut spent) = (Vec::new(), Vec::new(), Vec::new());
    let mut vacant = Vec::new();
    for write in writes {
        match place(write) {
            Some((table, key)) => {
                let of_table = last.entry(table.name().to_owned());
                let (_, keys) = of_table.or_insert_with(|| (table, BTreeMap::new()));
                keys.insert(key, write);
            }
            None => match write {
                Write::Audit(entry) => {
                    let chained = heads.audit.chain(entry.clone());
                    heads.audit = AuditHead::of(&chained);
                    let row = Some(record::encode_audit(&chained)?);
                    audited.push((audit::key(chained.sequence), row));
                }
                Write::Notice(notice) => {
                    heads.notices += 1;
                    let (sequence, notice) = (heads.notices, notice.clone());
                    let row = record::encode_notice(&Numbered { era, sequence, notice })?;
                    told.push((notices::key(sequence), Some(row)));
                }
                Write::Spent(line) => {
                    spent.push((books::key(line), Some(record::encode_spent(line)?)));
                }
                Write::Vacancy(line) => {
                    vacant.push((vacancies::key(line), Some(record::encode_vacancy(line)?)));
                }
                // Everything else has a place.
                _ => {}
            },
        }
    }
    for (table, writes) in last.into_values() {
        let rows = writes.into_iter().map(|(key, write)| Ok((key, row(write)?)));
        put(transaction, table, rows)?;
    }
    if !audited.is_empty() {
        put(transaction, AUDIT, audited.into_iter().map(Ok))?;
    }
    if !told.is_empty() {
        put(transaction, NOTICES, told.into_iter().map(Ok))?;
        notices::trim(transaction, heads.notices)?;
    }
    if !spent.is_empty() {
        put(transaction, BOOKS, spent.into_iter().map(Ok))?;
        books::trim(transaction, BOOKS)?;
    }
    if !vacant.is_empty() {
        put(transaction, VACANCIES, vacant.into_iter().map(Ok))?;
        books::trim(transaction, VACANCIES)?;
    }
    Ok(())
}

fn put(
    transaction: &WriteTransaction,
    table: Table,
    rows: impl Iterator<Item = Result<(String, Row), String>>,
) -> Result<(), String> {
    let mut table = transaction.open_table(table).map_err(|e| e.to_string())?;
    for row in rows {
        let (key, row) = row?;
        match row {
            Some(bytes) => table.insert(key.as_str(), bytes.as_slice()).map(drop),
            None => table.remove(key.as_str()).map(drop),
        }
        .map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Table and key of an entity; what is added to a log gets its key there.
fn place(write: &Write) -> Option<(Table, String)> {
    let (table, key) = match write {
        Write::Job(job) => (JOBS, job.id.to_string()),
        Write::ForgetJob { id } => (JOBS, id.to_string()),
        Write::Attempt(attempt) => (ATTEMPTS, attempt_key(&attempt.job, attempt.number)),
        Write::ForgetAttempt { job, number } => (ATTEMPTS, attempt_key(job, *number)),
        Write::Gang(gang) => (GANGS, gang.id.to_string()),
        Write::ForgetGang { id } => (GANGS, id.to_string()),
        Write::Node(node) => (NODES, node.id.to_string()),
        Write::JoinToken(token) => (JOIN_TOKENS, token.id.clone()),
        Write::ForgetJoinToken { id } => (JOIN_TOKENS, id.clone()),
        Write::ApiToken(token) => (API_TOKENS, token.name.clone()),
        Write::ForgetApiToken { name } => (API_TOKENS, name.clone()),
        Write::Secret(secret) => (SECRETS, two_part_key(&secret.project, &secret.name)),
        Write::ForgetSecret { project, name } => (SECRETS, two_part_key(project, name)),
        Write::Project(project) => (PROJECTS, project.name.clone()),
        Write::Usage(usage) => (USAGE, usage.project.clone()),
        Write::Pool(pool) => (POOLS, pool.name.clone()),
        Write::ForgetPool { name } => (POOLS, name.clone()),
        Write::NodeTest(test) => (NODE_TESTS, test.job.to_string()),
        Write::ForgetNodeTest { job } => (NODE_TESTS, job.to_string()),
        Write::RuleTrial(trial) => (RULE_TRIALS, trial.rule.clone()),
        Write::ForgetRuleTrial { rule } => (RULE_TRIALS, rule.clone()),
        Write::Idempotency(record) => (IDEMPOTENCY, two_part_key(&record.user, &record.key)),
        Write::ForgetIdempotency { user, key } => (IDEMPOTENCY, two_part_key(user, key)),
        Write::Account(account) => (ACCOUNTS, account.gang.to_string()),
        Write::ForgetAccount { gang } => (ACCOUNTS, gang.to_string()),
        Write::Webhook(record) => (WEBHOOKS, webhook_key(&record.key)),
        Write::ForgetWebhook { key } => (WEBHOOKS, webhook_key(key)),
        Write::Delivery(delivery) => (DELIVERIES, webhook_key(&delivery.key)),
        Write::ForgetDelivery { key } => (DELIVERIES, webhook_key(key)),
        Write::Audit(_) | Write::Notice(_) | Write::Spent(_) | Write::Vacancy(_) => return None,
    };
    Some((table, key))
}

fn row(write: &Write) -> Result<Row, String> {
    Ok(Some(match write {
        Write::Job(job) => record::encode_job(job)?,
        Write::Attempt(attempt) => record::encode_attempt(attempt)?,
        Write::Gang(gang) => record::encode_gang(gang)?,
        Write::Node(node) => record::encode_node(node)?,
        Write::JoinToken(token) => record::encode_join_token(token)?,
        Write::ApiToken(token) => record::encode_api_token(token)?,
        Write::Secret(secret) => record::encode_secret(secret)?,
        Write::Project(project) => record::encode_project(project)?,
        Write::Usage(usage) => record::encode_usage(usage)?,
        Write::Pool(pool) => record::encode_pool(pool)?,
        Write::NodeTest(test) => record::encode_node_test(test)?,
        Write::RuleTrial(trial) => record::encode_rule_trial(trial)?,
        Write::Idempotency(idempotency) => record::encode_idempotency(idempotency)?,
        Write::Account(account) => record::encode_account(account)?,
        Write::Webhook(webhook) => record::encode_webhook(webhook)?,
        Write::Delivery(delivery) => record::encode_delivery(delivery)?,
        Write::ForgetJob { .. }
        | Write::ForgetAttempt { .. }
        | Write::ForgetGang { .. }
        | Write::ForgetJoinToken { .. }
        | Write::ForgetApiToken { .. }
        | Write::ForgetSecret { .. }
        | Write::ForgetPool { .. }
        | Write::ForgetNodeTest { .. }
        | Write::ForgetRuleTrial { .. }
        | Write::ForgetIdempotency { .. }
        | Write::ForgetAccount { .. }
        | Write::ForgetWebhook { .. }
        | Write::ForgetDelivery { .. }
        | Write::Audit(_)
        | Write::Notice(_)
        | Write::Spent(_)
        | Write::Vacancy(_) => return Ok(None),
    }))
}

fn attempt_key(job: &JobId, number: u32) -> String {
    format!("{job}/{number:010}")
}

/// That of the fleet has no project.
fn webhook_key(key: &WebhookKey) -> String {
    two_part_key(key.project.as_deref().unwrap_or_default(), &key.name)
}

fn two_part_key(first: &str, second: &str) -> String {
    format!("{first}\0{second}")
}
