//! From the file of a template to [`Template`]. The files are ours, so an error is one line for
//! the person who edits them.

use crate::arguments::{Argument, TEMPLATE_VARIABLES};
use crate::cell::Cell;
use crate::error::Problems;
use crate::job::LauncherKind;
use crate::template::model::{
    Condition, Param, ParamKind, ParamValue, Piece, Source, Template, TemplateLauncher,
};
use crate::template::params;
use crate::tree::{self, Entry, Node, ScalarKind, Value};

type Loaded<T> = Result<T, String>;

/// Read a template.
pub(crate) fn template(source: &'static str) -> Loaded<Template> {
    let (tree, duplicates) = tree::parse(source).map_err(|error| error.message)?;
    if let Some(duplicate) = duplicates.into_iter().next() {
        return Err(duplicate.message);
    }
    let top = Mapping::of(&tree, "template")?;
    top.only(&["name", "version", "about", "launcher", "overrides", "params", "arguments"])?;
    let params = params_of(top.need("params")?)?;
    let source_of = |node: &Node| known_source(node, &params);
    let launcher = match &top.need("launcher")?.value {
        Value::Map(_) => {
            let launcher = Mapping::of(top.need("launcher")?, "launcher")?;
            launcher.only(&["from"])?;
            TemplateLauncher::From(source_of(launcher.need("from")?)?)
        }
        _ => {
            let word = text(top.need("launcher")?)?;
            let known = LauncherKind::ALL.into_iter().find(|kind| kind.word() == word);
            TemplateLauncher::Fixed(known.ok_or_else(|| format!("no launcher {word}"))?)
        }
    };
    Ok(Template {
        name: text(top.need("name")?)?.to_owned(),
        version: u32::try_from(integer(top.need("version")?)?).map_err(|e| e.to_string())?,
        about: text(top.need("about")?)?.to_owned(),
        launcher,
        takes_overrides: boolean(top.get("overrides"))?,
        pieces: pieces(top.need("arguments")?, &params)?,
        params,
        source,
    })
}

/// A mapping of the file.
struct Mapping<'a> {
    name: &'a str,
    entries: &'a [Entry],
}

impl<'a> Mapping<'a> {
    fn of(node: &'a Node, name: &'a str) -> Loaded<Self> {
        match &node.value {
            Value::Map(entries) => Ok(Self { name, entries }),
            _ => Err(format!("{name} is not a mapping")),
        }
    }

    fn only(&self, known: &[&str]) -> Loaded<()> {
        let unknown = self.entries.iter().find(|entry| !known.contains(&entry.key.as_str()));
        unknown.map_or(Ok(()), |entry| Err(format!("unknown key {} in {}", entry.key, self.name)))
    }

    fn get(&self, key: &str) -> Option<&'a Node> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    fn need(&self, key: &str) -> Loaded<&'a Node> {
        self.get(key).ok_or_else(|| format!("{} has no {key}", self.name))
    }
}

fn text(node: &Node) -> Loaded<&str> {
    match &node.value {
        Value::Scalar(scalar) => Ok(&scalar.text),
        _ => Err("a text is missing".to_owned()),
    }
}

fn integer(node: &Node) -> Loaded<i128> {
    match &node.value {
        Value::Scalar(scalar) => match scalar.kind {
            ScalarKind::Int(value) => Ok(value),
            _ => Err(format!("{} is not a whole number", scalar.text)),
        },
        _ => Err("a whole number is missing".to_owned()),
    }
}

fn number(node: &Node) -> Loaded<f64> {
    text(node)?.parse().map_err(|_| "a number is missing".to_owned())
}

/// A boolean that is false when absent.
fn boolean(node: Option<&Node>) -> Loaded<bool> {
    match node {
        None => Ok(false),
        Some(node) => match text(node)? {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(format!("{other} is not a boolean")),
        },
    }
}

fn items(node: &Node) -> Loaded<&[Node]> {
    match &node.value {
        Value::List(items) => Ok(items),
        _ => Err("a list is missing".to_owned()),
    }
}

fn params_of(node: &Node) -> Loaded<Vec<Param>> {
    let Value::Map(entries) = &node.value else {
        return Err("params are not a mapping".to_owned());
    };
    entries.iter().map(param).collect()
}

fn param(entry: &Entry) -> Loaded<Param> {
    let mapping = Mapping::of(&entry.node, &entry.key)?;
    mapping.only(&[
        "kind", "required", "default", "about", "min", "max", "choices", "items", "params",
    ])?;
    let kind = kind(&mapping)?;
    let default = mapping.get("default").map(|node| value(node, &kind)).transpose()?;
    let required = boolean(mapping.get("required"))?;
    if required && default.is_some() {
        return Err(format!("{} is required and has a default", entry.key));
    }
    let about = text(mapping.need("about")?)?.to_owned();
    Ok(Param { name: entry.key.clone(), kind, required, default, about })
}

fn kind(mapping: &Mapping<'_>) -> Loaded<ParamKind> {
    Ok(match text(mapping.need("kind")?)? {
        "string" => ParamKind::Text,
        "path" => ParamKind::Path,
        "bool" => ParamKind::Bool,
        "integer" => ParamKind::Integer(integer(mapping.need("min")?)?),
        "float" => ParamKind::Float(number(mapping.need("min")?)?, number(mapping.need("max")?)?),
        "choice" => {
            let words = items(mapping.need("choices")?)?.iter();
            ParamKind::Choice(words.map(|w| text(w).map(str::to_owned)).collect::<Loaded<_>>()?)
        }
        "list" => match text(mapping.need("items")?)? {
            "argument" => ParamKind::List(Box::new(ParamKind::Argument)),
            "path" => ParamKind::List(Box::new(ParamKind::Path)),
            other => return Err(format!("a list cannot hold {other}")),
        },
        "table" => ParamKind::Table(params_of(mapping.need("params")?)?),
        other => return Err(format!("no kind {other}")),
    })
}

