//! The directories of a job: where it may have them, and what they are called. The check is lexical:
//! the coordinator does not mount them.

use gangline_common::ids::JobId;
use gangline_spec::{Code, CodeSource, JobSpec, Kind, SpecError, SpecErrors};

use crate::request::request_name;

/// Where jobs may have directories; absolute paths, from the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathRules {
    /// Directory that all nodes share; `None` when the fleet has none.
    pub shared_root: Option<String>,
    /// Further directories below which a training checkpoint directory may lie.
    pub extra_roots: Vec<String>,
}

/// The directories of one job, with every variable filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedPaths {
    pub job_directory: Option<String>,
    pub checkpoint_directory: Option<String>,
}

/// Whose directories a job may use: the shared root has a part for each user, project and job.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    pub job: &'a JobId,
    pub user: &'a str,
    pub project: &'a str,
    /// May name any directory below a root.
    pub is_admin: bool,
    /// The project of another job, by its id.
    pub project_of: &'a (dyn Fn(&str) -> Option<String> + Sync),
}

impl Asker<'_> {
    /// Whether a path below the shared root, in its parts, is one of the asker's own.
    fn owns(&self, parts: &[&str], purpose: Purpose) -> bool {
        if self.is_admin {
            return true;
        }
        match parts {
            ["users", user, ..] => *user == self.user,
            ["projects", project, ..] => *project == self.project,
            ["jobs", job, ..] => {
                *job == self.job.as_str()
                    || (self.project_of)(job).is_some_and(|project| project == self.project)
            }
            ["common", ..] => purpose == Purpose::Code,
            _ => false,
        }
    }
}

/// What a directory is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Written.
    Checkpoints,
    /// Read.
    Code,
}

impl Purpose {
    fn words(self) -> &'static str {
        match self {
            Purpose::Checkpoints => "training checkpoints",
            Purpose::Code => "code",
        }
    }
}

/// Fixes the directories of a job.
///
/// # Errors
/// A spec error at `/checkpoint/dir` or `/code/path` when the directory is outside every allowed
/// root, or somebody else's.
pub fn resolve_paths(
    spec: &JobSpec,
    asker: &Asker<'_>,
    rules: &PathRules,
) -> Result<ResolvedPaths, SpecErrors> {
    let (job, project) = (asker.job, asker.project);
    let job_directory =
        rules.shared_root.as_deref().map(|root| format!("{}/jobs/{job}", trimmed(root)));
    let name = request_name(spec);
    let lookup = |variable: &str| match variable {
        "GANGLINE_JOB_ID" => Some(job.to_string()),
        "GANGLINE_NAME" => Some(name.clone()),
        "GANGLINE_PROJECT" => Some(project.to_owned()),
        _ => None,
    };
    let asked = spec.checkpoint.expand_dir(lookup).map_err(|variable| {
        let message = format!("`${variable}` cannot stand in a checkpoint directory");
        let hint = format!("use one of {}", gangline_spec::CHECKPOINT_VARIABLES.join(", "));
        refusal(message, hint)
    })?;
    let checkpoint_directory = match asked {
        Some(directory) => {
            let purpose = Purpose::Checkpoints;
            Some(allowed(&directory, asker, rules, "/checkpoint/dir", purpose)?)
        }
        // A cluster runs no program of its own.
        None if spec.kind != Kind::Job => None,
        None => job_directory.as_ref().map(|directory| format!("{directory}/checkpoints")),
    };
    check_code(spec, asker, rules)?;
    check_template(spec, checkpoint_directory.as_deref())?;
    check_tracking(spec, job_directory.as_deref())?;
    Ok(ResolvedPaths { job_directory, checkpoint_directory })
}

/// Code is on the nodes below an allowed root, or here; where else it is, nobody here can look.
fn check_code(spec: &JobSpec, asker: &Asker<'_>, rules: &PathRules) -> Result<(), SpecErrors> {
    let Some(code) = &spec.code else { return Ok(()) };
    let (field, place) = code.source.field();
    match &code.source {
        CodeSource::Path(path) => {
            allowed(trimmed(path), asker, rules, "/code/path", Purpose::Code).map(drop)
        }
        CodeSource::Tree(_) if spec.cluster.is_some() && rules.shared_root.is_none() => {
            let message =
                "a job on a cluster brings its code through the shared root, and there is none";
            let hint =
                "set `shared_root` in the coordinator's configuration, or leave out `cluster`";
            Err(refusal_at(&format!("/code/{field}"), message.to_owned(), hint.to_owned()))
        }
        CodeSource::Tree(_) => Ok(()),
        CodeSource::Snapshot(_) | CodeSource::Zip(_) => {
            let message = format!("`{place}` is on the sender's machine, not here");
            let hint = "submit with `gangline submit`, which uploads it; the API takes the name of \
                        a tree, `blake3:` and 64 digits";
            Err(refusal_at(&format!("/code/{field}"), message, hint.to_owned()))
        }
    }
}

