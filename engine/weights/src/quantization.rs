//! Quantization method of a Hugging Face checkpoint, as `quantization_config` in its config.json
//! states it, and the application of FP8 scales.

use std::path::Path;

use serde_json::Value;

use super::{CheckpointError, blocks};
use engine_core::WeightType;

/// Quantization method of a checkpoint in the Hugging Face layout. `None` means unquantized floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    None,
    /// Matrices of E4M3 floats, each with a grid of scales in the tensor `NAME_scale_inv`: one
    /// scale per tile of `block` rows and columns, as in Qwen3-*-FP8 and DeepSeek-V3.
    Fp8 {
        block: [usize; 2],
    },
    /// MoE experts in MXFP4 in the tensors `NAME_blocks` and `NAME_scales`, all other tensors
    /// unquantized, as in gpt-oss.
    Mxfp4,
}

impl Quantization {
    /// Reads the quantization method of a checkpoint from its `config.json`, which was parsed from
    /// `path`; `Quantization::None` if that has no `quantization_config`.
    ///
    /// # Errors
    /// Fails if `quantization_config` exists and its method is missing or not supported, or, for
    /// FP8, if `weight_block_size` is not two sizes above 0.
    pub fn read(path: &Path, config: &Value) -> Result<Self, CheckpointError> {
        let Some(config) = config.get("quantization_config").filter(|value| !value.is_null())
        else {
            return Ok(Self::None);
        };
        let wrong = |key: &str, reason: &str| {
            Err(CheckpointError::config(path, format!("quantization_config.{key}"), reason))
        };
        match config.get("quant_method").and_then(Value::as_str) {
            Some("mxfp4") => Ok(Self::Mxfp4),
            Some("fp8") => match block_size(config.get("weight_block_size")) {
                Some(block) => Ok(Self::Fp8 { block }),
                None => wrong("weight_block_size", "it is not two sizes"),
            },
            Some(other) => wrong(
                "quant_method",
                &format!("quantization `{other}` is not supported; supported: fp8, mxfp4"),
            ),
            None => wrong("quant_method", "it names none"),
        }
    }

    /// Returns the element type in which a random tensor with this name and shape is generated:
    /// mostly that of published checkpoints with the same quantization method.
    pub(super) fn made_up(self, name: &str, shape: &[usize]) -> WeightType {
        let is_matrix = matches!(shape, [_, k] if k.is_multiple_of(WeightType::F8E4M3.block()));
        let is_left = AS_THEY_ARE.iter().any(|part| name.contains(part));
        match self {
            Self::Fp8 { .. } if is_matrix && !is_left => WeightType::F8E4M3,
            // Only experts are in MXFP4, and they are generated elsewhere under their own names.
            Self::Fp8 { .. } | Self::None | Self::Mxfp4 => WeightType::Bf16,
        }
    }
}

/// Substrings of the names of those matrices that published FP8 checkpoints leave unquantized.
const AS_THEY_ARE: [&str; 3] = ["embed_tokens", "lm_head", ".gate."];

fn block_size(value: Option<&Value>) -> Option<[usize; 2]> {
    let [rows, cols] = value?.as_array()?.as_slice() else { return None };
    let size = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|size| *size > 0);
    Some([size(rows)?, size(cols)?])
}

/// Returns the numbers of rows and columns of the grid of scales over a matrix of `shape`, one
/// scale per `block` rows and columns.
pub(super) fn grid(shape: [usize; 2], block: [usize; 2]) -> [usize; 2] {
    [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])]
}

/// Combines an E4M3 matrix of `cols` columns with its grid of scales, and returns type and bytes of
/// the result: `F8E4M3` blocks of 32 if each of them has a single scale, otherwise the products in
/// f32.
pub(super) fn scaled(
    quantized: &[u8],
    cols: usize,
    block: [usize; 2],
    scales: &[f32],
) -> (WeightType, Vec<u8>) {
    let unit = WeightType::F8E4M3.block();
    let is_blocks =
        cols.is_multiple_of(unit) && (block[1].is_multiple_of(unit) || block[1] >= cols);
    let grid_cols = cols.div_ceil(block[1]);
    let bytes = if is_blocks {
        quantized.len() / unit * WeightType::F8E4M3.block_bytes()
    } else {
        4 * quantized.len()
    };
    let mut out = Vec::with_capacity(bytes);
    for (n, row) in quantized.chunks_exact(cols).enumerate() {
        let scales = &scales[n / block[0] * grid_cols..][..grid_cols];
        for (values, scale) in row.chunks(block[1]).zip(scales) {
            if is_blocks {
                for values in values.chunks(unit) {
                    out.extend_from_slice(&scale.to_le_bytes());
                    out.extend_from_slice(values);
                }
            } else {
                let values = values.iter().map(|bits| blocks::e4m3(*bits) * scale);
                out.extend(values.flat_map(f32::to_le_bytes));
            }
        }
    }
    (if is_blocks { WeightType::F8E4M3 } else { WeightType::F32 }, out)
}
