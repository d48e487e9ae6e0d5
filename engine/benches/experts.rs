//! MoE layer sizes and router logits shared by the benchmarks of expert operations.

use engine_core::{Device, Gate};
use engine_cpu::{Buffer, Cpu};

use super::shapes::numbers;

/// Sizes of an MoE layer.
#[derive(Debug, Clone, Copy)]
pub struct Layer {
    pub experts: usize,
    /// Number of experts per row (top-k).
    pub chosen: usize,
    pub hidden: usize,
    pub intermediate: usize,
}

/// MoE layer of Qwen3-30B-A3B.
pub const LAYER: Layer = Layer { experts: 128, chosen: 8, hidden: 2048, intermediate: 768 };

/// Small MoE layer for tests.
pub const SMALL: Layer = Layer { experts: 4, chosen: 2, hidden: 64, intermediate: 32 };

pub const GATE: Gate = Gate::SoftmaxTop { normalized: true };

// Rows must have experts to go to, and consist of whole blocks of the stored formats.
const _: () = {
    assert!(LAYER.chosen <= LAYER.experts && SMALL.chosen <= SMALL.experts);
    assert!(LAYER.hidden.is_multiple_of(32) && SMALL.hidden.is_multiple_of(32));
    assert!(LAYER.intermediate > 0 && SMALL.intermediate > 0);
};

impl Layer {
    /// Pseudo-random router logits of `t` rows, which spread rows about evenly over the experts.
    pub fn logits(&self, cpu: &mut Cpu, t: usize) -> Buffer {
        let mut logits = cpu.buffer(self.experts).expect("a buffer");
        cpu.write(&mut logits, &numbers(t * self.experts)).expect("rows");
        logits
    }
}
