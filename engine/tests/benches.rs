//! Runs a small case of every benchmark once, so that none breaks unnoticed. Nothing is timed.

#[path = "../benches/step.rs"]
mod step;

use engine::bench::cases::{Case, Matmul, MoeOp, MoeShape, RowOp, SMOLLM2_135M, Step};
use engine::bench::setup::{Setup, sample};
use engine_core::sample::Sampling;
use engine_core::{DeltaNetShape, Gate, KvType, WeightType};
use engine_cpu::{Cpu, Isa};

/// True for a size such as `T1`: a capital letter and a number.
fn is_size(word: &str) -> bool {
    let number = word.strip_prefix(|letter: char| letter.is_ascii_uppercase());
    number.is_some_and(|number| number.parse::<usize>().is_ok())
}

/// A small case of every operation.
fn small() -> Vec<Case> {
    let setup = || Setup::new(Cpu::new(Isa::best(), 2), 0);
    let weight_type = WeightType::Q4_1;
    let matmul = Matmul { t: 1, k: 576, n: 1536, weight_type };
    let moe = MoeShape { experts: 4, top_k: 2, hidden: 64, intermediate: 32 };
    let net = DeltaNetShape { key_heads: 1, value_heads: 2, key_dim: 128, value_dim: 128, taps: 4 };
    let step = Step { sequences: 1, rows: 1, context: 32 };
    let layer = ("smollm2-135m", SMOLLM2_135M.attention(), None);
    let mut cases = vec![
        setup().matmul("matmul", matmul, false),
        setup().embed(1, 64, 576, WeightType::Q8_0),
        setup().rope(&SMOLLM2_135M, 1),
        setup().attention(layer, KvType::F16, step),
        setup().delta_net(net, 1, 1),
        Ok(sample("top_k50", Sampling { top_k: Some(50), ..Sampling::greedy() }, 49_152)),
    ];
    for op in RowOp::ALL {
        cases.push(setup().rows(op, 1, 576));
    }
    let route = MoeOp::Route(Gate::SoftmaxTop { normalized: true });
    for op in [route, MoeOp::Dispatch, MoeOp::Combine, MoeOp::ExpertMatmul(weight_type)] {
        cases.push(setup().moe(op, moe, 1));
    }
    cases.into_iter().map(|case| case.expect("the case fits into memory")).collect()
}

#[test]
fn a_small_case_of_every_bench_runs() {
    for mut case in small() {
        (case.run)().unwrap();
        // MoE dispatch only copies rows, so it has no floating-point operations.
        assert!((case.flops > 0 || case.op == "dispatch") && case.bytes > 0, "{case:?}");
    }
    step::decoding(1).turn();
    // The group of criterion would be dead code here otherwise.
    let _runs_them: fn() = step::benches;
}

#[test]
fn a_case_names_sizes_and_data_type() {
    for case in small() {
        // Sizes, then the data type, which a record tells apart by them: `T1_K576_q4_1`.
        let id = format!("{}_{}", case.shape, case.dtype);
        let words: Vec<&str> = id.split('_').collect();
        let sizes = words.iter().take_while(|word| is_size(word)).count();
        assert_eq!(words[..sizes].join("_"), case.shape, "{id}");
        assert!(0 < sizes && sizes < words.len(), "{id}");
    }
}
