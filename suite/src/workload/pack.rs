//! Draws a scenario's requests from a data set exactly as the tool it names does.
//!
//! `sharegpt@lmdeploy` and `random@lmdeploy` follow `benchmark/profile_restful_api.py` of LMDeploy
//! v0.9.2. One difference is deliberate: that tool decodes the ids of its `random` prompts and
//! sends the text, whose length the server then finds to be another; where prompts go as ids, the
//! ids themselves are sent, so that the length is exact.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::thread::ScopedJoinHandle;

use schema::manifest::{Manifest, ManifestRequest};
use schema::run::PromptForm;
use schema::scenario::{Pack, Scenario, Warmup, Workload};

use super::dataset::{Dataset, DatasetError, Pair};
use super::generators::{NumpyRandom, PythonRandom};
use super::tokenizer::{Tokenizer, TokenizerError};

/// Shortest prompt and answer that `sharegpt@lmdeploy` keeps.
const TOKENS_MIN: usize = 4;
/// Longest prompt that it keeps.
const PROMPT_MAX: usize = 1024;
/// Longest prompt and answer together.
const TOTAL_MAX: usize = 2048;
/// Warm-up prompts share no more than this many leading tokens with a measured one: the smallest
/// page of a prefix cache in use.
const SHARED_MAX: usize = 16;

/// Rows that a core tokenizes before it looks whether there are enough.
const ROWS_PER_CORE: usize = 64;

/// Everything that will be sent.
#[derive(Clone, Debug)]
pub struct Plan {
    pub manifest: Manifest,
    /// Prompts that no measured request shares.
    pub warmup: Vec<ManifestRequest>,
}

/// A plan that cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("the data set gives {found} requests of the {wanted} that the scenario asks for")]
    TooFew { found: usize, wanted: u64 },
    #[error("request {index} would have {what} of no tokens\nhint: raise `workload.range_ratio`")]
    Empty { index: usize, what: &'static str },
    #[error("`workload.seed` {0} is beyond the 32 bits that NumPy's generator takes")]
    Seed(u64),
}

/// Draws the requests of `scenario`, whose id is `id`.
///
/// # Errors
/// The data set is unreadable or too small, or the tokenizer refuses a text.
pub fn plan(
    id: &str,
    scenario: &Scenario,
    dataset: &Dataset,
    tokenizer: &Tokenizer,
    form: PromptForm,
) -> Result<Plan, PlanError> {
    let workload = &scenario.workload;
    let pairs = shuffled(workload, dataset)?;
    let lengths = Lengths::drawn(workload)?;
    let source = Source { pairs: &pairs, lengths: &lengths, tokenizer, form };
    let wanted = usize::try_from(workload.requests).unwrap_or(usize::MAX);
    let (mut requests, mut used) = (Vec::new(), 0);
    while requests.len() < wanted {
        let block = source.block(used)?;
        if block.is_empty() {
            return Err(PlanError::TooFew { found: requests.len(), wanted: workload.requests });
        }
        for request in block {
            if requests.len() == wanted {
                break;
            }
            used += 1;
            requests.extend(request);
        }
    }
    let warmup = warmup(&scenario.warmup, &requests, &source, used)?;
    let manifest = Manifest {
        schema: "manifest.v1".to_owned(),
        scenario: format!("{id}@{}", scenario.rev),
        seed: workload.seed,
        prompt_form: form,
        dataset_sha256: dataset.sha256.clone(),
        tokenizer_sha256: tokenizer.sha256.clone(),
        requests,
    };
    Ok(Plan { manifest, warmup })
}

/// The rows of the data set in the order in which they are used.
fn shuffled<'a>(workload: &Workload, dataset: &'a Dataset) -> Result<Vec<Pair<'a>>, PlanError> {
    let mut pairs = dataset.pairs()?;
    if workload.pack == Pack::RandomLmdeploy {
        pairs.retain(|pair| !pair.prompt.is_empty());
    }
    PythonRandom::seed(workload.seed).shuffle(&mut pairs);
    Ok(pairs)
}

/// Makes requests of rows.
struct Source<'a> {
    pairs: &'a [Pair<'a>],
    lengths: &'a Lengths,
    tokenizer: &'a Tokenizer,
    form: PromptForm,
}

