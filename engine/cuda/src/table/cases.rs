//! Cases of the GPU kernel table: operations at the sizes of published models, as plain data.

use crate::launch::matmul::MatrixType;
use crate::weights::bytes;
use engine_core::{AttentionShape, DeltaNetShape, KvType};

/// (query heads, KV heads, head size) of Qwen3-8B, of gpt-oss-20b, and of Qwen3.5-9B.
const QWEN3: (usize, usize, usize) = (32, 8, 128);
const GPT_OSS: (usize, usize, usize) = (64, 8, 64);
const QWEN3_5: (usize, usize, usize) = (16, 4, 256);
const GPT_OSS_WINDOW: usize = 128;
const QWEN3_5_NET: DeltaNetShape =
    DeltaNetShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, taps: 4 };

/// Case to measure: one operation at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "the comment of a case names its sizes")]
pub enum Case {
    /// Matrix multiplication of `rows` rows with weights `[n, k]`.
    Product { matrix_type: MatrixType, rows: usize, n: usize, k: usize },
    /// Mixture of experts: `rows` rows, each times the weights `[n, k]` of its top-k (`chosen`)
    /// experts.
    Experts {
        matrix_type: MatrixType,
        rows: usize,
        chosen: usize,
        experts: usize,
        n: usize,
        k: usize,
    },
    /// Attention of the last `rows` of `context` positions of each sequence, over KV pages.
    Attention {
        shape: AttentionShape,
        window: Option<usize>,
        kv_type: KvType,
        sequences: usize,
        rows: usize,
        context: usize,
    },
    /// Gated delta net over `rows` rows of each sequence.
    DeltaNet { shape: DeltaNetShape, sequences: usize, rows: usize },
    /// Addition and RMS norm of `rows` rows of `cols` columns.
    AddRmsNorm { rows: usize, cols: usize },
    /// SiLU-gated multiplication with `rows` rows of `cols` gate and `cols` up columns.
    SiluMul { rows: usize, cols: usize },
}

/// Least work of one call, from which its share of the hardware limits is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Smallest number of bytes that one call reads and writes.
    pub bytes: u64,
    /// Floating-point operations of one call; a multiplication and an addition count as two.
    pub flops: u64,
}

/// All cases of the table, decoding before prefill.
pub fn standard() -> Vec<Case> {
    let mut cases = Vec::new();
    let attention = |(heads, kv_heads, head_dim): (usize, usize, usize), window, kv_type| {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let shape = AttentionShape { heads, kv_heads, head_dim, scale };
        move |(sequences, rows, context)| Case::Attention {
            shape,
            window,
            kv_type,
            sequences,
            rows,
            context,
        }
    };
    let decoding = [(1, 1, 8192), (16, 1, 8192), (64, 1, 1024), (64, 1, 4096), (256, 1, 1024)];
    let prompts = [(1, 2048, 2048), (1, 8192, 8192), (8, 1024, 1024), (1, 2048, 8192)];
    for shapes in [&decoding[..], &prompts] {
        let shapes = || shapes.iter().copied();
        cases.extend(shapes().map(attention(QWEN3, None, KvType::Bf16)));
        cases.extend(shapes().map(attention(QWEN3, None, KvType::Fp8)));
        cases.extend(shapes().map(attention(GPT_OSS, None, KvType::Bf16)));
        cases.extend(shapes().map(attention(GPT_OSS, Some(GPT_OSS_WINDOW), KvType::Bf16)));
        cases.extend(shapes().map(attention(QWEN3_5, None, KvType::Bf16)));
    }
    for rows in [1, 16, 64, 256, 2048, 8192] {
        // Projections of Qwen3-8B: queries, keys and values; gate and up; down.
        for (n, k) in [(6144, 4096), (24_576, 4096), (4096, 12_288)] {
            let product = |matrix_type| Case::Product { matrix_type, rows, n, k };
            cases.extend([MatrixType::Bf16, MatrixType::E4m3].map(product));
        }
    }
    for rows in [1, 16, 64, 256, 2048] {
        // Expert projections of gpt-oss-20b, and of Qwen3-30B-A3B.
        let mxfp4 = MatrixType::Mxfp4;
        let gpt_oss = (mxfp4, 4, 32, 5760, 2880);
        let of_qwen3 = |matrix_type| (matrix_type, 8, 128, 1536, 2048);
        for (matrix_type, chosen, experts, n, k) in
            [gpt_oss, of_qwen3(MatrixType::Bf16), of_qwen3(MatrixType::E4m3)]
        {
            cases.push(Case::Experts { matrix_type, rows, chosen, experts, n, k });
        }
    }
    for (sequences, rows) in [(1, 1), (64, 1), (256, 1), (1, 2048), (8, 1024)] {
        cases.push(Case::DeltaNet { shape: QWEN3_5_NET, sequences, rows });
    }
    for rows in [256, 8192] {
        cases.push(Case::AddRmsNorm { rows, cols: 4096 });
        cases.push(Case::SiluMul { rows, cols: 12_288 });
    }
    cases
}

/// Name of a storage format of weights.
fn dtype(matrix_type: MatrixType) -> &'static str {
    match matrix_type {
        MatrixType::Bf16 => "bf16",
        MatrixType::E4m3 => "e4m3",
        MatrixType::Mxfp4 => "mxfp4",
    }
}

/// Bytes of weights `[n, k]` with their scales.
fn weight_bytes(matrix_type: MatrixType, n: usize, k: usize) -> usize {
    let (weights, scales) = bytes(matrix_type, n, k);
    weights + scales
}

