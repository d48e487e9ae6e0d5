//! Tests of the tiled GEMM kernels for many rows: every weight format, and grouped by expert.

use super::matmul::F32_SUMS;
use super::weights::{ExpertCase, Weights, weights, with_weights};
use super::*;
use crate::launch::Processors;
use crate::launch::matmul::MatrixType;

/// Multiprocessors of a GPU on which two or four blocks of a tiled kernel run at once, depending on
/// the weight format.
const PROCESSORS: Processors =
    Processors { count: 2, shared_bytes: 228 << 10, has_warpgroups: false };

/// The same multiprocessors with warpgroup multiplication.
const HOPPER: Processors = Processors { has_warpgroups: true, ..PROCESSORS };

/// Multiplies the rows of `x` with `w` by a tiled GEMM kernel, and returns the result in bf16 and
/// that in f32.
fn multiply(
    program: &Program,
    matrix_type: MatrixType,
    x: &[f32],
    w: &Weights,
    n: usize,
    k: usize,
) -> (Vec<u16>, Vec<f32>) {
    let rows = x.len() / k;
    let launch = Launch::tile_matmul(PROCESSORS, matrix_type, rows, n);
    let call = || Call::new(matrix_type.tile_matmul().unwrap(), launch);
    let matmul = |call: Call| {
        let call = with_weights(call.buffer(&narrow(x)), matrix_type, w);
        call.value(rows as u32).value(n as u32).value(k as u32)
    };
    let got = program.run(&[
        matmul(call().buffer(&vec![7u16; rows * n]).null()),
        matmul(call().null().buffer(&vec![f32::NAN; rows * n])),
    ]);
    (elements(&got[0][0]), elements(&got[1][0]))
}

fn check(program: &Program, matrix_type: MatrixType, rows: usize, n: usize, k: usize) {
    let (x, w) = (rounded(rows * k, 40), weights(matrix_type, n, k, 41));
    let want = reference::matmul(&x, &w.values, k);
    let (short, wide) = multiply(program, matrix_type, &x, &w, n, k);
    let what = format!("{matrix_type:?} T{rows} K{k} N{n}");
    check_close(&wide, &want, F32_SUMS, &what);
    assert_eq!(short, narrow(&wide), "{what}: bf16 is the sums, rounded");
}

const TYPES: [MatrixType; 2] = [MatrixType::Bf16, MatrixType::E4m3];

#[test]
fn many_rows_are_multiplied_as_the_reference_does() {
    let Some(program) = Program::compile("tile_matmul") else { return };
    check_sizes(&program);
    // More row tiles than a band has, on few blocks.
    check(&program, MatrixType::Bf16, 17 * 128 + 1, 136, 8);
}

#[test]
fn warpgroups_multiply_many_rows_as_the_reference_does() {
    let Some(program) = Program::compile("tile_matmul_sm90") else { return };
    check_sizes(&program);
}

fn check_sizes(program: &Program) {
    for matrix_type in TYPES {
        for rows in [1, 15, 16, 17, 63, 64, 65, 127, 128, 129] {
            check(program, matrix_type, rows, 40, 80);
        }
        for n in [8, 120, 128, 136, 264] {
            check(program, matrix_type, 20, n, 80);
        }
        for pieces in [1, 3, 4, 5, 7, 8, 9, 16, 17, 24, 25, 33] {
            check(program, matrix_type, 9, 24, pieces * matrix_type.piece());
        }
    }
}

#[test]
fn a_row_of_a_tile_has_the_same_bits_in_any_company() {
    let Some(program) = Program::compile("tile_matmul") else { return };
    let (n, k) = (72, 272);
    for matrix_type in TYPES {
        let (x, w) = (rounded(130 * k, 42), weights(matrix_type, n, k, 43));
        let (_, together) = multiply(&program, matrix_type, &x, &w, n, k);
        for row in [0, 77, 129] {
            let own = &x[row * k..(row + 1) * k];
            let (_, alone) = multiply(&program, matrix_type, own, &w, n, k);
            assert_eq!(alone, together[row * n..(row + 1) * n], "{matrix_type:?} row {row}");
        }
    }
}

#[test]
fn many_rows_are_multiplied_by_the_weights_of_their_expert() {
    let types = [MatrixType::Bf16, MatrixType::E4m3, MatrixType::Mxfp4];
    check_experts("grouped_matmul", PROCESSORS, &types);
}

#[test]
fn warpgroups_multiply_rows_by_the_weights_of_their_expert() {
    check_experts("grouped_matmul_sm90", HOPPER, &TYPES);
    check_experts("grouped_matmul_mxfp4_sm90", HOPPER, &[MatrixType::Mxfp4]);
}

fn check_experts(name: &str, processors: Processors, types: &[MatrixType]) {
    let Some(program) = Program::compile(name) else { return };
    for matrix_type in types.iter().copied() {
        let piece = matrix_type.piece();
        let many: Vec<usize> = (0..70).map(|expert| expert % 3).collect();
        for (counts, n, pieces) in [
            (&[1][..], 8, 1),
            (&[0, 0, 0], 8, 1),
            (&[0, 3, 0, 16, 65, 0], 72, 9),
            (&[17, 64, 33], 200, 6),
            (&[130, 1], 136, 8),
            (&[2, 0, 9], 264, 17),
            (&many, 8, 4),
        ] {
            let case = ExpertCase { matrix_type, counts, n, k: pieces * piece };
            let launch = Launch::grouped_matmul(processors, matrix_type);
            let call = Call::new(matrix_type.grouped_matmul(), launch);
            case.check(&program, &call, |call| call.value(counts.len() as u32));
        }
    }
}
