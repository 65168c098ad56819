//! What comes out: one answer for one failure.

use serde::{Deserialize, Serialize};

use crate::taxonomy::{Action, Category};

/// The answer. It is kept with the attempt and never changed; other rules make another answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Kind of the first cause.
    pub category: Category,
    /// Which of its kind.
    pub sub_code: String,
    /// Whether the same job may be started again without a change by its user.
    pub retry: bool,
    /// What to do.
    pub action: Action,
    /// How sure it is, 0 to 1.
    pub confidence: f64,
    /// Whether it stands on facts of the kernel, the driver or the agent. A node is never taken out
    /// of use for an answer that does not.
    pub certain: bool,
    /// Rank that failed first, where it can be told.
    pub rank: Option<u32>,
    /// Its node.
    pub node: Option<String>,
    /// Its GPU: an index or a PCI address.
    pub gpu: Option<String>,
    /// The lines that show it, the first cause first.
    pub evidence: Vec<Evidence>,
    /// What to do, for a person.
    pub advice: String,
    /// The rule that gave the answer; `None` when none did.
    pub rule: Option<String>,
    /// Version of the rules.
    pub rules_version: u32,
    /// What else was found, and most likely followed from it.
    pub consequences: Vec<Consequence>,
    /// What rules on probation would have said.
    pub shadow: Vec<Consequence>,
}

/// A quoted line. Its text is free of control sequences.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Evidence {
    /// The source, or `facts` for what needs no log.
    pub file: String,
    /// Line in it, from 1; `None` where lines were not counted.
    pub line: Option<u64>,
    /// The line, cut to a bounded length.
    pub text: String,
}

/// A finding that is not the first cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Consequence {
    /// Its kind.
    pub category: Category,
    /// Which of its kind.
    pub sub_code: String,
    /// The rule that found it.
    pub rule: String,
    /// How many lines showed it.
    pub times: u64,
    /// The first of them.
    pub evidence: Evidence,
}
