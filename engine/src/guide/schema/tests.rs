//! Tests of the limits on schemas.

use serde_json::json;

use super::*;

fn refused(schema: &Value) -> Option<String> {
    SchemaCost::check(schema).err().map(|error| error.to_string())
}

/// Object with `count` properties of the schema `each`, whose names begin with `name`.
fn object(name: &str, count: usize, each: &Value) -> Value {
    let properties: Map<String, Value> =
        (0..count).map(|i| (format!("{name}{i}"), each.clone())).collect();
    json!({"type": "object", "properties": properties})
}

#[test]
fn schemas_that_people_write_are_cheap() {
    let text = json!({"type": "string", "description": "a text"});
    let constants: Vec<String> = (0..1000).map(|i| format!("constant{i}")).collect();
    let node = json!({"type": "object", "properties": {
        "value": {"type": "integer", "minimum": 0}, "children": {"type": "array",
            "items": {"$ref": "#/$defs/node"}},
    }, "required": ["value", "children"], "additionalProperties": false});
    let kinds: Vec<Value> = (0..20)
        .map(|i| {
            json!({"allOf": [object(&format!("k{i}_"), 40, &text)],
            "properties": {"kind": {"const": i}}, "required": ["kind"]})
        })
        .collect();
    let mut all_required = object("p", 4000, &text);
    all_required["required"] = (0..4000).map(|i| format!("p{i}")).collect();
    for schema in [
        object("p", 400, &text),
        all_required,
        json!({"type": "string", "enum": constants}),
        json!({"allOf": [object("a", 50, &text), object("b", 50, &text), object("c", 50, &text),
            {"required": ["a1", "b1"]}]}),
        json!({"$ref": "#/$defs/node", "$defs": {"node": node}}),
        json!({"allOf": [{"$ref": "#/$defs/node"}, {"properties": {"name": text}}],
            "$defs": {"node": node}}),
        json!({"type": "object", "properties": {"name": text}, "oneOf": kinds}),
        json!({"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "null"}]}),
        json!({"type": "number", "multipleOf": 0.01}),
        json!({"type": ["object", "array", "string", "number", "integer", "boolean", "null"]}),
        object("p", 30, &json!({"type": "string", "pattern": r"(?i)^\w+@\w+\.\w+$"})),
        object("p", 150, &json!({"type": "string", "pattern": "(?i)^[a-z]+-[^a-z][a-z]$"})),
        json!({"allOf": [{"multipleOf": 1000}, {"multipleOf": 0.5}, {"type": "integer"}]}),
        json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}),
    ] {
        assert_eq!(refused(&schema), None, "{:.200}", schema.to_string());
    }
}

#[test]
fn a_schema_that_grows_tenfold_at_each_step_is_refused() {
    // A body of 2 KB, which the grammar engine would resolve to 10^9 schemas.
    let names = object("p", 10, &json!({}));
    let mut definitions = json!({"a0": {"type": "string"}});
    for i in 1..10 {
        let others = json!({"$ref": format!("#/$defs/a{}", i - 1), "type": "object"});
        definitions[format!("a{i}")] =
            json!({"allOf": [names, {"type": "object", "additionalProperties": others}]});
    }
    let schema = json!({"$ref": "#/$defs/a9", "$defs": definitions});
    assert!(refused(&schema).unwrap().contains("more than 40000 schemas"));
}

#[test]
fn recursive_schemas_that_are_intersected_are_refused() {
    let tree = |name: &str| {
        let child = json!({"$ref": format!("#/$defs/{name}")});
        json!({"type": "object", "properties": {"left": child, "right": child}})
    };
    let schema = json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {"a": tree("a"), "b": tree("b")}});
    assert!(refused(&schema).is_some());
}

