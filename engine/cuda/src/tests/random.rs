//! Tests of random weights that the device generates: they have the same bits as those of the CPU.

use std::sync::Arc;

use super::weights::mxfp4_piece;
use super::*;
use crate::Cuda;
use crate::driver::{Driver, Pinned};
use crate::emulated::Emulated;
use crate::weights::Matrix;
use engine_core::{Device, HostMatrix, RandomRows, RowOrder, WeightType};
use engine_weights::random;

#[test]
fn random_weights_have_the_bits_of_those_of_the_cpu() {
    let Some(program) = Program::compile("random") else { return };
    let (rows, cols, seed, name) = (6, 24, 7, "model.layers.3.mlp.up_proj.weight");
    let whole = random::tensor(seed, name, WeightType::Bf16, &[rows, cols]);
    let whole = elements::<u16>(&whole.bytes);
    // The whole tensor, some rows, and some columns of all rows.
    for (row, column, own_rows, own_cols) in [(0, 0, 6, 24), (2, 0, 3, 24), (0, 4, 6, 8)] {
        let call = Call::new("random_bf16", Launch::elements(own_rows, own_cols))
            .buffer(&vec![7u16; own_rows * own_cols])
            .value(random::stream_start(seed, name))
            .value((row * cols + column) as u64)
            .value(cols as u64)
            .value(own_rows as u64)
            .value(own_cols as u32)
            .value(random::BF16_FACTOR);
        let own = |i: usize| whole[(row + i / own_cols) * cols + column + i % own_cols];
        let want: Vec<u16> = (0..own_rows * own_cols).map(own).collect();
        let what = format!("{own_rows} rows of {own_cols} from {row}, {column}");
        assert_eq!(elements::<u16>(&program.run(&[call])[0][0]), want, "{what}");
    }
}

#[test]
fn random_mxfp4_has_the_bits_of_that_of_the_cpu() {
    let Some(program) = Program::compile("random") else { return };
    // A row has 261 blocks of 32 weights: more than a launch's block has threads, and one more than
    // whole groups of four scales.
    let (rows, blocks, seed, name) = (6, 261, 7, "model.layers.3.mlp.experts.gate_up_proj.2");
    let whole = random::tensor(seed, name, WeightType::Mxfp4, &[rows, 32 * blocks]);
    let whole: Vec<&[u8]> = whole.bytes.chunks_exact(WeightType::Mxfp4.block_bytes()).collect();
    assert!([119, 120].map(|scale| whole.iter().any(|block| block[0] == scale)) == [true; 2]);
    // The whole tensor, some rows, every other row, and some columns of all rows or of one.
    for (row, step, first, own_rows, own_blocks) in
        [(0, 1, 0, 6, 261), (2, 1, 0, 3, 261), (1, 2, 0, 3, 261), (0, 1, 2, 6, 5), (5, 1, 3, 1, 4)]
    {
        // The launch writes the first rows of a matrix of `n` rows, and leaves the others.
        let (n, scales) = (own_rows + 2, usize::next_multiple_of(own_blocks, 4));
        let mut want = [Vec::new(), vec![7u8; scales * n]];
        for own_row in 0..own_rows {
            let from = (row + own_row * step) * blocks + first;
            for (i, block) in whole[from..from + own_blocks].iter().enumerate() {
                let codes = [0, 4].map(|bits| block[1..].iter().map(move |x| x >> bits & 15));
                want[0].extend(mxfp4_piece(&codes.into_iter().flatten().collect::<Vec<u8>>()));
                want[1][(i / 4 * n + own_row) * 4 + i % 4] = block[0];
            }
            for i in own_blocks..scales {
                want[1][(i / 4 * n + own_row) * 4 + i % 4] = 0;
            }
        }
        let call = Call::new("random_mxfp4", Launch::scalars(own_rows, scales))
            .buffer(&vec![7u8; want[0].len()])
            .buffer(&vec![7u8; want[1].len()])
            .value(random::stream_start(seed, name))
            .value(32 * (row * blocks + first) as u64)
            .value(32 * (step * blocks) as u64)
            .value(n as u32)
            .value(32 * own_blocks as u32)
            .value(u32::from(random::MXFP4_SCALE));
        let what = format!("{own_rows} rows of {own_blocks} from {row}, {first}, by {step}");
        assert!(program.run(&[call])[0] == want, "{what}");
    }
}

/// Seed and name of the random tensors that the tests of whole matrices load.
const TENSOR: (u64, &str) = (7, "x");

/// Returns the content of the device memory of `matrix`: its weights, then its scales.
fn download(driver: &Arc<dyn Driver>, matrix: &Matrix) -> Vec<u8> {
    let (weights, scales) = matrix.bytes();
    let mut host = Pinned::new(driver, weights + scales).unwrap();
    host.download(0, matrix.weights.address(), weights).unwrap();
    if scales > 0 {
        host.download(weights, matrix.scales.address(), scales).unwrap();
    }
    host.bytes().to_vec()
}

