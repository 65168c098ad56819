//! Pages of many nodes joined into one: each family once, every sample with the name of its node.
//!
//! Pages come from agents. One that is not well formed, or that speaks of a node by itself, is left
//! out as a whole: a single bad line would make Prometheus refuse the page of all.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The label that is added.
const LABEL: &str = "node";
/// Most families of all pages together.
const MAX_FAMILIES: usize = 1024;
/// Families with ten samples for each CPU: of large hosts they are more than all the rest. Who wants
/// them scrapes the nodes.
const LEFT_OUT: [&str; 2] = ["node_cpu_seconds_total", "node_cpu_guest_seconds_total"];

/// Why a page cannot be joined.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum BadPage {
    #[error("it is not UTF-8")]
    Text,
    #[error("line {0} is not well formed")]
    Line(usize),
    #[error("line {0} has the label `node` itself")]
    Label(usize),
    #[error("it has too many families")]
    Families,
    #[error("all pages together are too large")]
    Size,
}

/// Families by name, in the order of names.
pub(super) struct Merged {
    families: BTreeMap<String, Family>,
    /// Bytes that may still be added.
    left: usize,
}

#[derive(Default, Clone)]
struct Family {
    /// `HELP` and `TYPE`, of the first page that had them.
    head: String,
    samples: String,
}

impl Merged {
    /// Takes up to `limit` bytes of samples.
    pub fn new(limit: usize) -> Self {
        Merged { families: BTreeMap::new(), left: limit }
    }

    /// Joins the page of a node in, or nothing of it.
    ///
    /// # Errors
    /// What is wrong with the page.
    pub fn add(&mut self, node: &str, page: &[u8]) -> Result<(), BadPage> {
        let text = std::str::from_utf8(page).map_err(|_| BadPage::Text)?;
        let label = format!("{LABEL}=\"{}\"", escaped(node));
        let mut new: BTreeMap<&str, Family> = BTreeMap::new();
        let mut current = "";
        let mut size = 0;
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() {
                continue;
            }
            if let Some(comment) = line.strip_prefix('#') {
                let mut words = comment.split_whitespace();
                if let (Some("HELP" | "TYPE"), Some(name)) = (words.next(), words.next()) {
                    if !is_name(name, true) {
                        return Err(BadPage::Line(number));
                    }
                    current = name;
                    let family = new.entry(name).or_default();
                    if family.samples.is_empty() {
                        family.head += line;
                        family.head.push('\n');
                    }
                }
                continue;
            }
            let sample = Sample::parse(line).ok_or(BadPage::Line(number))?;
            if sample.names.contains(&LABEL) {
                return Err(BadPage::Label(number));
            }
            if !sample.name.starts_with(current) || current.is_empty() {
                current = sample.name;
            }
            if LEFT_OUT.contains(&current) {
                continue;
            }
            let samples = &mut new.entry(current).or_default().samples;
            let before = samples.len();
            sample.write(samples, &label);
            size += samples.len() - before;
        }
        let names = new.keys().filter(|name| !self.families.contains_key(**name)).count();
        if self.families.len() + names > MAX_FAMILIES {
            return Err(BadPage::Families);
        }
        self.left = self.left.checked_sub(size).ok_or(BadPage::Size)?;
        for (name, family) in new {
            let known = self.families.entry(name.to_owned()).or_default();
            if known.head.is_empty() {
                known.head = family.head;
            }
            known.samples += &family.samples;
        }
        Ok(())
    }

    /// The joined page.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for family in self.families.values().filter(|family| !family.samples.is_empty()) {
            text += &family.head;
            text += &family.samples;
        }
        text
    }
}

/// A label value as the text format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Whether this is the name of a metric, or of a label.
fn is_name(name: &str, of_metric: bool) -> bool {
    let good = |c: char| c.is_ascii_alphabetic() || c == '_' || (of_metric && c == ':');
    let mut chars = name.chars();
    chars.next().is_some_and(good) && chars.all(|c| good(c) || c.is_ascii_digit())
}

/// One line `name{label="value",...} number [time]`.
struct Sample<'a> {
    name: &'a str,
    names: Vec<&'a str>,
    /// What stands between the braces, without a comma at its end.
    labels: &'a str,
    /// The number and perhaps the time.
    value: &'a str,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
        let (name, rest) = line.split_at(end);
        let (names, labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Vec::new(), "", rest),
        };
        let mut numbers = value.split_whitespace();
        let is_number = numbers.next()?.parse::<f64>().is_ok();
        let is_time = numbers.next().is_none_or(|time| time.parse::<i64>().is_ok());
        let is_whole = is_name(name, true) && is_number && is_time && numbers.next().is_none();
        is_whole.then_some(Sample { name, names, labels, value })
    }

    fn write(&self, out: &mut String, label: &str) {
        let comma = if self.labels.is_empty() { "" } else { "," };
        // Writing into a text cannot fail.
        let _ =
            writeln!(out, "{}{{{}{comma}{label}}} {}", self.name, self.labels, self.value.trim());
    }
}

