//! Exports a measurement in the formats of other benchmark tools. A pure function: a measurement
//! and its samples go in, the text of a file comes out.
//!
//! Keys, order, units, counting of output tokens and percentile methods are those of the tool.
//! Unknown values are null or left out. One definition stays Redline's in every format: E2E ends at
//! the last token and the duration is `wall_us`, whereas the tools continue to the end of the
//! stream.

mod aiperf;
mod figures;
mod guidellm;
mod llm_d;
mod serving_tools;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use schema::measurement::Measurement;
use schema::samples::Sample;
use schema::workload::{Pack, Workload};

pub use figures::{compact_date, python_float};
pub use serving_tools::{Quantity, Selection};

use figures::{Figures, Requests};

/// Output format of another benchmark tool, in which a measurement is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Console block of LMDeploy's `profile_restful_api.py` v0.9.2, as on published pages.
    Lmdeploy,
    /// Result file of LMDeploy's `profile_restful_api.py`, a CSV with its header and one row.
    LmdeployCsv,
    /// Console block of SGLang's `bench_serving` 0.5.
    Sglang,
    /// One line of the JSONL result file of SGLang's `bench_serving`.
    SglangJsonl,
    /// One line of the JSONL result file of SGLang's `bench_serving`, with lists of the figures of
    /// all requests, as with `--output-details`.
    SglangJsonlDetailed,
    /// Console block of `vllm bench serve` 0.33.
    Vllm,
    /// JSON result file of `vllm bench serve --save-result`.
    VllmJson,
    /// JSON result file of `vllm bench serve` with lists of the figures of all requests, as with
    /// `--save-detailed`.
    VllmJsonDetailed,
    /// JSON report of guidellm, format version 2.
    Guidellm,
    /// AIPerf's JSON report `profile_export_aiperf.json`, schema 1.4.
    Aiperf,
    /// AIPerf's records of all requests, `profile_export.jsonl`, one JSON object per line.
    AiperfJsonl,
    /// llm-d's benchmark report 0.2.1, in the JSON that its schema describes.
    LlmD,
}

/// Returns the name of a flag's value as it is written on the command line.
pub fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl Format {
    /// True when the format cannot be written without the samples file, because it has values that
    /// the measurement does not contain.
    pub fn needs_samples(self) -> bool {
        let nested = matches!(self, Self::Guidellm | Self::Aiperf | Self::AiperfJsonl | Self::LlmD);
        self.is_vllm() || self.has_texts() || nested
    }

    /// True when the format has the texts of the answers, which a run keeps only for it.
    pub fn has_texts(self) -> bool {
        matches!(self, Self::SglangJsonlDetailed | Self::VllmJsonDetailed)
    }

    /// True for the formats of vLLM's tool, which counts a chunk without text as a token.
    fn is_vllm(self) -> bool {
        matches!(self, Self::Vllm | Self::VllmJson | Self::VllmJsonDetailed)
    }
}

/// Facts that a tool's report states about a run and a measurement does not contain.
#[derive(Clone, Debug, Default)]
pub struct ReportFacts {
    /// Kind of server, such as `vllm`: the value of the flag `--backend`, or the id of the engine
    /// file; `None` if unknown.
    pub backend: Option<String>,
    /// Model name, as a flag gives it or the server reports it; `None` if unknown.
    pub model: Option<String>,
    pub tokenizer: Option<String>,
    pub workload: Option<Workload>,
    /// Latency metrics and percentiles that vLLM's formats show.
    pub selection: Selection,
    /// Label of the run as the flag `--label` gives it, which vLLM's files call `label` and
    /// SGLang's `tag`; `None` without the flag.
    pub label: Option<String>,
    /// Additional entries of vLLM's result file as the flag `--metadata` gives them, as key and
    /// value.
    pub metadata: Vec<(String, String)>,
}

impl ReportFacts {
    /// Returns the name of the run's dataset as a value of the tools' `--dataset-name` flag; `None`
    /// if it is unknown or has no such name.
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
            Pack::RandomIdsSglang => "random-ids",
            Pack::SonnetVllm => "sonnet",
            Pack::Jsonl | Pack::CustomVllm | Pack::Words => "custom",
            Pack::MultiTurn => return None,
        })
    }

    /// Returns the number of output tokens requested for every conversation of ShareGPT; `None` if
    /// the lengths in the dataset were used, or the dataset is another or unknown.
    fn sharegpt_output_len(&self) -> Option<u64> {
        let workload = self.workload.as_ref()?;
        workload.output_tokens.filter(|_| self.dataset_name() == Some("sharegpt"))
    }

    /// Returns the workload if its prompt and output lengths are exported under the keys of the
    /// dataset `random`; `None` if the workload is unknown or its prompts are those of ShareGPT.
    fn random(&self) -> Option<&Workload> {
        self.workload.as_ref().filter(|_| self.dataset_name() != Some("sharegpt"))
    }
}

/// Returns the text of the measurement's report in `format`, which ends in a newline. `samples` are
/// in the order of the plan, and empty if the samples file is missing.
///
/// # Errors
/// The measurement lacks metrics, counts or times, as when no request was answered; it is one of
/// embeddings, and the format is not vLLM's; or the format needs samples and none are given.
pub fn export(
    format: Format,
    measurement: &Measurement,
    samples: &[Sample],
    asked: &ReportFacts,
) -> anyhow::Result<String> {
    let requests = Requests::of(samples, measurement.scenario.arrival.as_ref(), format);
    let figures = Figures::of(measurement, asked, format, &requests)
        .context("no request was answered, so that there are no figures to export")?;
    ensure!(
        figures.has_output() || format.is_vllm(),
        "format `{}` has figures of output tokens, which embeddings do not have\nhint: vLLM's \
         formats have those of embeddings",
        name_of(format)
    );
    ensure!(
        !(format.needs_samples() && samples.is_empty()),
        "format `{}` needs samples, and there are none\nhint: keep the file that ends in \
         `.samples.jsonl` beside the measurement",
        name_of(format)
    );
    Ok(match format {
        Format::Lmdeploy => serving_tools::lmdeploy_block(&figures),
        Format::LmdeployCsv => serving_tools::lmdeploy_csv(&figures),
        Format::Sglang => serving_tools::sglang_block(&figures),
        Format::SglangJsonl => line(&serving_tools::sglang_json(&figures, false)),
        Format::SglangJsonlDetailed => line(&serving_tools::sglang_json(&figures, true)),
        Format::Vllm => serving_tools::vllm_block(&figures),
        Format::VllmJson => line(&serving_tools::vllm_json(&figures, false)),
        Format::VllmJsonDetailed => line(&serving_tools::vllm_json(&figures, true)),
        Format::Guidellm => pretty(&guidellm::report(&figures)),
        Format::Aiperf => pretty(&aiperf::report(&figures)),
        Format::AiperfJsonl => aiperf::records(&figures).iter().map(line).collect(),
        Format::LlmD => pretty(&llm_d::report(&figures)),
    })
}

fn line(value: &serde_json::Value) -> String {
    value.to_string() + "\n"
}

fn pretty(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}
