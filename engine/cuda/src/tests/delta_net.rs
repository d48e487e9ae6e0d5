//! Tests of the gated-delta-net kernels, with sequences in one step and in several, against the
//! reference.

use super::*;
use crate::launch::delta_net::{DeltaNetArguments, SequenceArguments, entry};
use engine_core::{DeltaNetLayer, DeltaNetShape};

const NOWHERE: u32 = SequenceArguments::NOWHERE;

fn layer(shape: DeltaNetShape) -> DeltaNetLayer<Vec<f32>> {
    DeltaNetLayer {
        shape,
        index: 0,
        conv: numbers(shape.taps * shape.conv_cols(), 50),
        rate: numbers(shape.value_heads, 51).iter().map(|x| -0.3 - 0.2 * x).collect(),
        bias: numbers(shape.value_heads, 52),
        // Large norm weights make large results, compared with which the error bound is small.
        norm: numbers(shape.value_dim, 53).iter().map(|x| 16.0 + 8.0 * x).collect(),
        epsilon: 1e-6,
    }
}

/// Gated-delta-net kernel by which a sequence's rows are computed: row by row, or in chunks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rows {
    OneByOne,
    InChunks,
}

impl Rows {
    /// Returns the relative error bound of the kernel's results. The chunked kernel multiplies in
    /// TF32, and the norm's weights enlarge its rounding.
    fn bound(self) -> f32 {
        if self == Self::OneByOne { BF16_ROUNDING } else { 4.0 * BF16_ROUNDING }
    }
}

/// Gated-delta-net kernels under test, with the recurrent states that they pass from step to step.
struct Net {
    rows: Rows,
    program: Program,
    history: Program,
    layer: DeltaNetLayer<Vec<f32>>,
    /// Content of all state slots, as bytes.
    states: Vec<u8>,
}

impl Net {
    /// Compiles the kernels and creates state slots filled with NaN; `None` where no compiler is
    /// installed.
    fn new(rows: Rows, shape: DeltaNetShape, slots: usize) -> Option<Self> {
        let name = if rows == Rows::OneByOne { "delta_net" } else { "delta_net_chunks" };
        let program = Program::compile(name)?;
        let history = Program::compile("delta_net")?;
        let states = vec![0xff; slots * 4 * stride(&shape)];
        Some(Self { rows, program, history, layer: layer(shape), states })
    }

    /// Runs one step of the gated delta net and returns its results.
    fn step(&mut self, projected: &[f32], sequences: &[SequenceArguments]) -> Vec<f32> {
        let DeltaNetLayer { shape, conv, rate, bias, norm, epsilon, .. } = &self.layer;
        let DeltaNetShape { key_heads, value_heads, key_dim, value_dim, taps } = *shape;
        let rows = projected.len() / shape.cols();
        let arguments = DeltaNetArguments {
            key_heads: key_heads as u32,
            value_heads: value_heads as u32,
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
            taps: taps as u32,
            slot_stride: stride(shape) as u32,
            epsilon: *epsilon,
        };
        let layer = [&conv[..], rate, bias, norm].concat();
        let net = match self.rows {
            Rows::OneByOne => Call::new(entry(shape), Launch::delta_net(shape, sequences.len())),
            Rows::InChunks => {
                Call::new("delta_net_chunks", Launch::delta_net_chunks(shape, sequences.len()))
            }
        };
        let net = net
            .buffer(&vec![7u16; rows * value_heads * value_dim])
            .buffer(&self.states)
            .buffer(&narrow(projected))
            .buffer(sequences)
            .buffer(&layer)
            .value(arguments);
        let mut done = self.program.run(&[net]).remove(0);
        let history =
            Call::new("delta_net_history", Launch::delta_net_history(shape, sequences.len()))
                .buffer(&done[1])
                .buffer(&narrow(projected))
                .buffer(sequences)
                .value(arguments);
        self.states = self.history.run(&[history]).remove(0).remove(0);
        widen(&done.swap_remove(0))
    }
}

/// Returns the number of f32 elements of a state slot: those of the tested layer, and some of
/// another layer behind them.
fn stride(shape: &DeltaNetShape) -> usize {
    shape.state_elements() + 24
}

fn sequence(row: usize, rows: usize, position: usize, slot: u32) -> SequenceArguments {
    let (row, rows, position) = (row as u32, rows as u32, position as u32);
    SequenceArguments { row, rows, position, slot, load: NOWHERE, save: NOWHERE }
}

