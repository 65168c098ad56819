//! `$NAME` and `${NAME}` in a text.

/// A piece of a text with variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Arrives as it is.
    Text(&'a str),
    /// The name alone; empty for a dollar sign that no name follows.
    Variable(&'a str),
}

/// The pieces of `text`, in their order.
pub(crate) fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    let mut after_dollar: Option<&str> = None;
    std::iter::from_fn(move || {
        if let Some(after) = after_dollar.take() {
            let (name, tail) = variable(after);
            rest = tail;
            return Some(Part::Variable(name));
        }
        let (before, dollar) = match rest.split_once('$') {
            Some((before, after)) => (before, Some(after)),
            None => (rest, None),
        };
        if before.is_empty() && dollar.is_none() {
            return None;
        }
        rest = "";
        after_dollar = dollar;
        Some(Part::Text(before))
    })
}

/// `text` with every variable replaced by what `value` gives for its name.
///
/// # Errors
/// The first error of `value`.
pub(crate) fn replace<E>(
    text: &str,
    value: impl Fn(&str) -> Result<String, E>,
) -> Result<String, E> {
    let mut out = String::with_capacity(text.len());
    for part in parts(text) {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Variable(name) => out.push_str(&value(name)?),
        }
    }
    Ok(out)
}

/// The name after a `$`, as `NAME` or `{NAME}`, and what follows it.
fn variable(after_dollar: &str) -> (&str, &str) {
    let braced = after_dollar.strip_prefix('{').and_then(|rest| rest.split_once('}'));
    if let Some(found) = braced {
        return found;
    }
    let end = after_dollar
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(after_dollar.len());
    after_dollar.split_at_checked(end).unwrap_or(("", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_text() {
        let pieces: Vec<Part<'_>> = parts("a$B/${C}d$$E").collect();
        let expected = [
            Part::Text("a"),
            Part::Variable("B"),
            Part::Text("/"),
            Part::Variable("C"),
            Part::Text("d"),
            Part::Variable(""),
            Part::Text(""),
            Part::Variable("E"),
        ];
        assert_eq!(pieces, expected);
        assert_eq!(parts("").count(), 0);
        assert_eq!(parts("plain").collect::<Vec<_>>(), [Part::Text("plain")]);
    }
}
