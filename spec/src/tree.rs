//! The YAML (or JSON) text as a tree in which every key and value knows its position.
//!
//! This is the only module that talks to the YAML parser, so that it can be swapped. The tree
//! keeps the text of a number as it was written: an argument `1e-6` must arrive as `1e-6`.

use std::fmt;
use std::rc::Rc;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::granit_parser::ErrorKind;
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{
    ExternalMessageSource, Location, MergeKeyPolicy, NonFiniteFloatPolicy, Options, Spanned,
};

use crate::error::{Code, SpecError};

/// Deepest nesting of mappings and lists in a spec. The full example needs four.
const MAX_DEPTH: usize = 32;
/// Most mappings, lists and scalars in a spec.
const MAX_NODES: usize = 50_000;
/// Most aliases, and most anchors, in a spec.
const MAX_ALIASES: usize = 64;
/// Most bytes of all texts of a spec. The parser counts what an alias repeats each time, so this
/// and [`MAX_NODES`] bound what a spec can expand to.
const MAX_TEXT_BYTES: usize = 4 * crate::MAX_SPEC_BYTES;

/// A place in the text: line and column, both counted in characters from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pos {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// One value of the text.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) pos: Option<Pos>,
    /// The override that this value comes from; `None` for a value of the file.
    pub(crate) origin: Option<Rc<str>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A scalar with its text as written; for a quoted or block scalar, the text it stands for.
#[derive(Clone, Debug)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) kind: ScalarKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ScalarKind {
    Text,
    Bool,
    Int(i128),
    Float(f64),
}

/// One key of a mapping and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_pos: Option<Pos>,
    pub(crate) node: Node,
}

impl Node {
    /// The value of `key`, when this is a mapping that has it.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            Value::Null | Value::Scalar(_) | Value::List(_) => None,
        }
    }

    /// Change the position of this value, and of all keys and values below it.
    pub(crate) fn each_position(&mut self, change: &mut dyn FnMut(&mut Option<Pos>)) {
        change(&mut self.pos);
        match &mut self.value {
            Value::Null | Value::Scalar(_) => {}
            Value::List(items) => items.iter_mut().for_each(|item| item.each_position(change)),
            Value::Map(entries) => {
                for entry in entries {
                    change(&mut entry.key_pos);
                    entry.node.each_position(change);
                }
            }
        }
    }

    /// Give the entry at `pointer` the position `at`, with all that is below it; the root alone.
    pub(crate) fn set_position(&mut self, pointer: &str, at: Pos) {
        if pointer.is_empty() {
            self.pos = Some(at);
            return;
        }
        let mut node = self;
        for segment in pointer.split('/').skip(1) {
            let key = unescaped(segment);
            let Value::Map(entries) = &mut node.value else {
                return;
            };
            let Some(entry) = entries.iter_mut().find(|entry| entry.key == key) else {
                return;
            };
            entry.key_pos = Some(at);
            node = &mut entry.node;
        }
        node.each_position(&mut |pos| *pos = Some(at));
    }

    /// Mark this value and all below it as coming from an override: their positions are not
    /// positions of the file.
    pub(crate) fn set_origin(&mut self, origin: &Rc<str>) {
        self.pos = None;
        self.origin = Some(Rc::clone(origin));
        match &mut self.value {
            Value::Null | Value::Scalar(_) => {}
            Value::List(items) => items.iter_mut().for_each(|item| item.set_origin(origin)),
            Value::Map(entries) => {
                for entry in entries {
                    entry.key_pos = None;
                    entry.node.set_origin(origin);
                }
            }
        }
    }
}

/// Append one segment to a JSON pointer, escaped as RFC 6901 wants it.
pub(crate) fn join(pointer: &str, segment: &str) -> String {
    format!("{pointer}/{}", segment.replace('~', "~0").replace('/', "~1"))
}

/// What a piece of a JSON pointer stands for.
pub(crate) fn unescaped(piece: &str) -> String {
    piece.replace("~1", "/").replace("~0", "~")
}

/// Parse one document. The duplicate keys of an otherwise readable text come back beside the
/// tree, which then holds the first value of each.
///
/// # Errors
/// E0105 for a text that is not one YAML document, E0106 for one over a limit.
pub(crate) fn parse(source: &str) -> Result<(Node, Vec<SpecError>), SpecError> {
    let strict = read(source, DuplicateKeyPolicy::Error);
    let duplicate = match strict {
        Ok(raw) => return Ok((Builder::new(source).node(raw, ""), Vec::new())),
        Err(error) if is_duplicate(&error) => syntax_error(&error),
        Err(error) => return Err(syntax_error(&error)),
    };
    // With "last wins" the mapping hands over every entry, so all duplicates can be named.
    let raw = read(source, DuplicateKeyPolicy::LastWins).map_err(|error| syntax_error(&error))?;
    let mut builder = Builder::new(source);
    let node = builder.node(raw, "");
    // The parser also takes `0xB` and `11` for the same key; only it can tell those.
    if builder.duplicates.is_empty() {
        builder.duplicates.push(duplicate);
    }
    Ok((node, builder.duplicates))
}

