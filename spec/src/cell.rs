//! Reading one value of the tree as one type. Each reading reports what is wrong, with the
//! position, and gives `None`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::arguments::Argument;
use crate::disconnect::{DISCONNECT_WORDS, OnDisconnect};
use crate::error::{Code, Problems, quoted};
use crate::fields;
use crate::job::LauncherKind;
use crate::nodes::range_ends;
use crate::priority::{PRIORITY_WORDS, Priority};
use crate::queue::Moment;
use crate::reader::Reader;
use crate::retry::{LogAction, LogPolicy, RetryEvent};
use crate::suggest::nearest;
use crate::tree::{Entry, Node, Scalar, ScalarKind, Value, join};
use crate::units;
use crate::validate::{self, dotted};

/// The only version of the spec that there is.
const VERSION: i128 = 1;

/// Who reads a spec, and so what it may say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    pub(crate) open_env: OpenEnv,
    /// Whether a recorded expansion must be the one that its params give. A person may have
    /// edited the params; the record of a job, which a later version reads, is taken as it is.
    pub(crate) expand_again: bool,
}

/// Whether an environment entry may be left to the sender's shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenEnv {
    Allowed,
    Refused,
}

/// One value to be read as one type. Each reading reports a wrong type and gives `None`.
pub(crate) struct Cell<'a> {
    pub(crate) node: &'a Node,
    pub(crate) pointer: String,
}

impl<'a> Cell<'a> {
    pub(crate) fn new(node: &'a Node, pointer: String) -> Self {
        Self { node, pointer }
    }

    /// "`x` must be ..., not ...".
    pub(crate) fn wrong(&self, expected: &str, hint: Option<&str>, out: &mut Problems) {
        let subject = match self.pointer.as_str() {
            "" => "a spec".to_owned(),
            pointer => format!("`{}`", dotted(pointer)),
        };
        let found = match &self.node.value {
            Value::Null => "nothing".to_owned(),
            Value::Scalar(scalar) => quoted(&scalar.text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        };
        out.value(
            Code::BAD_VALUE,
            &self.pointer,
            format!("{subject} must be {expected}, not {found}"),
            hint.map(str::to_owned),
        );
    }

    pub(crate) fn scalar(&self) -> Option<&'a Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    pub(crate) fn entries(&self, out: &mut Problems) -> Option<&'a [Entry]> {
        match &self.node.value {
            Value::Map(entries) => Some(entries),
            Value::Null | Value::Scalar(_) | Value::List(_) => {
                self.wrong("a mapping", None, out);
                None
            }
        }
    }

    /// A text; a number or boolean counts as the text that was written.
    pub(crate) fn text(&self, out: &mut Problems) -> Option<String> {
        let scalar = self.scalar();
        if scalar.is_none() {
            self.wrong("a text", None, out);
        }
        scalar.map(|scalar| scalar.text.clone())
    }

    pub(crate) fn script(&self, out: &mut Problems) -> Option<String> {
        match self.scalar() {
            Some(scalar) if scalar.kind == ScalarKind::Text => Some(scalar.text.clone()),
            _ => {
                let hint = matches!(self.node.value, Value::List(_))
                    .then_some("a list of arguments goes into `command`");
                self.wrong("a shell script", hint, out);
                None
            }
        }
    }

    pub(crate) fn argv(&self, out: &mut Problems) -> Option<Vec<String>> {
        let hint = Some("a shell line goes into `run`");
        self.items("a list of arguments", hint, out, |cell, out| cell.text(out))
    }

    /// The recorded arguments of a template: texts, and `{fill: TEXT}`.
    pub(crate) fn arguments(&self, out: &mut Problems) -> Option<Vec<Argument>> {
        self.items("a list of arguments", None, out, |cell, out| {
            if !matches!(cell.node.value, Value::Map(_)) {
                return cell.text(out).map(Argument::Literal);
            }
            let reader = Reader::open(cell.node, &fields::ARGUMENT, &cell.pointer, out)?;
            let fill = reader.get("fill")?.text(out)?;
            Some(Argument::Fill(fill))
        })
    }

    pub(crate) fn int(&self, out: &mut Problems) -> Option<i128> {
        match self.scalar().map(|scalar| scalar.kind) {
            Some(ScalarKind::Int(value)) => Some(value),
            _ => {
                self.wrong("a whole number in digits", None, out);
                None
            }
        }
    }

    pub(crate) fn version(&self, out: &mut Problems) {
        if self.int(out).is_some_and(|version| version != VERSION) {
            let hint = format!("this version of Gangline reads {VERSION}");
            self.wrong("a known version", Some(&hint), out);
        }
    }

    pub(crate) fn count(&self, range: &RangeInclusive<u32>, out: &mut Problems) -> Option<u32> {
        let value = self.int(out)?;
        validate::check_count(&self.pointer, value, range, out)
    }

    /// A number of nodes, or the least and the most of an elastic gang: `2..4`, `2:4`.
    pub(crate) fn nnodes(&self, out: &mut Problems) -> Option<(u32, Option<u32>)> {
        let ends = self.scalar().and_then(|scalar| range_ends(&scalar.text));
        let Some((least, most)) = ends else {
            return self.count(&validate::NNODES, out).map(|nodes| (nodes, None));
        };
        let mut end = |text: &str| {
            // What does not fit is out of range, whatever it is.
            let number = text.parse::<i128>().unwrap_or(i128::MAX);
            validate::check_count(&self.pointer, number, &validate::NNODES, out)
        };
        let (least, most) = (end(least)?, end(most)?);
        if least > most {
            self.wrong("a range from the least to the most", None, out);
            return None;
        }
        Some((least, Some(most).filter(|most| *most > least)))
    }

    pub(crate) fn number(&self, out: &mut Problems) -> Option<f64> {
        match self.scalar().map(|scalar| scalar.kind) {
            // Beyond 2^53 the value is out of range anyhow, so nothing is lost by rounding.
            Some(ScalarKind::Int(value)) => Some(value as f64),
            Some(ScalarKind::Float(value)) => Some(value),
            _ => {
                self.wrong("a number", None, out);
                None
            }
        }
    }

    pub(crate) fn duration(&self, out: &mut Problems) -> Option<Duration> {
        let read = self.scalar().and_then(|s| units::duration(&s.text));
        if read.is_none() {
            self.wrong(units::DURATION_FORM, self.unit_hint(), out);
        }
        read
    }

    pub(crate) fn moment(&self, out: &mut Problems) -> Option<Moment> {
        let read = self.scalar().and_then(|s| Moment::parse(&s.text));
        if read.is_none() {
            self.wrong("a time with its offset, such as 2026-12-01T22:00:00+08:00", None, out);
        }
        read
    }

    pub(crate) fn size(&self, out: &mut Problems) -> Option<u64> {
        let read = self.scalar().and_then(|s| units::size(&s.text));
        if read.is_none() {
            self.wrong(units::SIZE_FORM, self.unit_hint(), out);
        }
        read
    }

    pub(crate) fn unit_hint(&self) -> Option<&'static str> {
        let scalar = self.scalar()?;
        matches!(scalar.kind, ScalarKind::Int(_)).then_some("the unit is missing")
    }

