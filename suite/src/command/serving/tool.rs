//! Decides which benchmark tool a command line is meant for. The tools share names of backends and
//! flags, and the same line means another workload in each of them.

use anyhow::bail;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

use super::flags::{Backend, DatasetName, ServerFlags, Tool};
use crate::export::name_of;

/// Flags that only vLLM's tool has.
const VLLM: &[&str] = &[
    "append_result",
    "burstiness",
    "custom_output_len",
    "disable_shuffle",
    "endpoint",
    "endpoint_type",
    "frequency_penalty",
    "hf_name",
    "hf_output_len",
    "hf_split",
    "ignore_eos",
    "metadata",
    "metric_percentiles",
    "min_p",
    "output_len",
    "percentile_metrics",
    "prefix_repetition_num_prefixes",
    "prefix_repetition_output_len",
    "prefix_repetition_prefix_len",
    "prefix_repetition_suffix_len",
    "presence_penalty",
    "ramp_up_end_rps",
    "ramp_up_start_rps",
    "ramp_up_strategy",
    "random_prefix_len",
    "repetition_penalty",
    "result_dir",
    "result_filename",
    "save_result",
    "skip_chat_template",
    "sonnet_input_len",
    "sonnet_output_len",
    "sonnet_prefix_len",
    "top_k",
];
/// Flags that SGLang's tool has and vLLM's has not.
const SGLANG: &[&str] = &[
    "apply_chat_template",
    "disable_ignore_eos",
    "flush_cache",
    "gsp_num_groups",
    "gsp_output_len",
    "gsp_prompts_per_group",
    "gsp_question_len",
    "gsp_range_ratio",
    "gsp_system_prompt_len",
    "output_file",
    "tokenize_prompt",
];
/// Flags that concern generated text, and goodput, which vLLM's tool does not compute for embeddings.
const OUTPUT: &[&str] = &[
    "custom_output_len",
    "disable_ignore_eos",
    "frequency_penalty",
    "goodput",
    "hf_output_len",
    "ignore_eos",
    "min_p",
    "output_len",
    "prefix_repetition_output_len",
    "presence_penalty",
    "random_output_len",
    "repetition_penalty",
    "sharegpt_output_len",
    "sonnet_output_len",
    "temperature",
    "top_k",
    "top_p",
];

/// Flags on the command line that belong to one of the tools, or do not apply to embeddings.
#[derive(Clone, Debug)]
pub struct OwnFlags {
    vllm: Option<&'static str>,
    sglang: Option<&'static str>,
    output: Option<&'static str>,
}

impl OwnFlags {
    /// Checks that no flag was given that does not apply to embeddings.
    ///
    /// # Errors
    /// Such a flag was given; the message names it.
    pub fn suit_embeddings(&self) -> anyhow::Result<()> {
        match self.output {
            None => Ok(()),
            Some(name) => bail!(
                "`{}` does not apply to embeddings, which have no output tokens and, in vLLM's tool, \
                 no goodput\nhint: leave it out",
                as_flag(name)
            ),
        }
    }
}

impl Args for OwnFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for OwnFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_given = |name: &&&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let first = |names: &'static [&'static str]| names.iter().find(is_given).copied();
        Ok(Self { vllm: first(VLLM), sglang: first(SGLANG), output: first(OUTPUT) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Benchmark tool that a command line is meant for, and the flag that shows it.
#[derive(Debug)]
pub struct Followed {
    pub tool: Tool,
    /// Flag or default from which the tool follows, in words; `None` where `--tool` names it.
    because: Option<String>,
}

impl Followed {
    /// Returns the sentence that tells the user which tool is followed, and how that is known.
    pub fn note(&self) -> String {
        let name = match self.tool {
            Tool::Vllm => "vLLM's `bench serve` 0.33",
            Tool::Sglang => "SGLang's `bench_serving` 0.5.23",
            Tool::SglangOld => "an older `bench_serving` of SGLang",
            Tool::Lmdeploy => "LMDeploy's `profile_restful_api.py` v0.9.2",
        };
        match &self.because {
            Some(because) => format!("note: follows {name}: {because}; `--tool` names another"),
            None => format!("note: follows {name}"),
        }
    }
}

/// Returns the flag with the name `name` as it is written on a command line.
fn as_flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

/// Returns the benchmark tool that the flags are meant for.
///
/// # Errors
/// Flags of two tools are given, or none shows which tool is meant and the tools would send
/// different data.
pub fn followed(
    server: &ServerFlags,
    dataset: Option<DatasetName>,
    own: &OwnFlags,
) -> anyhow::Result<Followed> {
    let by = |tool, because: String| Ok(Followed { tool, because: Some(because) });
    if let Some(tool) = server.tool {
        return Ok(Followed { tool, because: None });
    }
    let backend = server.backend();
    if let Some(tool) = backend.and_then(Backend::tool_alone) {
        return by(tool, "it has the backend".to_owned());
    }
    let of_sglang = match dataset {
        Some(DatasetName::RandomIds | DatasetName::GeneratedSharedPrefix) => Some("dataset_name"),
        _ => own.sglang,
    };
    let flag = |name: &str| format!("`{}`", as_flag(name));
    match (own.vllm, of_sglang) {
        (Some(vllm), Some(sglang)) => bail!(
            "{} is a flag of vLLM's tool, and {} one of SGLang's\nhint: leave one out, or name the \
             tool with `--tool`",
            flag(vllm),
            flag(sglang)
        ),
        (Some(name), None) => by(Tool::Vllm, format!("{} is its own", flag(name))),
        (None, Some(name)) => by(Tool::Sglang, format!("{} is its own", flag(name))),
        (None, None) if backend.is_none() => {
            by(Tool::Vllm, "no backend is named, and no flag of another tool".to_owned())
        }
        (None, None) => of_vllms_server(dataset),
    }
}

/// Returns the tool that `--backend vllm` is meant for where no other flag shows it.
///
/// # Errors
/// The tools that have this backend would send different requests.
fn of_vllms_server(dataset: Option<DatasetName>) -> anyhow::Result<Followed> {
    match dataset {
        None => bail!(
            "`--backend vllm` without `--dataset-name` sends `random` prompts with vLLM's tool and \
             `sharegpt` with SGLang's\nhint: give `--tool vllm` or `--tool sglang`"
        ),
        Some(shared @ (DatasetName::Sharegpt | DatasetName::Random)) => bail!(
            "`--backend vllm` with `--dataset-name {}` draws other requests, with another seed, in \
             vLLM's tool than in SGLang's and LMDeploy's\nhint: give `--tool vllm`, `--tool sglang` or \
             `--tool lmdeploy`",
            name_of(shared)
        ),
        Some(own) => {
            let because = format!("`--dataset-name {}` is read as it reads it", name_of(own));
            Ok(Followed { tool: Tool::Vllm, because: Some(because) })
        }
    }
}
