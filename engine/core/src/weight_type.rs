//! Element types of stored weights: their names, and how many bytes their blocks have.

/// Element type of a stored tensor that this release can compute with. The quantized ones are
/// ggml's block layouts (`ggml-common.h`), little endian; `blocks` says what their bytes mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightType {
    /// Four bytes, IEEE 754.
    F32,
    /// Two bytes, IEEE 754.
    F16,
    /// The upper two bytes of an f32.
    Bf16,
    /// Blocks of 32: f32 scale, 32 eight-bit floats of four exponent and three fraction bits. No
    /// file holds this; a checkpoint makes it of codes and of a grid of scales.
    F8E4M3,
    /// `d * (q - 8)`, four bits.
    Q4_0,
    /// `d * q + m`, four bits.
    Q4_1,
    /// `d * (q - 16)`, five bits.
    Q5_0,
    /// `d * q + m`, five bits.
    Q5_1,
    /// `d * q`, eight signed bits.
    Q8_0,
    /// Eight parts of 32 with six-bit scales and minima of their own, four bits.
    Q4K,
    /// As `Q4K`, five bits.
    Q5K,
    /// Sixteen parts of 16 with eight-bit scales of their own, six bits.
    Q6K,
    /// `2^e` times a four-bit float of two exponent bits and one fraction bit.
    Mxfp4,
}

impl WeightType {
    /// Every type, in the order of declaration.
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

    /// Name, elements of a block, bytes of a block.
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

    /// Whether elements are integer codes under a scale for each block.
    pub fn is_integer_blocks(self) -> bool {
        self.block() > 1 && !matches!(self, Self::F8E4M3 | Self::Mxfp4)
    }

    /// Elements in a block; rows are whole blocks.
    pub fn block(self) -> usize {
        self.facts().1
    }

    /// Bytes of a block, its scales included.
    pub fn block_bytes(self) -> usize {
        self.facts().2
    }

    /// Bytes of a row of `cols` elements; `cols` is a multiple of `block`.
    pub fn row_bytes(self, cols: usize) -> usize {
        debug_assert_eq!(cols % self.block(), 0, "a row is whole blocks");
        cols / self.block() * self.block_bytes()
    }
}
