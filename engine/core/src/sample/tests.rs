//! Tests of sampling on small rows of logits, for which the right result is known.

use super::*;

fn row<'a>(logits: &'a [f32], tokens: &'a [u32], prompt_tokens: usize) -> Row<'a> {
    Row { logits, tokens, prompt_tokens, banned: &[], allowed: None }
}

fn hot() -> Sampling {
    Sampling { temperature: 1.0, ..Sampling::greedy() }
}

/// Returns the share of 20,000 samples in which each token was sampled from `logits`, by token id.
fn shares(logits: &[f32], params: &Sampling) -> Vec<f64> {
    let draws = 20_000;
    let mut sampler = Sampler::default();
    let mut counts = vec![0.0; logits.len()];
    let tokens = vec![0; draws];
    for length in 0..draws {
        let token = sampler.sample(row(logits, &tokens[..length], 0), params).unwrap();
        counts[token as usize] += 1.0 / draws as f64;
    }
    counts
}

#[test]
fn greedy_takes_the_lowest_of_the_largest() {
    let mut logits = vec![0.0; 100];
    (logits[41], logits[97]) = (3.0, 3.0);
    let token = Sampler::default().sample(row(&logits, &[1], 1), &Sampling::greedy());
    assert_eq!(token, Ok(41));
}

#[test]
fn logits_without_a_number_are_an_error() {
    for logits in [[f32::NAN; 20], [f32::NEG_INFINITY; 20], [f32::INFINITY; 20]] {
        let token = Sampler::default().sample(row(&logits, &[1], 1), &Sampling::greedy());
        assert_eq!(token, Err(NoFiniteLogit));
    }
    let mut logits = [f32::NAN; 20];
    logits[7] = -1.0;
    assert_eq!(Sampler::default().sample(row(&logits, &[1], 1), &hot()), Ok(7));
}

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = [0.5f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
    for (params, expected) in [
        (hot(), [0.5, 0.3, 0.2]),
        (Sampling { top_k: Some(2), ..hot() }, [0.625, 0.375, 0.0]),
        (Sampling { top_p: 0.4, ..hot() }, [1.0, 0.0, 0.0]),
        (Sampling { top_p: 0.7, ..hot() }, [0.625, 0.375, 0.0]),
        (Sampling { min_p: 0.5, ..hot() }, [0.625, 0.375, 0.0]),
        (Sampling { temperature: 0.5, ..hot() }, [0.658, 0.237, 0.105]),
    ] {
        for (share, wanted) in shares(&logits, &params).iter().zip(expected) {
            // Three sigmas of 20,000 draws are about 0.0106.
            assert!((share - wanted).abs() < 0.012, "{params:?}: {share} instead of {wanted}");
        }
    }
}

#[test]
fn the_same_seed_draws_the_same_tokens_and_another_seed_others() {
    let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
    let draw = |seed| {
        let params = Sampling { seed, top_p: 0.95, ..hot() };
        let mut tokens = vec![5];
        for _ in 0..20 {
            let token = Sampler::default().sample(row(&logits, &tokens, 1), &params).unwrap();
            tokens.push(token);
        }
        tokens
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn top_p_over_a_flat_row_keeps_its_share() {
    let params = Sampling { top_p: 0.9, ..hot() };
    let candidates = candidates(&[1.0; 5000], &params);
    assert_eq!(candidates.len(), 4500);
    assert!(candidates.is_sorted());
}

/// Returns the candidates that top-k, top-p and min-p keep, with their weights.
fn candidates(logits: &[f32], params: &Sampling) -> Vec<(u32, f32)> {
    let mut sampler = Sampler::default();
    let largest = softmax::block_maxima(logits, &mut sampler.maxima);
    let Sampling { temperature, min_p, .. } = *params;
    let softmax = softmax::Softmax { largest, temperature, min_p };
    sampler.keep_candidates(logits, softmax, &params.sample_params(0));
    sampler.candidates
}

/// Returns the same candidates by the definition: the exact weights of all tokens are sorted.
fn sorted(logits: &[f32], params: &Sampling) -> Vec<(u32, f64)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| (f64::from(logit - largest) / f64::from(params.temperature)).exp();
    let mut all: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|x| weight(*x))).collect();
    all.retain(|(_, weight)| *weight >= f64::from(params.min_p));
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(params.top_k.unwrap_or(usize::MAX));
    let total: f64 = all.iter().map(|(_, weight)| weight).sum();
    let mut sum = 0.0;
    let is_enough = |(_, weight): &(u32, f64)| {
        sum += weight;
        sum >= f64::from(params.top_p) * total
    };
    let kept = all.iter().position(is_enough).map_or(all.len(), |last| last + 1);
    all.truncate(kept);
    all
}

