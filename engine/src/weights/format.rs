//! How weights are stored in files: element types, block layouts and what each block means.
//!
//! `dequantize` is the specification that the packed kernels are tested against. Block layouts are
//! those of ggml (`ggml-common.h`), little endian.

use half::{bf16, f16};

/// Element type of a stored tensor that this release can compute with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightType {
    F32,
    F16,
    Bf16,
    /// Blocks of 32: f16 scale `d`, f16 minimum `m`, 32 four-bit codes; a weight is `d * q + m`.
    /// Byte `i` holds element `i` in its low and element `i + 16` in its high half.
    Q4_1,
    /// Blocks of 32: f16 scale `d`, 32 signed bytes; a weight is `d * q`.
    Q8_0,
}

impl WeightType {
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Q4_1, Self::Q8_0];

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q4_1 => "q4_1",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Elements in a block; rows are whole blocks.
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_1 | Self::Q8_0 => 32,
        }
    }

    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
        }
    }

    /// Bytes of a row of `cols` elements; `cols` is a multiple of `block`.
    pub fn row_bytes(self, cols: usize) -> usize {
        debug_assert_eq!(cols % self.block(), 0, "a row is whole blocks");
        cols / self.block() * self.block_bytes()
    }
}

/// Every name of [`WeightType`], for messages.
pub fn supported_types() -> String {
    WeightType::ALL.map(WeightType::name).join(", ")
}

fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Writes the values of the blocks in `bytes` to `out`, which has exactly as many elements.
pub fn dequantize(stored: WeightType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), stored.row_bytes(out.len()), "bytes and elements agree");
    let blocks = bytes.chunks_exact(stored.block_bytes());
    match stored {
        WeightType::F32 => {
            for (x, b) in out.iter_mut().zip(blocks) {
                *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        WeightType::F16 => {
            for (x, b) in out.iter_mut().zip(blocks) {
                *x = f16_at(b, 0);
            }
        }
        WeightType::Bf16 => {
            for (x, b) in out.iter_mut().zip(blocks) {
                *x = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        WeightType::Q4_1 => {
            for (block, b) in out.chunks_exact_mut(32).zip(blocks) {
                let (d, m) = (f16_at(b, 0), f16_at(b, 2));
                for (i, code) in b[4..20].iter().enumerate() {
                    block[i] = d.mul_add(f32::from(code & 15), m);
                    block[i + 16] = d.mul_add(f32::from(code >> 4), m);
                }
            }
        }
        WeightType::Q8_0 => {
            for (block, b) in out.chunks_exact_mut(32).zip(blocks) {
                let d = f16_at(b, 0);
                for (x, code) in block.iter_mut().zip(&b[2..34]) {
                    *x = d * f32::from(code.cast_signed());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

        // d = 0.5, m = -1: byte i holds code i % 16 low and 15 - i % 16 high.
        let mut q4 = vec![0x00, 0x38, 0x00, 0xbc];
        q4.extend((0..16u8).map(|i| i | ((15 - i) << 4)));
        let mut want: Vec<f32> = (0..16u8).map(|i| 0.5 * f32::from(i) - 1.0).collect();
        want.extend((0..16u8).map(|i| 0.5 * f32::from(15 - i) - 1.0));
        check(WeightType::Q4_1, &q4, &want);

        // d = 0.25: codes -16..16.
        let mut q8 = vec![0x00, 0x34];
        q8.extend((-16..16i8).map(i8::cast_unsigned));
        let want: Vec<f32> = (-16..16i8).map(|q| 0.25 * f32::from(q)).collect();
        check(WeightType::Q8_0, &q8, &want);
    }
}
