//! Sampler of poem lines, as vLLM 0.33's `sonnet` makes its prompts: a task, lines that all prompts
//! share, and further lines at random. Lengths count with the chat template around a prompt.

use anyhow::{Context, ensure};
use schema::manifest::ManifestRequest;

use super::{Draw, Requests};
use crate::measure::summary::{float, whole};
use crate::workload::generators::PythonRandom;

/// Task that begins every prompt.
const TASK: &str = "Pick as many lines as you can from these poem lines:\n";
/// Number of prompts in a row that may be too long; after that no prompt can be expected to fit.
const TOO_LONG_MAX: u32 = 1_000;

/// Draws requests of at most `input_tokens` tokens. All requests begin with the same lines: as many
/// as have about `prefix_tokens` tokens.
///
/// # Errors
/// The dataset has no lines, or the lengths leave no room for one; the chat template refuses a prompt,
/// or the tokenizer rejects it.
pub fn sonnet_vllm(draw: &Draw<'_>) -> anyhow::Result<Requests> {
    let (workload, tokenizer) = (draw.workload, draw.tokenizer()?);
    let template = draw.template.context("`sonnet@vllm` counts with a chat template")?;
    let lines: Vec<&str> = draw.dataset()?.text()?.split_inclusive('\n').collect();
    let tokens = |text: &str| anyhow::Ok(tokenizer.encode(text)?.len() as u64);
    let of_lines: u64 = lines.iter().map(|line| tokens(line)).sum::<anyhow::Result<u64>>()?;
    ensure!(of_lines > 0, "the data set has no lines with tokens");
    let of_line = float(of_lines) / float(lines.len() as u64);
    let of_task = tokens(&template.render(TASK)?)?;
    let most = workload.input_tokens.unwrap_or(0);
    ensure!(
        most > of_task,
        "prompts of {most} tokens have no room for a line: the task and the chat template have \
         {of_task}\nhint: raise `--sonnet-input-len` or `workload.input_tokens`"
    );
    // Python rounds a half to the even neighbor.
    let lines_in = |length: u64| {
        let count = ((float(length) - float(of_task)) / of_line).round_ties_even();
        usize::try_from(whole(count.max(0.0))).unwrap_or(usize::MAX)
    };
    let shared = lines_in(workload.prefix_tokens.unwrap_or(0));
    let others = lines_in(most).saturating_sub(shared);
    let beginning = TASK.to_owned() + &lines[..shared.min(lines.len())].concat();
    let (mut random, mut too_long) = (PythonRandom::seed(workload.seed), 0);
    let mut requests: Vec<ManifestRequest> = Vec::new();
    while (requests.len() as u64) < workload.requests {
        let prompt = beginning.clone() + &random.choices(&lines, others).concat();
        let written = template.render(&prompt)?;
        if tokens(&written)? > most {
            too_long += 1;
            ensure!(
                too_long < TOO_LONG_MAX,
                "{TOO_LONG_MAX} prompts in a row have more than {most} tokens\nhint: raise \
                 `--sonnet-input-len`, or lower `--sonnet-prefix-len`"
            );
            continue;
        }
        too_long = 0;
        // Behind a chat route the server writes the template.
        let text = if workload.chat_template { written } else { prompt };
        let output_tokens = workload.output_tokens.unwrap_or(0);
        requests.push(draw.of_text(text, output_tokens, requests.len())?);
    }
    Ok(requests)
}
