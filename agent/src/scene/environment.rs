//! The variables of a member, without the values that nobody is shown.

use gangline_common::redact::{HIDDEN, is_secret_name};

/// What stands for a value of the spec's `env`, here and wherever the spec is shown to others.
const OF_SPEC: &str = "***";
/// Where the variables of a job begin in what Ray passes on as JSON.
const IN_JSON: &str = "\"env_vars\"";

/// One variable a line, sorted by name. A variable of the spec has its name alone, whoever set it
/// last: Gangline puts its own before some of those values.
pub fn shown(
    variables: &[(String, String)],
    secret_names: &[String],
    spec_names: &[String],
) -> String {
    let line = |(name, value): &(String, String)| {
        let value = if secret_names.contains(name) || is_secret_name(name) {
            HIDDEN.to_owned()
        } else if spec_names.contains(name) {
            OF_SPEC.to_owned()
        } else {
            value.replace('\n', "\\n")
        };
        format!("{name}={value}\n")
    };
    let mut lines: Vec<String> = variables.iter().map(line).collect();
    lines.sort();
    lines.dedup();
    lines.concat()
}

/// A word of a command line. A worker of Ray that starts has the variables of its job in one.
pub fn without_variables(word: &str) -> String {
    match word.split_once(IN_JSON) {
        Some((before, _)) => format!("{before}{IN_JSON}: {OF_SPEC}"),
        None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_of_ray_that_starts_shows_no_variables() {
        let word = r#"--context={"command_prefix": [], "env_vars": {"DBX": "value-of-dbx-77"}}"#;
        let shown = r#"--context={"command_prefix": [], "env_vars": ***"#;
        assert_eq!(without_variables(word), shown);
        assert_eq!(without_variables("train.py"), "train.py");
    }

    #[test]
    fn secrets_have_names_only() {
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let variables = ["PATH=/bin", "MINE=x", "HF_TOKEN=hf_1", "PATH=/bin"];
        let variables = variables.map(|line| line.split_once('=').unwrap());
        let variables = variables.map(|(name, value)| variable(name, value));
        let text = shown(&variables, &["MINE".to_owned()], &[]);
        assert_eq!(text, "HF_TOKEN=[secret]\nMINE=[secret]\nPATH=/bin\n");
    }

    #[test]
    fn what_the_spec_sets_has_names_only() {
        let lines = ["RANK=0", "DBX=value-of-dbx-77", "PYTHONPATH=/code:/mine", "HF_TOKEN=hf_1"];
        let variables = lines.map(|line| line.split_once('=').unwrap());
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let of_spec = ["DBX", "PYTHONPATH", "HF_TOKEN"].map(str::to_owned);
        let text = shown(&variables, &[], &of_spec);
        assert_eq!(text, "DBX=***\nHF_TOKEN=[secret]\nPYTHONPATH=***\nRANK=0\n");
    }
}
