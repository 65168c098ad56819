//! Slurm's short form of many host names: `gpu-[01-03,07],login`.

/// Most names that a list may stand for.
const MAX_NAMES: usize = 1024;

/// Every name of the list; `None` when it has another form or stands for more than 1024 names.
pub(super) fn expand(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for part in split_outside_brackets(list)? {
        let mut expanded = vec![String::new()];
        let mut rest = part;
        while let Some((before, after)) = rest.split_once('[') {
            let (inside, behind) = after.split_once(']')?;
            let items = numbers(inside)?;
            if expanded.len().checked_mul(items.len())? > MAX_NAMES {
                return None;
            }
            expanded = expanded
                .iter()
                .flat_map(|name| items.iter().map(move |item| format!("{name}{before}{item}")))
                .collect();
            rest = behind;
        }
        names.extend(expanded.into_iter().map(|name| name + rest));
        if names.len() > MAX_NAMES {
            return None;
        }
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = |name: &String| !name.is_empty() && name.chars().all(plain);
    names.iter().all(good).then_some(names)
}

fn split_outside_brackets(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if inside => return None,
            '[' => inside = true,
            ']' => inside = false,
            ',' if !inside => {
                parts.push(list.get(start..at)?);
                start = at.checked_add(1)?;
            }
            _ => {}
        }
    }
    parts.push(list.get(start..)?);
    Some(parts)
}

/// `01-03,07`, with the leading zeros of the first number.
fn numbers(text: &str) -> Option<Vec<String>> {
    let mut out = Vec::new();
    for item in text.split(',') {
        let (low, high) = item.split_once('-').unwrap_or((item, item));
        let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
        if !is_number(low) || !is_number(high) {
            return None;
        }
        let (first, last): (u64, u64) = (low.parse().ok()?, high.parse().ok()?);
        let more = usize::try_from(last.checked_sub(first)?).ok()?.checked_add(1)?;
        if out.len().checked_add(more)? > MAX_NAMES {
            return None;
        }
        out.extend((first..=last).map(|number| format!("{number:0width$}", width = low.len())));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let names = |text: &str| expand(text).map(|names| names.join(" "));
        let cases = [
            ("a", "a"),
            ("a,b.c", "a b.c"),
            ("gpu-[01-03,07],x", "gpu-01 gpu-02 gpu-03 gpu-07 x"),
            ("r[1-2]n[9-10]-ib", "r1n9-ib r1n10-ib r2n9-ib r2n10-ib"),
        ];
        for (text, expected) in cases {
            assert_eq!(names(text).as_deref(), Some(expected), "{text}");
        }
        for bad in ["", "a,", "a[", "a[]", "a[1-]", "a[3-1]", "a[[1]]", "a[1-9999999999]", "a b"] {
            assert_eq!(expand(bad), None, "{bad}");
        }
        assert_eq!(expand("a[0-31]b[0-31]").map(|names| names.len()), Some(1024));
        assert_eq!(expand("a[0-31]b[0-32]"), None);
    }
}
