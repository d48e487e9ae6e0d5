//! Draws a scenario's requests from a data set exactly as the tool it names does.
//!
//! `sharegpt@lmdeploy` and `random@lmdeploy` follow `benchmark/profile_restful_api.py` of LMDeploy
//! v0.9.2. One difference is deliberate: that tool decodes the ids of its `random` prompts and
//! sends the text, whose length the server then finds to be another; where prompts go as ids, the
//! ids themselves are sent, so that the length is exact.

use std::collections::BTreeSet;

use schema::manifest::{Manifest, ManifestRequest};
use schema::run::PromptForm;
use schema::scenario::{Pack, Scenario, Workload};

use super::dataset::{Dataset, DatasetError, Pair};
use super::mt19937::{NumpyRandom, PythonRandom};
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
    let mut rows = Rows::shuffled(workload, dataset)?;
    let mut lengths = Lengths::drawn(workload)?;
    let wanted = usize::try_from(workload.requests).unwrap_or(usize::MAX);
    let mut requests = Vec::new();
    while requests.len() < wanted {
        let Some(pair) = rows.next() else {
            return Err(PlanError::TooFew { found: requests.len(), wanted: workload.requests });
        };
        requests.extend(lengths.request(requests.len(), pair, tokenizer, form)?);
    }
    let warmup = warmup(scenario, &requests, &mut rows, (tokenizer, form))?;
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

/// The shuffled rows of the data set, each used at most once.
struct Rows<'a>(std::vec::IntoIter<Pair<'a>>);

impl<'a> Rows<'a> {
    fn shuffled(workload: &Workload, dataset: &'a Dataset) -> Result<Self, PlanError> {
        let mut pairs = dataset.pairs()?;
        if workload.pack == Pack::RandomLmdeploy {
            pairs.retain(|pair| !pair.prompt.is_empty());
        }
        PythonRandom::seed(workload.seed).shuffle(&mut pairs);
        Ok(Self(pairs.into_iter()))
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Pair<'a>;

    fn next(&mut self) -> Option<Pair<'a>> {
        self.0.next()
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

    /// The request that `pair` makes, or none if its lengths rule it out.
    fn request(
        &mut self,
        index: usize,
        pair: Pair<'_>,
        tokenizer: &Tokenizer,
        form: PromptForm,
    ) -> Result<Option<ManifestRequest>, PlanError> {
        match self {
            Self::Data => from_data(pair, tokenizer, form),
            Self::Drawn(lengths) => {
                let (input, output) = lengths[index];
                cut_to_length(index, &pair.prompt, (input, output), (tokenizer, form)).map(Some)
            }
        }
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

fn from_data(
    pair: Pair<'_>,
    tokenizer: &Tokenizer,
    form: PromptForm,
) -> Result<Option<ManifestRequest>, PlanError> {
    let prompt = tokenizer.encode(&pair.prompt)?;
    let output = tokenizer.encode(&pair.answer)?.len();
    if prompt.len() < TOKENS_MIN
        || output < TOKENS_MIN
        || prompt.len() > PROMPT_MAX
        || prompt.len() + output > TOTAL_MAX
    {
        return Ok(None);
    }
    let text = (form == PromptForm::Text).then(|| pair.prompt.into_owned());
    Ok(Some(ManifestRequest { send_us: 0, prompt, text, output_tokens: output as u64 }))
}

/// Repeats or truncates the ids of `text` to `input` tokens.
fn cut_to_length(
    index: usize,
    text: &str,
    (input, output): (u64, u64),
    (tokenizer, form): (&Tokenizer, PromptForm),
) -> Result<ManifestRequest, PlanError> {
    if output == 0 {
        return Err(PlanError::Empty { index, what: "an answer" });
    }
    let ids = tokenizer.encode(text)?;
    if ids.is_empty() {
        return Err(PlanError::Empty { index, what: "a prompt" });
    }
    let length = usize::try_from(input).unwrap_or(usize::MAX);
    let prompt: Vec<u32> = ids.iter().copied().cycle().take(length).collect();
    let text = match form {
        PromptForm::Text => Some(tokenizer.decode(&prompt)?),
        PromptForm::TokenIds => None,
    };
    Ok(ManifestRequest { send_us: 0, prompt, text, output_tokens: output })
}

/// Takes warm-up prompts from the rows after the last measured one, and of those only such as
/// do not begin like a measured one.
fn warmup(
    scenario: &Scenario,
    measured: &[ManifestRequest],
    rows: &mut Rows<'_>,
    (tokenizer, form): (&Tokenizer, PromptForm),
) -> Result<Vec<ManifestRequest>, PlanError> {
    let head =
        |request: &ManifestRequest| request.prompt[..request.prompt.len().min(SHARED_MAX)].to_vec();
    let taken: BTreeSet<Vec<u32>> = measured.iter().map(head).collect();
    let wanted = scenario.warmup.requests;
    let mut lengths = Lengths::drawn(&scenario.workload)?;
    let mut found = Vec::new();
    while (found.len() as u64) < wanted {
        let Some(pair) = rows.next() else {
            return Err(PlanError::TooFew { found: measured.len() + found.len(), wanted });
        };
        let index = found.len() % measured.len().max(1);
        let request = lengths.request(index, pair, tokenizer, form)?;
        found.extend(request.filter(|request| !taken.contains(&head(request))));
    }
    Ok(found)
}
