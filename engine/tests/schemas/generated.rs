//! Random JSON schemas, the same for the same seed.

use std::collections::BTreeSet;

use engine_core::random::{GOLDEN_GAMMA, mix};
use serde_json::{Map, Value, json};

/// Depth of a schema below which only scalar types are generated.
const DEPTH_MAX: usize = 3;

/// Generator of random numbers and schemas.
pub struct Generator {
    state: u64,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    /// Returns a number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        (mix(self.state) % count.max(1) as u64) as usize
    }

    fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Generates a schema with definitions, to some of which it refers.
    pub fn schema(&mut self) -> Value {
        let definitions: Map<String, Value> =
            (0..3).map(|i| (format!("d{i}"), self.part(1))).collect();
        let mut schema = self.part(0);
        schema["$defs"] = definitions.into();
        schema
    }

    /// Generates a schema of an object, as tools have it for their arguments.
    pub fn arguments(&mut self) -> Value {
        let mut schema = self.schema();
        let definitions = schema["$defs"].take();
        let mut object = self.object(0);
        object["$defs"] = definitions;
        object
    }

    fn part(&mut self, depth: usize) -> Value {
        if depth >= DEPTH_MAX {
            return self.scalar();
        }
        match self.below(12) {
            0..=2 => self.scalar(),
            3..=5 => self.object(depth),
            6 | 7 => self.array(depth),
            8 => json!({"anyOf": [self.part(depth + 1), self.part(depth + 1)]}),
            9 => json!({"oneOf": [self.tagged("x", depth), self.tagged("y", depth)]}),
            10 => json!({"allOf": [self.object(depth), self.object(depth)]}),
            // Only to deeper definitions, so that no text must be endless.
            _ if depth == 0 => json!({"$ref": format!("#/$defs/d{}", self.below(3))}),
            _ => self.scalar(),
        }
    }

    fn scalar(&mut self) -> Value {
        match self.below(8) {
            0 => json!({"type": "null"}),
            1 => json!({"type": "boolean"}),
            2 | 3 => self.number("integer"),
            4 => self.number("number"),
            5 => json!({"enum": [self.word(), self.below(100), null, true, self.word()]}),
            6 => json!({"const": [self.word(), {"k": self.below(9)}]}),
            _ => self.text(),
        }
    }

    fn number(&mut self, kind: &str) -> Value {
        let mut schema = json!({"type": kind});
        let low = self.below(2000) as i64 - 1000;
        if self.once_in(2) {
            let keyword = if self.once_in(2) { "minimum" } else { "exclusiveMinimum" };
            schema[keyword] = low.into();
        }
        if self.once_in(2) {
            let keyword = if self.once_in(2) { "maximum" } else { "exclusiveMaximum" };
            schema[keyword] = (low + 2 + self.below(500) as i64).into();
        }
        if kind == "integer" && self.once_in(4) {
            schema["multipleOf"] = (1 + self.below(7)).into();
        }
        schema
    }

    fn text(&mut self) -> Value {
        let mut schema = json!({"type": "string"});
        match self.below(5) {
            0 => schema["pattern"] = "^[a-c]{2,5}(x|yz)?$".into(),
            1 => schema["pattern"] = "b+".into(),
            2 => {
                let low = self.below(4);
                schema["minLength"] = low.into();
                schema["maxLength"] = (low + self.below(6)).into();
            }
            3 => schema["format"] = "date".into(),
            _ => {}
        }
        schema
    }

    fn array(&mut self, depth: usize) -> Value {
        let mut schema = json!({"type": "array", "items": self.part(depth + 1)});
        let low = self.below(3);
        if self.once_in(2) {
            schema["minItems"] = low.into();
        }
        if self.once_in(2) {
            schema["maxItems"] = (low + self.below(4)).into();
        }
        if self.once_in(4) {
            schema["prefixItems"] = json!([self.part(depth + 1), self.scalar()]);
        }
        schema
    }

    fn object(&mut self, depth: usize) -> Value {
        let names: BTreeSet<String> = (0..self.below(5)).map(|_| self.word()).collect();
        let properties: Map<String, Value> =
            names.iter().map(|name| (name.clone(), self.part(depth + 1))).collect();
        let required: Vec<&String> = names.iter().filter(|_| self.once_in(2)).collect();
        let mut schema = json!({"type": "object", "properties": properties, "required": required});
        match self.below(4) {
            0 => {}
            1 => schema["additionalProperties"] = self.scalar(),
            2 => schema["patternProperties"] = json!({"^p_": self.scalar()}),
            _ => schema["additionalProperties"] = false.into(),
        }
        schema
    }

    /// Generates an object whose property `tag` has one value, so that it is told from others.
    fn tagged(&mut self, tag: &str, depth: usize) -> Value {
        let mut schema = self.object(depth);
        schema["properties"]["tag"] = json!({"const": tag});
        schema["required"].as_array_mut().expect("a list").push("tag".into());
        schema
    }

    fn word(&mut self) -> String {
        let words = ["a", "bc", "name", "é", "x y", "quote\"", "p_q", "line\n", "\\", "0"];
        words[self.below(words.len())].to_owned()
    }
}
