//! Gated DeltaNet block: a mixer of a layer that keeps a state matrix per head instead of KV pages.

use std::ops::Range;

use super::{BlockContext, Step};
use crate::LoadError;
use crate::shard::{self, Heads};
use crate::spec::{DeltaNetForm, DeltaNetSpec};
use crate::tensors::{Linear, Part, Tensors, in_layer};
use engine_core::{DeltaNetLayer, DeltaNetShape, Device, DeviceError};

/// Gated DeltaNet block of a layer on one rank: its projections, and the parameters of the
/// recurrence between them.
#[derive(Debug)]
pub struct DeltaNet<D: Device> {
    projections: Linear<D>,
    layer: DeltaNetLayer<D::Vector>,
    output: Linear<D>,
}

impl<D: Device> DeltaNet<D> {
    /// Loads this rank's heads of a layer's gated DeltaNet block; `state_layer` is the block's
    /// index among the model's DeltaNet blocks.
    pub(super) fn load(
        tensors: &mut Tensors<'_, D>,
        spec: &DeltaNetSpec,
        context: BlockContext,
        state_layer: usize,
    ) -> Result<Self, LoadError> {
        let (names, whole) = (&spec.names, &spec.shape);
        let Some((own, shape)) = Heads::of_delta_net(tensors.device.rank(), whole) else {
            return Err(tensors.indivisible("value heads", whole.value_heads));
        };
        let BlockContext { layer, hidden, norm_epsilon: epsilon } = context;
        let (values, heads) = (whole.value_heads * whole.value_dim, whole.value_heads);
        // Beta and decay have one row per value head, the gate `value_dim` rows.
        let own_heads = stored(spec, 0, &own.query, 1);
        let own_values = stored(spec, 0, &own.query, whole.value_dim);
        let convolved = own_channels(spec, &own);
        let part = |name, n, own| Part { own, ..Part::plain(name, n) };
        let projections = [
            part(names.query_key_value, whole.conv_cols(), convolved.clone()),
            part(names.gate, values, own_values.clone()),
            part(names.beta, heads, own_heads.clone()),
            part(names.decay, heads, own_heads.clone()),
        ];
        let output = Part::plain(names.output, hidden);
        let mut of_heads = |name| -> Result<Vec<f32>, LoadError> {
            let values = tensors.values(&in_layer(name, layer), &[heads])?;
            Ok(own_heads.iter().flat_map(|own| values[own.clone()].iter().copied()).collect())
        };
        let (mut rate, bias) = (of_heads(names.decay_rate)?, of_heads(names.decay_bias)?);
        if spec.form == DeltaNetForm::HuggingFace {
            // Hugging Face stores the logarithm of the rate; the device expects the negative rate.
            rate.iter_mut().for_each(|log| *log = -log.exp());
        }
        let conv = by_tap(tensors, spec, layer, &convolved)?;
        let projections = tensors.linear(&projections, layer, hidden)?;
        let delta_net = DeltaNetLayer {
            shape,
            index: state_layer,
            conv: tensors.device.vector(&conv)?,
            rate: tensors.device.vector(&rate)?,
            bias: tensors.device.vector(&bias)?,
            norm: tensors.vector(&format!("{}.weight", names.norm), layer, shape.value_dim)?,
            epsilon,
        };
        tensors.device.prepare_delta_net(&delta_net)?;
        let output = tensors.partial(&output, layer, values, &own_values)?;
        Ok(Self { projections, layer: delta_net, output })
    }

    /// Computes the gated DeltaNet block: input projections, recurrence, output projection.
    pub(super) fn run(
        &self,
        step: &mut Step<'_, D>,
        x: &D::Buffer,
        delta: &mut D::Buffer,
    ) -> Result<(), DeviceError> {
        let Step { device, metadata, state, scratch, rows, .. } = step;
        let Some(state) = state else {
            let message = "no state slots were allocated".to_owned();
            return Err(DeviceError { operation: "step", message });
        };
        let (projected, mixed) = (&mut scratch.projected, &mut scratch.mixed);
        let shape = &self.layer.shape;
        device.reshape(projected, *rows, shape.cols())?;
        device.reshape(mixed, *rows, shape.value_heads * shape.value_dim)?;
        self.projections.run(device, x, projected)?;
        device.delta_net(projected, &self.layer, metadata, state, mixed)?;
        self.output.run(device, mixed, delta)
    }
}

/// Returns the ranges of the queries, keys and values of the heads `own` among the convolved
/// channels of all heads, as the file stores them.
fn own_channels(spec: &DeltaNetSpec, own: &Heads) -> Vec<Range<usize>> {
    let DeltaNetShape { key_heads, key_dim, value_dim, .. } = spec.shape;
    let keys = key_heads * key_dim;
    let mut channels =
        vec![shard::columns(0, &own.kv, key_dim), shard::columns(keys, &own.kv, key_dim)];
    channels.extend(stored(spec, 2 * keys, &own.query, value_dim));
    channels
}

/// Returns the ranges that the value heads `own`, of `dim` elements each, occupy in a file; `first`
/// is the element at which head 0 begins. Adjacent heads form one range.
fn stored(spec: &DeltaNetSpec, first: usize, own: &Range<usize>, dim: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for head in own.clone() {
        let start = first + spec.stored_head(head) * dim;
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end += dim,
            _ => ranges.push(start..start + dim),
        }
    }
    ranges
}

/// Reads the weights of the causal convolution for this rank's channels, as `[taps, own channels]`.
/// Hugging Face checkpoints store `[channels, 1, taps]`, GGUF files `[channels, taps]`.
fn by_tap<D: Device>(
    tensors: &mut Tensors<'_, D>,
    spec: &DeltaNetSpec,
    layer: usize,
    own: &[Range<usize>],
) -> Result<Vec<f32>, LoadError> {
    let (channels, taps) = (spec.shape.conv_cols(), spec.shape.taps);
    let name = format!("{}.weight", in_layer(spec.names.conv, layer));
    let stored = match spec.form {
        DeltaNetForm::HuggingFace => tensors.values(&name, &[channels, 1, taps])?,
        DeltaNetForm::Gguf => tensors.values(&name, &[channels, taps])?,
    };
    let of_tap = |tap| own.iter().cloned().flatten().map(move |channel| (channel, tap));
    let elements = (0..taps).flat_map(of_tap);
    Ok(elements.map(|(channel, tap)| stored[channel * taps + tap]).collect())
}
