//! Samplers: draw a scenario's requests from a dataset or vocabulary exactly as the benchmark tool
//! does that the sampler's name states.
//!
//! `sharegpt@lmdeploy` and `random@lmdeploy` follow `benchmark/profile_restful_api.py` of LMDeploy
//! v0.9.2; vLLM's samplers follow vLLM's `benchmarks/datasets` of 0.33; SGLang's follow its
//! `benchmark/datasets` of 0.5.23; `random@inferencex` the `utils/bench_serving` of InferenceX.
//! There is one deliberate difference: LMDeploy's and SGLang's tools decode the ids of their
//! `random` prompts and send the text, for which the server counts another length. Where prompts
//! are sent as ids, this suite sends the drawn ids, so that lengths are exact.

mod datasets;
mod sonnet;
mod synthetic;
mod words;

use std::collections::BTreeSet;

use anyhow::{Context, bail, ensure};
use datasets::{Conversations, Rows};
use schema::manifest::{Manifest, ManifestRequest};
use schema::run::PromptForm;
use schema::scenario::{Pack, Scenario, Warmup, Workload};

use super::arrival::{schedule, seed_of_numpy};
use super::chat_template::ChatTemplate;
use super::dataset::Dataset;
use super::generators::{NumpyRandom, PythonRandom};
use super::tokenizer::Tokenizer;
use crate::measure::summary::{float, whole};

/// Length in tokens of the shortest beginning that a warm-up prompt must not share with a measured
/// one: the smallest page size of prefix caches in use.
const SHARED_MAX: usize = 16;

/// Plan of a run: the measured requests and the warm-up requests that will be sent.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Workload manifest of the run's measured requests.
    pub manifest: Manifest,
    /// Warm-up requests, whose prompts begin with other tokens than all measured ones.
    pub warmup: Vec<ManifestRequest>,
}

/// Draws the requests of the scenario with the id `id` and sets their send times.
///
/// # Errors
/// The dataset is missing, has another format or has too few requests for the measurement and the
/// warm-up; the workload's lengths are missing or give a request without tokens; the tokenizer
/// rejects a text or token ids, or has no chat template that is usable where the workload needs one;
/// or the seed exceeds 32 bits.
pub fn plan(
    id: &str,
    scenario: &Scenario,
    dataset: Option<&Dataset>,
    tokenizer: Option<&Tokenizer>,
    form: PromptForm,
) -> anyhow::Result<Plan> {
    let workload = &scenario.workload;
    let mut draw = Draw { scenario, workload, dataset, tokenizer, template: None, form };
    // A poem is counted with the template even where the server writes it.
    let template = match workload.chat_template || workload.pack == Pack::SonnetVllm {
        true => Some(draw.tokenizer()?.chat_template()?),
        false => None,
    };
    draw.template = template.as_ref();
    let (mut requests, warmup) = draw.requests()?;
    schedule(&mut requests, &scenario.arrival, seed_of_numpy(workload.seed)?);
    let manifest = Manifest {
        schema: "manifest.v1".to_owned(),
        scenario: format!("{id}@{}", scenario.rev),
        seed: workload.seed,
        prompt_form: form,
        dataset_sha256: dataset.map(|dataset| dataset.sha256.clone()),
        tokenizer_sha256: tokenizer.map(|tokenizer| tokenizer.sha256.clone()),
        requests,
    };
    Ok(Plan { manifest, warmup })
}

/// Fills up a list of requests that is too short with randomly chosen repeats, as vLLM's tool does.
fn drawn_again(requests: &mut Requests, workload: &Workload) {
    let Ok(count) = u32::try_from(requests.len()) else { return };
    let mut random = PythonRandom::seed(workload.seed);
    while count > 0 && (requests.len() as u64) < workload.requests {
        requests.push(requests[random.below(count) as usize].clone());
    }
}

/// Maximum number of rounds in which a prompt's text is corrected to its requested number of
/// tokens.
const ROUNDS: usize = 10;
/// Maximum number of seeds with which warm-up requests are drawn.
const WARMUP_ROUNDS: usize = 10;

type Requests = Vec<ManifestRequest>;

