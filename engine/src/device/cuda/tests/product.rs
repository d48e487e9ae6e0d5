//! Products with weights of every type, whole, split and by expert.

use super::*;
use crate::device::cuda::launch::attention::Processors;
use crate::device::cuda::launch::product::{MatmulArguments, MatmulPlan, MatrixType, ROWS_MAX};

/// Weights `[N, K]` as the kernels have them, and their values.
struct Weights {
    codes: Vec<u8>,
    /// f32 of e4m3.
    block_scales: Vec<f32>,
    /// Exponents of MXFP4.
    exponents: Vec<u8>,
    values: Vec<f32>,
}

/// What summing in f32 costs.
const F32_SUMS: f32 = 1e-5;

/// The numbers of four bits, by their definition.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Weights that look random, about as large as those of a model, under scales that differ from block
/// to block.
fn weights(matrix_type: MatrixType, n: usize, k: usize, seed: u32) -> Weights {
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
            // Cubes, so that codes of every exponent are met.
            w.codes = base.iter().map(|x| pages::nearest_e4m3(448.0 * x * x * x)).collect();
            let scale = |i: usize| w.block_scales[i / k / 128 * blocks + i % k / 128];
            let value = |(i, code): (usize, &u8)| pages::e4m3(*code) * scale(i);
            w.values = w.codes.iter().enumerate().map(value).collect();
        }
        MatrixType::Mxfp4 => {
            let codes: Vec<u8> = base.iter().map(|x| ((x + 1.0) * 8.0).min(15.0) as u8).collect();
            w.codes = codes.chunks_exact(2).map(|two| two[0] | two[1] << 4).collect();
            let exponents = numbers(n * k / 32, seed + 1);
            w.exponents = exponents.iter().map(|x| (124.0 + 3.0 * x) as u8).collect();
            let value = |(i, code): (usize, &u8)| {
                let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
                let exponent = i32::from(w.exponents[i / 32]) - 127;
                sign * E2M1[usize::from(code & 7)] * 2f32.powi(exponent)
            };
            w.values = codes.iter().enumerate().map(value).collect();
        }
    }
    w
}

/// The weights' arguments: codes, then scales where the type has any.
fn with_weights(call: Call, matrix_type: MatrixType, w: &Weights) -> Call {
    let call = call.buffer(&w.codes);
    match matrix_type {
        MatrixType::Bf16 => call,
        MatrixType::E4m3 => call.buffer(&w.block_scales),
        MatrixType::Mxfp4 => call.buffer(&w.exponents),
    }
}

struct Case {
    matrix_type: MatrixType,
    rows: usize,
    n: usize,
    k: usize,
    /// Multiprocessors, by which it is decided whether to split.
    processors: usize,
}

/// Multiplies into bf16, and into f32; both are those of the reference. Gives the splits.
fn check(program: &Program, case: &Case) -> usize {
    let &Case { matrix_type, rows, n, k, processors } = case;
    let processors = Processors { count: processors, shared_bytes: 228 << 10 };
    let plan = MatmulPlan::new(processors, matrix_type, n, k);
    let x = rounded(rows * k, 30);
    let w = weights(matrix_type, n, k, 31);
    let want = reference::matmul(&x, &w.values, k);
    let what = format!("{matrix_type:?} T{rows} K{k} N{n}, {} splits", plan.splits);
    let arguments =
        MatmulArguments { tokens: rows as u32, n: n as u32, k: k as u32, steps: plan.steps as u32 };
    let out = vec![7u16; rows * n];
    let product =
        |call: Call| with_weights(call.buffer(&narrow(&x)), matrix_type, &w).value(arguments);
    let call = || Call::new(matrix_type.matmul().unwrap(), plan.launch);
    let parts = vec![f32::NAN; plan.splits * rows * n];
    let parts = program.run(&[product(call().null().buffer(&parts))]).remove(0).remove(0);
    let merge = |call: Call| {
        call.buffer(&parts).value(plan.splits as u32).value(rows as u32).value(n as u32)
    };
    let merged = || Call::new("matmul_merge", Launch::matmul_merge(rows, n));
    let got = program.run(&[
        merge(merged().buffer(&out).null()),
        merge(merged().null().buffer(&vec![f32::NAN; rows * n])),
    ]);
    check_close(&widen(&got[0][0]), &want, BF16_ROUNDING, &what);
    check_close(&elements::<f32>(&got[1][0]), &want, F32_SUMS, &what);
    if plan.splits == 1 {
        let whole = program.run(&[product(call().buffer(&out).null())]);
        assert_eq!(whole[0][0], got[0][0], "{what}: merging one part only narrows it");
    }
    plan.splits
}

