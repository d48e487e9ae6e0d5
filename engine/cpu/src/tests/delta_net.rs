//! Tests of gated DeltaNet against the recurrence in f64, and against itself in other prefill
//! chunks and batches.

use super::*;
use crate::delta_net::BLOCK_ROWS;
use engine_core::{DeltaNetShape, KvType, StateSlots};

const SHAPES: [DeltaNetShape; 5] = [
    DeltaNetShape { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 16, taps: 4 },
    DeltaNetShape { key_heads: 1, value_heads: 3, key_dim: 8, value_dim: 40, taps: 2 },
    DeltaNetShape { key_heads: 3, value_heads: 3, key_dim: 20, value_dim: 33, taps: 1 },
    DeltaNetShape { key_heads: 2, value_heads: 6, key_dim: 17, value_dim: 70, taps: 3 },
    DeltaNetShape { key_heads: 1, value_heads: 2, key_dim: 128, value_dim: 128, taps: 4 },
];
/// Number of rows of a sequence that take two blocks. The second is shorter than the first and longer
/// than the convolution's past.
const TWO_BLOCKS: usize = BLOCK_ROWS + 7;

fn layer(shape: DeltaNetShape) -> DeltaNetLayer<Vec<f32>> {
    DeltaNetLayer {
        shape,
        index: 1,
        conv: numbers(shape.taps * shape.conv_cols(), 1),
        rate: numbers(shape.value_heads, 2).iter().map(|x| -x.exp()).collect(),
        bias: numbers(shape.value_heads, 3),
        norm: numbers(shape.value_dim, 4),
        epsilon: 1e-6,
    }
}

fn state(cpu: &mut Cpu, net: DeltaNetShape) -> State {
    cpu.state(StateShape { layers: 2, slots: 5, net }).unwrap()
}

fn at(slot: u32) -> StateSlots {
    StateSlots { slot, load: None, save: None }
}

fn prepare(
    cpu: &mut Cpu,
    sequences: &[(usize, usize, StateSlots)],
) -> Result<StepMetadata, DeviceError> {
    let (page_tokens, kv_type) = (16, KvType::F32);
    let kv = KvShape { layers: 1, kv_heads: 1, head_dim: 16, pages: 8, page_tokens, kv_type };
    let kv = cpu.kv(kv).unwrap();
    let mut batch = StepBatch::default();
    for &(position, rows, state) in sequences {
        batch.tokens.extend(vec![StepToken::Known(0); rows]);
        let (pages, state, logits) = ((0..8).collect(), Some(state), LogitRows::None);
        batch.push(ScheduledSequence { row: 0, rows, position, pages, logits, state });
    }
    cpu.prepare_step(&batch, &kv, &[Rotation { inverse_frequencies: Vec::new(), factor: 1.0 }])
}

/// Runs one step of a gated DeltaNet layer over `sequences`, whose rows are those of `projected`.
fn step(
    cpu: &mut Cpu,
    layer: &DeltaNetLayer<Vec<f32>>,
    state: &mut State,
    sequences: &[(usize, usize, StateSlots)],
    projected: &[f32],
) -> Vec<f32> {
    let step = prepare(cpu, sequences).unwrap();
    let cols = layer.shape.value_heads * layer.shape.value_dim;
    let rows: usize = sequences.iter().map(|(_, rows, _)| rows).sum();
    let mut out = buffer(cols, vec![f32::NAN; rows * cols]);
    let projected = buffer(layer.shape.cols(), projected.to_vec());
    cpu.delta_net(&projected, layer, &step, state, &mut out).unwrap();
    out.values().to_vec()
}

#[test]
fn delta_net_is_the_recurrence_for_every_shape() {
    on_every_device(|cpu, device| {
        for shape in SHAPES {
            let (layer, rows) = (layer(shape), TWO_BLOCKS);
            let projected = numbers(rows * shape.cols(), 5);
            let mut state = state(cpu, shape);
            // The earlier content of the state slot must not matter.
            step(cpu, &layer, &mut state, &[(0, 2, at(3))], &numbers(2 * shape.cols(), 6));
            let got = step(cpu, &layer, &mut state, &[(0, rows, at(3))], &projected);
            let want = reference::delta_net(&projected, &layer);
            check_close(&got, &want, 1e-3, &format!("{device} {shape:?}"));
        }
    });
}

