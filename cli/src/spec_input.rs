//! The spec of a submission: a file, a script, a command, or a file and a command, with the options
//! of the command line put over it. All checks of the spec crate are made here, before anything is sent.

use std::io::Read;
use std::path::Path;

use gangline_spec::{
    Code, Entrypoint, FromScript, JobSpec, MAX_SPEC_BYTES, SpecErrors, is_script, json_source,
    name_from, parse_recorded, parse_script, parse_with_overrides, resolve_env,
};
use serde_json::{Value, json};

use crate::args::SpecOptions;
use crate::errors::{CliError, code, exit};
use crate::output::Screen;

/// A text and what to call it in messages.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file's name as it was given.
    pub name: String,
    /// At most [`MAX_SPEC_BYTES`], or a little more: the parser then says that it is too large.
    pub text: String,
}

/// Read the spec file `path`; `-` is stdin.
///
/// # Errors
/// It cannot be read, or is no text.
pub fn read_source(path: &Path) -> Result<Source, CliError> {
    read_text(path, "the spec ", "give a spec file, - for stdin, or a command after --")
}

/// Read another system's file that a spec is made of; `-` is stdin.
///
/// # Errors
/// It cannot be read, or is no text.
pub fn read_foreign(path: &Path) -> Result<Source, CliError> {
    read_text(path, "", "give a file, or - for stdin")
}

