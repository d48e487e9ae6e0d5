//! A measurement as other tools of the field write theirs. Pure: a measurement and its samples go
//! in, the text of a file comes out.
//!
//! Keys, order and units are those of the tool; what each credits and how it takes percentiles is
//! followed too. What is not known is null or left out. In every format E2E ends at the last token
//! and the duration is `wall_us`, where the tools themselves go on to the end of the stream.

mod aiperf;
mod console;
mod figures;
mod guidellm;
mod llm_d;
mod lmdeploy;
mod requests;
mod sglang;
mod vllm;

use clap::ValueEnum;
use schema::measurement::Measurement;
use schema::samples::Sample;
use schema::workload::{Pack, Workload};

pub use figures::python_float;
pub use vllm::{Percentile, Quantity, Selection, compact_date};

use figures::Figures;
use requests::Requests;

/// A tool's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Console block of LMDeploy's `profile_restful_api.py` v0.9.2, the one of published pages.
    Lmdeploy,
    /// LMDeploy's CSV: its head and one row.
    LmdeployCsv,
    /// Console block of SGLang's `bench_serving` 0.5.
    Sglang,
    /// The line of SGLang's JSONL.
    SglangJsonl,
    /// The same with the lists of all requests, as with `--output-details`.
    SglangJsonlDetailed,
    /// Console block of `vllm bench serve` 0.33.
    Vllm,
    /// The JSON of `vllm bench serve --save-result`.
    VllmJson,
    /// The same with the lists of all requests, as with `--save-detailed`.
    VllmJsonDetailed,
    /// guidellm's report, version 2.
    Guidellm,
    /// AIPerf's `profile_export_aiperf.json`, schema 1.4.
    Aiperf,
    /// llm-d's benchmark report 0.2.1, in the JSON that its schema describes.
    LlmD,
}

impl Format {
    /// The name that a flag gives it.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Its figures are taken from the samples, not from the measurement alone.
    #[must_use]
    pub fn needs_samples(self) -> bool {
        let detailed = matches!(self, Self::SglangJsonlDetailed | Self::VllmJsonDetailed);
        detailed || matches!(self, Self::Guidellm | Self::Aiperf | Self::LlmD)
    }
}

/// What reports say about a run that its measurement does not.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The server's kind, as the tool was told it.
    pub backend: Option<String>,
    /// Name of the model on the server.
    pub model: Option<String>,
    pub tokenizer: Option<String>,
    pub workload: Option<Workload>,
    /// What vLLM's formats show.
    pub selection: Selection,
    /// vLLM's `label`, SGLang's `tag`.
    pub label: Option<String>,
    /// Further keys of vLLM's result.
    pub metadata: Vec<(String, String)>,
}

impl Asked {
    /// The data set by the name that the field's `--dataset-name` has for it.
    fn dataset_name(&self) -> Option<&'static str> {
        Some(match self.workload.as_ref()?.pack {
            Pack::SharegptLmdeploy
            | Pack::SharegptVllm
            | Pack::SharegptSglang
            | Pack::SharegptSglangOld => "sharegpt",
            Pack::RandomLmdeploy
            | Pack::RandomSglang
            | Pack::RandomVllm
            | Pack::RandomInferencex => "random",
            Pack::PrefixGroupsSglang => "generated-shared-prefix",
            Pack::PrefixRepetitionVllm => "prefix_repetition",
            Pack::TraceMooncake => "mooncake",
            Pack::Jsonl => "custom",
            Pack::MultiTurn => return None,
        })
    }

    /// Length that answers to conversations are asked to have, where it is not that of the data.
    fn sharegpt_output_len(&self) -> Option<u64> {
        let workload = self.workload.as_ref()?;
        workload.output_tokens.filter(|_| self.dataset_name() == Some("sharegpt"))
    }

    /// The workload where its prompts are made to a length.
    fn random(&self) -> Option<&Workload> {
        self.workload.as_ref().filter(|_| self.dataset_name() != Some("sharegpt"))
    }

    fn backend(&self) -> &str {
        self.backend.as_deref().unwrap_or("unknown")
    }
}

/// A measurement, its samples where they are at hand, and what else is known.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    pub measurement: &'a Measurement,
    /// In the order of the plan; empty where they are not at hand.
    pub samples: &'a [Sample],
    pub asked: &'a Asked,
}

/// A measurement that a format cannot hold.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    #[error("no request was answered, so that there are no figures to export")]
    NothingMeasured,
    #[error(
        "format `{0}` is made from samples, and there are none\nhint: keep the file that ends in \
         `.samples.jsonl` beside the measurement"
    )]
    NoSamples(String),
}

/// The text of `report` in `format`, its last line ended.
///
/// # Errors
/// Nothing was measured, or the format needs samples and there are none.
pub fn export(format: Format, report: &Report<'_>) -> Result<String, ExportError> {
    let figures = Figures::of(report).ok_or(ExportError::NothingMeasured)?;
    if format.needs_samples() && report.samples.is_empty() {
        return Err(ExportError::NoSamples(format.name()));
    }
    let requests = Requests::of(report.samples);
    Ok(match format {
        Format::Lmdeploy => console::lmdeploy(&figures),
        Format::LmdeployCsv => lmdeploy::csv(&figures),
        Format::Sglang => console::sglang(&figures),
        Format::SglangJsonl => line(&sglang::object(&figures)),
        Format::SglangJsonlDetailed => line(&sglang::detailed(&figures, &requests)),
        Format::Vllm => console::vllm(&figures, &requests),
        Format::VllmJson => line(&vllm::object(&figures, &requests, false)),
        Format::VllmJsonDetailed => line(&vllm::object(&figures, &requests, true)),
        Format::Guidellm => pretty(&guidellm::report(&figures, &requests)),
        Format::Aiperf => pretty(&aiperf::report(&figures, &requests)),
        Format::LlmD => pretty(&llm_d::report(&figures, &requests)),
    })
}

fn line(value: &serde_json::Value) -> String {
    value.to_string() + "\n"
}

fn pretty(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}