impl Case {
    /// Name of the measured operation.
    pub fn op(&self) -> &'static str {
        match self {
            Self::Product { .. } => "matmul",
            Self::Experts { .. } => "expert_matmul",
            Self::Attention { .. } => "attention",
            Self::DeltaNet { .. } => "delta_net",
            Self::AddRmsNorm { .. } => "add_rms_norm",
            Self::SiluMul { .. } => "silu_mul",
        }
    }

    /// Sizes as text, by their letters: T rows, B sequences, C context, E experts, X experts per
    /// row, W window.
    pub fn shape(&self) -> String {
        match self {
            Self::Product { rows, n, k, .. } => format!("T{rows}_K{k}_N{n}"),
            Self::Experts { rows, chosen, experts, n, k, .. } => {
                format!("T{rows}_E{experts}_X{chosen}_K{k}_N{n}")
            }
            Self::Attention { shape, window, sequences, rows, context, .. } => {
                let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
                let window = window.map_or(String::new(), |window| format!("_W{window}"));
                format!("B{sequences}_T{rows}_C{context}_H{heads}_KV{kv_heads}_D{head_dim}{window}")
            }
            Self::DeltaNet { shape, sequences, rows } => {
                let DeltaNetShape { value_heads, key_dim, .. } = shape;
                format!("B{sequences}_T{rows}_H{value_heads}_D{key_dim}")
            }
            Self::AddRmsNorm { rows, cols } | Self::SiluMul { rows, cols } => {
                format!("T{rows}_N{cols}")
            }
        }
    }

    /// Name of the storage format: of the weights, else of the KV cache, else of the activations.
    pub fn dtype(&self) -> &'static str {
        match self {
            Self::Product { matrix_type, .. } | Self::Experts { matrix_type, .. } => {
                dtype(*matrix_type)
            }
            Self::Attention { kv_type, .. } => kv_type.name(),
            Self::DeltaNet { .. } | Self::AddRmsNorm { .. } | Self::SiluMul { .. } => "bf16",
        }
    }

    /// Least work of one call; `used` is the number of experts that have rows.
    pub fn work(&self, used: usize) -> Work {
        let (bytes, flops) = match *self {
            Self::Product { matrix_type, rows, n, k } => {
                (weight_bytes(matrix_type, n, k) + 2 * rows * (n + k), 2 * rows * n * k)
            }
            Self::Experts { matrix_type, rows, chosen, n, k, .. } => {
                let pairs = rows * chosen;
                (used * weight_bytes(matrix_type, n, k) + 2 * pairs * (n + k), 2 * pairs * n * k)
            }
            Self::Attention { shape, window, kv_type, sequences, rows, context } => {
                let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
                let most = window.unwrap_or(context);
                let seen: usize = (context - rows..context).map(|at| (at + 1).min(most)).sum();
                // With a window, rows read from the window of the first row to the last position.
                let read = context.min(most + rows - 1);
                let kv = 2 * read * kv_heads * head_dim * kv_type.bytes();
                let lines = rows * heads * head_dim;
                (sequences * (kv + 4 * lines), 4 * sequences * seen * heads * head_dim)
            }
            Self::DeltaNet { shape, sequences, rows } => {
                let state = 2 * 4 * shape.state_elements();
                let lines = rows * (shape.cols() + shape.value_heads * shape.value_dim);
                let cells = shape.value_heads * shape.key_dim * shape.value_dim;
                // Per row of each sequence, for each element of the state: the state times the key,
                // the update, and the state times the query, of two operations each.
                (sequences * (state + 2 * lines), 6 * sequences * rows * cells)
            }
            Self::AddRmsNorm { rows, cols } => (4 * 2 * rows * cols, 5 * rows * cols),
            Self::SiluMul { rows, cols } => (3 * 2 * rows * cols, 5 * rows * cols),
        };
        Work { bytes: bytes as u64, flops: flops as u64 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_something_to_do() {
        let cases = standard();
        let names: BTreeSet<_> =
            cases.iter().map(|case| (case.op(), case.shape(), case.dtype())).collect();
        assert_eq!(names.len(), cases.len());
        assert!(cases.iter().all(|case| case.work(1).bytes > 0 && case.work(1).flops > 0));
    }

    #[test]
    fn work_is_what_the_shapes_say() {
        let shape = AttentionShape { heads: 32, kv_heads: 8, head_dim: 128, scale: 1.0 };
        let attention = |window, rows, context| {
            let (kv_type, sequences) = (KvType::Bf16, 2);
            Case::Attention { shape, window, kv_type, sequences, rows, context }.work(0)
        };
        // Keys and values of 1,000 positions, and queries and results of one row.
        let bytes = 2 * (2 * 1000 * 8 * 128 * 2 + 4 * 32 * 128);
        let flops = 2 * 4 * 1000 * 32 * 128;
        assert_eq!(attention(None, 1, 1000), Work { bytes, flops });
        let bytes = 2 * (2 * 100 * 8 * 128 * 2 + 4 * 32 * 128);
        assert_eq!(attention(Some(100), 1, 1000), Work { bytes, flops: flops / 10 });
        // The four rows see 1 + 2 + 3 + 4 positions.
        assert_eq!(attention(None, 4, 4).flops, 2 * 4 * 10 * 32 * 128);
        let experts = Case::Experts {
            matrix_type: MatrixType::Mxfp4,
            rows: 3,
            chosen: 2,
            experts: 8,
            n: 64,
            k: 128,
        };
        let of_one = 64 * 128 / 2 + 64 * 128 / 32;
        let bytes = 5 * of_one + 2 * 6 * (64 + 128);
        assert_eq!(experts.work(5), Work { bytes, flops: 2 * 6 * 64 * 128 });
    }
}
