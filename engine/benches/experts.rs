//! The layer of experts that the benches of its operations share.

use engine_core::{Device, Gate};
use engine_cpu::{Buffer, Cpu};

use super::shapes::numbers;

/// Sizes of a layer of experts.
#[derive(Debug, Clone, Copy)]
pub struct Layer {
    pub experts: usize,
    /// Experts that each row goes to.
    pub chosen: usize,
    pub hidden: usize,
    pub intermediate: usize,
}

/// Layer of Qwen3-30B-A3B.
pub const LAYER: Layer = Layer { experts: 128, chosen: 8, hidden: 2048, intermediate: 768 };

/// The layer that tests run.
pub const SMALL: Layer = Layer { experts: 4, chosen: 2, hidden: 64, intermediate: 32 };

pub const GATE: Gate = Gate::SoftmaxTop { normalized: true };

// Rows have somewhere to go, and are whole blocks of the stored types.
const _: () = {
    assert!(LAYER.chosen <= LAYER.experts && SMALL.chosen <= SMALL.experts);
    assert!(LAYER.hidden.is_multiple_of(32) && SMALL.hidden.is_multiple_of(32));
    assert!(LAYER.intermediate > 0 && SMALL.intermediate > 0);
};

impl Layer {
    /// Logits that send `t` rows as evenly as chance has it.
    pub fn logits(&self, cpu: &mut Cpu, t: usize) -> Buffer {
        let mut logits = cpu.buffer(self.experts).expect("a buffer");
        cpu.write(&mut logits, &numbers(t * self.experts)).expect("rows");
        logits
    }
}
