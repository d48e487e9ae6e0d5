//! Tests of the matrix multiplication kernels for few rows: every weight format, split-K, and by
//! expert.

use super::weights::{ExpertCase, weights, with_weights};
use super::*;
use crate::launch::Processors;
use crate::launch::matmul::{MatmulPlan, MatrixType, ROWS_MAX};

/// Relative error bound of matrix multiplications with f32 accumulation.
pub(super) const F32_SUMS: f32 = 1e-5;

/// Sizes and weight format of one matrix multiplication whose result is compared with the
/// reference.
struct Case {
    matrix_type: MatrixType,
    rows: usize,
    n: usize,
    k: usize,
    /// Number of multiprocessors of the GPU that the launch is for, which decides whether K is
    /// split.
    processors: usize,
}

/// Computes a case with a result in bf16 and in f32, compares both with the reference, and returns
/// the number of splits of K.
fn check(program: &Program, case: &Case) -> usize {
    let &Case { matrix_type, rows, n, k, processors } = case;
    let processors =
        Processors { count: processors, shared_bytes: 228 << 10, has_warpgroups: false };
    let plan = MatmulPlan::new(processors, matrix_type, n, k);
    let x = rounded(rows * k, 30);
    let w = weights(matrix_type, n, k, 31);
    let want = reference::matmul(&x, &w.values, k);
    let what = format!("{matrix_type:?} T{rows} K{k} N{n}, {} splits", plan.splits);
    let arguments = [rows, n, k, plan.steps].map(|size| size as u32);
    let out = vec![7u16; rows * n];
    let matmul =
        |call: Call| with_weights(call.buffer(&narrow(&x)), matrix_type, &w).value(arguments);
    let call = || Call::new(matrix_type.matmul().unwrap(), plan.launch);
    let parts = vec![f32::NAN; plan.splits * rows * n];
    let parts = program.run(&[matmul(call().null().buffer(&parts))]).remove(0).remove(0);
    let merge = |call: Call| {
        call.buffer(&parts).value(plan.splits as u32).value(rows as u32).value(n as u32)
    };
    let merged = || Call::new("matmul_merge", Launch::elements(rows, n));
    let got = program.run(&[
        merge(merged().buffer(&out).null()),
        merge(merged().null().buffer(&vec![f32::NAN; rows * n])),
    ]);
    check_close(&widen(&got[0][0]), &want, BF16_ROUNDING, &what);
    check_close(&elements::<f32>(&got[1][0]), &want, F32_SUMS, &what);
    if plan.splits == 1 {
        let whole = program.run(&[matmul(call().buffer(&out).null())]);
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
    let processors = Processors { count: 132, shared_bytes: 228 << 10, has_warpgroups: false };
    let plan = MatmulPlan::new(processors, MatrixType::Bf16, n, k);
    let (x, w) = (rounded(ROWS_MAX * k, 32), weights(MatrixType::Bf16, n, k, 33));
    let matmul = |rows: std::ops::Range<usize>| {
        let arguments = [rows.len(), n, k, plan.steps].map(|size| size as u32);
        let call = Call::new("matmul_bf16", plan.launch)
            .buffer(&vec![7u16; rows.len() * n])
            .null()
            .buffer(&narrow(&x[rows.start * k..rows.end * k]));
        let got = program.run(&[with_weights(call, MatrixType::Bf16, &w).value(arguments)]);
        elements::<u16>(&got[0][0])
    };
    let together = matmul(0..ROWS_MAX);
    for row in [0, 7, 8, 15] {
        assert_eq!(matmul(row..row + 1), together[row * n..(row + 1) * n], "row {row}");
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
            let case = ExpertCase { matrix_type, counts, n, k: pieces * piece };
            let launch = Launch::expert_matmul(counts.len(), n);
            case.check(&program, &Call::new(matrix_type.expert_matmul(), launch), |call| call);
        }
    }
}
