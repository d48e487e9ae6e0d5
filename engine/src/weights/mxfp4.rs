//! The experts of gpt-oss as Hugging Face checkpoints hold them: MXFP4 in two tensors, blocks of
//! codes and their scales, or plain numbers, transposed.
//!
//! A block is 32 weights of 4 bits, the first of each byte in its low half, times `2^(scale - 127)`.
//! Source: OCP Microscaling Formats 1.0 (element E2M1, scale E8M0).

use std::borrow::Cow;

use half::bf16;

use super::{Checkpoint, LoadError, Numbers, TensorData, WeightType, random};

/// Weights that share a scale.
const BLOCK: usize = 32;
/// Bytes of their codes.
const CODE_BYTES: usize = BLOCK / 2;
/// What the sixteen codes stand for.
const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
/// Scale of made-up blocks: 2^-7, which gives weights a deviation of 0.023.
const RANDOM_SCALE: u8 = 120;

/// A stack of matrices `[E, N, K]`.
#[derive(Debug)]
pub struct MxStack<'a> {
    n: usize,
    k: usize,
    form: Form<'a>,
}

#[derive(Debug)]
enum Form<'a> {
    Blocks {
        /// `[E, N, K / 32, 16]`
        codes: Cow<'a, [u8]>,
        /// `[E, N, K / 32]`
        scales: Cow<'a, [u8]>,
    },
    /// `[E, K, N]`
    Transposed(TensorData<'a>),
}

impl MxStack<'_> {
    /// Matrix `index` as `N` stored rows of the type beside them. Each weight is exact in it.
    pub fn matrix(&self, index: usize) -> (WeightType, Vec<u8>) {
        let (n, k) = (self.n, self.k);
        match &self.form {
            Form::Blocks { codes, scales } => {
                let blocks = n * k / BLOCK;
                let codes = &codes[index * blocks * CODE_BYTES..(index + 1) * blocks * CODE_BYTES];
                (WeightType::Bf16, widen(codes, &scales[index * blocks..(index + 1) * blocks]))
            }
            Form::Transposed(tensor) => {
                let size = tensor.weight_type.block_bytes();
                let bytes = &tensor.bytes[index * n * k * size..(index + 1) * n * k * size];
                (tensor.weight_type, transpose(bytes, n, size))
            }
        }
    }
}

impl Checkpoint {
    /// The stack `{name}_blocks` and `{name}_scales` of MXFP4, or `{name}` where that is listed.
    ///
    /// # Errors
    /// A tensor is missing, has another shape or another type.
    pub fn mx_stack(&self, name: &str, shape: [usize; 3]) -> Result<MxStack<'_>, LoadError> {
        let [experts, n, k] = shape;
        if self.lists(name) {
            let tensor = self.tensor(name, &[experts, k, n])?;
            return Ok(MxStack { n, k, form: Form::Transposed(tensor) });
        }
        if !k.is_multiple_of(BLOCK) {
            let reason = format!("`{name}` has rows of {k}, not of whole blocks of {BLOCK}");
            return Err(LoadError::Unsupported { path: self.path.clone(), reason });
        }
        let blocks = [experts, n, k / BLOCK];
        let codes =
            self.bytes(&format!("{name}_blocks"), &[&blocks[..], &[CODE_BYTES]].concat())?;
        let scales = match &codes {
            Cow::Owned(_) => Cow::Owned(vec![RANDOM_SCALE; blocks.iter().product()]),
            Cow::Borrowed(_) => self.bytes(&format!("{name}_scales"), &blocks)?,
        };
        Ok(MxStack { n, k, form: Form::Blocks { codes, scales } })
    }

    /// A tensor of bytes; random ones are owned.
    fn bytes(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [u8]>, LoadError> {
        let maps = match &self.numbers {
            Numbers::Random { seed } => {
                return Ok(random::bytes(*seed, name, shape.iter().product()).into());
            }
            Numbers::Files(maps) => maps,
        };
        let Some(stored) = self.tensors.get(name) else {
            let (path, tensor) = (self.path.clone(), name.to_owned());
            return Err(LoadError::MissingTensor { path, tensor });
        };
        if stored.shape != shape {
            return Err(LoadError::TensorShape {
                path: self.path.clone(),
                tensor: name.to_owned(),
                found: stored.shape.clone(),
                wanted: shape.to_vec(),
            });
        }
        if stored.type_name != "U8" {
            return Err(LoadError::TensorType {
                path: self.path.clone(),
                tensor: name.to_owned(),
                found: stored.type_name.clone(),
                supported: "U8".to_owned(),
            });
        }
        Ok(Cow::Borrowed(&maps[stored.file][stored.range.clone()]))
    }
}

/// The weights in bf16, which holds a product of two bits and a power of two exactly.
fn widen(codes: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 * BLOCK * scales.len());
    for (block, scale) in codes.chunks_exact(CODE_BYTES).zip(scales) {
        let scale = (f32::from(*scale) - 127.0).exp2();
        for byte in block {
            for code in [byte & 15, byte >> 4] {
                let weight = bf16::from_f32(VALUES[usize::from(code)] * scale);
                out.extend_from_slice(&weight.to_le_bytes());
            }
        }
    }
    out
}

/// Elements of `size` bytes, `[K, N]` to `[N, K]`.
fn transpose(bytes: &[u8], n: usize, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for column in 0..n {
        for row in bytes.chunks_exact(n * size) {
            out.extend_from_slice(&row[column * size..(column + 1) * size]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_the_values_worked_out_by_hand() {
        // Scale 128 is 2: bytes 0x21 are 0.5 and then 1 before it, 0xf7 are 6 and then -6.
        let mut codes = [0x21; 16];
        codes[15] = 0xf7;
        let got: Vec<f32> = widen(&codes, &[128])
            .chunks_exact(2)
            .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect();
        assert_eq!(got[..4], [1.0, 2.0, 1.0, 2.0]);
        assert_eq!(got[30..], [12.0, -12.0]);
    }

    #[test]
    fn transposing_swaps_rows_and_columns() {
        assert_eq!(transpose(&[1, 2, 3, 4, 5, 6], 3, 1), [1, 4, 2, 5, 3, 6]);
        assert_eq!(transpose(&[1, 2, 3, 4, 5, 6, 7, 8], 2, 2), [1, 2, 5, 6, 3, 4, 7, 8]);
    }
}
