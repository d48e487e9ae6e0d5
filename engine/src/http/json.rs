//! Reader of JSON that strangers send: bounds the number of JSON values, each of which takes many
//! times the memory of its text, and keeps lists of token ids in four bytes for each.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::{Map, Value};

use super::error::{ApiError, ErrorKind, Result, shown};

/// Limit on the number of JSON values of a body, without token ids. Each takes up to 300 bytes; a
/// conversation of a thousand messages or a large JSON schema has a tenth of it.
const VALUES_MAX: usize = 100_000;

/// Limit on the number of token ids of a body: a prompt of a million and more. Reading more would
/// keep other clients waiting.
const IDS_MAX: usize = 1 << 21;

/// JSON value of a request field.
#[derive(Debug)]
pub(super) enum Json {
    /// List of numbers that may be token ids; it may be empty.
    Ids(Vec<u32>),
    /// Other list, in a field that may have lists of token ids.
    List(Vec<Json>),
    Value(Value),
}

/// Reads the fields of a request body, which must be a JSON object. Token ids in lists of the fields
/// `with_ids` do not count as JSON values. Returns with the fields what the request may still have.
///
/// # Errors
/// The body is not a JSON object, or a field has too many JSON values.
pub(super) fn read_object(
    body: &[u8],
    with_ids: &[&str],
) -> Result<(BTreeMap<String, Json>, Budget)> {
    let budget = Budget::default();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let read = (&mut deserializer).deserialize_map(Fields { budget: &budget, with_ids });
    let error = match read.and_then(|fields| deserializer.end().map(|()| fields)) {
        Ok(fields) => return Ok((fields, budget)),
        Err(error) => error,
    };
    let invalid = |message: String| ApiError::new(ErrorKind::InvalidJson, message);
    Err(match (error.classify(), budget.left.get().min(budget.ids_left.get())) {
        (Category::Data, 0) => too_many(&budget.field.take()),
        (Category::Data, _) => invalid("the body is not a JSON object".into()),
        _ => invalid(format!("the body is not valid JSON: {error}")),
    })
}

fn too_many(field: &str) -> ApiError {
    let name = shown(field);
    let message = format!(
        "with `{name}` the request has more than {VALUES_MAX} JSON values or {IDS_MAX} token ids"
    );
    ApiError::field(field, message)
}

/// Numbers of JSON values and of token ids that a request may still have, and the request field
/// that is being read.
#[derive(Debug)]
pub(super) struct Budget {
    left: Cell<usize>,
    ids_left: Cell<usize>,
    field: RefCell<String>,
}

impl Default for Budget {
    fn default() -> Self {
        // None is left once there is one too many.
        let (left, ids_left) = (Cell::new(VALUES_MAX + 1), Cell::new(IDS_MAX + 1));
        Self { left, ids_left, field: RefCell::default() }
    }
}

impl Budget {
    /// Reads JSON that a text in the request field `field` contains; the inner result is an error
    /// if the text is not JSON.
    ///
    /// # Errors
    /// The text has more JSON values than the request may still have.
    pub(super) fn read_text(
        &self,
        field: &str,
        text: &str,
    ) -> Result<Result<Value, serde_json::Error>> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let read = One(self).deserialize(&mut deserializer);
        let read = read.and_then(|value| deserializer.end().map(|()| value));
        if read.is_err() && self.left.get() == 0 {
            return Err(too_many(field));
        }
        Ok(read)
    }

    /// Counts one JSON value.
    fn count<E: Error>(&self) -> Result<(), E> {
        let left = self.left.get().saturating_sub(1);
        self.left.set(left);
        if left == 0 { Err(E::custom("too many JSON values")) } else { Ok(()) }
    }

    /// Counts one token id in a list of them.
    fn count_id<E: Error>(&self) -> Result<(), E> {
        let left = self.ids_left.get().saturating_sub(1);
        self.ids_left.set(left);
        if left == 0 { Err(E::custom("too many token ids")) } else { Ok(()) }
    }
}

/// Visitor that reads the fields of a request.
struct Fields<'r> {
    budget: &'r Budget,
    with_ids: &'r [&'r str],
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = BTreeMap<String, Json>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            self.budget.field.replace(name.clone());
            let value = if self.with_ids.contains(&name.as_str()) {
                map.next_value_seed(Tokens(self.budget))?
            } else {
                Json::Value(map.next_value_seed(One(self.budget))?)
            };
            fields.insert(name, value);
        }
        Ok(fields)
    }
}

/// Visitor that reads one JSON value and counts all values in it.
#[derive(Clone, Copy)]
struct One<'r>(&'r Budget);

impl<'de> DeserializeSeed<'de> for One<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for One<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            object.insert(name, map.next_value_seed(self)?);
        }
        Ok(object.into())
    }
}

/// Visitor that reads the value of a field with lists of token ids, or an item of its lists, and
/// counts all values in it but token ids.
#[derive(Clone, Copy)]
struct Tokens<'r>(&'r Budget);

