//! The Python interpreter and the Ray in it, found by running it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::{DoctorLine, Level};

/// Importing Ray takes seconds, longer from a cold network file system.
const PATIENCE: Duration = Duration::from_secs(20);

/// `getconf` reads no files worth the name.
const GETCONF_PATIENCE: Duration = Duration::from_secs(5);

/// Most output that is read from a program, in bytes.
const MAX_OUTPUT: u64 = 64 * 1024;

/// Prints one line of JSON, the last of its output: imports may print before.
const SCRIPT: &str = r#"
import json, os, sys
answer = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    answer["libc"] = os.confstr("CS_GNU_LIBC_VERSION")
except (AttributeError, OSError, ValueError):
    pass
try:
    import ray
    answer["ray"] = ray.__version__
except BaseException as error:
    answer["problem"] = "%s: %s" % (type(error).__name__, error)
print("\n" + json.dumps(answer))
"#;

/// What the script says.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Answer {
    python: String,
    #[serde(default)]
    libc: Option<String>,
    #[serde(default)]
    ray: Option<String>,
    #[serde(default)]
    problem: Option<String>,
}

/// The interpreter, and what became of asking it.
pub(super) enum Interpreter {
    /// None is configured.
    None,
    /// It was run.
    Asked(PathBuf, Result<Answer, String>),
}

/// Runs the interpreter.
pub(super) async fn probe(python: Option<&Path>) -> Interpreter {
    let Some(python) = python else {
        return Interpreter::None;
    };
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]);
    let answer = output_of(command, PATIENCE).await.and_then(|output| parse(&output));
    Interpreter::Asked(python.to_owned(), answer)
}

fn parse(output: &str) -> Result<Answer, String> {
    let last = output.lines().rfind(|line| !line.trim().is_empty());
    let last = last.ok_or("it printed nothing")?;
    serde_json::from_str(last).map_err(|error| format!("unexpected output: {error}"))
}

/// The standard output of a program that ends well within `patience`; it is killed otherwise.
async fn output_of(mut command: Command, patience: Duration) -> Result<String, String> {
    // Away from the current directory: Python would import modules from it.
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let run = async {
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let mut output = Vec::new();
        stdout.take(MAX_OUTPUT).read_to_end(&mut output).await?;
        Ok::<_, io::Error>((child.wait().await?, output))
    };
    match tokio::time::timeout(patience, run).await {
        Ok(Ok((status, output))) if status.success() => {
            Ok(String::from_utf8_lossy(&output).into_owned())
        }
        Ok(Ok((status, _))) => Err(format!("it ended with {status}")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_elapsed) => Err(format!("no answer within {patience:?}")),
    }
}

impl Interpreter {
    /// The lines about Python and Ray.
    pub(super) fn lines(&self) -> Vec<DoctorLine> {
        let (path, answer) = match self {
            Self::None => {
                let line =
                    DoctorLine::new("Python and Ray", Level::Blind, "no interpreter is configured");
                return vec![
                    line.advise("name the image's interpreter in the agent's configuration"),
                ];
            }
            Self::Asked(path, Ok(answer)) => (path, answer),
            Self::Asked(path, Err(problem)) => {
                let line = DoctorLine::new(
                    "Python and Ray",
                    Level::Error,
                    format!("{}: {problem}", path.display()),
                );
                return vec![line.advise(
                    "install Python and Ray in the image, or correct the path of the interpreter",
                )];
            }
        };
        let python = DoctorLine::new(
            "Python",
            Level::Ok,
            format!("{} at {}", answer.python, path.display()),
        );
        let ray = match &answer.ray {
            Some(version) => DoctorLine::new("Ray", Level::Ok, version),
            None => {
                let problem = answer.problem.as_deref().unwrap_or("it has no version");
                DoctorLine::new("Ray", Level::Error, format!("cannot be imported: {problem}"))
                    .advise(format!("{} -m pip install 'ray[default]'", path.display()))
            }
        };
        vec![python, ray]
    }

    /// The C library of the image: as Python says, else as `getconf` says.
    pub(super) async fn libc(&self) -> Option<String> {
        if let Self::Asked(_, Ok(Answer { libc: Some(libc), .. })) = self {
            return Some(libc.clone());
        }
        let mut command = Command::new("getconf");
        command.arg("GNU_LIBC_VERSION");
        let said = output_of(command, GETCONF_PATIENCE).await.ok()?;
        let said = said.trim();
        (!said.is_empty()).then(|| said.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use tokio::process::Command;

    use super::{Interpreter, PATIENCE, output_of, parse, probe};
    use crate::doctor::Level;

    /// An interpreter that answers as the shell does here. A script file of its own would race with the forks
    /// of other tests, which hold it open for writing.
    async fn asked(script: &str) -> Interpreter {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let answer = output_of(command, PATIENCE).await;
        let answer = answer.and_then(|output| parse(&output));
        Interpreter::Asked("/usr/bin/python3".into(), answer)
    }

    fn levels(interpreter: &Interpreter) -> Vec<Level> {
        interpreter.lines().iter().map(|line| line.level).collect()
    }

    #[tokio::test]
    async fn the_last_line_is_the_answer() {
        let found =
            asked(r#"echo noise; echo '{"python":"3.11.8","libc":"glibc 2.35","ray":"2.40.0"}'"#)
                .await;
        assert_eq!(levels(&found), [Level::Ok, Level::Ok]);
        assert_eq!(found.lines()[1].text, "2.40.0");
        assert_eq!(found.libc().await.as_deref(), Some("glibc 2.35"));
    }

    #[tokio::test]
    async fn what_does_not_answer_is_an_error() {
        let without_ray =
            asked(r#"echo '{"python":"3.11.8","problem":"ModuleNotFoundError: ray"}'"#).await;
        assert_eq!(levels(&without_ray), [Level::Ok, Level::Error]);
        assert_eq!(levels(&asked("exit 3").await), [Level::Error]);
        assert_eq!(levels(&asked("echo hello").await), [Level::Error]);
        let absent = probe(Some(Path::new("/nonexistent/python"))).await;
        assert_eq!(levels(&absent), [Level::Error]);
        assert_eq!(levels(&probe(None).await), [Level::Blind]);
        assert!(parse(" \n").is_err());
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_given_up() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let outcome = output_of(command, Duration::from_millis(20)).await;
        assert!(outcome.is_err_and(|problem| problem.starts_with("no answer")));
    }
}
