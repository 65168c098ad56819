//! Specs made from other systems' files: Slurm batch scripts and SkyPilot tasks; and scripts that
//! are submitted as they are, see `batch`.
//!
//! Each conversion is a pure function from text to text. Its result is a spec that
//! [`crate::parse`] accepts as it is, with comments that say what became of everything else: a
//! field that nobody acts on yet stands there as a comment, and what has no counterpart is listed
//! at the end. What cannot be meant, such as GPUs that do not divide among the nodes, is an error
//! with its position in the foreign file.

pub(crate) mod batch;
mod draft;
mod hostlist;
mod script;
mod sky;
mod slurm;
mod slurm_options;
mod slurm_values;
mod slurm_words;

pub use sky::from_sky;
pub use slurm::from_slurm;
pub use slurm_options::is_script;

/// A spec made from another system's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The commented spec; [`crate::parse`] accepts it. Ends with a newline.
    pub text: String,
    /// What a person should know before submitting it, one line each.
    pub warnings: Vec<String>,
}

/// Longest name of a job, in characters.
const MAX_NAME_CHARS: usize = 63;

/// A name of a job made from any text: what cannot stand in a name becomes `-`, and a text without
/// anything that can becomes `job`.
#[must_use]
pub fn name_from(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let lower = text.to_ascii_lowercase();
    let name: String = lower.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    let name: String = name.trim_matches('-').chars().take(MAX_NAME_CHARS).collect();
    if name.is_empty() { "job".to_owned() } else { name }
}
