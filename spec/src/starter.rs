//! A commented spec to begin with, made from the params of a template.

use crate::template::{Param, ParamKind, ParamValue, Template};

const HEAD: &str = "\
# A Gangline job. `gangline validate FILE` checks it, `gangline plan FILE` prints what it runs,
# `gangline submit FILE` runs it.
";

/// The lines at the head of a spec that tell editors its schema, an address or a path beside the
/// spec: the first for yaml-language-server (VS Code, Neovim, Helix), the second for JetBrains.
#[must_use]
pub fn modelines(schema: &str) -> String {
    format!("# yaml-language-server: $schema={schema}\n# $schema: {schema}\n")
}

/// The text of a spec with `template`, or with a script when there is none. It is valid as it
/// stands; what the user must fill in says CHANGE-ME.
#[must_use]
pub fn starter(template: Option<&Template>) -> String {
    let Some(template) = template else {
        return format!(
            "{HEAD}name: my-job\nresources:\n  nnodes: 1\n  gpus_per_node: 0\n\
             launcher:\n  type: ray      # ray, torchrun or command\n\
             run: |\n  echo CHANGE-ME\n"
        );
    };
    let name = template.name.rsplit('/').next().unwrap_or("job");
    let gpus = u8::from(template.counts_gpus());
    let mut out = format!(
        "{HEAD}name: my-{name}\n\n# {}\ntemplate: {}\nresources:\n  nnodes: 1\n  \
         gpus_per_node: {gpus}\n\nparams:\n",
        template.about, template.name
    );
    write_params(&template.params, 1, false, &mut out);
    if template.takes_overrides {
        out.push_str("\n# Arguments behind those of the template: the last of a key wins.\n");
        out.push_str("# overrides: [KEY=VALUE]\n");
        out.push_str("\n# checkpoint: {dir: /CHANGE-ME, every: 20, keep: 3}\n");
        out.push_str("# tracking: {wandb: {project: CHANGE-ME}}\n");
    }
    out
}

/// Required params stand as they are, the others as comments with their defaults.
fn write_params(params: &[Param], depth: usize, commented: bool, out: &mut String) {
    let indent = "  ".repeat(depth);
    for param in params {
        let commented = commented || !param.required;
        let mark = if commented { "# " } else { "" };
        out.push_str(&format!("{indent}# {}\n", param.about));
        if let ParamKind::Table(inner) = &param.kind {
            out.push_str(&format!("{indent}{mark}{}:\n", param.name));
            write_params(inner, depth + 1, commented, out);
            continue;
        }
        let value = match &param.default {
            Some(default) => written(default),
            None => placeholder(&param.kind),
        };
        out.push_str(&format!("{indent}{mark}{}: {value}\n", param.name));
    }
}

fn placeholder(kind: &ParamKind) -> String {
    match kind {
        ParamKind::Text | ParamKind::Argument => "CHANGE-ME".to_owned(),
        ParamKind::Path => "/CHANGE-ME".to_owned(),
        ParamKind::Integer(min) => min.to_string(),
        ParamKind::Float(min, _) => format!("{min:?}"),
        ParamKind::Bool => "false".to_owned(),
        ParamKind::Choice(words) => words.first().cloned().unwrap_or_default(),
        ParamKind::List(items) => format!("[{}]", placeholder(items)),
        ParamKind::Table(_) => "{}".to_owned(),
    }
}

fn written(value: &ParamValue) -> String {
    match value {
        ParamValue::Text(text) | ParamValue::Number(text) => text.clone(),
        ParamValue::Bool(value) => value.to_string(),
        ParamValue::List(items) => {
            let items: Vec<String> = items.iter().map(written).collect();
            format!("[{}]", items.join(", "))
        }
        ParamValue::Table(_) => "{}".to_owned(),
    }
}
