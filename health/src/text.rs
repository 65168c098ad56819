//! Text that came from outside, made fit to show: no control characters, bounded.

/// `text` with every control character as a `?`, cut to `max` characters with an ellipsis.
pub fn clean(text: &str, max: usize) -> String {
    let shown = |c: char| {
        // Marks that turn or hide text are as unwelcome as escapes.
        let hides = matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || hides { '?' } else { c }
    };
    let mut clean: String = text.chars().take(max).map(shown).collect();
    if text.chars().nth(max).is_some() {
        clean.pop();
        clean.push('…');
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleaned_and_cut() {
        assert_eq!(clean("a\nb\u{1b}\u{202e}c", 10), "a?b??c");
        assert_eq!(clean("abcdef", 6), "abcdef");
        assert_eq!(clean("abcdefg", 6), "abcde…");
    }
}