#[test]
fn few_regular_expressions_are_intersected() {
    let pattern = |i: usize| json!({"type": "string", "pattern": format!("^(a|b)*a(a|b){{{i}}}$")});
    let all = |count: usize| Value::Array((0..count).map(pattern).collect());
    let want = "a text must match 9 regular expressions at once, more than the limit of 8";
    let untyped: Vec<Value> = (0..9)
        .map(|i| json!({"pattern": format!("a{i}"), "properties": {}, "required": ["a"]}))
        .collect();
    let within = |schema: &Value| json!({"type": "object", "properties": {"a": schema}});
    for (few, many) in [
        (json!({"allOf": all(8)}), json!({"allOf": all(9)})),
        (json!({"allOf": untyped[..8]}), json!({"allOf": untyped})),
        // Each alternative is a text of its own.
        (json!({"anyOf": all(24)}), json!({"anyOf": [pattern(9), {"allOf": all(9)}]})),
        (json!({"anyOf": all(4), "allOf": all(7)}), json!({"anyOf": all(4), "allOf": all(8)})),
        (
            json!({"allOf": [within(&json!({"allOf": all(4)})), within(&pattern(9))]}),
            json!({"allOf": [within(&json!({"allOf": all(8)})), within(&pattern(9))]}),
        ),
        (
            json!({"$defs": {"a": {"allOf": all(7)}}, "$ref": "#/$defs/a", "format": "date"}),
            json!({"$defs": {"a": {"allOf": all(8)}}, "$ref": "#/$defs/a", "format": "date"}),
        ),
    ] {
        assert_eq!(refused(&few), None, "{few}");
        assert_eq!(refused(&many).as_deref(), Some(want), "{many}");
    }
}

#[test]
fn each_limit_is_named() {
    let long = |n: usize| "a".repeat(n);
    let multiple = |n: u64| json!({"type": "number", "multipleOf": n});
    let multiples: Vec<Value> = (2..13).map(multiple).collect();
    let ways = |count: usize, end: &str| format!("^({}{end})$", "ab|".repeat(count));
    let two = ["c", "d"].map(|end| json!({"type": "string", "pattern": ways(699, end)}));
    let names = ["c", "d"].map(|end| (ways(699, end), json!({})));
    let names: Map<String, Value> = names.into_iter().collect();
    let number = json!({"type": "integer", "multipleOf": 9973});
    let hundred = object("p", 100, &number)["properties"].take();
    let named: Vec<Value> = (0..9).map(|_| json!({"pattern": long(8000)})).collect();
    let folded = |i: usize| json!({"pattern": format!("^(?i)[\\x00-\\x{{10ff{i:02x}}}]{{9}}$")});
    let folded: Vec<Value> = (0..110).map(folded).collect();
    let alternatives: Vec<Value> =
        (0..2000).map(|i| json!({"required": [i.to_string()]})).collect();
    let single = json!({"type": "object", "minProperties": 1, "additionalProperties": false,
        "properties": object("p", 300, &json!({}))["properties"]});
    for (schema, want) in [
        (json!({"enum": vec![1; 10_000]}), "more than 10000 subschemas"),
        (json!({"const": long(300_000)}), "300000 bytes of names and constants"),
        (json!({"pattern": long(9000)}), "9000 bytes in a regular expression"),
        (json!({"anyOf": named}), "72000 bytes of regular expressions"),
        (json!({"x-guidance": {"item_separator": long(9000)}}), "9000 bytes in a regular"),
        (json!({"pattern": "[a]".repeat(600)}), "600 character classes"),
        (json!({"pattern": format!("(?i){}", r"\w".repeat(20))}), "20 character classes in a"),
        (json!({"type": vec!["string"; 40_000]}), "`type` lists 40000 types; JSON has 7"),
        (json!({"type": ["string", "null", "string"]}), "`type` lists 3 types; JSON has 7"),
        (json!({"anyOf": folded}), "more than 40000 schemas"),
        (json!({"oneOf": alternatives}), "more than 40000 schemas"),
        (single, "more than 40000 schemas"),
        (json!({"multipleOf": 10_007}), "a multiple of 10007 (without its decimal point)"),
        (json!({"multipleOf": -1.0001}), "a multiple of 10001 (without"),
        (json!({"multipleOf": 1e300}), "a multiple of 18446744073709551615 (without"),
        (json!({"allOf": multiples}), "a multiple of 27720 (without"),
        (json!({"allOf": [{"multipleOf": 0.001}, {"multipleOf": 11}]}), "a multiple of 11000 ("),
        (json!({"properties": hundred}), "more than 40000 schemas"),
        (json!({"allOf": two}), "have 490000 combinations of branches, more than the limit of"),
        (json!({"patternProperties": names}), "have 490000 combinations of branches"),
        (json!({"const": i64::MIN}), "`const` is -9223372036854775808; numbers must be above"),
        (json!({"enum": [[{"a": -1e19}]]}), "`const` is -1e+19; numbers"),
        (json!({"type": "integer", "minimum": i64::MIN}), "`minimum` is -9223372036854775808"),
        (json!({"exclusiveMaximum": -1e300}), "`exclusiveMaximum` is -1e+300"),
    ] {
        let found = refused(&schema).unwrap_or_default();
        assert!(found.contains(want), "{found} should say: {want}");
    }
}
