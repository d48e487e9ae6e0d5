//! Correctness check of a run: greedy outputs for fixed prompts, requested one at a time after the
//! clock has stopped, and their agreement with reference outputs.

use anyhow::Context;
use std::path::Path;

use schema::canonical::sha256_of;
use schema::correctness::ReferenceOutputs;
use schema::engine::ApiFormat;
use schema::manifest::ManifestRequest;
use schema::measurement::Measurement;
use schema::run::{Correctness, FailureClass, FixedOutput, IdsSource, Status};
use schema::scenario::{Arrival, Output};
use serde_json::{Value, json};
use whole_file::DATA_MAX;

use super::{Assignment, written};
use crate::client::drive::{DriveError, Driven};
use crate::client::sample::Sample;
use crate::measure::summary::float;
use crate::workload::tokenizer::Tokenizer;

/// Fixed prompts of the correctness check; one has a non-ASCII character.
const PROMPTS: [&str; 4] = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Water boils at 100\u{b0}C because",
    "1, 1, 2, 3, 5, 8,",
];
/// Number of output tokens requested for each fixed prompt of the correctness check.
const TOKENS: usize = 32;
/// Maximum number of requests in flight at a time in the teacher-forced comparison with reference
/// outputs. Each request asks for one token, and is not timed.
const FORCED_CONCURRENCY: u64 = 8;

/// Text whose perplexity is measured: about 260 words, written for this purpose.
const TEXT: &str = include_str!("perplexity.txt");

/// Reads a file of reference outputs, which is JSON: `{"reference": "...", "cases": [{"prompt":
/// [ids], "greedy": [ids]}]}`.
///
/// # Errors
/// The file cannot be read or has another shape.
pub fn open_reference(path: &Path) -> anyhow::Result<ReferenceOutputs> {
    let shown = path.display();
    let bytes = whole_file::read(path, "reference", DATA_MAX)?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("`{shown}` is not a file of reference outputs"))
}

impl Assignment<'_> {
    /// Sends the fixed prompts, unless the check is switched off, the requests ask for no output
    /// tokens or the server is gone, and writes the result of the correctness check into
    /// `measurement`.
    pub(super) fn check_outputs(&self, measurement: &mut Measurement) -> Result<(), DriveError> {
        let lost = |class| matches!(class, FailureClass::Crash | FailureClass::Hang);
        let gone = measurement.status == Status::Failed
            || measurement.failure.as_ref().is_some_and(|failure| lost(failure.class));
        let generates = self.engine.request.dialect().generates();
        if self.conduct.check_outputs && generates && !gone {
            measurement.correctness = self.correctness()?;
        }
        Ok(())
    }

    fn correctness(&self) -> Result<Option<Correctness>, DriveError> {
        let Ok(requests) = self.fixed_requests() else {
            return Ok(None);
        };
        let samples = self.greedy(&requests, 1)?.samples;
        if samples.iter().any(|sample| sample.failure.is_some()) {
            return Ok(None);
        }
        let output = output_ids(&samples, self.tokenizer);
        let digest = output.as_ref().and_then(|(ids, _)| sha256_of(ids).ok());
        let agreement = self.agreement()?;
        let is_known = self.engine.request.sends_ids()
            && output.as_ref().is_some_and(|(_, source)| *source == IdsSource::Given);
        let outputs = requests.into_iter().zip(&samples).filter(|_| is_known);
        let outputs = outputs
            .map(|(request, sample)| FixedOutput {
                prompt: request.prompt,
                output: sample.ids.clone(),
            })
            .collect();
        Ok(Some(Correctness {
            prompts: Some(samples.len() as u64),
            ids_source: output.filter(|_| digest.is_some()).map(|(_, source)| source),
            tokens_sha256: digest,
            reference: agreement.and(self.reference).map(|found| found.reference.clone()),
            agreement,
            outputs,
            perplexity: self.perplexity(),
        }))
    }

    /// Measures the perplexity of the fixed text; `None` if the engine does not offer the
    /// log-probabilities of a prompt, or the request fails.
    fn perplexity(&self) -> Option<f64> {
        let request = &self.engine.request;
        if !request.prompt_logprobs || request.dialect() != ApiFormat::Completions {
            return None;
        }
        let ids = self.tokenizer.and_then(|tokenizer| tokenizer.encode(TEXT.trim()).ok());
        let prompt = match ids.filter(|_| request.sends_ids()) {
            Some(ids) => json!(ids),
            None => json!(TEXT.trim()),
        };
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0,
            "echo": true, "logprobs": 1,
        });
        let answer = self.server.post_json(&request.route, &body).ok()?;
        perplexity(answer["choices"][0]["logprobs"]["token_logprobs"].as_array()?)
    }

    fn fixed_requests(&self) -> anyhow::Result<Vec<ManifestRequest>> {
        let request = |text: &&str| {
            // Without a tokenizer the text is sent, and the server tokenizes it.
            let encoded = self.tokenizer.map(|tokenizer| tokenizer.encode(text)).transpose()?;
            let prompt = encoded.unwrap_or_default();
            Ok(self.request(prompt, TOKENS as u64, Some(*text)))
        };
        PROMPTS.iter().map(request).collect()
    }

    fn request(&self, prompt: Vec<u32>, output_tokens: u64, text: Option<&str>) -> ManifestRequest {
        // An engine that takes no ids gets the text and tokenizes it itself.
        let as_text = !self.engine.request.sends_ids() || prompt.is_empty();
        let text = text.filter(|_| as_text).map(str::to_owned);
        ManifestRequest { prompt, text, output_tokens, ..ManifestRequest::default() }
    }

    /// Sends `requests` outside the timed part, `concurrency` at a time, and waits for all answers.
    /// They are greedy whatever temperature the scenario has: sampled outputs would differ from one
    /// run to the next.
    fn greedy(&self, requests: &[ManifestRequest], concurrency: u64) -> Result<Driven, DriveError> {
        let output = Output { temperature: Some(0.0), ..self.scenario.output.clone() };
        let payloads = written(self.server, self.engine, &self.model, &output, requests);
        self.drive(&payloads, &Arrival::Closed { concurrency })
    }

    /// Measures the share of reference tokens, over the first few cases together, that the server
    /// also outputs when the prompt contains all reference tokens before them (teacher forcing), so
    /// that one wrong token does not make all later ones wrong. `None` without reference outputs,
    /// or if the engine does not take and return token ids, or a request fails.
    fn agreement(&self) -> Result<Option<f64>, DriveError> {
        let Some(reference) = self.reference else {
            return Ok(None);
        };
        if !self.engine.request.sends_ids() || !self.engine.request.gets_ids() {
            return Ok(None);
        }
        let cases = reference.cases.iter().take(PROMPTS.len());
        let (requests, wanted): (Vec<_>, Vec<u32>) = cases
            .flat_map(|case| {
                case.greedy.iter().take(TOKENS).enumerate().map(|(length, next)| {
                    let prompt = [&case.prompt[..], &case.greedy[..length]].concat();
                    (self.request(prompt, 1, None), *next)
                })
            })
            .unzip();
        let samples = self.greedy(&requests, FORCED_CONCURRENCY)?.samples;
        if samples.is_empty() || samples.iter().any(|sample| !sample.is_ok()) {
            return Ok(None);
        }
        let pairs = samples.iter().zip(&wanted);
        let equal = pairs.filter(|(sample, next)| sample.ids.first() == Some(next)).count();
        Ok(Some(float(equal as u64) / float(wanted.len() as u64)))
    }
}

