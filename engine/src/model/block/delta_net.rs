//! Gated DeltaNet: a mixer whose memory of the past is a matrix a head, and not pages.

use super::{BlockContext, Step};
use crate::device::{DeltaNetLayer, Device};
use crate::model::loader::{Linear, Loader, Part, in_layer};
use crate::model::spec::DeltaNetSpec;
use crate::model::{LoadError, StepError};

/// Projections around a gated DeltaNet layer.
#[derive(Debug)]
pub struct DeltaNet<D: Device> {
    projections: Linear<D>,
    layer: DeltaNetLayer<D::Vector>,
    output: Linear<D>,
}

impl<D: Device> DeltaNet<D> {
    pub(super) fn load(
        loader: &mut Loader<'_, D>,
        spec: &DeltaNetSpec,
        context: BlockContext,
        state_layer: usize,
    ) -> Result<Self, LoadError> {
        let (names, shape) = (&spec.names, spec.shape);
        let BlockContext { layer, hidden, norm_epsilon: epsilon } = context;
        let (values, heads) = (shape.value_heads * shape.value_dim, shape.value_heads);
        let projections = [
            Part::plain(names.query_key_value, shape.conv_cols()),
            Part::plain(names.gate, values),
            Part::plain(names.beta, heads),
            Part::plain(names.decay, heads),
        ];
        let rate = loader.values(&in_layer(names.decay_log, layer), &[heads])?;
        let rate: Vec<_> = rate.iter().map(|log| -log.exp()).collect();
        let conv = by_tap(loader, spec, layer)?;
        Ok(Self {
            projections: loader.linear(&projections, layer, hidden)?,
            layer: DeltaNetLayer {
                shape,
                index: state_layer,
                conv: loader.own_vector(&conv)?,
                rate: loader.own_vector(&rate)?,
                bias: loader.vector(names.decay_bias, layer, heads)?,
                norm: loader.vector(&format!("{}.weight", names.norm), layer, shape.value_dim)?,
                epsilon,
            },
            output: loader.linear(&[Part::plain(names.output, hidden)], layer, values)?,
        })
    }

    pub(super) fn run(
        &self,
        step: &mut Step<'_, D>,
        x: &D::Buffer,
        delta: &mut D::Buffer,
    ) -> Result<(), StepError> {
        let Step { device, plan, state, scratch, rows, .. } = step;
        let Some(state) = state else {
            let message = "no places for recurrent state were allocated".to_owned();
            return Err(StepError { operation: "step", message });
        };
        let (projected, mixed) = (&mut scratch.projected, &mut scratch.mixed);
        let shape = &self.layer.shape;
        device.reshape(projected, *rows, shape.cols())?;
        device.reshape(mixed, *rows, shape.value_heads * shape.value_dim)?;
        self.projections.run(device, x, projected)?;
        device.delta_net(projected, &self.layer, plan, state, mixed)?;
        self.output.run(device, mixed, delta)
    }
}

/// The convolution's weights `[taps, channels]`, which files keep as `[channels, 1, taps]`.
fn by_tap<D: Device>(
    loader: &mut Loader<'_, D>,
    spec: &DeltaNetSpec,
    layer: usize,
) -> Result<Vec<f32>, LoadError> {
    let (channels, taps) = (spec.shape.conv_cols(), spec.shape.taps);
    let name = format!("{}.weight", in_layer(spec.names.conv, layer));
    let stored = loader.values(&name, &[channels, 1, taps])?;
    let at = |i: usize| stored[i % channels * taps + i / channels];
    Ok((0..channels * taps).map(at).collect())
}