/// Returns logits whose distribution has a few likely tokens and a long tail.
fn tailed(len: usize, seed: u64) -> Vec<f32> {
    let number = |i: usize| crate::random::uniform(seed, i as u64) as f32;
    (0..len).map(|i| 12.0 * number(i).powi(3) - 4.0 * number(len + i)).collect()
}

#[test]
fn the_kept_candidates_are_those_of_a_full_sort() {
    for (seed, len) in [(1, 100), (2, 1000), (3, 5000), (4, 5000)] {
        let logits = tailed(len, seed);
        for top_k in [None, Some(1), Some(7), Some(40), Some(3000)] {
            for (top_p, min_p) in [(0.1, 0.0), (0.9, 0.0), (0.999, 0.0), (0.95, 0.02), (1.0, 0.02)]
            {
                let temperature = 0.7 + 0.3 * seed as f32;
                let params = Sampling { temperature, top_k, top_p, min_p, ..hot() };
                if top_k.is_none() && top_p == 1.0 {
                    continue;
                }
                let (got, want) = (candidates(&logits, &params), sorted(&logits, &params));
                let ids = |i: usize| (got.get(i).map(|x| x.0), want.get(i).map(|x| x.0));
                let is_same = |i: usize| ids(i).0 == ids(i).1;
                assert!((0..got.len().max(want.len())).all(is_same), "{len} tokens: {params:?}");
            }
        }
    }
}

#[test]
fn a_token_without_restrictions_is_that_of_the_exact_distribution() {
    let logits = tailed(1000, 9);
    let (mut sampler, mut far) = (Sampler::default(), 0);
    let exact: Vec<f64> = logits.iter().map(|x| f64::from(*x).exp()).collect();
    let total: f64 = exact.iter().sum();
    for seed in 0..500 {
        let params = Sampling { seed, ..hot() }.sample_params(0);
        let token = sampler.sample_logits(&logits, &params).unwrap() as usize;
        let (random, before) =
            (crate::random::uniform(seed, 0), exact[..token].iter().sum::<f64>());
        let share = before / total..=(before + exact[token]) / total;
        assert!(share.start() - 1e-6 <= random && random <= share.end() + 1e-6, "seed {seed}");
        far += usize::from(token >= 256);
    }
    assert!(far > 100, "tokens beyond the first block are sampled too: {far}");
}

#[test]
fn only_allowed_tokens_are_taken_whatever_their_place_in_the_mask() {
    // Whole words of the mask, parts of words, and a vocabulary beyond the mask's end.
    let mut allowed = TokenSet::from_bits(vec![0, u32::MAX, 0]);
    allowed.insert(70);
    let is_allowed = |token: u32| (32..64).contains(&token) || token == 70;
    let params = Sampling { temperature: 9.0, ..hot() };
    for seed in 0..200u64 {
        let logits = [0.5; 120];
        let params = Sampling { seed, ..params.clone() };
        let row = Row { allowed: Some(&allowed), ..row(&logits, &[1], 1) };
        let token = Sampler::default().sample(row, &params).unwrap();
        assert!(is_allowed(token), "{token}");
    }
    let none = TokenSet::from_bits(Vec::new());
    let row = Row { allowed: Some(&none), ..row(&[0.5; 40], &[1], 1) };
    assert_eq!(Sampler::default().sample(row, &params), Err(NoFiniteLogit));
}

#[test]
fn penalties_bias_and_bans_change_the_choice() {
    let logits = [2.0, 1.9, 1.0, -1.0];
    let greedy = Sampling::greedy();
    type Case<'a> = (&'a str, Sampling, &'a [u32], &'a [u32], u32);
    let cases: [Case<'_>; 7] = [
        ("nothing", greedy.clone(), &[3, 0], &[], 0),
        ("repetition", Sampling { repetition_penalty: 1.5, ..greedy.clone() }, &[0], &[], 1),
        ("presence", Sampling { presence_penalty: 0.5, ..greedy.clone() }, &[3, 0], &[], 1),
        (
            "prompt is no presence",
            Sampling { presence_penalty: 0.5, ..greedy.clone() },
            &[0],
            &[],
            0,
        ),
        ("frequency", Sampling { frequency_penalty: 0.06, ..greedy.clone() }, &[3, 0, 0], &[], 1),
        (
            "bias",
            Sampling { logit_bias: [(2, 1.5), (99, 9.0)].into(), ..greedy.clone() },
            &[3],
            &[],
            2,
        ),
        ("ban", greedy.clone(), &[3], &[0, 1], 2),
    ];
    for (name, params, tokens, banned, expected) in cases {
        let row = Row { logits: &logits, tokens, prompt_tokens: 1, banned, allowed: None };
        assert_eq!(Sampler::default().sample(row, &params), Ok(expected), "{name}");
    }
}
