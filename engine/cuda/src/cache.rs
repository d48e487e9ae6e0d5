//! Paged KV cache and recurrent state in GPU memory: sizes and addresses. Which page belongs to
//! which sequence is the scheduler's business and not known here.

use super::driver::{Address, Memory};
use super::launch::attention::PageType;
use crate::{Result, failed};
use engine_core::{KvShape, KvType, StateShape};

/// Smallest size of a KV page in tokens: kernels interleave the rows of a page in groups of eight,
/// so a smaller page cannot be addressed.
const PAGE_TOKENS_MIN: usize = 8;

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

    /// Returns the number of the extra KV page to which padding rows write; it belongs to no
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

    /// Returns the element type of keys and values, as the attention kernels name it.
    pub fn page_type(&self) -> PageType {
        match self.shape.kv_type {
            KvType::Fp8 => PageType::E4m3,
            _ => PageType::Bf16,
        }
    }
}

/// Recurrent state of all linear-attention layers, in slots of one sequence each. One slot more
/// than the scheduler's is allocated: padding rows of a CUDA graph write there.
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
