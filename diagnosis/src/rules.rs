//! The rules: data in `rules.toml`, read and checked as a whole.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::needles::{self, Needles};
use crate::taxonomy::{Action, Category, Rank};

/// The rules that come with this program.
const BUILT_IN: &str = include_str!("../rules.toml");

/// Memory of a single expression.
const REGEX_BYTES: usize = 4 * 1024 * 1024;

/// Why a text is not a set of rules.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    #[error("it is not TOML of the right form: {0}")]
    Form(#[from] Box<toml::de::Error>),
    #[error("rule {id:?}: {source}")]
    Pattern { id: String, source: Box<regex_syntax::Error> },
    #[error("two rules are called {0:?}")]
    Twice(String),
    #[error("category {0:?} has no entry")]
    NoCategory(&'static str),
}

/// How much a fitting line says. The order is that of strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Strength {
    /// Fits several causes, such as an exit code.
    Hint,
    /// An exception without words that say more.
    Generic,
    /// The right kind, in words that many programs use.
    Broad,
    /// The wording of one failure.
    #[default]
    Specific,
    /// Word of the kernel or the driver.
    Hard,
}

/// One rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, for ever.
    pub id: String,
    /// What a line must fit: a `regex` over bytes that does not heed the case of ASCII letters.
    pub pattern: String,
    /// What the same line must not fit.
    pub unless: Option<String>,
    /// What the traceback that the line ends must fit: its paths, joined by spaces, with `:<module>` after
    /// those of code that runs when a module is loaded.
    pub frames: Option<String>,
    /// What the traceback must not fit, if there is one.
    pub unless_frames: Option<String>,
    /// A later line that says that it is over.
    pub cleared_by: Option<String>,
    pub category: Category,
    pub sub_code: String,
    /// Root or consequence; as the category when it is not said.
    pub rank: Option<Rank>,
    #[serde(default)]
    pub strength: Strength,
    /// As the category when it is not said.
    pub action: Option<Action>,
    /// As the category when it is not said.
    pub advice: Option<String>,
    /// Lines that must fit before it counts.
    #[serde(default = "one")]
    pub at_least: u64,
    /// It counts only on the line of an exception or of an error.
    #[serde(default)]
    pub raised: bool,
    /// It also counts on lines that a program marks as mere information.
    #[serde(default)]
    pub any_level: bool,
    /// The end of the process at the other side looks like this as well: another root goes first that was
    /// there before it, or was seen soon after.
    #[serde(default)]
    pub of_peer: bool,
    /// It counts although the job went on.
    #[serde(default)]
    pub lasting: bool,
    /// On probation: it is shown when asked for, and decides nothing.
    #[serde(default)]
    pub shadow: bool,
    /// A line that fits; its lines when it needs more than one.
    pub example: String,
    /// Where the wording is from.
    pub source: String,
}

fn one() -> u64 {
    1
}

/// What holds for all rules of a category that do not say otherwise.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    pub title: String,
    pub rank: Rank,
    pub action: Action,
    pub advice: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    category: BTreeMap<Category, Defaults>,
    #[serde(default)]
    rule: Vec<Rule>,
}

/// An expression that is compiled when it is first needed.
#[derive(Debug)]
struct Lazy {
    pattern: String,
    regex: OnceLock<Option<Regex>>,
}

impl Lazy {
    fn new(pattern: &str) -> Self {
        Self { pattern: pattern.to_owned(), regex: OnceLock::new() }
    }

    /// Whether it fits. One that is too large to be compiled fits nothing, and its example fails.
    fn fits(&self, text: &str) -> bool {
        let regex = self.regex.get_or_init(|| {
            RegexBuilder::new(&self.pattern)
                .case_insensitive(true)
                .unicode(false)
                .size_limit(REGEX_BYTES)
                .build()
                .ok()
        });
        regex.as_ref().is_some_and(|regex| regex.is_match(text.as_bytes()))
    }
}

/// The expressions of a rule.
#[derive(Debug)]
struct Expressions {
    pattern: Lazy,
    unless: Option<Lazy>,
    frames: Option<Lazy>,
    unless_frames: Option<Lazy>,
    cleared_by: Option<Lazy>,
}

impl Expressions {
    fn of(rule: &Rule) -> Expressions {
        let lazy = |text: &Option<String>| text.as_deref().map(Lazy::new);
        Expressions {
            pattern: Lazy::new(&rule.pattern),
            unless: lazy(&rule.unless),
            frames: lazy(&rule.frames),
            unless_frames: lazy(&rule.unless_frames),
            cleared_by: lazy(&rule.cleared_by),
        }
    }
}

/// All rules, ready to be used.
#[derive(Debug)]
pub struct Rules {
    version: u32,
    categories: BTreeMap<Category, Defaults>,
    rules: Vec<Rule>,
    expressions: Vec<Expressions>,
    needles: Needles,
}