/// Inputs of a sampler: scenario, dataset, tokenizer and prompt form.
#[derive(Clone, Copy)]
struct Draw<'a> {
    scenario: &'a Scenario,
    /// Workload from which requests are drawn: the scenario's, or a variant of it for warm-up
    /// requests.
    workload: &'a Workload,
    dataset: Option<&'a Dataset>,
    tokenizer: Option<&'a Tokenizer>,
    /// Chat template that the sampler writes around its prompts or counts with; `None` for a sampler
    /// that does neither.
    template: Option<&'a ChatTemplate>,
    form: PromptForm,
}

/// Checks that no part (prompt, answer) of the request with index `index` is without tokens, given
/// the parts' names and token counts.
fn filled<const N: usize>(index: usize, parts: [(&str, u64); N]) -> anyhow::Result<()> {
    for (part, tokens) in parts {
        ensure!(
            tokens > 0,
            "request {index} would have {part} without tokens\nhint: raise \
             `workload.range_ratio` or the length"
        );
    }
    Ok(())
}

impl<'a> Draw<'a> {
    /// Draws the measured requests and the warm-up requests of the scenario.
    fn requests(&self) -> anyhow::Result<(Requests, Requests)> {
        match self.scenario.workload.pack {
            Pack::MultiTurn => self.of_conversations(),
            Pack::Jsonl | Pack::CustomVllm => self.of_lines(),
            Pack::RandomIdsSglang => self.made_up(synthetic::random_ids_sglang),
            Pack::RandomVllm => self.made_up(synthetic::random_vllm),
            Pack::RandomInferencex => self.made_up(synthetic::random_inferencex),
            Pack::PrefixGroupsSglang => self.made_up(synthetic::prefix_groups_sglang),
            Pack::PrefixRepetitionVllm => self.made_up(synthetic::prefix_repetition_vllm),
            Pack::TraceMooncake => self.made_up(datasets::traced),
            Pack::SonnetVllm => self.made_up(sonnet::sonnet_vllm),
            Pack::Words => self.made_up(words::words),
            Pack::SharegptLmdeploy
            | Pack::SharegptVllm
            | Pack::SharegptSglang
            | Pack::SharegptSglangOld
            | Pack::RandomLmdeploy
            | Pack::RandomSglang => self.of_rows(),
        }
    }

    fn of_rows(&self) -> anyhow::Result<(Requests, Requests)> {
        let workload = &self.scenario.workload;
        let mut rows = Rows::new(*self)?;
        let mut requests = Vec::new();
        while (requests.len() as u64) < workload.requests {
            let Some(request) = rows.next()? else { break };
            requests.push(request);
        }
        if workload.pack == Pack::SharegptVllm {
            drawn_again(&mut requests, workload);
        }
        self.enough(&requests)?;
        let warmup = self.warmup(&requests, || rows.next())?;
        Ok((requests, warmup))
    }

    fn of_conversations(&self) -> anyhow::Result<(Requests, Requests)> {
        let workload = &self.scenario.workload;
        let mut all = Conversations::new(*self)?;
        let mut requests: Requests = Vec::new();
        while (requests.len() as u64) < workload.requests {
            let Some(turns) = all.next(requests.len())? else { break };
            requests.extend(turns);
        }
        // The last conversation may have more turns than are needed.
        requests.truncate(usize::try_from(workload.requests).unwrap_or(usize::MAX));
        self.enough(&requests)?;
        let mut opening = || {
            while let Some(turns) = all.next(0)? {
                if let Some(first) = turns.into_iter().next() {
                    return Ok(Some(first));
                }
            }
            Ok(None)
        };
        let warmup = self.warmup(&requests, &mut opening)?;
        Ok((requests, warmup))
    }

    fn of_lines(&self) -> anyhow::Result<(Requests, Requests)> {
        let workload = &self.scenario.workload;
        let mut requests = datasets::own(self)?;
        if workload.pack == Pack::CustomVllm {
            PythonRandom::seed(workload.seed).shuffle(&mut requests);
            drawn_again(&mut requests, workload);
        }
        self.enough(&requests)?;
        let wanted = usize::try_from(workload.requests).unwrap_or(usize::MAX);
        let mut rest = requests.split_off(wanted).into_iter();
        let warmup = self.warmup(&requests, || Ok(rest.next()))?;
        Ok((requests, warmup))
    }

