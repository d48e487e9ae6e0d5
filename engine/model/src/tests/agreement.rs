//! Tests of the agreement of bf16 and int8 arithmetic with f32: how often they choose the same
//! token, by architecture, and how far their logits differ.

use super::conformance::{Case, exact, references};
use super::*;

/// Smallest fraction of positions at which int8 (and, in the next constant, bf16) arithmetic must
/// choose the same token as f32; chance gives 1 in 384. The checkpoints are small and untrained, so
/// logits are close together, and routers and recurrent state amplify small differences.
const INT8_AGREEMENT_MIN: f64 = 0.6;
const BF16_AGREEMENT_MIN: f64 = 0.9;
/// The same for the default arithmetic, which multiplies MXFP4 weights in int8 and others in bf16
/// or f32.
const DEFAULT_AGREEMENT_MIN: f64 = 0.8;

/// Comparison of the logits of two arithmetics at the same positions.
#[derive(Debug, Default)]
struct Agreement {
    positions: usize,
    same: usize,
    /// Two sums of squares: `off` is that of the differences between the logits of the two
    /// arithmetics, `spread` that of the differences of the reference logits from their mean.
    off: f64,
    spread: f64,
}

impl Agreement {
    fn add(&mut self, ours: &[f32], exact: &[f32], vocab: usize) {
        for (ours, exact) in ours.chunks_exact(vocab).zip(exact.chunks_exact(vocab)) {
            let mean = exact.iter().map(|x| f64::from(*x)).sum::<f64>() / vocab as f64;
            self.positions += 1;
            self.same += usize::from(argmax(ours) == argmax(exact));
            self.off += ours.iter().zip(exact).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            self.spread += exact.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>();
        }
    }

    fn share(&self) -> f64 {
        self.same as f64 / self.positions as f64
    }
}

/// Returns the model's logits at every position of the prompt and its reference continuation.
fn logits(model: &mut dyn Model, case: &Case) -> Vec<f32> {
    let tokens = [&case.prompt[..], &case.greedy[..]].concat();
    let pages = (0..tokens.len().div_ceil(PAGE_TOKENS) as u32).collect();
    let sequences = vec![scheduled(tokens.len(), 0, pages, LogitRows::All)];
    model.step(&StepBatch::known(&tokens, sequences)).unwrap().to_vec()
}

#[test]
fn bytes_choose_as_f32_does_in_every_architecture() {
    check_agreement(Arithmetic::Int8, Some("int8"), INT8_AGREEMENT_MIN);
}

#[test]
fn bf16_chooses_as_f32_does_in_every_architecture() {
    check_agreement(Arithmetic::Bf16, Some("bf16"), BF16_AGREEMENT_MIN);
}

#[test]
fn the_default_chooses_as_f32_does_in_every_architecture() {
    check_agreement(Arithmetic::AsStored, None, DEFAULT_AGREEMENT_MIN);
}

/// Checks the agreement of an arithmetic with f32. `expected` is the type that each model must say
/// it is computed in; none where that depends on checkpoint and processor.
fn check_agreement(arithmetic: Arithmetic, expected: Option<&str>, least_allowed: f64) {
    let mut least = 1.0f64;
    for reference in references() {
        let load = |arithmetic| {
            let mut loaded = load_path(&reference.folder, &LoadOptions { arithmetic, ..exact() });
            loaded.model.allocate_kv(32, PAGE_TOKENS).unwrap();
            loaded.model.allocate_states(1).unwrap();
            loaded
        };
        let (mut exact, mut rounded) = (load(Arithmetic::F32), load(arithmetic));
        let dtype = rounded.info().compute_dtype;
        assert_eq!(dtype, expected.unwrap_or(dtype));
        let vocab = exact.info().vocab_size;
        let mut agreement = Agreement::default();
        for case in &reference.cases {
            let (ours, want) =
                (logits(rounded.model.as_mut(), case), logits(exact.model.as_mut(), case));
            agreement.add(&ours, &want, vocab);
        }
        eprintln!(
            "{} in {dtype}: {:.1} % of {} choices agree; logits are off by {:.1} % of their spread",
            reference.name,
            100.0 * agreement.share(),
            agreement.positions,
            100.0 * (agreement.off / agreement.spread).sqrt(),
        );
        least = least.min(agreement.share());
    }
    assert!(least >= least_allowed, "the least agreement in {arithmetic:?} is {least}");
}
