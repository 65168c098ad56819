//! A Slurm batch script as a spec.

use super::draft::{Draft, For, bad_value, problem};
use super::slurm_options::{Given, Script, read};
use super::slurm_values::{self as values, Gpus, Limit};
use super::slurm_words::{VARIABLES, WITHOUT};
use super::{Imported, hostlist, script};
use crate::checks::{LABEL_FORM, is_label};
use crate::error::{Code, SpecErrors, shown};
use crate::tree::Pos;
use crate::units;
use crate::yaml::scalar_text;

const TIME_FORM: &str = "MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS, at most 365 days";
const GPU_FORM: &str = "a number, or MODEL:NUMBER of one model";
const SIZE_FORM: &str = "a whole number and perhaps K, M, G or T";

/// Make a spec of the batch script `source`: its `#SBATCH` lines before the first command become
/// fields, the rest becomes `run`.
///
/// # Errors
/// What the options ask for cannot be meant, or the script runs nothing; with the position in
/// `source`.
pub fn from_slurm(source: &str) -> Result<Imported, SpecErrors> {
    let mut script = taken_apart(source)?;
    let mut draft = draft(&mut script, For::File)?;
    for line in script.own.iter().map(|line| line.at.line) {
        let text = format!("line {line}: #GANGLINE is left out; `gangline submit SCRIPT` reads it");
        draft.warn(text);
    }
    draft.finish(&script::for_sh(&script.interpreter, &script.body))
}

/// The parts of the script `source`.
pub(super) fn taken_apart(source: &str) -> Result<Script, SpecErrors> {
    if source.len() > crate::MAX_SPEC_BYTES {
        let message =
            format!("the script has {} bytes; at most {}", source.len(), crate::MAX_SPEC_BYTES);
        return Err(problem(Code::TOO_LARGE, None, message, None));
    }
    read(source)
}

/// The spec of a script without its `run`; its options are taken out.
pub(super) fn draft(script: &mut Script, made_for: For) -> Result<Draft, SpecErrors> {
    let options = std::mem::take(&mut script.options);
    let mut slurm = Slurm { options, draft: Draft::new("a Slurm script", made_for) };
    let name = slurm.take("job-name");
    if let Some(name) = &name {
        slurm.draft.name(name.value()?, Some(name.at));
    }
    let gang = slurm.gang()?;
    slurm.cpus_and_memory(&gang)?;
    slurm.places()?;
    slurm.time_and_directory()?;
    slurm.launcher(script, &gang);
    slurm.rest();
    remarks(&mut slurm.draft, script);
    Ok(slurm.draft)
}

/// The size of the gang, as far as other options need it.
struct Gang {
    nodes: u64,
    gpus_per_node: u64,
    tasks_per_node: u64,
}

struct Slurm {
    /// Options that are not converted yet.
    options: Vec<Given>,
    draft: Draft,
}

impl Slurm {
    /// Takes the option `name` away. As in Slurm the last one counts.
    fn take(&mut self, name: &str) -> Option<Given> {
        let (found, rest) =
            std::mem::take(&mut self.options).into_iter().partition(|given| given.name == name);
        self.options = rest;
        let mut found: Vec<Given> = found;
        let last = found.pop();
        for given in found {
            self.draft.ignored(&given.written, "given again later, and the last one counts");
        }
        last
    }

    fn number(&mut self, name: &str) -> Result<Option<(u64, Given)>, SpecErrors> {
        let Some(given) = self.take(name) else {
            return Ok(None);
        };
        let number = values::whole(given.value()?).filter(|number| *number > 0);
        let number = number.ok_or_else(|| given.wrong("a whole number, at least 1"))?;
        Ok(Some((number, given)))
    }

