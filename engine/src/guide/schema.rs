//! Cost of a JSON schema: an upper bound on the number of schemas that it becomes when the grammar
//! engine resolves its references and intersections.
//!
//! The grammar engine limits what it builds, but not the copies of schemas that it makes to
//! intersect them, and these can multiply at every step: a schema of two kilobytes may fill the
//! memory. The sizes here follow its way of resolving a schema (`json/schema.rs` of llguidance).

mod decimal;
mod size;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::TextError;
use super::expression::{self, Expressions, within};
use decimal::Decimal;
use size::{
    Shape, Size, check_branches, check_multiple, check_number, check_types, common_multiple,
    differ, intersected, sum,
};

/// Limit on the number of parts of a schema, which are its subschemas, references, constants and
/// required names. OpenAI's limit on properties is 5,000.
pub(super) const PARTS_MAX: usize = 10_000;
/// Limit on the number of schemas that a schema's parts and their intersections resolve to. The
/// grammar engine uses up to 1.5 KB and 10 µs for each.
const COST_MAX: u64 = 40_000;
/// Limit on the length in bytes of a schema's names and constant texts together. OpenAI's limit is
/// 120,000 characters.
const TEXT_BYTES_MAX: usize = 256 * 1024;
/// Cost of a regular expression, with which the grammar engine finds out whether any text matches
/// it, in schemas.
const EXPRESSION_COST: u64 = 16;
/// Upper bound on the branches of the regular expression of a `format`.
const FORMAT_BRANCHES: u64 = 5;

/// Keywords that describe a schema and restrict nothing.
const ANNOTATIONS: [&str; 15] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// Keywords of a schema that are not applied in place, between two that are: what the grammar
/// engine compiles together.
#[derive(Debug, Default)]
struct Group<'a> {
    has_keywords: bool,
    properties: BTreeMap<&'a str, Size<'a>>,
    /// Schemas of the properties whose names match a regular expression.
    patterns: Vec<Size<'a>>,
    /// Schemas of items and of other properties.
    others: Vec<Size<'a>>,
    /// Number of required names.
    required: u64,
    /// Number of the regular expressions that a text must match, and the product of their branches.
    expressions: u64,
    branches: u64,
    /// Value of `multipleOf`, if any.
    multiple: Option<Decimal>,
    /// Cost of the regular expressions that the keywords are, or become.
    expression_cost: u64,
    /// True if the number of properties is limited.
    counts_properties: bool,
}

impl Group<'_> {
    /// Adds a regular expression that a text must match.
    fn add_expression(&mut self, branches: u64) {
        self.expressions += 1;
        self.branches = self.branches.max(1).saturating_mul(branches);
    }
}

/// Cost of a schema, added up while the schema is read.
pub(super) struct SchemaCost<'a> {
    root: &'a Value,
    /// Sizes of the subschemas that references lead to, by reference; `None` while one is read.
    definitions: BTreeMap<&'a str, Option<Size<'a>>>,
    expressions: Expressions,
    /// Largest number of branches of a regular expression of `patternProperties`.
    name_branches: u64,
    /// True if a text or number may have to match several regular expressions at once.
    has_intersections: bool,
    parts: usize,
    text_bytes: usize,
    cost: u64,
}

impl<'a> SchemaCost<'a> {
    /// Refuses a schema whose grammar could take too much time or memory to build. Returns true if a
    /// text or number of the schema may have to match several regular expressions at once.
    ///
    /// # Errors
    /// The schema has more parts, longer texts or more expensive regular expressions than a limit
    /// allows, or resolves to too many schemas; the message gives the limit.
    pub(super) fn check(root: &'a Value) -> Result<bool, TextError> {
        Self::check_all([root])
    }

    /// Refuses several schemas whose common grammar could take too much time or memory to build.
    ///
    /// # Errors
    /// As those of [`SchemaCost::check`], for all schemas together.
    pub(super) fn check_all(roots: impl IntoIterator<Item = &'a Value>) -> Result<bool, TextError> {
        let mut cost = Self {
            root: &Value::Null,
            definitions: BTreeMap::new(),
            expressions: Expressions::default(),
            name_branches: 0,
            has_intersections: false,
            parts: 0,
            text_bytes: 0,
            cost: 0,
        };
        for root in roots {
            cost.root = root;
            cost.definitions.clear();
            // Settings of the grammar engine: some are regular expressions.
            let settings = root.get("x-guidance").and_then(Value::as_object);
            for setting in settings.into_iter().flat_map(Map::values).filter_map(Value::as_str) {
                cost.expressions.add(setting)?;
            }
            cost.schema(root)?;
        }
        Ok(cost.has_intersections)
    }

