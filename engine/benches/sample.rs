//! Benchmark of sampling the next token from a row of logits.

#[expect(dead_code, reason = "this bench uses a part of the shared table")]
mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::sample::{Row, Sampler, Sampling};
use shapes::{Case, Lazy, MODELS, SMOLLM2_135M, measure, numbers};

/// Sampling methods, as named in the ids of cases.
const WAYS: [&str; 3] = ["greedy", "top_k50", "top_p95"];

fn sampling(way: &str) -> Sampling {
    let warm = Sampling { temperature: 0.8, ..Sampling::greedy() };
    match way {
        "greedy" => Sampling::greedy(),
        "top_k50" => Sampling { top_k: Some(50), ..warm },
        _ => Sampling { top_p: 0.95, ..warm },
    }
}

pub fn case(way: &'static str, vocab: usize) -> Case {
    let logits: Vec<f32> = numbers(vocab).iter().map(|x| 10.0 * x).collect();
    let params = sampling(way);
    let mut sampler = Sampler::default();
    let tokens = [1, 2, 3];
    Case {
        id: format!("sample/V{vocab}_{way}/portable"),
        flops: vocab as u64,
        bytes: 4 * vocab as u64,
        run: Box::new(move || {
            let row = Row {
                logits: &logits,
                tokens: &tokens,
                prompt_tokens: 2,
                banned: &[],
                allowed: None,
            };
            sampler.sample(row, &params).expect("finite logits");
        }),
    }
}

pub fn cases() -> Vec<Lazy> {
    let mut cases: Vec<Lazy> = Vec::new();
    for shape in &MODELS[..2] {
        for way in WAYS {
            cases.push(Box::new(move || case(way, shape.vocab)));
        }
    }
    cases
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    case(WAYS[1], SMOLLM2_135M.vocab)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "sample", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
