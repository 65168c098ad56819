//! What the conversions need to know about scripts: the interpreter that runs them, and the
//! variables and programs of the other system that they use.

use std::collections::BTreeSet;

/// A variable of another system, and what to use instead.
pub(super) type Replacement = (&'static str, &'static str);

/// The mark that ends a script inside `run`.
const END_OF_SCRIPT: &str = "GANGLINE_SCRIPT";

/// Whether `interpreter` (the words after `#!`) is what runs `run` anyway.
fn is_sh(interpreter: &str) -> bool {
    matches!(interpreter, "" | "/bin/sh" | "/usr/bin/sh" | "/usr/bin/env sh")
}

/// What a person should know about the first line of [`for_sh`], where it adds one.
pub(super) fn note(interpreter: &str) -> Option<&'static str> {
    let note = "`run` is for /bin/sh: its first line hands the script over to its own interpreter.";
    (!is_sh(interpreter)).then_some(note)
}

/// The launcher for `script`: both start it on every node, and the word says what it does there.
pub(super) fn launcher(script: &str) -> &'static str {
    let torchrun = script.lines().any(|line| names_program(line, "torchrun"));
    if torchrun { "{type: torchrun}" } else { "{type: command}" }
}

/// `body` as a script for `/bin/sh`. Where it is for another interpreter (the words after `#!`),
/// the shell hands it over on a descriptor of its own, so that stdin, exit code and signals are
/// those of the script.
pub(super) fn for_sh(interpreter: &str, body: &str) -> String {
    let body = format!("{}\n", body.trim_end());
    if is_sh(interpreter) {
        return body;
    }
    let words: Vec<String> = interpreter.split_whitespace().map(quoted).collect();
    let mut end = END_OF_SCRIPT.to_owned();
    while body.lines().any(|line| line == end) {
        end.push('_');
    }
    format!("exec {} /dev/fd/3 3<<'{end}'\n{body}{end}\n", words.join(" "))
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_.,=+-".contains(c);
    if word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The names in `script` that begin with `prefix`, each once, in the order of the script.
pub(super) fn variables<'a>(script: &'a str, prefix: &str) -> Vec<&'a str> {
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for name in script.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        if name.len() > prefix.len() && name.starts_with(prefix) && seen.insert(name) {
            found.push(name);
        }
    }
    found
}

/// One line for each variable: what to use instead of it.
pub(super) fn replaced(found: &[&str], table: &[Replacement]) -> Vec<String> {
    let instead = |name: &str| table.iter().find(|(known, _)| *known == name).map(|(_, to)| *to);
    let line = |name: &&str| format!("{name}: {}", instead(name).unwrap_or("no counterpart"));
    found.iter().map(line).collect()
}

/// Whether `line` is code that names the program `name`, perhaps with its path.
pub(super) fn names_program(line: &str, name: &str) -> bool {
    if line.trim_start().starts_with('#') {
        return false;
    }
    let separates = |c: char| !c.is_ascii_alphanumeric() && !"_./-".contains(c);
    line.split(separates).any(|word| word.rsplit('/').next() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sh_runs_as_it_is() {
        assert_eq!(for_sh("/bin/sh", "a\n\n"), "a\n");
        assert_eq!(
            for_sh("/bin/bash -l", "a\nGANGLINE_SCRIPT"),
            "exec /bin/bash -l /dev/fd/3 3<<'GANGLINE_SCRIPT_'\na\nGANGLINE_SCRIPT\nGANGLINE_SCRIPT_\n"
        );
        assert!(for_sh("/a'b $x", "a").starts_with("exec '/a'\\''b' '$x' /dev/fd/3"));
    }

    #[test]
    fn another_interpreter_keeps_stdin_and_exit_code() {
        let body = "x=(1 2 3)\nread -r line\n[[ $line == hi ]] && exit \"${x[2]}\"\n";
        // Longer than a pipe holds, which a shell may use for the script.
        for padding in [0, 90_000] {
            let script = for_sh("/usr/bin/env bash", &format!("#{}\n{body}", "#".repeat(padding)));
            let mut child = std::process::Command::new("/bin/sh")
                .args(["-c", &script])
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            std::io::Write::write_all(&mut stdin, b"hi\n").unwrap();
            drop(stdin);
            assert_eq!(child.wait().unwrap().code(), Some(3));
        }
    }

    #[test]
    fn programs_and_variables() {
        assert!(names_program("  x=1 srun -n 2 a", "srun"));
        assert!(names_program("/usr/bin/srun a", "srun"));
        assert!(names_program("a=$(srun hostname)", "srun"));
        for other in ["# srun a", "my-srun a", "srun.sh", "SRUN"] {
            assert!(!names_program(other, "srun"), "{other}");
        }
        let found = variables("$SLURM_A ${SLURM_B} SLURM_A MYSLURM_C SLURM_", "SLURM_");
        assert_eq!(found, ["SLURM_A", "SLURM_B"]);
    }
}
