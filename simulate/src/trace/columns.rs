//! The columns of a trace: which are there, and what a line has in them.

use super::Problem;
use super::lines::fields;
use crate::workload::MAX_NAME_BYTES;

/// The year 2100 in seconds since 1970: a later arrival has the wrong unit.
const MAX_SUBMIT_S: f64 = 4_102_444_800.0;
/// Longest job, in seconds: ten years.
const MAX_DURATION_S: f64 = 10.0 * 366.0 * 86_400.0;
/// Largest job, in GPUs.
const MAX_GPUS: f64 = 1_000_000.0;
/// Names of columns that an error shows at most.
const SHOWN: usize = 12;

/// A column of time: where it stands, and how many milliseconds its unit has.
struct Time {
    at: usize,
    name: &'static str,
    unit_ms: f64,
}

/// Where the columns stand.
pub(super) struct Columns {
    count: usize,
    submit: Time,
    duration: Time,
    gpus: (usize, &'static str),
    project: Option<(usize, &'static str)>,
    user: Option<(usize, &'static str)>,
}

/// What a line says.
#[derive(Debug)]
pub(super) struct Value {
    pub line: u32,
    pub submit_ms: u64,
    pub duration_ms: u64,
    pub gpus: u32,
    pub project: Option<String>,
    pub user: Option<String>,
}

impl Columns {
    /// Finds them in the header, which stands on line `number`.
    pub fn find(number: u64, header: &str) -> Result<Columns, Vec<Problem>> {
        let at = |what: String, fix: &str| Problem::at(number, None, what, fix);
        let Some(names) = fields(header) else {
            return Err(vec![at("a quote is not closed".into(), "close it on the same line")]);
        };
        let names: Vec<String> =
            names.iter().map(|name| name.trim().to_ascii_lowercase()).collect();
        let mut problems = Vec::new();
        let mut find = |wanted: &[&'static str], needed: bool| {
            let found: Vec<(usize, &'static str)> = (0..)
                .zip(&names)
                .filter_map(|(at, name)| {
                    wanted.iter().find(|wanted| **wanted == name.as_str()).map(|name| (at, *name))
                })
                .collect();
            match found[..] {
                [one] => Some(one),
                [] if needed => {
                    let what = format!("no column {}", wanted.join(" or "));
                    problems.push(at(what, &there_are(&names)));
                    None
                }
                [] => None,
                [(_, one), (_, other), ..] => {
                    let what = if one == other {
                        format!("two columns {one}")
                    } else {
                        format!("a column {one} and a column {other}")
                    };
                    problems.push(at(what, "leave one of them"));
                    None
                }
            }
        };
        let submit = find(&["submit_s", "submit_ms"], true);
        let duration = find(&["duration_s", "duration_ms"], true);
        let gpus = find(&["num_gpus", "num_gpu"], true);
        let project = find(&["project"], false).or_else(|| find(&["vc"], false));
        let user = find(&["user"], false);
        let time = |(at, name): (usize, &'static str)| {
            let unit_ms = if name.ends_with("_ms") { 1.0 } else { 1000.0 };
            Time { at, name, unit_ms }
        };
        match (submit, duration, gpus) {
            (Some(submit), Some(duration), Some(gpus)) if problems.is_empty() => Ok(Columns {
                count: names.len(),
                submit: time(submit),
                duration: time(duration),
                gpus,
                project,
                user,
            }),
            _ => Err(problems),
        }
    }

    /// Reads the line with this number.
    pub fn read(&self, number: u64, line: &str) -> Result<Value, Vec<Problem>> {
        let whole = |what: String, fix: &str| vec![Problem::at(number, None, what, fix)];
        let Some(fields) = fields(line) else {
            return Err(whole("a quote is not closed".into(), "close it on the same line"));
        };
        if fields.len() != self.count {
            let what = format!("{} fields, but the header has {}", fields.len(), self.count);
            return Err(whole(what, "each line has a field for each column of the header"));
        }
        let mut problems = Vec::new();
        let mut note = |column: &str, result: Result<f64, (String, String)>| match result {
            Ok(value) => value,
            Err((what, fix)) => {
                problems.push(Problem::at(number, Some(column), what, fix));
                0.0
            }
        };
        let field = |at: usize| fields.get(at).map_or("", |field| field.trim());
        let submit = note(
            self.submit.name,
            amount(field(self.submit.at), MAX_SUBMIT_S * 1000.0 / self.submit.unit_ms, "in 2100"),
        );
        let duration = note(
            self.duration.name,
            amount(
                field(self.duration.at),
                MAX_DURATION_S * 1000.0 / self.duration.unit_ms,
                "ten years",
            ),
        );
        let gpus = note(self.gpus.1, whole_gpus(field(self.gpus.0)));
        let mut name = |column: Option<(usize, &'static str)>| {
            let (at, column) = column?;
            let text = field(at);
            if text.len() > MAX_NAME_BYTES {
                let what = format!("a name of {} bytes", text.len());
                let fix = format!("{MAX_NAME_BYTES} bytes are the most");
                problems.push(Problem::at(number, Some(column), what, fix));
            }
            (!text.is_empty()).then(|| text.to_owned())
        };
        let (project, user) = (name(self.project), name(self.user));
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Value {
            line: u32::try_from(number).unwrap_or(u32::MAX),
            submit_ms: (submit * self.submit.unit_ms).round() as u64,
            duration_ms: (duration * self.duration.unit_ms).round() as u64,
            gpus: gpus as u32,
            project,
            user,
        })
    }
}

/// A number from 0 to `most`, which is `words`.
fn amount(text: &str, most: f64, words: &str) -> Result<f64, (String, String)> {
    let fix = |fix: &str| fix.to_owned();
    if text.is_empty() {
        return Err(("it is empty".to_owned(), fix("write a number")));
    }
    let Ok(value) = text.parse::<f64>() else {
        return Err((
            format!("`{}` is not a number", shown(text)),
            fix("write it as 120 or 1.5e3"),
        ));
    };
    if !value.is_finite() {
        return Err((
            format!("`{}` is not a finite number", shown(text)),
            fix("leave the job out"),
        ));
    }
    if value < 0.0 {
        return Err((format!("{} is negative", shown(text)), fix("0 is the least")));
    }
    if value > most {
        let advice = format!("the most is {words}; is the unit of the column right?");
        return Err((format!("{} is too much", shown(text)), advice));
    }
    Ok(value)
}

fn whole_gpus(text: &str) -> Result<f64, (String, String)> {
    let value = amount(text, MAX_GPUS, "a million GPUs")?;
    if value.fract() != 0.0 {
        let fix = "a gang has whole GPUs; round it up, or leave the job out";
        return Err((format!("{} is not a whole number", shown(text)), fix.to_owned()));
    }
    Ok(value)
}

fn there_are(names: &[String]) -> String {
    if let [one] = names
        && let Some(other) = [';', '\t', '|'].into_iter().find(|c| one.contains(*c))
    {
        return format!("columns are separated by commas, not by {other:?}");
    }
    let more = if names.len() > SHOWN { ", …" } else { "" };
    let names: Vec<String> = names.iter().take(SHOWN).map(|name| shown(name)).collect();
    format!("its first line is the header, with: {}{more}", names.join(", "))
}

/// A piece of somebody's text that is not too long.
fn shown(text: &str) -> String {
    const MOST: usize = 40;
    let cut: String = text.chars().take(MOST).collect();
    if cut.len() < text.len() { format!("{cut}…") } else { cut }
}