    pub(crate) fn launcher_kind(&self, out: &mut Problems) -> Option<LauncherKind> {
        let index = self.word(&LauncherKind::WORDS, out)?;
        LauncherKind::ALL.get(index).copied()
    }

    /// The index of this text in a closed set of words.
    pub(crate) fn word(&self, words: &[&str], out: &mut Problems) -> Option<usize> {
        let word = self.text(out)?;
        let known = words.iter().position(|known| *known == word);
        if known.is_none() {
            let hint = match nearest(&word, words.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("one of {}", listed(words)),
            };
            let message = format!("`{}` cannot be {}", dotted(&self.pointer), quoted(&word));
            out.value(Code::BAD_VALUE, &self.pointer, message, Some(hint));
        }
        known
    }

    pub(crate) fn boolean(&self, out: &mut Problems) -> Option<bool> {
        match self.scalar() {
            Some(scalar) if scalar.kind == ScalarKind::Bool => {
                Some(scalar.text.eq_ignore_ascii_case("true"))
            }
            _ => {
                self.wrong("true or false", None, out);
                None
            }
        }
    }

    /// A word for a priority, or its number.
    pub(crate) fn priority(&self, out: &mut Problems) -> Option<Priority> {
        if self.scalar().is_some_and(|scalar| scalar.kind == ScalarKind::Text) {
            self.word(&PRIORITY_WORDS, out)?;
            return Priority::from_word(&self.text(out)?);
        }
        let value = self.count(&validate::PRIORITY, out)?;
        u8::try_from(value).ok().map(Priority)
    }

