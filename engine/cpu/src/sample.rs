//! Sampling of a token from each row of logits, rows in parallel.

#![expect(unsafe_code, reason = "threads have a sampler each and write disjoint results")]

use engine_core::sample::{SampleParams, Sampler};

use super::isa::{Isa, Kernel};
use super::lanes::Lanes;
use super::pool::{PARALLEL_ELEMENTS, Pool};
use super::shared::Shared;

/// Samples a token from each row of `logits`, `[params.len(), vocab]`, with the parameters of the
/// row, and writes it to `tokens`, `[params.len()]`; `None` for a row without a finite logit. A
/// thread uses its own one of the `samplers`. The result does not depend on the threads.
pub(super) fn rows(
    isa: Isa,
    pool: &mut Pool,
    samplers: &mut [Sampler],
    logits: &[f32],
    params: &[SampleParams],
    tokens: &mut [Option<u32>],
) {
    assert_eq!(params.len(), tokens.len(), "a token for each row");
    if params.is_empty() {
        return;
    }
    let vocab = logits.len() / params.len();
    let (samplers, tokens) = (Shared::new(samplers), Shared::new(tokens));
    let sample = |thread: usize, row: usize| {
        // SAFETY: no other thread has this sampler, and no other item this result.
        let (sampler, token) = unsafe { (samplers.part(thread, 1), tokens.part(row, 1)) };
        let logits = &logits[row * vocab..(row + 1) * vocab];
        let (sampler, token) = (&mut sampler[0], &mut token[0]);
        isa.run(SampleRow { sampler, logits, params: &params[row], token });
    };
    if logits.len() < PARALLEL_ELEMENTS {
        return (0..params.len()).for_each(|row| sample(0, row));
    }
    pool.items(params.len(), &sample);
}

/// Kernel that samples a token from one row of logits.
struct SampleRow<'a> {
    sampler: &'a mut Sampler,
    logits: &'a [f32],
    params: &'a SampleParams,
    token: &'a mut Option<u32>,
}

impl Kernel for SampleRow<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _lanes: L) {
        *self.token = self.sampler.sample_logits(self.logits, self.params).ok();
    }
}
