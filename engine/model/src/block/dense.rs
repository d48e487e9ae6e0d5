//! Dense gated feed-forward block (SwiGLU, GeGLU): `down(activation(gate(x)) * up(x))`. Source:
//! Shazeer 2020.

use super::{BlockContext, Step};
use crate::spec::{Activation, DenseSpec};
use crate::tensors::{Linear, Part, Tensors};
use crate::{LoadError, shard};
use engine_core::{Device, DeviceError};

/// Dense feed-forward block of a layer on one rank: gate and up projection as one matrix, and the
/// down projection.
#[derive(Debug)]
pub struct Dense<D: Device> {
    /// Number of the block's intermediate columns that are on this rank.
    intermediate: usize,
    gate_up: Linear<D>,
    activation: Activation,
    down: Linear<D>,
}

impl<D: Device> Dense<D> {
    /// Loads this rank's intermediate columns of a layer's dense feed-forward block.
    pub(super) fn load(
        tensors: &mut Tensors<'_, D>,
        spec: &DenseSpec,
        context: BlockContext,
    ) -> Result<Self, LoadError> {
        let BlockContext { layer, hidden, .. } = context;
        let (names, intermediate) = (&spec.names, spec.intermediate);
        let unit = tensors.cut_unit(names.down, layer, [hidden, intermediate]);
        // The columns of `down` are split among ranks only between its quantization blocks.
        let own = shard::share_in_units(tensors.device.rank(), intermediate, unit);
        if own.is_empty() {
            return Err(tensors.indivisible("blocks of feed-forward columns", intermediate / unit));
        }
        let part = |name, n| Part { bias: spec.bias, ..Part::plain(name, n) };
        let gate_up = if spec.fused {
            let own = vec![own.clone(), intermediate + own.start..intermediate + own.end];
            vec![Part { own, ..part(names.gate, 2 * intermediate) }]
        } else {
            let own = |name| Part { own: vec![own.clone()], ..part(name, intermediate) };
            vec![own(names.gate), own(names.up)]
        };
        let gate_up = tensors.linear(&gate_up, layer, hidden)?;
        let down = part(names.down, hidden);
        let down = tensors.partial(&down, layer, intermediate, std::slice::from_ref(&own))?;
        Ok(Self { intermediate: own.len(), gate_up, activation: spec.activation, down })
    }

    /// Computes the dense feed-forward block: gate and up projections, activation, down projection.
    pub(super) fn run(
        &self,
        step: &mut Step<'_, D>,
        x: &D::Buffer,
        delta: &mut D::Buffer,
    ) -> Result<(), DeviceError> {
        let Step { device, scratch, rows, .. } = step;
        let (gate_up, gated) = (&mut scratch.projected, &mut scratch.mixed);
        device.reshape(gate_up, *rows, 2 * self.intermediate)?;
        device.reshape(gated, *rows, self.intermediate)?;
        self.gate_up.run(device, x, gate_up)?;
        self.activation.run(*device, gate_up, gated)?;
        self.down.run(device, gated, delta)
    }
}
