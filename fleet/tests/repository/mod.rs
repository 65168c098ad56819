//! The files of the repository, and Rust text without comments, texts and test modules.

pub mod code_map;
pub mod imports;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Folders that hold what was built or fetched, at any depth; `.git` of a worktree is a file.
const NOT_OURS: [&str; 5] = ["target", ".git", "corpus", "artifacts", "__pycache__"];

/// One Rust file.
pub struct Source {
    /// Relative to the root of the repository.
    pub path: String,
    pub text: String,
    /// `text` with blanks for comments and texts; the same length and lines.
    pub code: String,
}

impl Source {
    /// Whether the whole file is a test module.
    pub fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests" || part == "tests.rs")
    }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file of the repository, relative to its root, in order.
pub fn paths() -> Vec<String> {
    fn walk(directory: &Path, prefix: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).expect("a readable folder") {
            let entry = entry.expect("a readable entry");
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = format!("{prefix}{name}");
            let kind = entry.file_type().expect("the kind of an entry");
            if NOT_OURS.contains(&name.as_str()) {
                continue;
            }
            if kind.is_file() {
                found.push(path);
            } else if kind.is_dir() {
                walk(&entry.path(), &format!("{path}/"), found);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), "", &mut found);
    found.sort();
    assert!(found.iter().any(|path| path == "Cargo.toml"), "not the root of the repository");
    found
}

/// Every Rust file.
pub fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let paths = paths().into_iter().filter(|path| path.ends_with(".rs"));
        paths
            .map(|path| {
                let text = std::fs::read_to_string(root().join(&path)).expect("a readable file");
                let code = code_of(&text);
                Source { path, text, code }
            })
            .collect()
    })
}

/// Names, as in code, of the crates that a program depends on.
pub fn dependencies(program: &str) -> Vec<String> {
    let manifest = std::fs::read_to_string(root().join(program).join("Cargo.toml"));
    let manifest = manifest.expect("a manifest");
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            if !name.is_empty() && !name.starts_with('#') {
                names.push(name.replace('-', "_"));
            }
        }
    }
    assert!(!names.is_empty(), "no dependencies in the manifest of {program}");
    names
}

/// Blanks comments and the contents of texts and characters; everything else stays in place.
pub fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        let end = at
            + match rest {
                [b'/', b'/', ..] => rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()),
                [b'/', b'*', ..] => block_comment(rest),
                [b'"', ..] => quoted(rest),
                [b'r', ..] if !continues_a_word(bytes, at) => raw_text(rest).unwrap_or(0),
                [b'b', b'r', ..] if !continues_a_word(bytes, at) => {
                    raw_text(&rest[1..]).map_or(0, |len| len + 1)
                }
                [b'\'', ..] => character(rest).unwrap_or(0),
                _ => 0,
            };
        for byte in code[at..end].iter_mut().filter(|byte| **byte != b'\n') {
            *byte = b' ';
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&code).into_owned()
}

fn continues_a_word(bytes: &[u8], at: usize) -> bool {
    at.checked_sub(1).is_some_and(|before| is_word(bytes[before]))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Length of a comment, which may hold others.
fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of a text with escapes.
fn quoted(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Length of `r"..."` or `r#"..."#`; `None` for a plain word, or a name such as `r#type`.
fn raw_text(rest: &[u8]) -> Option<usize> {
    let marks = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + marks) != Some(&b'"') {
        return None;
    }
    let end: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', marks)).collect();
    let body = &rest[2 + marks..];
    let len = body.windows(end.len()).position(|window| window == end).unwrap_or(body.len());
    Some((2 + marks + len + end.len()).min(rest.len()))
}

/// Length of a character; `None` for a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        // The first quote after the escaped one.
        return rest.iter().skip(3).position(|byte| *byte == b'\'').map(|at| at + 4);
    }
    // One character of up to four bytes.
    let end = rest.iter().skip(2).take(4).position(|byte| *byte == b'\'')? + 2;
    let one = std::str::from_utf8(&rest[1..end]).is_ok_and(|text| text.chars().count() == 1);
    one.then_some(end + 1)
}

/// `code` without what stands below `#[cfg(test)]`.
pub fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        kept.push_str(&rest[..at]);
        rest = &rest[at + MARK.len()..];
        let mut depth = 0_usize;
        let mut end = rest.len();
        for (at, c) in rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            // The item ends with its block, or without one.
            if depth == 0 && matches!(c, '}' | ';') {
                end = at + 1;
                break;
            }
        }
        rest = &rest[end..];
    }
    kept + rest
}

/// Whether `text` has `word` as a whole word.
pub fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| is_whole(text, at, word.len()))
}

/// Whether no word goes on before or after `len` bytes from `at`.
fn is_whole(text: &str, at: usize, len: usize) -> bool {
    let bytes = text.as_bytes();
    !continues_a_word(bytes, at) && !bytes.get(at + len).copied().is_some_and(is_word)
}

/// Whether `line` has `mark` as a word without `#` and a number right after it.
pub fn unnumbered(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(at, _)| {
        let after = &line[at + mark.len()..];
        let number = after.trim_start_matches(['(', ' ', ':']).strip_prefix('#');
        is_whole(line, at, mark.len())
            && !number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_texts_are_blank() {
        let text = "let a = \"b // \\\" c\"; // d\n/* e /* f */ g */ let h = 'i'; let j: &'k str;";
        let code = code_of(text);
        assert_eq!(code.len(), text.len());
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["let", "a", "=", ";", "let", "h", "=", ";", "let", "j:", "&'k", "str;"]);
    }

    #[test]
    fn raw_texts_and_escapes_are_blank() {
        let text = r###"f(r#"x " y"#, br"z", b"w", '\'', '"', '\u{1f}', 'ß', r#type, var"s")"###;
        let code: String = code_of(text).split_whitespace().collect();
        assert_eq!(code, "f(,,b,,,,,r#type,var)");
    }

    #[test]
    fn test_modules_are_left_out() {
        let code =
            "use a; #[cfg(test)] mod tests { use b; fn c() { d } } use e; #[cfg(test)] mod f; g";
        assert_eq!(without_tests(code).split_whitespace().collect::<String>(), "usea;usee;g");
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("use quinn::x", "quinn"));
        assert!(!has_word("let (my_quinn, quinn_is) = 1", "quinn"));
    }

    #[test]
    fn marks_need_numbers() {
        for good in ["MARK(#12): x", "MARK #7", "MARK: #7", "BOOKMARK", "MARKS"] {
            assert!(!unnumbered(good, "MARK"), "{good}");
        }
        for bad in ["MARK", "MARK: later", "MARK(me)", "x MARK # 7"] {
            assert!(unnumbered(bad, "MARK"), "{bad}");
        }
    }
}
