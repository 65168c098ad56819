//! Tokens: made and deleted by administrators, every time with an entry in the audit log.

use gangline_common::time::Timestamp;

use super::Core;
use super::credential::{ApiTokenRecord, JoinTokenRecord, Principal, Role};
use super::effect::{Answer, Effects, Rejected, Write};
use super::event::RequestId;

impl Core {
    pub(super) fn on_create_join_token(
        &mut self,
        request: RequestId,
        record: JoinTokenRecord,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let pool = record.pool.as_deref().unwrap_or("any pool");
        let detail = format!("{} uses, {pool}", record.uses_left);
        self.audit(actor, "token.create", format!("join token {}", record.id), &detail, now, out);
        self.put(Write::JoinToken(record), out);
        out.replies.push((request, Answer::Done));
    }

    pub(super) fn on_create_api_token(
        &mut self,
        request: RequestId,
        record: ApiTokenRecord,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if let Some(known) = self.api_tokens.get(&record.name) {
            let lasts = record.role == Role::Admin && record.expires_wall_ms.is_none();
            if known.role == Role::Admin && !lasts && !self.has_other_admin(&record.name) {
                return Self::reject(request, Rejected::LastAdmin, out);
            }
            let is =
                |token: &ApiTokenRecord| (token.user.clone(), token.project.clone(), token.role);
            if is(known) != is(&record) {
                return Self::reject(request, Rejected::TokenNameTaken, out);
            }
        }
        let detail = format!("{} in {} as {}", record.user, record.project, record.role.word());
        self.audit(actor, "token.create", format!("token {}", record.name), &detail, now, out);
        self.put(Write::ApiToken(record), out);
        out.replies.push((request, Answer::Done));
    }

    pub(super) fn on_delete_token(
        &mut self,
        request: RequestId,
        name: &str,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let (object, write) = if let Some(token) = self.api_tokens.get(name) {
            if token.role == Role::Admin && !self.has_other_admin(name) {
                return Self::reject(request, Rejected::LastAdmin, out);
            }
            (format!("token {name}"), Write::ForgetApiToken { name: name.to_owned() })
        } else if self.join_tokens.contains_key(name) {
            (format!("join token {name}"), Write::ForgetJoinToken { id: name.to_owned() })
        } else {
            return Self::reject(request, Rejected::NoSuchToken, out);
        };
        self.audit(actor, "token.delete", object, "", now, out);
        self.put(write, out);
        out.replies.push((request, Answer::Done));
    }

    /// Whether an administrator's token that does not expire is left without this one.
    fn has_other_admin(&self, name: &str) -> bool {
        self.api_tokens.values().any(|token| {
            token.role == Role::Admin && token.expires_wall_ms.is_none() && token.name != name
        })
    }
}
