//! Quantization formats and float types in which weights are stored, and their dequantization.
//!
//! `dequantize` is the specification: the kernels that compute with packed weights are tested
//! against it.

use engine_core::WeightType;
use half::bf16;

use super::blocks;

/// Returns the names of all element types and quantization formats that this release can compute
/// with, separated by commas, for messages.
pub fn supported_types() -> String {
    WeightType::ALL.map(WeightType::name).join(", ")
}

/// Dequantizes stored weights of type `stored`, whole blocks in `bytes`, to `out`, which must have
/// exactly as many elements.
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
                blocks::parts(stored, block, |scale, minimum, quantized| {
                    for (q, x) in quantized.iter().zip(&mut values) {
                        // The product is exact: scale and quantized value have at most 24
                        // significant bits together.
                        *x = scale * f32::from(*q) + minimum;
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

    /// Expected values of test blocks by quantization type: byte offsets of the scale (0.5) and
    /// minimum (-0.25), sum of the block's weights, and sum of each weight times its index from 1,
    /// as the Python package gguf 0.19.0 computes them. Byte `i` of a block, except those of scale
    /// and minimum, is bits 2 to 9 of `89 i^2 + 57 i + 23`; the scale of MXFP4 is 126. All sums are
    /// exact in f64.
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