const SHAPE: DeltaNetShape =
    DeltaNetShape { key_heads: 1, value_heads: 2, key_dim: 64, value_dim: 32, taps: 4 };

#[test]
fn sequences_are_those_of_the_reference_however_they_are_cut() {
    let narrow_heads = DeltaNetShape { key_heads: 2, key_dim: 32, value_dim: 64, taps: 2, ..SHAPE };
    let small_heads = DeltaNetShape { key_dim: 16, value_dim: 16, ..SHAPE };
    let wide_heads = DeltaNetShape { key_dim: 128, value_dim: 128, taps: 8, ..SHAPE };
    for (way, shape, cuts) in [
        (Rows::OneByOne, SHAPE, &[5, 1, 1, 2, 1, 3][..]),
        (Rows::OneByOne, small_heads, &[3, 1, 2]),
        (Rows::OneByOne, narrow_heads, &[1, 2, 1]),
        (Rows::OneByOne, wide_heads, &[1, 4]),
        (Rows::InChunks, SHAPE, &[1, 16, 33, 47]),
        (Rows::InChunks, narrow_heads, &[31, 2]),
        (Rows::InChunks, wide_heads, &[34]),
    ] {
        let Some(mut net) = Net::new(way, shape, 2) else { return };
        let rows: usize = cuts.iter().sum();
        let projected = rounded(rows * shape.cols(), 54);
        let want = reference::delta_net(&projected, &net.layer);
        let (mut got, mut position) = (Vec::new(), 0);
        for cut in cuts.iter().copied() {
            let from = &projected[position * shape.cols()..(position + cut) * shape.cols()];
            got.extend(net.step(from, &[sequence(0, cut, position, 1)]));
            position += cut;
        }
        check_close(&got, &want, way.bound(), &format!("{way:?} {shape:?}, cut into {cuts:?}"));
    }
}

#[test]
fn sequences_of_one_step_keep_apart_and_are_loaded_and_saved() {
    check_slots(Rows::OneByOne);
    check_slots(Rows::InChunks);
}

fn check_slots(way: Rows) {
    let Some(mut net) = Net::new(way, SHAPE, 5) else { return };
    let (cols, out_cols) = (SHAPE.cols(), SHAPE.value_heads * SHAPE.value_dim);
    let sequences = [rounded(6 * cols, 55), rounded(6 * cols, 56)];
    let want: Vec<Vec<f32>> =
        sequences.iter().map(|rows| reference::delta_net(rows, &net.layer)).collect();
    // The first sequence is saved to slot 4 after four rows; the second has three rows in slot 1.
    let first = [&sequences[0][..4 * cols], &sequences[1][..3 * cols]].concat();
    let both = [SequenceArguments { save: 4, ..sequence(0, 4, 0, 0) }, sequence(4, 3, 0, 1)];
    let got = net.step(&first, &both);
    check_close(&got[..4 * out_cols], &want[0][..4 * out_cols], way.bound(), "the first");
    check_close(&got[4 * out_cols..], &want[1][..3 * out_cols], way.bound(), "the second");
    // The saved state continues in slot 3 while the first sequence continues in its own slot.
    let second =
        [&sequences[0][4 * cols..], &sequences[1][3 * cols..], &sequences[0][4 * cols..]].concat();
    let loaded = SequenceArguments { load: 4, ..sequence(5, 2, 4, 3) };
    let got = net.step(&second, &[sequence(0, 2, 4, 0), sequence(2, 3, 3, 1), loaded]);
    check_close(&got[..2 * out_cols], &want[0][4 * out_cols..], way.bound(), "the first");
    check_close(&got[2 * out_cols..5 * out_cols], &want[1][3 * out_cols..], way.bound(), "second");
    assert_eq!(got[5 * out_cols..], got[..2 * out_cols], "what was saved goes on as it did");
    let slot = |slot: usize| &net.states[slot * 4 * stride(&SHAPE)..][..4 * stride(&SHAPE)];
    assert_eq!(slot(3), slot(0), "both end in one state");
    assert!(slot(2).iter().all(|byte| *byte == 0xff), "a slot that no sequence has stays");
    let behind = &slot(0)[4 * SHAPE.state_elements()..];
    assert!(behind.iter().all(|byte| *byte == 0xff), "what lies behind the layer's state stays");
}
