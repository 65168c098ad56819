//! Which values of a member are secrets, and taking them out of what is said of it.

use gangline_common::redact::{RedactError, Redactor, is_secret};
use gangline_common::wire::v1::{Assignment, GuestOrder};

/// Names of secret variables, and every value that this agent knows to be one.
pub struct Known {
    pub names: Vec<String>,
    pub values: Vec<String>,
}

impl Known {
    /// Of a job, of guests of its cluster, of variables whose names say so, and the cluster's own
    /// token. `environment` are the variables of the job's processes.
    pub fn of(assignment: &Assignment, environment: &[(String, String)]) -> Known {
        let mut names = assignment.secret_names.clone();
        let mut values = vec![assignment.auth_token.0.clone()];
        let mut add = |names: &[String], variables: &[(String, String)]| {
            let is_secret =
                |name: &String, value: &str| names.contains(name) || is_secret(name, value);
            let secret = variables.iter().filter(|(name, value)| is_secret(name, value));
            values.extend(secret.map(|(_, value)| value.clone()));
        };
        add(&names, environment);
        add(&names, &assignment.env);
        for guest in &assignment.guests {
            if let GuestOrder::Run(job) | GuestOrder::Prepare(job) = &guest.order {
                add(&job.secret_names, &job.env);
                names.extend(job.secret_names.iter().cloned());
            }
        }
        Known { names, values }
    }

    /// # Errors
    /// They are too many and too long to be looked for.
    pub fn redactor(&self) -> Result<Redactor, RedactError> {
        Redactor::new(self.values.iter().map(String::as_str))
    }
}

/// A text of a job without its secrets; when they cannot be looked for, without anything.
pub fn removed(assignment: &Assignment, text: &str) -> String {
    match Known::of(assignment, &[]).redactor() {
        Ok(redactor) => redactor.clean(text),
        Err(error) => format!("(not shown: {error})"),
    }
}

#[cfg(test)]
mod tests {
    use gangline_common::ids::MemberId;

    use super::*;
    use crate::supervisor::fixtures;

    #[test]
    fn what_is_known_to_be_secret_is_not_said() {
        let (plan, _) = fixtures::ray_plan(MemberId::Head);
        let mut assignment = Assignment::clone(&plan.assignment);
        for (name, value) in
            [("MINE", "swordfish"), ("HF_TOKEN", "hf_12345"), ("A_KEY", "none"), ("LR", "0.1")]
        {
            assignment.env.push((name.to_owned(), value.to_owned()));
        }
        assignment.secret_names = vec!["MINE".to_owned()];
        let said = "swordfish, hf_12345, none, 0.1 and sesame";
        let shown = "[secret], [secret], none, 0.1 and [secret]";
        assert_eq!(removed(&assignment, said), shown);
    }
}
