//! Constants of layers other than weight matrices, packed as their kernels read them: attention
//! sinks, KV scales, norms, convolutions.

use std::collections::BTreeMap;

use super::driver::Address;
use super::staging::Staging;
use super::stream::Stream;
use super::weights::{Part, Vector};
use crate::Result;
use engine_core::{AttentionLayer, DeltaNetLayer};

/// Packed constants of a model's attention and gated-delta-net layers, by the index of a layer
/// among the layers of its kind.
#[derive(Debug, Default)]
pub struct Layers {
    /// Packed constants of the attention layers, by index of the layer in the KV cache.
    attention: BTreeMap<usize, OfAttention>,
    /// Packed constants of the gated-delta-net layers (convolution, rates, biases and norm), by
    /// index of the layer among them.
    delta_net: BTreeMap<usize, Part>,
}

/// Packed constants of one attention layer.
#[derive(Debug)]
struct OfAttention {
    /// `[H + 2 G]` f32 for H query heads and G KV heads: attention sinks of the query heads, then
    /// key scales and value scales of the KV heads.
    heads: Part,
    /// Norm weights `[2, D]` of queries and keys, if the attention layer normalizes its heads.
    norms: Option<Part>,
    /// Number of query heads of the attention layer; the KV scales lie behind as many sinks.
    sinks: usize,
}

impl Layers {
    /// Packs the constants of an attention layer on the device, as its kernels read them.
    ///
    /// # Errors
    /// The device does not have enough memory.
    pub fn add_attention(
        &mut self,
        stream: &Stream,
        staging: &mut Staging,
        layer: &AttentionLayer<Vector>,
    ) -> Result<()> {
        let driver = &stream.driver;
        let (heads, kv_heads) = (layer.shape.heads, layer.shape.kv_heads);
        // Without sinks a weight of -infinity adds nothing to the softmax; without scales the
        // factor is 1.
        let mut values = vec![f32::NEG_INFINITY; heads];
        values.resize(heads + 2 * kv_heads, 1.0);
        let part = Part::new(driver, 4 * values.len())?;
        staging.send_f32(part.address(), &values)?;
        if let Some(sinks) = &layer.sinks {
            // Sinks are on the device already, so they are copied there.
            driver.copy(part.address(), sinks.part.address(), 4 * sinks.len)?;
        }
        if let Some(scales) = &layer.scales {
            driver.copy(part.address().plus(4 * heads), scales.part.address(), 4 * scales.len)?;
        }
        let norms = match &layer.head_norms {
            Some(norms) => Some(side_by_side(stream, &[&norms.query, &norms.key])?),
            None => None,
        };
        let of = OfAttention { heads: part, norms, sinks: heads };
        self.attention.insert(layer.kv_layer, of);
        Ok(())
    }

    /// Packs the constants of a gated-delta-net layer on the device, as its kernels read them.
    ///
    /// # Errors
    /// The device does not have enough memory.
    pub fn add_delta_net(&mut self, stream: &Stream, layer: &DeltaNetLayer<Vector>) -> Result<()> {
        let all = [&layer.conv, &layer.rate, &layer.bias, &layer.norm];
        self.delta_net.insert(layer.index, side_by_side(stream, &all)?);
        Ok(())
    }

    /// Returns the address of an attention layer's packed sinks and KV scales.
    pub fn heads(&self, kv_layer: usize) -> Address {
        self.attention[&kv_layer].heads.address()
    }

    /// Returns the address of an attention layer's KV scales: those of the keys, then those of the
    /// values.
    pub fn scales(&self, kv_layer: usize) -> Address {
        let of = &self.attention[&kv_layer];
        of.heads.address().plus(4 * of.sinks)
    }

    /// Returns the address of an attention layer's norm weights of queries and keys; null if the
    /// layer has none.
    pub fn norms(&self, kv_layer: usize) -> Address {
        self.attention[&kv_layer].norms.as_ref().map_or(Address::NULL, Part::address)
    }

    /// Returns the address of a gated-delta-net layer's packed constants.
    pub fn delta_net(&self, index: usize) -> Address {
        self.delta_net[&index].address()
    }
}

/// Copies device vectors one after another into one new allocation.
fn side_by_side(stream: &Stream, vectors: &[&Vector]) -> Result<Part> {
    let elements: usize = vectors.iter().map(|vector| vector.len).sum();
    let all = Part::new(&stream.driver, 4 * elements)?;
    let mut at = 0;
    for vector in vectors {
        stream.driver.copy(all.address().plus(4 * at), vector.part.address(), 4 * vector.len)?;
        at += vector.len;
    }
    Ok(all)
}
