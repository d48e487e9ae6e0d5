//! Launches of the reference kernels of the gated delta net: its results, and what a step leaves in
//! the state slots of the sequences and of the snapshots that it saves.

use std::sync::Arc;

use super::operation::rows;
use super::{ResultType, Wanted, downloaded, read, sampled, uploaded};
use crate::Result;
use crate::buffer::Buffer;
use crate::driver::{Address, Arguments, Driver, Memory};
use crate::launch::Launch;
use crate::launch::delta_net::{DeltaNetArguments, SequenceArguments};
use crate::weights::Vector;
use engine_core::{DeltaNetLayer, ScheduledSequence, StateSlots};

/// Reference of the gated delta net: its results, and the contents of state slots. `states` are the
/// layer's part of the first slot before the step, and the distance to the next slot in f32
/// elements; `share` is the tolerance as a share of 1 + |result|.
pub(super) fn delta_net(
    driver: &Arc<dyn Driver>,
    projected: &Buffer,
    layer: &DeltaNetLayer<Vector>,
    sequences: &[ScheduledSequence],
    (states, stride): (Address, u32),
    share: f32,
) -> Result<Vec<Wanted>> {
    let slots: Vec<StateSlots> =
        sequences.iter().map(|one| one.state.expect("sequences have state slots")).collect();
    // The reference kernels read a state from the one slot that they are given.
    let spans = sequences.iter().zip(&slots).map(|(sequence, slots)| SequenceArguments {
        row: sequence.row as u32,
        rows: sequence.rows as u32,
        position: sequence.position as u32,
        slot: slots.load.unwrap_or(slots.slot),
        load: SequenceArguments::NOWHERE,
        save: SequenceArguments::NOWHERE,
    });
    let (spans, rows) = (spans.collect(), rows(sequences));
    let step = Step { driver, projected, layer, states, stride, slots, spans, rows };
    let Step { spans, rows, .. } = &step;
    let (net, uploaded_spans) = (&layer.shape, uploaded(driver, spans)?);
    let (channels, cols) = (net.conv_cols(), net.value_heads * net.value_dim);
    let convolved = Memory::new(driver, 4 * rows * channels)?;
    let results = Memory::new(driver, 4 * rows * cols)?;
    let after = Memory::new(driver, 4 * spans.len() * step.matrices())?;
    let shape = DeltaNetArguments::new(layer, stride);
    let from = [convolved.address(), states, projected.bf16(), uploaded_spans.address()];
    let arguments = Arguments::of(from).address(layer.conv.part.address());
    let arguments = arguments.sizes([spans.len()]).value(shape);
    driver.launch("reference_convolve", Launch::reference(channels), &arguments)?;
    let arguments = Arguments::of([
        results.address(),
        after.address(),
        convolved.address(),
        states,
        projected.bf16(),
        uploaded_spans.address(),
        layer.rate.part.address(),
        layer.bias.part.address(),
    ]);
    let arguments = arguments.sizes([spans.len()]).value(shape);
    driver.launch("reference_delta", Launch::reference(spans.len() * cols), &arguments)?;
    let at = sampled(*rows, cols);
    let (indices, want) = (uploaded(driver, &at)?, Memory::new(driver, 4 * at.len())?);
    let from = [want.address(), indices.address(), results.address(), projected.bf16()];
    let arguments = Arguments::of(from).address(layer.norm.part.address());
    let arguments = arguments.sizes([at.len()]).value(shape);
    driver.launch("reference_delta_gate", Launch::reference(at.len()), &arguments)?;
    let want: Vec<f32> = downloaded(driver, want.address(), at.len())?;
    let tolerance = want.iter().map(|x| (1.0 + x.abs()) * share).collect();
    let mut left = Wanted::default();
    step.add_matrices(&after, share, &mut left)?;
    step.add_history(&mut left)?;
    Ok(vec![Wanted { tolerance, at, want }, left])
}

