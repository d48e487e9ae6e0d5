//! State slots of the CPU: recurrent state of running sequences and of snapshots, over all layers
//! with recurrent state.
//!
//! Their memory comes zeroed from the operating system and is touched only as slots fill. For each
//! layer, slot and key head it holds the last inputs of the convolution, `[taps - 1][channels of
//! the head]`, and then a matrix for each value head, `[value dim / 16][key dim][16]`, the value dim
//! rounded up to whole vectors: the few groups of columns that the delta rule computes together
//! then fill all sets of the L1 cache evenly.

use memmap2::MmapMut;

use super::kv::StepMetadata;
use super::lanes::LANES;
use super::memory::reserve;
use engine_core::{DeltaNetShape, DeviceError, StateShape, check_state_slots};

/// State slots of the CPU: recurrent state of all layers that have any.
#[derive(Debug)]
pub struct State {
    pub(super) shape: StateShape,
    pub(super) storage: MmapMut,
}

impl State {
    pub(super) fn new(shape: StateShape) -> Result<Self, DeviceError> {
        let head = Head::new(&shape.net);
        let sizes = [shape.layers, shape.slots, shape.net.key_heads, head.elements(), 4];
        let storage = reserve("state", &format!("{} slots", shape.slots), &sizes)?;
        Ok(Self { shape, storage })
    }

    /// Returns an error if a sequence of the step has no state slot, or names one that does not
    /// exist.
    pub(super) fn check(&self, step: &StepMetadata) -> Result<(), DeviceError> {
        check_state_slots(&step.sequences, self.shape.slots)
            .map_err(|message| DeviceError { operation: "state", message })
    }
}

/// Sizes, in f32 elements, of the recurrent state of one key head and its value heads in one slot
/// and layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    /// Number of channels of the key head that pass the convolution: query, key, and the values of
    /// its value heads.
    pub(super) channels: usize,
    /// Number of earlier inputs per channel that the causal convolution uses.
    pub(super) past: usize,
    /// Number of elements of the recurrent state matrix of one value head, padding included.
    pub(super) matrix: usize,
    group: usize,
}

impl Head {
    pub(super) fn new(shape: &DeltaNetShape) -> Self {
        let group = shape.group();
        Self {
            channels: 2 * shape.key_dim + group * shape.value_dim,
            past: shape.taps - 1,
            matrix: shape.key_dim * shape.value_dim.next_multiple_of(LANES),
            group,
        }
    }

    /// Returns the number of elements of the convolution's earlier inputs of one key head, in one
    /// slot and layer.
    pub(super) fn history(&self) -> usize {
        self.past * self.channels
    }

    /// Returns the number of elements of one key head's whole recurrent state in one slot and
    /// layer.
    pub(super) fn elements(&self) -> usize {
        self.history() + self.group * self.matrix
    }

    /// Returns the index of the first element of the recurrent state of key head `head` in state
    /// slot `slot` of layer `layer`.
    pub(super) fn start(&self, shape: &StateShape, layer: usize, slot: u32, head: usize) -> usize {
        assert!(layer < shape.layers && head < shape.net.key_heads, "the layer has state");
        let slot = layer * shape.slots + slot as usize;
        (slot * shape.net.key_heads + head) * self.elements()
    }
}