impl Source<'_> {
    /// What the rows from `first` on make, in their order: a few for every core, which tokenize
    /// side by side. Empty where there are no more rows.
    fn block(&self, first: usize) -> Result<Vec<Option<ManifestRequest>>, PlanError> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let rows: Vec<usize> = (first..self.pairs.len()).take(cores * ROWS_PER_CORE).collect();
        let share = |rows: &[usize]| rows.iter().map(|row| self.request(*row)).collect();
        let parts: Vec<Result<Vec<_>, PlanError>> = std::thread::scope(|scope| {
            let shares = rows.chunks(rows.len().div_ceil(cores).max(1));
            let threads: Vec<_> = shares.map(|rows| scope.spawn(move || share(rows))).collect();
            // A panic in a share is a bug, and goes on here.
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        Ok(parts.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The request that a row makes, or none if its lengths rule it out.
    fn request(&self, row: usize) -> Result<Option<ManifestRequest>, PlanError> {
        match self.lengths {
            Lengths::Data => self.lengths_of_data(&self.pairs[row]),
            // Rows beyond the requests only serve the warm-up, which may have any of the lengths.
            Lengths::Drawn(lengths) => {
                self.cut_to_length(row, lengths[row % lengths.len()]).map(Some)
            }
        }
    }

    fn lengths_of_data(&self, pair: &Pair<'_>) -> Result<Option<ManifestRequest>, PlanError> {
        let prompt = self.tokenizer.encode(&pair.prompt)?;
        let output = self.tokenizer.encode(&pair.answer)?.len();
        if prompt.len() < TOKENS_MIN
            || output < TOKENS_MIN
            || prompt.len() > PROMPT_MAX
            || prompt.len() + output > TOTAL_MAX
        {
            return Ok(None);
        }
        let text = (self.form == PromptForm::Text).then(|| pair.prompt.to_string());
        Ok(Some(ManifestRequest { send_us: 0, prompt, text, output_tokens: output as u64 }))
    }

    /// Repeats or truncates the ids of a row's prompt to `input` tokens.
    fn cut_to_length(
        &self,
        row: usize,
        (input, output): (u64, u64),
    ) -> Result<ManifestRequest, PlanError> {
        if output == 0 {
            return Err(PlanError::Empty { index: row, what: "an answer" });
        }
        let ids = self.tokenizer.encode(&self.pairs[row].prompt)?;
        if ids.is_empty() {
            return Err(PlanError::Empty { index: row, what: "a prompt" });
        }
        let length = usize::try_from(input).unwrap_or(usize::MAX);
        let prompt: Vec<u32> = ids.iter().copied().cycle().take(length).collect();
        let text = match self.form {
            PromptForm::Text => Some(self.tokenizer.decode(&prompt)?),
            PromptForm::TokenIds => None,
        };
        Ok(ManifestRequest { send_us: 0, prompt, text, output_tokens: output })
    }
}

/// How long prompts and answers are.
enum Lengths {
    /// As in the data; rows outside the bounds are dropped.
    Data,
    /// Input and output length of each request, drawn before anything else.
    Drawn(Vec<(u64, u64)>),
}

impl Lengths {
    fn drawn(workload: &Workload) -> Result<Self, PlanError> {
        let (Some(input), Some(output)) = (workload.input_tokens, workload.output_tokens) else {
            return Ok(Self::Data);
        };
        let seed = u32::try_from(workload.seed).map_err(|_| PlanError::Seed(workload.seed))?;
        let ratio = workload.range_ratio.unwrap_or(1.0);
        let mut random = NumpyRandom::seed(seed);
        let low = scaled(input, ratio).max(1);
        let inputs: Vec<u64> =
            (0..workload.requests).map(|_| random.randint(low, input + 1)).collect();
        // No lower bound of one here: the tool of that release has none either.
        let low = scaled(output, ratio);
        let outputs = (0..workload.requests).map(|_| random.randint(low, output + 1));
        Ok(Self::Drawn(inputs.into_iter().zip(outputs).collect()))
    }
}

/// `int(bound * ratio)` of the tool.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths are far below 2^53, the ratio lies between 0 and 1"
)]
fn scaled(bound: u64, ratio: f64) -> u64 {
    (bound as f64 * ratio) as u64
}

/// Takes warm-up prompts from the rows after the last measured one, and of those only such as
/// do not begin like a measured one.
fn warmup(
    wanted: &Warmup,
    measured: &[ManifestRequest],
    source: &Source<'_>,
    mut used: usize,
) -> Result<Vec<ManifestRequest>, PlanError> {
    let head =
        |request: &ManifestRequest| request.prompt[..request.prompt.len().min(SHARED_MAX)].to_vec();
    let taken: BTreeSet<Vec<u32>> = measured.iter().map(head).collect();
    let mut found: Vec<ManifestRequest> = Vec::new();
    while (found.len() as u64) < wanted.requests {
        if used >= source.pairs.len() {
            return Err(PlanError::TooFew { found: found.len(), wanted: wanted.requests });
        }
        let request = source.request(used)?;
        used += 1;
        found.extend(request.filter(|request| !taken.contains(&head(request))));
    }
    let longest = wanted.output_tokens_max.unwrap_or(u64::MAX);
    for request in &mut found {
        request.output_tokens = request.output_tokens.min(longest);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::gguf::GgufTokenizer;
    use proptest::prelude::*;

    /// One token a letter.
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

    fn drawn(pack: &str, requests: u64, rows: &[(&str, &str)]) -> Result<Plan, PlanError> {
        let dataset = Dataset::of_pairs(rows);
        plan("x", &scenario(pack, requests), &dataset, &letters(), PromptForm::TokenIds)
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
        assert!(matches!(
            drawn("sharegpt@lmdeploy", 1, &alike),
            Err(PlanError::TooFew { found: 0, wanted: 1 })
        ));
    }

    #[test]
    fn too_small_a_data_set_is_an_error_that_says_so() {
        let error = drawn("sharegpt@lmdeploy", 3, &[("aaaa", "bbbb")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the data set gives 1 requests of the 3 that the scenario asks for"
        );
    }

    proptest! {
        #[test]
        fn drawn_lengths_lie_within_their_bounds(
            input in 1_u64..5000, output in 1_u64..5000, ratio in 0.0_f64..=1.0, seed in 0_u64..100
        ) {
            let mut workload = scenario("random@lmdeploy", 20).workload;
            workload.input_tokens = Some(input);
            workload.output_tokens = Some(output);
            workload.range_ratio = Some(ratio);
            workload.seed = seed;
            let Lengths::Drawn(lengths) = Lengths::drawn(&workload).unwrap() else {
                panic!("a random pack draws its lengths");
            };
            prop_assert_eq!(lengths.len(), 20);
            for (drawn_input, drawn_output) in lengths {
                prop_assert!((scaled(input, ratio).max(1)..=input).contains(&drawn_input));
                prop_assert!((scaled(output, ratio)..=output).contains(&drawn_output));
            }
        }
    }
}