/// The names of the labels, their text, and what follows the closing brace.
fn labels(text: &str) -> Option<(Vec<&str>, &str, &str)> {
    let mut names = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        if let Some(after) = rest.strip_prefix('}') {
            let inside = text.get(..text.len() - rest.len())?;
            return Some((names, inside.trim().trim_end_matches(','), after));
        }
        let (name, value) = rest.split_once('=')?;
        let name = name.trim();
        if !is_name(name, false) || names.contains(&name) {
            return None;
        }
        names.push(name);
        let value = value.trim_start().strip_prefix('"')?;
        rest = value.get(closing_quote(value)? + 1..)?;
        rest = rest.trim_start_matches([' ', '\t']);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.starts_with('}') => {}
            None => return None,
        }
    }
}

/// Where the value ends, which begins after its opening quote.
fn closing_quote(value: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in value.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP a First.\n# TYPE a gauge\na{x=\"1,}\\\"\"} 1\na{} 2\n\
                        # HELP b Second.\n# TYPE b histogram\nb_bucket{le=\"+Inf\"} 3 17\nb_sum 0.5\n\
                        b_count 3\nlonely NaN\n";

    #[test]
    fn pages_are_joined_by_family() {
        let mut merged = Merged::new(1 << 20);
        merged.add("n\"1", PAGE.as_bytes()).unwrap();
        merged.add("n2", b"# TYPE a counter\na 7\n").unwrap();
        assert_eq!(
            merged.text(),
            "# HELP a First.\n# TYPE a gauge\na{x=\"1,}\\\"\",node=\"n\\\"1\"} 1\n\
             a{node=\"n\\\"1\"} 2\na{node=\"n2\"} 7\n\
             # HELP b Second.\n# TYPE b histogram\nb_bucket{le=\"+Inf\",node=\"n\\\"1\"} 3 17\n\
             b_sum{node=\"n\\\"1\"} 0.5\nb_count{node=\"n\\\"1\"} 3\nlonely{node=\"n\\\"1\"} NaN\n"
        );
    }

    #[test]
    fn samples_of_each_cpu_are_left_out_and_cost_nothing() {
        let cpus = "node_cpu_seconds_total{cpu=\"0\",mode=\"idle\"} 1\n".repeat(100);
        let page = format!("# TYPE node_cpu_seconds_total counter\n{cpus}# TYPE a gauge\na 1\n");
        let mut merged = Merged::new(100);
        merged.add("n1", page.as_bytes()).unwrap();
        assert_eq!(merged.text(), "# TYPE a gauge\na{node=\"n1\"} 1\n");
    }

    #[test]
    fn a_page_that_would_spoil_the_others_is_left_out_whole() {
        let mut merged = Merged::new(100);
        merged.add("good", b"a 1\n").unwrap();
        let before = merged.text();
        let bad: [(&[u8], BadPage); 11] = [
            (b"a 1\n\xff", BadPage::Text),
            (b"ok 1\na{node=\"good\"} 1\n", BadPage::Label(2)),
            (b"a{x=\"1\",x=\"2\"} 1\n", BadPage::Line(1)),
            (b"a{x=\"1\"\n", BadPage::Line(1)),
            (b"a{x=1} 1\n", BadPage::Line(1)),
            (b"a{x=\"1\" y=\"2\"} 1\n", BadPage::Line(1)),
            (b"a one\n", BadPage::Line(1)),
            (b"a 1 2 3\n", BadPage::Line(1)),
            (b"1a 1\n", BadPage::Line(1)),
            (b"a\n", BadPage::Line(1)),
            (b"# TYPE 7 gauge\n", BadPage::Line(1)),
        ];
        for (page, why) in &bad {
            assert_eq!(merged.add("bad", page).as_ref(), Err(why), "{page:?}");
        }
        let large = "a{x=\"y\"} 1\n".repeat(10);
        assert_eq!(merged.add("bad", large.as_bytes()), Err(BadPage::Size));
        let many: String = (0..2000).map(|n| format!("a{n} 1\n")).collect();
        assert_eq!(Merged::new(1 << 20).add("bad", many.as_bytes()), Err(BadPage::Families));
        assert_eq!(merged.text(), before);
    }
}