#[test]
fn delta_net_gives_a_sequence_the_same_bits_in_any_cuts_and_any_company() {
    on_every_device(|cpu, device| {
        for shape in SHAPES {
            let (layer, rows, cols) = (layer(shape), 23, shape.cols());
            let projected = numbers(rows * cols, 5);
            let mut state = state(cpu, shape);
            let whole = step(cpu, &layer, &mut state, &[(0, rows, at(0))], &projected);
            for chunk in [1, 2, 3, 7, 16] {
                let mut together = Vec::new();
                for first in (0..rows).step_by(chunk) {
                    let part = chunk.min(rows - first);
                    let others = [(0, 3, at(1)), (first, part, at(4)), (0, 1, at(2))];
                    let mut mixed = numbers(3 * cols, 7);
                    mixed.extend(&projected[first * cols..(first + part) * cols]);
                    mixed.extend(numbers(cols, 8));
                    let out = step(cpu, &layer, &mut state, &others, &mixed);
                    let width = out.len() / (part + 4);
                    together.extend_from_slice(&out[3 * width..(3 + part) * width]);
                }
                assert!(together == whole, "{device} {shape:?}, chunks of {chunk}");
            }
        }
    });
}

#[test]
fn delta_net_cut_at_any_row_gives_the_same_bits() {
    on_every_device(|cpu, device| {
        // Heads of 128 elements have the same borders of blocks and would take seconds.
        for shape in &SHAPES[..4] {
            let (layer, cols) = (layer(*shape), shape.cols());
            let projected = numbers(TWO_BLOCKS * cols, 5);
            let mut state = state(cpu, *shape);
            let whole = step(cpu, &layer, &mut state, &[(0, TWO_BLOCKS, at(0))], &projected);
            for cut in 1..TWO_BLOCKS {
                let (head, tail) = projected.split_at(cut * cols);
                let mut parts = step(cpu, &layer, &mut state, &[(0, cut, at(0))], head);
                let rest = [(cut, TWO_BLOCKS - cut, at(0))];
                parts.extend(step(cpu, &layer, &mut state, &rest, tail));
                assert!(parts == whole, "{device} {shape:?}, cut at row {cut}");
            }
        }
    });
}

#[test]
fn delta_net_has_the_same_bits_with_every_width_of_vectors() {
    // The portable code alone rounds products before it adds them.
    let vectors = Isa::detected().into_iter().filter(|isa| isa.name() != "portable");
    let mut devices: Vec<Cpu> = vectors.map(|isa| Cpu::new(isa, 1)).collect();
    for shape in SHAPES {
        let (layer, rows) = (layer(shape), 5);
        let projected = numbers(rows * shape.cols(), 5);
        let mut results = devices.iter_mut().map(|cpu| {
            let mut state = state(cpu, shape);
            step(cpu, &layer, &mut state, &[(0, rows, at(0))], &projected)
        });
        let first = results.next();
        assert!(results.all(|result| Some(result) == first), "{shape:?}");
    }
}

#[test]
fn sequences_go_on_from_a_snapshot_as_if_it_were_their_own_past() {
    on_every_device(|cpu, device| {
        let (layer, cols) = (layer(SHAPES[0]), SHAPES[0].cols());
        let projected = numbers(20 * cols, 5);
        let (head, tail) = projected.split_at(8 * cols);
        let mut state = state(cpu, SHAPES[0]);
        let saved = StateSlots { save: Some(4), ..at(0) };
        step(cpu, &layer, &mut state, &[(0, 8, saved)], head);
        let own = step(cpu, &layer, &mut state, &[(8, 12, at(0))], tail);
        // Two sequences start from one snapshot at once, in state slots that others have used.
        let from = |slot| StateSlots { load: Some(4), ..at(slot) };
        let sequences = [(8, 12, from(0)), (8, 12, from(2))];
        let both = step(cpu, &layer, &mut state, &sequences, &[tail, tail].concat());
        assert!(both == [own.clone(), own].concat(), "{device}");
    });
}

#[test]
fn places_that_are_missing_or_in_two_hands_are_refused() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let both = |cpu: &mut Cpu, a, b| prepare(cpu, &[(8, 1, a), (8, 1, b)]).map(|_| ());
    let refused = |result: Result<(), DeviceError>| result.unwrap_err().message;
    assert!(both(&mut cpu, at(0), at(1)).is_ok());
    let message = refused(both(&mut cpu, at(1), at(1)));
    assert_eq!(message, "state slot 1 is written twice");
    let message = refused(both(&mut cpu, at(0), StateSlots { save: Some(0), ..at(1) }));
    assert_eq!(message, "state slot 0 is written twice");
    let message = refused(both(&mut cpu, at(0), StateSlots { load: Some(0), ..at(1) }));
    assert_eq!(message, "state slot 0 is loaded and written in one step");
    let state = state(&mut cpu, SHAPES[0]);
    let step = prepare(&mut cpu, &[(0, 1, StateSlots { save: Some(5), ..at(1) })]).unwrap();
    assert_eq!(state.check(&step).unwrap_err().message, "sequence 0 uses state slot 5 of 5");
}
