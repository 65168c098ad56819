//! Where the code of a job comes from, and its reward function.

use crate::arguments::Argument;

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
    /// Whether the commit is recorded; only for a snapshot.
    pub record_git: bool,
    /// Commit that a tree was made of, with [`CHANGED`] behind it when files were not as committed.
    pub commit: Option<String>,
}

impl CodeSpec {
    /// Code that the coordinator has.
    #[must_use]
    pub fn of_tree(name: String, commit: Option<String>) -> Self {
        Self {
            source: CodeSource::Tree(name),
            include: Vec::new(),
            max_bytes: DEFAULT_MAX_CODE_BYTES,
            record_git: false,
            commit,
        }
    }
}

/// What stands behind a commit when some file was not as it is there.
pub const CHANGED: &str = "+changed";

/// What the name of a tree begins with, in `code.snapshot`.
const TREE_PREFIX: &str = "blake3:";
/// The form of the name of a tree, for people.
pub(crate) const TREE_FORM: &str = "`blake3:` and 64 digits 0-9 a-f";

/// Whether `text` names a tree: 64 hexadecimal digits behind the prefix.
pub(crate) fn is_tree_name(text: &str) -> bool {
    let digits = text.strip_prefix(TREE_PREFIX).unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether `text` is a commit as `code.commit` has it.
pub(crate) fn is_commit(text: &str) -> bool {
    let id = text.strip_suffix(CHANGED).unwrap_or(text);
    matches!(id.len(), 40 | 64) && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// One place of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodeSource {
    /// A directory of the sender, relative to the spec or absolute.
    Snapshot(String),
    /// The same once the coordinator has it: the name of a tree.
    Tree(String),
    /// An absolute directory that all nodes have.
    Path(String),
    /// An archive of the sender, relative to the spec or absolute.
    Zip(String),
}

impl CodeSource {
    /// What stands in `code.snapshot`: the name of a tree, or a directory.
    pub(crate) fn snapshot(text: String) -> Self {
        if text.starts_with(TREE_PREFIX) { Self::Tree(text) } else { Self::Snapshot(text) }
    }

    /// The field of the spec and its value.
    #[must_use]
    pub fn field(&self) -> (&'static str, &str) {
        match self {
            Self::Snapshot(text) | Self::Tree(text) => ("snapshot", text),
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

/// Runs before the job's own program, in its place and environment.
const CHECK_REWARD: &str = include_str!("check_reward.py");

impl Reward {
    /// What to put before the arguments of an entrypoint, so that it runs only when the function
    /// can be imported where the job runs; otherwise it ends with exit code 2 and says why.
    #[must_use]
    pub fn check(&self) -> Vec<Argument> {
        ["python3", "-c", CHECK_REWARD, &self.path, &self.symbol]
            .map(|text| Argument::Literal(text.to_owned()))
            .into()
    }

    /// The arguments without the check that [`Reward::check`] put before them: for people.
    #[must_use]
    pub fn after_check(arguments: &[String]) -> &[String] {
        match arguments {
            [_, _, check, _, _, rest @ ..] if check == CHECK_REWARD => rest,
            all => all,
        }
    }

    /// The place in the code that the job brings, when the path is below it.
    #[must_use]
    pub fn in_code(&self) -> Option<&str> {
        let path = self.path.trim_start_matches("./");
        (!path.starts_with('/')).then_some(path)
    }
}