fn read_text(path: &Path, what: &str, hint: &str) -> Result<Source, CliError> {
    let is_stdin = path.as_os_str() == "-";
    let name = if is_stdin { "stdin".to_owned() } else { path.display().to_string() };
    let cannot = |error: &std::io::Error| {
        CliError::io(format!("cannot read {what}{name}"), error).hint(hint)
    };
    let most = u64::try_from(MAX_SPEC_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    let read = if is_stdin {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.map_err(|error| cannot(&error))?;
    let text = String::from_utf8(bytes).map_err(|_| {
        CliError::new(exit::INVALID, Code::SYNTAX, format!("cannot read {what}{name}"))
            .why("it is not UTF-8 text")
    })?;
    Ok(Source { name, text })
}

/// What to run.
#[derive(Debug)]
pub enum Input<'a> {
    /// `submit SPEC`, perhaps with a command in place of its entrypoint.
    File {
        /// The spec file.
        path: &'a Path,
        /// Empty to keep the entrypoint of the file.
        command: &'a [String],
    },
    /// `submit -- CMD`: a spec with defaults.
    Command(&'a [String]),
    /// `run -- CMD`: the same with the launcher `command`.
    OneOff(&'a [String]),
    /// `clone JOB`: the spec of a job that was submitted.
    Job {
        /// Id of the job, for messages.
        id: &'a str,
        /// Its spec, as the coordinator has it.
        spec: &'a Value,
    },
}

/// A spec to send, and what to say about how it was read.
#[derive(Debug)]
pub struct Prepared {
    /// The spec.
    pub spec: JobSpec,
    /// What a person should know.
    warnings: Vec<String>,
    /// What of a script was left out because it does not matter to the job.
    notes: Vec<String>,
}

impl Prepared {
    /// The spec, after saying what there is to say.
    pub fn say(self, screen: &Screen) -> JobSpec {
        for warning in &self.warnings {
            screen.warn(warning);
        }
        for note in &self.notes {
            screen.hint(note);
        }
        self.spec
    }
}

/// Check the spec or script `source` alone: without options, and without a shell's environment.
///
/// # Errors
/// Exit code 5 with every problem.
pub fn check(source: &Source) -> Result<Prepared, CliError> {
    let problems = |errors| CliError::spec(&errors, &source.name, &source.text);
    if is_script(&source.name, &source.text) {
        let FromScript { spec, warnings, notes, .. } =
            parse_script(&source.text, &[]).map_err(problems)?;
        return Ok(Prepared { spec, warnings, notes });
    }
    let spec = parse_with_overrides(&source.text, &[]).map_err(problems)?;
    Ok(Prepared { spec, warnings: Vec::new(), notes: Vec::new() })
}

/// Make the spec; `shell` looks up the environment of this process.
///
/// # Errors
/// Exit code 5 with every problem of the spec; 1 when the file cannot be read.
pub fn prepare(
    input: &Input<'_>,
    options: &SpecOptions,
    shell: impl Fn(&str) -> Option<String>,
) -> Result<Prepared, CliError> {
    let from_command = |name: &str| Source { name: name.to_owned(), text: "{}".to_owned() };
    let (source, command) = match input {
        Input::File { path, command } => (read_source(path)?, *command),
        Input::Command(command) => (from_command("the command line"), *command),
        Input::OneOff(command) => (from_command("the command line"), *command),
        Input::Job { id, spec } => (recorded(id, spec, options), &[][..]),
    };
    let mut overrides = Vec::new();
    if matches!(input, Input::OneOff(_)) {
        overrides.push(("launcher.type".to_owned(), "command".to_owned()));
    }
    overrides.extend(own_overrides(options));
    let problems = |errors| CliError::spec(&errors, &source.name, &source.text);
    let mut script = None;
    let spec = match input {
        Input::Job { .. } => parse_recorded(&source.text, &overrides),
        Input::File { .. } if is_script(&source.name, &source.text) => {
            if !command.is_empty() {
                let what = format!("{} is a script, which is what runs", source.name);
                return Err(CliError::new(exit::USAGE, code::USAGE, what)
                    .hint("give it values with --env NAME=VALUE, or leave the script out"));
            }
            let read = parse_script(&source.text, &overrides).map_err(problems)?;
            Ok(script.insert(read).spec.clone())
        }
        _ => parse(&source, overrides, command),
    };
    let mut spec = spec.map_err(problems)?;
    for entry in &options.env {
        let (name, value) = match entry.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (entry.as_str(), None),
        };
        spec.env.insert(name.to_owned(), value);
    }
    if spec.name.is_none() {
        spec.name = Some(default_name(input));
    }
    let checked = spec.validate().and_then(|()| resolve_env(&mut spec, shell));
    checked.map_err(|mut errors| {
        match &script {
            Some(script) => script.locate(&mut errors),
            None => errors.locate(&source.text),
        }
        problems(errors)
    })?;
    let (warnings, notes) = script.map(|s| (s.warnings, s.notes)).unwrap_or_default();
    Ok(Prepared { spec, warnings, notes })
}

/// Puts the jobs of `--after` over those of the spec.
///
/// # Errors
/// Exit code 5 when one of them cannot be a job's name or id, or there are too many.
pub fn with_after(spec: &mut JobSpec, jobs: Vec<String>) -> Result<(), CliError> {
    if jobs.is_empty() {
        return Ok(());
    }
    spec.queue.after = jobs;
    spec.validate().map_err(|errors| CliError::spec(&errors, "the command line", ""))
}

/// The spec of a job as a text. What its template gave stays as it was, so that the new job runs
/// the same; but an override may reach it, and then it is made anew.
fn recorded(id: &str, spec: &Value, options: &SpecOptions) -> Source {
    let mut spec = spec.clone();
    if let Some(fields) = spec.as_object_mut().filter(|_| !options.set.is_empty()) {
        fields.remove("expansion");
        // Other code has another commit.
        let other_code = options.set.iter().any(|(path, _)| path == "code.snapshot");
        if let Some(code) = fields.get_mut("code").and_then(Value::as_object_mut)
            && other_code
        {
            code.remove("commit");
        }
    }
    Source { name: format!("the spec of {id}"), text: json_source(&spec) }
}

/// The options with a field of their own, in the order of rank: `--set` comes last and wins.
fn own_overrides(options: &SpecOptions) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut put = |path: &str, value: Option<String>| {
        out.extend(value.map(|value| (path.to_owned(), value)));
    };
    // A JSON string is a YAML string, so that no text turns into something else.
    put("name", options.name.as_ref().map(|name| json!(name).to_string()));
    put("resources.nnodes", options.nnodes.clone());
    put("resources.gpus_per_node", options.gpus.map(|n| n.to_string()));
    put("queue.priority", options.priority.map(|priority| priority.to_string()));
    put("queue.hold", options.hold.then(|| "true".to_owned()));
    put("queue.not_before", options.not_before.map(|time| json!(time.to_string()).to_string()));
    put("queue.max_wait", options.max_wait.map(|time| format!("{}s", time.as_secs())));
    put("cluster", options.on.as_ref().map(|cluster| json!(cluster).to_string()));
    put("resources.pool", options.pool.as_deref().map(pools));
    out.extend(options.set.iter().cloned());
    out
}

/// One pool, or several with commas between them.
fn pools(text: &str) -> String {
    match text.split(',').collect::<Vec<_>>().as_slice() {
        [pool] => json!(pool).to_string(),
        pools => json!(pools).to_string(),
    }
}

/// Parse `source` with `command` as the entrypoint unless that is empty. A command takes the
/// place of the file's entrypoint, whatever its form.
fn parse(
    source: &Source,
    overrides: Vec<(String, String)>,
    command: &[String],
) -> Result<JobSpec, SpecErrors> {
    if command.is_empty() {
        return parse_with_overrides(&source.text, &overrides);
    }
    let mut with_command = overrides.clone();
    with_command.push(("command".to_owned(), json!(command).to_string()));
    let errors = match parse_with_overrides(&source.text, &with_command) {
        Ok(spec) => return Ok(spec),
        Err(errors) => errors,
    };
    // The file has a `run` or a template: read it as it is, then replace what runs.
    let replaced = ["/command", "/template"];
    let is_replaced = |pointer: &str| replaced.contains(&pointer);
    if !errors.errors.iter().any(|e| e.code == Code::CONFLICT && is_replaced(&e.pointer)) {
        return Err(errors);
    }
    let mut spec = parse_with_overrides(&source.text, &overrides)?;
    spec.entrypoint = Entrypoint::Argv(command.to_vec());
    Ok(spec)
}

/// A name from the file's or the program's, in the form of a name.
fn default_name(input: &Input<'_>) -> String {
    let stem = match input {
        Input::File { path, .. } => path.file_stem().map(|stem| stem.to_string_lossy()),
        Input::Job { .. } => None,
        Input::Command(command) | Input::OneOff(command) => {
            let program = command.first().map(Path::new);
            program.and_then(Path::file_name).map(|name| name.to_string_lossy())
        }
    };
    name_from(&stem.unwrap_or_default())
}

/// The canonical text that is sent: every value written out, no open environment entries.
///
/// # Errors
/// Never for a spec of [`prepare`].
pub fn canonical(spec: &JobSpec) -> Result<serde_json::Value, CliError> {
    serde_json::from_str(&spec.canonical_json()).map_err(|error| {
        CliError::new(exit::ERROR, code::INTERNAL, "cannot write the spec").why(error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("My Job_1.yaml");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn options_win_over_the_file() {
        let (_dir, path) = file("name: a\nresources: {nnodes: 2, pool: x}\nenv: {A: 1}\nrun: hi\n");
        let options = SpecOptions {
            name: Some("b".to_owned()),
            nnodes: Some("3..5".to_owned()),
            gpus: Some(8),
            pool: Some("1e3,b".to_owned()),
            env: words(&["A=1e-6: {x", "B"]),
            set: vec![("resources.gpus_per_node".to_owned(), "4".to_owned())],
            ..SpecOptions::default()
        };
        let input = Input::File { path: &path, command: &[] };
        let spec =
            prepare(&input, &options, |name| (name == "B").then(|| "two".into())).unwrap().spec;
        assert_eq!(spec.name.as_deref(), Some("b"));
        assert_eq!(
            (spec.resources.nnodes_text().as_str(), spec.resources.gpus_per_node),
            ("3..5", 4)
        );
        assert_eq!(spec.resources.pools, ["1e3", "b"]);
        let env: Vec<_> = spec.resolved_env().collect();
        assert_eq!(env, [("A", "1e-6: {x"), ("B", "two")]);
        assert_eq!(spec.entrypoint, Entrypoint::Script("hi".to_owned()));
    }

    #[test]
    fn a_command_takes_the_place_of_any_entrypoint() {
        let command = words(&["echo", "$HOME", "a b"]);
        for text in ["run: hi\n", "command: [x]\n", "resources: {nnodes: 1}\n"] {
            let (_dir, path) = file(text);
            let input = Input::File { path: &path, command: &command };
            let spec = prepare(&input, &SpecOptions::default(), |_| None).unwrap().spec;
            assert_eq!(spec.entrypoint, Entrypoint::Argv(command.clone()), "{text}");
            assert_eq!(spec.name.as_deref(), Some("my-job-1"));
        }
    }

    #[test]
    fn commands_alone() {
        let command = words(&["/usr/bin/Python3.12", "x.py"]);
        let spec =
            prepare(&Input::OneOff(&command), &SpecOptions::default(), |_| None).unwrap().spec;
        assert_eq!(spec.launcher.kind, gangline_spec::LauncherKind::Command);
        assert_eq!(spec.name.as_deref(), Some("python3-12"));
        let spec = prepare(&Input::Command(&words(&["--"])), &SpecOptions::default(), |_| None)
            .unwrap()
            .spec;
        assert_eq!(spec.launcher.kind, gangline_spec::LauncherKind::Ray);
        assert_eq!(spec.name.as_deref(), Some("job"));
    }

    #[test]
    fn a_clone_keeps_its_code_or_gets_other_code() {
        let tree = format!("blake3:{}", "0f".repeat(32));
        let code = json!({"snapshot": tree, "commit": "89abcdef".repeat(5)});
        let spec = json!({"name": "a", "command": ["x"], "code": code});
        let clone = |set: &[(&str, &str)]| {
            let set = set.iter().map(|(path, value)| ((*path).into(), (*value).into())).collect();
            let options = SpecOptions { set, ..SpecOptions::default() };
            let spec = prepare(&Input::Job { id: "j-1", spec: &spec }, &options, |_| None).unwrap();
            canonical(&spec.spec).unwrap()["code"].clone()
        };
        assert_eq!(clone(&[("name", "b")]), code);
        let other = clone(&[("code.snapshot", ".")]);
        assert_eq!(other, json!({"snapshot": ".", "git": "auto", "max_size": "200MiB"}));
    }

    #[test]
    fn problems_have_exit_code_5() {
        let (_dir, path) = file("resources: {nnode: 1}\nrun: hi\n");
        let input = Input::File { path: &path, command: &[] };
        let error = prepare(&input, &SpecOptions::default(), |_| None).unwrap_err();
        assert_eq!(error.exit(), exit::INVALID);
        assert!(error.to_text().contains("My Job_1.yaml:1:13"), "{}", error.to_text());
        let options = SpecOptions { env: words(&["UNSET"]), ..SpecOptions::default() };
        let command = words(&["x"]);
        let error = prepare(&Input::Command(&command), &options, |_| None).unwrap_err();
        assert_eq!(error.exit(), exit::INVALID);
        let missing = Input::File { path: Path::new("/no/such/file"), command: &[] };
        let error = prepare(&missing, &SpecOptions::default(), |_| None).unwrap_err();
        assert_eq!(error.exit(), exit::ERROR);
    }
}
