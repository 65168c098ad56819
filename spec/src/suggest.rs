//! "Did you mean": the known word that is nearest to an unknown one.

/// The one of `known` that is nearest to `word`, when it is near enough to be what was meant.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = plain_form(word);
    let allowed = (word.chars().count() / 3).max(1);
    known
        .map(|name| (distance(&word, &plain_form(name)), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Longest word that is compared; no field comes near it, and the comparison is quadratic.
const MAX_COMPARED_CHARS: usize = 64;

/// A name without case and separators, so that `gpusPerNode` and `gpus-per-node` are the same.
pub(crate) fn plain_form(name: &str) -> String {
    name.chars()
        .filter(|c| !matches!(c, '-' | '_' | ' '))
        .take(MAX_COMPARED_CHARS)
        .flat_map(char::to_lowercase)
        .collect()
}

/// How many insertions, removals and replacements turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = Vec::with_capacity(row.len());
        next.push(left);
        for (to, above) in b.iter().zip(row.iter().skip(1)) {
            let replaced = diagonal + usize::from(from != *to);
            left = replaced.min(above + 1).min(left + 1);
            next.push(left);
            diagonal = *above;
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_single_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
