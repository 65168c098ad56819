//! The differences of two texts, line by line, in the unified form of `diff -u`.

/// Lines around a difference.
const CONTEXT: usize = 3;
/// Most pairs of lines that are compared to find the fewest differences. Beyond it everything
/// between the common start and the common end counts as changed.
const MAX_PAIRS: usize = 4_000_000;

/// What a line of the result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The name of a text, or where a group of differences stands.
    Head,
    /// In both texts.
    Same,
    /// Only in the first.
    Removed,
    /// Only in the second.
    Added,
}

/// The differences of `left` and `right`, as lines without their ends; none when the texts have
/// the same lines.
pub fn unified(names: [&str; 2], left: &str, right: &str) -> Vec<(Mark, String)> {
    let left: Vec<&str> = left.lines().collect();
    let right: Vec<&str> = right.lines().collect();
    let edits = edits(&left, &right);
    if edits.iter().all(|(mark, _)| *mark == Mark::Same) {
        return Vec::new();
    }
    let mut out =
        vec![(Mark::Head, format!("--- {}", names[0])), (Mark::Head, format!("+++ {}", names[1]))];
    let near = near_changes(&edits);
    // Number of the next line of each text, from 1.
    let mut next = [1, 1];
    let mut at = 0;
    while let Some(is_near) = near.get(at) {
        let end = near.iter().skip(at).position(|other| other != is_near);
        let group = edits.iter().skip(at).take(end.unwrap_or(usize::MAX));
        let counts = [Mark::Removed, Mark::Added].map(|mark| {
            group.clone().filter(|(other, _)| [mark, Mark::Same].contains(other)).count()
        });
        if *is_near {
            let range = |side: usize| match (next[side], counts[side]) {
                (first, 1) => first.to_string(),
                // An empty group stands behind the line before it.
                (first, 0) => format!("{},0", first - 1),
                (first, count) => format!("{first},{count}"),
            };
            out.push((Mark::Head, format!("@@ -{} +{} @@", range(0), range(1))));
            out.extend(group.clone().map(|(mark, line)| {
                let sign = match mark {
                    Mark::Removed => '-',
                    Mark::Added => '+',
                    Mark::Same | Mark::Head => ' ',
                };
                (*mark, format!("{sign}{line}"))
            }));
        }
        next = [next[0] + counts[0], next[1] + counts[1]];
        at += group.count();
    }
    out
}

/// For each edit, whether it is a change or near one.
fn near_changes(edits: &[(Mark, &str)]) -> Vec<bool> {
    let mut near = vec![false; edits.len()];
    let changes = edits.iter().enumerate().filter(|(_, (mark, _))| *mark != Mark::Same);
    for (at, _) in changes {
        let from = at.saturating_sub(CONTEXT);
        near.iter_mut().skip(from).take(at - from + CONTEXT + 1).for_each(|flag| *flag = true);
    }
    near
}

/// Every line of both texts, with the longest common part as `Same`.
fn edits<'a>(left: &[&'a str], right: &[&'a str]) -> Vec<(Mark, &'a str)> {
    let same = |(a, b): &(&&str, &&str)| a == b;
    let start = left.iter().zip(right).take_while(same).count();
    let (head, left) = left.split_at(start);
    let (_, right) = right.split_at(start);
    let end = left.iter().rev().zip(right.iter().rev()).take_while(same).count();
    let (left, tail) = left.split_at(left.len() - end);
    let (right, _) = right.split_at(right.len() - end);
    let marked = |mark, lines: &[&'a str]| -> Vec<(Mark, &'a str)> {
        lines.iter().map(|line| (mark, *line)).collect()
    };
    let middle = if left.len().saturating_mul(right.len()) > MAX_PAIRS {
        [marked(Mark::Removed, left), marked(Mark::Added, right)].concat()
    } else {
        longest_common(left, right)
    };
    [marked(Mark::Same, head), middle, marked(Mark::Same, tail)].concat()
}

/// The edits by the table of the longest common subsequence.
fn longest_common<'a>(left: &[&'a str], right: &[&'a str]) -> Vec<(Mark, &'a str)> {
    // `rows[i][j]` is the length of the longest common part of left[i..] and right[j..].
    let mut rows: Vec<Vec<u32>> = vec![vec![0; right.len() + 1]];
    for a in left.iter().rev() {
        let mut row = vec![0; right.len() + 1];
        if let Some(below) = rows.last() {
            for (j, b) in right.iter().enumerate().rev() {
                row[j] = if a == b { below[j + 1] + 1 } else { below[j].max(row[j + 1]) };
            }
        }
        rows.push(row);
    }
    rows.reverse();
    let (mut i, mut j) = (0, 0);
    let mut out = Vec::with_capacity(left.len() + right.len());
    loop {
        match (left.get(i), right.get(j)) {
            (Some(a), Some(b)) if a == b => {
                out.push((Mark::Same, *a));
                (i, j) = (i + 1, j + 1);
            }
            (Some(a), Some(_)) if rows[i + 1][j] >= rows[i][j + 1] => {
                out.push((Mark::Removed, *a));
                i += 1;
            }
            (_, Some(b)) => {
                out.push((Mark::Added, *b));
                j += 1;
            }
            (Some(a), None) => {
                out.push((Mark::Removed, *a));
                i += 1;
            }
            (None, None) => return out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(left: &str, right: &str) -> String {
        let lines = unified(["a", "b"], left, right);
        lines.iter().map(|(_, line)| format!("{line}\n")).collect()
    }

    #[test]
    fn the_form_of_diff_u() {
        assert_eq!(diff("x\ny\n", "x\ny\n"), "");
        assert_eq!(diff("", "x\n"), "--- a\n+++ b\n@@ -0,0 +1 @@\n+x\n");
        assert_eq!(diff("x\n", ""), "--- a\n+++ b\n@@ -1 +0,0 @@\n-x\n");
        let left: String = (1..=20).map(|n| format!("{n}\n")).collect();
        let right = left.replace("5\n6\n", "5\nnew\n6\n").replace("17\n", "");
        assert_eq!(
            diff(&left, &right),
            "--- a\n+++ b\n@@ -3,6 +3,7 @@\n 3\n 4\n 5\n+new\n 6\n 7\n 8\n@@ -14,7 +15,6 @@\n 14\n \
             15\n 16\n-17\n 18\n 19\n 20\n"
        );
    }

    #[test]
    fn as_few_lines_as_possible_change() {
        let lines = unified(["a", "b"], "a\nb\nc\nd\n", "b\nx\nd\ne\n");
        let count = |mark| lines.iter().filter(|(other, _)| *other == mark).count();
        assert_eq!((count(Mark::Same), count(Mark::Removed), count(Mark::Added)), (2, 2, 2));
    }

    #[test]
    fn very_different_long_texts_have_a_bound() {
        let left: String = (0..3000).map(|n| format!("a{n}\n")).collect();
        let right: String = (0..3000).map(|n| format!("b{n}\n")).collect();
        let lines = unified(["a", "b"], &left, &right);
        assert_eq!(lines.len(), 6003);
    }
}
