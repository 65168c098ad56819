//! What is wrong with a spec: one [`SpecError`] per problem, each with a stable code, the JSON
//! pointer of the value, and the position in the text where it is known.

use std::fmt;

use serde::Serialize;

use crate::tree::{self, Node, Value};

/// Most problems of one spec that are kept; the rest are counted in [`SpecErrors::omitted`].
pub const MAX_ERRORS: usize = 64;

/// Longest piece of a user's text that a message repeats, in characters.
const MAX_QUOTED_CHARS: usize = 60;

/// The stable codes of [`SpecError::code`].
pub struct Code;

impl Code {
    /// A field that does not exist in this section.
    pub const UNKNOWN_FIELD: &'static str = "E0101";
    /// A field or value that is planned but not built.
    pub const NOT_YET: &'static str = "E0102";
    /// A value of the wrong type or outside its range.
    pub const BAD_VALUE: &'static str = "E0103";
    /// A value that must be there is not.
    pub const MISSING: &'static str = "E0104";
    /// The text is not one YAML 1.2 (or JSON) document.
    pub const SYNTAX: &'static str = "E0105";
    /// The spec, or a part of it, is over a size limit.
    pub const TOO_LARGE: &'static str = "E0106";
    /// Two values that cannot stand together.
    pub const CONFLICT: &'static str = "E0107";
    /// A key that is given twice in one mapping.
    pub const DUPLICATE_KEY: &'static str = "E0108";
}

/// One problem of a spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct SpecError {
    /// One of the constants of [`Code`]; never changes its meaning.
    pub code: &'static str,
    /// JSON pointer (RFC 6901) of the value, such as `/resources/nnodes`; empty for the whole.
    pub pointer: String,
    /// Line in the text, from 1; `None` when the value has no place in the text.
    pub line: Option<u32>,
    /// Column in characters, from 1; `None` as for `line`.
    pub column: Option<u32>,
    /// What is wrong, in one line.
    pub message: String,
    /// What to do about it, in one line.
    pub hint: Option<String>,
}

impl SpecError {
    /// A problem of the value at `pointer`, with no position; see [`SpecErrors::locate`].
    #[must_use]
    pub fn new(
        code: &'static str,
        pointer: impl Into<String>,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> Self {
        Self {
            code,
            pointer: pointer.into(),
            line: None,
            column: None,
            message: message.into(),
            hint,
        }
    }
}

/// All problems of one spec, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpecErrors {
    /// The problems; at least one, at most [`MAX_ERRORS`].
    pub errors: Vec<SpecError>,
    /// How many more problems there were than `errors` holds.
    pub omitted: usize,
}

impl SpecErrors {
    /// Fill in the positions of errors that have none by looking their pointers up in `source`.
    /// For problems found after parsing, such as a pool that does not exist. A `source` that
    /// cannot be parsed leaves the errors as they are.
    pub fn locate(&mut self, source: &str) {
        if source.len() > crate::MAX_SPEC_BYTES {
            return;
        }
        if let Ok((tree, _)) = tree::parse(source) {
            self.locate_in(&tree);
        }
    }

    /// As [`Self::locate`], in a tree.
    pub(crate) fn locate_in(&mut self, tree: &Node) {
        for error in &mut self.errors {
            let at = match error.code {
                _ if error.line.is_some() => At::Known,
                Code::UNKNOWN_FIELD | Code::NOT_YET | Code::CONFLICT => At::Key,
                _ => At::Value,
            };
            place(error, at, tree);
        }
    }
}

impl From<SpecError> for SpecErrors {
    fn from(error: SpecError) -> Self {
        Self { errors: vec![error], omitted: 0 }
    }
}

impl std::error::Error for SpecErrors {}

