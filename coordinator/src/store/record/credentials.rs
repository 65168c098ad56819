//! Records of tokens, of secrets, of requests that came before, and of the audit log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{TimeV1, seal, seal_as, unseal, unseal_as};
use crate::core::audit::AuditEntry;
use crate::core::credential::{ApiTokenRecord, IdempotencyRecord, JoinTokenRecord, Role};
use crate::core::idle::IdlePolicy;
use crate::core::projects::{ProjectRecord, Quota};
use crate::core::secrets::{Sealed, SecretRecord};
use crate::core::usage::Usage;
use crate::store::audit::Chained;

#[derive(Serialize, Deserialize)]
pub(super) struct JoinTokenV1 {
    id: String,
    secret_sha256: [u8; 32],
    uses_left: u32,
    expires_wall_ms: u64,
    pool: Option<String>,
    created_by: String,
    created: TimeV1,
}

pub fn encode_join_token(token: &JoinTokenRecord) -> Result<Vec<u8>, String> {
    seal(&JoinTokenV1 {
        id: token.id.clone(),
        secret_sha256: token.secret_sha256,
        uses_left: token.uses_left,
        expires_wall_ms: token.expires_wall_ms,
        pool: token.pool.clone(),
        created_by: token.created_by.clone(),
        created: token.created.into(),
    })
}

impl From<JoinTokenV1> for JoinTokenRecord {
    fn from(record: JoinTokenV1) -> Self {
        JoinTokenRecord {
            id: record.id,
            secret_sha256: record.secret_sha256,
            uses_left: record.uses_left,
            expires_wall_ms: record.expires_wall_ms,
            pool: record.pool,
            created_by: record.created_by,
            created: record.created.into(),
        }
    }
}

/// Read only: before there were more roles than two, and expiries.
#[derive(Deserialize)]
struct ApiTokenV1 {
    name: String,
    sha256: [u8; 32],
    user: String,
    project: String,
    admin: bool,
    created: TimeV1,
}

#[derive(Serialize, Deserialize)]
struct ApiTokenV2 {
    name: String,
    sha256: [u8; 32],
    user: String,
    project: String,
    role: RoleV2,
    expires_wall_ms: Option<u64>,
    created: TimeV1,
}

#[derive(Serialize, Deserialize)]
enum RoleV2 {
    Viewer,
    Member,
    Operator,
    Admin,
}

impl From<Role> for RoleV2 {
    fn from(role: Role) -> Self {
        match role {
            Role::Viewer => RoleV2::Viewer,
            Role::Member => RoleV2::Member,
            Role::Operator => RoleV2::Operator,
            Role::Admin => RoleV2::Admin,
        }
    }
}

impl From<RoleV2> for Role {
    fn from(role: RoleV2) -> Self {
        match role {
            RoleV2::Viewer => Role::Viewer,
            RoleV2::Member => Role::Member,
            RoleV2::Operator => Role::Operator,
            RoleV2::Admin => Role::Admin,
        }
    }
}

pub fn encode_api_token(token: &ApiTokenRecord) -> Result<Vec<u8>, String> {
    let record = ApiTokenV2 {
        name: token.name.clone(),
        sha256: token.sha256,
        user: token.user.clone(),
        project: token.project.clone(),
        role: token.role.into(),
        expires_wall_ms: token.expires_wall_ms,
        created: token.created.into(),
    };
    seal_as(2, &record)
}

pub(super) fn decode_api_token(bytes: &[u8]) -> Result<ApiTokenRecord, String> {
    if bytes.first() == Some(&1) {
        return unseal::<ApiTokenV1>(bytes).map(Into::into);
    }
    unseal_as::<ApiTokenV2>(2, bytes).map(Into::into)
}

impl From<ApiTokenV1> for ApiTokenRecord {
    fn from(record: ApiTokenV1) -> Self {
        ApiTokenRecord {
            name: record.name,
            sha256: record.sha256,
            user: record.user,
            project: record.project,
            role: if record.admin { Role::Admin } else { Role::Member },
            expires_wall_ms: None,
            created: record.created.into(),
        }
    }
}