/// Returns the perplexity of a prompt from the log-probabilities of its tokens and of one output token
/// after them; `None` where one is missing. The first token has none, since nothing comes before it.
fn perplexity(logprobs: &[Value]) -> Option<f64> {
    let (_, rest) = logprobs.split_first()?;
    let (_, prompt) = rest.split_last()?;
    let values: Option<Vec<f64>> = prompt.iter().map(Value::as_f64).collect();
    let values = values.filter(|values| !values.is_empty())?;
    let mean = values.iter().sum::<f64>() / float(values.len() as u64);
    Some((-mean).exp()).filter(|perplexity| perplexity.is_finite())
}

/// Returns the output token ids of every answer, and their source: the server's if it returns some
/// for each answer, else those of the retokenized texts. `None` if a text has no tokens or cannot
/// be tokenized, also because there is no tokenizer.
fn output_ids(
    samples: &[Sample],
    tokenizer: Option<&Tokenizer>,
) -> Option<(Vec<Vec<u32>>, IdsSource)> {
    let whole = |ids: &Vec<Vec<u32>>| ids.iter().all(|ids| !ids.is_empty());
    let given: Vec<Vec<u32>> = samples.iter().map(|sample| sample.ids.clone()).collect();
    if whole(&given) {
        return Some((given, IdsSource::Given));
    }
    let tokenizer = tokenizer?;
    let retokenized: anyhow::Result<Vec<Vec<u32>>> =
        samples.iter().map(|sample| tokenizer.encode_plain(&sample.text)).collect();
    Some((retokenized.ok().filter(whole)?, IdsSource::Retokenized))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_counts_the_prompts_tokens_after_the_first() {
        let half = 0.5_f64.ln();
        let found = perplexity(&[Value::Null, json!(half), json!(half), json!(-9.0)]).unwrap();
        assert!((found - 2.0).abs() < 1e-12, "{found}");
        assert_eq!(perplexity(&[Value::Null, Value::Null, json!(-1.0)]), None, "one is missing");
        for short in [&[][..], &[Value::Null], &[Value::Null, json!(-1.0)]] {
            assert_eq!(perplexity(short), None, "{short:?}");
        }
    }
}
