//! The checks on values: ranges, forms and sizes. They work on the typed spec, so that one made
//! by a program passes the same ones as one read from a text.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::{Code, Problems, quoted, shown};
use crate::job::{CHECKPOINT_VARIABLES, Checkpoint, Entrypoint, JobSpec, Resources};
use crate::tree::join;
use crate::units;

/// Most nodes of one gang.
pub const MAX_NNODES: u32 = 4096;
/// Most GPUs of one node.
pub const MAX_GPUS_PER_NODE: u32 = 64;
/// Most bytes of `run` (or `command`) and `env` together.
pub const MAX_ENTRYPOINT_AND_ENV_BYTES: usize = 256 * 1024;
/// Most bytes of one argument or one `NAME=value`: Linux takes 128 KiB with the closing NUL.
pub const MAX_ARGUMENT_BYTES: usize = 128 * 1024 - 1;

pub(crate) const NNODES: RangeInclusive<u32> = 1..=MAX_NNODES;
pub(crate) const GPUS_PER_NODE: RangeInclusive<u32> = 0..=MAX_GPUS_PER_NODE;
const CPUS_PER_NODE: RangeInclusive<f64> = 0.001..=4096.0;
const MAX_MEMORY_PER_NODE: u64 = 64 << 40;
const START_TIMEOUT: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
const GRACE_PERIOD: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(24 * 3600);
const MAX_LABELS: usize = 64;
const MAX_LABEL_VALUE_BYTES: usize = 256;
const MAX_DESCRIPTION_BYTES: usize = 4096;
const MAX_PATH_BYTES: usize = 4095;
const MAX_NAME_CHARS: usize = 63;

/// Prefixes of variables that only Gangline sets: identity and secrets of the gang.
const RESERVED_ENV: [&str; 2] = ["GANGLINE_", "RAY_AUTH_"];

const NAME_FORM: &str =
    "lower-case letters, digits and `-`, at most 63, the first a letter or digit";
const LABEL_FORM: &str =
    "letters, digits, `.`, `_`, `-` and `/`, at most 63, the first a letter or digit";

pub(crate) fn check(spec: &JobSpec, out: &mut Problems) {
    for (pointer, name) in [("/name", &spec.name), ("/project", &spec.project)] {
        if let Some(name) = name {
            check_form(pointer, name, is_name(name), NAME_FORM, out);
        }
    }
    if let Some(text) = &spec.description {
        check_nul("/description", text, out);
        check_bytes("/description", text.len(), MAX_DESCRIPTION_BYTES, out);
    }
    check_labels(spec, out);
    check_resources(&spec.resources, out);
    check_range(
        "/launcher/start_timeout",
        &spec.launcher.start_timeout,
        &START_TIMEOUT,
        |d| units::write_duration(*d),
        out,
    );
    if let Some(path) = &spec.workdir {
        check_path("/workdir", path, out);
    }
    check_entrypoint(&spec.entrypoint, out);
    check_env(spec, out);
    check_range(
        "/grace_period",
        &spec.grace_period,
        &GRACE_PERIOD,
        |d| units::write_duration(*d),
        out,
    );
    check_checkpoint(&spec.checkpoint, out);
}

fn check_labels(spec: &JobSpec, out: &mut Problems) {
    if spec.labels.len() > MAX_LABELS {
        out.key(
            Code::TOO_LARGE,
            "/labels",
            format!("{} labels; at most {MAX_LABELS}", spec.labels.len()),
            None,
        );
    }
    for (key, value) in &spec.labels {
        let pointer = join("/labels", key);
        if !is_label(key) {
            out.key(
                Code::BAD_VALUE,
                &pointer,
                format!("{} cannot be the key of a label", quoted(key)),
                Some(LABEL_FORM.to_owned()),
            );
        }
        check_nul(&pointer, value, out);
        check_bytes(&pointer, value.len(), MAX_LABEL_VALUE_BYTES, out);
    }
}

fn check_resources(resources: &Resources, out: &mut Problems) {
    check_count("/resources/nnodes", resources.nnodes, &NNODES, out);
    check_count("/resources/gpus_per_node", resources.gpus_per_node, &GPUS_PER_NODE, out);
    if resources.total_gpus().is_none() {
        out.value(
            Code::TOO_LARGE,
            "/resources/gpus_per_node",
            "nnodes x gpus_per_node is too large to count",
            None,
        );
    }
    if let Some(cpus) = &resources.cpus_per_node {
        check_range("/resources/cpus_per_node", cpus, &CPUS_PER_NODE, f64::to_string, out);
    }
    if let Some(bytes) = &resources.memory_per_node {
        check_range(
            "/resources/memory_per_node",
            bytes,
            &(1..=MAX_MEMORY_PER_NODE),
            |bytes| units::write_size(*bytes),
            out,
        );
    }
    if let Some(pool) = &resources.pool {
        check_form("/resources/pool", pool, is_label(pool), LABEL_FORM, out);
    }
}

fn check_entrypoint(entrypoint: &Entrypoint, out: &mut Problems) {
    match entrypoint {
        Entrypoint::Script(text) => {
            if text.trim().is_empty() {
                out.value(Code::BAD_VALUE, "/run", "`run` is empty", None);
            }
            check_nul("/run", text, out);
            check_bytes("/run", text.len(), MAX_ARGUMENT_BYTES, out);
        }
        Entrypoint::Argv(argv) => {
            if argv.first().is_none_or(String::is_empty) {
                out.value(
                    Code::BAD_VALUE,
                    "/command",
                    "`command` has no program",
                    Some("a list: the program, then its arguments".to_owned()),
                );
            }
            for (index, argument) in argv.iter().enumerate() {
                let pointer = format!("/command/{index}");
                check_nul(&pointer, argument, out);
                check_bytes(&pointer, argument.len(), MAX_ARGUMENT_BYTES, out);
            }
        }
    }
}

