//! Translates the flags of a replaced benchmark tool into the scenario with the workload that the
//! tool would send. It reads no file.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use schema::engine::ApiFormat;
use schema::scenario::{
    Arrival, CacheProtocol, CacheState, Connections, Growth, Output, Scenario, Tier, Warmup,
    WarmupSource,
};
use schema::workload::{Pack, Workload};
use serde_json::Value;

use super::ServingFlags;
use super::flags::{
    Backend, BodyFlags, DatasetName, Habits, RampUp, SendingFlags, Tool, WorkloadFlags,
};
use super::{conversations, hub};

/// Benchmark tool to replace, and the scenario that its flags define.
#[derive(Debug)]
pub struct Wanted {
    pub tool: Tool,
    /// Backend as `--backend` gives it, else the tool's default.
    pub backend: Backend,
    pub dataset: DatasetName,
    pub scenario: Scenario,
}

/// Interprets the flags as `tool` does. `file` is the dataset's file, as the flags name it or as it was
/// found. `local` is true when server and client share a machine.
///
/// # Errors
/// Flags contradict each other, or do not give a scenario that can be run.
pub fn wanted(
    flags: &ServingFlags,
    tool: Tool,
    file: Option<&Path>,
    local: bool,
) -> anyhow::Result<Wanted> {
    let habits = tool.habits();
    let backend = flags.server.backend().unwrap_or(habits.backend);
    let dataset = flags.workload.dataset_name.unwrap_or(habits.dataset);
    let warmups = if flags.sending.disable_warmup { Some(0) } else { flags.sending.num_warmups };
    let state = if flags.sending.flush_cache { CacheState::Cold } else { CacheState::Unknown };
    let route = flags.server.endpoint.as_deref().unwrap_or(backend.route());
    let chat = ApiFormat::of_route(route) == ApiFormat::Chat;
    // vLLM's tool ignores the end of sequence for `random` only, and embeddings have none.
    let forced = (habits.ignore_eos || dataset.is_random()) && !backend.embeds();
    let scenario = Scenario {
        question: "How fast is what the tool's flags ask for?".to_owned(),
        rev: 1,
        workload: workload(&flags.workload, (tool, chat), (dataset, file))?,
        warmup: Warmup {
            requests: warmups.unwrap_or(habits.warmup_requests),
            // The tools warm up with a measured prompt, which the prefix cache would then hold.
            from: WarmupSource::Disjoint,
            output_tokens_max: habits.warmup_tokens_max,
        },
        arrival: arrival(&flags.sending)?,
        output: Output { chat, ..output(&flags.body, habits, forced)? },
        // Client and server then share cores, so a busy client is expected and allowed in the lite
        // tier.
        tier: if local { Tier::Lite } else { Tier::Full },
        connections: Connections::Warm,
        cache: CacheProtocol { state, share: None },
    };
    scenario.check().context("the flags do not give a scenario that can be run")?;
    Ok(Wanted { tool, backend, dataset, scenario })
}

fn workload(
    flags: &WorkloadFlags,
    (tool, chat): (Tool, bool),
    (dataset, file): (DatasetName, Option<&Path>),
) -> anyhow::Result<Workload> {
    let bare = Workload {
        pack: Pack::Jsonl,
        dataset: file.map(|path| {
            path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
        }),
        requests: flags.num_prompts,
        seed: flags.seed.unwrap_or(tool.habits().seed),
        input_tokens: None,
        output_tokens: None,
        range_ratio: None,
        prefix_tokens: None,
        groups: None,
        turns_max: None,
        think_us: None,
        chat_template: false,
    };
    match dataset {
        DatasetName::Sharegpt => sharegpt(flags, tool, bare),
        DatasetName::Random => random(flags, tool, bare),
        DatasetName::RandomIds => random_ids(flags, tool, bare),
        DatasetName::Custom => custom(flags, (tool, chat), bare),
        DatasetName::PrefixRepetition => prefix_repetition(flags, bare),
        DatasetName::GeneratedSharedPrefix => shared_prefix(flags, bare),
        DatasetName::Hf => hf(flags, (tool, chat), bare),
        DatasetName::Sonnet => sonnet(flags, (tool, chat), bare),
    }
}

