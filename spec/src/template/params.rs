//! Values of params: read from a spec by the table of a template.

use std::collections::BTreeMap;

use serde_json::json;

use crate::cell::Cell;
use crate::error::{Code, Problems, quoted};
use crate::suggest::nearest;
use crate::template::model::{Param, ParamKind, ParamValue};
use crate::tree::{Node, ScalarKind, Value, join};
use crate::validate::dotted;

/// Most items of a list.
const MAX_ITEMS: usize = 4096;

/// Read one value; what is wrong is reported and gives `None`.
pub(crate) fn read(cell: &Cell<'_>, kind: &ParamKind, out: &mut Problems) -> Option<ParamValue> {
    match kind {
        ParamKind::Text => line(cell, out).map(ParamValue::Text),
        ParamKind::Argument => cell.text(out).map(ParamValue::Text),
        ParamKind::Path => {
            let text = line(cell, out)?;
            if text.starts_with('/') || text.contains("://") {
                return Some(ParamValue::Text(text));
            }
            let hint = "the job may start in another directory";
            cell.wrong("an absolute path or a URL", Some(hint), out);
            None
        }
        ParamKind::Bool => cell.boolean(out).map(ParamValue::Bool),
        ParamKind::Choice(words) => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let index = cell.word(&words, out)?;
            words.get(index).map(|word| ParamValue::Text((*word).to_owned()))
        }
        ParamKind::Integer(min) => {
            let value = cell.int(out)?;
            if value < *min || i64::try_from(value).is_err() {
                cell.wrong(&format!("a whole number of at least {min}"), None, out);
                return None;
            }
            Some(ParamValue::Number(value.to_string()))
        }
        ParamKind::Float(min, max) => {
            let value = cell.number(out)?;
            if !(*min..=*max).contains(&value) {
                cell.wrong(&format!("a number from {min} to {max}"), None, out);
                return None;
            }
            Some(ParamValue::Number(as_written(cell, value)))
        }
        ParamKind::List(kind) => list(cell, kind, out),
        ParamKind::Table(params) => table(cell, params, out).map(ParamValue::Table),
    }
}

/// The values of a table: those that are given, and the defaults of the others.
pub(crate) fn table(
    cell: &Cell<'_>,
    params: &[Param],
    out: &mut Problems,
) -> Option<BTreeMap<String, ParamValue>> {
    let entries = cell.entries(out)?;
    let mut values = BTreeMap::new();
    let mut good = true;
    for entry in entries {
        let pointer = join(&cell.pointer, &entry.key);
        let Some(param) = params.iter().find(|param| param.name == entry.key) else {
            let names = || params.iter().map(|param| param.name.as_str());
            let hint = match nearest(&entry.key, names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known here: {}", names().collect::<Vec<_>>().join(", ")),
            };
            let place = dotted(&cell.pointer);
            let message = format!("unknown field {} in {place}", quoted(&entry.key));
            out.key(Code::UNKNOWN_FIELD, &pointer, message, Some(hint));
            good = false;
            continue;
        };
        match read(&Cell::new(&entry.node, pointer), &param.kind, out) {
            Some(value) => {
                values.insert(param.name.clone(), value);
            }
            None => good = false,
        }
    }
    let given: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    let missing = absent(&cell.pointer, params, &given, &mut values, out);
    (good && !missing).then_some(values)
}

/// Put the defaults of the params that are not given; whether a required one is missing.
pub(crate) fn absent(
    pointer: &str,
    params: &[Param],
    given: &[&str],
    values: &mut BTreeMap<String, ParamValue>,
    out: &mut Problems,
) -> bool {
    let mut missing = false;
    for param in params.iter().filter(|param| !given.contains(&param.name.as_str())) {
        let pointer = join(pointer, &param.name);
        if let Some(default) = &param.default {
            values.insert(param.name.clone(), default.clone());
        } else if param.required {
            let message = format!("`{}` is missing", dotted(&pointer));
            out.key(Code::MISSING, &pointer, message, Some(param.about.clone()));
            missing = true;
        } else if let ParamKind::Table(inner) = &param.kind
            && inner.iter().all(|param| !param.required)
        {
            // A table that is not given has its defaults all the same.
            let mut table = BTreeMap::new();
            absent(&pointer, inner, &[], &mut table, out);
            if !table.is_empty() {
                values.insert(param.name.clone(), ParamValue::Table(table));
            }
        }
    }
    missing
}

fn list(cell: &Cell<'_>, kind: &ParamKind, out: &mut Problems) -> Option<ParamValue> {
    let items = cell.items("a list", None, out, |item, out| read(item, kind, out))?;
    if items.is_empty() || items.len() > MAX_ITEMS {
        let form = format!("a list of 1 to {MAX_ITEMS} items");
        let message = format!("`{}` must be {form}, not {}", dotted(&cell.pointer), items.len());
        out.value(Code::BAD_VALUE, &cell.pointer, message, None);
        return None;
    }
    Some(ParamValue::List(items))
}

/// One line of text that is not empty.
fn line(cell: &Cell<'_>, out: &mut Problems) -> Option<String> {
    let text = cell.text(out)?;
    if text.is_empty() || text.chars().any(char::is_control) {
        cell.wrong("one line of text, not empty", None, out);
        return None;
    }
    Some(text)
}

/// The text of a number, where every reader of decimal numbers takes it.
fn as_written(cell: &Cell<'_>, value: f64) -> String {
    let decimal = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    match &cell.node.value {
        Value::Scalar(scalar)
            if scalar.text.chars().all(decimal) && scalar.text.parse() == Ok(value) =>
        {
            scalar.text.clone()
        }
        _ => format!("{value:?}"),
    }
}

/// The params of a spec as JSON, for the record of a job.
pub(crate) fn to_json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Null => serde_json::Value::Null,
        Value::Scalar(scalar) => match scalar.kind {
            ScalarKind::Text => json!(scalar.text),
            ScalarKind::Bool => json!(scalar.text.eq_ignore_ascii_case("true")),
            ScalarKind::Int(value) => match i64::try_from(value) {
                Ok(value) => json!(value),
                Err(_) => json!(scalar.text),
            },
            // What JSON cannot write as a number stays the text that it was.
            ScalarKind::Float(value) if value.is_finite() => json!(value),
            ScalarKind::Float(_) => json!(scalar.text),
        },
        Value::List(items) => items.iter().map(to_json).collect(),
        Value::Map(entries) => serde_json::Value::Object(
            entries.iter().map(|entry| (entry.key.clone(), to_json(&entry.node))).collect(),
        ),
    }
}