    /// Counts one part of the schema, with a text of this length.
    fn count(&mut self, text_bytes: usize) -> Result<(), TextError> {
        self.parts += 1;
        self.text_bytes += text_bytes;
        if self.parts > PARTS_MAX {
            let what = "subschemas, references, constants and required names";
            return Err(TextError(format!("it has more than {PARTS_MAX} {what}")));
        }
        within("bytes of names and constants", self.text_bytes, TEXT_BYTES_MAX)
    }

    fn spend(&mut self, cost: u64) -> Result<(), TextError> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost <= COST_MAX {
            return Ok(());
        }
        Err(TextError(format!(
            "its references, `allOf` and other combinations resolve to more than {COST_MAX} schemas"
        )))
    }

    /// Returns the size of a schema, after it has counted the schema's parts and cost.
    fn schema(&mut self, schema: &'a Value) -> Result<Size<'a>, TextError> {
        self.count(0)?;
        self.spend(1)?;
        let Value::Object(map) = schema else { return Ok(Size::leaf()) };
        let mut sizes = Vec::new();
        let mut group = Group::default();
        for (keyword, value) in map {
            if ANNOTATIONS.contains(&keyword.as_str()) {
                continue;
            }
            let before = sizes.len();
            self.apply(keyword, value, &mut sizes)?;
            if sizes.len() > before {
                sizes.extend(self.group(std::mem::take(&mut group), map)?);
            } else {
                group.has_keywords = true;
                self.keyword(keyword, value, &mut group)?;
            }
        }
        sizes.extend(self.group(group, map)?);
        let mut sizes = sizes.into_iter();
        let Some(mut size) = sizes.next() else { return Ok(Size::leaf()) };
        for other in sizes {
            size = self.intersection(&size, &other)?;
        }
        Ok(size)
    }

    /// Adds the sizes of the schemas that `keyword` applies in place to `sizes`; none for other
    /// keywords.
    fn apply(
        &mut self,
        keyword: &str,
        value: &'a Value,
        sizes: &mut Vec<Size<'a>>,
    ) -> Result<(), TextError> {
        let all = value.as_array().map_or(&[][..], Vec::as_slice);
        match keyword {
            "const" => sizes.push(self.constant(value)?),
            "enum" => {
                let constants: Vec<_> =
                    all.iter().map(|value| self.constant(value)).collect::<Result<_, _>>()?;
                let flat = constants.iter().all(|constant| !constant.deep);
                sizes.push(Size { deep: !flat, ..sum(1, constants.iter()) });
            }
            "allOf" => {
                for schema in all {
                    sizes.push(self.schema(schema)?);
                }
            }
            "anyOf" | "oneOf" => {
                let all: Vec<_> = all.iter().map(|s| self.schema(s)).collect::<Result<_, _>>()?;
                sizes.push(self.alternatives(all, keyword == "oneOf")?);
            }
            "$ref" => {
                if let Some(reference) = value.as_str() {
                    // Its rule in the grammar takes as much memory as two subschemas.
                    self.parts += 1;
                    self.count(0)?;
                    sizes.push(self.reference(reference)?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn alternatives(&mut self, all: Vec<Size<'a>>, one: bool) -> Result<Size<'a>, TextError> {
        let expressions = all.iter().map(|size| size.expressions).max().unwrap_or(0);
        let branches = all.iter().map(|size| size.branches).max().unwrap_or(1);
        let size = Size { expressions, branches, ..sum(1, all.iter()) };
        if one {
            // The grammar engine compares the alternatives in pairs.
            let count = all.len() as u64;
            self.spend(count * count / 16 + size.own.saturating_mul(size.own) / 4096)?;
        }
        let shape = Shape::Alternatives(Rc::new(all), one);
        Ok(Size { shape, ..size })
    }

    /// Returns the size of a constant: a schema for each of its values.
    fn constant(&mut self, value: &'a Value) -> Result<Size<'a>, TextError> {
        self.count(value.as_str().map_or(0, str::len))?;
        self.spend(1)?;
        if let Value::Number(number) = value {
            check_number("const", number)?;
        }
        let mut values = Vec::new();
        match value {
            Value::Array(items) => {
                for item in items {
                    values.push(self.constant(item)?);
                }
            }
            Value::Object(entries) => {
                for (name, item) in entries {
                    self.count(name.len())?;
                    values.push(self.constant(item)?);
                }
            }
            _ => {}
        }
        Ok(sum(1, values.iter()))
    }

    /// Returns the size of a reference, after the schema that it leads to has been read once.
    fn reference(&mut self, reference: &'a str) -> Result<Size<'a>, TextError> {
        // The schema is being read: it refers to itself.
        let endless = Size { top: u64::MAX, full: u64::MAX, deep: true, ..Size::leaf() };
        if let Some(known) = self.definitions.get(reference) {
            return Ok(known.clone().map_or(endless, |size| Size { own: 1, ..size }));
        }
        // The grammar engine reports a reference that leads nowhere.
        let Some(target) = self.target(reference) else { return Ok(Size::leaf()) };
        self.definitions.insert(reference, None);
        let size = self.schema(target)?;
        self.definitions.insert(reference, Some(size.clone()));
        Ok(Size { own: 1, ..size })
    }

    /// Returns the subschema that a reference leads to, as the grammar engine finds it.
    fn target(&self, reference: &str) -> Option<&'a Value> {
        if reference == "#" || reference == "#/" {
            return Some(self.root);
        }
        let mut steps = reference.strip_prefix("#/")?.split('/');
        steps.try_fold(self.root, |found, step| match found {
            Value::Array(items) => items.get(step.parse::<usize>().ok()?),
            value => value.get(step),
        })
    }

    /// Adds a keyword that is not applied in place to `group`.
    fn keyword(
        &mut self,
        keyword: &str,
        value: &'a Value,
        group: &mut Group<'a>,
    ) -> Result<(), TextError> {
        match (keyword, value) {
            ("properties", Value::Object(properties)) => {
                for (name, schema) in properties {
                    self.text_bytes += name.len();
                    group.properties.insert(name, self.schema(schema)?);
                }
            }
            ("patternProperties", Value::Object(properties)) => {
                for (pattern, schema) in properties {
                    self.expressions.add(pattern)?;
                    group.expression_cost += expression::folding_cost(pattern);
                    self.has_intersections = true;
                    // The grammar engine intersects the expressions of an object in pairs.
                    let branches = expression::branches(pattern);
                    check_branches(self.name_branches.saturating_mul(branches))?;
                    self.name_branches = self.name_branches.max(branches);
                    group.patterns.push(self.schema(schema)?);
                }
            }
            ("items" | "prefixItems", Value::Array(items)) => {
                for schema in items {
                    group.others.push(self.schema(schema)?);
                }
            }
            ("items" | "additionalItems" | "additionalProperties", Value::Object(schema))
                if !schema.is_empty() =>
            {
                group.others.push(self.schema(value)?);
            }
            ("type", Value::Array(types)) => check_types(types)?,
            ("required", Value::Array(names)) => {
                for name in names {
                    self.count(name.as_str().map_or(0, str::len))?;
                }
                group.required = names.len() as u64;
            }
            ("pattern", Value::String(pattern)) => {
                self.expressions.add(pattern)?;
                group.add_expression(expression::branches(pattern));
                group.expression_cost += EXPRESSION_COST + pattern.len() as u64 / 16;
                group.expression_cost += expression::folding_cost(pattern);
                self.has_intersections = true;
            }
            ("format", _) => {
                group.add_expression(FORMAT_BRANCHES);
                group.expression_cost += EXPRESSION_COST;
                self.has_intersections = true;
            }
            ("minProperties" | "maxProperties", _) => group.counts_properties = true,
            // A limit of a number becomes a regular expression of its digits.
            (_, Value::Number(number)) => {
                check_number(keyword, number)?;
                group.expression_cost += EXPRESSION_COST / 2;
                if let ("multipleOf", Some(number)) = (keyword, number.as_f64()) {
                    let multiple = Decimal::of(number);
                    check_multiple(multiple)?;
                    group.expression_cost += multiple.digits / 2;
                    group.multiple = Some(multiple);
                    self.has_intersections = true;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the size of a group of keywords of the schema `map`; none if the group is empty.
    fn group(
        &mut self,
        group: Group<'a>,
        map: &'a Map<String, Value>,
    ) -> Result<Option<Size<'a>>, TextError> {
        if !group.has_keywords {
            return Ok(None);
        }
        let kind = map.get("type").and_then(Value::as_str);
        // Without a type the keywords apply to each of six types.
        let types = map.get("type").and_then(Value::as_array).map_or(6, |types| types.len() as u64);
        let own = 1 + kind.map_or(types, |_| 0) + group.expression_cost + group.required;
        let patterns = group.patterns.len() as u64;
        // The grammar engine checks that no name matches two of the expressions.
        let mut work = 64 * patterns * patterns;
        let names = group.properties.len() as u64;
        // It has a sequence of the properties from each optional one on.
        let optional = names.saturating_sub(group.required);
        work += optional * optional / 16;
        if group.counts_properties {
            // It writes out the sequences for each property that may be the only one.
            work += names.saturating_mul(names * names) / 64;
        }
        self.spend(own.saturating_add(work))?;
        // Each intersection with the object checks the expressions again.
        let mut own = own.saturating_add(64 * patterns * patterns);
        for property in group.properties.values() {
            for pattern in &group.patterns {
                own = own.saturating_add(self.intersection(property, pattern)?.own);
            }
        }
        let children = group.properties.values().chain(&group.patterns).chain(&group.others);
        let size = sum(own, children);
        let is_plain = group.patterns.is_empty() && group.others.is_empty();
        let is_object = kind == Some("object") || size.deep || group.required > 0;
        let shape = match kind {
            Some("object") | None if is_plain && is_object => {
                Shape::Object(Rc::new(group.properties))
            }
            Some(kind) => Shape::Typed(kind),
            None => Shape::Other,
        };
        let (expressions, branches) = (group.expressions, group.branches.max(1));
        Ok(Some(Size { shape, expressions, branches, multiple: group.multiple, ..size }))
    }

    /// Returns the size of the intersection of two schemas, and adds it to the cost.
    fn intersection(&mut self, a: &Size<'a>, b: &Size<'a>) -> Result<Size<'a>, TextError> {
        match (&a.shape, &b.shape) {
            (Shape::Alternatives(all, one), _) => self.distribute(all, b, *one),
            (_, Shape::Alternatives(all, one)) => self.distribute(all, a, *one),
            (Shape::Object(first), Shape::Object(second)) => self.objects(a, first, b, second),
            (Shape::Typed(first), Shape::Typed(second)) if differ(first, second) => {
                self.spend(1)?;
                Ok(Size::leaf())
            }
            _ => {
                let typed = matches!((&a.shape, &b.shape), (Shape::Typed(_), Shape::Typed(_)));
                let both = a.top.saturating_add(b.top);
                let own = match a.deep && b.deep {
                    true => a.full.saturating_add(1).saturating_mul(b.full.saturating_add(1)),
                    // The subschemas of one stay as they are.
                    false if typed => both,
                    // One may be a list of constants.
                    false => a.top.saturating_mul(b.top).max(both),
                };
                self.spend(own)?;
                let full = a.full.saturating_mul(b.full).max(own);
                let (expressions, branches) = intersected(a, b)?;
                let multiple = common_multiple(a, b)?;
                let shape = match (&a.shape, &b.shape) {
                    (Shape::Typed(kind), _) | (_, Shape::Typed(kind)) => Shape::Typed(kind),
                    _ => Shape::Other,
                };
                let deep = a.deep || b.deep;
                Ok(Size { own, top: own, full, deep, expressions, branches, multiple, shape })
            }
        }
    }

    /// Returns the size of the intersection of a schema with one that has alternatives.
    fn distribute(
        &mut self,
        all: &Rc<Vec<Size<'a>>>,
        other: &Size<'a>,
        one: bool,
    ) -> Result<Size<'a>, TextError> {
        let all = all.iter().map(|size| self.intersection(size, other));
        let all = all.collect::<Result<_, _>>()?;
        self.alternatives(all, one)
    }

    /// Returns the size of the intersection of two objects: only properties that both name are
    /// intersected.
    fn objects(
        &mut self,
        a: &Size<'a>,
        first: &BTreeMap<&'a str, Size<'a>>,
        b: &Size<'a>,
        second: &BTreeMap<&'a str, Size<'a>>,
    ) -> Result<Size<'a>, TextError> {
        let mut merged = first.clone();
        for (name, size) in second {
            let size = match first.get(name) {
                Some(same) => self.intersection(same, size)?,
                None => size.clone(),
            };
            merged.insert(*name, size);
        }
        let properties = |size: &Size<'a>, all: &BTreeMap<&'a str, Size<'a>>| {
            let all: u64 = all.values().map(|size| size.own).fold(0, u64::saturating_add);
            size.top.saturating_sub(all)
        };
        let own = properties(a, first).saturating_add(properties(b, second));
        let size = sum(own, merged.values());
        self.spend(size.own)?;
        // Without a type the schemas are also those of a text and of a number.
        let (expressions, branches) = intersected(a, b)?;
        let multiple = common_multiple(a, b)?;
        Ok(Size { shape: Shape::Object(Rc::new(merged)), expressions, branches, multiple, ..size })
    }
}