impl<'de> DeserializeSeed<'de> for Tokens<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tokens<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Value(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Value(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Value(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Value(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Value(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Value(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Value(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut ids = Vec::new();
        let mut other = loop {
            let Some(item) = items.next_element_seed(self)? else { return Ok(Json::Ids(ids)) };
            let Some(id) = token_id(&item) else { break Some(item) };
            self.0.count_id()?;
            ids.push(id);
        };
        // A list with other items than token ids: all of them are values that count.
        let mut list = Vec::new();
        for id in ids {
            self.0.count()?;
            list.push(Json::Value(id.into()));
        }
        while let Some(item) = other {
            self.0.count()?;
            list.push(item);
            other = items.next_element_seed(self)?;
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Json, A::Error> {
        One(self.0).visit_map(map).map(Json::Value)
    }
}

/// Returns the token id that a JSON value is, if it may be one.
fn token_id(json: &Json) -> Option<u32> {
    let Json::Value(value) = json else { return None };
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &str) -> Result<BTreeMap<String, Json>> {
        read_object(body.as_bytes(), &["prompt", "tokens"]).map(|(fields, _)| fields)
    }

    #[test]
    fn values_are_those_of_serde_json() {
        let value = json!({
            "a": [1, -2, 1.5, 1e300, 0.1, u64::MAX, i64::MIN], "b": {"c": null, "d": [true, "x\n"]},
            "e": "é", "f": [], "g": {},
        });
        let mut fields = read(&value.to_string()).unwrap();
        for (name, want) in value.as_object().unwrap() {
            let Some(Json::Value(found)) = fields.remove(name) else { panic!("no {name}") };
            assert_eq!(&found, want);
        }
        let read = Budget::default().read_text("x", &value.to_string());
        assert_eq!(read.unwrap().unwrap(), value);
    }

    #[test]
    fn only_lists_of_token_ids_are_compact() {
        let prompt = |text: &str| format!("{:?}", read(text).unwrap()["prompt"]);
        for (body, want) in [
            (r#"{"prompt": [1, 4294967295]}"#, "Ids([1, 4294967295])"),
            (r#"{"prompt": []}"#, "Ids([])"),
            (r#"{"prompt": [[1], []]}"#, "List([Ids([1]), Ids([])])"),
            (r#"{"prompt": [1, "a"]}"#, r#"List([Value(Number(1)), Value(String("a"))])"#),
            (r#"{"prompt": [-1]}"#, "List([Value(Number(-1))])"),
            (r#"{"prompt": "a"}"#, r#"Value(String("a"))"#),
            (r#"{"prompt": 1, "prompt": 2}"#, "Value(Number(2))"),
        ] {
            assert_eq!(prompt(body), want, "{body}");
        }
        let million = format!(r#"{{"prompt": [{}1]}}"#, "7,".repeat(999_999));
        let Json::Ids(ids) = &read(&million).unwrap()["prompt"] else { panic!("no ids") };
        assert_eq!(ids.len(), 1_000_000);
    }

    #[test]
    fn too_many_values_are_refused_with_their_field() {
        for (field, items) in [
            ("guided_choice", r#""a","#),
            ("logit_bias", "[],"),
            ("messages", "{},"),
            ("metadata", "1,"),
            ("prompt", "[],"),
            ("prompt", r#""a","#),
        ] {
            // The field's list, its last item and `x` count, too.
            let body = |repeated: usize| {
                let items = items.repeat(repeated);
                format!(r#"{{"x": 1, "{field}": [{items}0]}}"#)
            };
            assert!(read(&body(VALUES_MAX - 4)).is_ok(), "{field}");
            let body = body(VALUES_MAX);
            let error = read(&body).expect_err("a refusal");
            assert_eq!(error.param.as_deref(), Some(field));
            let want = format!("with `{field}` the request has more than 100000 JSON values");
            assert!(error.message.starts_with(&want), "{error}");
        }
        let text = format!("[{}0]", "1,".repeat(VALUES_MAX / 2));
        let budget = Budget::default();
        assert!(budget.read_text("messages", &text).unwrap().is_ok());
        let error = budget.read_text("messages", &text).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages"));
    }

    #[test]
    fn what_is_no_json_object_is_told_from_what_is_no_json() {
        for (body, want) in [
            ("[1]", "the body is not a JSON object"),
            ("null", "the body is not a JSON object"),
            ("{", "the body is not valid JSON: EOF"),
            ("{} x", "the body is not valid JSON: trailing characters"),
            (r#"{"a": 1e999}"#, "the body is not valid JSON: number out of range"),
        ] {
            let message = read(body).expect_err("a refusal").message;
            assert!(message.starts_with(want), "{message} should say: {want}");
        }
        let deep = format!(r#"{{"a": {}}}"#, "[".repeat(200));
        assert!(read(&deep).unwrap_err().message.contains("recursion limit exceeded"));
    }
}
