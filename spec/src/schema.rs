//! The JSON Schema (draft-07) of a spec, made from the table of fields and the params of the
//! templates, for editors. It says what a schema can say; `parse` has the last word.

use serde_json::{Map, Value, json};

use crate::fields::{Field, Section, Shape, TOP};
use crate::template::{Param, ParamKind, ParamValue, Template};

/// The names of a fleet that an editor completes. Any other name passes as well: a node may join
/// between two looks, and what no node has is the coordinator's matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub pools: Vec<String>,
    pub gpu_models: Vec<String>,
}

/// The schema of a spec. Only fields that [`crate::parse`] takes are in it.
#[must_use]
pub fn schema(names: &Names, templates: &[Template]) -> Value {
    let fleet = Fleet { names, templates };
    let mut schema = section(&TOP, &fleet);
    let add = [
        ("$schema", json!("http://json-schema.org/draft-07/schema#")),
        ("title", json!("Gangline job spec")),
        ("if", json!({ "required": ["kind"], "properties": { "kind": { "const": "cluster" } } })),
        ("then", json!({ "not": { "anyOf": entrypoints() } })),
        ("else", json!({ "oneOf": entrypoints(), "not": { "required": ["idle_stop"] } })),
        (
            "dependencies",
            json!({
                "params": ["template"], "overrides": ["template"], "expansion": ["template"]
            }),
        ),
        ("allOf", templates.iter().map(template_rule).collect()),
    ];
    if let Value::Object(schema) = &mut schema {
        schema.extend(add.into_iter().map(|(key, value)| (key.to_owned(), value)));
    }
    schema
}

/// The fields of which a job has exactly one and a cluster none.
fn entrypoints() -> Vec<Value> {
    ["run", "command", "template"].map(|name| json!({ "required": [name] })).to_vec()
}

struct Fleet<'a> {
    names: &'a Names,
    templates: &'a [Template],
}

fn section(section: &Section, fleet: &Fleet<'_>) -> Value {
    let fields = || {
        let fields = section.fields.iter();
        fields.filter(|field| field.status.is_read())
    };
    let properties: Map<String, Value> =
        fields().map(|field| (field.name.to_owned(), described(field, fleet))).collect();
    let required: Vec<&str> = fields().filter(|f| f.required).map(|f| f.name).collect();
    object(properties, &required)
}

/// A mapping with no other keys than `properties`.
fn object(properties: Map<String, Value>, required: &[&str]) -> Value {
    let mut out = json!({
        "type": "object", "additionalProperties": false, "properties": properties
    });
    if let (false, Value::Object(out)) = (required.is_empty(), &mut out) {
        out.insert("required".to_owned(), json!(required));
    }
    out
}

fn described(field: &Field, fleet: &Fleet<'_>) -> Value {
    let default = field.default.and_then(|text| serde_json::from_str(text).ok());
    annotated(shape(&field.shape, fleet), field.about, default)
}

fn annotated(mut schema: Value, about: &str, default: Option<Value>) -> Value {
    if let Value::Object(schema) = &mut schema {
        schema.insert("description".to_owned(), json!(about));
        if let Some(default) = default {
            schema.insert("default".to_owned(), default);
        }
    }
    schema
}

