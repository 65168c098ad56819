//! Templates: data that turns the params of a spec into the arguments of a program.
//!
//! A template is one YAML file below `templates/`, compiled in. `load` reads the file, `params`
//! reads the values of a spec by the template's table, `expand` makes the arguments, and `hydra`
//! writes a value as Hydra reads it. There is no code for a single template.

mod expand;
mod hydra;
mod load;
mod model;
mod params;

use std::sync::LazyLock;

pub(crate) use expand::{Asked, expand};
pub use model::{Param, ParamKind, ParamValue, Template};
pub(crate) use params::to_json;

use crate::suggest::nearest;

/// The files, in the order in which templates are listed.
pub(crate) const SOURCES: [&str; 6] = [
    include_str!("../../templates/verl/grpo.yaml"),
    include_str!("../../templates/verl/ppo.yaml"),
    include_str!("../../templates/verl/sft.yaml"),
    include_str!("../../templates/ray.yaml"),
    include_str!("../../templates/torchrun.yaml"),
    include_str!("../../templates/command.yaml"),
];

/// The files are part of the program, and a test of this module reads each of them: one that
/// cannot be read never gets as far as a user.
static TEMPLATES: LazyLock<Vec<Template>> =
    LazyLock::new(|| SOURCES.iter().filter_map(|source| load::template(source).ok()).collect());

/// The templates of this version of Gangline.
#[must_use]
pub fn templates() -> &'static [Template] {
    &TEMPLATES
}

/// The template of `NAME` or `NAME@VERSION`.
///
/// # Errors
/// What to write instead, in one line.
pub fn find(text: &str) -> Result<&'static Template, String> {
    let (name, version) = match text.split_once('@') {
        Some((name, version)) => (name, Some(version)),
        None => (text, None),
    };
    let Some(found) = templates().iter().find(|template| template.name == name) else {
        let names = || templates().iter().map(|template| template.name.as_str());
        return Err(match nearest(name, names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("one of {}", names().collect::<Vec<_>>().join(", ")),
        });
    };
    match version {
        Some(version) if version != found.version.to_string() => {
            Err(format!("this version of Gangline has `{}`", found.full_name()))
        }
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_template_with_a_name_of_its_own() {
        for source in SOURCES {
            load::template(source).unwrap_or_else(|error| panic!("{error}\n{source}"));
        }
        assert_eq!(templates().len(), SOURCES.len());
        for (index, template) in templates().iter().enumerate() {
            let others = templates().iter().skip(index + 1);
            assert!(others.into_iter().all(|other| other.name != template.name));
        }
    }

    #[test]
    fn templates_are_found_by_name_and_version() {
        assert_eq!(find("verl/grpo").unwrap().full_name(), "verl/grpo@1");
        assert_eq!(find("verl/grpo@1").unwrap().name, "verl/grpo");
        assert_eq!(find("verl/grop").unwrap_err(), "did you mean `verl/grpo`?");
        assert_eq!(find("verl/grpo@2").unwrap_err(), "this version of Gangline has `verl/grpo@1`");
        assert_eq!(find("verl/grpo@").unwrap_err(), "this version of Gangline has `verl/grpo@1`");
        assert!(find("zzzzzzzz").unwrap_err().starts_with("one of verl/grpo, "));
    }
}
