//! Pseudo-random weights of every storage format with their values, and a check of matrix
//! multiplication by expert.

use super::*;
use crate::launch::matmul::MatrixType;

/// Weights `[N, K]` in the kernels' layout, with their dequantized values.
pub(super) struct Weights {
    pub codes: Vec<u8>,
    /// FP8 scales of the blocks of 128 x 128 weights; empty for other formats.
    pub block_scales: Vec<f32>,
    /// Exponents of the MXFP4 scales, `[K / 128, N, 4]`; empty for other formats.
    pub exponents: Vec<u8>,
    pub values: Vec<f32>,
}

/// Values of the non-negative numbers of the FP4 format e2m1, by the format's definition.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Returns the 16 bytes in device memory of 32 values of four bits in the order of their columns:
/// word q of the bytes has columns 2 q and 2 q + 1 of each eight, the odd columns in its upper half.
pub(super) fn mxfp4_piece(codes: &[u8]) -> Vec<u8> {
    // Bits of the four eights' numbers in a half, from the sign down.
    let places = [[15, 8, 7, 6], [12, 5, 4, 3], [9, 2, 1, 0], [14, 13, 11, 10]];
    let word = |q: usize| {
        let mut word = 0u32;
        for (eight, places) in places.iter().enumerate() {
            for odd in 0..2 {
                let code = u32::from(codes[8 * eight + 2 * q + odd]);
                for (bit, place) in places.iter().enumerate() {
                    word |= (code >> (3 - bit) & 1) << (16 * odd + place);
                }
            }
        }
        word
    };
    (0..4).flat_map(|q| word(q).to_le_bytes()).collect()
}

/// Returns pseudo-random weights of about the size of a model's, with scales that differ from block
/// to block.
pub(super) fn weights(matrix_type: MatrixType, n: usize, k: usize, seed: u32) -> Weights {
    let base = rounded(n * k, seed);
    let mut w = Weights { codes: vec![], block_scales: vec![], exponents: vec![], values: vec![] };
    match matrix_type {
        MatrixType::Bf16 => {
            w.codes = narrow(&base).iter().flat_map(|bits| bits.to_le_bytes()).collect();
            w.values = base;
        }
        MatrixType::E4m3 => {
            let blocks = k.div_ceil(128);
            let scales = numbers(n.div_ceil(128) * blocks, seed + 1);
            w.block_scales = scales.iter().map(|x| (2.0 + x) / 512.0).collect();
            // Cubes spread over all exponents of e4m3.
            w.codes = base.iter().map(|x| pages::nearest_e4m3(448.0 * x * x * x)).collect();
            let scale = |i: usize| w.block_scales[i / k / 128 * blocks + i % k / 128];
            let value = |(i, code): (usize, &u8)| pages::e4m3(*code) * scale(i);
            w.values = w.codes.iter().enumerate().map(value).collect();
        }
        MatrixType::Mxfp4 => {
            let codes: Vec<u8> = base.iter().map(|x| ((x + 1.0) * 8.0).min(15.0) as u8).collect();
            w.codes = codes.chunks_exact(32).flat_map(mxfp4_piece).collect();
            let exponents = numbers(n * k / 32, seed + 1);
            let exponents: Vec<u8> = exponents.iter().map(|x| (124.0 + 3.0 * x) as u8).collect();
            let scale = |row: usize, block: usize| {
                if block < k / 32 { exponents[row * (k / 32) + block] } else { 0 }
            };
            let groups = (0..k.div_ceil(128)).flat_map(|group| (0..n).map(move |row| (group, row)));
            let four = |(group, row)| (0..4).map(move |i| scale(row, 4 * group + i));
            w.exponents = groups.flat_map(four).collect();
            let value = |(i, code): (usize, &u8)| {
                let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
                let exponent = i32::from(exponents[i / 32]) - 127;
                sign * E2M1[usize::from(code & 7)] * 2f32.powi(exponent)
            };
            w.values = codes.iter().enumerate().map(value).collect();
        }
    }
    w
}

/// Appends weights to a kernel's arguments: quantized values, then scales if the format has any.
pub(super) fn with_weights(call: Call, matrix_type: MatrixType, w: &Weights) -> Call {
    let call = call.buffer(&w.codes);
    match matrix_type {
        MatrixType::Bf16 => call,
        MatrixType::E4m3 => call.buffer(&w.block_scales),
        MatrixType::Mxfp4 => call.buffer(&w.exponents),
    }
}

/// Matrix multiplication by expert to check: number of rows of each expert, and shape of the
/// weights.
pub(super) struct ExpertCase<'a> {
    pub matrix_type: MatrixType,
    pub counts: &'a [usize],
    pub n: usize,
    pub k: usize,
}

impl ExpertCase<'_> {
    /// Returns the index of each expert's first row, and the end of the last expert's rows.
    fn offsets(&self) -> Vec<u32> {
        let mut offsets = vec![0];
        self.counts
            .iter()
            .for_each(|count| offsets.push(offsets[offsets.len() - 1] + *count as u32));
        offsets
    }

    /// Runs a matrix multiplication by expert, to whose arguments the experts' offsets are appended
    /// and then the shape by `tail`, and compares it with the reference. One row more belongs to
    /// another rank and must stay unchanged.
    pub(super) fn check(&self, program: &Program, matmul: &Call, tail: impl Fn(Call) -> Call) {
        let &Self { matrix_type, counts, n, k } = self;
        let (experts, offsets) = (counts.len(), self.offsets());
        let sent = offsets[experts] as usize;
        let x = rounded((sent + 1) * k, 34);
        let each: Vec<Weights> =
            (0..experts).map(|expert| weights(matrix_type, n, k, 35 + expert as u32)).collect();
        let all = Weights {
            codes: each.iter().flat_map(|w| w.codes.clone()).collect(),
            block_scales: each.iter().flat_map(|w| w.block_scales.clone()).collect(),
            exponents: each.iter().flat_map(|w| w.exponents.clone()).collect(),
            values: Vec::new(),
        };
        let biases = numbers(experts * n, 36);
        for biases in [None, Some(&biases[..])] {
            let call = matmul.clone().buffer(&vec![7u16; (sent + 1) * n]).buffer(&narrow(&x));
            let call = with_weights(call, matrix_type, &all).optional(biases).buffer(&offsets);
            let got = program.run(&[tail(call).value(n as u32).value(k as u32)]);
            let what = format!("{matrix_type:?} {counts:?} K{k} N{n}, biases {}", biases.is_some());
            let mut want = Vec::new();
            for (expert, w) in each.iter().enumerate() {
                let rows = &x[offsets[expert] as usize * k..offsets[expert + 1] as usize * k];
                let mut matmul = reference::matmul(rows, &w.values, k);
                if let Some(biases) = biases {
                    let bias = biases[expert * n..(expert + 1) * n].iter().cycle();
                    matmul.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
                }
                want.extend(matmul);
            }
            check_close(&widen(&got[0][0])[..sent * n], &want, BF16_ROUNDING, &what);
            let rest = &elements::<u16>(&got[0][0])[sent * n..];
            assert!(rest.iter().all(|x| *x == 7), "{what}: rows of other ranks stay");
        }
    }
}