fn read(source: &str, duplicates: DuplicateKeyPolicy) -> Result<RawNode, serde_saphyr::Error> {
    serde_saphyr::from_str_with_options(source, options(duplicates))
}

fn options(duplicates: DuplicateKeyPolicy) -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 4 * MAX_NODES,
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            // A second document is refused by the parser with an error of its own.
            max_documents: 2,
            max_total_scalar_bytes: MAX_TEXT_BYTES,
            max_recorded_anchor_bytes: MAX_TEXT_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_NODES,
        },
        emit_comments: false,
        duplicate_keys: duplicates,
        // YAML 1.2 has no merge keys, and a merged value has no position of its own.
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        reject_unsupported_tags: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    }
}

fn is_duplicate(error: &serde_saphyr::Error) -> bool {
    matches!(cause(error), serde_saphyr::Error::DuplicateMappingKey { .. })
}

/// The error below the wrapper that tells of an alias. One wrapper is all there is: what an alias
/// stands for is recorded with its own aliases already filled in.
fn cause(error: &serde_saphyr::Error) -> &serde_saphyr::Error {
    match error.without_snippet() {
        serde_saphyr::Error::AliasError { error, .. } => error.without_snippet(),
        other => other,
    }
}

const TOO_DEEP: &str = "the spec is nested too deeply";

fn over_budget(message: &str) -> (&'static str, String, Option<String>) {
    let hint = format!("at most {MAX_DEPTH} levels, {MAX_NODES} values and {MAX_ALIASES} aliases");
    (Code::TOO_LARGE, message.to_owned(), Some(hint))
}

/// The scanner counts `[` and `{` itself, ahead of the budget.
fn is_too_deep(source: &ExternalMessageSource) -> bool {
    matches!(source, ExternalMessageSource::Parser(error)
        if matches!(error.kind(), ErrorKind::RecursionLimitExceeded))
}

/// The parser's error in our words, as far as a user meets it.
fn syntax_error(error: &serde_saphyr::Error) -> SpecError {
    use serde_saphyr::Error as E;
    let (code, message, hint) = match cause(error) {
        E::DuplicateMappingKey { key, .. } => (
            Code::DUPLICATE_KEY,
            match key {
                Some(key) => format!("key {} is given twice", crate::error::quoted(key)),
                None => "a key is given twice".to_owned(),
            },
            None,
        ),
        E::Budget { breach, .. } => over_budget(match breach {
            BudgetBreach::Depth { .. } => TOO_DEEP,
            BudgetBreach::Aliases { .. }
            | BudgetBreach::Anchors { .. }
            | BudgetBreach::AliasAnchorRatio { .. } => "the spec has too many aliases",
            _ => "the spec has too many values",
        }),
        E::ExternalMessage { source, .. } if is_too_deep(source) => over_budget(TOO_DEEP),
        E::AliasReplayLimitExceeded { .. }
        | E::AliasExpansionLimitExceeded { .. }
        | E::AliasReplayStackDepthExceeded { .. }
        | E::AliasReplayCounterOverflow { .. } => (
            Code::TOO_LARGE,
            "the aliases of the spec expand to too much".to_owned(),
            Some("write the values out".to_owned()),
        ),
        E::MultipleDocuments { .. } => (
            Code::SYNTAX,
            "more than one document in the text".to_owned(),
            Some("one spec per file: cut at `---`".to_owned()),
        ),
        E::MergeKeyNotAllowed { .. } => (
            Code::SYNTAX,
            "merge keys (`<<`) are not part of YAML 1.2".to_owned(),
            Some("write the values out".to_owned()),
        ),
        E::NullIntoString { .. } | E::Unexpected { .. } => {
            (Code::SYNTAX, "a key must be a text".to_owned(), Some("write `key: value`".to_owned()))
        }
        E::RecursiveReferencesRequireWeakTypes { .. } => {
            (Code::SYNTAX, "an alias stands inside the value that it names".to_owned(), None)
        }
        E::ExternalMessage { msg, .. } | E::Message { msg, .. } => {
            (Code::SYNTAX, format!("not valid YAML: {msg}"), None)
        }
        other => {
            (Code::SYNTAX, format!("not valid YAML: {}", without_place(&other.to_string())), None)
        }
    };
    let pos = error.location().and_then(position);
    SpecError {
        code,
        pointer: String::new(),
        line: pos.map(|p| p.line),
        column: pos.map(|p| p.column),
        message,
        hint,
    }
}