fn sharegpt(flags: &WorkloadFlags, tool: Tool, bare: Workload) -> anyhow::Result<Workload> {
    needs_conversations(&bare, tool, "sharegpt", "draws conversations")?;
    in_the_packs_order(flags)?;
    let output_tokens = flags.output_len.or(flags.sharegpt_output_len);
    let (pack, chat_template) = (tool.habits().sharegpt, flags.apply_chat_template);
    Ok(Workload { pack, output_tokens, chat_template, ..bare })
}

fn random(flags: &WorkloadFlags, tool: Tool, bare: Workload) -> anyhow::Result<Workload> {
    let habits = tool.habits();
    let output = flags.output_len.or(flags.random_output_len);
    let lengths = flags.random_input_len.or(habits.random_tokens.map(|lengths| lengths.0));
    let lengths = lengths.zip(output.or(habits.random_tokens.map(|lengths| lengths.1)));
    let Some((input_tokens, output_tokens)) = lengths else {
        bail!(
            "LMDeploy's `random` has no default lengths\nhint: give `--random-input-len` and \
               `--random-output-len`"
        );
    };
    if tool == Tool::Vllm {
        takes_no_file(&bare, "random")?;
    } else {
        needs_conversations(&bare, tool, "random", "cuts its prompts out of conversations")?;
        ensure!(
            flags.random_prefix_len == 0,
            "`--random-prefix-len` exists only in vLLM's tool\nhint: give `--tool vllm`"
        );
    }
    in_the_packs_order(flags)?;
    Ok(Workload {
        pack: habits.random,
        input_tokens: Some(input_tokens),
        output_tokens: Some(output_tokens),
        range_ratio: Some(flags.random_range_ratio),
        prefix_tokens: Some(flags.random_prefix_len).filter(|tokens| *tokens > 0),
        ..bare
    })
}

fn random_ids(flags: &WorkloadFlags, tool: Tool, bare: Workload) -> anyhow::Result<Workload> {
    takes_no_file(&bare, "random-ids")?;
    ensure!(
        matches!(tool, Tool::Sglang | Tool::SglangOld),
        "`--dataset-name random-ids` exists only in SGLang's tool\nhint: give `--tool sglang`, or \
         `--dataset-name random` with vLLM's tool"
    );
    let (input, output) = tool.habits().random_tokens.unwrap_or_default();
    Ok(Workload {
        pack: Pack::RandomIdsSglang,
        input_tokens: Some(flags.random_input_len.unwrap_or(input)),
        output_tokens: Some(flags.random_output_len.unwrap_or(output)),
        range_ratio: Some(flags.random_range_ratio),
        ..bare
    })
}

fn custom(
    flags: &WorkloadFlags,
    (tool, chat): (Tool, bool),
    bare: Workload,
) -> anyhow::Result<Workload> {
    needs_file(&bare, "custom", "takes its prompts from one")?;
    is_vllms(tool, "custom")?;
    // Behind a chat route the server applies its template, and vLLM's tool would apply it twice.
    let chat_template = !chat && !flags.skip_chat_template;
    let own = u64::try_from(flags.custom_output_len).ok();
    let pack = if flags.disable_shuffle { Pack::Jsonl } else { Pack::CustomVllm };
    Ok(Workload { pack, output_tokens: flags.output_len.or(own), chat_template, ..bare })
}

fn hf(
    flags: &WorkloadFlags,
    (tool, chat): (Tool, bool),
    bare: Workload,
) -> anyhow::Result<Workload> {
    needs_file(&bare, "hf", "takes its prompts from one")?;
    is_vllms(tool, "hf")?;
    let usual = hub::output_tokens(flags.hf_name.as_deref(), flags.dataset_path.as_deref())?;
    let output_tokens = Some(flags.output_len.or(flags.hf_output_len).unwrap_or(usual));
    let pack = if flags.disable_shuffle { Pack::Jsonl } else { Pack::CustomVllm };
    let chat_template = !chat && !flags.skip_chat_template;
    Ok(Workload { pack, output_tokens, chat_template, ..bare })
}