#[test]
fn matrices_that_the_device_makes_are_those_of_the_host() {
    let Some(gpu) = Emulated::new(1 << 24) else { return };
    let driver: Arc<dyn Driver> = Arc::clone(&gpu) as _;
    let mut device = Cuda::new(Arc::clone(&driver));
    let ((seed, name), stored) = (TENSOR, 24);
    let start = random::stream_start(seed, name);
    // 42 rows of bf16 are padded. Rows of 160 weights in MXFP4 have five scales and three zeros.
    for (weight_type, k, some) in [(WeightType::Bf16, 16, 21), (WeightType::Mxfp4, 160, 20)] {
        let whole = random::tensor(seed, name, weight_type, &[stored, k]);
        for (order, n, row, launches) in [
            (RowOrder::AsStored, some, 3, 1),
            (RowOrder::HeadPairs { head_dim: 4, second: true }, 12, 0, 3),
            (RowOrder::RopePairs { head_dim: 8 }, 24, 0, 6),
            (RowOrder::Interleaved { half: 12 }, 24, 0, 2),
        ] {
            let what = format!("{weight_type:?}, {order:?}");
            let rows = RandomRows { start, stride: k, row, column: 0, n, order };
            let bytes = &whole.bytes[weight_type.row_bytes(k) * row..];
            let host = || HostMatrix { weight_type, n, k, bytes, order };
            let before = gpu.launches();
            let made = device.random_matrix(weight_type, &[rows, rows], k).unwrap().unwrap();
            assert_eq!(gpu.launches() - before, 2 * launches, "{what}");
            let sent = device.matrix(&[host(), host()]).unwrap();
            assert_eq!((made.matrix_type, made.n), (sent.matrix_type, sent.n), "{what}");
            assert_eq!((made.padding, made.k), (sent.padding, sent.k), "{what}");
            assert!(download(&driver, &made) == download(&driver, &sent), "{what}");
        }
    }
}

#[test]
fn columns_that_the_device_makes_are_those_of_the_host() {
    let Some(gpu) = Emulated::new(1 << 24) else { return };
    let driver: Arc<dyn Driver> = gpu;
    let mut device = Cuda::new(Arc::clone(&driver));
    let ((seed, name), n, order) = (TENSOR, 24, RowOrder::AsStored);
    let start = random::stream_start(seed, name);
    for (weight_type, stride, column, k) in
        [(WeightType::Bf16, 16, 4, 8), (WeightType::Mxfp4, 288, 96, 160)]
    {
        let whole = random::tensor(seed, name, weight_type, &[n, stride]);
        let of = |columns| weight_type.row_bytes(columns);
        let rows = whole.bytes.chunks_exact(of(stride));
        let bytes: Vec<u8> =
            rows.flat_map(|row| &row[of(column)..of(column + k)]).copied().collect();
        let sent =
            device.matrix(&[HostMatrix { weight_type, n, k, bytes: &bytes, order }]).unwrap();
        let rows = RandomRows { start, stride, row: 0, column, n, order };
        let made = device.random_matrix(weight_type, &[rows], k).unwrap().unwrap();
        assert!(download(&driver, &made) == download(&driver, &sent), "{weight_type:?}");
    }
}

#[test]
fn matrices_that_no_kernel_makes_are_left_to_the_host() {
    let Some(gpu) = Emulated::new(1 << 24) else { return };
    let mut device = Cuda::new(gpu);
    let mut is_made = |weight_type, n, stride, column, k| {
        let rows = RandomRows { start: 1, stride, row: 0, column, n, order: RowOrder::AsStored };
        device.random_matrix(weight_type, &[rows], k).unwrap().is_some()
    };
    let [bf16, mxfp4] = [WeightType::Bf16, WeightType::Mxfp4];
    assert!(is_made(bf16, 9, 16, 4, 8) && is_made(mxfp4, 8, 64, 32, 32));
    assert!(!is_made(bf16, 9, 16, 2, 8), "a column within a word of the stream");
    assert!(!is_made(bf16, 9, 18, 4, 8), "rows that begin within a word of the stream");
    assert!(!is_made(bf16, 9, 16, 4, 12), "rows that do not end with a piece");
    assert!(!is_made(mxfp4, 8, 64, 16, 32), "a column within a block");
    assert!(!is_made(mxfp4, 8, 80, 32, 32), "rows that begin within a block");
    assert!(!is_made(mxfp4, 8, 64, 0, 48), "rows that end within a block");
    assert!(!is_made(mxfp4, 9, 64, 32, 32), "rows that need padding");
    assert!(!is_made(WeightType::F8E4M3, 8, 64, 32, 32), "another format");
}
