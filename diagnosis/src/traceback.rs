//! Python tracebacks: which lines are frames and code, which line names the exception, and what
//! chained exceptions say about each other. Ranks write at the same time, so each writer has its own.

use std::collections::BTreeMap;

use regex::Regex;

use crate::pattern::Pattern;

/// Most writers whose tracebacks are followed at once.
const MAX_WRITERS: usize = 256;
/// Most bytes of paths that are kept of one traceback; the innermost frames count.
const MAX_FRAMES_BYTES: usize = 2048;
/// Most lines of one traceback.
const MAX_LINES: usize = 2000;

/// How the next exception relates to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// "The above exception was the direct cause of the following exception".
    CausedBy,
    /// "During handling of the above exception, another exception occurred".
    WhileHandling,
}

/// What a line is to the traceback around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A frame, code that is shown, or the header: nothing that happened.
    Inner,
    /// The line that names the exception.
    Exception { frames: String, relation: Option<Relation> },
    /// Something else.
    None,
}

#[derive(Debug, Default)]
struct Trace {
    open: bool,
    /// The line before was a frame.
    after_frame: bool,
    /// Spaces before the last frame.
    indent: usize,
    lines: usize,
    frames: String,
    relation: Option<Relation>,
    /// Python says that it goes on: "Exception ignored in".
    ignored: bool,
}

/// What a frame of code that runs when a module is loaded is called.
const AT_IMPORT: &str = ", in <module>";
/// How such a frame is marked after its path.
const LOADING: &str = ":<module>";

/// The tracebacks of one source.
#[derive(Debug, Default)]
pub(crate) struct Tracebacks {
    of: BTreeMap<String, Trace>,
}

/// The first line of an exception: a dotted name, perhaps with a cause in parentheses.
static EXCEPTION: Pattern = Pattern::new(|| {
    Regex::new(r"^(?:[A-Za-z_][\w]*\.)*[A-Za-z_]\w*(?:\([\w.]+\))?(?::\s|:?$)").ok()
});

/// Ray's first line of an exception from elsewhere.
static WRAPPER: Pattern = Pattern::new(|| {
    Regex::new(r"^\s*(?:ray\.exceptions\.\w+\(\w+\): )?ray::[^()]+\([^)]*\) \(pid=").ok()
});

/// A frame of a traceback that Rich has drawn.
static DRAWN: Pattern = Pattern::new(|| Regex::new(r"(/[\w./-]+\.py):[0-9]+ in ").ok());

impl Tracebacks {
    /// What the next line of `writer` is.
    pub(crate) fn next(&mut self, writer: &str, text: &str) -> Part {
        if !self.of.contains_key(writer) && !starts(text) && relation(text).is_none() {
            return Part::None;
        }
        if self.of.len() >= MAX_WRITERS && !self.of.contains_key(writer) {
            self.of.clear();
        }
        self.of.entry(writer.to_owned()).or_default().next(text)
    }
}

fn starts(text: &str) -> bool {
    is_header(text) || frame(text).is_some() || is_drawn(text)
}

fn is_header(text: &str) -> bool {
    text.contains("Traceback (most recent call last)") || is_ignored(text) || WRAPPER.fits(text)
}

fn is_ignored(text: &str) -> bool {
    text.starts_with("Exception ignored in")
}

/// The path of a frame, and whether it is of code that runs when a module is loaded.
fn frame(text: &str) -> Option<(&str, bool)> {
    let rest = text.trim_start().strip_prefix("File \"")?;
    let (path, rest) = rest.split_once('"')?;
    rest.starts_with(", line ").then(|| (path, rest.trim_end().ends_with(AT_IMPORT)))
}

/// Bytes of white space that the line begins with.
fn indentation(text: &str) -> usize {
    text.len() - text.trim_start_matches([' ', '\t']).len()
}

fn is_drawn(text: &str) -> bool {
    text.trim_start().starts_with(['│', '╭', '╰', '❱'])
}

fn relation(text: &str) -> Option<Relation> {
    if text.contains("The above exception was the direct cause of the following") {
        Some(Relation::CausedBy)
    } else if text.contains("During handling of the above exception, another") {
        Some(Relation::WhileHandling)
    } else {
        None
    }
}

