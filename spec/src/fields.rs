//! The one table of fields: which exist, which are built, which are planned. It decides between
//! "unknown field" and "not yet", and it is where the suggestions come from.

/// Whether a field does anything in this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Built,
    /// Planned: refused, with what to do meanwhile where there is something to do.
    NotYet(Option<&'static str>),
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) status: Status,
}

/// A mapping with a fixed set of fields.
#[derive(Debug)]
pub(crate) struct Section {
    /// Name of the mapping; empty for the spec itself.
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [Field],
}

const fn built(name: &'static str) -> Field {
    Field { name, status: Status::Built }
}

const fn later(name: &'static str) -> Field {
    Field { name, status: Status::NotYet(None) }
}

const fn instead(name: &'static str, hint: &'static str) -> Field {
    Field { name, status: Status::NotYet(Some(hint)) }
}

pub(crate) static TOP: Section = Section {
    name: "",
    fields: &[
        built("version"),
        built("kind"),
        built("name"),
        built("project"),
        built("description"),
        built("labels"),
        built("resources"),
        built("launcher"),
        built("workdir"),
        built("env"),
        built("run"),
        built("command"),
        built("grace_period"),
        built("checkpoint"),
        later("queue"),
        later("timeout"),
        later("idle_policy"),
        instead("code", "put the code on a shared path and set `workdir`"),
        instead("files", "put the files on a shared path"),
        later("mounts_required"),
        instead("secrets", "read the secret from a file in the script"),
        instead("setup", "put these lines at the start of `run`"),
        later("preflight"),
        later("retry"),
        later("log_policies"),
        later("hang"),
        later("tracking"),
        later("notify"),
        later("ports"),
        later("on_disconnect"),
        later("min_runtime"),
        later("hold_on_failure"),
        later("logs"),
        later("reward"),
        instead("python", "call the interpreter by its path in `run`"),
        later("compat_env"),
        later("groups"),
        instead("template", "write the command out in `run` or `command`"),
        instead("params", "write the command out in `run` or `command`"),
        instead("overrides", "write the command out in `run` or `command`"),
        later("replicas"),
        later("scale"),
        later("port"),
        later("health"),
        later("ide"),
        later("idle_stop"),
        later("vars"),
        later("steps"),
        later("on_failure"),
        later("schedule"),
        later("tz"),
        later("needs"),
        later("matrix"),
        later("max_parallel"),
        later("outputs"),
    ],
};

pub(crate) static RESOURCES: Section = Section {
    name: "resources",
    fields: &[
        built("nnodes"),
        built("gpus_per_node"),
        built("cpus_per_node"),
        built("memory_per_node"),
        built("pool"),
        instead("gpu", "name a `pool` that has this model"),
        instead("labels", "name a `pool` of these nodes"),
        later("exclude_nodes"),
        later("topology"),
        later("shm"),
        later("disk"),
        later("exclusive"),
        later("ray_resources"),
    ],
};

pub(crate) static LAUNCHER: Section = Section {
    name: "launcher",
    fields: &[
        built("type"),
        built("start_timeout"),
        later("driver"),
        later("dashboard"),
        later("head"),
        later("network"),
    ],
};

pub(crate) static CHECKPOINT: Section = Section {
    name: "checkpoint",
    fields: &[
        built("dir"),
        later("every"),
        later("keep"),
        later("on_deadline"),
        later("upload"),
        later("encrypted_copy"),
    ],
};

static SECTIONS: [&Section; 4] = [&TOP, &RESOURCES, &LAUNCHER, &CHECKPOINT];

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

/// The words of a closed set that are planned but not built.
pub(crate) const KINDS_NOT_YET: [&str; 4] = ["cluster", "serve", "notebook", "pipeline"];
pub(crate) const LAUNCHERS_NOT_YET: [&str; 1] = ["torchrun"];

impl Section {
    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The built fields, for a message: ``` `a`, `b` and `c` ```.
    pub(crate) fn built_names(&self) -> String {
        let names: Vec<String> = self
            .fields
            .iter()
            .filter(|field| field.status == Status::Built)
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
        nearest(&plain, names).map(str::to_owned).or_else(|| {
            SECTIONS.iter().find_map(|section| {
                let field = section.field(unknown)?;
                let dot = if section.name.is_empty() { "" } else { "." };
                Some(format!("{}{dot}{}", section.name, field.name))
            })
        })
    }
}

/// The dotted paths of all fields that are refused with "not yet", in the order of the table.
pub fn not_yet_fields() -> impl Iterator<Item = String> {
    SECTIONS.iter().flat_map(|section| {
        let fields = section.fields.iter();
        fields.filter(|field| matches!(field.status, Status::NotYet(_))).map(|field| match section
            .name
        {
            "" => field.name.to_owned(),
            name => format!("{name}.{}", field.name),
        })
    })
}

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
fn plain_form(name: &str) -> String {
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
            (&TOP, "start_timeout", Some("launcher.start_timeout")),
            (&TOP, "grace-period", Some("grace_period")),
            (&TOP, "zzz", None),
        ];
        for (section, word, expected) in cases {
            assert_eq!(section.suggest(word).as_deref(), expected, "{word}");
        }
    }

    #[test]
    fn no_field_is_listed_twice() {
        for section in SECTIONS {
            for (index, field) in section.fields.iter().enumerate() {
                let again = section.fields.iter().skip(index + 1);
                assert!(
                    again.clone().all(|other| other.name != field.name),
                    "{} in {:?}",
                    field.name,
                    section.name
                );
            }
        }
    }
}