/// A value of the file that a spec could have given.
fn value(node: &Node, kind: &ParamKind) -> Loaded<ParamValue> {
    let mut problems = Problems::default();
    let value = params::read(&Cell::new(node, "/default".to_owned()), kind, &mut problems);
    problems.finish(None).map_err(|errors| errors.to_string())?;
    value.ok_or_else(|| "a value is missing".to_owned())
}

fn pieces(node: &Node, params: &[Param]) -> Loaded<Vec<Piece>> {
    items(node)?.iter().map(|node| piece(node, params)).collect()
}

fn piece(node: &Node, params: &[Param]) -> Loaded<Piece> {
    if let Value::Scalar(scalar) = &node.value {
        return text_piece(&scalar.text);
    }
    let mapping = Mapping::of(node, "an argument")?;
    for (word, negated) in [("when", false), ("unless", true)] {
        let Some(source) = mapping.get(word) else {
            continue;
        };
        mapping.only(&[word, "is", "arguments"])?;
        let source = known_source(source, params)?;
        let is = mapping.get("is").map(plain_value).transpose()?;
        let condition = Condition { source, is, negated };
        return Ok(Piece::If { condition, pieces: pieces(mapping.need("arguments")?, params)? });
    }
    mapping.only(&["key", "from", "default"])?;
    let from = match &mapping.need("from")?.value {
        Value::List(sources) => {
            sources.iter().map(|node| known_source(node, params)).collect::<Loaded<Vec<_>>>()?
        }
        _ => vec![known_source(mapping.need("from")?, params)?],
    };
    let key = mapping.get("key").map(|node| text(node).map(str::to_owned)).transpose()?;
    let default = mapping.get("default").map(plain_value).transpose()?;
    Ok(Piece::Value { key, from, default })
}

/// A text is filled in when it has variables, all of which must be known.
fn text_piece(text: &str) -> Loaded<Piece> {
    let argument = Argument::Fill(text.to_owned());
    if let Some(unknown) = argument.variables().find(|name| !TEMPLATE_VARIABLES.contains(name)) {
        return Err(format!("unknown variable ${unknown}"));
    }
    let has_variables = argument.variables().next().is_some();
    Ok(Piece::Text(if has_variables { argument } else { Argument::Literal(text.to_owned()) }))
}

/// A scalar of the file by its own kind.
fn plain_value(node: &Node) -> Loaded<ParamValue> {
    match &node.value {
        Value::Scalar(scalar) => Ok(match scalar.kind {
            ScalarKind::Text => ParamValue::Text(scalar.text.clone()),
            ScalarKind::Bool => ParamValue::Bool(scalar.text == "true"),
            ScalarKind::Int(_) | ScalarKind::Float(_) => ParamValue::Number(scalar.text.clone()),
        }),
        _ => Err("a plain value is missing".to_owned()),
    }
}

fn known_source(node: &Node, params: &[Param]) -> Loaded<Source> {
    let name = text(node)?;
    if let Some((_, source)) = Source::FIXED.into_iter().find(|(fixed, _)| *fixed == name) {
        return Ok(source);
    }
    let path = name.strip_prefix("params.").ok_or_else(|| format!("no source {name}"))?;
    let keys: Vec<String> = path.split('.').map(str::to_owned).collect();
    let mut level = params;
    for key in &keys {
        let param = level.iter().find(|param| param.name == *key);
        let param = param.ok_or_else(|| format!("no param {name}"))?;
        level = match &param.kind {
            ParamKind::Table(params) => params,
            _ => &[],
        };
    }
    Ok(Source::Param(keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "name: x\nversion: 1\nabout: a\nlauncher: command\n";

    fn error(rest: &str) -> String {
        let source = format!("{HEAD}{rest}").leak();
        template(source).map(|t| format!("accepted {t:?}")).unwrap_err()
    }

    #[test]
    fn mistakes_in_a_file_are_found() {
        let cases = [
            ("params: {}\narguments: [{from: params.a}]", "no param params.a"),
            ("params: {}\narguments: [{from: env.A}]", "no source env.A"),
            ("params: {}\narguments: [a$HOME]", "unknown variable $HOME"),
            ("params: {}\narguments: [{frm: params.a}]", "unknown key frm in an argument"),
            ("params: {}\narguments: []\nmore: 1", "unknown key more in template"),
            ("params: {a: {kind: text, about: x}}\narguments: []", "no kind text"),
            ("params: {a: {kind: bool}}\narguments: []", "a has no about"),
            (
                "params: {a: {kind: bool, about: x, required: true, default: true}}\narguments: []",
                "a is required and has a default",
            ),
        ];
        for (rest, expected) in cases {
            assert_eq!(error(rest), expected);
        }
        let wrong =
            error("params: {a: {kind: integer, min: 1, default: 0, about: x}}\narguments: []");
        assert!(wrong.contains("at least 1"), "{wrong}");
    }
}