fn sonnet(
    flags: &WorkloadFlags,
    (tool, chat): (Tool, bool),
    bare: Workload,
) -> anyhow::Result<Workload> {
    needs_file(&bare, "sonnet", "takes lines from one, such as `benchmarks/sonnet.txt` of vLLM")?;
    is_vllms(tool, "sonnet")?;
    in_the_packs_order(flags)?;
    Ok(Workload {
        pack: Pack::SonnetVllm,
        input_tokens: Some(flags.sonnet_input_len),
        output_tokens: Some(flags.output_len.unwrap_or(flags.sonnet_output_len)),
        prefix_tokens: Some(flags.sonnet_prefix_len),
        chat_template: !chat,
        ..bare
    })
}

fn is_vllms(tool: Tool, name: &str) -> anyhow::Result<()> {
    ensure!(
        tool == Tool::Vllm,
        "`--dataset-name {name}` is supported only as in vLLM's tool\nhint: give `--tool vllm`"
    );
    Ok(())
}

fn prefix_repetition(flags: &WorkloadFlags, bare: Workload) -> anyhow::Result<Workload> {
    takes_no_file(&bare, "prefix_repetition")?;
    let groups = flags.prefix_repetition_num_prefixes;
    Ok(Workload {
        pack: Pack::PrefixRepetitionVllm,
        // Every prefix gets the same number of requests, so the remainder is dropped as in vLLM's
        // tool.
        requests: bare.requests / groups * groups,
        groups: Some(groups),
        prefix_tokens: Some(flags.prefix_repetition_prefix_len),
        input_tokens: Some(flags.prefix_repetition_suffix_len),
        output_tokens: Some(flags.output_len.unwrap_or(flags.prefix_repetition_output_len)),
        ..bare
    })
}

fn shared_prefix(flags: &WorkloadFlags, bare: Workload) -> anyhow::Result<Workload> {
    takes_no_file(&bare, "generated-shared-prefix")?;
    Ok(Workload {
        pack: Pack::PrefixGroupsSglang,
        requests: flags.gsp_num_groups.saturating_mul(flags.gsp_prompts_per_group),
        groups: Some(flags.gsp_num_groups),
        prefix_tokens: Some(flags.gsp_system_prompt_len),
        input_tokens: Some(flags.gsp_question_len),
        output_tokens: Some(flags.gsp_output_len),
        range_ratio: Some(flags.gsp_range_ratio),
        ..bare
    })
}

fn needs_file(workload: &Workload, name: &str, why: &str) -> anyhow::Result<()> {
    ensure!(
        workload.dataset.is_some(),
        "`--dataset-name {name}` {why}, and no file is given\nhint: give it with \
         `--dataset-path`; nothing is downloaded"
    );
    Ok(())
}

/// Checks that there is a file of conversations, which all tools but vLLM's download where none is
/// named.
fn needs_conversations(
    workload: &Workload,
    tool: Tool,
    name: &str,
    why: &str,
) -> anyhow::Result<()> {
    if tool == Tool::Vllm || workload.dataset.is_some() {
        return needs_file(workload, name, why);
    }
    bail!(
        "`--dataset-name {name}` {why}, no file is given, and no cache has the one that the tool \
         downloads\nhint: `{}` gets it, and it is then found; or give a file with `--dataset-path`",
        conversations::command()?
    );
}

fn takes_no_file(workload: &Workload, name: &str) -> anyhow::Result<()> {
    ensure!(
        workload.dataset.is_none(),
        "`--dataset-name {name}` makes its own prompts, and `--dataset-path` is given\nhint: leave \
         the path out, or name the data set that it holds"
    );
    Ok(())
}

