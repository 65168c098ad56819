//! One value and its literal bytes for every stored record; shared by the tests of the store.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod bytes;
pub mod values;

use std::sync::Arc;

use gangline_coordinator::core::accounts::Spent;
use gangline_coordinator::core::credential::Role;
use gangline_coordinator::core::effect::Write;
use gangline_coordinator::core::vacancy::Vacancy;
use gangline_coordinator::store::{Chained, Meta, Numbered, STORE_VERSION, record};

/// Any record.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// The store's header, with the layout of the whole store.
    Meta(u32, Meta),
    /// A row of a table.
    Row(&'static str, Write),
    /// An entry of the audit log.
    Audit(Chained),
    Notice(Numbered),
    /// A line of the books.
    Spent(Spent),
    Vacancy(Vacancy),
}

impl Value {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Value::Meta(version, meta) => record::encode_meta(&values::layout(*version), meta),
            Value::Row(_, write) => encode(write),
            Value::Audit(entry) => record::encode_audit(entry).unwrap(),
            Value::Notice(numbered) => record::encode_notice(numbered).unwrap(),
            Value::Spent(spent) => record::encode_spent(spent).unwrap(),
            Value::Vacancy(line) => record::encode_vacancy(line).unwrap(),
        }
    }

    /// What the decoder of this value's table makes of `bytes`.
    pub fn decode_like(&self, bytes: &[u8]) -> Result<Value, String> {
        match self {
            Value::Meta(..) => {
                record::decode_meta(bytes).map(|(version, meta)| Value::Meta(version, meta))
            }
            Value::Audit(_) => record::decode_audit(bytes).map(Value::Audit),
            Value::Notice(_) => record::decode_notice(bytes).map(Value::Notice),
            Value::Spent(_) => record::decode_spent(bytes).map(Value::Spent),
            Value::Vacancy(_) => record::decode_vacancy(bytes).map(Value::Vacancy),
            Value::Row(table, _) => {
                record::decode(table, bytes).map(|write| Value::Row(table, write))
            }
        }
    }
}

/// The record of a write that stores one.
pub fn encode(write: &Write) -> Vec<u8> {
    match write {
        Write::Job(job) => record::encode_job(job),
        Write::Attempt(attempt) => record::encode_attempt(attempt),
        Write::Gang(gang) => record::encode_gang(gang),
        Write::Node(node) => record::encode_node(node),
        Write::JoinToken(token) => record::encode_join_token(token),
        Write::ApiToken(token) => record::encode_api_token(token),
        Write::Secret(record) => record::encode_secret(record),
        Write::Project(record) => record::encode_project(record),
        Write::Usage(record) => record::encode_usage(record),
        Write::Pool(record) => record::encode_pool(record),
        Write::NodeTest(test) => record::encode_node_test(test),
        Write::RuleTrial(trial) => record::encode_rule_trial(trial),
        Write::Idempotency(record) => record::encode_idempotency(record),
        Write::Account(record) => record::encode_account(record),
        Write::Webhook(record) => record::encode_webhook(record),
        Write::Delivery(record) => record::encode_delivery(record),
        Write::Spent(line) => record::encode_spent(line),
        Write::Vacancy(line) => record::encode_vacancy(line),
        Write::Audit(_) | Write::Notice(_) => {
            Err("the store puts an entry in its place first".to_owned())
        }
        Write::ForgetIdempotency { .. }
        | Write::ForgetJoinToken { .. }
        | Write::ForgetApiToken { .. }
        | Write::ForgetSecret { .. }
        | Write::ForgetPool { .. }
        | Write::ForgetNodeTest { .. }
        | Write::ForgetRuleTrial { .. }
        | Write::ForgetAccount { .. }
        | Write::ForgetWebhook { .. }
        | Write::ForgetDelivery { .. }
        | Write::ForgetAttempt { .. }
        | Write::ForgetGang { .. }
        | Write::ForgetJob { .. } => Err("a removal has no record".to_owned()),
    }
    .unwrap()
}

/// A value and what it looks like in the store.
pub struct Golden {
    /// Name of the constant in `bytes`.
    pub name: &'static str,
    pub hex: &'static str,
    pub value: Value,
}