impl From<ApiTokenV2> for ApiTokenRecord {
    fn from(record: ApiTokenV2) -> Self {
        ApiTokenRecord {
            name: record.name,
            sha256: record.sha256,
            user: record.user,
            project: record.project,
            role: record.role.into(),
            expires_wall_ms: record.expires_wall_ms,
            created: record.created.into(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct AuditV1 {
    sequence: u64,
    wall_ms: u64,
    actor: String,
    /// An address as text.
    source: Option<String>,
    action: String,
    object: String,
    detail: String,
    previous: [u8; 32],
}

pub fn encode_audit(chained: &Chained) -> Result<Vec<u8>, String> {
    let AuditEntry { wall_ms, actor, source, action, object, detail } = chained.entry.clone();
    seal(&AuditV1 {
        sequence: chained.sequence,
        wall_ms,
        actor,
        source: source.map(|address| address.to_string()),
        action,
        object,
        detail,
        previous: chained.previous,
    })
}

pub fn decode_audit(bytes: &[u8]) -> Result<Chained, String> {
    let AuditV1 { sequence, wall_ms, actor, source, action, object, detail, previous } =
        unseal(bytes)?;
    let source = source.map(|text| text.parse()).transpose();
    let source = source.map_err(|_| "its source is no address".to_owned())?;
    let entry = AuditEntry { wall_ms, actor, source, action, object, detail };
    Ok(Chained { sequence, entry, previous })
}

#[derive(Serialize, Deserialize)]
pub(super) struct IdempotencyV1 {
    user: String,
    key: String,
    body_sha256: [u8; 32],
    made: String,
    created: TimeV1,
}

pub fn encode_idempotency(record: &IdempotencyRecord) -> Result<Vec<u8>, String> {
    seal(&IdempotencyV1 {
        user: record.user.clone(),
        key: record.key.clone(),
        body_sha256: record.body_sha256,
        made: record.made.clone(),
        created: record.created.into(),
    })
}

impl From<IdempotencyV1> for IdempotencyRecord {
    fn from(record: IdempotencyV1) -> Self {
        IdempotencyRecord {
            user: record.user,
            key: record.key,
            body_sha256: record.body_sha256,
            made: record.made,
            created: record.created.into(),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct SecretV1 {
    project: String,
    name: String,
    sealed: Vec<u8>,
    set_by: String,
    set: TimeV1,
}

pub fn encode_secret(record: &SecretRecord) -> Result<Vec<u8>, String> {
    seal(&SecretV1 {
        project: record.project.clone(),
        name: record.name.clone(),
        sealed: record.sealed.0.clone(),
        set_by: record.set_by.clone(),
        set: record.set.into(),
    })
}

impl From<SecretV1> for SecretRecord {
    fn from(record: SecretV1) -> Self {
        SecretRecord {
            project: record.project,
            name: record.name,
            sealed: Sealed(record.sealed),
            set_by: record.set_by,
            set: record.set.into(),
        }
    }
}

/// Read only: before projects said anything about idle GPUs.
#[derive(Deserialize)]
struct ProjectV1 {
    name: String,
    max_priority: u8,
    /// Guaranteed and maximum GPUs by pool.
    quotas: BTreeMap<String, (u32, Option<u32>)>,
    set_by: String,
    set: TimeV1,
}

#[derive(Serialize, Deserialize)]
struct ProjectV2 {
    name: String,
    max_priority: u8,
    /// Guaranteed and maximum GPUs by pool.
    quotas: BTreeMap<String, (u32, Option<u32>)>,
    idle_warn_after_ms: Option<u64>,
    idle_reclaim_after_ms: Option<u64>,
    set_by: String,
    set: TimeV1,
}

pub fn encode_project(record: &ProjectRecord) -> Result<Vec<u8>, String> {
    let project = ProjectV2 {
        name: record.name.clone(),
        max_priority: record.max_priority,
        quotas: record
            .quotas
            .iter()
            .map(|(pool, quota)| (pool.clone(), (quota.guaranteed, quota.maximum)))
            .collect(),
        idle_warn_after_ms: record.idle.warn_after_ms,
        idle_reclaim_after_ms: record.idle.reclaim_after_ms,
        set_by: record.set_by.clone(),
        set: record.set.into(),
    };
    seal_as(2, &project)
}

pub(super) fn decode_project(bytes: &[u8]) -> Result<ProjectRecord, String> {
    if bytes.first() == Some(&1) {
        let ProjectV1 { name, max_priority, quotas, set_by, set } = unseal(bytes)?;
        let (idle_warn_after_ms, idle_reclaim_after_ms) = (None, None);
        return Ok(ProjectRecord::from(ProjectV2 {
            name,
            max_priority,
            quotas,
            idle_warn_after_ms,
            idle_reclaim_after_ms,
            set_by,
            set,
        }));
    }
    unseal_as::<ProjectV2>(2, bytes).map(Into::into)
}

impl From<ProjectV2> for ProjectRecord {
    fn from(record: ProjectV2) -> Self {
        ProjectRecord {
            name: record.name,
            max_priority: record.max_priority,
            quotas: record
                .quotas
                .into_iter()
                .map(|(pool, (guaranteed, maximum))| (pool, Quota { guaranteed, maximum }))
                .collect(),
            idle: IdlePolicy {
                warn_after_ms: record.idle_warn_after_ms,
                reclaim_after_ms: record.idle_reclaim_after_ms,
            },
            set_by: record.set_by,
            set: record.set.into(),
        }
    }
}

// ---------------------------------------------------------------- usage

#[derive(Serialize, Deserialize)]
pub(super) struct UsageV1 {
    project: String,
    gpu_ms: u64,
    at: TimeV1,
}

pub fn encode_usage(usage: &Usage) -> Result<Vec<u8>, String> {
    let at = usage.at.into();
    seal(&UsageV1 { project: usage.project.clone(), gpu_ms: usage.gpu_ms, at })
}

impl From<UsageV1> for Usage {
    fn from(record: UsageV1) -> Self {
        Usage { project: record.project, gpu_ms: record.gpu_ms, at: record.at.into() }
    }
}