/// A template that writes training checkpoints needs a directory for them, and one that Hydra takes
/// as it is inside of quotes.
fn check_template(spec: &JobSpec, directory: Option<&str>) -> Result<(), SpecErrors> {
    let arguments = spec.entrypoint.arguments();
    let writes = arguments.iter().flat_map(|a| a.variables()).any(|v| v == "GANGLINE_CKPT_DIR");
    if !writes {
        return Ok(());
    }
    let Some(directory) = directory else {
        let message =
            "the template writes training checkpoints, and there is no directory for them";
        let hint = "set `shared_root` in the coordinator's configuration";
        return Err(refusal(message.to_owned(), hint.to_owned()));
    };
    if directory.contains(['"', '\\']) || directory.contains("${") {
        let message = format!("`{directory}` cannot be given to a template");
        let hint = "name a directory without quotes, backslashes and `${`";
        return Err(refusal(message, hint.to_owned()));
    }
    Ok(())
}

/// Trackers that write files need a directory for them.
fn check_tracking(spec: &JobSpec, job_directory: Option<&str>) -> Result<(), SpecErrors> {
    let (Some(tracker), None) = (spec.tracking.directories().first().copied(), job_directory)
    else {
        return Ok(());
    };
    let message = format!("this coordinator has no shared root, so {tracker} has no directory");
    let hint = "leave the field out, or set `shared_root` in the coordinator's configuration";
    Err(refusal_at(&format!("/tracking/{tracker}"), message, hint.to_owned()))
}

/// The directory without trailing slashes, when it lies below an allowed root and, below the shared
/// one, in a part that is the asker's.
fn allowed(
    directory: &str,
    asker: &Asker<'_>,
    rules: &PathRules,
    pointer: &str,
    purpose: Purpose,
) -> Result<String, SpecErrors> {
    let roots: Vec<&str> =
        rules.shared_root.iter().chain(&rules.extra_roots).map(|root| trimmed(root)).collect();
    if roots.is_empty() {
        let message = format!(
            "this coordinator has no shared root, so no job can name a directory for {}",
            purpose.words()
        );
        let hint = "leave the field out, or set `shared_root` in the coordinator's configuration";
        return Err(refusal_at(pointer, message, hint.to_owned()));
    }
    let directory = trimmed(directory);
    let plain = directory.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
    let below = |root: &&str| {
        directory.strip_prefix(*root).is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
    };
    if plain && directory.starts_with('/') && roots.iter().any(below) {
        // One root may lie in another: the innermost counts.
        let innermost = roots.iter().filter(|root| below(root)).max_by_key(|root| root.len());
        let shared = rules.shared_root.as_deref().map(trimmed);
        let Some(root) = innermost.filter(|root| shared == Some(**root)) else {
            return Ok(directory.to_owned());
        };
        let rest = directory.strip_prefix(root).unwrap_or_default();
        let parts: Vec<&str> = rest.split('/').skip(1).collect();
        if asker.owns(&parts, purpose) {
            return Ok(directory.to_owned());
        }
        return Err(not_yours(directory, asker, root, pointer, purpose));
    }
    let message = format!("`{directory}` is not below a directory that jobs may use");
    let hint =
        format!("name a directory below {}, without `..`, `.` or empty parts", roots.join(" or "));
    Err(refusal_at(pointer, message, hint))
}

fn not_yours(
    directory: &str,
    asker: &Asker<'_>,
    root: &str,
    pointer: &str,
    purpose: Purpose,
) -> SpecErrors {
    let what = purpose.words();
    let message = format!("`{directory}` is not a directory of yours for {what}");
    let common =
        if purpose == Purpose::Code { format!(", or {root}/common") } else { String::new() };
    let hint = format!(
        "name one below {root}/projects/{}, {root}/users/{}, {root}/jobs/ID of a job of your \
         project{common}",
        asker.project, asker.user,
    );
    refusal_at(pointer, message, hint)
}

fn refusal(message: String, hint: String) -> SpecErrors {
    refusal_at("/checkpoint/dir", message, hint)
}

fn refusal_at(pointer: &str, message: String, hint: String) -> SpecErrors {
    SpecError::new(Code::BAD_VALUE, pointer, message, Some(hint)).into()
}

