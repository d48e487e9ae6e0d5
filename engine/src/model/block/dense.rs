//! The gated feed-forward layer: `down(silu(gate(x)) * up(x))`. Source: Shazeer 2020.

use super::{BlockContext, Step};
use crate::device::Device;
use crate::model::loader::{Linear, Loader, Part};
use crate::model::spec::{Activation, DenseSpec};
use crate::model::{LoadError, StepError};

/// Gate and up as one product, then down.
#[derive(Debug)]
pub struct Dense<D: Device> {
    intermediate: usize,
    gate_up: Linear<D>,
    down: Linear<D>,
}

impl<D: Device> Dense<D> {
    pub(super) fn load(
        loader: &mut Loader<'_, D>,
        spec: &DenseSpec,
        context: BlockContext,
    ) -> Result<Self, LoadError> {
        let BlockContext { layer, hidden, .. } = context;
        let (names, intermediate) = (&spec.names, spec.intermediate);
        let part = |name, n| Part { bias: spec.bias, ..Part::plain(name, n) };
        let gate_up = [part(names.gate, intermediate), part(names.up, intermediate)];
        Ok(Self {
            intermediate,
            gate_up: loader.linear(&gate_up, layer, hidden)?,
            down: loader.linear(&[part(names.down, hidden)], layer, intermediate)?,
        })
    }

    pub(super) fn run(
        &self,
        step: &mut Step<'_, D>,
        x: &D::Buffer,
        delta: &mut D::Buffer,
    ) -> Result<(), StepError> {
        let Step { device, scratch, rows, .. } = step;
        let (gate_up, gated) = (&mut scratch.projected, &mut scratch.mixed);
        device.reshape(gate_up, *rows, 2 * self.intermediate)?;
        device.reshape(gated, *rows, self.intermediate)?;
        self.gate_up.run(device, x, gate_up)?;
        Activation::Silu.run(*device, gate_up, gated)?;
        self.down.run(device, gated, delta)
    }
}
