//! A value as Hydra's override grammar reads it back: `a/b`, `"a b"`, `["a","b"]`, `True`.

use crate::template::model::ParamValue;

/// A text that Hydra cannot be given as a plain value.
pub(crate) struct Interpolation;

/// The text after `KEY=` that Hydra reads as `value`.
///
/// # Errors
/// A text holds `${`, which OmegaConf would replace.
pub(crate) fn write(value: &ParamValue) -> Result<String, Interpolation> {
    match value {
        ParamValue::Text(text) if is_plain(text) => Ok(text.clone()),
        ParamValue::Text(text) => quote(text),
        ParamValue::Number(text) => Ok(text.clone()),
        ParamValue::Bool(value) => Ok(if *value { "True" } else { "False" }.to_owned()),
        ParamValue::List(items) => {
            let items: Result<Vec<String>, Interpolation> = items
                .iter()
                .map(|item| match item {
                    ParamValue::Text(text) => quote(text),
                    other => write(other),
                })
                .collect();
            Ok(format!("[{}]", items?.join(",")))
        }
        ParamValue::Table(entries) => {
            let entries: Result<Vec<String>, Interpolation> = entries
                .iter()
                .map(|(key, value)| Ok(format!("{}:{}", quote(key)?, write(value)?)))
                .collect();
            Ok(format!("{{{}}}", entries?.join(",")))
        }
    }
}

/// Whether Hydra reads the text without quotes as this very text.
fn is_plain(text: &str) -> bool {
    let word = text.to_ascii_lowercase();
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-'))
        && !matches!(word.as_str(), "true" | "false" | "null" | "nan" | "inf")
}

/// In quotes. Hydra takes a backslash as one except before a quote, where it halves the run.
fn quote(text: &str) -> Result<String, Interpolation> {
    if text.contains("${") {
        return Err(Interpolation);
    }
    let mut out = String::from('"');
    let mut backslashes = 0;
    for c in text.chars().chain(std::iter::once('"')) {
        if c == '"' {
            out.push_str(&"\\".repeat(backslashes));
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
        if c == '"' {
            out.push('\\');
        }
        out.push(c);
    }
    // The last quote is the closing one: it was written as an inner one.
    out.truncate(out.len().saturating_sub(2));
    out.push('"');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        write(&ParamValue::Text(text.to_owned())).unwrap_or_else(|_| "refused".to_owned())
    }

    #[test]
    fn texts_are_quoted_where_hydra_would_read_something_else() {
        let cases = [
            ("/models/Qwen3-8B", "/models/Qwen3-8B"),
            ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
            ("1e-6", "\"1e-6\""),
            ("null", "\"null\""),
            ("True", "\"True\""),
            ("a b", "\"a b\""),
            ("a=b,c", "\"a=b,c\""),
            ("a\"b", "\"a\\\"b\""),
            ("a\\b", "\"a\\b\""),
            ("a\\\"b", "\"a\\\\\\\"b\""),
            ("a\\", "\"a\\\\\""),
            ("$HOME", "\"$HOME\""),
            ("a${b}", "refused"),
        ];
        for (text, expected) in cases {
            assert_eq!(written(text), expected, "{text}");
        }
    }

    #[test]
    fn lists_and_tables() {
        let texts = ["a", "b c"].map(|text| ParamValue::Text(text.to_owned()));
        let list = ParamValue::List(texts.to_vec());
        assert_eq!(write(&list).ok().as_deref(), Some("[\"a\",\"b c\"]"));
        let table = ParamValue::Table([("k".to_owned(), ParamValue::Bool(true))].into());
        assert_eq!(write(&table).ok().as_deref(), Some("{\"k\":True}"));
    }
}
