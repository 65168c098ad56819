//! Secrets of projects: set, replaced and deleted, every time with an entry in the audit log. A core
//! holds them sealed and cannot open them.

use std::fmt;
use std::sync::Arc;

use gangline_common::ids::NodeId;
use gangline_common::time::Timestamp;

use super::Core;
use super::credential::Principal;
use super::effect::{Answer, Effects, Rejected, Write};
use super::event::RequestId;
use super::gang::GangState;
use super::job::Job;

/// Secrets of one project; one more is refused.
pub const PROJECT_SECRET_LIMIT: usize = 512;
/// Names and sealed values of the secrets of one job together, in bytes: an assignment with them
/// must fit into its frame.
pub const JOB_SECRET_BYTES: usize = 256 << 10;

/// A value that only the coordinator's key opens.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed(pub Vec<u8>);

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes)", self.0.len())
    }
}

/// A secret of a project, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRecord {
    pub project: String,
    pub name: String,
    pub sealed: Sealed,
    /// Who gave it its present value, and when.
    pub set_by: String,
    pub set: Timestamp,
}

impl SecretRecord {
    /// What it counts of [`JOB_SECRET_BYTES`].
    fn size(&self) -> usize {
        self.name.len() + self.sealed.0.len()
    }
}

impl Core {
    pub(super) fn on_set_secret(
        &mut self,
        request: RequestId,
        record: SecretRecord,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let key = (record.project.clone(), record.name.clone());
        let replaced = self.secrets.get(&key).map_or(0, |old| old.size());
        if replaced == 0 {
            let first = (record.project.clone(), String::new());
            let of_project = self.secrets.range(first..);
            let count = of_project.take_while(|((p, _), _)| *p == record.project).count();
            if count >= PROJECT_SECRET_LIMIT {
                let rejected = Rejected::TooManySecrets { limit: PROJECT_SECRET_LIMIT };
                return Core::reject(request, rejected, out);
            }
        }
        let users = self.live_users(&record.project, &record.name);
        for job in &users {
            let others = self.secret_bytes(&job.project, &job.request.secrets);
            if others.saturating_sub(replaced) + record.size() > JOB_SECRET_BYTES {
                let rejected = Rejected::SecretsTooLarge { limit: JOB_SECRET_BYTES };
                return Core::reject(request, rejected, out);
            }
        }
        let detail = if replaced == 0 { "new" } else { "replaced" };
        let object = object(&record.project, &record.name);
        self.audit(actor, "secret.set", object, detail, now, out);
        self.put(Write::Secret(Arc::new(record)), out);
        // An assignment has changed, so its nodes get it under a new generation: one generation
        // never has two contents. What runs goes on with what it was started with.
        let nodes: Vec<NodeId> = users.iter().flat_map(|job| self.running_nodes(job)).collect();
        self.touch_nodes(&nodes, out);
        out.replies.push((request, Answer::Done));
    }

    pub(super) fn on_delete_secret(
        &mut self,
        request: RequestId,
        (project, name): (String, String),
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if !self.secrets.contains_key(&(project.clone(), name.clone())) {
            return Core::reject(request, Rejected::NoSuchSecret, out);
        }
        if let Some(job) = self.live_users(&project, &name).first() {
            return Core::reject(request, Rejected::SecretInUse { job: job.id.clone() }, out);
        }
        self.audit(actor, "secret.delete", object(&project, &name), "", now, out);
        self.put(Write::ForgetSecret { project, name }, out);
        out.replies.push((request, Answer::Done));
    }

    /// Whether a job of `project` can have these secrets.
    pub(super) fn check_secrets(&self, project: &str, names: &[String]) -> Result<(), Rejected> {
        let unknown =
            |name: &String| !self.secrets.contains_key(&(project.to_owned(), name.clone()));
        let missing: Vec<usize> =
            (0..).zip(names).filter(|(_, name)| unknown(name)).map(|(index, _)| index).collect();
        if !missing.is_empty() {
            return Err(Rejected::UnknownSecrets { missing });
        }
        if self.secret_bytes(project, names) > JOB_SECRET_BYTES {
            return Err(Rejected::SecretsTooLarge { limit: JOB_SECRET_BYTES });
        }
        Ok(())
    }

    /// The secrets that a job names, sealed; `None` when one is missing, which the rules of
    /// [`Core::check_secrets`] and of deleting rule out.
    pub(super) fn secrets_of(&self, job: &Job) -> Option<Vec<Arc<SecretRecord>>> {
        let find = |name: &String| self.secrets.get(&(job.project.clone(), name.clone())).cloned();
        job.request.secrets.iter().map(find).collect()
    }

    fn secret_bytes(&self, project: &str, names: &[String]) -> usize {
        let sizes = names.iter().filter_map(|name| {
            self.secrets.get(&(project.to_owned(), name.clone())).map(|secret| secret.size())
        });
        sizes.sum()
    }

    /// The jobs that have not ended and name this secret.
    fn live_users(&self, project: &str, name: &str) -> Vec<Arc<Job>> {
        let live = self.live_jobs.iter().filter_map(|id| self.jobs.get(id));
        let names = |job: &&Arc<Job>| {
            job.project == project && job.request.secrets.iter().any(|secret| secret == name)
        };
        live.filter(names).cloned().collect()
    }

    /// The nodes that are told to run this job.
    fn running_nodes(&self, job: &Job) -> Vec<NodeId> {
        match self.gangs.get(&job.gang) {
            Some(gang) if matches!(gang.state, GangState::Starting | GangState::Ready) => {
                gang.nodes()
            }
            _ => Vec::new(),
        }
    }
}

fn object(project: &str, name: &str) -> String {
    format!("secret {project}/{name}")
}
