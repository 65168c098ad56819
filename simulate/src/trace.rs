//! Reading a trace: CSV with a header, perhaps gzipped; columns are found by name.
//!
//! A trace comes from anywhere. What is wrong with it is told by line and column, several at once,
//! and everything that is read has a bound.

mod columns;
mod lines;
mod problem;

use std::io::Read;

use crate::workload::{Demand, Group, Groups, Job, MAX_JOBS, Workload};
use columns::{Columns, Value};
use lines::Lines;
pub use problem::{Problem, TraceError};

/// Problems that are told at once; reading ends after them.
const MAX_PROBLEMS: usize = 10;
/// A trace that spans more was read with the wrong unit.
const MAX_SPAN_MS: u64 = 10 * 366 * 86_400_000;
/// The project of jobs that name none.
pub const DEFAULT_PROJECT: &str = "default";
/// The user of jobs that name none.
const DEFAULT_USER: &str = "trace";

/// Reads the trace `file` (its name, for errors) from `input`.
///
/// # Errors
/// What is wrong with it, by line and column.
pub fn read(file: &str, input: impl Read) -> Result<Workload, TraceError> {
    let mut lines = Lines::new(input);
    let fail = |problem: Problem| TraceError::new(file, vec![problem], false);
    let Some((number, header)) = lines.next_line().map_err(fail)? else {
        return Err(fail(Problem::of_file(
            "the file is empty",
            "a trace has a header, such as submit_s,duration_s,num_gpus, and a line for each job",
        )));
    };
    let columns = Columns::find(number, &header)
        .map_err(|problems| TraceError::new(file, problems, false))?;
    let mut problems = Vec::new();
    let mut workload = Workload::default();
    let mut groups = Groups::default();
    loop {
        let (number, line) = match lines.next_line() {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(problem) => {
                problems.push(problem);
                break;
            }
        };
        match columns.read(number, &line) {
            Ok(row) => take(row, &mut workload, &mut groups),
            Err(mut found) => problems.append(&mut found),
        }
        if workload.jobs.len() > MAX_JOBS {
            problems.push(Problem::at(
                number,
                None,
                format!("the trace has more than {MAX_JOBS} jobs"),
                "replay a part of it",
            ));
            break;
        }
        if problems.len() > MAX_PROBLEMS {
            problems.truncate(MAX_PROBLEMS);
            return Err(TraceError::new(file, problems, true));
        }
    }
    if !problems.is_empty() {
        return Err(TraceError::new(file, problems, false));
    }
    workload.groups = groups.into_list();
    workload.settle();
    check_span(&workload).map_err(fail)?;
    Ok(workload)
}

fn take(row: Value, workload: &mut Workload, groups: &mut Groups) {
    if row.gpus == 0 {
        workload.without_gpus += 1;
        return;
    }
    let group = groups.number(Group {
        project: row.project.unwrap_or_else(|| DEFAULT_PROJECT.to_owned()),
        user: row.user.unwrap_or_else(|| DEFAULT_USER.to_owned()),
        priority: crate::fleet::PRIORITY,
        ..Group::default()
    });
    workload.jobs.push(Job {
        submit_ms: row.submit_ms,
        duration_ms: row.duration_ms,
        demand: Demand::Gpus(row.gpus),
        group,
        origin: row.line,
    });
}

fn check_span(workload: &Workload) -> Result<(), Problem> {
    if workload.jobs.is_empty() {
        let what = match workload.without_gpus {
            0 => "there is no job in it".to_owned(),
            jobs => format!("none of its {jobs} jobs wants a GPU"),
        };
        return Err(Problem::of_file(what, "a trace has a line for each job below its header"));
    }
    let span = workload.span_ms();
    if span <= MAX_SPAN_MS {
        return Ok(());
    }
    let last = workload.jobs.last().map_or(0, |job| job.origin);
    Err(Problem::at(
        u64::from(last),
        None,
        format!("this job comes {} days after the first one", span / 86_400_000),
        "ten years are the most; milliseconds belong into a column submit_ms",
    ))
}
