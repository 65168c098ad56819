//! The single checks that `validate` is made of, each with its message: counts and ranges, forms of
//! names, paths, sizes.

use std::ops::RangeInclusive;

use crate::error::{Code, Problems, quoted, shown};
use crate::tree::unescaped;

/// Most items of a list of names or patterns.
const MAX_ITEMS: usize = 1024;
pub(crate) const MAX_PATH_BYTES: usize = 4095;
const MAX_NAME_CHARS: usize = 63;

pub(crate) const NAME_FORM: &str =
    "lower-case letters, digits and `-`, at most 63, the first a letter or digit";
pub(crate) const ENV_NAME_FORM: &str = "letters, digits and `_`, not a digit first";
pub(crate) const LABEL_FORM: &str =
    "letters, digits, `.`, `_`, `-` and `/`, at most 63, the first a letter or digit";

/// A text that must say something, in one line.
pub(crate) fn check_text(pointer: &str, text: &str, max: usize, out: &mut Problems) {
    check_bytes(pointer, text.len(), max, out);
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        let form = "one line of text, not empty";
        check_form(pointer, text, false, form, out);
    }
}

pub(crate) fn check_items(pointer: &str, items: usize, out: &mut Problems) {
    if items > MAX_ITEMS {
        let message = format!("`{}` has {items} items; at most {MAX_ITEMS}", dotted(pointer));
        out.value(Code::TOO_LARGE, pointer, message, None);
    }
}

/// A count that must be in `range`; used while reading too, where it may not fit the type.
pub(crate) fn check_count(
    pointer: &str,
    value: impl Into<i128>,
    range: &RangeInclusive<u32>,
    out: &mut Problems,
) -> Option<u32> {
    let value = value.into();
    let wide = i128::from(*range.start())..=i128::from(*range.end());
    check_range(pointer, &value, &wide, i128::to_string, out);
    u32::try_from(value).ok().filter(|value| range.contains(value))
}

pub(crate) fn check_range<T: PartialOrd>(
    pointer: &str,
    value: &T,
    range: &RangeInclusive<T>,
    write: impl Fn(&T) -> String,
    out: &mut Problems,
) {
    // A NaN is in no range.
    if range.contains(value) {
        return;
    }
    out.value(
        Code::BAD_VALUE,
        pointer,
        format!(
            "`{}` must be from {} to {}, not {}",
            dotted(pointer),
            write(range.start()),
            write(range.end()),
            write(value)
        ),
        None,
    );
}

pub(crate) fn check_form(pointer: &str, value: &str, good: bool, form: &str, out: &mut Problems) {
    if !good {
        out.value(
            Code::BAD_VALUE,
            pointer,
            format!("`{}` cannot be {}", dotted(pointer), quoted(value)),
            Some(form.to_owned()),
        );
    }
}

pub(crate) fn check_path(pointer: &str, path: &str, out: &mut Problems) {
    check_nul(pointer, path, out);
    check_bytes(pointer, path.len(), MAX_PATH_BYTES, out);
    let problem = if !path.starts_with('/') {
        "must be an absolute path"
    } else if path.split('/').any(|part| part == "..") {
        "must be a path without `..`"
    } else {
        return;
    };
    out.value(
        Code::BAD_VALUE,
        pointer,
        format!("`{}` {problem}, not {}", dotted(pointer), quoted(path)),
        None,
    );
}

pub(crate) fn check_nul(pointer: &str, text: &str, out: &mut Problems) {
    if text.contains('\0') {
        let message = format!("`{}` holds a NUL character", dotted(pointer));
        out.value(Code::BAD_VALUE, pointer, message, None);
    }
}

pub(crate) fn check_bytes(pointer: &str, bytes: usize, max: usize, out: &mut Problems) {
    if bytes > max {
        let message = format!("`{}` has {bytes} bytes; at most {max}", dotted(pointer));
        out.value(Code::TOO_LARGE, pointer, message, None);
    }
}

/// A pointer as users write it: `/resources/nnodes` is `resources.nnodes`.
pub(crate) fn dotted(pointer: &str) -> String {
    shown(&unescaped(&pointer.trim_start_matches('/').replace('/', ".")))
}

pub(crate) fn is_name(name: &str) -> bool {
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(lower)
        && name.chars().all(|c| lower(c) || c == '-')
        && name.len() <= MAX_NAME_CHARS
}

/// What selects a job of the project: its id or its name.
pub(crate) const JOB_FORM: &str = "a job's name or id: letters, digits, `-` and `_`, at most 64";

pub(crate) fn selects_job(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (1..=64).contains(&text.len()) && text.chars().all(plain)
}

pub(crate) fn is_label(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/'))
        && text.len() <= MAX_NAME_CHARS
}

/// Whether `name` can be that of a variable.
pub fn is_env_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
