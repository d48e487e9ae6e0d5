//! Pages of keys and values, and places for recurrent state.

use super::driver::{Address, Memory};
use super::launch::attention::PageType;
use engine_core::{DeviceError, KvShape, KvType, StateShape};

/// Rows whose places in a page follow from each other's.
const PAGE_TOKENS_MIN: usize = 8;

/// Pages of all layers, and one more, to which rows write that are nobody's. Of each page, layer and
/// KV head the keys, `[page tokens, D]` placed as products read them (`kernels/pages.cuh`), then the
/// values.
#[derive(Debug)]
pub struct Kv {
    pub shape: KvShape,
    pub memory: Memory,
}

impl Kv {
    /// Bytes of `shape`.
    ///
    /// # Errors
    /// Pages are not of a power of two of tokens, eight at least, or more than memory can be.
    pub fn bytes(shape: &KvShape) -> Result<usize, DeviceError> {
        let wrong = |message| DeviceError { operation: "kv", message };
        let tokens = shape.page_tokens;
        if !tokens.is_power_of_two() || tokens < PAGE_TOKENS_MIN {
            let from = PAGE_TOKENS_MIN;
            return Err(wrong(format!(
                "a page of {tokens} tokens is no power of two from {from} on"
            )));
        }
        let page = shape.token_bytes() * tokens;
        let bytes = (shape.pages + 1).checked_mul(page);
        bytes.ok_or_else(|| wrong(format!("{} pages are more than memory can be", shape.pages)))
    }

    /// The page that is nobody's.
    pub fn scratch_page(shape: &KvShape) -> u32 {
        shape.pages as u32
    }

    /// From one page of a layer to the next, in `[page tokens, D]`.
    pub fn page_stride(&self) -> u32 {
        (2 * self.shape.layers * self.shape.kv_heads) as u32
    }

    /// Where the first page of `layer` begins.
    pub fn layer(&self, layer: usize) -> Address {
        let KvShape { layers, kv_heads, head_dim, page_tokens, kv_type, .. } = self.shape;
        assert!(layer < layers, "the layer has pages");
        let heads = 2 * layer * kv_heads;
        self.memory.address().plus(heads * page_tokens * head_dim * kv_type.bytes())
    }

    pub fn page_type(&self) -> PageType {
        match self.shape.kv_type {
            KvType::Fp8 => PageType::E4m3,
            _ => PageType::Bf16,
        }
    }
}

/// Places of all layers, and one more, to which rows write that are nobody's.
#[derive(Debug)]
pub struct State {
    pub shape: StateShape,
    pub memory: Memory,
}

impl State {
    /// Bytes of `shape`.
    pub fn bytes(shape: &StateShape) -> usize {
        (shape.places + 1) * shape.place_bytes()
    }

    /// From one place to the next, in f32.
    pub fn place_stride(&self) -> u32 {
        (self.shape.layers * self.shape.net.state_elements()) as u32
    }

    /// Where the first place of `layer` begins.
    pub fn layer(&self, layer: usize) -> Address {
        assert!(layer < self.shape.layers, "the layer has state");
        self.memory.address().plus(layer * self.shape.net.state_elements() * size_of::<f32>())
    }
}
