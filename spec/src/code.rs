//! Where the code of a job comes from, and its reward function.

/// The words of `code.git`.
pub(crate) const GIT_WORDS: [&str; 2] = ["auto", "off"];

/// Largest code that is sent when the spec does not say: 200 MiB, in bytes.
pub const DEFAULT_MAX_CODE_BYTES: u64 = 200 << 20;

/// The field `code`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeSpec {
    /// Where the code is.
    pub source: CodeSource,
    /// Patterns of ignored files to send all the same; only with [`CodeSource::Snapshot`].
    pub include: Vec<String>,
    /// Most bytes to send; nothing is sent for [`CodeSource::Path`].
    pub max_bytes: u64,
    /// Whether the commit and the local changes are recorded; only for a snapshot.
    pub record_git: bool,
}

/// One place of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodeSource {
    /// A directory of the sender, relative to the spec or absolute.
    Snapshot(String),
    /// An absolute directory that all nodes have.
    Path(String),
    /// An archive of the sender, relative to the spec or absolute.
    Zip(String),
}

impl CodeSource {
    /// The field of the spec and its value.
    #[must_use]
    pub fn field(&self) -> (&'static str, &str) {
        match self {
            Self::Snapshot(text) => ("snapshot", text),
            Self::Path(text) => ("path", text),
            Self::Zip(text) => ("zip", text),
        }
    }
}

/// The function that an RL trainer calls for its rewards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reward {
    /// Python file, relative to the code or absolute.
    pub path: String,
    /// Name of the function in it.
    pub symbol: String,
}
