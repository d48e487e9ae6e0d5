//! What `quantization_config` of a config.json says of the tensors beside it.

use std::path::Path;

use serde_json::Value;

use super::{CheckpointError, blocks};
use engine_core::WeightType;

/// How a checkpoint in the Hugging Face layout is quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    None,
    /// Matrices of E4M3 floats, each with a grid of scales in `NAME_scale_inv`, one for every
    /// `block` rows and columns: what Qwen3-*-FP8 and DeepSeek-V3 ship.
    Fp8 {
        block: [usize; 2],
    },
    /// Experts as `NAME_blocks` and `NAME_scales`, everything else as it is: what gpt-oss ships.
    Mxfp4,
}

const SUPPORTED: &str = "fp8, mxfp4";

impl Quantization {
    /// Reads the `config.json` that was parsed from `path`.
    ///
    /// # Errors
    /// It asks for a method that this release does not have, or does not say its blocks.
    pub fn read(path: &Path, config: &Value) -> Result<Self, CheckpointError> {
        let Some(config) = config.get("quantization_config").filter(|value| !value.is_null())
        else {
            return Ok(Self::None);
        };
        let wrong = |key: &str, reason: String| {
            Err(CheckpointError::config(path, format!("quantization_config.{key}"), reason))
        };
        match config.get("quant_method").and_then(Value::as_str) {
            Some("mxfp4") => Ok(Self::Mxfp4),
            Some("fp8") => match block_size(config.get("weight_block_size")) {
                Some(block) => Ok(Self::Fp8 { block }),
                None => wrong("weight_block_size", "it is not two sizes".to_owned()),
            },
            Some(other) => wrong(
                "quant_method",
                format!("quantization `{other}` is not supported; supported: {SUPPORTED}"),
            ),
            None => wrong("quant_method", "it names none".to_owned()),
        }
    }
}

/// Parts of the names of matrices that the published quantizers leave as they are.
const AS_THEY_ARE: [&str; 3] = ["embed_tokens", "lm_head", ".gate."];

impl Quantization {
    /// The type in which the weights `name` of `shape` are made up: that of checkpoints with such a
    /// configuration.
    pub(super) fn made_up(self, name: &str, shape: &[usize]) -> WeightType {
        let is_matrix = matches!(shape, [_, k] if k.is_multiple_of(WeightType::F8E4M3.block()));
        let is_left = AS_THEY_ARE.iter().any(|part| name.contains(part));
        match self {
            Self::Fp8 { .. } if is_matrix && !is_left => WeightType::F8E4M3,
            // MXFP4 is the form of experts, which are made up with their own name.
            Self::Fp8 { .. } | Self::None | Self::Mxfp4 => WeightType::Bf16,
        }
    }
}

fn block_size(value: Option<&Value>) -> Option<[usize; 2]> {
    let [rows, cols] = value?.as_array()?.as_slice() else { return None };
    let size = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|size| *size > 0);
    Some([size(rows)?, size(cols)?])
}

/// Rows and columns of the grid of scales over a matrix of `shape`.
pub(super) fn grid(shape: [usize; 2], block: [usize; 2]) -> [usize; 2] {
    [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])]
}

/// An E4M3 matrix of `cols` columns with a grid of scales: type and bytes in which it is handed on.
/// Whole blocks of 32 where each has one scale, else the products in f32.
pub(super) fn scaled(
    codes: &[u8],
    cols: usize,
    block: [usize; 2],
    scales: &[f32],
) -> (WeightType, Vec<u8>) {
    let unit = WeightType::F8E4M3.block();
    let is_blocks =
        cols.is_multiple_of(unit) && (block[1].is_multiple_of(unit) || block[1] >= cols);
    let grid_cols = cols.div_ceil(block[1]);
    let bytes = if is_blocks {
        codes.len() / unit * WeightType::F8E4M3.block_bytes()
    } else {
        4 * codes.len()
    };
    let mut out = Vec::with_capacity(bytes);
    for (n, row) in codes.chunks_exact(cols).enumerate() {
        let scales = &scales[n / block[0] * grid_cols..][..grid_cols];
        for (codes, scale) in row.chunks(block[1]).zip(scales) {
            if is_blocks {
                for codes in codes.chunks(unit) {
                    out.extend_from_slice(&scale.to_le_bytes());
                    out.extend_from_slice(codes);
                }
            } else {
                let values = codes.iter().map(|code| blocks::e4m3(*code) * scale);
                out.extend(values.flat_map(f32::to_le_bytes));
            }
        }
    }
    (if is_blocks { WeightType::F8E4M3 } else { WeightType::F32 }, out)
}
