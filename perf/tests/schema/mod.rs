//! A check against docs/perf-schema.json: of JSON Schema what that file uses, and a refusal of what it does not.

use serde_json::{Map, Value};

const SCHEMA: &str = include_str!("../../../docs/perf-schema.json");

/// Whether `value` is as the schema of outcomes says, else where not.
pub fn check(value: &Value) -> Result<(), String> {
    check_by(SCHEMA, value)
}

/// The same for another schema.
pub fn check_by(schema: &str, value: &Value) -> Result<(), String> {
    let schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
    against(&schema, &schema, value, "")
}

fn against(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let rules = schema.as_object().ok_or("a schema is an object")?;
    for (rule, wanted) in rules {
        match rule.as_str() {
            "$ref" => {
                let pointer = wanted.as_str().and_then(|text| text.strip_prefix('#'));
                let pointer = pointer.ok_or("a $ref leads into this file")?;
                let target = root
                    .pointer(pointer)
                    .ok_or(format!("no {pointer} in the schema"))?;
                against(root, target, value, at)?;
            }
            "type" => of_type(wanted, value, at)?,
            "enum" => {
                let allowed = wanted.as_array().ok_or("enum is a list")?;
                if !allowed.contains(value) {
                    return Err(format!("{at}: {value} is none of {wanted}"));
                }
            }
            "const" if wanted != value => return Err(format!("{at}: {value} is not {wanted}")),
            "const" => {}
            "minimum" => {
                let (number, least) = (value.as_f64(), wanted.as_f64());
                if number.is_some() && number < least {
                    return Err(format!("{at}: {value} is less than {wanted}"));
                }
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    against(root, wanted, item, &format!("{at}/{n}"))?;
                }
            }
            "anyOf" => {
                let ways = wanted.as_array().ok_or("anyOf is a list")?;
                let faults: Vec<String> = ways
                    .iter()
                    .filter_map(|way| against(root, way, value, at).err())
                    .collect();
                if faults.len() == ways.len() {
                    return Err(faults.join("; "));
                }
            }
            "required" | "properties" | "additionalProperties" => {}
            "$schema" | "$id" | "$defs" | "title" | "description" => {}
            other => return Err(format!("this check does not know the rule {other}")),
        }
    }
    match value.as_object() {
        Some(object) => members(root, rules, object, at),
        None => Ok(()),
    }
}

fn of_type(wanted: &Value, value: &Value, at: &str) -> Result<(), String> {
    let is = |name: &Value| match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => false,
    };
    let right = match wanted {
        Value::Array(names) => names.iter().any(is),
        name => is(name),
    };
    right
        .then_some(())
        .ok_or(format!("{at}: {value} is no {wanted}"))
}

fn members(
    root: &Value,
    rules: &Map<String, Value>,
    object: &Map<String, Value>,
    at: &str,
) -> Result<(), String> {
    let empty = Map::new();
    let known = rules
        .get("properties")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    for name in rules
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let name = name.as_str().ok_or("required lists names")?;
        if !object.contains_key(name) {
            return Err(format!("{at} lacks {name}"));
        }
    }
    for (name, member) in object {
        let here = format!("{at}/{name}");
        match (known.get(name), rules.get("additionalProperties")) {
            (Some(schema), _) => against(root, schema, member, &here)?,
            (None, Some(Value::Bool(false))) => return Err(format!("{here} is not in the schema")),
            (None, Some(schema @ Value::Object(_))) => against(root, schema, member, &here)?,
            (None, _) => {}
        }
    }
    Ok(())
}
