//! Reference pages (`docs/reference/*.md`): the keys of each kind of file that people write, as
//! Markdown tables made from the JSON Schemas.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Kinds of files that people write: name of the schema, name of the page without `.md`, title, and
/// the folder of such files. The schema of a GPU validation has kept the name that older records
/// cite.
const FILES: &[(&str, &str, &str, &str)] = &[
    ("scenario", "scenario", "Keys of a scenario file", "suite/scenarios"),
    ("model", "model", "Keys of a model file", "suite/models"),
    ("dataset", "dataset", "Keys of a dataset file", "suite/datasets"),
    ("target", "target", "Keys of a target file", "suite/targets"),
    ("engine", "engine", "Keys of an engine file", "suite/engines"),
    ("lab", "lab", "Keys of a lab file", "suite/labs"),
    ("policy", "policy", "Keys of a policy file", "suite/policies"),
    ("proof", "gpu-validation", "Keys of a GPU validation file", "suite/validations"),
    ("event.v1", "event", "Keys of an event file", "results/events"),
];

/// Generated Markdown page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// File name of the page in `docs/reference`.
    pub name: String,
    /// Markdown text of the page.
    pub text: String,
}

/// Returns the reference page of each kind of file that people write.
pub fn pages() -> Vec<Page> {
    let schemas = crate::schemas::all();
    let of = |(schema, name, title, folder): &(&str, &str, &str, &str)| {
        let (_, schema) = schemas.iter().find(|(other, _)| other == schema)?;
        Some(Page { name: format!("{name}.md"), text: page(title, folder, schema.as_value()) })
    };
    FILES.iter().filter_map(of).collect()
}

fn page(title: &str, folder: &str, schema: &Value) -> String {
    let mut text = format!("# {title}\n\n");
    if let Some(description) = schema["description"].as_str() {
        let _ = writeln!(text, "{}\n", plain(description));
    }
    let _ = writeln!(
        text,
        "Such files are in `{folder}`. This page is generated from the types in `schema/src` by \
         `cargo xtask codegen`."
    );
    let mut page = Writer { definitions: &schema["$defs"], text, written: BTreeSet::new() };
    page.text.push_str("\n## Keys\n");
    page.content(schema);
    page.text
}

/// Page that is being written: its text, and the names of the definitions that it has sections for.
struct Writer<'a> {
    definitions: &'a Value,
    text: String,
    written: BTreeSet<String>,
}

impl Writer<'_> {
    /// Writes the section of a definition, unless it has one: an object, an enumeration or a choice
    /// of objects.
    fn section(&mut self, name: &str) {
        if !self.written.insert(name.to_owned()) {
            return;
        }
        let schema = self.definitions[name].clone();
        let _ = writeln!(self.text, "\n## {name}");
        if let Some(description) = schema["description"].as_str() {
            let _ = writeln!(self.text, "\n{}", plain(description));
        }
        self.content(&schema);
    }

    /// Writes the keys or values of a schema, then the sections of the definitions that they refer
    /// to.
    fn content(&mut self, schema: &Value) {
        let mut named = Vec::new();
        if schema["properties"].is_object() {
            named = self.table(schema);
        }
        for choice in choices(schema) {
            named.extend(self.choice(choice));
        }
        for name in named {
            self.section(&name);
        }
    }

    /// Writes one choice of an enumeration: a value with its meaning, or the keys of an object.
    /// Returns the names of the definitions that it refers to.
    fn choice(&mut self, choice: &Value) -> Vec<String> {
        let meaning = choice["description"].as_str().map(plain).unwrap_or_default();
        if let Some(value) = choice["const"].as_str() {
            let _ = write!(self.text, "\n- `{value}`: {meaning}\n");
            return Vec::new();
        }
        for value in choice["enum"].as_array().into_iter().flatten() {
            let _ = write!(self.text, "\n- `{}`\n", value.as_str().unwrap_or_default());
        }
        if !choice["properties"].is_object() {
            return Vec::new();
        }
        let _ = writeln!(self.text, "\n{meaning}");
        self.table(choice)
    }

    /// Writes the table of an object's keys and returns the names of the definitions in it.
    fn table(&mut self, schema: &Value) -> Vec<String> {
        self.text.push_str("\n| key | value | needed | meaning |\n|---|---|---|---|\n");
        let needed: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let none = Map::new();
        let mut named = Vec::new();
        for (key, property) in schema["properties"].as_object().unwrap_or(&none) {
            let meaning = property["description"].as_str().map(plain).unwrap_or_default();
            let is_needed = if needed.contains(&key.as_str()) { "yes" } else { "" };
            let value = kind(property, &mut named).replace('|', "\\|");
            let meaning = meaning.replace('|', "\\|");
            let _ = writeln!(self.text, "| `{key}` | {value} | {is_needed} | {meaning} |");
        }
        named
    }
}

fn choices(schema: &Value) -> impl Iterator<Item = &Value> {
    ["oneOf", "anyOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten()
}

/// Describes the values of a property, and adds the names of the definitions in it to `named`.
fn kind(property: &Value, named: &mut Vec<String>) -> String {
    if let Some(name) = property["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        named.push(name.to_owned());
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(value) = property["const"].as_str() {
        return format!("`{value}`");
    }
    let options = || ["anyOf", "oneOf"].into_iter().filter_map(|key| property[key].as_array());
    let parts: Vec<String> = options()
        .flatten()
        .filter(|option| option["type"] != "null")
        .map(|option| kind(option, named))
        .collect();
    if !parts.is_empty() {
        return parts.join(" or ");
    }
    let types = property["type"].as_array().cloned().unwrap_or(vec![property["type"].clone()]);
    let word = types.iter().filter_map(Value::as_str).find(|word| *word != "null");
    match word.unwrap_or("any") {
        "array" => format!("list of {}", kind(&property["items"], named)),
        "object" if property["additionalProperties"].is_object() => {
            format!("table of {}", kind(&property["additionalProperties"], named))
        }
        "object" => "table".to_owned(),
        "string" => "text".to_owned(),
        other => other.to_owned(),
    }
}

/// Returns a description on one line; paragraphs follow each other.
fn plain(description: &str) -> String {
    description.split_whitespace().collect::<Vec<&str>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str) -> String {
        pages().into_iter().find(|page| page.name == name).unwrap().text
    }

    #[test]
    fn every_kind_of_file_has_a_page_with_its_keys() {
        assert_eq!(pages().len(), FILES.len());
        for page in pages() {
            assert!(page.text.contains("\n| `"), "{} lists no key", page.name);
            assert!(
                !page.text.contains("|  |  |"),
                "{}: a key without value and meaning",
                page.name
            );
        }
    }

    #[test]
    fn a_key_has_its_kind_and_its_meaning_and_values_are_listed() {
        let scenario = text("scenario.md");
        for line in [
            "| `question` | text | yes | Question that the scenario answers, in words. |",
            "| `workload` | [Workload](#workload) | yes | ",
            "\n## Workload\n",
            "\n- `words`: ",
            "| `concurrency` | integer | yes | ",
        ] {
            assert!(scenario.contains(line), "{line:?} is missing in\n{scenario}");
        }
        assert!(text("engine.md").contains("| `argv` | list of text | yes | "));
    }

    #[test]
    fn a_definition_has_one_section_however_many_keys_refer_to_it() {
        let engine = text("engine.md");
        assert_eq!(engine.matches("\n## Setting\n").count(), 1);
    }
}
