//! Parser of GGUF files, versions 2 and 3: header, metadata and tensor table.
//!
//! Counts, lengths and offsets are checked against the file's size before they are used, so a
//! truncated or hostile file yields a [`CheckpointError`], never a panic or a huge allocation.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{CheckpointError, StoredTensor};
use engine_core::WeightType;

/// Magic number: the first bytes of every GGUF file.
const MAGIC: &[u8; 4] = b"GGUF";
/// Alignment of a GGUF file's tensor data in bytes, where the metadata key `general.alignment` is
/// missing.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest number of dimensions of a tensor in a GGUF file, ggml's own limit.
const DIMENSIONS_MAX: u32 = 4;
/// Deepest nesting of arrays in GGUF metadata that is accepted. The format permits any depth; no
/// known file nests deeper.
const NESTING_MAX: u32 = 4;
/// Largest number of elements that all metadata arrays of a GGUF file together may have. The
/// largest vocabularies have a quarter of a million tokens, in four arrays. Without a limit, an
/// element of one byte in the file would take 32 in memory.
const ELEMENTS_MAX: u64 = 1 << 24;

/// Value of a metadata key in a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Metadata value: unsigned integer of 8, 16, 32 or 64 bits.
    Unsigned(u64),
    /// Metadata value: signed integer of 8, 16, 32 or 64 bits.
    Signed(i64),
    /// Metadata value: floating-point number of 32 or 64 bits.
    Float(f64),
    /// Metadata value: truth value, stored as a byte; 0 is false.
    Bool(bool),
    /// Metadata value: text in UTF-8.
    Text(String),
    /// Metadata value: array of texts, which may be empty.
    Texts(Vec<String>),
    /// Metadata value: array of integers of any size that fit in an i64, or an empty array of any
    /// type except text.
    Integers(Vec<i64>),
    /// Metadata value: array of values that are neither texts nor integers that fit in an i64.
    Array(Vec<Value>),
}

/// Metadata of a GGUF file, with accessors whose errors name the file and the key.
#[derive(Debug, Clone)]
pub struct Metadata {
    /// Path of the GGUF file that the metadata was read from.
    pub path: PathBuf,
    values: BTreeMap<String, Value>,
}

/// Header of a GGUF file: its metadata and its tensor table, without tensor data.
#[derive(Debug)]
pub struct Header {
    /// Metadata of the GGUF file: values by key.
    pub metadata: Metadata,
    /// Tensor table of the GGUF file, by tensor name; byte ranges are counted from the beginning of
    /// the file.
    pub tensors: BTreeMap<String, StoredTensor>,
}

