//! Inputs of a sampler, and what all samplers share: requests made of text or token ids, and random
//! lengths.

use anyhow::Context;
use schema::manifest::ManifestRequest;
use schema::run::PromptForm;
use schema::scenario::{Scenario, Workload};

use crate::measure::summary::{float, whole};
use crate::workload::arrival::seed_of_numpy;
use crate::workload::dataset::Dataset;
use crate::workload::generators::NumpyRandom;
use crate::workload::tokenizer::Tokenizer;

/// Maximum number of rounds in which a text is corrected to its length.
const ROUNDS: usize = 10;

pub type Requests = Vec<ManifestRequest>;

/// Inputs of a sampler: scenario, dataset, tokenizer and prompt form.
#[derive(Clone, Copy)]
pub struct Draw<'a> {
    pub scenario: &'a Scenario,
    /// Workload to draw: the scenario's, or a variant of it for warm-up requests.
    pub workload: &'a Workload,
    pub dataset: Option<&'a Dataset>,
    pub tokenizer: &'a Tokenizer,
    pub form: PromptForm,
}

/// Error of a request with an empty prompt or an empty answer.
pub fn empty(index: usize, what: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "request {index} would have {what} without tokens\nhint: raise `workload.range_ratio` or \
         the length"
    )
}

impl<'a> Draw<'a> {
    pub fn dataset(&self) -> anyhow::Result<&'a Dataset> {
        let workload = self.workload;
        self.dataset.with_context(|| {
            let (pack, dataset) =
                (workload.pack.id(), workload.dataset.clone().unwrap_or_default());
            format!("`{pack}` draws from a data set, and none was given\nhint: give `{dataset}`")
        })
    }

    /// Returns NumPy's legacy generator with the workload's seed.
    pub fn numpy(&self) -> anyhow::Result<NumpyRandom> {
        Ok(NumpyRandom::seed(seed_of_numpy(self.workload.seed)?))
    }

    /// Returns a request with this text, whose ids are the ones that a server makes of the text.
    pub fn of_text(
        &self,
        text: String,
        output_tokens: u64,
        index: usize,
    ) -> anyhow::Result<ManifestRequest> {
        let prompt = self.tokenizer.encode(&text)?;
        for (what, is_empty) in [("a prompt", prompt.is_empty()), ("an answer", output_tokens == 0)]
        {
            if is_empty {
                return Err(empty(index, what));
            }
        }
        let text = (self.form == PromptForm::Text).then_some(text);
        Ok(ManifestRequest { prompt, text, output_tokens, ..ManifestRequest::default() })
    }

    /// Returns a request with these token ids, or with their text where prompts are sent as text.
    pub fn of_ids(
        &self,
        prompt: Vec<u32>,
        output_tokens: u64,
        index: usize,
    ) -> anyhow::Result<ManifestRequest> {
        match self.form {
            PromptForm::Text => self.of_text(self.tokenizer.decode(&prompt)?, output_tokens, index),
            PromptForm::TokenIds => {
                Ok(ManifestRequest { prompt, output_tokens, ..ManifestRequest::default() })
            }
        }
    }

    /// Returns text and ids that are `ids.len()` tokens long and that decode and encode into each
    /// other: missing ids are drawn, surplus ids are cut. Some texts never settle and are returned as
    /// they are.
    pub fn settled(
        &self,
        mut ids: Vec<u32>,
        mut extra: impl FnMut() -> u32,
    ) -> anyhow::Result<(String, Vec<u32>)> {
        let wanted = ids.len();
        let mut round = 0;
        loop {
            let text = self.tokenizer.decode(&ids)?;
            ids = self.tokenizer.encode_plain(&text)?;
            if round == ROUNDS || ids.len() == wanted {
                return Ok((text, ids));
            }
            round += 1;
            ids.truncate(wanted);
            while ids.len() < wanted {
                ids.push(extra());
            }
        }
    }
}

/// Draws `count` lengths from `[ratio * bound, bound]`, none below `least`.
pub fn uniform(
    random: &mut NumpyRandom,
    bound: u64,
    ratio: f64,
    count: u64,
    least: u64,
) -> Vec<u64> {
    let low = scaled(bound, ratio).max(least);
    // `randint` excludes its upper end.
    (0..count).map(|_| random.randint(low, bound + 1)).collect()
}

/// Returns the tools' `int(bound * ratio)`.
pub fn scaled(bound: u64, ratio: f64) -> u64 {
    whole((float(bound) * ratio).floor())
}

/// Returns the tools' `ceil(mean * ratio)`.
pub fn scaled_up(mean: u64, ratio: f64) -> u64 {
    whole((float(mean) * ratio).ceil())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn drawn_lengths_lie_within_their_bounds(
            bound in 1_u64..5000, ratio in 0.0_f64..=1.0, seed in 0_u32..100
        ) {
            let mut random = NumpyRandom::seed(seed);
            let lengths = uniform(&mut random, bound, ratio, 20, 1);
            prop_assert_eq!(lengths.len(), 20);
            for length in lengths {
                prop_assert!((scaled(bound, ratio).max(1)..=bound).contains(&length));
            }
        }
    }
}
