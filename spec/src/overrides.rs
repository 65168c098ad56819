//! Overrides from a command line, such as `--set resources.nnodes=8`: a dotted path and a YAML
//! value each, put into the tree before it is read, so that they pass the same checks as the file.

use std::rc::Rc;

use crate::error::{Code, Problems, SpecError, quoted};
use crate::tree::{self, Entry, Node, Pos, Value};

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
    let pointer = pointer(&segments);
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
    put(root, &segments, None, node).map_err(in_override)
}

/// The JSON pointer of a path.
pub(crate) fn pointer(path: &[&str]) -> String {
    path.iter().fold(String::new(), |pointer, segment| tree::join(&pointer, segment))
}

/// The keys of a dotted path.
pub(crate) fn segments(path: &str) -> Vec<&str> {
    match path.split_once('.') {
        Some((first, rest)) if FREE_KEYS.contains(&first) => vec![first, rest],
        _ => path.split('.').collect(),
    }
}

/// Put `new` at the path below `root`, with mappings made where there is nothing. The key and what
/// is made get the position `key_pos`.
///
/// # Errors
/// A value on the way is no mapping.
pub(crate) fn put(
    root: &mut Node,
    path: &[&str],
    key_pos: Option<Pos>,
    new: Node,
) -> Result<(), SpecError> {
    let no_mapping = |above: &str| {
        let above = if above.is_empty() { "the spec" } else { above };
        let message = format!("{} is not a mapping", quoted(above));
        SpecError::new(Code::CONFLICT, "", message, None)
    };
    let origin = new.origin.clone();
    let mut node = root;
    let mut above = "";
    let mut last_key = &mut None;
    for key in path {
        if matches!(node.value, Value::Null) {
            node.value = Value::Map(Vec::new());
        }
        let Value::Map(entries) = &mut node.value else {
            return Err(no_mapping(above));
        };
        let index = entries.iter().position(|entry| entry.key == *key);
        let index = index.unwrap_or_else(|| {
            entries.push(Entry {
                key: (*key).to_owned(),
                key_pos,
                node: Node { value: Value::Null, pos: key_pos, origin: origin.clone() },
            });
            entries.len() - 1
        });
        let Some(entry) = entries.get_mut(index) else {
            return Err(no_mapping(above));
        };
        (node, last_key) = (&mut entry.node, &mut entry.key_pos);
        above = key;
    }
    *node = new;
    if key_pos.is_some() {
        *last_key = key_pos;
    }
    Ok(())
}