/// Operands of one step of the gated delta net.
struct Step<'a> {
    driver: &'a Arc<dyn Driver>,
    projected: &'a Buffer,
    layer: &'a DeltaNetLayer<Vector>,
    /// The layer's part of the first state slot before the step, and the distance to the next slot
    /// in f32 elements.
    states: Address,
    stride: u32,
    /// State slots of each sequence.
    slots: Vec<StateSlots>,
    /// Rows of each sequence, with the slot from which it reads its state.
    spans: Vec<SequenceArguments>,
    /// Number of rows of all sequences.
    rows: usize,
}

impl Step<'_> {
    /// Returns the number of elements of a sequence's matrices.
    fn matrices(&self) -> usize {
        let net = &self.layer.shape;
        net.value_heads * net.key_dim * net.value_dim
    }

    /// Returns the number of elements of the rows of channels in a slot, behind which its matrices
    /// are.
    fn history(&self) -> usize {
        (self.layer.shape.taps - 1) * self.layer.shape.conv_cols()
    }

    /// Adds an element of a sequence's state, which is in its own slot and in the snapshot that it
    /// saves.
    fn add(&self, sequence: usize, element: usize, (want, tolerance): (f32, f32), to: &mut Wanted) {
        let StateSlots { slot, save, .. } = self.slots[sequence];
        let first = self.layer.index * self.layer.shape.state_elements() + element;
        for slot in [Some(slot), save].into_iter().flatten() {
            to.at.push((slot as usize * self.stride as usize + first) as u32);
            to.want.push(want);
            to.tolerance.push(tolerance);
        }
    }

    /// Adds elements of the matrices, which the reference kernel has written to `after`.
    fn add_matrices(&self, after: &Memory, share: f32, to: &mut Wanted) -> Result<()> {
        let (net, each) = (&self.layer.shape, self.matrices());
        let from = sampled(self.spans.len() * net.value_heads, net.key_dim * net.value_dim);
        let want = read(self.driver, after.address(), &from, ResultType::F32)?;
        for (index, want) in from.into_iter().zip(want) {
            let (sequence, element) = (index as usize / each, index as usize % each);
            let tolerance = (1.0 + want.abs()) * share;
            self.add(sequence, self.history() + element, (want, tolerance), to);
        }
        Ok(())
    }

    /// Adds elements of the last rows of channels, which the step copies: those of its own rows, and
    /// before them those that the state had, or zeros before a sequence's first row.
    fn add_history(&self, to: &mut Wanted) -> Result<()> {
        let (past, channels) = (self.layer.shape.taps - 1, self.layer.shape.conv_cols());
        let at = sampled(self.spans.len() * past, channels);
        let (mut in_rows, mut in_states) = (Vec::new(), Vec::new());
        for (i, index) in at.iter().enumerate() {
            let (row, channel) = (*index as usize / channels, *index as usize % channels);
            let span = &self.spans[row / past];
            let row = row % past + span.rows as usize;
            if row >= past {
                let row = span.row as usize + row - past;
                in_rows.push((i, row * self.projected.cols + channel));
            } else if span.position > 0 {
                let slot = span.slot as usize * self.stride as usize;
                in_states.push((i, slot + row * channels + channel));
            }
        }
        let mut want = vec![0.0; at.len()];
        for (from, result_type, elements) in [
            (self.projected.bf16(), ResultType::Bf16, in_rows),
            (self.states, ResultType::F32, in_states),
        ] {
            let indices: Vec<u32> = elements.iter().map(|(_, index)| *index as u32).collect();
            if !indices.is_empty() {
                let values = read(self.driver, from, &indices, result_type)?;
                elements.iter().zip(values).for_each(|((i, _), value)| want[*i] = value);
            }
        }
        for (index, want) in at.into_iter().zip(want) {
            let (sequence, element) =
                (index as usize / self.history(), index as usize % self.history());
            self.add(sequence, element, (want, 0.0), to);
        }
        Ok(())
    }
}
