//! Memory of layers on the device besides weight matrices: constants (attention sinks, KV scales,
//! norms, convolutions), packed as their kernels read them, paged KV cache and recurrent state.
//! Which page belongs to which sequence is the scheduler's business and not known here.

use std::collections::BTreeMap;

use super::driver::{Address, Memory};
use super::launch::attention::PageType;
use super::staging::Staging;
use super::stream::Stream;
use super::weights::{Part, Vector};
use crate::{Result, failed};
use engine_core::{AttentionLayer, DeltaNetLayer, KvShape, KvType, StateShape};

/// Smallest size of a KV page in tokens: kernels interleave the rows of a page in groups of eight,
/// so a smaller page cannot be addressed.
const PAGE_TOKENS_MIN: usize = 8;

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
    /// Norm weights `[2, D]` of queries and keys; `None` if the attention layer does not normalize
    /// its heads.
    norms: Option<Part>,
    /// Number of query heads of the attention layer; the KV scales lie behind as many sinks.
    sinks: usize,
}

impl Layers {
    /// Packs the constants of an attention layer on the device, as its kernels read them.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
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
    /// Memory cannot be allocated, or the device reports an error.
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

/// KV cache of all layers, in pages ("blocks" in vLLM's words). One page more than the scheduler's
/// is allocated: padding rows of a CUDA graph write there.
///
/// For each page, layer and KV head the cache has the keys, `[page tokens, D]` swizzled as matrix
/// multiplications read them (`kernels/pages.cuh`), followed by the values.
#[derive(Debug)]
pub struct Kv {
    pub shape: KvShape,
    pub memory: Memory,
}

impl Kv {
    /// Returns the bytes of device memory that a KV cache of `shape` takes, including the page for
    /// padding rows.
    ///
    /// # Errors
    /// The page size is not a power of two of at least eight tokens, or the size in bytes
    /// overflows.
    pub fn bytes(shape: &KvShape) -> Result<usize> {
        let wrong = |message| failed("kv", message);
        let tokens = shape.page_tokens;
        if !tokens.is_power_of_two() || tokens < PAGE_TOKENS_MIN {
            let from = PAGE_TOKENS_MIN;
            return Err(wrong(format!(
                "a page has {tokens} tokens, and must have a power of two, at least {from}"
            )));
        }
        let page = shape.token_bytes() * tokens;
        // One page more, to which padding rows write.
        let bytes = (shape.pages + 1).checked_mul(page);
        bytes.ok_or_else(|| wrong(format!("the size in bytes of {} pages overflows", shape.pages)))
    }

    /// Returns the index of the extra KV page to which padding rows write; it belongs to no
    /// sequence.
    pub fn scratch_page(shape: &KvShape) -> u32 {
        shape.pages as u32
    }

    /// Returns the distance from one KV page of a layer to the next page of that layer, in units of
    /// `[page tokens, D]`.
    pub fn page_stride(&self) -> u32 {
        (2 * self.shape.layers * self.shape.kv_heads) as u32
    }

    /// Returns the address of the keys of `layer`'s first KV page.
    pub fn layer(&self, layer: usize) -> Address {
        let KvShape { layers, kv_heads, head_dim, page_tokens, kv_type, .. } = self.shape;
        assert!(layer < layers, "the layer has pages");
        // Every KV head has keys and values, hence twice the heads of the layers before.
        let heads = 2 * layer * kv_heads;
        self.memory.address().plus(heads * page_tokens * head_dim * kv_type.bytes())
    }

    /// Returns the element type by which the attention kernels are chosen: FP8 for a KV cache in
    /// FP8, else bf16.
    pub fn page_type(&self) -> PageType {
        match self.shape.kv_type {
            KvType::Fp8 => PageType::E4m3,
            _ => PageType::Bf16,
        }
    }
}

/// Recurrent state of all linear-attention layers, in slots, each for a running sequence or a
/// snapshot. One slot more than the scheduler's is allocated: padding rows of a CUDA graph write
/// there.
#[derive(Debug)]
pub struct State {
    pub shape: StateShape,
    pub memory: Memory,
}

impl State {
    /// Returns the bytes of device memory that recurrent state of `shape` takes, including the slot
    /// for padding rows.
    pub fn bytes(shape: &StateShape) -> usize {
        (shape.slots + 1) * shape.slot_bytes()
    }

    /// Returns the distance from one slot of recurrent state to the next, in f32 elements.
    pub fn slot_stride(&self) -> u32 {
        (self.shape.layers * self.shape.net.state_elements()) as u32
    }

    /// Returns the address of `layer`'s recurrent state in the first slot.
    pub fn layer(&self, layer: usize) -> Address {
        assert!(layer < self.shape.layers, "the layer has state");
        self.memory.address().plus(layer * self.shape.net.state_elements() * size_of::<f32>())
    }
}
