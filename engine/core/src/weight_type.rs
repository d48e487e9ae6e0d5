//! Element types and quantization formats of stored weights: their names, and the numbers of
//! elements and bytes in their blocks.

/// Element type of a stored tensor that this release can compute with: a float type, or a block
/// format that stores quantized values with their scales. Most block formats are those of ggml
/// (`ggml-common.h`), little endian; `engine/weights/src/blocks.rs` decodes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightType {
    /// Weights in f32, IEEE 754 single precision: 4 bytes each.
    F32,
    /// Weights in f16, IEEE 754 half precision: 2 bytes each.
    F16,
    /// Weights in bfloat16, the upper half of an f32: 2 bytes each.
    Bf16,
    /// Weights in FP8 blocks of 32: an f32 scale, then 32 E4M3 floats (four exponent, three
    /// fraction bits). No file has this format; the loader composes it from a checkpoint's E4M3
    /// floats and its grid of scales.
    F8E4M3,
    /// Weights in ggml's Q4_0 blocks of 32: each is `d * (q - 8)`, with a 4-bit q and an f16 scale
    /// d per block.
    Q4_0,
    /// Weights in ggml's Q4_1 blocks of 32: each is `d * q + m`, with a 4-bit q and an f16 scale d
    /// and minimum m per block.
    Q4_1,
    /// Weights in ggml's Q5_0 blocks of 32: each is `d * (q - 16)`, with a 5-bit q and an f16 scale
    /// d per block.
    Q5_0,
    /// Weights in ggml's Q5_1 blocks of 32: each is `d * q + m`, with a 5-bit q and an f16 scale d
    /// and minimum m per block.
    Q5_1,
    /// Weights in ggml's Q8_0 blocks of 32: each is `d * q`, with a signed 8-bit q and an f16 scale
    /// d per block.
    Q8_0,
    /// Weights in ggml's Q4_K blocks of 256: eight sub-blocks of 32, each with a 6-bit scale and a
    /// 6-bit minimum; 4-bit values.
    Q4K,
    /// Weights in ggml's Q5_K blocks of 256: eight sub-blocks of 32, each with a 6-bit scale and a
    /// 6-bit minimum; 5-bit values.
    Q5K,
    /// Weights in ggml's Q6_K blocks of 256: sixteen sub-blocks of 16, each with an 8-bit scale;
    /// 6-bit values.
    Q6K,
    /// Weights in MXFP4 blocks of 32: each is `2^e`, an 8-bit exponent per block, times an E2M1
    /// float (two exponent bits, one fraction bit).
    Mxfp4,
}

impl WeightType {
    /// All element types of stored weights, in the order of their declaration.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E4M3,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Mxfp4,
    ];

    /// Returns the name of a weight type, the number of elements per block and the number of bytes
    /// per block. A float type has blocks of one element.
    const fn facts(self) -> (&'static str, usize, usize) {
        match self {
            Self::F32 => ("f32", 1, 4),
            Self::F16 => ("f16", 1, 2),
            Self::Bf16 => ("bf16", 1, 2),
            Self::F8E4M3 => ("f8_e4m3", 32, 36),
            Self::Q4_0 => ("q4_0", 32, 18),
            Self::Q4_1 => ("q4_1", 32, 20),
            Self::Q5_0 => ("q5_0", 32, 22),
            Self::Q5_1 => ("q5_1", 32, 24),
            Self::Q8_0 => ("q8_0", 32, 34),
            Self::Q4K => ("q4_k", 256, 144),
            Self::Q5K => ("q5_k", 256, 176),
            Self::Q6K => ("q6_k", 256, 210),
            Self::Mxfp4 => ("mxfp4", 32, 17),
        }
    }

    /// Returns the name of the weight type as messages and records have it, such as `q4_k`.
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// Returns true if the stored weights are integers in blocks with scales, as in ggml's formats
    /// and MXFP4, whose floats are whole numbers when they are doubled; false for float types and
    /// FP8.
    pub fn is_integer_blocks(self) -> bool {
        self.block() > 1 && self != Self::F8E4M3
    }

    /// Returns the number of elements in a block of the weight type, 1 for float types; rows are
    /// whole blocks.
    pub fn block(self) -> usize {
        self.facts().1
    }

    /// Returns the number of bytes of a block of the weight type, its scales included.
    pub fn block_bytes(self) -> usize {
        self.facts().2
    }

    /// Returns the number of bytes of a stored row of `cols` weights, which must be a multiple of
    /// the block size.
    pub fn row_bytes(self, cols: usize) -> usize {
        debug_assert_eq!(cols % self.block(), 0, "a row is whole blocks");
        cols / self.block() * self.block_bytes()
    }
}