/// The environment, and its size together with that of the entrypoint.
pub(crate) fn check_env(spec: &JobSpec, out: &mut Problems) {
    let (pointer, entrypoint) = match &spec.entrypoint {
        Entrypoint::Script(text) => ("/run", text.len()),
        Entrypoint::Argv(argv) => ("/command", argv.iter().map(|a| a.len() + 1).sum()),
    };
    let mut total = entrypoint;
    for (name, value) in &spec.env {
        let pointer = join("/env", name);
        if !is_env_name(name) {
            out.key(
                Code::BAD_VALUE,
                &pointer,
                format!("{} cannot be the name of a variable", quoted(name)),
                Some("letters, digits and `_`, not a digit first".to_owned()),
            );
        }
        if let Some(prefix) = RESERVED_ENV.iter().find(|p| name.starts_with(**p)) {
            out.key(
                Code::BAD_VALUE,
                &pointer,
                format!("{} is reserved", quoted(name)),
                Some(format!("Gangline itself sets the variables {prefix}*")),
            );
        }
        let value = value.as_deref().unwrap_or_default();
        let bytes = name.len() + 1 + value.len();
        check_nul(&pointer, value, out);
        check_bytes(&pointer, bytes, MAX_ARGUMENT_BYTES, out);
        total += bytes;
    }
    if total > MAX_ENTRYPOINT_AND_ENV_BYTES {
        out.key(
            Code::TOO_LARGE,
            pointer,
            format!(
                "the entrypoint and `env` have {total} bytes together; at most \
                 {MAX_ENTRYPOINT_AND_ENV_BYTES}"
            ),
            Some("put the script in a file on a shared path".to_owned()),
        );
    }
}

fn check_checkpoint(checkpoint: &Checkpoint, out: &mut Problems) {
    let pointer = "/checkpoint/dir";
    if let Some(dir) = &checkpoint.dir {
        check_path(pointer, dir, out);
    }
    if let Err(variable) = checkpoint.expand_dir(|_| Some(String::new())) {
        out.value(
            Code::BAD_VALUE,
            pointer,
            format!("{} is not filled in here", quoted(&format!("${variable}"))),
            Some(format!("only ${}", CHECKPOINT_VARIABLES.join(", $"))),
        );
    }
}

/// A count that must be in `range`; used while reading too, where it may not fit the type.
pub(crate) fn check_count(
    pointer: &str,
    value: impl Into<i128>,
    range: &RangeInclusive<u32>,
    out: &mut Problems,
) -> Option<u32> {
    let value = value.into();
    let wide = i128::from(*range.start())..=i128::from(*range.end());
    check_range(pointer, &value, &wide, i128::to_string, out);
    u32::try_from(value).ok().filter(|value| range.contains(value))
}

fn check_range<T: PartialOrd>(
    pointer: &str,
    value: &T,
    range: &RangeInclusive<T>,
    write: impl Fn(&T) -> String,
    out: &mut Problems,
) {
    // A NaN is in no range.
    if range.contains(value) {
        return;
    }
    out.value(
        Code::BAD_VALUE,
        pointer,
        format!(
            "`{}` must be from {} to {}, not {}",
            dotted(pointer),
            write(range.start()),
            write(range.end()),
            write(value)
        ),
        None,
    );
}

fn check_form(pointer: &str, value: &str, good: bool, form: &str, out: &mut Problems) {
    if !good {
        out.value(
            Code::BAD_VALUE,
            pointer,
            format!("`{}` cannot be {}", dotted(pointer), quoted(value)),
            Some(form.to_owned()),
        );
    }
}

fn check_path(pointer: &str, path: &str, out: &mut Problems) {
    check_nul(pointer, path, out);
    check_bytes(pointer, path.len(), MAX_PATH_BYTES, out);
    let problem = if !path.starts_with('/') {
        "must be an absolute path"
    } else if path.split('/').any(|part| part == "..") {
        "must be a path without `..`"
    } else {
        return;
    };
    out.value(
        Code::BAD_VALUE,
        pointer,
        format!("`{}` {problem}, not {}", dotted(pointer), quoted(path)),
        None,
    );
}

fn check_nul(pointer: &str, text: &str, out: &mut Problems) {
    if text.contains('\0') {
        let message = format!("`{}` holds a NUL character", dotted(pointer));
        out.value(Code::BAD_VALUE, pointer, message, None);
    }
}

fn check_bytes(pointer: &str, bytes: usize, max: usize, out: &mut Problems) {
    if bytes > max {
        let message = format!("`{}` has {bytes} bytes; at most {max}", dotted(pointer));
        out.value(Code::TOO_LARGE, pointer, message, None);
    }
}

/// A pointer as users write it: `/resources/nnodes` is `resources.nnodes`.
pub(crate) fn dotted(pointer: &str) -> String {
    let plain = pointer.trim_start_matches('/').replace('/', ".");
    let plain = plain.replace("~1", "/").replace("~0", "~");
    shown(&plain)
}

fn is_name(name: &str) -> bool {
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(lower)
        && name.chars().all(|c| lower(c) || c == '-')
        && name.len() <= MAX_NAME_CHARS
}

fn is_label(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/'))
        && text.len() <= MAX_NAME_CHARS
}

fn is_env_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