fn shape(of: &Shape, fleet: &Fleet<'_>) -> Value {
    match of {
        Shape::Text => text(),
        Shape::Script => json!({ "type": "string", "minLength": 1 }),
        Shape::Name => json!({ "type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,62}$" }),
        Shape::Path => json!({ "type": "string", "pattern": "^/" }),
        Shape::Duration => json!({
            "type": "string",
            "minLength": 2,
            "pattern": "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$\
                        |^[0-9]+-[0-2][0-9]:[0-5][0-9]:[0-5][0-9]$"
        }),
        Shape::Moment => json!({
            "type": "string",
            "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?\
                        ([Zz]|[+-][0-9]{2}:[0-9]{2})$"
        }),
        Shape::Size => {
            json!({ "type": "string", "pattern": "^[0-9]+ *(([TGMK]i?)?B)$" })
        }
        Shape::Bool => json!({ "type": "boolean" }),
        Shape::Count(range) => {
            json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
        }
        Shape::CountRange => {
            json!({ "type": "string", "pattern": "^[1-9][0-9]*(\\.\\.|:)[1-9][0-9]*$" })
        }
        Shape::Number(range) => {
            json!({ "type": "number", "minimum": range.start(), "maximum": range.end() })
        }
        Shape::Words(words) => json!({ "enum": words }),
        Shape::OneOf(shapes) => {
            json!({ "anyOf": shapes.iter().map(|s| shape(s, fleet)).collect::<Vec<_>>() })
        }
        Shape::List(items) => json!({ "type": "array", "items": shape(items, fleet) }),
        Shape::Map(values) => {
            json!({ "type": "object", "additionalProperties": shape(values, fleet) })
        }
        Shape::Optional(inner) => json!({ "anyOf": [shape(inner, fleet), { "type": "null" }] }),
        Shape::Section(inner) => section(inner, fleet),
        Shape::Pool => completed(&fleet.names.pools),
        Shape::GpuModel => completed(&fleet.names.gpu_models),
        Shape::Template => {
            let names = fleet.templates.iter();
            json!({
                "type": "string",
                // A version that is gone may stand in the record of a job.
                "anyOf": [
                    { "enum": names.map(|t| t.name.clone()).collect::<Vec<_>>() },
                    { "pattern": "^[^@]+@[1-9][0-9]*$" },
                ],
            })
        }
        Shape::Params => json!({ "type": "object" }),
        Shape::Open => json!({}),
    }
}

/// A text; the parser takes a number or a boolean for the text that was written.
fn text() -> Value {
    json!({ "type": ["string", "number", "boolean"] })
}

/// A text, and the known ones for completion: `enum` is the word that every editor completes from.
fn completed(names: &[String]) -> Value {
    if names.is_empty() { text() } else { json!({ "anyOf": [{ "enum": names }, text()] }) }
}

/// With this template, `params` are its own. A recorded expansion is not checked: its template
/// may have been another version.
fn template_rule(template: &Template) -> Value {
    let mut properties = Map::new();
    properties.insert("params".to_owned(), params(&template.params));
    let mut then = json!({ "properties": properties });
    let needs_params = template.params.iter().any(|param| param.required);
    if let (true, Value::Object(then)) = (needs_params, &mut then) {
        then.insert("required".to_owned(), json!(["params"]));
    }
    json!({
        "if": {
            "required": ["template"],
            "properties": { "template": { "enum": [template.name, template.full_name()] } },
            "not": { "required": ["expansion"] },
        },
        "then": then,
    })
}

impl Template {
    /// The JSON Schema of the params.
    #[must_use]
    pub fn params_schema(&self) -> Value {
        params(&self.params)
    }
}

fn params(params: &[Param]) -> Value {
    let properties = params.iter().map(|param| {
        let default = param.default.as_ref().map(param_value);
        (param.name.clone(), annotated(param_kind(&param.kind), &param.about, default))
    });
    let required: Vec<&str> =
        params.iter().filter(|param| param.required).map(|param| param.name.as_str()).collect();
    object(properties.collect(), &required)
}

fn param_kind(kind: &ParamKind) -> Value {
    match kind {
        ParamKind::Text | ParamKind::Argument => text(),
        ParamKind::Path => json!({ "type": "string", "pattern": "^/|://" }),
        ParamKind::Integer(min) => match i64::try_from(*min) {
            Ok(min) => json!({ "type": "integer", "minimum": min }),
            Err(_) => json!({ "type": "integer" }),
        },
        ParamKind::Float(min, max) => {
            json!({ "type": "number", "minimum": min, "maximum": max })
        }
        ParamKind::Bool => json!({ "type": "boolean" }),
        ParamKind::Choice(words) => json!({ "enum": words }),
        ParamKind::List(items) => {
            json!({ "type": "array", "minItems": 1, "items": param_kind(items) })
        }
        ParamKind::Table(inner) => params(inner),
    }
}

fn param_value(value: &ParamValue) -> Value {
    match value {
        ParamValue::Text(text) => json!(text),
        ParamValue::Number(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        ParamValue::Bool(value) => json!(value),
        ParamValue::List(items) => items.iter().map(param_value).collect(),
        ParamValue::Table(entries) => Value::Object(
            entries.iter().map(|(key, value)| (key.clone(), param_value(value))).collect(),
        ),
    }
}
