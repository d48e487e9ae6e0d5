//! Gated DeltaNet, sequences whole and cut into steps, against the reference.

use super::*;
use crate::device::cuda::launch::delta_net::{DeltaNetArguments, StateSpan};
use crate::device::{DeltaNetLayer, DeltaNetShape};

const NOWHERE: u32 = StateSpan::NOWHERE;

fn layer(shape: DeltaNetShape) -> DeltaNetLayer<Vec<f32>> {
    DeltaNetLayer {
        shape,
        index: 0,
        conv: numbers(shape.taps * shape.conv_cols(), 50),
        rate: numbers(shape.value_heads, 51).iter().map(|x| -0.3 - 0.2 * x).collect(),
        bias: numbers(shape.value_heads, 52),
        // So large that results are, beside which the bound is small.
        norm: numbers(shape.value_dim, 53).iter().map(|x| 16.0 + 8.0 * x).collect(),
        epsilon: 1e-6,
    }
}

/// The kernels, and the states that they share from step to step.
struct Net {
    program: Program,
    layer: DeltaNetLayer<Vec<f32>>,
    /// Bytes of every place.
    states: Vec<u8>,
}

impl Net {
    /// Places that nobody wrote hold no numbers.
    fn new(shape: DeltaNetShape, places: usize) -> Option<Self> {
        let program = Program::compile("delta_net")?;
        Some(Self { program, layer: layer(shape), states: vec![0xff; places * 4 * stride(&shape)] })
    }

    /// One step over `rows`; gives its results.
    fn step(&mut self, projected: &[f32], spans: &[StateSpan]) -> Vec<f32> {
        let DeltaNetLayer { shape, conv, rate, bias, norm, epsilon, .. } = &self.layer;
        let DeltaNetShape { key_heads, value_heads, key_dim, value_dim, taps } = *shape;
        let rows = projected.len() / shape.cols();
        let arguments = DeltaNetArguments {
            key_heads: key_heads as u32,
            value_heads: value_heads as u32,
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
            taps: taps as u32,
            place_stride: stride(shape) as u32,
            epsilon: *epsilon,
        };
        let layer = [&conv[..], rate, bias, norm].concat();
        let net = Call::new("delta_net", Launch::delta_net(shape, spans.len()))
            .buffer(&vec![7u16; rows * value_heads * value_dim])
            .buffer(&self.states)
            .buffer(&narrow(projected))
            .buffer(spans)
            .buffer(&layer)
            .value(arguments);
        let mut done = self.program.run(&[net]).remove(0);
        let history = Call::new("delta_net_history", Launch::delta_net_history(shape, spans.len()))
            .buffer(&done[1])
            .buffer(&narrow(projected))
            .buffer(spans)
            .value(arguments);
        self.states = self.program.run(&[history]).remove(0).remove(0);
        widen(&done.swap_remove(0))
    }
}

/// Elements of a place: those of the layer, and what another layer has behind them.
fn stride(shape: &DeltaNetShape) -> usize {
    shape.state_elements() + 24
}

fn span(row: usize, rows: usize, position: usize, place: u32) -> StateSpan {
    let (row, rows, position) = (row as u32, rows as u32, position as u32);
    StateSpan { row, rows, position, place, load: NOWHERE, save: NOWHERE }
}

const SHAPE: DeltaNetShape =
    DeltaNetShape { key_heads: 1, value_heads: 2, key_dim: 64, value_dim: 32, taps: 4 };

#[test]
fn sequences_are_those_of_the_reference_however_they_are_cut() {
    for (shape, cuts) in [
        (SHAPE, &[5, 1, 1, 2, 1, 3][..]),
        (DeltaNetShape { key_heads: 2, key_dim: 32, value_dim: 64, taps: 2, ..SHAPE }, &[1, 2, 1]),
        (DeltaNetShape { key_dim: 128, value_dim: 128, taps: 8, ..SHAPE }, &[1, 4]),
    ] {
        let Some(mut net) = Net::new(shape, 2) else { return };
        let rows: usize = cuts.iter().sum();
        let projected = rounded(rows * shape.cols(), 54);
        let want = reference::delta_net(&projected, &net.layer);
        let (mut got, mut position) = (Vec::new(), 0);
        for cut in cuts.iter().copied() {
            let from = &projected[position * shape.cols()..(position + cut) * shape.cols()];
            got.extend(net.step(from, &[span(0, cut, position, 1)]));
            position += cut;
        }
        check_close(&got, &want, BF16_ROUNDING, &format!("{shape:?}, cut into {cuts:?}"));
    }
}

#[test]
fn sequences_of_one_step_keep_apart_and_are_loaded_and_saved() {
    let Some(mut net) = Net::new(SHAPE, 5) else { return };
    let (cols, out_cols) = (SHAPE.cols(), SHAPE.value_heads * SHAPE.value_dim);
    let sequences = [rounded(6 * cols, 55), rounded(6 * cols, 56)];
    let want: Vec<Vec<f32>> =
        sequences.iter().map(|rows| reference::delta_net(rows, &net.layer)).collect();
    // The first is saved after four rows, and the second has three in place 1.
    let first = [&sequences[0][..4 * cols], &sequences[1][..3 * cols]].concat();
    let spans = [StateSpan { save: 4, ..span(0, 4, 0, 0) }, span(4, 3, 0, 1)];
    let got = net.step(&first, &spans);
    check_close(&got[..4 * out_cols], &want[0][..4 * out_cols], BF16_ROUNDING, "the first");
    check_close(&got[4 * out_cols..], &want[1][..3 * out_cols], BF16_ROUNDING, "the second");
    // What was saved goes on in place 3 while the first goes on in its own.
    let second =
        [&sequences[0][4 * cols..], &sequences[1][3 * cols..], &sequences[0][4 * cols..]].concat();
    let loaded = StateSpan { load: 4, ..span(5, 2, 4, 3) };
    let got = net.step(&second, &[span(0, 2, 4, 0), span(2, 3, 3, 1), loaded]);
    check_close(&got[..2 * out_cols], &want[0][4 * out_cols..], BF16_ROUNDING, "the first");
    check_close(
        &got[2 * out_cols..5 * out_cols],
        &want[1][3 * out_cols..],
        BF16_ROUNDING,
        "second",
    );
    assert_eq!(got[5 * out_cols..], got[..2 * out_cols], "what was saved goes on as it did");
    let place = |place: usize| &net.states[place * 4 * stride(&SHAPE)..][..4 * stride(&SHAPE)];
    assert_eq!(place(3), place(0), "both end in one state");
    assert!(place(2).iter().all(|byte| *byte == 0xff), "a place that no span has stays");
    let behind = &place(0)[4 * SHAPE.state_elements()..];
    assert!(behind.iter().all(|byte| *byte == 0xff), "what lies behind the layer's state stays");
}
