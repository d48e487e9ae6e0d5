//! Cases for benchmarks of row-wise operations: each instruction set, model and number of rows.

use engine_cpu::{Cpu, Isa};

use super::shapes::{Case, Lazy, MODELS, Shape, TOKENS, device};

/// Lists a case for each instruction set, model and number of rows; `cols` returns the model's
/// number of columns.
pub fn cases(cols: fn(&Shape) -> usize, case: fn(Cpu, usize, usize) -> Case) -> Vec<Lazy> {
    let mut cases: Vec<Lazy> = Vec::new();
    for isa in Isa::detected() {
        for shape in MODELS {
            for t in TOKENS {
                cases.push(Box::new(move || case(device(isa), t, cols(&shape))));
            }
        }
    }
    cases
}