    /// `nnodes` and `gpus_per_node`.
    fn gang(&mut self) -> Result<Gang, SpecErrors> {
        let tasks = self.number("ntasks")?;
        let tasks_per_node = self.number("ntasks-per-node")?;
        let (mut nodes, mut nodes_at, mut range) = (1, None, None);
        if let Some(given) = self.take("nodes") {
            let (least, most) = values::nodes(given.value()?)
                .ok_or_else(|| given.wrong("a number of nodes, or LEAST-MOST"))?;
            if least < most {
                if self.options.iter().any(|other| other.name == "gpus") {
                    let message = "--gpus do not divide among a range of nodes".to_owned();
                    let hint = "every node of a gang has as many GPUs: use --gpus-per-node";
                    return Err(bad_value(Some(given.at), message, hint));
                }
                range = Some(format!("{least}..{most}"));
            }
            (nodes, nodes_at) = (least, Some(given.at));
        } else if let (Some((tasks, given)), Some((per_node, _))) = (&tasks, &tasks_per_node) {
            (nodes, nodes_at) = (tasks.div_ceil(*per_node), Some(given.at));
            self.draft.resource_note(&format!("{} and --ntasks-per-node.", given.written));
        }
        self.draft.resource("nnodes", &range.unwrap_or_else(|| nodes.to_string()), nodes_at);
        for (_, given) in tasks.iter().chain(&tasks_per_node) {
            let note = format!(
                "{}: `run` is started once on each node, and starts its own processes; `torchrun \
                 --nproc-per-node=$GANGLINE_GPUS_PER_NODE` starts one for each GPU.",
                given.written
            );
            self.draft.run_note(&note);
        }
        let by_tasks = tasks.as_ref().map(|(tasks, _)| tasks.div_ceil(nodes.max(1)));
        let tasks_per_node = tasks_per_node.map(|(number, _)| number).or(by_tasks).unwrap_or(1);
        let gpus_per_node = self.gpus(nodes, tasks_per_node)?;
        Ok(Gang { nodes, gpus_per_node, tasks_per_node })
    }

    /// `gpus_per_node`, from each option that says it; they must say the same.
    fn gpus(&mut self, nodes: u64, tasks_per_node: u64) -> Result<u64, SpecErrors> {
        let mut said: Vec<(Gpus, Given)> = Vec::new();
        for (name, form) in [("gpus-per-node", GPU_FORM), ("gpus-per-task", GPU_FORM)] {
            if let Some(given) = self.take(name) {
                let mut gpus = values::gpus(given.value()?).ok_or_else(|| given.wrong(form))?;
                let times = if name == "gpus-per-task" { tasks_per_node } else { 1 };
                let product = gpus.count.checked_mul(times);
                gpus.count = product.ok_or_else(|| given.wrong("a smaller number"))?;
                said.push((gpus, given));
            }
        }
        if let Some(given) = self.take("gres") {
            let hint = "gpu:NUMBER or gpu:MODEL:NUMBER, once";
            let (gpus, others) = values::gres(given.value()?).ok_or_else(|| given.wrong(hint))?;
            if !others.is_empty() {
                let advice = format!("only GPUs are counted, and not {}", others.join(","));
                self.missed(&given, &advice);
            }
            said.extend(gpus.map(|gpus| (gpus, given)));
        }
        if let Some(given) = self.take("gpus") {
            let mut gpus = values::gpus(given.value()?).ok_or_else(|| given.wrong(GPU_FORM))?;
            if nodes == 0 || gpus.count % nodes != 0 {
                let message = format!("{} GPUs do not divide among {nodes} node(s)", gpus.count);
                let hint = "every node of a gang has as many GPUs: use --gpus-per-node";
                return Err(bad_value(Some(given.at), message, hint));
            }
            gpus.count /= nodes;
            self.draft.resource_note(&format!("{}, divided by the nodes.", given.written));
            // The number of nodes follows from it as well, so that nobody changes one alone.
            self.draft.place("/resources/nnodes", Some(given.at));
            said.push((gpus, given));
        }
        let Some(((first, given), others)) = said.split_first() else {
            self.draft.resource("gpus_per_node", "0", None);
            return Ok(0);
        };
        if let Some((_, other)) = others.iter().find(|(gpus, _)| gpus.count != first.count) {
            let message =
                format!("`{}` and `{}` contradict each other", given.written, other.written);
            return Err(problem(Code::CONFLICT, Some(other.at), message, Some("keep one")));
        }
        self.draft.resource("gpus_per_node", &first.count.to_string(), Some(given.at));
        let models: Vec<&str> = said.iter().filter_map(|(gpus, _)| gpus.model.as_deref()).collect();
        if let Some(model) = models.first() {
            self.draft.resource("gpu", &format!("[{}]", scalar_text(model)), Some(given.at));
        }
        Ok(first.count)
    }