impl Rules {
    /// The rules of this program.
    ///
    /// # Errors
    /// They are broken, which a test rules out.
    pub fn built_in() -> Result<Rules, RulesError> {
        Rules::parse(BUILT_IN)
    }

    /// Reads rules.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub fn parse(text: &str) -> Result<Rules, RulesError> {
        let file: File = toml::from_str(text).map_err(Box::new)?;
        for category in Category::ALL {
            if !file.category.contains_key(&category) {
                return Err(RulesError::NoCategory(category.word()));
            }
        }
        let mut names = std::collections::BTreeSet::new();
        for rule in &file.rule {
            if !names.insert(rule.id.as_str()) {
                return Err(RulesError::Twice(rule.id.clone()));
            }
            let more = [&rule.unless, &rule.frames, &rule.unless_frames, &rule.cleared_by];
            for pattern in more.into_iter().flatten() {
                needles::check(pattern)
                    .map_err(|source| RulesError::Pattern { id: rule.id.clone(), source })?;
            }
        }
        let patterns = file.rule.iter().map(|rule| rule.pattern.as_str());
        let needles = Needles::of(patterns).map_err(|(index, source)| {
            let id = file.rule.get(index).map(|rule| rule.id.clone()).unwrap_or_default();
            RulesError::Pattern { id, source }
        })?;
        Ok(Rules {
            version: file.version,
            categories: file.category,
            expressions: file.rule.iter().map(Expressions::of).collect(),
            rules: file.rule,
            needles,
        })
    }

    /// Their version, which grows with every change.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Every rule, in the order of the file.
    pub fn all(&self) -> &[Rule] {
        &self.rules
    }

    /// The numbers of the rules that `line` fits, when it ends a traceback with these `frames`.
    pub(crate) fn fitting(&self, line: &str, frames: &str) -> Vec<usize> {
        let fits = |index: &usize| {
            let Some(rule) = self.expressions.get(*index) else { return false };
            rule.pattern.fits(line)
                && !rule.unless.as_ref().is_some_and(|regex| regex.fits(line))
                && rule.frames.as_ref().is_none_or(|regex| regex.fits(frames))
                && !rule.unless_frames.as_ref().is_some_and(|regex| regex.fits(frames))
        };
        self.needles.candidates(line).into_iter().filter(fits).collect()
    }

    /// Whether `line` says that what the rule found is over.
    pub(crate) fn is_cleared(&self, index: usize, line: &str) -> bool {
        let cleared_by = self.expressions.get(index).and_then(|rule| rule.cleared_by.as_ref());
        cleared_by.is_some_and(|regex| regex.fits(line))
    }

    /// Whether the rule knows such lines.
    pub(crate) fn can_be_cleared(&self, index: usize) -> bool {
        self.expressions.get(index).is_some_and(|rule| rule.cleared_by.is_some())
    }

    pub(crate) fn rule(&self, index: usize) -> Option<&Rule> {
        self.rules.get(index)
    }

    /// What holds for a category; `None` for `unknown` alone.
    pub(crate) fn defaults(&self, category: Category) -> Option<&Defaults> {
        self.categories.get(&category)
    }

    /// A category in words.
    pub fn title(&self, category: Category) -> &str {
        self.defaults(category).map_or("not known", |defaults| &defaults.title)
    }

    pub(crate) fn rank(&self, rule: &Rule) -> Rank {
        rule.rank.or(self.defaults(rule.category).map(|d| d.rank)).unwrap_or(Rank::Consequence)
    }

    pub(crate) fn action(&self, rule: &Rule) -> Action {
        rule.action.or(self.defaults(rule.category).map(|d| d.action)).unwrap_or(Action::Watch)
    }

    pub(crate) fn advice<'a>(&'a self, rule: &'a Rule) -> &'a str {
        let own = rule.advice.as_deref();
        own.or(self.defaults(rule.category).map(|d| d.advice.as_str())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rules_are_tried_on_every_line() {
        let rules = Rules::built_in().unwrap();
        let tried = rules.needles.candidates("");
        let names: Vec<&str> = tried.iter().map(|index| rules.rules[*index].id.as_str()).collect();
        assert!(names.len() <= 4, "{names:?}");
    }

    #[test]
    fn every_expression_can_be_compiled() {
        let rules = Rules::built_in().unwrap();
        for (rule, expressions) in rules.rules.iter().zip(&rules.expressions) {
            let more = [&expressions.unless, &expressions.frames, &expressions.cleared_by];
            for lazy in more.into_iter().flatten().chain([&expressions.pattern]) {
                lazy.fits("");
                assert!(lazy.regex.get().is_some_and(Option::is_some), "{}", rule.id);
            }
        }
    }
}
