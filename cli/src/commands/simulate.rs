//! `simulate`: what-if, over a trace or over the coordinator's own history.

mod history;
mod show;

use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Mutex;

use gangline_simulate::{
    Failure, Fleet, FleetError, Policy, ProjectQuota, Replay, Settings, TraceError, Workload,
    generate, replay, trace,
};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::args::{QuotaWish, Simulate};
use crate::client::Client;
use crate::errors::{CliError, code, exit};
use crate::output::Screen;

/// Run the replays that `args` ask for, and print what came of them.
pub(super) async fn run(
    args: &Simulate,
    client: impl Fn() -> Result<Client, CliError>,
    screen: &Screen,
) -> Result<u8, CliError> {
    if args.from_history {
        return history::run(args, &client()?, screen).await;
    }
    // Clap has asked for both.
    let (nodes, gpus) = (args.nodes.unwrap_or(0), args.gpus_per_node.unwrap_or(0));
    let fleet = Fleet::uniform(nodes as usize, gpus).and_then(|fleet| wished(fleet, &args.quota));
    let fleet = fleet.map_err(|error| bad_fleet(&error))?;
    let mut workload = match (&args.trace, args.generate) {
        (Some(path), _) => read_trace(path)?,
        (None, seed) => generate::generate(seed.unwrap_or_default(), args.jobs as usize),
    };
    scale(&mut workload, &fleet, args)?;
    let cases: Vec<Case<'_>> =
        policies(args).into_iter().map(|policy| Case::new(&workload, &fleet, policy)).collect();
    let replays = replay_all(&cases, args, screen)?;
    show::reports(&replays, screen)?;
    Ok(exit::OK)
}

/// One replay.
struct Case<'a> {
    workload: &'a Workload,
    fleet: &'a Fleet,
    policy: Policy,
    title: String,
}

impl<'a> Case<'a> {
    fn new(workload: &'a Workload, fleet: &'a Fleet, policy: Policy) -> Self {
        Case { workload, fleet, policy, title: policy.word().to_owned() }
    }
}

/// The policies that are asked for, each once.
fn policies(args: &Simulate) -> Vec<Policy> {
    if args.compare {
        return Policy::ALL.to_vec();
    }
    let mut policies: Vec<Policy> = Vec::new();
    for policy in &args.policy {
        if !policies.contains(policy) {
            policies.push(*policy);
        }
    }
    policies
}

fn scale(workload: &mut Workload, fleet: &Fleet, args: &Simulate) -> Result<(), CliError> {
    let Some(load) = args.load else { return Ok(()) };
    workload.set_load(fleet, load).map_err(|why| {
        CliError::new(exit::INVALID, code::TRACE, format!("cannot scale to a load of {load}"))
            .why(why)
            .hint("leave --load out, or give more nodes")
    })
}

fn read_trace(path: &Path) -> Result<Workload, CliError> {
    let name = path.display().to_string();
    if path == Path::new("-") {
        return trace::read("stdin", std::io::stdin().lock()).map_err(|error| bad_trace(&error));
    }
    let unreadable = |error: &std::io::Error| CliError::io(format!("cannot read {name}"), error);
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    if file.metadata().is_ok_and(|data| data.is_dir()) {
        return Err(unreadable(&std::io::ErrorKind::IsADirectory.into()));
    }
    trace::read(&name, file).map_err(|error| bad_trace(&error))
}

fn bad_trace(error: &TraceError) -> CliError {
    let items = error.problems.iter().map(|problem| {
        json!({
            "pointer": problem.place(),
            "detail": format!("{}; {}", problem.what, problem.fix),
            "line": problem.line,
            "column": problem.column,
        })
    });
    let what = format!("{} is not a trace that can be replayed", error.file);
    let new = CliError::new(exit::INVALID, code::TRACE, what).items(items.collect());
    if error.more { new.hint("these are the first problems; there may be more") } else { new }
}

/// The fleet with the quotas that are to be tried.
fn wished(fleet: Fleet, quotas: &[QuotaWish]) -> Result<Fleet, FleetError> {
    let pool = fleet.nodes().first().map(|node| node.pool.clone()).unwrap_or_default();
    let quotas = quotas.iter().cloned().map(|wish| ProjectQuota {
        project: wish.project,
        pool: wish.pool.unwrap_or_else(|| pool.clone()),
        guaranteed: wish.guaranteed,
        maximum: wish.maximum,
    });
    fleet.with_quotas(quotas.collect())
}

fn bad_fleet(error: &FleetError) -> CliError {
    CliError::new(exit::USAGE, code::USAGE, error.to_string())
}

/// All replays, as many at once as there are processors; their results in the order of `cases`.
fn replay_all(
    cases: &[Case<'_>],
    args: &Simulate,
    screen: &Screen,
) -> Result<Vec<Replay>, CliError> {
    let every = u64::try_from(args.checkpoint_every.as_millis()).unwrap_or(u64::MAX);
    let bars = MultiProgress::with_draw_target(target(screen));
    let results: Vec<Mutex<Option<Result<Replay, Failure>>>> =
        cases.iter().map(|_| Mutex::new(None)).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let at_once = std::thread::available_parallelism().map_or(1, usize::from).min(cases.len());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some((case, result)) = cases.get(number).zip(results.get(number)) else {
                        return;
                    };
                    let bar = bars.add(bar(case));
                    let settings = Settings { policy: case.policy, checkpoint_every_ms: every };
                    let ended = replay(case.workload, case.fleet, settings, |progress| {
                        bar.set_position(progress.ended as u64);
                    });
                    bar.finish_and_clear();
                    if let Ok(mut result) = result.lock() {
                        *result = Some(ended);
                    }
                }
            });
        }
    });
    let ended = results.into_iter().map(|result| result.into_inner().ok().flatten());
    ended
        .map(|result| match result {
            Some(Ok(replay)) => Ok(replay),
            Some(Err(failure)) => {
                Err(CliError::new(exit::ERROR, code::INTERNAL, "a replay failed")
                    .why(failure.to_string())
                    .hint("please report it, with the trace"))
            }
            None => Err(CliError::new(exit::ERROR, code::INTERNAL, "a replay gave no result")),
        })
        .collect()
}

fn target(screen: &Screen) -> ProgressDrawTarget {
    if std::io::stderr().is_terminal() && !screen.is_quiet() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    }
}

fn bar(case: &Case<'_>) -> ProgressBar {
    let bar = ProgressBar::new(case.workload.jobs.len() as u64);
    let style = ProgressStyle::with_template("{prefix:>16} {bar:30} {pos}/{len} jobs, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.with_prefix(case.title.clone())
}
