//! Element types of stored weights: their names, and how many bytes their blocks have.

/// Element type of a stored tensor that this release can compute with. The quantized ones are
/// ggml's block formats (`ggml-common.h`), little endian; `blocks` decodes their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightType {
    /// IEEE 754 single precision, 4 bytes.
    F32,
    /// IEEE 754 half precision, 2 bytes.
    F16,
    /// bfloat16, 2 bytes: the upper half of an f32.
    Bf16,
    /// FP8 blocks of 32: an f32 scale, then 32 E4M3 floats (four exponent, three fraction bits). No
    /// file has this format; a checkpoint composes it from E4M3 floats and a grid of scales.
    F8E4M3,
    /// Blocks of 32, `d * (q - 8)`, 4-bit q.
    Q4_0,
    /// Blocks of 32, `d * q + m`, 4-bit q.
    Q4_1,
    /// Blocks of 32, `d * (q - 16)`, 5-bit q.
    Q5_0,
    /// Blocks of 32, `d * q + m`, 5-bit q.
    Q5_1,
    /// Blocks of 32, `d * q`, signed 8-bit q.
    Q8_0,
    /// Blocks of 256: eight parts of 32, each with a 6-bit scale and a 6-bit minimum; 4-bit values.
    Q4K,
    /// Blocks of 256: eight parts of 32, each with a 6-bit scale and a 6-bit minimum; 5-bit values.
    Q5K,
    /// Blocks of 256: sixteen parts of 16, each with an 8-bit scale; 6-bit values.
    Q6K,
    /// MXFP4 blocks of 32: `2^e` times E2M1 floats (two exponent bits, one fraction bit).
    Mxfp4,
}

impl WeightType {
    /// All types, in the order of their declaration.
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

    /// Returns name, elements per block and bytes per block.
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

    /// Name in messages and records.
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// Returns true if elements are integers with one or more scales per block.
    pub fn is_integer_blocks(self) -> bool {
        self.block() > 1 && !matches!(self, Self::F8E4M3 | Self::Mxfp4)
    }

    /// Returns the number of elements of a block; rows are whole blocks.
    pub fn block(self) -> usize {
        self.facts().1
    }

    /// Returns the number of bytes of a block, its scales included.
    pub fn block_bytes(self) -> usize {
        self.facts().2
    }

    /// Returns the number of bytes of a row of `cols` elements, a multiple of the block size.
    pub fn row_bytes(self, cols: usize) -> usize {
        debug_assert_eq!(cols % self.block(), 0, "a row is whole blocks");
        cols / self.block() * self.block_bytes()
    }
}
