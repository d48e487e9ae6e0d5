//! Quantization formats and float types in which weights are stored, and their dequantization.
//!
//! `dequantize` is the specification that the packed kernels are tested against.

use half::bf16;

use super::blocks;

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

    /// Returns the type's name in messages and records.
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

/// Returns the names of all types, for messages.
pub fn supported_types() -> String {
    WeightType::ALL.map(WeightType::name).join(", ")
}

/// Dequantizes the blocks in `bytes` to `out`, which must have exactly as many elements.
pub fn dequantize(stored: WeightType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), stored.row_bytes(out.len()), "bytes and elements agree");
    let values = out.iter_mut();
    match stored {
        WeightType::F32 => values.zip(bytes.chunks_exact(4)).for_each(|(x, b)| *x = f32_at(b)),
        WeightType::F16 => {
            values.zip(bytes.chunks_exact(2)).for_each(|(x, b)| *x = blocks::half_at(b, 0));
        }
        WeightType::Bf16 => {
            let bits = |b: &[u8]| bf16::from_le_bytes([b[0], b[1]]).to_f32();
            values.zip(bytes.chunks_exact(2)).for_each(|(x, b)| *x = bits(b));
        }
        WeightType::F8E4M3 => {
            for (out, block) in out.chunks_exact_mut(32).zip(bytes.chunks_exact(36)) {
                let scale = f32_at(block);
                out.iter_mut().zip(&block[4..]).for_each(|(x, b)| *x = blocks::e4m3(*b) * scale);
            }
        }
        _ => {
            let mut values = values;
            for block in bytes.chunks_exact(stored.block_bytes()) {
                blocks::parts(stored, block, |scale, minimum, codes| {
                    for (code, x) in codes.iter().zip(&mut values) {
                        // The product is exact: scale and quantized value have at most 24
                        // significant bits together.
                        *x = scale * f32::from(*code) + minimum;
                    }
                });
            }
        }
    }
}

fn f32_at(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_lists_the_types() {
        let line = format!("Weights are {}.\n", supported_types());
        let readme = include_str!("../../README.md");
        assert!(readme.contains(&line), "README.md should have: {line}");
    }

    fn check(stored: WeightType, bytes: &[u8], want: &[f32]) {
        let mut got = vec![f32::NAN; want.len()];
        dequantize(stored, bytes, &mut got);
        assert_eq!(got, want, "{}", stored.name());
    }

    #[test]
    fn blocks_hold_the_values_worked_out_by_hand() {
        check(WeightType::F32, &1.5f32.to_le_bytes(), &[1.5]);
        check(WeightType::F16, &[0x00, 0x3c, 0x00, 0xc0], &[1.0, -2.0]);
        check(WeightType::Bf16, &[0x80, 0x3f, 0x40, 0xc0], &[1.0, -3.0]);

        // d = 0.5, m = -1: byte i holds value i % 16 in its low and 15 - i % 16 in its high half.
        let mut q4 = vec![0x00, 0x38, 0x00, 0xbc];
        q4.extend((0..16u8).map(|i| i | ((15 - i) << 4)));
        let mut want: Vec<f32> = (0..16u8).map(|i| 0.5 * f32::from(i) - 1.0).collect();
        want.extend((0..16u8).map(|i| 0.5 * f32::from(15 - i) - 1.0));
        check(WeightType::Q4_1, &q4, &want);

        // d = 0.25, quantized values -16..16.
        let mut q8 = vec![0x00, 0x34];
        q8.extend((-16..16i8).map(i8::cast_unsigned));
        let want: Vec<f32> = (-16..16i8).map(|q| 0.25 * f32::from(q)).collect();
        check(WeightType::Q8_0, &q8, &want);

        // Scale 2: zero, smallest subnormal, largest subnormal, smallest normal, 1, -1, largest.
        let mut f8 = 2f32.to_le_bytes().to_vec();
        f8.extend([0x00, 0x01, 0x07, 0x08, 0x38, 0xb8, 0x7e]);
        f8.resize(36, 0);
        let mut want =
            vec![0.0, 2f32.powi(-8), 7.0 * 2f32.powi(-8), 2f32.powi(-5), 2.0, -2.0, 896.0];
        want.resize(32, 0.0);
        check(WeightType::F8E4M3, &f8, &want);
    }

    #[test]
    fn scales_and_codes_that_stand_for_no_number_give_none() {
        assert_eq!(blocks::e8m0(127), 1.0);
        assert_eq!(blocks::e8m0(0), 2f32.powi(-127));
        assert_eq!(blocks::e8m0(254), 2f32.powi(127));
        assert!(blocks::e8m0(255).is_nan());
        assert!(blocks::e4m3(0x7f).is_nan() && blocks::e4m3(0xff).is_nan());
    }

    /// Sum of the values, and sum of each value times its index from 1, of a block whose byte `i`
    /// is bits 2 to 9 of `89 i^2 + 57 i + 23`, with d = 0.5 and m = -0.25, as the Python package
    /// gguf 0.19.0 computes them. All sums are exact in f64.
    const SUMS: [(WeightType, &[usize], f64, f64); 9] = [
        (WeightType::Q4_0, &[0], -17.0, -431.0),
        (WeightType::Q4_1, &[0, 2], 96.5, 1447.5),
        (WeightType::Q5_0, &[0], 3.0, -137.5),
        (WeightType::Q5_1, &[0, 2], 231.0, 3995.5),
        (WeightType::Q8_0, &[0], 216.0, 480.0),
        (WeightType::Q4K, &[0, 2], 41260.0, 4_940_814.0),
        (WeightType::Q5K, &[0, 2], 83076.0, 9_756_998.0),
        (WeightType::Q6K, &[208], -3574.0, -1_258_730.0),
        (WeightType::Mxfp4, &[], 13.75, 300.0),
    ];

    #[test]
    fn blocks_hold_the_values_that_ggml_gives_them() {
        for (stored, heads, sum, weighted) in SUMS {
            let mut block: Vec<u8> = (0..stored.block_bytes() as u32)
                .map(|i| ((89 * i * i + 57 * i + 23) >> 2) as u8)
                .collect();
            for (at, head) in heads.iter().zip([0.5, -0.25]) {
                block[*at..at + 2].copy_from_slice(&half::f16::from_f32(head).to_le_bytes());
            }
            if stored == WeightType::Mxfp4 {
                block[0] = 126;
            }
            let mut values = vec![0.0; stored.block()];
            dequantize(stored, &block, &mut values);
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let numbered: f64 = values.iter().zip(1..).map(|(x, i)| x * f64::from(i)).sum();
            assert_eq!(values.iter().sum::<f64>(), sum, "{}", stored.name());
            assert_eq!(numbered, weighted, "{}", stored.name());
        }
    }
}