const SKINNY: [MatrixType; 2] = [MatrixType::Bf16, MatrixType::E4m3];

#[test]
fn few_rows_are_multiplied_as_the_reference_does() {
    let Some(program) = Program::compile("matmul") else { return };
    for matrix_type in SKINNY {
        for rows in ROWS.into_iter().filter(|rows| *rows <= ROWS_MAX) {
            check(&program, &Case { matrix_type, rows, n: 72, k: 208, processors: 1 });
        }
        for n in [8, 56, 64, 136, 200] {
            check(&program, &Case { matrix_type, rows: 3, n, k: 208, processors: 1 });
        }
        for pieces in [1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 65, 129] {
            let k = pieces * matrix_type.piece();
            check(&program, &Case { matrix_type, rows: 9, n: 24, k, processors: 1 });
        }
    }
}

#[test]
fn sums_that_blocks_divide_are_the_same_sums() {
    let Some(program) = Program::compile("matmul") else { return };
    for matrix_type in SKINNY {
        for (pieces, splits) in [(8 * 23, 1), (8 * 24, 2), (8 * 36 + 1, 3)] {
            let k = pieces * matrix_type.piece();
            let case = Case { matrix_type, rows: 5, n: 72, k, processors: 132 };
            assert_eq!(check(&program, &case), splits, "{matrix_type:?} K{k}");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    let Some(program) = Program::compile("matmul") else { return };
    let (n, k) = (72, 264);
    let processors = Processors { count: 132, shared_bytes: 228 << 10 };
    let plan = MatmulPlan::new(processors, MatrixType::Bf16, n, k);
    let (x, w) = (rounded(ROWS_MAX * k, 32), weights(MatrixType::Bf16, n, k, 33));
    let product = |rows: std::ops::Range<usize>| {
        let steps = plan.steps as u32;
        let arguments =
            MatmulArguments { tokens: rows.len() as u32, n: n as u32, k: k as u32, steps };
        let call = Call::new("matmul_bf16", plan.launch)
            .buffer(&vec![7u16; rows.len() * n])
            .null()
            .buffer(&narrow(&x[rows.start * k..rows.end * k]));
        let got = program.run(&[with_weights(call, MatrixType::Bf16, &w).value(arguments)]);
        elements::<u16>(&got[0][0])
    };
    let together = product(0..ROWS_MAX);
    for row in [0, 7, 8, 15] {
        assert_eq!(product(row..row + 1), together[row * n..(row + 1) * n], "row {row}");
    }
}

/// Rows that each expert gets; one row more is another rank's.
fn check_experts(program: &Program, matrix_type: MatrixType, counts: &[usize], n: usize, k: usize) {
    let experts = counts.len();
    let mut offsets = vec![0u32];
    counts.iter().for_each(|count| offsets.push(offsets[offsets.len() - 1] + *count as u32));
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
        let call = Call::new(matrix_type.expert_matmul(), Launch::expert_matmul(experts, n))
            .buffer(&vec![7u16; (sent + 1) * n])
            .buffer(&narrow(&x));
        let call = with_weights(call, matrix_type, &all).optional(biases);
        let got = program.run(&[call.buffer(&offsets).value(n as u32).value(k as u32)]);
        let what = format!("{matrix_type:?} {counts:?} K{k} N{n}, biases {}", biases.is_some());
        let mut want = Vec::new();
        for (expert, w) in each.iter().enumerate() {
            let rows = &x[offsets[expert] as usize * k..offsets[expert + 1] as usize * k];
            let mut product = reference::matmul(rows, &w.values, k);
            if let Some(biases) = biases {
                let bias = biases[expert * n..(expert + 1) * n].iter().cycle();
                product.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            }
            want.extend(product);
        }
        check_close(&widen(&got[0][0])[..sent * n], &want, BF16_ROUNDING, &what);
        let rest = &elements::<u16>(&got[0][0])[sent * n..];
        assert!(rest.iter().all(|x| *x == 7), "{what}: rows of other ranks stay");
    }
}

#[test]
fn rows_are_multiplied_by_the_weights_of_their_expert() {
    let Some(program) = Program::compile("expert_matmul") else { return };
    for matrix_type in [MatrixType::Bf16, MatrixType::E4m3, MatrixType::Mxfp4] {
        let piece = matrix_type.piece();
        for (counts, n, pieces) in [
            (&[1][..], 8, 1),
            (&[0, 3, 0, 16, 17, 0], 72, 9),
            (&[33, 1], 64, 8),
            (&[2, 0, 9], 136, 35),
        ] {
            check_experts(&program, matrix_type, counts, n, pieces * piece);
        }
    }
}