/// The parser's own text without the position at its end, which we give in our own form.
fn without_place(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    line.rsplit_once(" at line ").map_or(line, |(before, _)| before)
}

fn position(location: Location) -> Option<Pos> {
    let line = u32::try_from(location.line()).ok()?;
    let column = u32::try_from(location.column()).ok()?;
    (line > 0 && column > 0).then_some(Pos { line, column })
}

/// What the parser hands over, before texts and duplicates are settled.
struct RawNode(Spanned<RawValue>);

enum RawValue {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<RawNode>),
    Map(Vec<(Spanned<String>, RawNode)>),
}

impl<'de> Deserialize<'de> for RawNode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::deserialize(deserializer).map(RawNode)
    }
}

impl<'de> Deserialize<'de> for RawValue {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = RawValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<RawValue, E> {
        Ok(RawValue::Null)
    }

    fn visit_none<E>(self) -> Result<RawValue, E> {
        Ok(RawValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawValue, E> {
        Ok(RawValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<RawValue, E> {
        Ok(RawValue::Int(i128::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<RawValue, E> {
        Ok(RawValue::Int(i128::from(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<RawValue, E> {
        Ok(RawValue::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<RawValue, E> {
        Ok(RawValue::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<RawValue, E> {
        Ok(RawValue::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<RawValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(RawValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<RawValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(RawValue::Map(entries))
    }
}

struct Builder<'a> {
    source: &'a str,
    duplicates: Vec<SpecError>,
}

impl<'a> Builder<'a> {
    fn new(source: &'a str) -> Self {
        Self { source, duplicates: Vec::new() }
    }

    fn node(&mut self, raw: RawNode, pointer: &str) -> Node {
        let Spanned { value, referenced, defined } = raw.0;
        let value = match value {
            RawValue::Null => Value::Null,
            RawValue::Text(text) => Value::Scalar(Scalar { text, kind: ScalarKind::Text }),
            RawValue::Bool(value) => self.plain(ScalarKind::Bool, defined, value.to_string()),
            RawValue::Int(value) => self.plain(ScalarKind::Int(value), defined, value.to_string()),
            RawValue::Float(value) => {
                self.plain(ScalarKind::Float(value), defined, value.to_string())
            }
            RawValue::List(items) => Value::List(
                items
                    .into_iter()
                    .enumerate()
                    .map(|(index, item)| self.node(item, &join(pointer, &index.to_string())))
                    .collect(),
            ),
            RawValue::Map(entries) => self.map(entries, pointer),
        };
        Node { value, pos: position(referenced).or_else(|| position(defined)), origin: None }
    }

    fn map(&mut self, raw: Vec<(Spanned<String>, RawNode)>, pointer: &str) -> Value {
        let mut entries: Vec<Entry> = Vec::with_capacity(raw.len());
        let mut seen = std::collections::HashMap::with_capacity(raw.len());
        for (key, node) in raw {
            let key_pos = position(key.referenced).or_else(|| position(key.defined));
            let path = join(pointer, &key.value);
            if let Some(first) = seen.get(&key.value) {
                let first: &Option<Pos> = first;
                self.duplicates.push(SpecError {
                    code: Code::DUPLICATE_KEY,
                    pointer: path,
                    line: key_pos.map(|p| p.line),
                    column: key_pos.map(|p| p.column),
                    message: format!("key {} is given twice", crate::error::quoted(&key.value)),
                    hint: first.map(|p| format!("first given at line {}", p.line)),
                });
                continue;
            }
            seen.insert(key.value.clone(), key_pos);
            let node = self.node(node, &path);
            entries.push(Entry { key: key.value, key_pos, node });
        }
        Value::Map(entries)
    }

    /// A plain scalar with its text as written; `fallback` when the text has a tag or quotes, so
    /// that the written form is not the value.
    fn plain(&self, kind: ScalarKind, at: Location, fallback: String) -> Value {
        let written = at.span().byte_offset().zip(at.span().byte_len());
        let text = written
            .and_then(|(start, len)| {
                let start = usize::try_from(start).ok()?;
                let end = start.checked_add(usize::try_from(len).ok()?)?;
                self.source.get(start..end)
            })
            .map(str::trim)
            .filter(|text| !text.is_empty() && !text.starts_with(['!', '&', '"', '\'', '|', '>']))
            .map_or(fallback, str::to_owned);
        Value::Scalar(Scalar { text, kind })
    }
}