impl Metadata {
    /// Returns the metadata value of `key`, none if the GGUF file does not have the key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Returns the metadata value of `key` as a non-negative integer.
    ///
    /// # Errors
    /// Fails if the key is missing or is not a non-negative integer.
    pub fn integer(&self, key: &str) -> Result<usize, CheckpointError> {
        self.optional_integer(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns the metadata value of `key` as a non-negative integer, none if the key is missing.
    ///
    /// # Errors
    /// Fails if the key exists but is not a non-negative integer.
    pub fn optional_integer(&self, key: &str) -> Result<Option<usize>, CheckpointError> {
        self.read(key, "a non-negative integer", |value| match value {
            Value::Unsigned(n) => usize::try_from(*n).ok(),
            Value::Signed(n) => usize::try_from(*n).ok(),
            _ => None,
        })
    }

    /// Returns the metadata value of `key` as a float.
    ///
    /// # Errors
    /// Fails if the key is missing or is not a float.
    pub fn float(&self, key: &str) -> Result<f64, CheckpointError> {
        self.optional_float(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns the metadata value of `key` as a float, none if the key is missing.
    ///
    /// # Errors
    /// Fails if the key exists but is not a float.
    pub fn optional_float(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        self.read(key, "a number", |value| match value {
            Value::Float(x) => Some(*x),
            _ => None,
        })
    }

    /// Returns the metadata value of `key` as text.
    ///
    /// # Errors
    /// Fails if the key is missing or is not a text.
    pub fn text(&self, key: &str) -> Result<&str, CheckpointError> {
        let found = self.read(key, "a text", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })?;
        found.ok_or_else(|| self.missing(key))
    }

    /// Returns the metadata value of `key` as an array of texts.
    ///
    /// # Errors
    /// Fails if the key is missing or is not an array of texts.
    pub fn texts(&self, key: &str) -> Result<&[String], CheckpointError> {
        let found = self.read(key, "an array of texts", |value| match value {
            Value::Texts(texts) => Some(texts.as_slice()),
            _ => None,
        })?;
        found.ok_or_else(|| self.missing(key))
    }

    /// Returns the metadata value of `key` as an array of integers, empty if the key is missing.
    ///
    /// # Errors
    /// Fails if the key exists but is not an array of integers.
    pub fn integers(&self, key: &str) -> Result<&[i64], CheckpointError> {
        let found = self.read(key, "an array of integers", |value| match value {
            Value::Integers(numbers) => Some(numbers.as_slice()),
            _ => None,
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Returns the metadata value of `key` as a truth value, none if the key is missing or has a
    /// value of another type.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key) {
            Some(Value::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// Converts the metadata value of `key` by `read`; none if the key is missing. If `read`
    /// returns none, the result is an error with the text "the value is not" and then `wanted`,
    /// such as `a float`.
    fn read<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, CheckpointError> {
        let wrong =
            || CheckpointError::config(&self.path, key, format!("the value is not {wanted}"));
        self.get(key).map(|value| read(value).ok_or_else(wrong)).transpose()
    }

    fn missing(&self, key: &str) -> CheckpointError {
        CheckpointError::config(&self.path, key, "the key is missing")
    }
}

/// Parses the metadata and the tensor table of the GGUF file `bytes`, which was read from `path`.
///
/// # Errors
/// Fails if the file is truncated, big endian, of a version other than 2 and 3, or otherwise
/// malformed, if tensors overlap or are of an unknown type, or if metadata arrays are nested deeper
/// or have more elements than this reader accepts.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Header, CheckpointError> {
    let mut reader = Reader { path, bytes, at: 0, elements: 0 };
    if reader.take(4, "the magic number")? != MAGIC {
        return Err(reader.damaged("it does not begin with `GGUF`"));
    }
    let version = reader.u32("the version")?;
    // Versions are small numbers; a huge one is small with its bytes swapped in big-endian files.
    if version.swap_bytes() < 0x1_0000 && version >= 0x1_0000 {
        return Err(reader.unsupported("it is big endian"));
    }
    if !(2..=3).contains(&version) {
        return Err(reader.unsupported(format!("GGUF version {version} is not 2 or 3")));
    }
    let tensor_count = reader.u64("the tensor count")?;
    let value_count = reader.u64("the metadata count")?;
    // A metadata entry takes at least 13 bytes (key length, type, one byte), a tensor entry 24.
    reader.check_count(value_count, 13, "metadata entries")?;
    reader.check_count(tensor_count, 24, "tensors")?;
    let mut values = BTreeMap::new();
    for _ in 0..value_count {
        let key = reader.text("a metadata key")?;
        let kind = reader.u32("a metadata type")?;
        let value = reader.value(kind, &key, NESTING_MAX)?;
        if values.insert(key.clone(), value).is_some() {
            return Err(reader.damaged(format!("metadata key `{key}` occurs twice")));
        }
    }
    let metadata = Metadata { path: path.to_owned(), values };
    let tensors = tensor_table(&mut reader, tensor_count, &metadata)?;
    Ok(Header { metadata, tensors })
}

/// Entry of a GGUF file's tensor table as read, before its byte range is computed and checked.
struct Listed {
    name: String,
    shape: Vec<usize>,
    type_id: u32,
    offset: u64,
}

/// Reads the tensor table of a GGUF file, `count` entries, and checks that names are unique and
/// that byte ranges are aligned, disjoint and within the file.
fn tensor_table(
    reader: &mut Reader<'_>,
    count: u64,
    metadata: &Metadata,
) -> Result<BTreeMap<String, StoredTensor>, CheckpointError> {
    let alignment = match metadata.optional_integer("general.alignment")? {
        None => DEFAULT_ALIGNMENT,
        Some(n) if n.is_power_of_two() && (8..=1 << 20).contains(&n) => n as u64,
        Some(n) => {
            return Err(CheckpointError::config(
                reader.path,
                "general.alignment",
                format!("{n} is not a power of two from 8 to 1048576"),
            ));
        }
    };
    // Data begins after the whole table, so byte ranges are known only once all entries are read.
    let listed = (0..count).map(|_| reader.tensor(alignment)).collect::<Result<Vec<_>, _>>()?;
    let data = (reader.at as u64).next_multiple_of(alignment);
    let mut placed = BTreeMap::new();
    let mut ranges: Vec<(Range<usize>, String)> = Vec::new();
    for tensor in listed {
        let stored = place(reader, &tensor, data)?;
        ranges.push((stored.range.clone(), tensor.name.clone()));
        if placed.insert(tensor.name.clone(), stored).is_some() {
            return Err(reader.damaged(format!("tensor `{}` occurs twice", tensor.name)));
        }
    }
    // Overlapping tensors would let a small file claim a model of any size.
    ranges.sort_by_key(|(range, _)| (range.start, range.end));
    for pair in ranges.windows(2) {
        let ((first, a), (second, b)) = (&pair[0], &pair[1]);
        if second.start < first.end {
            return Err(reader.damaged(format!("tensors `{a}` and `{b}` overlap")));
        }
    }
    Ok(placed)
}

/// Computes the byte range of a tensor-table entry in the GGUF file, whose tensor data begin at
/// byte `data`. Returns an error if the tensor's type is unknown, its rows are not whole
/// quantization blocks, or the range does not lie within the file.
fn place(reader: &Reader<'_>, tensor: &Listed, data: u64) -> Result<StoredTensor, CheckpointError> {
    let Some((type_name, block, block_bytes)) = ggml_type(tensor.type_id) else {
        let reason = format!("tensor `{}` has unknown type {}", tensor.name, tensor.type_id);
        return Err(reader.unsupported(reason));
    };
    let cols = tensor.shape.last().copied().unwrap_or(1);
    if !cols.is_multiple_of(block) {
        return Err(reader.damaged(format!(
            "tensor `{}` has rows of {cols} elements, {type_name} needs a multiple of {block}",
            tensor.name
        )));
    }
    let elements = tensor.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d as u64));
    let size = elements.and_then(|n| (n / block as u64).checked_mul(block_bytes as u64));
    let start = data.checked_add(tensor.offset);
    let end = size.and_then(|size| start?.checked_add(size));
    match (start, end) {
        (Some(start), Some(end)) if end <= reader.bytes.len() as u64 => Ok(StoredTensor {
            file: 0,
            type_name: type_name.to_owned(),
            weight_type: WeightType::ALL
                .into_iter()
                .find(|known| known.name().eq_ignore_ascii_case(type_name)),
            shape: tensor.shape.clone(),
            range: start as usize..end as usize,
        }),
        _ => Err(reader.damaged(format!(
            "tensor `{}` ends at byte {}, the file has {}",
            tensor.name,
            end.map_or_else(|| "2^64 or more".to_owned(), |end| end.to_string()),
            reader.bytes.len()
        ))),
    }
}

/// Returns the name, the number of elements per block and the number of bytes per block of the ggml
/// type with this id; none for an unknown id. Types that this release cannot compute with are
/// included, because their sizes are needed to check the tensor table.
fn ggml_type(type_id: u32) -> Option<(&'static str, usize, usize)> {
    Some(match type_id {
        0 => ("F32", 1, 4),
        1 => ("F16", 1, 2),
        2 => ("Q4_0", 32, 18),
        3 => ("Q4_1", 32, 20),
        6 => ("Q5_0", 32, 22),
        7 => ("Q5_1", 32, 24),
        8 => ("Q8_0", 32, 34),
        9 => ("Q8_1", 32, 36),
        10 => ("Q2_K", 256, 84),
        11 => ("Q3_K", 256, 110),
        12 => ("Q4_K", 256, 144),
        13 => ("Q5_K", 256, 176),
        14 => ("Q6_K", 256, 210),
        15 => ("Q8_K", 256, 292),
        16 => ("IQ2_XXS", 256, 66),
        17 => ("IQ2_XS", 256, 74),
        18 => ("IQ3_XXS", 256, 98),
        19 => ("IQ1_S", 256, 50),
        20 => ("IQ4_NL", 32, 18),
        21 => ("IQ3_S", 256, 110),
        22 => ("IQ2_S", 256, 82),
        23 => ("IQ4_XS", 256, 136),
        24 => ("I8", 1, 1),
        25 => ("I16", 1, 2),
        26 => ("I32", 1, 4),
        27 => ("I64", 1, 8),
        28 => ("F64", 1, 8),
        29 => ("IQ1_M", 256, 56),
        30 => ("BF16", 1, 2),
        34 => ("TQ1_0", 256, 54),
        35 => ("TQ2_0", 256, 66),
        39 => ("MXFP4", 32, 17),
        _ => return None,
    })
}

/// Cursor over the bytes of a GGUF file; every read is checked against the end of the file.
struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    /// Number of elements of metadata arrays read so far from the GGUF file, at most
    /// `ELEMENTS_MAX`.
    elements: u64,
}

impl<'a> Reader<'a> {
    fn damaged(&self, reason: impl fmt::Display) -> CheckpointError {
        CheckpointError::damaged(self.path, reason)
    }

    fn unsupported(&self, reason: impl fmt::Display) -> CheckpointError {
        CheckpointError::unsupported(self.path, reason)
    }

    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8], CheckpointError> {
        let rest = &self.bytes[self.at..];
        if rest.len() < len {
            return Err(self.damaged(format!(
                "it ends within {what}: {len} bytes are needed at byte {}, {} are left",
                self.at,
                rest.len()
            )));
        }
        self.at += len;
        Ok(&rest[..len])
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], CheckpointError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32, CheckpointError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, CheckpointError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Returns an error unless `count` entries of at least `bytes` bytes each fit in the unread
    /// part of the GGUF file; `what` names them in the message.
    fn check_count(&self, count: u64, bytes: u64, what: &str) -> Result<(), CheckpointError> {
        let left = (self.bytes.len() - self.at) as u64;
        if count > left / bytes {
            return Err(self.damaged(format!(
                "it claims {count} {what} at byte {}, where {left} bytes are left",
                self.at
            )));
        }
        Ok(())
    }

    fn text(&mut self, what: &str) -> Result<String, CheckpointError> {
        let len = self.u64(what)?;
        self.check_count(len, 1, &format!("bytes of {what}"))?;
        let bytes = self.take(len as usize, what)?;
        String::from_utf8(bytes.to_vec())
            .map_err(|_| self.damaged(format!("{what} before byte {} is not UTF-8", self.at)))
    }

    fn value(&mut self, kind: u32, key: &str, nesting: u32) -> Result<Value, CheckpointError> {
        let what = format!("the value of `{key}`");
        let what = what.as_str();
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array(what)?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array(what)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array(what)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array(what)?).into()),
            4 => Value::Unsigned(u32::from_le_bytes(self.array(what)?).into()),
            5 => Value::Signed(i32::from_le_bytes(self.array(what)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(what)?).into()),
            7 => Value::Bool(self.array::<1>(what)? != [0]),
            8 => Value::Text(self.text(what)?),
            9 => return self.array_value(key, nesting),
            10 => Value::Unsigned(self.u64(what)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(what)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(what)?)),
            _ => return Err(self.damaged(format!("`{key}` has unknown type {kind}"))),
        })
    }

    fn array_value(&mut self, key: &str, nesting: u32) -> Result<Value, CheckpointError> {
        let what = format!("the array `{key}`");
        if nesting == 0 {
            return Err(self.damaged(format!("{what} is nested too deeply")));
        }
        let kind = self.u32(&what)?;
        let count = self.u64(&what)?;
        let element_bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            // A nested array takes at least 12 bytes: its element type and its length.
            9 => 12,
            _ => return Err(self.damaged(format!("{what} has unknown element type {kind}"))),
        };
        self.check_count(count, element_bytes, &format!("elements of {what}"))?;
        self.elements += count;
        if self.elements > ELEMENTS_MAX {
            let reason = format!("its arrays have more than {ELEMENTS_MAX} elements up to {what}");
            return Err(self.damaged(reason));
        }
        if kind == 8 {
            return (0..count)
                .map(|_| self.text(&what))
                .collect::<Result<_, _>>()
                .map(Value::Texts);
        }
        let mut integers = Vec::new();
        let mut others = Vec::new();
        for _ in 0..count {
            match self.value(kind, key, nesting - 1)? {
                Value::Signed(n) => integers.push(n),
                Value::Unsigned(n) if i64::try_from(n).is_ok() => integers.push(n as i64),
                other => others.push(other),
            }
        }
        match (integers.is_empty(), others.is_empty()) {
            (_, true) => Ok(Value::Integers(integers)),
            (true, false) => Ok(Value::Array(others)),
            (false, false) => Err(self.damaged(format!("{what} holds integers beyond 63 bits"))),
        }
    }

    fn tensor(&mut self, alignment: u64) -> Result<Listed, CheckpointError> {
        let name = self.text("a tensor name")?;
        let what = format!("the entry of tensor `{name}`");
        let dimensions = self.u32(&what)?;
        if dimensions > DIMENSIONS_MAX {
            return Err(self.damaged(format!("tensor `{name}` has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let n = self.u64(&what)?;
            let n = usize::try_from(n)
                .map_err(|_| self.damaged(format!("tensor `{name}` has a dimension of {n}")))?;
            shape.push(n);
        }
        // GGUF lists the fastest dimension first; this code lists it last.
        shape.reverse();
        let type_id = self.u32(&what)?;
        let offset = self.u64(&what)?;
        if !offset.is_multiple_of(alignment) {
            return Err(self.damaged(format!(
                "tensor `{name}` starts at offset {offset}, not a multiple of {alignment}"
            )));
        }
        Ok(Listed { name, shape, type_id, offset })
    }
}
