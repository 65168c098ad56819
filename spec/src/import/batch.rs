//! A shell script as a submission: its `#GANGLINE` lines are fields of the spec, its `#SBATCH` lines
//! are what [`super::from_slurm`] makes of them, and the rest is `run`.

use super::draft::{Draft, For, problem};
use super::slurm_options::OwnLine;
use super::{script, slurm};
use crate::error::{Code, Problems, SpecError, SpecErrors, quoted};
use crate::overrides::{self, MAX_OVERRIDES};
use crate::tree::{self, Node, Pos, Value};

const FORM: &str = "write it as `#GANGLINE resources.nnodes: 2`";

/// A script that has been read, not yet checked.
pub(crate) struct Batch {
    /// The spec; each value has its place in the script.
    pub(crate) tree: Node,
    pub(crate) problems: Problems,
    /// What a person should know.
    pub(crate) warnings: Vec<String>,
    /// What was left out because it does not matter to the job.
    pub(crate) notes: Vec<String>,
}

/// Read a script.
///
/// # Errors
/// Its options cannot be meant, or it runs nothing; with the position.
pub(crate) fn read(source: &str) -> Result<Batch, SpecErrors> {
    let mut script = slurm::taken_apart(source)?;
    let draft = if script.options.is_empty() {
        let mut draft = Draft::new("a script", For::Submission);
        slurm::remarks(&mut draft, &script);
        draft
    } else {
        slurm::draft(&mut script, For::Submission)?
    };
    let mut batch = draft.into_tree(&script::for_sh(&script.interpreter, &script.body))?;
    for line in &script.own_late {
        let message = "`#GANGLINE` stands behind the first command";
        let hint = Some("put it at the head of the script");
        let at = Some(Pos { line: *line, column: 1 });
        batch.problems.extend(problem(Code::CONFLICT, at, message, hint));
    }
    if let Some(line) = script.own.get(MAX_OVERRIDES) {
        let message = format!("more than {MAX_OVERRIDES} `#GANGLINE` lines");
        return Err(problem(Code::TOO_LARGE, Some(line.at), message, None));
    }
    for line in &script.own {
        if let Err(errors) = own(line, &mut batch.tree) {
            batch.problems.extend(errors);
        }
    }
    Ok(batch)
}

/// Puts the fields of one line into the tree.
fn own(line: &OwnLine, tree: &mut Node) -> Result<(), SpecErrors> {
    let moved = |pos: Pos| {
        let column = line.at.column.saturating_add(pos.column).saturating_sub(1);
        Pos { line: line.at.line, column }
    };
    let placed = |error: SpecError| SpecError {
        line: Some(line.at.line),
        column: Some(
            error
                .column
                .map_or(line.at.column, |column| moved(Pos { line: line.at.line, column }).column),
        ),
        ..error
    };
    let (mut fields, duplicates) = tree::parse(&line.text).map_err(placed)?;
    if let Some(duplicate) = duplicates.into_iter().next() {
        return Err(placed(duplicate).into());
    }
    fields.each_position(&mut |pos| *pos = pos.map(moved));
    let Value::Map(entries) = fields.value else {
        let message = format!("{} is not `key: value`", quoted(&line.text));
        return Err(problem(Code::SYNTAX, Some(line.at), message, Some(FORM)));
    };
    for entry in entries {
        let at = entry.key_pos.unwrap_or(line.at);
        let path = overrides::segments(&entry.key);
        if path.iter().any(|segment| segment.is_empty()) {
            let message = format!("{} is not a path", quoted(&entry.key));
            return Err(problem(Code::BAD_VALUE, Some(at), message, Some(FORM)));
        }
        if path == ["run"] {
            let message = "the script itself is `run`";
            let hint = Some("take the line out");
            return Err(problem(Code::CONFLICT, Some(at), message, hint));
        }
        if let Some(before) = said(tree, &path) {
            let message = format!("{} is said in line {} already", quoted(&entry.key), before.line);
            return Err(problem(Code::CONFLICT, Some(at), message, Some("keep one of them")));
        }
        overrides::put(tree, &path, Some(at), entry.node).map_err(placed)?;
    }
    Ok(())
}

/// Where the script says the value at `path`, or a part of it.
fn said(tree: &Node, path: &[&str]) -> Option<Pos> {
    let mut node = tree;
    let mut key_pos = None;
    for key in path {
        let entry = node.entry(key)?;
        (node, key_pos) = (&entry.node, entry.key_pos);
    }
    let mut first = key_pos;
    node.clone().each_position(&mut |pos| first = first.or(*pos));
    first
}