    /// A word for a policy, or `{stop_after: TIME}`.
    pub(crate) fn on_disconnect(&self, out: &mut Problems) -> Option<OnDisconnect> {
        if !matches!(self.node.value, Value::Map(_)) {
            if self.scalar().is_none() {
                let hint = "`fence`, `keep`, or `{stop_after: 30m}`";
                self.wrong("a policy", Some(hint), out);
                return None;
            }
            return self.word(&DISCONNECT_WORDS, out).map(OnDisconnect::from_word);
        }
        let reader = Reader::open(self.node, &fields::ON_DISCONNECT, &self.pointer, out)?;
        let Some(time) = reader.get("stop_after") else {
            let message = "`on_disconnect` is a mapping without `stop_after`";
            let hint = Some("for example `{stop_after: 30m}`".to_owned());
            out.key(Code::MISSING, &self.pointer, message, hint);
            return None;
        };
        time.duration(out).map(OnDisconnect::StopAfter)
    }

    pub(crate) fn retry_events(&self, out: &mut Problems) -> Option<Vec<RetryEvent>> {
        self.items("a list", None, out, |cell, out| {
            let index = cell.word(&RetryEvent::WORDS, out)?;
            RetryEvent::ALL.get(index).copied()
        })
    }

    pub(crate) fn log_policies(&self, out: &mut Problems) -> Option<Vec<LogPolicy>> {
        let hint = Some("for example `- {pattern: \"CUDA out of memory\", action: fail_no_retry}`");
        self.items("a list of policies", hint, out, |cell, out| {
            let reader = Reader::open(cell.node, &fields::LOG_POLICY, &cell.pointer, out)?;
            let pattern = reader.required("pattern", out)?.text(out);
            let action = reader.required("action", out)?.word(&LogAction::WORDS, out)?;
            let diagnose = reader.get("diagnose").and_then(|cell| cell.text(out));
            Some(LogPolicy { pattern: pattern?, action: *LogAction::ALL.get(action)?, diagnose })
        })
    }

    /// A text, or a list of texts.
    pub(crate) fn one_or_more(&self, out: &mut Problems) -> Option<Vec<String>> {
        match self.node.value {
            Value::List(_) => self.texts(out),
            Value::Null | Value::Scalar(_) | Value::Map(_) => Some(vec![self.text(out)?]),
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&self, out: &mut Problems) -> Option<Vec<String>> {
        self.items("a list", None, out, |cell, out| cell.text(out))
    }

    /// A list, each item read by `read`. All are read before the first failure counts, so that
    /// every one is reported.
    pub(crate) fn items<T>(
        &self,
        expected: &str,
        hint: Option<&str>,
        out: &mut Problems,
        read: impl Fn(&Cell<'a>, &mut Problems) -> Option<T>,
    ) -> Option<Vec<T>> {
        let Value::List(items) = &self.node.value else {
            self.wrong(expected, hint, out);
            return None;
        };
        let items: Vec<Option<T>> = items
            .iter()
            .enumerate()
            .map(|(index, item)| {
                read(&Cell::new(item, join(&self.pointer, &index.to_string())), out)
            })
            .collect();
        items.into_iter().collect()
    }

    pub(crate) fn labels(&self, out: &mut Problems) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for entry in self.entries(out).unwrap_or_default() {
            let cell = Cell::new(&entry.node, join(&self.pointer, &entry.key));
            if let Some(value) = cell.text(out) {
                labels.insert(entry.key.clone(), value);
            }
        }
        labels
    }

    pub(crate) fn env(
        &self,
        open_env: OpenEnv,
        out: &mut Problems,
    ) -> BTreeMap<String, Option<String>> {
        let mut env = BTreeMap::new();
        for entry in self.entries(out).unwrap_or_default() {
            let cell = Cell::new(&entry.node, join(&self.pointer, &entry.key));
            if !matches!(entry.node.value, Value::Null) {
                if let Some(value) = cell.text(out) {
                    env.insert(entry.key.clone(), Some(value));
                }
                continue;
            }
            if open_env == OpenEnv::Refused {
                out.key(
                    Code::MISSING,
                    &cell.pointer,
                    format!("{} has no value", quoted(&entry.key)),
                    Some("only the command line can fill it in from a shell".to_owned()),
                );
            }
            env.insert(entry.key.clone(), None);
        }
        env
    }
}

/// A closed set for a message: ``` `a`, `b` ```.
fn listed(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}