impl Golden {
    /// The literal bytes of the whole record.
    pub fn stored(&self) -> Vec<u8> {
        unhex(self.hex)
    }
}

/// The bytes of a constant in `bytes`.
pub fn unhex(text: &str) -> Vec<u8> {
    let lines = text.lines().map(|line| line.split(';').next().unwrap_or_default());
    let digits: Vec<u8> =
        lines.flat_map(str::bytes).filter(|byte| !byte.is_ascii_whitespace()).collect();
    data_encoding::HEXLOWER
        .decode(&digits)
        .unwrap_or_else(|e| panic!("a golden is not hex: {e}: {text}"))
}

/// Every golden.
pub fn all() -> Vec<Golden> {
    macro_rules! goldens {
        ($($name:ident = $value:expr;)+) => {
            vec![$(Golden { name: stringify!($name), hex: bytes::$name, value: $value }),+]
        };
    }
    let job = |job| Value::Row("jobs", Write::Job(Arc::new(job)));
    let attempt = |attempt| Value::Row("attempts", Write::Attempt(Arc::new(attempt)));
    let gang = |gang| Value::Row("gangs", Write::Gang(Arc::new(gang)));
    let node = |node| Value::Row("nodes", Write::Node(Arc::new(node)));
    let node_test = |test| Value::Row("node_tests", Write::NodeTest(Arc::new(test)));
    let join_token = |token| Value::Row("join_tokens", Write::JoinToken(token));
    let api_token =
        |name, role| Value::Row("api_tokens", Write::ApiToken(values::api_token(name, role)));
    goldens! {
        META = Value::Meta(STORE_VERSION, values::meta());
        JOB_WAITING = job(values::job_waiting());
        JOB_HELD = job(values::job_held());
        JOB_STOPPING = job(values::job_stopping());
        ATTEMPT_RUNNING = attempt(values::attempt_running());
        ATTEMPT_SUCCEEDED = attempt(values::attempt_succeeded());
        ATTEMPT_FAILED = attempt(values::attempt_failed());
        ATTEMPT_ROLLED_BACK = attempt(values::attempt_rolled_back());
        ATTEMPT_PREEMPTED = attempt(values::attempt_preempted());
        ATTEMPT_TIMED_OUT = attempt(values::attempt_timed_out());
        ATTEMPT_EVACUATED = attempt(values::attempt_evacuated());
        GANG_EVERY_PHASE = gang(values::gang_every_phase());
        NODE_NEW = node(values::node_new());
        NODE_FULL = node(values::node_full());
        JOIN_TOKEN_BOUND = join_token(values::join_token_bound());
        JOIN_TOKEN_OPEN = join_token(values::join_token_open());
        API_TOKEN_ADMIN = api_token("root", Role::Admin);
        API_TOKEN_MEMBER = api_token("alice", Role::Member);
        AUDIT = Value::Audit(values::audit());
        SECRET = Value::Row("secrets", Write::Secret(Arc::new(values::secret())));
        PROJECT = Value::Row("projects", Write::Project(values::project()));
        USAGE = Value::Row("usage", Write::Usage(values::usage()));
        POOL = Value::Row("pools", Write::Pool(values::pool()));
        NODE_TEST_OPEN = node_test(values::node_test_open());
        NODE_TEST_MEASURED = node_test(values::node_test_measured());
        NODE_TEST_FAILED = node_test(values::node_test_failed());
        RULE_TRIAL =
            Value::Row("rule_trials", Write::RuleTrial(Arc::new(values::rule_trial())));
        ACCOUNT = Value::Row("accounts", Write::Account(values::account()));
        SPENT = Value::Spent(values::spent());
        VACANCY = Value::Vacancy(values::vacancy());
        NOTICE = Value::Notice(values::notice());
        WEBHOOK = Value::Row("webhooks", Write::Webhook(values::webhook()));
        DELIVERY = Value::Row("deliveries", Write::Delivery(values::delivery()));
        IDEMPOTENCY = Value::Row("idempotency", Write::Idempotency(values::idempotency()));
    }
}
