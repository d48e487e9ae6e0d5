//! Random weights, those of the CPU.

use super::*;
use crate::weights::WeightType;
use crate::weights::random;

#[test]
fn random_weights_have_the_bits_of_those_of_the_cpu() {
    let Some(program) = Program::compile("random") else { return };
    let (rows, cols, seed, name) = (6, 24, 7, "model.layers.3.mlp.up_proj.weight");
    let whole = random::tensor(seed, name, WeightType::Bf16, &[rows, cols]);
    let whole = elements::<u16>(&whole.bytes);
    // All of it, some rows, and some columns of all.
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