impl fmt::Display for SpecErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            if let (Some(line), Some(column)) = (error.line, error.column) {
                write!(f, "line {line} column {column}: ")?;
            }
            write!(f, "{} [{}]", error.message, error.code)?;
        }
        if self.omitted > 0 {
            write!(f, "; and {} more", self.omitted)?;
        }
        Ok(())
    }
}

/// What the pointer of a problem is to be placed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Key,
    Value,
    /// Nothing: the problem has its position, or has none in the text.
    Known,
}

/// Collects the problems of one spec while it is read and checked.
#[derive(Default)]
pub(crate) struct Problems {
    found: Vec<(SpecError, At)>,
    omitted: usize,
}

impl Problems {
    /// A problem of the value at `pointer`.
    pub(crate) fn value(
        &mut self,
        code: &'static str,
        pointer: &str,
        message: impl Into<String>,
        hint: Option<String>,
    ) {
        self.add(SpecError::new(code, pointer, message, hint), At::Value);
    }

    /// A problem of the key at `pointer`, such as a field that does not exist.
    pub(crate) fn key(
        &mut self,
        code: &'static str,
        pointer: &str,
        message: impl Into<String>,
        hint: Option<String>,
    ) {
        self.add(SpecError::new(code, pointer, message, hint), At::Key);
    }

    /// A problem whose position is known, or known to be none.
    pub(crate) fn known(&mut self, error: SpecError) {
        self.add(error, At::Known);
    }

    /// Problems whose positions are known.
    pub(crate) fn extend(&mut self, errors: SpecErrors) {
        errors.errors.into_iter().for_each(|error| self.known(error));
        self.omitted += errors.omitted;
    }

    fn add(&mut self, error: SpecError, at: At) {
        if self.found.len() < MAX_ERRORS {
            self.found.push((error, at));
        } else {
            self.omitted += 1;
        }
    }

    /// `Ok` when nothing was found; else everything found, placed in `tree` and in its order.
    pub(crate) fn finish(self, tree: Option<&Node>) -> Result<(), SpecErrors> {
        if self.found.is_empty() {
            return Ok(());
        }
        let mut errors: Vec<SpecError> = self
            .found
            .into_iter()
            .map(|(mut error, at)| {
                if let Some(tree) = tree {
                    place(&mut error, at, tree);
                }
                error
            })
            .collect();
        errors.sort_by_key(|error| {
            let line = error.line.unwrap_or(u32::MAX);
            (line, error.column.unwrap_or(u32::MAX))
        });
        Err(SpecErrors { errors, omitted: self.omitted })
    }
}

/// Give `error` the position of its pointer in `tree`, or name the override it comes from. A
/// pointer whose end is not in the tree keeps no position: the value is missing there.
fn place(error: &mut SpecError, at: At, tree: &Node) {
    if at == At::Known || error.pointer.is_empty() {
        return;
    }
    let mut node = tree;
    let mut key_pos = None;
    for segment in error.pointer.split('/').skip(1) {
        let segment = tree::unescaped(segment);
        let next = match &node.value {
            Value::Map(_) => node.entry(&segment).map(|e| (&e.node, e.key_pos)),
            Value::List(items) => segment
                .parse::<usize>()
                .ok()
                .and_then(|index| items.get(index))
                .map(|item| (item, item.pos)),
            Value::Null | Value::Scalar(_) => None,
        };
        let Some((next, pos)) = next else {
            return;
        };
        (node, key_pos) = (next, pos);
    }
    if let Some(origin) = &node.origin {
        error.message = format!("{} (from {origin})", error.message);
    }
    let pos = if at == At::Key { key_pos } else { node.pos };
    error.line = pos.map(|p| p.line);
    error.column = pos.map(|p| p.column);
}

/// A piece of a user's text for a message, in back quotes; see [`shown`].
pub(crate) fn quoted(text: &str) -> String {
    format!("`{}`", shown(text))
}

/// A piece of a user's text for a message: shortened, control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == MAX_QUOTED_CHARS {
            out.push('…');
            break;
        }
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}