    /// Draws synthetic requests, or takes the first ones of a trace and fails where it has too few;
    /// warm-up requests are drawn with the next seed, and with those after it while too few of them
    /// begin unlike every measured one.
    fn made_up(
        &self,
        sampler: impl Fn(&Draw<'_>) -> anyhow::Result<Requests>,
    ) -> anyhow::Result<(Requests, Requests)> {
        let workload = &self.scenario.workload;
        let requests = sampler(self)?;
        self.enough(&requests)?;
        let mut next = Workload {
            requests: self.scenario.warmup.requests,
            // One group, so that any number of warm-up requests fits.
            groups: workload.groups.map(|_| 1),
            ..workload.clone()
        };
        let mut others = Vec::new().into_iter();
        let mut rounds = 0..WARMUP_ROUNDS;
        let warmup = self.warmup(&requests, || {
            while others.len() == 0 && rounds.next().is_some() {
                next.seed = next.seed.wrapping_add(1);
                others = sampler(&Draw { workload: &next, ..*self })?.into_iter();
            }
            Ok(others.next())
        })?;
        Ok((requests, warmup))
    }

    fn enough(&self, requests: &[ManifestRequest]) -> anyhow::Result<()> {
        let wanted = self.scenario.workload.requests;
        if (requests.len() as u64) < wanted {
            let found = requests.len();
            bail!("the data set gives only {found} of the {wanted} requests in the scenario");
        }
        Ok(())
    }

    /// Takes warm-up requests from `next`, skipping those whose first 16 tokens are those of a
    /// measured one, and limits their output lengths as the scenario says. Too few of them are an
    /// error. Where a chat template begins all prompts, what follows it is compared.
    fn warmup(
        &self,
        measured: &[ManifestRequest],
        mut next: impl FnMut() -> anyhow::Result<Option<ManifestRequest>>,
    ) -> anyhow::Result<Requests> {
        let Warmup { requests: wanted, output_tokens_max, .. } = self.scenario.warmup;
        // Prompts that were made without a tokenizer are compared by their first characters, of
        // which a token has at least one.
        let begun = self.template.map_or(0, |_| shared_by_all(measured));
        let head = |request: &ManifestRequest| {
            let ids = request.prompt.get(begun..).unwrap_or_default();
            let ids = ids[..ids.len().min(SHARED_MAX)].to_vec();
            let text = request.text.as_deref().filter(|_| ids.is_empty()).unwrap_or_default();
            (ids, text.chars().take(SHARED_MAX).collect())
        };
        let taken: BTreeSet<(Vec<u32>, String)> = measured.iter().map(head).collect();
        let mut found: Requests = Vec::new();
        while (found.len() as u64) < wanted {
            let Some(request) = next()? else {
                let found = found.len();
                bail!(
                    "only {found} of {wanted} warm-up requests begin unlike every measured one\n\
                     hint: lower `warmup.requests`"
                );
            };
            found.extend(Some(request).filter(|request| !taken.contains(&head(request))));
        }
        for request in &mut found {
            // Warm-up ignores the arrival process.
            request.send_us = 0;
            request.output_tokens =
                request.output_tokens.min(output_tokens_max.unwrap_or(u64::MAX));
        }
        Ok(found)
    }

    fn tokenizer(&self) -> anyhow::Result<&'a Tokenizer> {
        self.tokenizer.with_context(|| {
            format!(
                "`{}` makes prompts of tokens, and no tokenizer was given\nhint: give \
                 `--tokenizer FILE`, a `tokenizer.json` or a GGUF file",
                self.workload.pack.id()
            )
        })
    }

