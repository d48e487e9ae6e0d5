//! Test of random weights that the device generates: they have the same bits as those of the CPU.

use std::sync::Arc;

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
fn matrices_that_the_device_makes_are_those_of_the_host() {
    let Some(gpu) = Emulated::new(1 << 24) else { return };
    let driver: Arc<dyn Driver> = gpu;
    let mut device = Cuda::new(Arc::clone(&driver));
    let (stored, k, seed, name) = (24, 16, 7, "x");
    let (weight_type, start) = (WeightType::Bf16, random::stream_start(seed, name));
    let whole = random::tensor(seed, name, weight_type, &[stored, k]);
    let bytes = |matrix: &Matrix| {
        let mut host = Pinned::new(&driver, matrix.bytes().0).unwrap();
        host.download(0, matrix.weights.address(), matrix.bytes().0).unwrap();
        host.bytes().to_vec()
    };
    for (order, n, row) in [
        (RowOrder::AsStored, 21, 3),
        (RowOrder::HeadPairs { head_dim: 4, second: true }, 12, 0),
        (RowOrder::RopePairs { head_dim: 8 }, 24, 0),
        (RowOrder::Interleaved { half: 12 }, 24, 0),
    ] {
        let rows = RandomRows { start, stride: k, row, column: 0, n, order };
        let host = || HostMatrix { weight_type, n, k, bytes: &whole.bytes[2 * k * row..], order };
        let made = device.random_matrix(&[rows, rows], k).unwrap().unwrap();
        let sent = device.matrix(&[host(), host()]).unwrap();
        assert_eq!((made.n, made.padding), (sent.n, sent.padding));
        assert!(bytes(&made) == bytes(&sent), "{order:?}");
    }
    let mut columns = |column| {
        let order = RowOrder::AsStored;
        let rows = RandomRows { start, stride: k, row: 0, column, n: stored, order };
        device.random_matrix(&[rows], 8).unwrap()
    };
    let own = whole.bytes.chunks_exact(2 * k).flat_map(|row| row[8..24].to_vec());
    assert!(bytes(&columns(4).unwrap()) == own.collect::<Vec<u8>>(), "columns from the fourth");
    assert!(columns(2).is_none(), "a word of the stream is not cut");
}