impl Trace {
    fn next(&mut self, text: &str) -> Part {
        if let Some(relation) = relation(text) {
            *self = Trace { relation: Some(relation), ..Trace::default() };
            return Part::Inner;
        }
        if is_header(text) {
            *self = Trace {
                open: true,
                relation: self.relation.take(),
                ignored: is_ignored(text) || (self.ignored && self.lines == 0),
                ..Trace::default()
            };
            return Part::Inner;
        }
        if is_drawn(text) {
            self.open = true;
            let path = DRAWN.captures(text).and_then(|found| found.get(1));
            if let Some(path) = path {
                self.add(path.as_str(), text.contains(" in <module>"));
            }
            return Part::Inner;
        }
        if let Some((path, at_import)) = frame(text) {
            self.open = true;
            self.add(path, at_import);
            self.after_frame = true;
            self.indent = indentation(text);
            return Part::Inner;
        }
        if !self.open {
            return Part::None;
        }
        self.lines += 1;
        if self.lines > MAX_LINES {
            *self = Trace::default();
            return Part::None;
        }
        let after_frame = std::mem::take(&mut self.after_frame);
        // Pasted, all of it may be indented; the exception is so less than the frames.
        let indented = indentation(text) >= self.indent.max(1);
        if indented && !self.frames.is_empty() {
            return Part::Inner;
        }
        if !indented && EXCEPTION.fits(text.trim_start()) {
            let trace = std::mem::take(self);
            if trace.ignored {
                return Part::Inner;
            }
            return Part::Exception { frames: trace.frames, relation: trace.relation };
        }
        if after_frame {
            return Part::Inner;
        }
        Part::None
    }

    fn add(&mut self, path: &str, at_import: bool) {
        self.lines += 1;
        self.frames.push(' ');
        self.frames.push_str(path);
        if at_import {
            self.frames.push_str(LOADING);
        }
        while self.frames.len() > MAX_FRAMES_BYTES {
            let end = self.frames.get(1..).and_then(|rest| rest.find(' '));
            self.frames = match end {
                Some(end) => self.frames.split_off(end + 1),
                None => String::new(),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<Part> {
        let mut tracebacks = Tracebacks::default();
        text.lines().map(|line| tracebacks.next("", line)).collect()
    }

    fn exception(frames: &str, relation: Option<Relation>) -> Part {
        Part::Exception { frames: frames.to_owned(), relation }
    }

    #[test]
    fn the_last_line_names_the_exception() {
        let text = "x\nTraceback (most recent call last):\n  File \"/a/b.py\", line 2, in f\n    \
                    raise OSError()\n    ^^^^\na.b.MyError: gone\nmore";
        let found = parts(text);
        assert_eq!(found[5], exception(" /a/b.py", None));
        assert_eq!((&found[0], &found[3], &found[6]), (&Part::None, &Part::Inner, &Part::None));
    }

    #[test]
    fn ray_and_rich_have_forms_of_their_own() {
        let ray = "ray.exceptions.RayTaskError(KeyError): ray::f() (pid=1, ip=1.2.3.4)\n\
                   File \"/a.py\", line 1, in f\ng()\nKeyError: 'x'";
        assert_eq!(parts(ray)[3], exception(" /a.py", None));
        let rich = "╭─ Traceback ─╮\n│ /a/b.py:9 in f │\n╰───╯\nRuntimeError: CUDA error: x";
        assert_eq!(parts(rich)[3], exception(" /a/b.py", None));
    }

    #[test]
    fn chains_are_told_apart() {
        let during = "During handling of the above exception, another exception occurred:\n\n\
                      Traceback (most recent call last):\n  File \"b.py\", line 1, in g\nE2Error: b";
        assert_eq!(parts(during)[4], exception(" b.py", Some(Relation::WhileHandling)));
    }

    #[test]
    fn what_python_ignores_is_no_exception() {
        let text = "Exception ignored in: <f>\nTraceback (most recent call last):\n  \
                    File \"a.py\", line 1, in f\nKeyError: 1\nException ignored in atexit callback\n\
                    KeyboardInterrupt:";
        assert!(parts(text).iter().all(|part| *part == Part::Inner));
    }

    #[test]
    fn a_traceback_may_be_indented_as_a_whole() {
        let text = " Traceback (most recent call last):\n   File \"a.py\", line 1, in <module>\n     \
                    f()\n OSError: gone";
        assert_eq!(parts(text)[3], exception(" a.py:<module>", None));
    }

    #[test]
    fn writers_do_not_mix() {
        let mut tracebacks = Tracebacks::default();
        tracebacks.next("a", "Traceback (most recent call last):");
        assert_eq!(tracebacks.next("b", "KeyError: 1"), Part::None);
        tracebacks.next("a", "  File \"x.py\", line 1, in f");
        assert_eq!(tracebacks.next("a", "KeyError: 1"), exception(" x.py", None));
    }

    #[test]
    fn only_the_innermost_frames_are_kept() {
        let mut text = "Traceback (most recent call last):\n".to_owned();
        for number in 0..1000 {
            text.push_str(&format!("  File \"/path/{number}.py\", line 1, in f\n"));
        }
        text.push_str("RecursionError: x\n");
        let Some(Part::Exception { frames, .. }) = parts(&text).pop() else {
            panic!("no exception")
        };
        assert!(frames.len() <= MAX_FRAMES_BYTES && frames.ends_with("/path/999.py"));
    }
}