    fn dataset(&self) -> anyhow::Result<&'a Dataset> {
        let workload = self.workload;
        self.dataset.with_context(|| {
            let (pack, dataset) =
                (workload.pack.id(), workload.dataset.clone().unwrap_or_default());
            format!("`{pack}` draws from a data set, and none was given\nhint: give `{dataset}`")
        })
    }

    /// Returns NumPy's legacy generator with the workload's seed.
    fn numpy(&self) -> anyhow::Result<NumpyRandom> {
        Ok(NumpyRandom::seed(seed_of_numpy(self.workload.seed)?))
    }

    /// Returns `text` as it is sent: with the chat template around it where the workload says so.
    fn written(&self, text: String) -> anyhow::Result<String> {
        let Some(template) = self.template else { return Ok(text) };
        let written = template.render(&text)?;
        // SGLang's tool leaves this token to the server's tokenizer, which adds it to every text.
        let is_added = self.workload.pack == Pack::SharegptSglang && !template.bos().is_empty();
        Ok(if is_added { written.replace(template.bos(), "") } else { written })
    }

    /// Returns a request with the prompt `text` and the token ids that a server's tokenizer gives
    /// for it.
    fn of_text(
        &self,
        text: String,
        output_tokens: u64,
        index: usize,
    ) -> anyhow::Result<ManifestRequest> {
        let prompt = self.tokenizer()?.encode(&text)?;
        filled(index, [("a prompt", prompt.len() as u64), ("an answer", output_tokens)])?;
        let text = (self.form == PromptForm::Text).then_some(text);
        Ok(ManifestRequest { prompt, text, output_tokens, ..ManifestRequest::default() })
    }

    /// Returns a request with the prompt's token ids, or with their text where prompts are sent as
    /// text.
    fn of_ids(
        &self,
        prompt: Vec<u32>,
        output_tokens: u64,
        index: usize,
    ) -> anyhow::Result<ManifestRequest> {
        match self.form {
            PromptForm::Text => {
                self.of_text(self.tokenizer()?.decode(&prompt)?, output_tokens, index)
            }
            PromptForm::TokenIds => {
                Ok(ManifestRequest { prompt, output_tokens, ..ManifestRequest::default() })
            }
        }
    }

    /// Changes a prompt's `ids` until its text encodes to the same number of tokens, and returns
    /// text and ids: `extra` draws missing ids, and surplus ids are cut. After ten rounds they are
    /// returned as they are.
    fn settled(
        &self,
        mut ids: Vec<u32>,
        mut extra: impl FnMut() -> u32,
    ) -> anyhow::Result<(String, Vec<u32>)> {
        let tokenizer = self.tokenizer()?;
        let wanted = ids.len();
        let mut round = 0;
        loop {
            let text = tokenizer.decode(&ids)?;
            ids = tokenizer.encode_plain(&text)?;
            if round == ROUNDS || ids.len() == wanted {
                return Ok((text, ids));
            }
            round += 1;
            ids.resize_with(wanted, &mut extra);
        }
    }
}

/// Returns the number of tokens with which all of several prompts begin; 0 for a single prompt.
fn shared_by_all(requests: &[ManifestRequest]) -> usize {
    let [first, others @ ..] = requests else { return 0 };
    let shared = |other: &ManifestRequest| {
        let pairs = first.prompt.iter().zip(&other.prompt);
        pairs.take_while(|(left, right)| left == right).count()
    };
    others.iter().map(shared).min().unwrap_or(0)
}

/// Draws `count` lengths in tokens, uniformly from the integers in `[ratio * bound, bound]`, none
/// below `least`.
fn uniform(random: &mut NumpyRandom, bound: u64, ratio: f64, count: u64, least: u64) -> Vec<u64> {
    let low = scaled(bound, ratio).max(least);
    // `randint` excludes its upper end.
    (0..count).map(|_| random.randint(low, bound + 1)).collect()
}

/// Computes a length as the benchmark tools do: `int(bound * ratio)`.
fn scaled(bound: u64, ratio: f64) -> u64 {
    whole((float(bound) * ratio).floor())
}

