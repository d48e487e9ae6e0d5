//! Writer of GGUF files, for generated test models.

use super::Value;
use engine_core::WeightType;

/// GGUF file under construction: metadata and tensors in the order of the calls.
#[derive(Debug, Default)]
pub struct Writer {
    values: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    /// Shape of the tensor, slowest dimension first.
    shape: Vec<usize>,
    weight_type: WeightType,
    bytes: Vec<u8>,
}

const VERSION: u32 = 3;
const ALIGNMENT: usize = 32;

impl Writer {
    /// Adds a metadata value to the file.
    pub fn value(&mut self, key: impl Into<String>, value: Value) -> &mut Self {
        self.values.push((key.into(), value));
        self
    }

    /// Adds a tensor whose `bytes` are whole blocks of `weight_type`.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        weight_type: WeightType,
        bytes: Vec<u8>,
    ) -> &mut Self {
        let (name, shape) = (name.into(), shape.to_vec());
        self.tensors.push(Tensor { name, shape, weight_type, bytes });
        self
    }

    /// Returns the bytes of the GGUF file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = super::MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.values.len() as u64).to_le_bytes());
        for (key, value) in &self.values {
            text(&mut out, key);
            out.extend(kind(value).to_le_bytes());
            content(&mut out, value);
        }
        let mut offset = 0usize;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for dimension in tensor.shape.iter().rev() {
                out.extend((*dimension as u64).to_le_bytes());
            }
            out.extend(type_id(tensor.weight_type).to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.bytes.len().next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.bytes);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }
}

/// Returns the GGUF type id of `weight_type`.
///
/// # Panics
/// Panics if GGUF has no such type.
fn type_id(weight_type: WeightType) -> u32 {
    let found = (0..64).find(|id| super::weight_type(*id) == Some(weight_type));
    found.unwrap_or_else(|| panic!("GGUF has no type {}", weight_type.name()))
}

fn kind(value: &Value) -> u32 {
    match value {
        Value::Float(_) => 6,
        Value::Bool(_) => 7,
        Value::Text(_) => 8,
        Value::Texts(_) | Value::Integers(_) | Value::Array(_) => 9,
        Value::Unsigned(_) => 10,
        Value::Signed(_) => 11,
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn content(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Unsigned(n) => out.extend(n.to_le_bytes()),
        Value::Signed(n) => out.extend(n.to_le_bytes()),
        Value::Float(x) => out.extend((*x as f32).to_le_bytes()),
        Value::Bool(flag) => out.push(u8::from(*flag)),
        Value::Text(content) => text(out, content),
        Value::Texts(texts) => {
            out.extend(8u32.to_le_bytes());
            out.extend((texts.len() as u64).to_le_bytes());
            texts.iter().for_each(|content| text(out, content));
        }
        Value::Integers(numbers) => {
            out.extend(11u32.to_le_bytes());
            out.extend((numbers.len() as u64).to_le_bytes());
            numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
        Value::Array(values) => {
            out.extend(values.first().map_or(10, kind).to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| content(out, value));
        }
    }
}
