//! What a field is: its status, the shape of its value, its default and what it means. The table
//! of all fields is in `table`; from it come "unknown field", "not yet", the suggestions and the
//! JSON Schema.

use std::ops::RangeInclusive;

use crate::suggest::{nearest, plain_form};
pub(crate) use crate::table::{
    ARGUMENT, BACKOFF, CHECKPOINT, CODE, HANG, LAUNCHER, LOG_POLICY, LOGS, MLFLOW, ON_DISCONNECT,
    QUEUE, RESOURCES, RETRY, REWARD, SECTIONS, TOP, TRACKING, WANDB,
};

/// Whether a field does anything in this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Built,
    /// Planned: refused, with what to do meanwhile where there is something to do.
    NotYet(Option<&'static str>),
}

impl Status {
    pub(crate) const fn is_read(self) -> bool {
        match self {
            Self::Built => true,
            Self::NotYet(_) => false,
        }
    }
}

/// The shape of a value, as far as a JSON Schema can tell it.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A text; a number or a boolean counts as the text that was written.
    Text,
    /// A text that is no number, such as a script.
    Script,
    /// The form of a name, see `validate`.
    Name,
    /// An absolute path.
    Path,
    Duration,
    /// A point in time.
    Moment,
    Size,
    Bool,
    Count(RangeInclusive<u32>),
    /// Two numbers with `..` or `:` between them.
    CountRange,
    Number(RangeInclusive<f64>),
    /// One of a closed set of words.
    Words(&'static [&'static str]),
    /// One of the shapes.
    OneOf(&'static [Shape]),
    List(&'static Shape),
    /// Keys of the user's own, each with a value of the shape.
    Map(&'static Shape),
    /// A value, or nothing.
    Optional(&'static Shape),
    Section(&'static Section),
    /// A pool of this fleet.
    Pool,
    /// A GPU model of this fleet.
    GpuModel,
    /// A template of this version.
    Template,
    /// The params of the spec's template.
    Params,
    /// Planned: no shape yet.
    Open,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) status: Status,
    pub(crate) shape: Shape,
    /// What stands in the place of an absent value, as JSON; `None` when nothing does.
    pub(crate) default: Option<&'static str>,
    /// Whether it has to be there when its section is.
    pub(crate) required: bool,
    /// What it means, in one line; empty for a field that is not read yet.
    pub(crate) about: &'static str,
}

impl Field {
    pub(crate) const fn default(self, json: &'static str) -> Self {
        // The parts are moved one by one: a const function cannot drop the rest of `self`.
        let Self { name, status, shape, default: _, required, about } = self;
        Self { name, status, shape, default: Some(json), required, about }
    }

    pub(crate) const fn required(self) -> Self {
        let Self { name, status, shape, default, required: _, about } = self;
        Self { name, status, shape, default, required: true, about }
    }
}

/// A mapping with a fixed set of fields.
#[derive(Debug)]
pub(crate) struct Section {
    /// Dotted path of the mapping; empty for the spec itself.
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [Field],
}

/// What other systems call our fields: (their word, ours as a dotted path).
const FOREIGN: &[(&str, &str)] = &[
    ("accelerators", "resources.gpus_per_node"),
    ("args", "command"),
    ("argv", "command"),
    ("cmd", "command"),
    ("cpus", "resources.cpus_per_node"),
    ("cwd", "workdir"),
    ("entrypoint", "run"),
    ("environment", "env"),
    ("envs", "env"),
    ("gpus", "resources.gpus_per_node"),
    ("mem", "resources.memory_per_node"),
    ("memory", "resources.memory_per_node"),
    ("nodes", "resources.nnodes"),
    ("nproc_per_node", "resources.gpus_per_node"),
    ("num_gpus", "resources.gpus_per_node"),
    ("num_nodes", "resources.nnodes"),
    ("partition", "resources.pool"),
    ("script", "run"),
    ("working_dir", "workdir"),
];

impl Section {
    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The fields that are read, for a message: ``` `a`, `b` and `c` ```.
    pub(crate) fn read_names(&self) -> String {
        let names: Vec<String> = self
            .fields
            .iter()
            .filter(|field| field.status.is_read())
            .map(|field| format!("`{}`", field.name))
            .collect();
        match names.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
            None => String::new(),
        }
    }

    /// The field that `unknown` probably means: another system's word for it, another spelling,
    /// a slip of the keyboard, or a field of another section (then as a dotted path).
    pub(crate) fn suggest(&self, unknown: &str) -> Option<String> {
        let plain = plain_form(unknown);
        let foreign = FOREIGN.iter().find(|(theirs, _)| plain_form(theirs) == plain);
        if let Some((_, path)) = foreign {
            let here = path.strip_prefix(self.name).and_then(|rest| rest.strip_prefix('.'));
            return Some(here.unwrap_or(path).to_owned());
        }
        let names = self.fields.iter().map(|field| field.name);
        let elsewhere = || SECTIONS.iter().flat_map(|s| s.fields.iter().map(move |f| (s, f)));
        let path_of = |name: &str| {
            elsewhere().find(|(_, field)| field.name == name).map(|(s, field)| s.path(field))
        };
        nearest(&plain, names)
            .map(str::to_owned)
            .or_else(|| path_of(unknown))
            .or_else(|| path_of(nearest(&plain, elsewhere().map(|(_, field)| field.name))?))
    }

    /// The dotted path of a field of this section.
    pub(crate) fn path(&self, field: &Field) -> String {
        match self.name {
            "" => field.name.to_owned(),
            name => format!("{name}.{}", field.name),
        }
    }
}

/// The dotted paths of all fields that [`crate::parse`] refuses with "not yet", in the order of
/// the table.
pub fn not_yet_fields() -> impl Iterator<Item = String> {
    // Below a section that is refused nothing is read, so its fields are not reached.
    let reached = move |section: &&&Section| {
        let above = SECTIONS.iter().flat_map(|section| {
            section.fields.iter().map(|field| (section.path(field), field.status))
        });
        above.into_iter().all(|(path, status)| path != section.name || status.is_read())
    };
    SECTIONS.iter().filter(reached).flat_map(move |section| {
        let fields = section.fields.iter();
        fields.filter(move |field| !field.status.is_read()).map(|field| section.path(field))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions() {
        let cases = [
            (&RESOURCES, "gpu_per_node", Some("gpus_per_node")),
            (&RESOURCES, "gpusPerNode", Some("gpus_per_node")),
            (&RESOURCES, "num_nodes", Some("nnodes")),
            (&RESOURCES, "gpus", Some("gpus_per_node")),
            (&RESOURCES, "command", Some("command")),
            (&TOP, "num_nodes", Some("resources.nnodes")),
            (&TOP, "nnodes", Some("resources.nnodes")),
            (&TOP, "gpu_per_node", Some("resources.gpus_per_node")),
            (&TOP, "start_timeout", Some("launcher.start_timeout")),
            (&TOP, "grace-period", Some("grace_period")),
            (&TOP, "wandb", Some("tracking.wandb")),
            (&TOP, "zzz", None),
        ];
        for (section, word, expected) in cases {
            assert_eq!(section.suggest(word).as_deref(), expected, "{word}");
        }
    }

    #[test]
    fn no_field_is_listed_twice_and_each_read_one_is_described() {
        for section in SECTIONS {
            for (index, field) in section.fields.iter().enumerate() {
                let again = section.fields.iter().skip(index + 1);
                let path = section.path(field);
                assert!(again.clone().all(|other| other.name != field.name), "{path}");
                assert_eq!(
                    field.about.is_empty(),
                    matches!(field.status, Status::NotYet(_)),
                    "{path}"
                );
                if let Some(default) = field.default {
                    serde_json::from_str::<serde_json::Value>(default).expect(&path);
                }
            }
        }
    }
}