/// Computes a length as the benchmark tools do: `ceil(mean * ratio)`.
fn scaled_up(mean: u64, ratio: f64) -> u64 {
    whole((float(mean) * ratio).ceil())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::gguf::GgufTokenizer;

    /// Test helper: returns a tokenizer whose vocabulary has one token for each letter from a to z.
    fn letters() -> Tokenizer {
        let tokens: Vec<String> = ('a'..='z').map(String::from).collect();
        Tokenizer::from_gguf(&GgufTokenizer {
            model: "gpt2".into(),
            pre: "smollm".into(),
            token_types: vec![1; tokens.len()],
            tokens,
            ..GgufTokenizer::default()
        })
        .unwrap()
    }

    fn scenario(pack: &str, requests: u64) -> Scenario {
        let lengths = match pack {
            "random@lmdeploy" => ", input_tokens = 9, output_tokens = 5, range_ratio = 1.0",
            _ => "",
        };
        Scenario::parse(&format!(
            "question = \"?\"\nrev = 2\ntier = \"lite\"\n\
             workload = {{ pack = \"{pack}\", dataset = \"d\", requests = {requests}, seed = 1{lengths} }}\n\
             warmup = {{ requests = 1, from = \"disjoint\", output_tokens_max = 3 }}\n\
             arrival = {{ kind = \"all-at-once\" }}\n\
             output = {{ ignore_eos = true, temperature = 0.0 }}\n"
        ))
        .unwrap()
    }

    fn drawn(pack: &str, requests: u64, rows: &[(&str, &str)]) -> anyhow::Result<Plan> {
        let dataset = Dataset::of_pairs(rows);
        plan("x", &scenario(pack, requests), Some(&dataset), Some(&letters()), PromptForm::TokenIds)
    }

    fn text(request: &ManifestRequest) -> String {
        letters().decode(&request.prompt).unwrap()
    }

    #[test]
    fn conversations_are_kept_by_their_lengths_in_shuffled_order() {
        let long = "x".repeat(1025);
        let rows = [
            ("aaaa", "bbbbb"),
            ("ccc", "short prompt"),
            ("dddd", "eee"),
            (long.as_str(), "ffff"),
            ("gggg", &long),
            ("hhhhh", "iiii"),
        ];
        let mut order: Vec<usize> = (0..rows.len()).collect();
        PythonRandom::seed(1).shuffle(&mut order);
        let expected: Vec<&str> =
            order.iter().filter(|row| [0, 4, 5].contains(*row)).map(|row| rows[*row].0).collect();
        let plan = drawn("sharegpt@lmdeploy", 2, &rows).unwrap();
        let found: Vec<String> = plan.manifest.requests.iter().map(text).collect();
        assert_eq!(found, expected[..2]);
        assert_eq!(text(&plan.warmup[0]), expected[2], "the next row that nobody measures");
        assert_eq!(plan.manifest.scenario, "x@2");
    }

    #[test]
    fn answers_of_one_length_are_bounded_as_the_tool_bounds_them() {
        let long = "x".repeat(1000);
        // The second row's own answer is too short; the third row is too long with any other
        // answer.
        let rows = [("aaaa", "bbbb"), ("cccc", "d"), (long.as_str(), "eeee")];
        let kept = |pack: &str, output_tokens: u64| {
            let mut scenario = scenario(pack, 1);
            scenario.workload.output_tokens = Some(output_tokens);
            scenario.warmup.requests = 0;
            let dataset = Dataset::of_pairs(&rows);
            let kept = (1..=3).rev().find_map(|requests| {
                scenario.workload.requests = requests;
                let form = PromptForm::TokenIds;
                plan("x", &scenario, Some(&dataset), Some(&letters()), form).ok()
            });
            let requests = kept.map(|plan| plan.manifest.requests).unwrap_or_default();
            assert!(requests.iter().all(|request| request.output_tokens == output_tokens));
            // vLLM fills up a sample that is too small with repeats.
            let prompts: BTreeSet<Vec<u32>> = requests.into_iter().map(|row| row.prompt).collect();
            prompts.len()
        };
        assert_eq!((kept("sharegpt@lmdeploy", 1500), kept("sharegpt@lmdeploy", 8)), (3, 3));
        assert_eq!((kept("sharegpt@vllm", 1500), kept("sharegpt@vllm", 1)), (2, 3));
        assert_eq!((kept("sharegpt@sglang", 1500), kept("sharegpt@sglang-old", 1500)), (3, 3));
    }

    #[test]
    fn random_prompts_are_repeated_or_cut_to_their_length() {
        let rows = [("abc", "z"), ("", "z"), ("abcdefghijkl", "z"), ("wxyz", "z")];
        let plan = drawn("random@lmdeploy", 2, &rows).unwrap();
        let mut found: Vec<String> =
            plan.manifest.requests.iter().chain(&plan.warmup).map(text).collect();
        found.sort();
        assert_eq!(found, ["abcabcabc", "abcdefghi", "wxyzwxyzw"], "the empty prompt is dropped");
        assert!(plan.manifest.requests.iter().all(|request| request.output_tokens == 5));
        assert_eq!(plan.warmup[0].output_tokens, 3, "warming up asks for less");
    }

    #[test]
    fn warm_up_prompts_do_not_begin_like_measured_ones() {
        let alike = [("aaaaaa", "bbbb"), ("aaaaaa", "bbbb")];
        let error = drawn("sharegpt@lmdeploy", 1, &alike).unwrap_err().to_string();
        assert!(error.starts_with("only 0 of 1 warm-up requests begin"), "{error}");
    }

    #[test]
    fn too_small_a_data_set_is_an_error_that_says_so() {
        let error = drawn("sharegpt@lmdeploy", 3, &[("aaaa", "bbbb")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the data set gives only 1 of the 3 requests in the scenario"
        );
    }
}

#[cfg(test)]
mod length_tests {
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
