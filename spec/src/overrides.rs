//! Overrides from a command line, such as `--set resources.nnodes=8`: a dotted path and a YAML
//! value each, put into the tree before it is read, so that they pass the same checks as the file.

use std::rc::Rc;

use crate::error::{Code, Problems, SpecError, quoted};
use crate::tree::{self, Entry, Node, Value};

/// Most overrides of one spec.
pub const MAX_OVERRIDES: usize = 256;

/// Mappings whose keys are the user's own: the rest of the path is one key, dots included.
const FREE_KEYS: [&str; 2] = ["env", "labels"];

pub(crate) fn apply(root: &mut Node, overrides: &[(String, String)], out: &mut Problems) {
    let bytes: usize = overrides.iter().map(|(p, v)| p.len() + v.len()).sum();
    if overrides.len() > MAX_OVERRIDES || bytes > crate::MAX_SPEC_BYTES {
        let hint =
            format!("at most {MAX_OVERRIDES}, with {} bytes together", crate::MAX_SPEC_BYTES);
        out.value(Code::TOO_LARGE, "", "too many overrides", Some(hint));
        return;
    }
    for (path, value) in overrides {
        if let Err(error) = apply_one(root, path, value) {
            out.known(error);
        }
    }
}

fn apply_one(root: &mut Node, path: &str, value: &str) -> Result<(), SpecError> {
    let segments = segments(path);
    let pointer =
        segments.iter().fold(String::new(), |pointer, segment| tree::join(&pointer, segment));
    let from: Rc<str> = format!("override {}", quoted(path)).into();
    if segments.iter().any(|segment| segment.is_empty()) {
        let message = format!("{} is not a path", quoted(path));
        let hint = "write it as resources.nnodes=8".to_owned();
        return Err(SpecError::new(Code::BAD_VALUE, "", message, Some(hint)));
    }
    // Positions inside the value mean nothing to the user: the override is named instead.
    let in_override = |error: SpecError| SpecError {
        pointer: pointer.clone(),
        line: None,
        column: None,
        message: format!("{} (from {from})", error.message),
        ..error
    };
    let (mut node, duplicates) = tree::parse(value).map_err(in_override)?;
    if let Some(duplicate) = duplicates.into_iter().next() {
        return Err(in_override(duplicate));
    }
    node.set_origin(&from);
    put(root, &segments, node, &from).map_err(|key| {
        let above = if key.is_empty() { "the spec" } else { key };
        let message = format!("{} is not a mapping", quoted(above));
        in_override(SpecError::new(Code::CONFLICT, "", message, None))
    })
}

/// The keys of a dotted path.
fn segments(path: &str) -> Vec<&str> {
    match path.split_once('.') {
        Some((first, rest)) if FREE_KEYS.contains(&first) => vec![first, rest],
        _ => path.split('.').collect(),
    }
}

/// Put `new` at the path below `root`, with mappings made where there is nothing.
///
/// # Errors
/// The key on the way whose value is no mapping; empty for the root.
fn put<'p>(root: &mut Node, path: &[&'p str], new: Node, origin: &Rc<str>) -> Result<(), &'p str> {
    let mut node = root;
    let mut above = "";
    for key in path {
        if matches!(node.value, Value::Null) {
            node.value = Value::Map(Vec::new());
        }
        let Value::Map(entries) = &mut node.value else {
            return Err(above);
        };
        let index = entries.iter().position(|entry| entry.key == *key);
        let index = index.unwrap_or_else(|| {
            entries.push(Entry {
                key: (*key).to_owned(),
                key_pos: None,
                node: Node { value: Value::Null, pos: None, origin: Some(Rc::clone(origin)) },
            });
            entries.len() - 1
        });
        let Some(entry) = entries.get_mut(index) else {
            return Err(above);
        };
        node = &mut entry.node;
        above = key;
    }
    *node = new;
    Ok(())
}
