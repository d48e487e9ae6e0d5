//! Tests of sampling on the device: it chooses the same tokens as the host's sampler from the same
//! logits, and passes them to the next step.

use std::num::NonZeroUsize;

use super::*;
use engine_core::sample::{Row, Sampler, Sampling};

pub const SEQUENCES: u32 = 6;

/// Loads the tiny test model on `ranks` tensor-parallel ranks.
fn load_ranks(ranks: usize) -> Box<dyn Model> {
    let options = LoadOptions {
        tp: NonZeroUsize::new(ranks),
        threads: NonZeroUsize::new(1),
        ..LoadOptions::default()
    };
    let mut model = load_tiny(|_| (), &options).unwrap().model;
    model.allocate_kv(SEQUENCES as usize, PAGE_TOKENS).unwrap();
    model
}

/// Returns the sampling parameters of the test sequence in KV page `page`; those of the first
/// sequence are greedy.
pub fn sampling(page: u32) -> Sampling {
    let top_k = (page % 3 == 2).then_some(20);
    let top_p = if page % 2 == 1 { 0.8 } else { 1.0 };
    let temperature = 0.4 * page as f32;
    Sampling { temperature, top_p, top_k, seed: u64::from(page), ..Sampling::greedy() }
}

pub fn prompt(page: u32) -> Vec<u32> {
    (0..=page).map(|i| (7 + page * 31 + i * 13) % 260).collect()
}

/// Returns the tokens of the prompt and continuation of each test sequence, run alone, where the
/// host samples the tokens.
pub fn sampled(model: &mut dyn Model, length: usize) -> Vec<Vec<u32>> {
    let mut sampler = Sampler::default();
    let mut continued = |page| {
        let (params, mut tokens) = (sampling(page), prompt(page));
        let prompt_tokens = tokens.len();
        let mut done = 0;
        while tokens.len() < length {
            let own = scheduled(tokens.len() - done, done, vec![page], LogitRows::Last);
            let batch = StepBatch::known(&tokens[done..], vec![own]);
            done = tokens.len();
            let logits = model.step(&batch).unwrap();
            let row = Row { logits, tokens: &tokens, prompt_tokens, banned: &[], allowed: None };
            let token = sampler.sample(row, &params).unwrap();
            tokens.push(token);
        }
        tokens
    };
    (0..SEQUENCES).map(&mut continued).collect()
}

/// Returns the tokens of the prompt and continuation of each test sequence, all in one batch: the
/// device samples every token, and the next step refers to it before the host knows it.
fn sampled_tokens(model: &mut dyn Model, length: usize) -> Vec<Vec<u32>> {
    let mut all: Vec<Vec<u32>> = (0..SEQUENCES).map(prompt).collect();
    let mut drew: Vec<u32> = Vec::new();
    while all.iter().any(|tokens| tokens.len() < length) {
        let mut batch = StepBatch::default();
        let mut draws = Vec::new();
        for (tokens, page) in all.iter().zip(0..).filter(|(tokens, _)| tokens.len() < length) {
            let before = drew.iter().position(|drew| *drew == page);
            let new = match before {
                Some(index) => vec![StepToken::Sampled(index as u32)],
                None => tokens.iter().copied().map(StepToken::Known).collect(),
            };
            let params = sampling(page).sample_params(tokens.len() - prompt(page).len());
            let (rows, position) = (new.len(), tokens.len() - new.len());
            batch.tokens.extend(new);
            batch.push(scheduled(rows, position, vec![page], LogitRows::Sample(params)));
            draws.push(page);
        }
        model.submit(&batch).unwrap();
        let output = model.complete().unwrap();
        assert!(output.logits.is_empty(), "logits of drawn tokens are nobody's");
        for (page, token) in draws.iter().zip(output.tokens) {
            all[*page as usize].push(token.unwrap());
        }
        drew = draws;
    }
    all
}

#[test]
fn tokens_drawn_on_the_device_are_those_that_the_sampler_chooses() {
    for ranks in [1, 2] {
        let want = sampled(load_ranks(ranks).as_mut(), PAGE_TOKENS);
        assert_eq!(sampled_tokens(load_ranks(ranks).as_mut(), PAGE_TOKENS), want, "{ranks} ranks");
    }
}

#[test]
fn logits_that_are_read_keep_their_order_among_drawn_rows() {
    for ranks in [1, 2] {
        let model = &mut *load_ranks(ranks);
        let batch = |logits: [LogitRows; 3]| {
            let sequences =
                (0..3).zip(logits).map(|(page, logits)| scheduled(2, 0, vec![page], logits));
            StepBatch::known(&[1, 2, 30, 40, 5, 6], sequences.collect())
        };
        let vocab = model.info().vocab_size;
        let all = model.step(&batch([LogitRows::All; 3])).unwrap().to_vec();
        let row = |row: usize| &all[row * vocab..(row + 1) * vocab];
        let draw = LogitRows::Sample(Sampling::greedy().sample_params(0));
        model.submit(&batch([draw, LogitRows::All, LogitRows::Last])).unwrap();
        let output = model.complete().unwrap();
        assert!(output.logits == [row(2), row(3), row(5)].concat());
        let greedy = Sampling::greedy().sample_params(0);
        assert_eq!(output.tokens, [Sampler::default().sample_logits(row(1), &greedy).ok()]);
        // A step that samples nothing leaves no token for the next one to refer to.
        model.step(&batch([LogitRows::None; 3])).unwrap();
        let mut unsound = batch([LogitRows::None; 3]);
        unsound.tokens[0] = StepToken::Sampled(0);
        let message = model.step(&unsound).unwrap_err().to_string();
        assert!(message.contains("sampled token 0 does not exist"), "{message}");
    }
}