    /// `cpus_per_node` and `memory_per_node`.
    fn cpus_and_memory(&mut self, gang: &Gang) -> Result<(), SpecErrors> {
        let mut cpus_per_node = None;
        if let Some((cpus, given)) = self.number("cpus-per-task")? {
            let product = cpus.checked_mul(gang.tasks_per_node);
            let cpus = product.ok_or_else(|| given.wrong("a smaller number"))?;
            if gang.tasks_per_node > 1 {
                let note = format!("{}, for {} tasks.", given.written, gang.tasks_per_node);
                self.draft.resource_note(&note);
            }
            self.draft.resource("cpus_per_node", &cpus.to_string(), Some(given.at));
            cpus_per_node = Some(cpus);
        }
        let parts = [
            ("mem", Some(1)),
            ("mem-per-gpu", Some(gang.gpus_per_node)),
            ("mem-per-cpu", cpus_per_node),
        ];
        let mut given_by: Option<Given> = None;
        for (name, times) in parts {
            let Some(given) = self.take(name) else {
                continue;
            };
            if let Some(other) = &given_by {
                let message =
                    format!("`{}` and `{}` contradict each other", other.written, given.written);
                return Err(problem(Code::CONFLICT, Some(given.at), message, Some("keep one")));
            }
            let size = values::size(given.value()?).ok_or_else(|| given.wrong(SIZE_FORM))?;
            match times.filter(|times| *times > 0) {
                Some(_) if size == 0 => {
                    let advice = "all memory of a node cannot be asked for; the default is the \
                                  share of the GPUs";
                    self.missed(&given, advice);
                }
                Some(times) => {
                    let bytes = size.checked_mul(times);
                    let bytes = bytes.ok_or_else(|| given.wrong("a smaller size"))?;
                    if name != "mem" {
                        self.draft.resource_note(&format!("{}, times {times}.", given.written));
                    }
                    let size = units::write_size(bytes);
                    self.draft.resource("memory_per_node", &size, Some(given.at));
                }
                None => {
                    self.missed(&given, "write the sum into `resources.memory_per_node`");
                }
            }
            given_by = Some(given);
        }
        Ok(())
    }

    /// `pool`, `exclude_nodes` and `exclusive`.
    fn places(&mut self) -> Result<(), SpecErrors> {
        if let Some(given) = self.take("partition") {
            let pools: Vec<&str> = given.value()?.split(',').collect();
            if !pools.iter().all(|pool| is_label(pool)) {
                return Err(given.wrong(LABEL_FORM));
            }
            let texts: Vec<String> = pools.iter().map(|pool| scalar_text(pool)).collect();
            let text = match texts.as_slice() {
                [pool] => pool.clone(),
                pools => format!("[{}]", pools.join(", ")),
            };
            self.draft.resource("pool", &text, Some(given.at));
        }
        // `--exclusive=user` shares with other jobs of the user, which nothing here does.
        if self.options.iter().any(|given| given.name == "exclusive" && given.value.is_none())
            && let Some(given) = self.take("exclusive")
        {
            self.draft.resource("exclusive", "true", Some(given.at));
        }
        if let Some(given) = self.take("exclude") {
            let names = hostlist::expand(given.value()?)
                .ok_or_else(|| given.wrong("names such as gpu-[01-03],gpu-07, at most 1024"))?;
            let names: Vec<String> = names.iter().map(|name| scalar_text(name)).collect();
            self.draft.resource(
                "exclude_nodes",
                &format!("[{}]", names.join(", ")),
                Some(given.at),
            );
        }
        Ok(())
    }

