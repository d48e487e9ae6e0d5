//! What layers have beside weights that are multiplied, as their kernels read it: side by side.

use std::collections::BTreeMap;

use super::driver::Address;
use super::staging::Staging;
use super::stream::Stream;
use super::weights::{Part, Vector};
use engine_core::{AttentionLayer, DeltaNetLayer, DeviceError};

/// Constants of layers, by their number among those of their kind.
#[derive(Debug, Default)]
pub struct Layers {
    attention: BTreeMap<usize, OfAttention>,
    /// Convolution, rates, biases and norm.
    delta_net: BTreeMap<usize, Part>,
}

#[derive(Debug)]
struct OfAttention {
    /// `[H + 2 KV]` sinks of the query heads, then scales of the heads' keys and of their values.
    heads: Part,
    /// `[2, D]` norms of queries and of keys.
    norms: Option<Part>,
    /// Query heads, behind whose sinks the scales begin.
    sinks: usize,
}

impl Layers {
    /// Puts what the kernels read of `layer` side by side.
    ///
    /// # Errors
    /// The device is full.
    pub fn add_attention(
        &mut self,
        stream: &Stream,
        staging: &mut Staging,
        layer: &AttentionLayer<Vector>,
    ) -> Result<(), DeviceError> {
        let driver = stream.driver();
        let (heads, kv_heads) = (layer.shape.heads, layer.shape.kv_heads);
        let mut values = vec![f32::NEG_INFINITY; heads];
        values.resize(heads + 2 * kv_heads, 1.0);
        let part = Part::new(driver, 4 * values.len())?;
        staging.send_f32(part.address(), &values)?;
        if let Some(sinks) = &layer.sinks {
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

    /// Puts what the kernels read of `layer` side by side.
    ///
    /// # Errors
    /// The device is full.
    pub fn add_delta_net(
        &mut self,
        stream: &Stream,
        layer: &DeltaNetLayer<Vector>,
    ) -> Result<(), DeviceError> {
        let all = [&layer.conv, &layer.rate, &layer.bias, &layer.norm];
        self.delta_net.insert(layer.index, side_by_side(stream, &all)?);
        Ok(())
    }

    /// Sinks and scales of a layer.
    pub fn heads(&self, kv_layer: usize) -> Address {
        self.attention[&kv_layer].heads.address()
    }

    /// Scales of the keys and values of a layer's heads.
    pub fn scales(&self, kv_layer: usize) -> Address {
        let of = &self.attention[&kv_layer];
        of.heads.address().plus(4 * of.sinks)
    }

    /// Norms of a layer's heads; nowhere if it has none.
    pub fn norms(&self, kv_layer: usize) -> Address {
        self.attention[&kv_layer].norms.as_ref().map_or(Address::NULL, Part::address)
    }

    pub fn delta_net(&self, index: usize) -> Address {
        self.delta_net[&index].address()
    }
}

fn side_by_side(stream: &Stream, vectors: &[&Vector]) -> Result<Part, DeviceError> {
    let elements: usize = vectors.iter().map(|vector| vector.len).sum();
    let all = Part::new(stream.driver(), 4 * elements)?;
    let mut at = 0;
    for vector in vectors {
        stream.driver().copy(all.address().plus(4 * at), vector.part.address(), 4 * vector.len)?;
        at += vector.len;
    }
    Ok(all)
}