fn in_the_packs_order(flags: &WorkloadFlags) -> anyhow::Result<()> {
    ensure!(
        !flags.disable_shuffle,
        "`--disable-shuffle` works only with `--dataset-name custom` and `hf`\nhint: other datasets \
         are sampled by seed"
    );
    Ok(())
}

fn arrival(flags: &SendingFlags) -> anyhow::Result<Arrival> {
    let concurrency_max = flags.max_concurrency;
    let requests_per_s = flags.request_rate;
    if let Some(strategy) = flags.ramp_up_strategy {
        return ramp(flags, strategy);
    }
    Ok(match (requests_per_s.is_finite(), concurrency_max) {
        (false, Some(concurrency)) => Arrival::Closed { concurrency },
        (false, None) => Arrival::AllAtOnce,
        (true, _) if flags.burstiness.is_infinite() => {
            Arrival::Constant { requests_per_s, concurrency_max }
        }
        // Gamma-distributed gaps of shape 1 are exponential, which is a Poisson process.
        (true, _) if flags.burstiness.to_bits() == 1.0_f64.to_bits() => {
            Arrival::Poisson { requests_per_s, concurrency_max }
        }
        (true, _) => Arrival::Gamma { requests_per_s, shape: flags.burstiness, concurrency_max },
    })
}

fn ramp(flags: &SendingFlags, strategy: RampUp) -> anyhow::Result<Arrival> {
    ensure!(
        flags.request_rate.is_infinite(),
        "`--request-rate` gives one rate, and `--ramp-up-strategy` another to each request\n\
         hint: leave one of them out"
    );
    let ends = flags.ramp_up_start_rps.zip(flags.ramp_up_end_rps);
    let (from, to) = ends.context("`--ramp-up-strategy` needs the rates at both ends")?;
    ensure!(
        from <= to,
        "`--ramp-up-start-rps {from}` is above `--ramp-up-end-rps {to}`, and the rate of vLLM's tool \
         only grows\nhint: a rate that falls is `arrival = {{ kind = \"ramp\" }}` for \
         `redline-bench run`"
    );
    Ok(Arrival::Ramp {
        from_requests_per_s: f64::from(from),
        to_requests_per_s: f64::from(to),
        growth: match strategy {
            RampUp::Linear => Growth::RequestLinear,
            RampUp::Exponential => Growth::RequestExponential,
        },
        shape: Some(flags.burstiness).filter(|shape| shape.is_finite()),
        concurrency_max: flags.max_concurrency,
    })
}

/// Returns the generation options of the requests; `forced` is true where the tool ignores the end
/// of sequence by default.
fn output(flags: &BodyFlags, habits: &Habits, forced: bool) -> anyhow::Result<Output> {
    let sampling = [
        ("top_p", flags.top_p.map(Value::from)),
        ("top_k", flags.top_k.map(Value::from)),
        ("min_p", flags.min_p.map(Value::from)),
        ("frequency_penalty", flags.frequency_penalty.map(Value::from)),
        ("presence_penalty", flags.presence_penalty.map(Value::from)),
        ("repetition_penalty", flags.repetition_penalty.map(Value::from)),
    ];
    let given = sampling.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let mut body: std::collections::BTreeMap<String, Value> = given.collect();
    body.extend(flags.extra_body.clone().unwrap_or_default());
    // These two fields also have flags, and a scenario may set a field only once.
    let temperature = match body.remove("temperature") {
        Some(value) => {
            Some(value.as_f64().context("`temperature` of `--extra-body` is not a number")?)
        }
        None => flags.temperature.or(habits.temperature),
    };
    let ignore_eos = match body.remove("ignore_eos") {
        Some(value) => {
            value.as_bool().context("`ignore_eos` of `--extra-body` is not a boolean")?
        }
        None => flags.ignore_eos || (forced && !flags.disable_ignore_eos),
    };
    Ok(Output { ignore_eos, temperature, extra_body: body, ..Output::default() })
}