    /// `timeout` and `workdir`.
    fn time_and_directory(&mut self) -> Result<(), SpecErrors> {
        if let Some(given) = self.take("time") {
            match values::time(given.value()?).ok_or_else(|| given.wrong(TIME_FORM))? {
                Limit::None => self.draft.ignored(&given.written, "no limit is the default"),
                Limit::Time(time) => {
                    let written = units::write_duration(time);
                    units::duration(&written).ok_or_else(|| given.wrong(TIME_FORM))?;
                    self.draft.top("timeout", &written, Some(given.at));
                }
            }
        }
        if let Some(given) = self.take("chdir") {
            let path = given.value()?;
            if path.starts_with('/') {
                self.draft.top("workdir", &scalar_text(path), Some(given.at));
            } else {
                self.missed(&given, "write `workdir: PATH` with a path that all nodes have");
            }
        }
        Ok(())
    }

    /// Who starts the script, and what in it is Slurm's own.
    fn launcher(&mut self, script: &Script, gang: &Gang) {
        let uses = |name: &str| script.body.lines().any(|line| script::names_program(line, name));
        self.draft.top("launcher", script::launcher(&script.body), None);
        let draft = &mut self.draft;
        if gang.nodes > 1 {
            draft.run_note(
                "`run` starts on every node at once, where Slurm starts it on the first one only. \
                 For the first alone: if [ \"$GANGLINE_NODE_RANK\" = 0 ]; then ...; fi",
            );
        }
        if uses("ray") {
            draft.run_note(
                "Take `ray start` out and write `launcher: {type: ray}`: the Ray cluster is then \
                 there, and `run` is a Ray job on it.",
            );
        }
        let programs = [
            ("srun", "leave `srun` and its options out: every node runs the script already"),
            ("mpirun", "it has no host list here; torchrun starts the processes of a node"),
            ("scontrol", "$MASTER_ADDR is the first node, $GANGLINE_NODE_IPS are all of them"),
        ];
        let mut findings = Vec::new();
        for (line, number) in script.body.lines().zip(&script.lines) {
            for (program, advice) in programs {
                if script::names_program(line, program) {
                    findings.push(format!("line {number}, {program}: {advice}"));
                }
            }
        }
        let count = findings.len();
        let warning =
            format!("{count} line(s) of the script use programs of Slurm and are kept as they are");
        draft.findings(&warning, "Lines of the Slurm script to change:", &findings);
        let found = script::variables(&script.body, "SLURM_");
        let replaced = script::replaced(&found, &VARIABLES);
        let title = "Variables of Slurm in the script, and what to use instead:";
        draft.findings("the script uses variables of Slurm", title, &replaced);
        if let Some(note) = script::note(&script.interpreter) {
            draft.file_note(note);
        }
    }

    /// An option that would make it another job, and has no counterpart.
    fn missed(&mut self, given: &Given, advice: &str) {
        let what = format!("`{}` cannot be followed", shown(&given.written));
        let hint = format!("{advice}; take it out to go on");
        if !self.draft.refuse(Code::NOT_YET, given.at, what, &hint) {
            let written = format!("{} (line {})", given.written, given.at.line);
            self.draft.missed(&shown(&given.spelled()), &written, advice);
        }
    }

    /// Every option that is left.
    fn rest(&mut self) {
        for given in std::mem::take(&mut self.options) {
            match WITHOUT.iter().find(|(name, _, _)| *name == given.name) {
                Some((_, advice, false)) => {
                    let written = format!("{} (line {})", given.written, given.at.line);
                    self.draft.ignored(&written, advice);
                }
                Some((_, advice, true)) => self.missed(&given, advice),
                None => self.missed(&given, "not known here"),
            }
        }
    }
}

/// What else there is to say about a script, and where its commands begin.
pub(super) fn remarks(draft: &mut Draft, script: &Script) {
    if script.windows {
        draft.warn("the script has the line ends of Windows; those of Unix are written");
    }
    for line in &script.late {
        let text = format!("line {line}: #SBATCH after the first command, which Slurm ignores too");
        draft.warn(text);
    }
    let first = script.lines.first().map(|line| Pos { line: *line, column: 1 });
    draft.place("/run", first);
    draft.place("", first);
}
