//! The commands: each module does one, or a few that belong together.

mod access;
mod attached;
mod audit;
mod bundle;
mod card;
mod checkpoint;
mod cluster;
mod control;
mod diagnose;
mod diff;
mod events;
mod explain;
mod export;
mod hidden;
mod local;
mod login;
mod logs;
mod metrics;
pub(crate) mod node;
mod node_test;
mod pool;
mod project;
mod ps;
mod ray;
mod rule_trials;
mod secret;
mod show;
mod simulate;
mod stack;
pub(crate) mod steps;
mod submit;
mod template;
mod top;
mod usage;
mod wait;
mod watch;
mod webhook;
mod why;

use std::io::Read;

use serde_json::Value;

use crate::args::{
    Args, AuditCommand, CheckpointCommand, ClusterCommand, Command, Globals, NodeCommand, Output,
    PoolCommand, ProjectCommand, SchemaCommand, SecretCommand, TemplateCommand, TokenCommand,
};
use crate::client::Client;
use crate::config::{self, Settings};
use crate::errors::{CliError, code, exit};
use crate::output::Screen;
use crate::view::{self, Job};

/// Most jobs that one command takes.
const MAX_SELECTORS: usize = 10_000;
/// Most bytes of a list on stdin.
const MAX_STDIN_BYTES: u64 = 1024 * 1024;
/// Longest selector, in characters.
const MAX_SELECTOR_CHARS: usize = 255;

