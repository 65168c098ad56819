//! Secrets taken out of text that people will read: by the name of a variable, and by value wherever
//! a value stands.

use aho_corasick::{AhoCorasick, MatchKind};

/// What stands in the place of a secret.
pub const HIDDEN: &str = "[secret]";

/// A shorter value is not looked for: it would be found in every text. In bytes.
const MIN_VALUE: usize = 4;
/// Lines and words of a value of at least so many bytes are looked for by themselves: logs break
/// lines, and shells and programs quote what they print.
const MIN_PIECE: usize = 8;

/// The end of a log that is searched for its last lines, in bytes.
pub const END_BYTES: usize = 64 << 10;
/// Most lines that are kept of it.
const LAST_LINES: usize = 200;
/// Longest line that is kept, in characters.
const LINE_CHARS: usize = 2000;

/// Parts of a variable's name that make its value a secret.
const SECRET_WORDS: [&str; 12] = [
    "TOKEN",
    "SECRET",
    "SECRETS",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASS",
    "KEY",
    "APIKEY",
    "CREDENTIAL",
    "CREDENTIALS",
    "COOKIE",
];
/// Last parts of a name that say where a secret is, not what it is.
const PLACES: [&str; 4] = ["PATH", "FILE", "DIR", "MODE"];

/// A value of a variable that only its name makes a secret is looked for from this length on, in
/// bytes: `API_KEY=none` must not blacken every "none".
const MIN_NAMED: usize = 8;

/// Whether this variable looks like a secret that can be looked for.
#[must_use]
pub fn is_secret(name: &str, value: &str) -> bool {
    is_secret_name(name) && value.len() >= MIN_NAMED
}

/// Whether a variable of this name looks like it holds a secret.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let words = || upper.split(|c: char| !c.is_ascii_alphanumeric());
    let place = words().next_back().is_some_and(|last| PLACES.contains(&last));
    !place && words().any(|word| SECRET_WORDS.contains(&word))
}

/// A user's name in an address is a token from this length on, in bytes.
const MIN_TOKEN: usize = 20;

/// Too much is secret to be looked for.
#[derive(Debug, thiserror::Error)]
#[error("the secrets cannot be looked for: {0}")]
pub struct RedactError(String);

/// Finds values in text, in time that does not grow with their number.
pub struct Redactor {
    search: AhoCorasick,
}

impl Redactor {
    /// Looks for these values, for their lines and words, and for the way JSON and Python print them.
    ///
    /// # Errors
    /// They are too many and too long to be looked for.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Result<Self, RedactError> {
        let mut wanted = Vec::new();
        for value in values {
            let whole = [value, value.trim()];
            wanted.extend(whole.into_iter().filter(|v| v.len() >= MIN_VALUE).map(str::to_owned));
            let words = value.split(|c: char| c.is_whitespace() || "'\"\\`".contains(c));
            let pieces = value.lines().map(str::trim).chain(words);
            wanted.extend(pieces.filter(|piece| piece.len() >= MIN_PIECE).map(str::to_owned));
            if value.len() >= MIN_VALUE {
                wanted.push(escaped(value));
            }
        }
        wanted.sort();
        wanted.dedup();
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&wanted)
            .map_err(|error| RedactError(error.to_string()))?;
        Ok(Redactor { search })
    }

    /// The text without them, and without the passwords and tokens of addresses
    /// (`https://user:password@host`, `https://TOKEN@host`).
    #[must_use]
    pub fn clean(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        self.search.replace_all_with(text, &mut clean, |_, _, out| {
            out.push_str(HIDDEN);
            true
        });
        without_passwords(clean)
    }

    /// The last lines of a log without them, from the bytes at its end, which are all of it or not.
    #[must_use]
    pub fn last_lines(&self, end: &[u8], is_all: bool) -> String {
        let text = String::from_utf8_lossy(end);
        let whole = match text.find(['\n', '\r']) {
            _ if is_all => &*text,
            // The first line may lack its beginning: half a secret would not be known as one.
            Some(at) => text.get(at + 1..).unwrap_or_default(),
            None => return format!("(its last line has over {} bytes)\n", end.len()),
        };
        let clean = self.clean(whole);
        let lines: Vec<&str> = clean.split(['\n', '\r']).filter(|line| !line.is_empty()).collect();
        let mut last = String::new();
        for line in lines.iter().skip(lines.len().saturating_sub(LAST_LINES)) {
            last.extend(line.chars().take(LINE_CHARS));
            last.push('\n');
        }
        last
    }

    /// The bytes without them.
    #[must_use]
    pub fn clean_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut clean = Vec::with_capacity(bytes.len());
        self.search.replace_all_with_bytes(bytes, &mut clean, |_, _, out| {
            out.extend_from_slice(HIDDEN.as_bytes());
            true
        });
        clean
    }
}

fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 8);
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            other => text.push(other),
        }
    }
    text
}

fn without_passwords(text: String) -> String {
    if !text.contains("://") {
        return text;
    }
    let mut clean = String::with_capacity(text.len());
    let mut pieces = text.split("://");
    clean.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        clean.push_str("://");
        let end = piece.find(|c: char| c.is_whitespace() || "/'\"?#<>".contains(c));
        let authority = piece.get(..end.unwrap_or(piece.len())).unwrap_or_default();
        let Some((user, _)) = authority.rsplit_once('@') else {
            clean.push_str(piece);
            continue;
        };
        let rest = piece.get(user.len()..).unwrap_or_default();
        let (name, password) = match user.split_once(':') {
            Some((name, _)) => (name, [":", HIDDEN].concat()),
            None => (user, String::new()),
        };
        // Servers of code take a token for the name of a user.
        let name = if name.len() >= MIN_TOKEN { HIDDEN } else { name };
        clean.extend([name, &password, rest]);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell() {
        for name in ["WANDB_API_KEY", "HF_TOKEN", "db_password", "MY-SECRET", "AWS_ACCESS_KEY_ID"] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in
            ["PATH", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "RAY_AUTH_TOKEN_PATH", "KEYBOARD", ""]
        {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn a_value_is_found_however_it_is_printed() {
        let value = "canary-one-7d1f 'quoted' $HOME\nand a second-line-of-it";
        let redactor = Redactor::new([value, "pw42", "no", ""]).unwrap();
        for (text, clean) in [
            (format!("before {value} after"), "before [secret] after".to_owned()),
            (format!("{{\"K\":\"{}\"}}", escaped(value)), "{\"K\":\"[secret]\"}".to_owned()),
            ("x='canary-one-7d1f '\"'\"'quo".to_owned(), "x='[secret] '\"'\"'quo".to_owned()),
            ("and a second-line-of-it".to_owned(), "[secret]".to_owned()),
            ("a=pw42b".to_owned(), "a=[secret]b".to_owned()),
            ("no, not at all".to_owned(), "no, not at all".to_owned()),
        ] {
            assert_eq!(redactor.clean(&text), clean, "{text}");
            assert_eq!(redactor.clean_bytes(text.as_bytes()), clean.as_bytes(), "{text}");
        }
    }

    #[test]
    fn passwords_of_addresses_go() {
        let redactor = Redactor::new([]).unwrap();
        for (text, clean) in [
            ("http://u:p@h:1/x y://b", "http://u:[secret]@h:1/x y://b"),
            ("https://h/a:b@c", "https://h/a:b@c"),
            ("p=s3://u:a:b@c\" d", "p=s3://u:[secret]@c\" d"),
            ("ssh://git@host/a", "ssh://git@host/a"),
            ("https://ghp_0123456789abcdefABCDEF@h/a.git", "https://[secret]@h/a.git"),
            ("https://ghp_0123456789abcdefABCDEF:x-oauth@h", "https://[secret]:[secret]@h"),
        ] {
            assert_eq!(redactor.clean(text), clean);
        }
    }

    #[test]
    fn many_values_are_looked_for_at_once() {
        let values: Vec<String> = (0..5000).map(|n| format!("value-number-{n}-of-many")).collect();
        let redactor = Redactor::new(values.iter().map(String::as_str)).unwrap();
        let text = "nothing of it here\n".repeat(10_000);
        assert_eq!(redactor.clean(&text), text);
        assert_eq!(redactor.clean("value-number-4999-of-many"), HIDDEN);
    }
}
