//! The submit command as it was typed, kept with the job for people; without the API token.

/// Longest header value that carries the command, in bytes, without the mark of a cut. The
/// coordinator takes a command of 16 KiB.
const MAX_HEADER_BYTES: usize = 16 * 1024 - 9;

/// The command line of `arguments` (without the program) in the spelling of a shell, with the
/// value of `--token` replaced.
pub fn spelled(arguments: &[String]) -> String {
    let mut out = vec!["gangline".to_owned()];
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            out.push(argument.clone());
            out.extend(arguments.by_ref().map(|argument| quote(argument)));
        } else if argument == "--token" {
            out.push(argument.clone());
            out.extend(arguments.next().map(|_| "***".to_owned()));
        } else if argument.starts_with("--token=") {
            out.push("--token=***".to_owned());
        } else {
            out.push(quote(argument));
        }
    }
    out.join(" ")
}

fn quote(argument: &str) -> String {
    // Only a NUL has no spelling, and no argument of a process holds one.
    shlex::try_quote(argument)
        .map_or_else(|_| argument.replace('\0', ""), |quoted| quoted.into_owned())
}

/// `text` as the value of a header: percent-encoded UTF-8, cut with `…` when it is very long.
pub fn percent_encoded(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let mut bytes = [0; 4];
        let encoded: String = c.encode_utf8(&mut bytes).bytes().map(encode_byte).collect();
        if out.len() + encoded.len() > MAX_HEADER_BYTES {
            out.push_str("%E2%80%A6");
            break;
        }
        out.push_str(&encoded);
    }
    out
}

fn encode_byte(byte: u8) -> String {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b'=' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spell(arguments: &[&str]) -> String {
        spelled(&arguments.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn tokens_are_hidden_and_the_command_is_not_touched() {
        assert_eq!(
            spell(&[
                "--token",
                "s3",
                "submit",
                "a b.yaml",
                "--token=s3",
                "--",
                "x",
                "--token",
                "mine"
            ]),
            "gangline --token *** submit 'a b.yaml' --token=*** -- x --token mine"
        );
        assert_eq!(spell(&["submit", "--token"]), "gangline submit --token");
        assert_eq!(spell(&["submit", "--token-file", "t"]), "gangline submit --token-file t");
    }

    #[test]
    fn headers_are_ascii_and_bounded() {
        assert_eq!(percent_encoded("a b\n训=/"), "a%20b%0A%E8%AE%AD=/");
        let long = percent_encoded(&"训".repeat(MAX_HEADER_BYTES));
        assert!(long.len() <= 16 * 1024 && long.ends_with("%E2%80%A6"));
    }
}