/// Do what `args` say. The value is the exit code.
///
/// # Errors
/// What ends the command; it has an exit code too.
pub async fn run(args: Args, screen: &Screen) -> Result<u8, CliError> {
    let globals = args.globals;
    let client = || connect(&globals);
    if globals.output == Output::Yaml && !matches!(args.command, Command::Plan(_)) {
        return Err(CliError::new(exit::USAGE, code::USAGE, "only `plan` prints yaml")
            .hint("use -o json, and a converter such as yq or jq"));
    }
    match args.command {
        Command::Validate(args) => local::validate(&args, screen),
        Command::Plan(args) if globals.output == Output::Yaml => {
            explain::plan(&args, None, screen).await
        }
        Command::Plan(args) => {
            let client = logged_in(&globals)?.map(|settings| Client::new(&settings)).transpose()?;
            explain::plan(&args, client.as_ref(), screen).await
        }
        Command::Explain { job } => explain::job(&client()?, &job, screen).await,
        Command::Why { job, attempt } => why::run(&client()?, &job, attempt, screen).await,
        Command::Queue { pool } => explain::queue(&client()?, pool.as_deref(), screen).await,
        Command::Diagnose(args) => diagnose::run(&args, screen),
        Command::Stack(args) => stack::run(&client()?, &args, screen).await,
        Command::Bundle(args) => bundle::run(&client()?, &args, screen).await,
        Command::Checkpoint(args) => match args.command {
            CheckpointCommand::Ls { job } => checkpoint::list(&client()?, &job, screen).await,
        },
        Command::Simulate(args) => simulate::run(&args, client, screen).await,
        Command::Init(args) => template::init(&args, logged_in(&globals)?.as_ref(), screen),
        Command::Template(args) => match args.command {
            TemplateCommand::Ls => template::list(screen),
            TemplateCommand::Show { template } => template::show(&template, screen),
        },
        Command::Schema(args) => match args.command {
            SchemaCommand::Job => template::job_schema(logged_in(&globals)?.as_ref(), screen).await,
        },
        Command::Export(args) => export::run(&args.command, || settings(&globals), screen),
        Command::Version => local::version(screen),
        Command::Login(args) => login::login(&globals, &args, screen).await,
        Command::Logout(args) => login::logout(&args, screen),
        Command::Submit(args) if args.dry_run => submit::dry_run(&args, screen),
        Command::Submit(args) => submit::submit(&args, client, screen).await,
        Command::Clone(args) => submit::clone(&args, &client()?, screen).await,
        Command::Diff(args) => diff::run(&client()?, &args, screen).await,
        Command::Run(args) => submit::run(&args, client, screen).await,
        Command::Ps(args) => ps::run(&client()?, &args, screen).await,
        Command::Show(args) => show::run(&client()?, &args.job, screen).await,
        Command::Watch(args) => watch::run(&client()?, &args, screen).await,
        Command::Logs(args) => logs::run(&client()?, &args, screen).await,
        Command::Ray(args) => ray::run(&client()?, &args.command, screen).await,
        Command::Stop(args) => control::stop(&client()?, &args, screen).await,
        Command::Hold(args) => control::hold(&client()?, &args, screen).await,
        Command::Release(args) => control::release(&client()?, &args, screen).await,
        Command::Requeue(args) => control::requeue(&client()?, &args, screen).await,
        Command::SetPriority(args) => control::set_priority(&client()?, &args, screen).await,
        Command::Extend(args) => control::extend(&client()?, &args, screen).await,
        Command::Wait(args) => wait::run(&client()?, &args, screen).await,
        Command::Metrics(args) => metrics::run(&client()?, &args, screen).await,
        Command::Top(args) => top::run(&client()?, &args, screen).await,
        Command::Whoami => access::whoami(&client()?, screen).await,
        Command::Node(args) => match args.command {
            NodeCommand::Ls { pool, watch } => {
                node::list(&client()?, &node::Listed { pool, watch }, screen).await
            }
            NodeCommand::Health { trials: true, .. } => rule_trials::list(&client()?, screen).await,
            NodeCommand::Health { node, .. } => {
                node::health(&client()?, node.as_deref(), screen).await
            }
            NodeCommand::Show { node } => node::show(&client()?, &node, screen).await,
            NodeCommand::Token { uses, ttl, pool } => {
                access::join_token(&client()?, uses, ttl, pool, screen).await
            }
            NodeCommand::Cordon { node, reason } => {
                let body = serde_json::json!({ "reason": reason });
                node::maintain(&client()?, &node, "cordon", body, screen).await
            }
            NodeCommand::Drain { node, reason, deadline, stop_jobs } => {
                let deadline = deadline.or(stop_jobs.then_some(std::time::Duration::ZERO));
                let mut body = serde_json::json!({ "reason": reason });
                if let Some(deadline) = deadline {
                    body["deadline_s"] = deadline.as_secs().into();
                }
                node::maintain(&client()?, &node, "drain", body, screen).await
            }
            NodeCommand::Label { node, labels } => {
                node::label(&client()?, &node, &labels, screen).await
            }
            NodeCommand::Resume { node } => {
                node::maintain(&client()?, &node, "resume", serde_json::json!({}), screen).await
            }
            NodeCommand::ForceRelease { node, reason, yes } => {
                node::force_release(&client()?, &node, &reason, yes, screen).await
            }
            NodeCommand::Test(args) => node_test::run(&client()?, &args, screen).await,
            NodeCommand::Revoke { node, yes } => node::revoke(&client()?, &node, yes, screen).await,
        },
        Command::Pool(args) => match args.command {
            PoolCommand::Ls => pool::list(&client()?, screen).await,
            PoolCommand::Show { pool } => pool::show(&client()?, &pool, screen).await,
            PoolCommand::Set { pool, description, add, remove } => {
                let change = pool::Change { description, add, remove };
                pool::set(&client()?, &pool, &change, screen).await
            }
            PoolCommand::Rm { pool } => pool::delete(&client()?, &pool, screen).await,
        },
        Command::Webhook(args) => webhook::run(&client()?, args.command, screen).await,
        Command::Events(args) => events::run(&client()?, &args, screen).await,
        Command::Usage(args) => usage::run(&client()?, &args, screen).await,
        Command::Audit(args) => match args.command {
            None => audit::list(&client()?, args.count, screen).await,
            Some(AuditCommand::Verify) => audit::verify(&client()?, screen).await,
        },
        Command::Cluster(args) => match args.command {
            ClusterCommand::Ls { all } => cluster::list(&client()?, all, screen).await,
            ClusterCommand::Show { cluster } => show::run(&client()?, &cluster, screen).await,
            ClusterCommand::Stop { cluster, yes } => {
                cluster::stop(&client()?, cluster, yes, screen).await
            }
            ClusterCommand::Address { cluster } => {
                cluster::address(&client()?, &cluster, screen).await
            }
        },
        Command::Project(args) => match args.command {
            ProjectCommand::Ls => project::list(&client()?, screen).await,
            ProjectCommand::Set(settings) => project::set(&client()?, &settings, screen).await,
        },
        Command::Secret(args) => match args.command {
            SecretCommand::Set { name, from_file, project } => {
                secret::set(&client()?, &name, from_file.as_deref(), project, screen).await
            }
            SecretCommand::Ls { project } => secret::list(&client()?, project, screen).await,
            SecretCommand::Rm { name, project } => {
                secret::delete(&client()?, &name, project, screen).await
            }
        },
        Command::Token(args) => match args.command {
            TokenCommand::Create { user, project, role, ttl, name } => {
                let name = name.unwrap_or_else(|| user.clone());
                let token = access::NewToken { name, user, project, role, ttl };
                access::api_token(&client()?, &token, screen).await
            }
            TokenCommand::Ls => access::list_tokens(&client()?, screen).await,
            TokenCommand::Rm { name } => access::delete_token(&client()?, &name, screen).await,
        },
    }
}

