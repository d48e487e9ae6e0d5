//! Reader of MoE experts that Hugging Face checkpoints of gpt-oss stack in one tensor for all
//! experts: MXFP4 in two tensors, blocks and scales, or transposed matrices of floats. Their
//! dequantization is in `blocks.rs`.
//!
//! An MXFP4 block is 32 E2M1 floats of 4 bits, the first of each byte in its low half, times
//! `2^(scale - 127)`. Source: OCP Microscaling Formats 1.0 (element E2M1, scale E8M0).

use super::{Checkpoint, CheckpointError, TensorData, WeightSource, random};
use engine_core::WeightType;

/// Number of weights in an MXFP4 block, which share a scale.
const BLOCK: usize = 32;
/// Number of bytes of the weights of an MXFP4 block, without the scale.
const VALUE_BYTES: usize = BLOCK / 2;

/// Weight matrices of all experts, `[E, N, K]`, of one projection of a MoE layer.
#[derive(Debug)]
pub struct MxStack<'a> {
    n: usize,
    k: usize,
    form: Form<'a>,
}

/// Form in which a checkpoint has the expert matrices of one projection of gpt-oss.
#[derive(Debug)]
enum Form<'a> {
    Blocks {
        /// Weights of the MXFP4 blocks, `[E, N, K / 32, 16]` bytes.
        values: &'a [u8],
        /// E8M0 scales of the MXFP4 blocks, `[E, N, K / 32]`.
        scales: &'a [u8],
    },
    /// Expert matrices as unquantized floats, `[E, K, N]`.
    Transposed(TensorData<'a>),
    Random {
        seed: u64,
        name: String,
    },
}

impl MxStack<'_> {
    /// Returns the start of the pseudo-random stream of the matrix of expert `index`, which is in
    /// MXFP4, if its weights are random ([`random`]), so that a device can generate it; none for
    /// weights of a file.
    pub fn stream(&self, index: usize) -> Option<u64> {
        let Form::Random { seed, name } = &self.form else { return None };
        Some(random::stream_start(*seed, &random_name(name, index)))
    }

    /// Returns the weight matrix of expert `index`, `[N, K]`: its element type and the bytes of its
    /// N rows.
    pub fn matrix(&self, index: usize) -> (WeightType, Vec<u8>) {
        let (n, k) = (self.n, self.k);
        match &self.form {
            Form::Blocks { values, scales } => {
                let blocks = n * k / BLOCK;
                let values =
                    &values[index * blocks * VALUE_BYTES..(index + 1) * blocks * VALUE_BYTES];
                (WeightType::Mxfp4, joined(values, &scales[index * blocks..(index + 1) * blocks]))
            }
            Form::Transposed(tensor) => {
                let size = tensor.weight_type.block_bytes();
                let bytes = &tensor.bytes[index * n * k * size..(index + 1) * n * k * size];
                (tensor.weight_type, transpose(bytes, n, size))
            }
            Form::Random { seed, name } => {
                let name = random_name(name, index);
                let tensor = random::tensor(*seed, &name, WeightType::Mxfp4, &[n, k]);
                (tensor.weight_type, tensor.bytes.into_owned())
            }
        }
    }
}

impl Checkpoint {
    /// Reads the expert matrices of shape `[E, N, K]` of one projection: in MXFP4 from the tensors
    /// `{name}_blocks` and `{name}_scales`, or as floats from the tensor `name` if that exists.
    ///
    /// # Errors
    /// Fails if a tensor is missing or has another shape or type, if K is not a multiple of the
    /// MXFP4 block size (for a checkpoint without the tensor `name`), or if random weights of this
    /// shape would not fit in memory.
    pub fn mx_stack(&self, name: &str, shape: [usize; 3]) -> Result<MxStack<'_>, CheckpointError> {
        let [experts, n, k] = shape;
        // Only unquantized checkpoints have a tensor of the plain name.
        if self.lists(name) {
            let tensor = self.plain(name, self.tensor(name, &[experts, k, n])?)?;
            return Ok(MxStack { n, k, form: Form::Transposed(tensor) });
        }
        if !k.is_multiple_of(BLOCK) {
            let reason = format!("`{name}` has rows of {k}, not of whole blocks of {BLOCK}");
            return Err(CheckpointError::unsupported(&self.path, reason));
        }
        if let WeightSource::Random { seed } = self.weights {
            self.check_room(name, WeightType::Mxfp4, &shape)?;
            let name = name.to_owned();
            return Ok(MxStack { n, k, form: Form::Random { seed, name } });
        }
        let blocks = [experts, n, k / BLOCK];
        let values =
            self.bytes(&format!("{name}_blocks"), &[&blocks[..], &[VALUE_BYTES]].concat())?;
        let scales = self.bytes(&format!("{name}_scales"), &blocks)?;
        Ok(MxStack { n, k, form: Form::Blocks { values, scales } })
    }

    /// Returns the bytes of the tensor `name` in a checkpoint file; an error if there is none,
    /// weights are random, or its type is not `U8` or its shape not `shape`.
    fn bytes(&self, name: &str, shape: &[usize]) -> Result<&[u8], CheckpointError> {
        let WeightSource::Files(maps) = &self.weights else {
            return Err(self.missing(name));
        };
        let stored = self.listed(name, shape)?;
        if stored.type_name != "U8" {
            return Err(self.wrong_type(name, &stored.type_name, "U8"));
        }
        Ok(stored.bytes(maps))
    }
}

/// Returns the name under which the random matrix of expert `index` of the stack `name` is
/// generated.
fn random_name(name: &str, index: usize) -> String {
    format!("{name}.{index}")
}

/// Joins MXFP4 values and scales, which a checkpoint stores in two tensors, to blocks of
/// [`WeightType::Mxfp4`]. Byte `i` of a joined block holds weights `i` and `i + 16`, byte `i` of
/// the checkpoint's weights `2 i` and `2 i + 1`.
fn joined(values: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() + scales.len());
    for (block, scale) in values.chunks_exact(VALUE_BYTES).zip(scales) {
        let four_bits = |i: usize| (block[i / 2] >> (4 * (i % 2))) & 15;
        out.push(*scale);
        out.extend((0..VALUE_BYTES).map(|i| four_bits(i) | (four_bits(i + VALUE_BYTES) << 4)));
    }
    out
}

/// Transposes a matrix from `[K, N]` to `[N, K]`, whose elements have `size` bytes each.
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
    use crate::format::dequantize;

    #[test]
    fn blocks_hold_the_values_worked_out_by_hand() {
        // Scale 128 means 2: byte 0x21 is 0.5 and then 1 before scaling, 0xf7 is 6 and then -6.
        let mut values = [0x21; 16];
        values[15] = 0xf7;
        let mut got = [0.0; 32];
        dequantize(WeightType::Mxfp4, &joined(&values, &[128]), &mut got);
        assert_eq!(got[..4], [1.0, 2.0, 1.0, 2.0]);
        assert_eq!(got[30..], [12.0, -12.0]);
    }

    #[test]
    fn transposing_swaps_rows_and_columns() {
        assert_eq!(transpose(&[1, 2, 3, 4, 5, 6], 3, 1), [1, 4, 2, 5, 3, 6]);
        assert_eq!(transpose(&[1, 2, 3, 4, 5, 6, 7, 8], 2, 2), [1, 2, 5, 6, 3, 4, 7, 8]);
    }
}