pub(crate) fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> PathRules {
        PathRules {
            shared_root: Some("/mnt/shared/".to_owned()),
            extra_roots: vec!["/fast".to_owned()],
        }
    }

    fn spec(checkpoint: Option<&str>) -> JobSpec {
        let mut spec = JobSpec::for_command(vec!["python".into(), "/code/Train_SFT.py".into()]);
        spec.checkpoint.dir = checkpoint.map(str::to_owned);
        spec
    }

    fn checkpoint(dir: Option<&str>, rules: &PathRules) -> Result<Option<String>, SpecErrors> {
        resolve_paths(&spec(dir), &alice(&JobId::new("j-1").unwrap()), rules)
            .map(|paths| paths.checkpoint_directory)
    }

    fn alice(job: &JobId) -> Asker<'_> {
        Asker {
            job,
            user: "alice",
            project: "rlhf",
            is_admin: false,
            project_of: &|id| match id {
                "j-ours" => Some("rlhf".to_owned()),
                "j-theirs" => Some("vision".to_owned()),
                _ => None,
            },
        }
    }

    #[test]
    fn directories_have_defaults_below_the_shared_root() {
        let default = checkpoint(None, &rules()).unwrap();
        assert_eq!(default.as_deref(), Some("/mnt/shared/jobs/j-1/checkpoints"));
        assert_eq!(checkpoint(None, &PathRules::default()).unwrap(), None);
    }

    #[test]
    fn checkpoint_variables_are_filled_in() {
        let dir = "/fast/${GANGLINE_PROJECT}/$GANGLINE_NAME/$GANGLINE_JOB_ID/";
        let resolved = checkpoint(Some(dir), &rules()).unwrap();
        assert_eq!(resolved.as_deref(), Some("/fast/rlhf/train-sft/j-1"));
    }

    #[test]
    fn a29_directories_outside_the_roots_are_refused() {
        let outside =
            ["/etc", "/mnt/shared/../etc", "/mnt/sharedother/x", "/mnt/shared", "/fast//x"];
        for dir in outside {
            let error = checkpoint(Some(dir), &rules()).unwrap_err();
            let hint = error.errors[0].hint.as_deref().unwrap();
            assert_eq!(error.errors[0].pointer, "/checkpoint/dir", "{dir}");
            assert!(hint.contains("/mnt/shared or /fast"), "{hint}");
        }
        let error = checkpoint(Some("/x/y"), &PathRules::default()).unwrap_err();
        assert!(error.errors[0].message.contains("no shared root"));
    }

    #[test]
    fn a29_below_the_shared_root_are_directories_of_somebody() {
        let job = JobId::new("j-1").unwrap();
        let refused = |dir: &str, asker: &Asker<'_>| {
            let error = resolve_paths(&spec(Some(dir)), asker, &rules()).err()?;
            Some(error.errors[0].hint.clone().unwrap())
        };
        for own in ["users/alice/a", "projects/rlhf/x/y", "jobs/j-1/c", "jobs/j-ours/checkpoints"] {
            assert_eq!(refused(&format!("/mnt/shared/{own}"), &alice(&job)), None, "{own}");
        }
        let others = [
            "users/bob/a",
            "users",
            "projects/vision/x",
            "jobs/j-theirs/checkpoints",
            "jobs/j-nobody/x",
            "jobs",
            "common/x",
            "elsewhere/x",
        ];
        let admin = Asker { is_admin: true, ..alice(&job) };
        for other in others {
            let directory = format!("/mnt/shared/{other}");
            let hint = refused(&directory, &alice(&job)).expect(other);
            assert!(hint.contains("/mnt/shared/projects/rlhf, /mnt/shared/users/alice"), "{hint}");
            assert_eq!(refused(&directory, &admin), None, "{other}");
        }
        let around = PathRules {
            shared_root: Some("/mnt/shared".to_owned()),
            extra_roots: vec!["/mnt".to_owned(), "/mnt/shared/free".to_owned()],
        };
        let resolves = |dir: &str| {
            let spec = spec(Some(dir));
            resolve_paths(&spec, &alice(&job), &around).is_ok()
        };
        assert!(resolves("/mnt/x") && resolves("/mnt/shared/free/x"));
        assert!(!resolves("/mnt/shared/users/bob/x"), "the outer root opens nothing");
        let code = |path: &str| {
            let text = format!("run: x\ncode: {{path: {path}}}");
            let spec = gangline_spec::parse_resolved(&text).unwrap();
            resolve_paths(&spec, &alice(&job), &rules()).is_ok()
        };
        assert!(code("/mnt/shared/common/code/v2") && code("/mnt/shared/users/alice/code"));
        assert!(!code("/mnt/shared/users/bob/code") && !code("/mnt/shared/code"));
    }
}