fn connect(globals: &Globals) -> Result<Client, CliError> {
    Client::new(&settings(globals)?)
}

/// The coordinator that this user has a token for, for commands that also work without one.
fn logged_in(globals: &Globals) -> Result<Option<Settings>, CliError> {
    Ok(Some(settings(globals)?).filter(|settings| settings.token.is_some()))
}

fn settings(globals: &Globals) -> Result<Settings, CliError> {
    config::resolve(&globals.connection(), |name| std::env::var(name).ok())
}

/// What stands for the list of jobs on stdin.
const STDIN: &str = "-";

/// The selectors of a command line, with `-` replaced by the words on stdin.
fn expand(selectors: &[String]) -> Result<Vec<String>, CliError> {
    let mut out = Vec::new();
    for selector in selectors {
        if selector != STDIN {
            out.push(selector.clone());
            continue;
        }
        let mut text = String::new();
        let mut stdin = std::io::stdin().lock().take(MAX_STDIN_BYTES);
        stdin
            .read_to_string(&mut text)
            .map_err(|error| CliError::io("cannot read the list on stdin", &error))?;
        out.extend(text.split_whitespace().map(str::to_owned));
    }
    if out.len() > MAX_SELECTORS {
        let what = format!("{} jobs are too many at once", out.len());
        return Err(CliError::new(exit::USAGE, code::USAGE, what)
            .hint(format!("give at most {MAX_SELECTORS}")));
    }
    if out.is_empty() {
        return Err(CliError::new(exit::USAGE, code::USAGE, "the list on stdin names no job"));
    }
    Ok(out)
}

/// Refuse what is no selector before it becomes part of an address.
fn check_selector(what: &str, selector: &str) -> Result<(), CliError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | ':');
    let good = !selector.is_empty()
        && selector.len() <= MAX_SELECTOR_CHARS
        && selector.chars().all(plain)
        && !selector.chars().all(|c| c == '.');
    if good {
        return Ok(());
    }
    let shown: String = selector.chars().take(MAX_SELECTOR_CHARS).collect();
    Err(CliError::new(exit::USAGE, code::USAGE, format!("`{shown}` is not a {what}"))
        .hint(format!("give the id or the name of a {what}")))
}

/// The selector of the one job that a command is about; with `-` it is the only word on stdin.
fn one_job(selector: &str) -> Result<String, CliError> {
    let only = if selector == STDIN {
        only_one(expand(&[selector.to_owned()])?)?
    } else {
        selector.to_owned()
    };
    check_selector("job", &only)?;
    Ok(only)
}

