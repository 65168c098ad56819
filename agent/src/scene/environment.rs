//! The variables of a member, without the values that nobody is shown.

use gangline_common::redact::{HIDDEN, is_secret_name};

/// One variable a line, sorted by name.
pub fn shown(variables: &[(String, String)], secret_names: &[String]) -> String {
    let line = |(name, value): &(String, String)| {
        let hidden = secret_names.contains(name) || is_secret_name(name);
        let value = if hidden { HIDDEN.to_owned() } else { value.replace('\n', "\\n") };
        format!("{name}={value}\n")
    };
    let mut lines: Vec<String> = variables.iter().map(line).collect();
    lines.sort();
    lines.dedup();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_have_names_only() {
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let variables = ["PATH=/bin", "MINE=x", "HF_TOKEN=hf_1", "PATH=/bin"];
        let variables = variables.map(|line| line.split_once('=').unwrap());
        let variables = variables.map(|(name, value)| variable(name, value));
        let text = shown(&variables, &["MINE".to_owned()]);
        assert_eq!(text, "HF_TOKEN=[secret]\nMINE=[secret]\nPATH=/bin\n");
    }
}
