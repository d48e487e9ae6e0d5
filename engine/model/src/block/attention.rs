//! Attention block: grouped-query attention with rotary positions (RoPE) over the paged KV cache.

use std::ops::Range;

use super::{BlockContext, Step};
use crate::LoadError;
use crate::shard::{self, Heads};
use crate::spec::AttentionSpec;
use crate::tensors::{Linear, Part, Tensors, in_layer};
use engine_core::{AttentionLayer, Device, DeviceError, HeadNorms, RowOrder};

/// Attention block of a layer on one rank: its projections, and the parameters of the attention
/// between them.
#[derive(Debug)]
pub struct Attention<D: Device> {
    qkv: Linear<D>,
    /// Projection to the gates that multiply the attention output, in architectures that have them.
    gate: Option<Linear<D>>,
    layer: AttentionLayer<D::Vector>,
    output: Linear<D>,
}

impl<D: Device> Attention<D> {
    /// Loads this rank's heads of a layer's attention block; `kv_layer` is the block's index in the
    /// KV cache.
    pub(super) fn load(
        tensors: &mut Tensors<'_, D>,
        spec: &AttentionSpec,
        context: BlockContext,
        kv_layer: usize,
    ) -> Result<Self, LoadError> {
        let (names, whole) = (&spec.names, &spec.shape);
        let Some((own, shape)) = Heads::of_attention(tensors.device.rank(), whole) else {
            return Err(tensors.indivisible("attention heads", whole.heads));
        };
        let columns = |heads: &Range<usize>| shard::columns(0, heads, whole.head_dim);
        let (query, kv) = (columns(&own.query), columns(&own.kv));
        let BlockContext { layer, hidden, norm_epsilon: epsilon } = context;
        let (query_cols, kv_cols) = (whole.heads * whole.head_dim, whole.kv_heads * whole.head_dim);
        let part = |name, n, own: &Range<usize>, order| {
            let own = vec![own.clone()];
            Part { name, n, own, order, bias: spec.qkv_bias }
        };
        let head_dim = shape.head_dim;
        let paired = |second| RowOrder::HeadPairs { head_dim, second };
        let queries = if spec.gated { paired(false) } else { spec.rotated };
        // Queries and gates are rows of one stored matrix, loaded as two.
        let gate = if spec.gated {
            let gate = part(names.query, query_cols, &query, paired(true));
            Some(tensors.linear(&[gate], layer, hidden)?)
        } else {
            None
        };
        let qkv = if spec.fused {
            let below = |first| shard::columns(first, &own.kv, whole.head_dim);
            let own = vec![query.clone(), below(query_cols), below(query_cols + kv_cols)];
            let (n, order) = (query_cols + 2 * kv_cols, spec.rotated);
            vec![Part { name: names.query, n, own, order, bias: spec.qkv_bias }]
        } else {
            vec![
                part(names.query, query_cols, &query, queries),
                part(names.key, kv_cols, &kv, spec.rotated),
                part(names.value, kv_cols, &kv, RowOrder::AsStored),
            ]
        };
        let output = Part { bias: spec.output_bias, ..Part::plain(names.output, hidden) };
        let head_norms = if spec.head_norms {
            let query = tensors.norm(names.query_norm, layer, head_dim)?;
            let key = tensors.norm(names.key_norm, layer, head_dim)?;
            Some(HeadNorms { query, key, epsilon })
        } else {
            None
        };
        let sinks = if spec.sinks {
            let sinks = tensors.values(&in_layer(names.sinks, layer), &[whole.heads])?;
            Some(tensors.device.vector(&sinks[own.query.clone()])?)
        } else {
            None
        };
        let scales = match tensors.kv_scales((names.key, names.value), layer, whole.kv_heads)? {
            Some(scales) => {
                let own: Vec<f32> =
                    scales.iter().flat_map(|all| &all[own.kv.clone()]).copied().collect();
                Some(tensors.device.vector(&own)?)
            }
            None => None,
        };
        let attention = AttentionLayer {
            window: spec.window,
            rotation: spec.rope,
            head_norms,
            sinks,
            scales,
            ..AttentionLayer::new(shape, kv_layer)
        };
        tensors.device.prepare_attention(&attention)?;
        Ok(Self {
            qkv: tensors.linear(&qkv, layer, hidden)?,
            gate,
            layer: attention,
            output: tensors.partial(&output, layer, query_cols, std::slice::from_ref(&query))?,
        })
    }

    /// Computes the attention block: projections, RoPE and write to the KV cache, paged attention,
    /// output gates where there are any, output projection.
    pub(super) fn run(
        &self,
        step: &mut Step<'_, D>,
        x: &D::Buffer,
        delta: &mut D::Buffer,
    ) -> Result<(), DeviceError> {
        let Step { device, metadata, kv, scratch, rows, .. } = step;
        let (qkv, attended) = (&mut scratch.projected, &mut scratch.mixed);
        let shape = &self.layer.shape;
        device.reshape(qkv, *rows, shape.qkv_cols())?;
        device.reshape(attended, *rows, shape.heads * shape.head_dim)?;
        self.qkv.run(device, x, qkv)?;
        device.rope_and_cache(qkv, &self.layer, metadata, kv)?;
        device.attention(qkv, &self.layer, metadata, kv, attended)?;
        if let Some(gate) = &self.gate {
            device.reshape(&mut scratch.gates, *rows, shape.heads * shape.head_dim)?;
            gate.run(device, x, &mut scratch.gates)?;
            device.sigmoid_mul(attended, &scratch.gates)?;
        }
        self.output.run(device, attended, delta)
    }
}
