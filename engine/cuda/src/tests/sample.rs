//! Tests of the sampling kernels (argmax, top-k, top-p, min-p) against the CPU's sampler.

use super::*;
use crate::launch::SamplingArguments;
use engine_core::sample::{Row, Sampler, Sampling};

const NONE: u32 = u32::MAX;

/// Returns the likeliest token of each row of logits, by both stages of the argmax kernels.
fn likeliest(program: &Program, logits: &[f32], vocab: usize) -> Vec<u32> {
    let rows = logits.len() / vocab;
    let launch = Launch::argmax_part(rows, vocab);
    let parts = launch.grid[1] as usize;
    let call = Call::new("argmax_part", launch)
        .buffer(&vec![u64::MAX; rows * parts])
        .buffer(logits)
        .value(vocab as u32);
    let best: Vec<u64> = elements(&program.run(&[call])[0][0]);
    let call = Call::new("argmax_merge", Launch::argmax_merge(rows))
        .buffer(&vec![77u32; rows])
        .buffer(&best)
        .value(parts as u32);
    elements(&program.run(&[call])[0][0])
}

fn sampled(logits: &[f32], params: &Sampling, drawn: usize) -> u32 {
    let tokens = vec![0; drawn];
    let row = Row { logits, tokens: &tokens, prompt_tokens: 0, banned: &[], allowed: None };
    Sampler::default().sample(row, params).unwrap_or(NONE)
}

#[test]
fn the_likeliest_token_is_the_first_of_the_largest_finite_logits() {
    let Some(program) = Program::compile("argmax") else { return };
    for (rows, vocab) in
        ROWS.iter().map(|rows| (*rows, 40)).chain([(2, 1), (2, 31), (2, 4097), (1, 20_000)])
    {
        let logits: Vec<f32> =
            numbers(rows * vocab, 15).iter().map(|x| (20.0 * x).round()).collect();
        let want: Vec<u32> =
            logits.chunks_exact(vocab).map(|row| sampled(row, &Sampling::greedy(), 0)).collect();
        assert_eq!(likeliest(&program, &logits, vocab), want, "R{rows} V{vocab}");
    }
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let odd = [
        [nan, -1.0, -nan, -2.0],
        [-inf, -inf, 3.0, -inf],
        [0.0, -0.0, 0.0, -1.0],
        [-0.0, 0.0, -1.0, -1.0],
        [nan, nan, nan, nan],
        [-inf, -inf, -inf, -inf],
        [1.0, inf, 2.0, 3.0],
        [-f32::MAX, -inf, nan, -inf],
    ];
    let want: Vec<u32> = odd.iter().map(|row| sampled(row, &Sampling::greedy(), 0)).collect();
    assert_eq!(want, [1, 2, 0, 0, NONE, NONE, NONE, 0]);
    assert_eq!(likeliest(&program, &odd.concat(), 4), want);
}

/// Returns sampling parameters that combine temperature, top-k, top-p and min-p.
fn ways() -> Vec<Sampling> {
    let mut ways = Vec::new();
    for temperature in [0.0, 0.7, 1.5] {
        for top_k in [None, Some(1), Some(7), Some(5000)] {
            for top_p in [1.0, 0.9, 0.2] {
                let min_p = if ways.len() % 4 == 0 { 0.02 } else { 0.0 };
                let seed = 17 * ways.len() as u64;
                ways.push(Sampling {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    seed,
                    ..Sampling::greedy()
                });
            }
        }
    }
    ways
}

fn arguments(way: &Sampling, index: usize) -> SamplingArguments {
    let Sampling { temperature, top_p, min_p, seed, .. } = *way;
    let top_k = way.top_k.unwrap_or(0) as u32;
    SamplingArguments { temperature, top_p, min_p, top_k, seed, index: index as u64 }
}

#[test]
fn drawn_tokens_are_those_of_the_sampler() {
    let (Some(argmax), Some(sample)) = (Program::compile("argmax"), Program::compile("sample"))
    else {
        return;
    };
    let all_ways = ways();
    // 9,000 tokens are more than a block takes at a time.
    for (vocab, ways) in [(37, &all_ways[..]), (1300, &all_ways[..]), (9000, &all_ways[12..16])] {
        let mut logits: Vec<f32> =
            numbers(ways.len() * vocab, 16).iter().map(|x| 6.0 * x).collect();
        // Every other row has equal logits, so that the order of ids decides.
        for row in logits.chunks_exact_mut(vocab).step_by(2) {
            row.iter_mut().for_each(|x| *x = x.round());
        }
        let best = likeliest(&argmax, &logits, vocab);
        let all: Vec<SamplingArguments> =
            ways.iter().enumerate().map(|(i, way)| arguments(way, i)).collect();
        let call = Call::new("sample", Launch::sample(ways.len()))
            .buffer(&best)
            .buffer(&logits)
            .buffer(&all)
            .value(vocab as u32);
        let got: Vec<u32> = elements(&sample.run(&[call])[0][0]);
        for (i, (row, way)) in logits.chunks_exact(vocab).zip(ways).enumerate() {
            assert_eq!(got[i], sampled(row, way, i), "V{vocab}, row {i}: {way:?}");
        }
    }
}

#[test]
fn a_share_that_is_reached_exactly_is_enough() {
    let Some(program) = Program::compile("sample") else { return };
    // The first four of eight equal tokens have exactly half of the weight.
    let logits = [1.0f32; 8];
    let way = |seed| Sampling { temperature: 1.0, top_p: 0.5, seed, ..Sampling::greedy() };
    let ways: Vec<Sampling> = (0..24).map(way).collect();
    let all: Vec<SamplingArguments> = ways.iter().map(|way| arguments(way, 0)).collect();
    let call = Call::new("sample", Launch::sample(ways.len()))
        .buffer(&vec![0u32; ways.len()])
        .buffer(&logits.repeat(ways.len()))
        .buffer(&all)
        .value(8u32);
    let got: Vec<u32> = elements(&program.run(&[call])[0][0]);
    let want: Vec<u32> = ways.iter().map(|way| sampled(&logits, way, 0)).collect();
    assert_eq!(got, want);
    assert_eq!(got.iter().max(), Some(&3));
}

#[test]
fn rows_without_a_finite_logit_stay_marked() {
    let Some(program) = Program::compile("sample") else { return };
    let way = Sampling { temperature: 1.0, ..Sampling::greedy() };
    let call = Call::new("sample", Launch::sample(1))
        .buffer(&[NONE])
        .buffer(&[f32::NAN; 8])
        .buffer(&[arguments(&way, 0)])
        .value(8u32);
    assert_eq!(elements::<u32>(&program.run(&[call])[0][0]), [NONE]);
}
