//! Dequantization of blocks of stored weights (MXFP4, Q4_K and the others): the meaning of the bytes
//! of one block, format by format.
//!
//! Most formats are those of ggml (`ggml-common.h`): `d` is the scale, `m` the minimum, both f16.
//! The 4-bit values of a block of 32 weights, or the lower 4 bits of 5-bit values, are in 16 bytes,
//! weight `i` in the low and weight `i + 16` in the high half of byte `i`.

use half::f16;

use engine_core::WeightType;

/// Returns the little-endian f16 at byte offset `at` of a quantization block, as f32.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Returns the value of the E4M3 float (OCP 8-bit floating point, 2023) with these bits: exponent
/// bias 7; all exponent and fraction bits set is NaN.
pub fn e4m3(bits: u8) -> f32 {
    /// Factor 2^120 that makes up for the difference between the exponent biases of f32 and E4M3.
    const REBIAS: f32 = f32::from_bits((127 + 120) << 23);
    let magnitude = match bits & 0x7f {
        0x7f => f32::NAN,
        // Subnormals of E4M3 become subnormals of f32, so the product is exact for them too.
        rest => f32::from_bits(u32::from(rest) << 20) * REBIAS,
    };
    if bits < 0x80 { magnitude } else { -magnitude }
}

/// Returns the value of the E8M0 scale with these bits: `2^(bits - 127)`, NaN for 255 (OCP
/// microscaling formats, 2023).
pub fn e8m0(bits: u8) -> f32 {
    match bits {
        0 => f32::from_bits(1 << 22),
        0xff => f32::NAN,
        _ => f32::from_bits(u32::from(bits) << 23),
    }
}

/// Values of the 16 E2M1 floats by bit pattern, doubled so that they are whole numbers.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Calls `each` with the scale, the minimum and the quantized values of each part of a quantization
/// block, in element order; a part is the weights that share a scale. A weight is `scale *
/// quantized + minimum`. Defined for the quantized types except FP8, and panics for other types.
pub fn parts(stored: WeightType, block: &[u8], mut each: impl FnMut(f32, f32, &[i8])) {
    let half = |at: usize| half_at(block, at);
    match stored {
        WeightType::Q4_0 => each(half(0), -8.0 * half(0), &halves(&block[2..], 0)),
        WeightType::Q4_1 => each(half(0), half(2), &halves(&block[4..], 0)),
        WeightType::Q5_0 => {
            let quantized = halves(&block[6..], fifth_bits(&block[2..]));
            each(half(0), 0.0, &quantized.map(|q| q - 16));
        }
        WeightType::Q5_1 => each(half(0), half(2), &halves(&block[8..], fifth_bits(&block[4..]))),
        WeightType::Q8_0 => {
            let quantized: [i8; 32] = std::array::from_fn(|i| block[2 + i].cast_signed());
            each(half(0), 0.0, &quantized);
        }
        WeightType::Q4K => k_parts(block, &block[16..], |_, _| 0, each),
        WeightType::Q5K => {
            k_parts(block, &block[48..], |part, i| ((block[16 + i] >> part) & 1) << 4, each);
        }
        WeightType::Q6K => q6_k(block, each),
        WeightType::Mxfp4 => {
            let quantized = halves(&block[1..], 0).map(|bits| E2M1_DOUBLED[bits as usize]);
            each(0.5 * e8m0(block[0]), 0.0, &quantized);
        }
        WeightType::F32 | WeightType::F16 | WeightType::Bf16 | WeightType::F8E4M3 => {
            unreachable!("{} has no parts", stored.name());
        }
    }
}

/// Returns the 32 quantized values of a block: 4 bits each from 16 bytes; bit `i` of `high` is the
/// fifth bit of value `i`, 0 for 4-bit formats.
fn halves(bytes: &[u8], high: u32) -> [i8; 32] {
    let mut quantized = [0; 32];
    for (i, byte) in bytes[..16].iter().enumerate() {
        quantized[i] = (byte & 15).cast_signed();
        quantized[i + 16] = (byte >> 4).cast_signed();
    }
    if high != 0 {
        for (i, q) in quantized.iter_mut().enumerate() {
            *q |= (((high >> i) & 1) as i8) << 4;
        }
    }
    quantized
}

/// Returns the fifth bits of a Q5_0 or Q5_1 block of 32 weights, that of weight `i` in bit `i`.
fn fifth_bits(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Decodes a `Q4K` or `Q5K` block, which has eight parts of 32 weights, and calls `each` for each
/// part. 32 bytes hold the values of one part in their low halves and of the next part in their
/// high halves. `fifth(part, i)` returns the fifth bit of a weight, shifted to bit 4, or 0 for
/// `Q4K`.
fn k_parts(
    block: &[u8],
    quantized: &[u8],
    fifth: impl Fn(usize, usize) -> u8,
    mut each: impl FnMut(f32, f32, &[i8]),
) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for part in 0..8 {
        let (scale, minimum) = scale_and_minimum(&block[4..16], part);
        let quantized: [i8; 32] = std::array::from_fn(|i| {
            let byte = quantized[part / 2 * 32 + i];
            let four = if part % 2 == 0 { byte & 15 } else { byte >> 4 };
            (four | fifth(part, i)).cast_signed()
        });
        each(d * f32::from(scale), -(m * f32::from(minimum)), &quantized);
    }
}

/// Returns the 6-bit scale and 6-bit minimum of part `part`, below 8, of a `Q4K` or `Q5K` block,
/// from the block's twelve bytes of scales. Those of the first four parts are the low 6 bits of a
/// byte each; those of the last four are composed of four and two bits.
fn scale_and_minimum(packed: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        return (packed[part] & 63, packed[part + 4] & 63);
    }
    let (low, high) = (packed[part + 4], |at: usize| packed[at] >> 6 << 4);
    ((low & 15) | high(part - 4), (low >> 4) | high(part))
}

/// Decodes a `Q6K` block of two halves of 128 weights, and calls `each` for each of its 16 parts.
/// For each half, 64 bytes hold the low four bits of two runs of 64 weights, and 32 bytes the high
/// two bits of four runs of 32.
fn q6_k(block: &[u8], mut each: impl FnMut(f32, f32, &[i8])) {
    let d = half_at(block, 208);
    let (low, rest) = block.split_at(128);
    let (high, scales) = rest.split_at(64);
    for (part, scale) in scales[..16].iter().enumerate() {
        let quantized: [i8; 16] = std::array::from_fn(|j| {
            let i = 16 * part + j;
            let (half, run) = (i / 128, i % 128 / 32);
            let byte = low[64 * half + i % 64];
            let four = if run < 2 { byte & 15 } else { byte >> 4 };
            let two = (high[32 * half + i % 32] >> (2 * run)) & 3;
            (four | (two << 4)).cast_signed() - 32
        });
        each(d * f32::from(scale.cast_signed()), 0.0, &quantized);
    }
}