/// A list that must have one entry.
fn only_one(mut jobs: Vec<String>) -> Result<String, CliError> {
    match (jobs.pop(), jobs.len()) {
        (Some(job), 0) => Ok(job),
        (_, others) => {
            let what = format!("stdin names {} jobs, and this is about one", others + 1);
            Err(CliError::new(exit::USAGE, code::USAGE, what)
                .hint("give one, such as `gangline ps -o name | head -n 1`"))
        }
    }
}

/// The job that `selector` means, as the coordinator sent it and as a struct.
async fn find_job(client: &Client, selector: &str) -> Result<(Value, Job), CliError> {
    let selector = one_job(selector)?;
    let value = client.get(&["jobs", &selector], &[]).await?;
    let job: Job = view::read(&value)?;
    if job.id.is_empty() {
        return Err(CliError::new(exit::ERROR, code::BAD_ANSWER, "the answer names no job")
            .hint("its version may not fit this one"));
    }
    Ok((value, job))
}

/// Id and spec of the job that `selector` means.
async fn spec_of(client: &Client, selector: &str) -> Result<(String, Value), CliError> {
    let (mut value, job) = find_job(client, selector).await?;
    let spec = value.get_mut("spec").map(Value::take).filter(Value::is_object);
    let spec = spec.ok_or_else(|| {
        let what = format!("the answer about {} has no spec", job.id);
        CliError::new(exit::ERROR, code::BAD_ANSWER, what).hint("its version may not fit this one")
    })?;
    Ok((job.id, spec))
}

/// Ask before something that cannot be taken back; `yes` has answered already.
fn confirm(question: &str, yes: bool) -> Result<(), CliError> {
    use std::io::{IsTerminal, Write};
    if yes {
        return Ok(());
    }
    let refusal = |what: String| CliError::new(exit::ERROR, code::UNANSWERED, what);
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(refusal(format!("{question} Nobody can be asked here; nothing was done"))
            .hint("say --yes to do it without a question"));
    }
    let question = crate::terminal::clean(question);
    let asked = write!(std::io::stderr(), "{question} [y/N] ");
    let mut answer = String::new();
    let read = asked.and_then(|()| std::io::stdin().read_line(&mut answer));
    read.map_err(|error| CliError::io("cannot ask", &error))?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(refusal("not confirmed; nothing was done".to_owned()))
}

/// The items of the list `key` of an answer; none where there is no such list.
fn items<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    answer.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// `-` for what is not there.
fn or_dash(text: Option<String>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
}

/// A number as a cell.
fn count(number: Option<u64>) -> String {
    or_dash(number.map(|number| number.to_string()))
}

/// Bytes in the largest binary unit that keeps a whole part: `79.6 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        unit = next;
        if value < 1024.0 {
            break;
        }
        if next != "TiB" {
            value /= 1024.0;
        }
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (80 << 30, "80.0 GiB"),
            (1 << 40, "1.0 TiB"),
            (3 << 50, "3072.0 TiB"),
        ];
        for (number, expected) in cases {
            assert_eq!(bytes(number), expected);
        }
    }

    #[test]
    fn a_list_for_a_command_about_one_job_has_one() {
        let list = |jobs: &[&str]| jobs.iter().map(|job| (*job).to_owned()).collect::<Vec<_>>();
        assert_eq!(only_one(list(&["j-1"])).unwrap(), "j-1");
        let error = only_one(list(&["j-1", "j-2", "j-3"])).unwrap_err();
        assert_eq!(error.exit(), exit::USAGE);
        assert!(error.to_text().contains("stdin names 3 jobs"), "{}", error.to_text());
    }

    #[test]
    fn selectors_cannot_change_the_address() {
        for good in ["j-7f3k2", "@last", "gpu-0203.lan", "my-job_1"] {
            assert!(check_selector("job", good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a?b", "a b", "a#", "%2e", "ü"] {
            assert_eq!(check_selector("job", bad).unwrap_err().exit(), exit::USAGE, "{bad}");
        }
    }
}
