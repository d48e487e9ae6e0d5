//! Published token totals of other tools' samples, to check that our samplers draw the same.

use std::fmt;

use schema::run::PromptForm;
use schema::scenario::{
    Arrival, CacheProtocol, Connections, Output, Pack, Scenario, Tier, Warmup, WarmupSource,
    Workload,
};
use serde::Deserialize;

use super::dataset::Dataset;
use super::sampler::plan;
use super::tokenizer::Tokenizer;

/// Built-in table of published totals: `suite/published.toml`.
pub const BUILT_IN: &str = include_str!("../../published.toml");

/// Published totals of samples from one dataset.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    pub dataset: PublishedDataset,
    pub totals: Vec<Totals>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedDataset {
    /// File name that the dataset's publisher uses.
    pub name: String,
    pub sha256: String,
}

/// Published token totals of one sample.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    pub pack: Pack,
    pub requests: u64,
    pub seed: u64,
    /// Common name of the tokenizer.
    pub tokenizer: String,
    pub tokenizer_sha256: String,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pack, tokenizer) = (self.pack.id(), &self.tokenizer);
        write!(formatter, "{pack}, {} requests, seed {}, {tokenizer}", self.requests, self.seed)
    }
}

/// Parses a table of published totals.
///
/// # Errors
/// The text is not TOML with the fields of a table.
pub fn parse(text: &str) -> Result<Published, Box<toml::de::Error>> {
    toml::from_str(text).map_err(Box::new)
}

impl Totals {
    /// Draws the sample and returns its total numbers of input and output tokens.
    ///
    /// # Errors
    /// The dataset is too small, or a text cannot be tokenized.
    pub fn drawn(&self, dataset: &Dataset, tokenizer: &Tokenizer) -> anyhow::Result<(u64, u64)> {
        let drawn = plan("published", &self.scenario(), Some(dataset), tokenizer, FORM)?.manifest;
        Ok((drawn.input_tokens(), drawn.output_tokens()))
    }

    fn scenario(&self) -> Scenario {
        Scenario {
            question: "Is the published sample drawn again?".to_owned(),
            rev: 1,
            workload: Workload {
                pack: self.pack,
                dataset: Some("published".to_owned()),
                requests: self.requests,
                seed: self.seed,
                input_tokens: None,
                output_tokens: None,
                range_ratio: None,
                prefix_tokens: None,
                groups: None,
                turns_max: None,
                think_us: None,
            },
            warmup: Warmup { requests: 0, from: WarmupSource::Disjoint, output_tokens_max: None },
            arrival: Arrival::AllAtOnce,
            output: Output { ignore_eos: true, temperature: Some(0.0), ..Output::default() },
            tier: Tier::Full,
            connections: Connections::default(),
            cache: CacheProtocol::default(),
        }
    }
}

const FORM: PromptForm = PromptForm::TokenIds;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_names_the_published_totals() {
        let published = parse(BUILT_IN).unwrap();
        let qwen3 = published.totals.iter().find(|totals| totals.tokenizer == "Qwen3").unwrap();
        assert_eq!((qwen3.input_tokens, qwen3.output_tokens), (2_258_583, 1_992_177));
        assert_eq!(qwen3.to_string(), "sharegpt@lmdeploy, 10000 requests, seed 1, Qwen3");
    }
}
